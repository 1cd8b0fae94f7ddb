"""Advice at the start and the end of a training: where it speaks, and where it is silent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import NO_TEST, QuickConfig, log_of
from messages import says

from mt.config.auto import replace_auto, sizes_for
from mt.config.load import config_from_mapping, load_config
from mt.report.provenance import notable_lines
from mt.report.run_summary import read_run
from mt.training import advice
from mt.training.advice import baseline_note, recipe_note, standstill_note
from mt.training.launch import train


def test_a_recipe_is_named_where_the_config_is_plainly_of_another_kind() -> None:
    for config, n_pairs, recipe in [
        ("base.yaml", 29_000, "small.yaml"),
        ("base.yaml", 99_999, "small.yaml"),
        ("base.yaml", 100_000, "medium.yaml"),
        ("base.yaml", 499_999, "medium.yaml"),
        # each recipe on the corpus that it is for, and small models anywhere
        ("multi30k.yaml", 29_000, ""),
        ("multi30k.yaml", 4_500_000, ""),
        ("small.yaml", 172_000, ""),
        ("medium.yaml", 29_000, ""),  # but for both directions, it is small.yaml there
        ("medium.yaml", 172_000, ""),
        ("base.yaml", 500_000, ""),
        ("base.yaml", 4_500_000, ""),
        ("wmt14.yaml", 4_500_000, ""),
        ("vaswani2017.yaml", 4_500_000, ""),
        ("tiny.yaml", 5_000, ""),
    ]:
        settled, _ = replace_auto(load_config(config).config, sizes_for(n_pairs))
        found = recipe_note(settled, n_pairs)
        words = (f"recipe: {recipe}", f"{n_pairs:,} pairs")
        assert says(found, *words) if recipe else not found


def test_a_recipe_is_the_shipped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a file of its name in the current folder, which would end training if it has faults."""
    (tmp_path / "small.yaml").write_text("nonsense: 1\n", encoding="utf-8")
    config = load_config("base.yaml").config
    monkeypatch.chdir(tmp_path)
    assert says(recipe_note(config, 29_000), "recipe: small.yaml", "dropout 0.1")


def test_weights_and_dropout_are_named_and_fine_tuning_is_left_alone() -> None:
    """Layers of 4 d^2 + 2 d d_ff weights in the encoder, 8 d^2 + 2 d d_ff in the decoder: 44.0
    million in base.yaml, 5.5 in small.yaml.
    """
    found = recipe_note(load_config("base.yaml").config, 29_000)
    assert says(found, "8.0 times the weights", "dropout 0.1 against 0.3")
    narrow = ["model.d_model=256", "model.d_ff=1024"]  # 2.0 times the weights
    found = recipe_note(load_config("base.yaml", narrow).config, 29_000)
    assert says(found, "dropout 0.1 against 0.3")
    assert "weights" not in found
    wide = load_config("base.yaml", ["model.dropout=0.3"]).config
    assert not recipe_note(wide, 172_000)
    huge = load_config("base.yaml", ["model.d_model=1024", "model.d_ff=8192"]).config
    assert says(recipe_note(huge, 499_999), "medium.yaml", "times the weights")
    assert not recipe_note(huge, 500_000)
    tuned = load_config("base.yaml", ["train.init_from=runs/a"]).config
    assert not recipe_note(tuned, 29_000)


def lines_of(scores: Sequence[float], losses: Sequence[float], metric: str = "bleu") -> Any:
    """A validation and a log line every 250 updates; a line that a crash cut short."""
    steps = range(250, 250 * len(scores) + 1, 250)
    valid = [
        {"kind": "valid", "step": step, "nll": 1.6, metric: score}
        for step, score in zip(steps, scores, strict=True)
    ]
    train = [
        {"kind": "train", "step": step, "nll": loss}
        for step, loss in zip(steps, losses, strict=False)
    ]
    return [*train, None, *valid]


RISING = [5.0, 20.0, 30.0, 34.8, 37.0, 38.5, 40.0, 40.7, 41.0, 41.5, 42.0, 42.4]
FALLING = [round(5.0 * 0.93**number, 3) for number in range(20)]
STILL = [*RISING, 43.2, 43.4, 43.3, 43.4, 43.2, 43.3, 43.4, 43.4]


def test_a_validation_that_stands_still_while_training_goes_on_is_named() -> None:
    for scores, losses, metric, words in [
        (STILL, FALLING, "bleu", ["since update 3,500 of 5,000", "BLEU 0.30", "from 1.95 to 1.26"]),
        ([s / 10 for s in STILL], FALLING, "nll", ["since update 3,500 of 5,000"]),
        ([5 - s / 10 for s in STILL], FALLING, "nll", ["since update 3,500", "nll 0.015"]),
        ([*RISING, *(43 + n / 5 for n in range(8))], FALLING, "bleu", []),  # it improves
        (STILL, [*FALLING[:10], *[2.6] * 10], "bleu", []),  # training has stopped as well
        (STILL[:17], FALLING[:17], "bleu", []),  # too short a time
        ([*RISING[:9], *[41.0] * 4], FALLING[:13], "bleu", ["since update 2,250 of 3,250"]),
        ([*RISING[:7], *[40.0] * 3], FALLING[:10], "bleu", []),  # too few validations
        ([0.2] * 20, FALLING, "bleu", []),  # nothing is learned yet
        ([], [], "bleu", []),
        (STILL, [], "bleu", []),  # shorter than train.log_every
        ([], FALLING[:0], "nll", []),
    ]:
        config = config_from_mapping({"train": {"metric": metric}}, "test")
        found = standstill_note(lines_of(scores, losses, metric), config)
        assert says(found, *words, "dropout", "fewer") if words else found == ""


def test_scores_of_an_earlier_validation_set_do_not_count() -> None:
    """The first twelve are of an easier text; on the other one the model improves to the end."""
    lines = lines_of([*RISING, *(20.0 + n for n in range(8))], FALLING)
    valid = [line for line in lines if line and line["kind"] == "valid"]
    config = config_from_mapping({}, "test")
    assert standstill_note(lines, config)
    for n_easy in (12, 16):  # 16: none of the other one before the last updates
        for number, line in enumerate(valid):
            line["name"] = "easy.de" if number < n_easy else "hard.de"
        assert standstill_note(lines, config) == ""


def test_both_notes_are_in_the_log_and_in_the_report(
    quick_config: QuickConfig,
    scripted_validations: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every model is too large here. Started again, nothing is said: there is nothing to do."""
    monkeypatch.setattr(advice, "OTHER_KIND", 1e-6)
    scripted_validations(5.0, 9.0, *[9.1] * 12)
    settings = {"max_steps": 14, "valid_every": 1, "log_every": 1, "keep_last": 1}
    config = quick_config(NO_TEST, train=settings, optim={"warmup_steps": 2})
    for _ in range(2):
        train(config, tmp_path, "cpu")
    notes = [line for line in notable_lines(read_run(tmp_path, "run")) if "note: " in line]
    assert len(notes) == log_of(tmp_path).count("note: ") == 2
    assert says(notes[0], "small.yaml", "2,000 pairs")
    assert says(notes[1], "since update 9 of 13", "training nll fell")


def test_a_model_is_compared_with_the_one_that_training_started_from() -> None:
    def line(kind: str, step: int, name: str, bleu: float) -> dict[str, Any]:
        return {"kind": kind, "step": step, "name": name, "bleu": bleu}

    lines = [
        line("valid", 0, "new.de", 20.0), line("other valid", 0, "old.de", 40.0),
        line("valid", 5, "new.de", 30.0), line("other valid", 5, "old.de", 38.5),
        line("other valid", 5, "later.de", 9.0), {"kind": "valid", "step": 5, "bleu": 1.0}, None,
    ]  # fmt: skip
    note = baseline_note(lines, 5)
    assert says(note, "20.00 → 30.00 (+10.00) on new.de", "40.00 → 38.50 (-1.50) on old.de")
    assert "later" not in note
    assert baseline_note(lines, 6) == ""
