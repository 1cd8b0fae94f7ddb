"""Advice in the log: which shipped recipe fits a corpus, and whether a training has used it up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from mt.config.auto import replace_auto, sizes_for
from mt.config.load import load_config, shipped_folder
from mt.runs.metrics import OTHER_VALID, number
from mt.training.selection import LEAST_BLEU, Criterion, lower_is_better

if TYPE_CHECKING:
    from mt.config.schema import Config, ModelConfig

# A config is of another kind than a recipe if its layers have so many times more weights: base.yaml
# has 8 times those of small.yaml and medium.yaml.
OTHER_KIND = 4.0
# Pairs from which on no model is too large.
LARGE = 500_000
# Validation stands still if the last part of the updates, with as many validations, gains at most
# so many points, less than seeds differ by, while the training nll falls by this share. Of the nll,
# 0.015 are 1.5 % in perplexity. multi30k.yaml stands still from update 3,000 of 5,000 on.
STILL_PART = 0.3
STILL_VALIDATIONS = 4
STILL_POINTS, STILL_NLL = 0.3, 0.015
FALLEN = 0.05


def recipe_for(n_pairs: int) -> str:
    """The shipped config for a corpus of this size (configs/README.md)."""
    if n_pairs < 100_000:
        return "small.yaml"
    return "medium.yaml" if n_pairs < LARGE else "base.yaml"


def recipe_note(config: Config, n_pairs: int) -> str:
    """Which recipe fits, if this config plainly does not; else, and in fine-tuning, nothing.

    It speaks where the model is far larger without more dropout (not from `LARGE` pairs on), or at
    least as large with less than half the dropout.
    """
    if config.train.init_from is not None:
        return ""
    name = recipe_for(n_pairs)
    # The user's folder may have a file of this name, which is another config.
    recipe = load_config(str(shipped_folder() / name)).config
    given, fitting = config.model, replace_auto(recipe, sizes_for(n_pairs))[0].model
    ratio = _weights(given) / _weights(fitting)
    is_larger = ratio > OTHER_KIND and given.dropout_p <= fitting.dropout_p and n_pairs < LARGE
    if not is_larger and (ratio < 1 or given.dropout_p >= fitting.dropout_p / 2):
        return ""
    reasons = [f"{ratio:,.1f} times the weights in its layers"] if is_larger else []
    if given.dropout_p < fitting.dropout_p:
        reasons.append(f"dropout {given.dropout_p:g} against {fitting.dropout_p:g}")
    return (
        f"note: recipe: {name} is made for {n_pairs:,} pairs: this model has "
        f"{' and '.join(reasons)}"
    )


def _weights(model: ModelConfig) -> int:
    """Weights of the matrices in all layers."""
    d, both = model.d_model, 2 * model.d_model * model.d_ff
    return model.n_encoder_layers * (4 * d**2 + both) + model.n_decoder_layers * (8 * d**2 + both)


def baseline_note(lines: Iterable[Mapping[str, Any] | None], step: int) -> str:
    """Compare the model after update `step` with the one that training started from.

    On each validation set that both were scored on.
    """
    scores: dict[str, dict[int, float]] = {}
    for line in filter(None, lines):
        if line["kind"] in ("valid", OTHER_VALID):
            of_set = scores.setdefault(str(line.get("name", "")), {})
            of_set[line["step"]] = number(line, "bleu")
    shown = ", ".join(
        f"{of_set[0]:.2f} → {of_set[step]:.2f} ({of_set[step] - of_set[0]:+.2f}) on {each}"
        for each, of_set in scores.items()
        if of_set.keys() >= {0, step}
    )
    return shown and f"BLEU of the model that training started from, and now: {shown}"


def standstill_note(lines: Iterable[Mapping[str, Any] | None], config: Config) -> str:
    """Say whether validation stood still while the training nll fell; `lines` of metrics.jsonl."""
    metric = config.train.metric
    sign = -1.0 if lower_is_better(metric) else 1.0
    scores: dict[int, float] = {}
    losses: dict[int, float] = {}
    name = None  # of the validation set
    for line in filter(None, lines):
        if line["kind"] == "train":
            losses[line["step"]] = number(line, "nll")
        elif line["kind"] == "valid":
            if line.get("name") != name:  # another set, whose scores do not compare
                name, scores = line.get("name"), {}
            scores[line["step"]] = sign * number(line, metric)
    last = max(losses, default=0)
    start = max((step for step in losses if step <= (1 - STILL_PART) * last), default=last)
    before = max((score for step, score in scores.items() if step <= start), default=-math.inf)
    later = [score for step, score in scores.items() if step > start]
    still = STILL_NLL if metric == "nll" else STILL_POINTS
    has_learned = metric != "bleu" or before >= LEAST_BLEU
    if (
        not losses
        or len(later) < STILL_VALIDATIONS
        or not (max(later) <= before + still and has_learned)
    ):
        return ""
    then, now = losses[start], losses[last]
    if not now < (1 - FALLEN) * then:
        return ""
    return (
        f"note: validation has not improved since update {start:,} of {last:,} by more than "
        f"{Criterion(metric).describe(sign * still)}, while the training nll fell from {then:.2f} "
        f"to {now:.2f}: try more dropout or fewer updates"
    )
