"""Each recipe "How to add …" of `mt/README.md`, followed by a stranger to the code."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from conftest import ROOT, Mt, config_of, log_of, metrics_of, write_lines

from mt.config import schema
from mt.evaluation.metrics import METRICS, LineMetric, Metric, Score, Statistics
from mt.training.launch import train

PAGE = (ROOT / "mt" / "README.md").read_text(encoding="utf-8")
RECIPES = re.findall(r"^\*\*(.+?)\.\*\* ", PAGE, re.MULTILINE)


def test_every_recipe_is_followed_below() -> None:
    assert RECIPES == [
        "a metric", "a corpus format", "an exporter", "a command or an option", "a config key",
    ]  # fmt: skip


# --- a metric ---------------------------------------------------------------------------------


class ExactMatch(Metric):
    """The share of lines that are the reference; a score of the whole text only."""

    name = "exact"
    title = "EM"

    def score(self, hyps: Sequence[str]) -> Score:
        same = [hyp == ref for hyp, ref in zip(hyps, self.refs[0], strict=True)]
        return Score(self.title, 100 * sum(same) / len(same), "case:mixed")


class WrongWords(LineMetric):
    """Words that are not in the reference, per 100; from counts of each line."""

    name = "wrong"
    title = "WRONG"
    lower_is_better = True
    in_training = True

    def statistics(self, hyps: Sequence[str]) -> Statistics:
        rows = zip(
            (hyp.split() for hyp in hyps), (ref.split() for ref in self.refs[0]), strict=True
        )
        return np.array([[sum(w not in ref for w in hyp), len(hyp)] for hyp, ref in rows], float)

    def value(self, sums: Sequence[float]) -> float:
        return 100 * sums[0] / max(1, sums[1])


@pytest.fixture
def two_more_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METRICS, "exact", ExactMatch)
    monkeypatch.setitem(METRICS, "wrong", WrongWords)


@pytest.mark.usefixtures("two_more_metrics")
def test_a_metric_is_in_the_table_the_json_and_the_tsv(mt: Mt, tmp_path: Path) -> None:
    ref = [f"a b c d{i}" for i in range(40)]
    for name, lines in (
        ("ref", ref), ("src", ["x"] * 20 + ["x y"] * 20),
        ("bad", ["a b x y" if i % 2 else line for i, line in enumerate(ref)]),
        ("good", ["a b c y" if i % 4 == 0 else line for i, line in enumerate(ref)]),
    ):  # fmt: skip
        write_lines(tmp_path / name, lines)
    options = [
        "evaluate", "--hyp", f"bad={tmp_path / 'bad'}", "--hyp", f"good={tmp_path / 'good'}",
        "--ref", tmp_path / "ref", "--src", tmp_path / "src", "--metrics", "exact,wrong,bleu",
        "--confidence", "--paired-bs", "--paired-ar", "--slices", "length",
    ]  # fmt: skip
    ended = mt(*options)
    assert ended.code == 0, ended.err
    rows = [re.split(r"  +", line.strip()) for line in ended.lines[:5]]
    assert rows[1:3] == [["EM", "bad", "50.00"], ["good", "75.00"]]
    assert rows[3][:3] == ["WRONG", "bad", "25.00"]
    assert (rows[4][1], rows[4][3], rows[4][-1]) == ("6.25", "-18.75", "better")
    assert {"EM|case:mixed", "WRONG|nrefs:1"} < set(ended.lines)
    assert b"WRONG by words in the source\n" in ended.out
    assert b"EM by" not in ended.out  # it has no statistics of lines
    exact, wrong, _ = json.loads(mt(*options, "--json").out)["good"]
    assert list(exact) == ["name", "value", "signature", "detail", "note"]
    assert wrong.keys() - exact.keys() == {
        "confidence", "paired_bs", "paired_ar", "verdict", "slices",
    }  # fmt: skip
    assert wrong["paired_bs"]["better"] is True
    assert [part["value"] for part in wrong["slices"]["length"]] == [6.25, 6.25]
    head, *rows = (line.split("\t") for line in mt(*options, "--tsv").lines)
    cells = [dict(zip(head, row, strict=True)) for row in rows]
    assert [c["value"] for c in cells if c["metric"] == "exact"] == ["50.0", "75.0"]
    assert [c["value"] for c in cells if (c["metric"], c["system"]) == ("wrong", "good")] == [
        "6.25"
    ] * 3


def test_a_metric_chooses_the_best_and_is_scored_at_the_end_of_a_training(
    tiny_mapping: Mapping[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the place of chrF, so that the schema need not change."""
    monkeypatch.setitem(METRICS, "chrf", WrongWords)
    config = config_of(tiny_mapping, train={"metric": "chrf", "max_steps": 30, "valid_every": 10})
    outcome = train(config, tmp_path / "run", "cpu")
    values = [line["chrf"] for line in metrics_of(tmp_path / "run", "valid")]
    assert len(values) == 3
    assert f"best model (WRONG {min(values):.2f} on the validation set)" in outcome.reason
    (test,) = metrics_of(tmp_path / "run", "test")
    assert f" | BLEU {test['bleu']:.2f} | WRONG {test['chrf']:.2f} | " in log_of(tmp_path / "run")


def test_what_the_config_and_the_help_name_is_in_the_registry(mt: Mt) -> None:
    usable = {name for name, metric in METRICS.items() if metric.in_training}
    assert set(get_args(schema.Metric)) == {"nll", *usable}
    assert all(metric.name == name for name, metric in METRICS.items())
    text = " ".join(mt("evaluate", "--help").out.decode().split())
    *names, last = METRICS
    assert f"any of {', '.join(names)} and {last}, separated" in text
