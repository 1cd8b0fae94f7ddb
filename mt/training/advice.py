"""Advice in the log: which shipped recipe fits a corpus, and whether a training has used it up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import TYPE_CHECKING, Any

from mt.config.auto import replace_auto, sizes_for
from mt.config.load import load_config, shipped_folder
from mt.runs.metrics import number
from mt.training.selection import LEAST_BLEU, Criterion, lower_is_better

if TYPE_CHECKING:
    from mt.config.schema import Config, ModelConfig

# A config is of another kind than a recipe if its layers have so many times more or fewer weights:
# base.yaml has 8 times those of small.yaml, iwslt14.yaml 6 times, tiny.yaml a quarter.
OTHER_KIND = 4.0
# Scores that stand still: less than seeds differ by. Of the nll, 1.5 % in perplexity.
STILL_POINTS = 0.3
STILL_NLL = 0.015
# They do so over this part of the updates and as many validations, while the training nll has
# fallen by this share; multi30k.yaml stands still from update 3,000 of 5,000 on.
STILL_PART = 0.3
STILL_VALIDATIONS = 4
FALLEN = 0.05
# Lines of the log whose mean is the training nll at an update.
LINES = 3


def recipe_for(n_pairs: int, is_cuda: bool) -> str:
    """The shipped config for a corpus of this size (configs/README.md)."""
    if n_pairs < (100_000 if is_cuda else 200_000):
        return "small.yaml"
    return "iwslt14.yaml" if n_pairs < 500_000 else "base.yaml"


def recipe_note(config: Config, n_pairs: int, is_cuda: bool) -> str:
    """Which recipe fits, if this config plainly does not; else, and in fine-tuning, nothing.

    A model is plainly too large, too small for a GPU and many pairs, or has too little dropout.
    """
    if config.train.init_from is not None:
        return ""
    name = recipe_for(n_pairs, is_cuda)
    # The user's folder may have a file of this name, which is another config.
    recipe = load_config(str(shipped_folder() / name)).config
    own, fitting = config.model, replace_auto(recipe, sizes_for(n_pairs))[0].model
    ratio = _weights(own) / _weights(fitting)
    is_too_small = is_cuda and n_pairs >= 100_000 and ratio < 1 / OTHER_KIND
    is_overfitting = ratio >= 1 and own.dropout_p < fitting.dropout_p / 2
    if ratio <= OTHER_KIND and not is_too_small and not is_overfitting:
        return ""
    sizes = [
        f"{_weights(model) / 1e6:,.1f} million weights in layers and dropout {model.dropout_p:g}"
        for model in (own, fitting)
    ]
    where = "GPU" if is_cuda else "CPU"
    return (
        f"note: this model has {sizes[0]}; for {n_pairs:,} pairs on a {where} a config of your "
        f"data with recipe: {name} fits better: {sizes[1]}"
    )


def _weights(model: ModelConfig) -> int:
    """Weights of the matrices in all layers."""
    d, both = model.d_model, 2 * model.d_model * model.d_ff
    return model.n_encoder_layers * (4 * d**2 + both) + model.n_decoder_layers * (8 * d**2 + both)


def standstill_note(lines: Iterable[Mapping[str, Any] | None], config: Config) -> str:
    """That validation stood still while the training nll fell, if so; `lines` of metrics.jsonl."""
    metric = config.train.metric
    sign = -1.0 if lower_is_better(metric) else 1.0
    known = [line for line in lines if line]
    scores = {
        line["step"]: sign * number(line, metric) for line in known if line["kind"] == "valid"
    }
    losses = {line["step"]: number(line, "nll") for line in known if line["kind"] == "train"}
    highest = max(scores.values(), default=0.0)
    if not scores or not losses or (metric == "bleu" and highest < LEAST_BLEU):
        return ""
    still = STILL_NLL if metric == "nll" else STILL_POINTS
    since = next((step for step, score in scores.items() if score >= highest - still), 0)
    last = max(losses)
    later = [step for step in scores if step > since]
    if len(later) < STILL_VALIDATIONS or last - since < STILL_PART * last:
        return ""
    before = [loss for step, loss in losses.items() if step <= since][-LINES:]
    if not before:
        return ""
    then, now = fmean(before), fmean(list(losses.values())[-LINES:])
    if not now < (1 - FALLEN) * then:
        return ""
    return (
        f"note: validation has not improved since update {since:,} of {last:,} by more than "
        f"{Criterion(metric).describe(sign * still)}, while the training nll fell from {then:.2f} "
        f"to {now:.2f}: try more dropout, "
        + ("" if config.optim.rdrop else "optim.rdrop, ")
        + "or fewer updates"
    )
