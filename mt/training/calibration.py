"""Fit how sure a model's translations are, and measure how far that can be believed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mt.errors import CheckpointError, DataError
from mt.evaluation.metrics import Chrf
from mt.runs.model_folder import read_config, read_meta, step_of, write_meta
from mt.runs.outputs import Sentence, read_valid_sentences
from mt.translate.confidence import CONFIDENCE, GOOD, features, fit

BINS = 10


class Bin(NamedTuple):
    """The lines whose confidence lies in an interval."""

    low: float
    lines: int
    confidence: float  # their mean
    good: float  # share of them


@dataclass(frozen=True)
class Reliability:
    """Confidence against what came true."""

    lines: int
    good: float  # share of the lines
    auc: float  # how often the good line of two has more confidence; nan if all are alike
    bins: list[Bin]  # those that have lines

    def values(self) -> dict[str, Any]:
        """The measures for JSON, which has no nan."""
        bins = [each._asdict() for each in self.bins]
        return asdict(self) | {"auc": None if math.isnan(self.auc) else self.auc, "bins": bins}

    def table(self) -> str:
        """The bins as a table for people."""
        rows = [f"{'confidence':<12}{'lines':>7}{'mean':>7}{f'chrF ≥ {GOOD:g}':>11}"]
        rows += [
            f"{f'{low:.1f}–{low + 1 / BINS:.1f}':<12}{lines:>7,}{mean:>7.2f}{good:>11.2f}"
            for low, lines, mean, good in self.bins
        ]
        share = f"{self.lines:,} lines, {100 * self.good:.1f} % with a chrF of at least {GOOD:g}"
        return "\n".join([*rows, f"{share}; AUC {self.auc:.3f}"])


def fit_best(run_dir: Path, best: Path) -> str:
    """Fit the confidence of a run's best model on its validation, unless that is done; say so."""
    folder = best.resolve()
    sentences = read_valid_sentences(run_dir, step_of(folder.name))
    if not sentences or CONFIDENCE in read_meta(folder, []):
        return ""
    outputs = [sentence.output for sentence in sentences]
    good = good_lines(outputs, [[sentence.reference for sentence in sentences]])
    try:
        penalty = read_config(folder).decode.length_penalty
        return fit_model(folder, sentences, good, penalty)
    except (CheckpointError, DataError) as error:  # the training itself is done
        return f"note: mt translate --confidence is not available: {error}"


def fit_model(
    folder: Path, sentences: Sequence[Sentence], good: Sequence[bool], length_penalty: float
) -> str:
    """Fit the confidence of a model on outputs of it, and keep it there; return what to report.

    `length_penalty`: of the scores. Raises DataError where no fit is possible, CheckpointError
    where it cannot be written.
    """
    rows = [features(each.output, each.score, each.flags) for each in sentences]
    fitted = fit(rows, good, length_penalty)
    try:
        write_meta(folder, read_meta(folder, []) | {CONFIDENCE: fitted.model_dump()})
    except OSError as error:
        raise CheckpointError(
            f"{folder}: the confidence cannot be written there ({error.strerror}); make it "
            "writable, or copy the model to a place of yours"
        ) from error
    share = f"{100 * fitted.good:.0f} % with a chrF of at least {GOOD:g}"
    return f"confidence: fitted on {fitted.lines:,} lines, {share}"


def good_lines(outputs: Sequence[str], refs: Sequence[Sequence[str]]) -> list[bool]:
    """Whether the chrF of each line is at least `GOOD`."""
    return [value >= GOOD for value in Chrf(refs).line_values(outputs)]


def reliability(confidences: Sequence[float], good: Sequence[bool]) -> Reliability:
    """Compare the confidence of lines with whether they are good."""
    said, true = np.array(confidences), np.array(good, bool)
    places = np.minimum((said * BINS).astype(int), BINS - 1)
    bins = [
        Bin(place / BINS, int(here.sum()), float(said[here].mean()), float(true[here].mean()))
        for place in range(BINS)
        if (here := places == place).any()
    ]
    return Reliability(len(said), float(true.mean()), auc(said, true), bins)


def auc(values: npt.NDArray[np.float64], good: npt.NDArray[np.bool_]) -> float:
    """How often the good line of two has the higher value; equal values count half."""
    if good.all() or not good.any():
        return float("nan")
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - (count - 1) / 2)[place]  # of equal values their mean
    n_good, n_bad = int(good.sum()), int((~good).sum())
    return float((ranks[good].sum() - n_good * (n_good + 1) / 2) / (n_good * n_bad))
