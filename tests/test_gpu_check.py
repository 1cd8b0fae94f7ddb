"""`scripts/gpu_check.py`: what it writes, and a tiny run of all sections on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

from gpu_check import SECTIONS, closing_table, device_refusal
from gpu_sections.report import Item, Report, read_items
from gpu_sections.setting import Setting

from mt.data.batches import Plan


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "scripts" / "gpu_check.py", *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_item_that_fails_or_comes_too_late_is_an_item(tmp_path: Path) -> None:
    def broken() -> None:
        raise ValueError("first line\nsecond line")

    report = Report(tmp_path / "items", "kernels", 1000)
    report.add("loss", value=1.5, unit="ms")
    report.attempt("attention", broken)
    report.check("fits", lambda: "a note")
    Report(tmp_path / "items", "decoding", 0).attempt("greedy", broken)
    assert read_items(tmp_path / "items") == [
        Item("kernels", "loss", "ok", 1.5, "ms"),
        Item("kernels", "attention", "failed", note="ValueError: first line"),
        Item("kernels", "fits", "ok", note="a note"),
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


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("cpu", ""),
        ("gpu", "--device: must be cuda, cuda:N or cpu, found 'gpu'"),
        ("mps", "--device: must be cuda, cuda:N or cpu, found 'mps'"),
        ("cuda:99", f"--device cuda:99: torch {torch.__version__} sees "),
    ],
)
def test_a_device_that_cannot_be_measured_is_refused(device: str, said: str) -> None:
    found = device_refusal(device)
    assert found.startswith(said)
    assert bool(found) == bool(said)


def test_updates_are_of_one_batch() -> None:
    """The sizes that the sections name are those of batches, loaded as training loads them."""
    setting = Setting("cpu", tiny=True)
    plan = Plan(setting.store(), [1.0], setting.config(512, compiled=False).batch, 1)
    assert {len(update) for update in plan.updates(0)} == {1}
    assert setting.feed(plan).device == setting.torch_device


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_tiny_run_on_a_cpu(tmp_path: Path) -> None:
    """Every section runs to its end, and nothing in it fails."""
    refused = run("--output", tmp_path / "gpu.jsonl")
    assert refused.returncode == 2
    assert "sees no GPU; --device cpu --tiny" in refused.stderr
    output = tmp_path / "items.jsonl"
    ended = run("--device", "cpu", "--tiny", "--output", output)
    assert ended.returncode == 0, ended.stdout
    items = [json.loads(line) for line in output.read_text().splitlines()]
    assert {item["section"] for item in items} == set(SECTIONS)
    assert [item for item in items if item["status"] == "failed"] == []
    found = {item["name"]: item["value"] for item in items}
    for name in ("loading alone", "eager, 512 tokens: training", "beam 4: decoding"):
        assert found[name] > 0
    assert found["eager: recompilations"] == 0
    assert "nothing failed" in ended.stdout
    again = run("--device", "cpu", "--output", output)
    assert again.returncode == 2
    assert "exists; name another file" in again.stderr
