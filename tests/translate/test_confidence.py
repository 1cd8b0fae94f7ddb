"""How sure translations are: the fit, what it is measured by, and how a command shows it."""

from __future__ import annotations

import itertools
import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
from conftest import Mt, lines_of, log_of, refused
from messages import raises_saying, says

import mt as package
from mt.errors import ConfigError, DataError
from mt.model.checkpoint import average_run
from mt.runs.model_folder import find_model, read_meta, write_meta
from mt.training.calibration import fit_best, good_lines, reliability
from mt.translate.confidence import (
    RIDGE,
    WORST_SCORE,
    AddConfidence,
    Confidence,
    confidence_of,
    features,
    fit,
)
from mt.translate.lines import Line, Translation

Row = dict[str, float]


def drawn(n: int) -> tuple[list[Row], list[bool]]:
    """Features of outputs, good with a chance that follows from score, length and flags."""
    draw = random.Random(3)
    rows = [
        features("x" * draw.randint(0, 80), -draw.random() * 2, ["looping"] * (draw.random() < 0.2))
        for _ in range(n)
    ]
    logits = [2 + 3 * row["score"] + 0.2 * row["length"] - row["flagged"] for row in rows]
    return rows, [draw.random() < 1 / (1 + math.exp(-logit)) for logit in logits]


def test_the_fit_is_where_the_penalised_likelihood_is_highest() -> None:
    """So each sum over the residuals is the ridge's share, and that of the intercept is zero."""
    rows, good = drawn(400)
    weights = fit(rows, good, 1.0).weights
    chances = [Confidence(weights=weights, length_penalty=1, lines=0, good=0).of(
        "x" * round(math.expm1(row["length"])), row["score"], ["looping"] * bool(row["flagged"])
    ) for row in rows]  # fmt: skip
    left = np.array(good, float) - chances
    assert left.sum() == pytest.approx(0, abs=1e-6)
    for name in ("score", "length", "flagged"):
        values = np.array([row[name] for row in rows])
        slope = (values - values.mean()) @ left
        assert slope == pytest.approx(RIDGE * weights[name] * values.var(), abs=1e-6)
    assert weights["score"] == pytest.approx(3, abs=0.8)
    assert weights["flagged"] < 0


def test_a_fit_that_tells_nothing_is_refused_and_one_that_tells_all_is_finite() -> None:
    rows, good = drawn(400)
    for texts, labels, count in (
        (rows[:19], good[:19], f"{sum(good[:19])} good of 19 lines"),
        (rows[:30], [True] * 30, "30 good of 30"),
        (rows[:30], [False] * 30, "0 good of 30"),
    ):
        with pytest.raises(DataError) as error:
            fit(texts, labels, 1.0)
        assert says(str(error.value), "a fit of confidence needs at least 20 lines", count)
    assert fit(rows[:20], good[:20], 1.0).lines == 20
    separable = [row["score"] > -1 for row in rows]
    fitted = fit(rows, separable, 1.0)
    assert all(map(math.isfinite, fitted.weights.values()))
    assert fitted.of("xxxx", -0.1, []) > 0.95 > 0.05 > fitted.of("xxxx", -1.9, [])
    assert fitted.of("", math.nan, ["empty"]) == fitted.of("", WORST_SCORE, ["empty"])
    assert confidence_of({"confidence": fitted.model_dump()}) == fitted
    damaged = [3, None, fitted.model_dump() | {"length_penalty": math.inf}]
    for weights in ({"intercept": 1.0}, {**fitted.weights, "score": math.nan}):
        damaged.append(fitted.model_dump() | {"weights": weights})
    assert [confidence_of({"confidence": each}) for each in damaged] == [None] * len(damaged)
    assert confidence_of({}) is None


def test_reliability_is_counted_by_hand() -> None:
    said = [0.05, 0.05, 0.72, 0.78, 1.0, 0.3, 0.3]
    good = [False, True, True, False, True, True, False]
    measured = reliability(said, good)
    assert measured.bins == [
        (0.0, 2, pytest.approx(0.05), 0.5), (0.3, 2, pytest.approx(0.3), 0.5),
        (0.7, 2, pytest.approx(0.75), 0.5), (0.9, 1, 1.0, 1.0),
    ]  # fmt: skip
    pairs = [*itertools.product(range(7), repeat=2)]
    pairs = [(a, b) for a, b in pairs if good[a] and not good[b]]
    won = sum((said[a] > said[b]) + (said[a] == said[b]) / 2 for a, b in pairs)
    assert measured.auc == pytest.approx(won / len(pairs))
    assert (measured.lines, measured.good) == (7, pytest.approx(4 / 7))
    assert math.isnan(reliability([0.1, 0.2], [True, True]).auc)
    assert good_lines(["a b c d", "x"], [["a b c d", "y"]]) == [True, False]


def test_a_step_takes_scores_of_its_length_penalty_and_an_empty_output_is_not_sure() -> None:
    fitted = fit(*drawn(400), 1.0)
    for penalty in (0.5, 1.5):
        with raises_saying(ConfigError, "fitted for length penalty 1", f"uses {penalty}"):
            AddConfidence(fitted, penalty)
    blank, lost = Line(1, ""), Line(2, "a", translation=Translation(("",), (-1.0,), flags=("e",)))
    AddConfidence(fitted, 1.0).after([blank, lost])
    assert [line.translation.confidence for line in (blank, lost)] == [1.0, 0.0]


def test_training_fits_it_and_translations_have_it(
    mt: Mt, tiny_run: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    assert "confidence: fitted on 40 lines" in log_of(tiny_run)
    fitted = confidence_of(read_meta(find_model(tiny_run), []))
    assert fitted is not None
    texts = [*lines_of(tiny_corpus / "test.src")[:5], ""]
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:-1]))
    options = ("translate", "-m", tiny_run, "--confidence")
    ended = mt(*options, "--format", "jsonl", "--scores", source)
    rows = [json.loads(line) for line in ended.lines]
    for row in rows:
        sure = fitted.of(row["translation"], row["score"], row.get("flags", ()))
        assert row["confidence"] == pytest.approx(sure, abs=2e-3)  # of a rounded score
    shown = [f"{row['confidence']:.4f}" for row in rows] + ["1.0000"]
    outputs = [row["translation"] for row in rows] + [""]
    stdin = "".join(f"{text}\n" for text in texts).encode()
    assert mt(*options, stdin=stdin).lines == [*map("\t".join, zip(shown, outputs, strict=True))]
    columns = map("\t".join, zip(texts, shown, outputs, strict=True))
    assert mt(*options, "--format", "tsv", stdin=stdin).lines == [*columns]
    scored = mt(*options, "--scores", "--engine", "torch", stdin=stdin).lines
    assert [line.split("\t")[2] for line in scored] == outputs
    assert float(scored[0].split("\t")[1]) == pytest.approx(rows[0]["confidence"], abs=1e-3)
    with package.load(tiny_run, confidence=True) as translator:
        lines = [*translator.translate(texts)]
    assert [f"{line.confidence:.4f}" for line in lines] == shown
    with package.load(tiny_run) as translator:
        assert next(translator.translate(texts)).confidence is None


def test_a_training_that_cannot_fit_it_says_what_is_lost(
    copied_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = find_model(copied_run)
    write_meta(
        best, {key: each for key, each in read_meta(best, []).items() if key != "confidence"}
    )
    monkeypatch.setattr("mt.translate.confidence.LEAST_LINES", 41)
    said = fit_best(copied_run, best)
    assert says(said, "note: mt translate --confidence is not available", "at least 41 lines")


def test_a_model_without_it_is_told_which_command_fits_it(
    mt: Mt, copied_run: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    """As an averaged model, whose checkpoints have others; with a text, or with data.valid."""
    mean = tmp_path / "mean"
    average_run(copied_run, 1, mean)
    translate = ("translate", "-m", mean, "--confidence", tiny_corpus / "test.src")
    message = refused(mt(*translate))
    assert says(
        message, "--confidence: this model", "no usable fit; mt evaluate --model M --fit-conf"
    )
    test = ("--src", tiny_corpus / "test.src", "--ref", tiny_corpus / "test.tgt")
    fitted = mt("evaluate", "-m", mean, "--fit-confidence", *test)
    assert says(fitted.out.decode(), "confidence: fitted on 40 lines, ", "% with a chrF of")
    on_test = confidence_of(read_meta(mean, []))
    assert mt("evaluate", "-m", mean, "--fit-confidence").code == 0
    assert confidence_of(read_meta(mean, [])) not in (on_test, None)
    assert mt(*translate).code == 0
    message = refused(mt(*translate, "--length-penalty", 0.5))
    assert says(message, "fitted for length penalty 1", "uses 0.5", "--fit-confidence")
    message = refused(mt(*translate, "-m", copied_run))
    assert says(message, "ensemble has no usable fit")
    table = mt("evaluate", "-m", mean, "--reliability", *test).out.decode()
    assert says(table, "confidence", "lines", "mean", "chrF ≥ 50", "0.9–1.0", "40 lines", "AUC 0.")
    measured = json.loads(mt("evaluate", "-m", mean, "--reliability", "--json").out)
    assert measured["test.src"]["lines"] == 40
    assert f"AUC {measured['test.src']['auc']:.3f}" in table
    assert {*measured["test.src"]["bins"][0]} == {"low", "lines", "confidence", "good"}
    (tmp_path / "few").write_text("eins\n")
    few = ("--src", tmp_path / "few", "--ref", tmp_path / "few")
    measured = json.loads(mt("evaluate", "-m", mean, "--reliability", "--json", *few).out)
    assert (measured["few"]["lines"], measured["few"]["auc"]) == (1, None)
    message = refused(mt("evaluate", "-m", mean, "--fit-confidence", *few))
    assert says(message, "a fit of confidence needs at least 20 lines", "of 1 lines")


def test_messages(mt: Mt, tiny_run: Path) -> None:
    for options, parts in [
        (["translate", "--confidence", "--n-best", "2"], ["--confidence", "best", "--n-best"]),
        (["translate", "--confidence", "--sample"], ["--confidence", "leave out", "--sample"]),
        (["translate", "--confidence", "--format", "srt"], ["--format srt", "--confidence"]),
        (["evaluate", "--reliability", "--fit-confidence"], ["--fit-confidence", "give one"]),
        (["evaluate", "--reliability", "-m", "other"], ["--reliability: takes one --model"]),
        (
            ["evaluate", "--reliability", "--metrics", "chrf", "--tsv", "--slices", "length"],
            ["--reliability: reads no --metrics, --tsv, --slices; leave that out"],
        ),
        (
            ["evaluate", "--fit-confidence", "--json", "--confidence"],
            ["--fit-confidence: reads no --json, --confidence"],
        ),
    ]:  # fmt: skip
        message = refused(mt(options[0], "-m", tiny_run, *options[1:], stdin=b"eins\n"))
        assert says(message, *parts)
