"""`scripts/gpu_check.py`: what it writes, and a tiny run of all sections on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpu_check
import pytest
import torch
from conftest import ROOT, MonkeyPatch, lines_of
from faults import raising
from gpu_check import LEVERS, SECTIONS, closing_table, device_refusal
from gpu_runs import bare_environment, run
from gpu_sections import correctness, training
from gpu_sections.report import Item, NotJudgedError, Report, read_items
from gpu_sections.setting import Setting
from messages import says

from mt.data.tokens.plan import Plan
from mt.training import update


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine with few packages."""
    return bare_environment(tmp_path)


def test_an_item_that_fails_or_comes_too_late_is_an_item(tmp_path: Path) -> None:
    broken = raising(ValueError("first line\nsecond line"))
    report = Report(tmp_path / "items", "kernels", 1000)
    report.add("loss", value=1.5, unit="ms")
    report.attempt("attention", broken)
    report.check("fits", lambda: "a note")
    report.check("waits", raising(NotJudgedError("a CPU never queues")))
    Report(tmp_path / "items", "decoding", 0).attempt("greedy", broken)
    assert read_items(tmp_path / "items") == [
        Item("kernels", "loss", "ok", 1.5, "ms"),
        Item("kernels", "attention", "failed", note="ValueError: first line"),
        Item("kernels", "fits", "ok", note="a note"),
        Item("kernels", "waits", "skipped", note="a CPU never queues"),
        Item("decoding", "greedy", "skipped", note="the time of this section is up"),
    ]


def test_the_closing_table_compares_with_the_aims() -> None:
    items = [
        Item("training", "compiled, 25,000 tokens: training", "ok", 800_000.0),
        Item("training", "eager, 25,000 tokens: training", "ok", 500_000.0),
        Item("training", "compiled: first update after", "ok", 70.0),
        Item("training", "eager: first update after", "ok", 2.0),  # must not hide the other
        Item("training", "compiled: recompilations", "ok", 3),
        Item("training", "eager: recompilations", "ok", 0),
        Item("training", "compiled, 8 tokens: kernel", "ok", 2.0, "ms", "12 %  gemm"),
        Item("training", "compiled, 8 tokens: kernel", "ok", 1.0, "ms", "6 %  softmax"),
        Item("correctness", "loss in fp16", "failed", note="relative error 1"),
    ]
    table = closing_table(items)
    assert [line.split() for line in table.splitlines()[1:4]] == [
        ["training", "750,000", "800,000", "target", "tokens/s", "met"],
        ["first", "update", "60", "70", "s", "missed"],
        ["recompilations", "0", "3", "missed"],
    ]
    assert "largest kernel: compiled, 8 tokens: 12 %  gemm" in table
    assert table.endswith("1 failed\ncorrectness: loss in fp16: relative error 1")


def test_a_device_that_cannot_be_measured_is_refused() -> None:
    for device, said in [
        ("cpu", ""),
        ("gpu", "--device: must be cuda, cuda:N or cpu, found 'gpu'"),
        ("mps", "--device: must be cuda, cuda:N or cpu, found 'mps'"),
        ("cuda:99", f"--device cuda:99: torch {torch.__version__} sees "),
    ]:
        found = device_refusal(device)
        assert found.startswith(said)
        assert bool(found) == bool(said)


def test_updates_are_cut_by_length_alone() -> None:
    """Into no more batches than there are shares: the budget leaves room for an update."""
    setting = Setting("cpu", tiny=True)
    plan = Plan(setting.pairs, [1.0], setting.config(512, compiled=False).batch, 1)
    assert {len(update) for update in plan.updates(0)} <= {1, 2, 3, 4}
    assert setting.feed(plan).device == setting.torch_device


@pytest.fixture
def compiling(monkeypatch: MonkeyPatch) -> Iterator[None]:
    """A CPU that compiles as far as it can without generating code."""
    torch._dynamo.reset()
    for module in (correctness, training, update):
        monkeypatch.setattr(module, "can_compile", lambda _: True)
    monkeypatch.setattr("mt.model.gpu_ops.BACKEND", "aot_eager")
    yield
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.usefixtures("compiling")
def test_compiled_training_is_checked_and_timed(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(training, "WARM_UP", 1)
    monkeypatch.setattr(training, "BETWEEN_WAITS", 1)
    setting = Setting("cpu", tiny=True)
    assert correctness.compiled(setting, "fp32").startswith("relative error ")
    assert correctness.low_precision(setting, compiled=True).startswith("relative error ")
    report = Report(tmp_path / "items", "training", 1000)
    training.train(report, setting, "compiled", compiled=True)
    items = {item.name: item for item in read_items(tmp_path / "items")}
    assert {item.status for item in items.values()} == {"ok", "skipped"}
    assert items["compiled: recompilations"].value == 0
    assert items["compiled, 1,024 tokens: training"].value > 0


@pytest.mark.parametrize(
    ("options", "sections", "minutes"), [([], SECTIONS, 9), (["--levers"], LEVERS, 8)]
)
def test_all_sections_end_in_time(
    options: list[str], sections: dict[str, float], minutes: int, tmp_path: Path,
    monkeypatch: MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Each is ended after its time, which is an item, and the others run."""
    limits: list[float] = []
    caches: set[str] = set()
    clock: Any = SimpleNamespace(now=1000.0, monotonic=lambda: clock.now)

    def endless(*_: object, timeout: float, **__: object) -> None:
        limits.append(timeout)
        clock.now += timeout
        caches.add(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        raise subprocess.TimeoutExpired("gpu_check", timeout)

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "an old one")
    monkeypatch.setattr(gpu_check.subprocess, "run", endless)
    monkeypatch.setattr(gpu_check, "time", clock)
    monkeypatch.setattr(gpu_check, "missing_for_code", lambda: ["Python.h (python3-dev)"])
    output = tmp_path / "items.jsonl"
    arguments = ["gpu_check.py", "--device", "cuda", "--output", str(output), *options]
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.setattr(gpu_check, "device_refusal", lambda _: "")
    assert gpu_check.main() == 1
    assert len(limits) == len(sections)
    assert 60 * minutes - 30 < clock.now - 1000 <= 60 * minutes - gpu_check.MARGIN
    items = read_items(output)
    assert [(item.section, item.status) for item in items] == [
        (name, "failed") for name in sections
    ]
    said = capsys.readouterr().out
    assert f"{len(sections)} failed" in said
    assert says(
        said, "nothing will be compiled", "Python.h (python3-dev)", f"== {items[0].section}"
    )
    assert len(caches) == 1
    assert caches != {"an old one"}


def test_nothing_is_imported_beyond_what_is_asked_for(bare: dict[str, str]) -> None:
    """The slow test runs what is imported here; it takes a minute."""
    names = ", ".join(f"gpu_sections.{name}" for name in (*SECTIONS, *LEVERS))
    ended = subprocess.run(
        [sys.executable, "-c", f"import gpu_check, {names}"], cwd=ROOT / "scripts", env=bare,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_tiny_run_on_a_cpu(tmp_path: Path, bare: dict[str, str]) -> None:
    """Every section runs to its end, and nothing in it fails."""
    refused = run(bare, "--output", tmp_path / "gpu.jsonl")
    assert refused.returncode == 2
    assert "sees no GPU; --device cpu tries" in refused.stderr
    output = tmp_path / "items.jsonl"
    ended = run(bare, "--device", "cpu", "--output", output)
    assert ended.returncode == 0, ended.stdout
    items = [json.loads(line) for line in lines_of(output)]
    assert {item["section"] for item in items} == set(SECTIONS)
    assert [item for item in items if item["status"] == "failed"] == []
    found = {item["name"]: item["value"] for item in items}
    names = ("loading alone", "eager, 512 tokens: training", "greedy: decoding")
    for name in (*names, "lines through a worker"):
        assert found[name] > 0
    assert found["eager: recompilations"] == 0
    assert "nothing failed" in ended.stdout
    not_judged = [item for item in items if item["status"] == "skipped"]
    assert f"\n{len(not_judged)} not judged\n" in ended.stdout
    assert {"too little memory is one message", "gradients in bf16, compiled"} <= {
        item["name"] for item in not_judged
    }
    again = run(bare, "--device", "cpu", "--output", output)
    assert again.returncode == 2
    assert "exists; name another file" in again.stderr
