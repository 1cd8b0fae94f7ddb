"""How sure a translation is: the chance that its chrF against a reference would be at least 50.

A logistic regression on what is known without a reference: score, length and flags. It is fitted on
the translations of a validation set, and kept in the `meta.json` of the model.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from pydantic import BaseModel, FiniteFloat, ValidationError, model_validator
from typing_extensions import Self

from mt.errors import ConfigError, DataError
from mt.translate.lines import Line, Step

CONFIDENCE = "confidence"  # the key of `meta.json`
GOOD = 50.0  # the chrF of a good translation
LEAST_LINES = 20
RIDGE = 1.0  # of the squares of the weights of features in units of their spread
MOST_STEPS = 50  # of Newton's method, which takes about seven
# For the score of an output that has none.
WORST_SCORE = -20.0


FEATURES = ("intercept", "score", "length", "flagged")


class Confidence(BaseModel, frozen=True):
    """The weights of a fitted regression, and what it was fitted on."""

    weights: dict[str, FiniteFloat]  # of `FEATURES`
    length_penalty: FiniteFloat  # that the scores had
    lines: int
    good: float  # share of them

    @model_validator(mode="after")
    def _has_all_weights(self) -> Self:
        if missing := {*FEATURES} - {*self.weights}:
            raise ValueError(f"weights: missing {missing}")
        return self

    def of(self, output: str, score: float, flags: Collection[str]) -> float:
        """The chance that an output is good."""
        values = features(output, score, flags)
        logit = sum(self.weights[name] * value for name, value in values.items())
        return 1 / (1 + math.exp(-max(-500.0, logit)))


def features(output: str, score: float | None, flags: Collection[str]) -> dict[str, float]:
    """The values that the weights belong to."""
    known = score if score is not None and math.isfinite(score) else WORST_SCORE
    values = (1.0, known, math.log1p(len(output)), float(bool(flags)))
    return dict(zip(FEATURES, values, strict=True))


def confidence_of(meta: Mapping[str, Any]) -> Confidence | None:
    """The fit in a model's `meta.json`; None where there is none, or a damaged one."""
    with suppress(ValidationError):
        return Confidence.model_validate(meta.get(CONFIDENCE))
    return None


def fit(
    rows: Sequence[Mapping[str, float]], good: Sequence[bool], length_penalty: float
) -> Confidence:
    """Fit the `features` of outputs, by Newton's method with a ridge. Raises DataError."""
    y = np.array(good, np.float64)
    if len(y) < LEAST_LINES or y.all() or not y.any():
        raise DataError(
            f"a fit of confidence needs at least {LEAST_LINES} lines, and some with a chrF of "
            f"{GOOD:g} and some below; found {int(y.sum()):,} good of {len(y):,} lines"
        )
    x = np.array([[row[name] for name in FEATURES] for row in rows])  # (lines, features)
    mean, spread = x.mean(0), x.std(0)
    mean[0], spread[spread == 0] = 0.0, 1.0
    z = (x - mean) / spread
    ridge = np.diag([1e-9, *[RIDGE] * (len(mean) - 1)])
    weights = np.zeros(len(mean))
    for _ in range(MOST_STEPS):
        chances = 1 / (1 + np.exp(-(z @ weights).clip(-500, 500)))
        gradient = z.T @ (y - chances) - ridge @ weights
        curvature = (z * (chances * (1 - chances))[:, None]).T @ z + ridge
        step = np.linalg.solve(curvature, gradient)
        weights += step
        if np.abs(step).max() < 1e-9:
            break
    weights = weights / spread
    weights[0] -= weights[1:] @ mean[1:]
    named = dict(zip(FEATURES, weights.tolist(), strict=True))
    share = round(float(y.mean()), 4)
    return Confidence(weights=named, length_penalty=length_penalty, lines=len(y), good=share)


class AddConfidence(Step):
    """Adds to each line how sure its best output is."""

    def __init__(self, fitted: Confidence | None, length_penalty: float) -> None:
        """Raise ConfigError where none is fitted, or for other scores."""
        remedy = "; mt evaluate --model M --fit-confidence makes one, on data.valid or --src, --ref"
        if fitted is None:
            raise ConfigError(f"--confidence: this model or ensemble has no usable fit{remedy}")
        if fitted.length_penalty != length_penalty:
            raise ConfigError(
                f"--confidence: was fitted for length penalty {fitted.length_penalty:g}, but this "
                f"search uses {length_penalty:g}{remedy}"
            )
        self.fitted = fitted

    def after(self, lines: Sequence[Line]) -> None:
        """Look at the outputs as the other steps have left them."""
        for line in lines:
            best = line.translation
            sure = self.fitted.of(best.texts[0], best.scores[0], best.flags)
            if not best.texts[0]:
                sure = 0.0 if best.flags else 1.0  # of a blank line
            line.translation = best._replace(confidence=sure)
