"""Worker processes: the same results, and one message if a worker fails or dies."""

from __future__ import annotations

import os
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import MonkeyPatch, open_pipes
from faults import raising
from jobs import fail, square
from messages import raises_saying

from mt.errors import ConfigError, DataError, MtError
from mt.search import engine
from mt.search.options import EngineOptions, SearchOptions
from mt.translate import load_torch
from mt.translate.load import load_translator
from mt.translate.load_torch import searches_on_gpus
from mt.translate.loaded_engine import batch_cuts
from mt.translate.workers import Pool


def test_a_free_worker_gets_the_next_job() -> None:
    """The first job takes longer than all others together: the other worker does those.

    But for the third, which waits behind the first: no worker waits for the parent. Of a pool that
    the caller leaves early, a result left over must not be taken for one of the next call.
    """
    with closing(Pool([square] * 2)) as pool:
        assert dict(pool.imap_unordered([(3,)] * 2))[0][0] == 9  # both have started
        answers = dict(pool.imap_unordered([(0, 2.0), *((number,) for number in range(1, 20))]))
        assert [answers[number][0] for number in range(20)] == [number**2 for number in range(20)]
        assert [number for number in range(20) if answers[number][1] == answers[0][1]] == [0, 2]
        assert {answers[number][1] for number in range(20)} == {answers[0][1], answers[1][1]}
        assert os.getpid() not in (answers[0][1], answers[1][1])
        assert list(pool.imap_unordered([])) == []
        children = [worker.process for worker in pool.workers]
        left_early = pool.imap_unordered([(number,) for number in range(9)])
        next(left_early)
        left_early.close()  # type: ignore[attr-defined]
        assert not any(child.is_alive() for child in children)
        with pytest.raises(MtError, match="load the model again"):
            next(pool.imap_unordered([(1,)]))


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ("refuse", DataError, "line 3 is wrong"),
        ("break", ZeroDivisionError, "a defect"),
        ("unpicklable", RuntimeError, "1 and 2"),
    ],
)
def test_an_error_of_a_worker_is_raised_here_with_its_traceback(
    how: str, error: type[Exception], message: str
) -> None:
    with closing(Pool([fail])) as pool, pytest.raises(error, match=message) as caught:
        list(pool.imap_unordered([(how,)]))
    assert "in fail" in str(caught.value.__cause__)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("kill", "was killed by SIGKILL; the system does that when memory runs out"),
        ("exit", "exited with code 7"),
    ],
)
def test_a_worker_that_dies_is_named(how: str, said: str) -> None:
    with closing(Pool([fail])) as pool:
        number = pool.workers[0].process.pid
        with pytest.raises(MtError) as error:
            list(pool.imap_unordered([(how,)]))
    assert str(error.value) == (
        f"worker 1 of 1 (process {number}) {said}. "
        "Run again with fewer --workers or a smaller --batch-tokens"
    )


def test_no_worker_outlives_a_process_that_is_killed() -> None:
    script = (
        "from jobs import square; from mt.translate.workers import Pool\n"
        "if __name__ == '__main__':\n"
        "    pool = Pool([square] * 2)\n"
        "    pids = [pid for _, (_, pid) in pool.imap_unordered([(1, 0.5)] * 2)]\n"
        "    print(*pids, flush=True); input()"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with open_pipes([sys.executable, "-c", script], environment) as process:
        assert process.stdout is not None
        workers = [int(pid) for pid in process.stdout.readline().split()]
        assert len(workers) == 2
        process.kill()
        process.wait(30)
        for _ in range(100):
            running = [pid for pid in workers if Path(f"/proc/{pid}").exists()]
            if not running:
                break
            time.sleep(0.1)
        assert not running


def on_cpu(model: Path, **more: Any) -> EngineOptions:
    options: dict[str, Any] = {"engine": "torch", "precision": "fp32", "device": "cpu"}
    return EngineOptions(models=[model], workers=1, **options | more)


def test_one_process_per_gpu(tiny_run: Path, tiny_corpus: Path, monkeypatch: MonkeyPatch) -> None:
    """Each loads the model itself; what they find is what one process finds.

    This process touches no GPU, as some take one process only: here any use would raise an error.
    """
    lines = (tiny_corpus / "test.src").read_text(encoding="utf-8").split("\n")[:20]
    with load_translator(SearchOptions(), on_cpu(tiny_run)) as alone:
        expected = [one.texts for one in alone.translate(lines)]
        budget = alone.loaded.batch_tokens
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name in ("_lazy_init", "set_device", "get_device_properties"):
        monkeypatch.setattr(torch.cuda, name, raising(AssertionError("this process uses a GPU")))
    monkeypatch.setattr(load_torch, "visible_gpus", lambda: ["cpu"] * 2)
    monkeypatch.setattr(engine, "WINDOW_ON_GPU", 7)
    options = EngineOptions(models=[tiny_run], precision="fp32", device="cuda")
    with load_translator(SearchOptions(), options, large=True) as together:
        pool = together.loaded.pool
        assert pool is not None
        assert len(pool.workers) == 2
        assert together.loaded.batch_tokens == budget
        assert together.settings["--precision"] == "fp32"
        assert together.loaded.name.startswith("torch on 2 GPUs in fp32 (it decodes on a CPU")
        assert [one.texts for one in together.translate(lines)] == expected
        pool.workers[1].process.kill()
        with pytest.raises(MtError, match=r"worker 2 of 2 \(process \d+\) was killed by SIGKILL"):
            list(together.translate(lines))


def test_how_many_gpus_share_a_text(tiny_run: Path, monkeypatch: MonkeyPatch) -> None:
    def count(aligns: bool = False, large: bool = False, **given: Any) -> int:
        options = EngineOptions(models=[tiny_run], engine="torch", **given)
        return len(searches_on_gpus(SearchOptions(alignments=aligns), options, large))

    monkeypatch.setattr(load_torch, "visible_gpus", lambda: ["cpu"] * 4)
    assert [count(), count(large=True), count(workers=3)] == [0, 4, 3]  # 0: in this process
    # The process that reads and writes aligns words on a GPU of its own.
    assert count(large=True, aligns=True) == 3
    assert count(device="cuda:2", large=True) == 1
    for device, found in (("auto", "4 of them"), ("cuda:2", "--device cuda:2")):
        with raises_saying(ConfigError, "--workers", "GPUs", "found 5", found, "lower it"):
            count(workers=5, device=device)


def test_little_work_is_shared_evenly() -> None:
    """Too little for four batches each: one batch each, and none in quarters."""
    sizes = np.full(40, 10)
    assert batch_cuts(sizes, 2000, 1) == []
    assert batch_cuts(sizes, 2000, 2) == [20]
    assert batch_cuts(sizes, 2000, 4) == [10, 20, 30]
    assert batch_cuts(sizes[:1], 2000, 4) == []
