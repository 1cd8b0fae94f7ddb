"""Processes that share the work: the same results, and what becomes of one that fails or dies."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Mt, mt_command, refused

from mt.decoding.options import Sampling, SearchOptions
from mt.decoding.translate import Translator, load_translator
from mt.decoding.workers import Pool
from mt.errors import DataError, MtError


def square(number: int, seconds: float = 0.0) -> tuple[int, int, int]:
    time.sleep(seconds)
    return number * number, os.getpid(), torch.get_num_threads()


def test_jobs_are_dealt_to_whoever_is_free() -> None:
    """The first job takes as long as all the others: one process does it, the other does the rest."""
    with Pool(square, 2) as pool:
        answers = dict(pool.run([(0, 2.0), *((number,) for number in range(1, 20))]))
        assert [answers[number][0] for number in range(20)] == [number**2 for number in range(20)]
        assert {answers[number][1] for number in range(1, 20)} == {answers[1][1]}
        assert answers[0][1] not in (answers[1][1], os.getpid())
        assert {answer[2] for answer in answers.values()} == {1}
        assert dict(pool.run([(3,)]))[0][0] == 9  # again, and with fewer jobs than workers
        assert list(pool.run([])) == []
        children = [worker.process for worker in pool.workers]
    assert not any(child.is_alive() for child in children)


def fail(how: str) -> None:
    if how == "refuse":
        raise DataError("line 3 is wrong")
    if how == "break":
        raise ZeroDivisionError("a defect")
    if how == "exit":
        os._exit(7)
    os.kill(os.getpid(), signal.SIGKILL)


def test_an_error_of_a_worker_is_raised_here_with_its_traceback() -> None:
    with Pool(fail, 2) as pool, pytest.raises(DataError, match="line 3 is wrong"):
        list(pool.run([("refuse",)]))
    with Pool(fail, 2) as pool, pytest.raises(ZeroDivisionError, match="a defect") as error:
        list(pool.run([("break",)]))
    assert "in fail" in str(error.value.__cause__)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("kill", "was killed by SIGKILL; the system does that when memory runs out"),
        ("exit", "ended with code 7"),
    ],
)
def test_a_worker_that_dies_is_named(how: str, said: str) -> None:
    with Pool(fail, 2) as pool:
        number = pool.workers[0].process.pid
        with pytest.raises(MtError) as error:
            list(pool.run([(how,)]))
    assert str(error.value) == (
        f"worker 1 of 2 (process {number}) {said}. Run again with fewer --workers or a smaller --batch-tokens"
    )


def test_a_pool_that_was_left_in_the_middle_is_closed() -> None:
    """An answer that nobody waited for must not be taken for the next one."""
    with Pool(square, 2) as pool:
        answers = pool.run([(number,) for number in range(9)])
        next(answers)
        answers.close()  # type: ignore[attr-defined]
        with pytest.raises(RuntimeError, match="the pool is closed"):
            next(pool.run([(1,)]))


class UnportableError(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def unportable() -> None:
    raise UnportableError(1, 2)


def test_an_error_that_cannot_travel_is_told_all_the_same() -> None:
    with Pool(unportable, 1) as pool, pytest.raises(RuntimeError, match="1 and 2"):
        list(pool.run([()]))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_what_is_handed_to_a_worker_can_travel(tiny_run: Path, precision: str) -> None:
    """Where processes are not forked, the search goes to them as bytes."""
    options = SearchOptions(2, 3, 1.5, ("▁t",), Sampling(top_k=5))
    translator = load_translator([tiny_run], {}, precision=precision, options=options, n_best=2)
    copy = pickle.loads(pickle.dumps(translator.searcher))
    assert copy([[9, 10, 11]], [[]]) == translator.searcher([[9, 10, 11]], [[]])


@pytest.mark.parametrize(
    "options", [[], ["--beam-size", 1, "--n-best", 1], ["--sample", "--n-best", 2]]
)
def test_the_output_does_not_depend_on_the_workers(
    mt: Mt, tiny_run: Path, tiny_corpus: Path, options: list[Any]
) -> None:
    arguments = [
        "translate",
        "-m",
        tiny_run,
        tiny_corpus / "train.src",
        "--precision",
        "fp32",
        *options,
    ]
    alone = mt(*arguments, "--workers", 1)
    together = mt(*arguments, "--workers", 3, "--batch-tokens", 500)
    assert (alone.code, together.code) == (0, 0)
    assert len(alone.lines) == 2000 * (2 if "--sample" in options else 1)
    # A score is a sum of floats: in a batch of another size its last digit may be another one.
    texts = [[line.split(" ||| ")[:2] for line in ended.lines] for ended in (alone, together)]
    assert texts[0] == texts[1]


def test_a_killed_worker_ends_the_command_and_leaves_no_output(
    tiny_run: Path, tiny_corpus: Path, tmp_path: Path, mt: Mt, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(self: Pool, work: Any, size: int) -> None:
        real(self, work, size)
        victim = self.workers[1].process
        os.kill(victim.pid or 0, signal.SIGKILL)
        victim.join()

    real = Pool.__init__
    monkeypatch.setattr(Pool, "__init__", killed)
    text, out = tiny_corpus / "test.src", tmp_path / "out"
    said = refused(mt("translate", "-m", tiny_run, text, "-o", out, "--workers", 2))
    assert said.startswith("worker 2 of 2 (process ")
    assert "was killed by SIGKILL" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_worker_outlives_the_command(tiny_run: Path, number: int) -> None:
    """Also where it has no time to say goodbye. With two threads before the fork, as outside of tests."""
    command, environment = mt_command("translate", "-m", tiny_run, "--workers", 2)
    environment["OMP_NUM_THREADS"] = "2"
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"eins\n")
        process.stdin.flush()
        assert process.stdout.readline()
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        if not children.exists():
            pytest.skip("this system does not list the children of a process")
        workers = [int(one) for one in children.read_text().split()]
        assert len(workers) == 2
        process.send_signal(number)
        assert process.wait(30) == (-number if number == signal.SIGKILL else 128 + number)
        for _ in range(100):
            running = [one for one in workers if Path(f"/proc/{one}").exists()]
            if not running:
                break
            time.sleep(0.1)
        assert not running


def test_workers_are_for_a_cpu(mt: Mt, tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mt.decoding import translate
    from mt.runtime.devices import Device

    monkeypatch.setattr(translate, "choose_device", lambda *_: Device(torch.device("cuda"), "fp32"))
    with pytest.raises(MtError) as error:
        load_translator([tiny_run], {}, workers=2)
    assert (
        str(error.value) == "--workers: processes share the cores of a CPU, a GPU takes 1, found 2"
    )


def test_the_last_work_is_dealt_in_small_batches() -> None:
    sizes = np.sort(np.random.default_rng(1).integers(8, 40, 3000))[::-1]

    def areas(workers: int) -> list[int]:
        pool = SimpleNamespace(workers=[None] * workers) if workers > 1 else None
        cuts = Translator._cuts(SimpleNamespace(pool=pool), sizes, 2000)  # type: ignore[arg-type]
        batches = np.split(sizes, cuts)
        assert sum(map(len, batches)) == len(sizes)
        return [len(batch) * int(batch[0]) for batch in batches]

    alone, two = areas(1), areas(2)
    assert max(alone) <= 2000
    assert max(two) <= 2000
    last = next(i for i, _ in enumerate(two) if sum(two[i:]) <= 4000)
    assert max(two[last:]) <= 500
    assert two[: len(alone) - 4] == alone[:-4]
    assert len(two) >= len(alone) + 6
    assert min(alone[:-1]) > 1500
    # Too little for four batches each: none is made smaller still.
    few = Translator._cuts(SimpleNamespace(pool=SimpleNamespace(workers=[1, 2])), sizes[:300], 2000)  # type: ignore[arg-type]
    assert few == Translator._cuts(SimpleNamespace(pool=None), sizes[:300], 2000)  # type: ignore[arg-type]
