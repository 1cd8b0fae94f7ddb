"""Confidence intervals of scores, and paired tests of which differences between systems are real.

All of it is sacreBLEU's own: the bootstrap (Koehn, 2004) and approximate randomisation (Riezler and
Maxwell, 2005), so with the same seed the figures are those of the `sacrebleu` command. Texts are
plain lists of lines, and metrics are named as in `metrics.SACREBLEU`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mt.errors import ConfigError, DataError
from mt.evaluation.bleu_tokenizer import DEFAULT
from mt.evaluation.metrics import SACREBLEU, check_lines, sacrebleu_metric

# sacreBLEU's defaults.
SEED = 12345
RESAMPLES = 1_000
TRIALS = 10_000
# A difference with a smaller p-value is called significant.
LEVEL = 0.05

# The paired tests by sacreBLEU's names.
TESTS = {"bs": "paired bootstrap", "ar": "paired approximate randomisation"}
SAMPLES = {"bs": RESAMPLES, "ar": TRIALS}
# Lower is better.
ERROR_RATES = ("ter",)

_SEED_VARIABLE = "SACREBLEU_SEED"
_environment = threading.Lock()


@dataclass(frozen=True)
class Interval:
    """A 95 % confidence interval, mean ± half_width, of a score's bootstrap resamples."""

    mean: float
    half_width: float
    signature: str = ""  # of the metric, with the seed and the number of resamples


@dataclass(frozen=True)
class Comparison:
    """One system against the baseline, by one metric and one paired test."""

    system: str
    baseline: str
    metric: str  # such as bleu
    value: float
    difference: float  # value - the baseline's value
    p_value: float  # of a difference at least as large, if the systems were equally good
    interval: Interval | None  # of the value; the bootstrap gives it for nothing
    signature: str  # with the test's seed and number of samples

    @property
    def significant(self) -> bool:
        """Whether the difference is unlikely to be chance: p < 0.05, and not zero."""
        return self.difference != 0 and self.p_value < LEVEL

    @property
    def better(self) -> bool:
        """Whether the value is better than the baseline's, significantly or not."""
        return self.difference < 0 if self.metric in ERROR_RATES else self.difference > 0


def confidence_intervals(
    hyps: Sequence[str],
    refs: Sequence[Sequence[str]],
    metrics: Sequence[str] = ("bleu",),
    tokenize: str = DEFAULT,
    *,
    n_resamples: int = RESAMPLES,
    seed: int | None = SEED,
) -> dict[str, Interval]:
    """The 95 % interval of each metric's score, by bootstrap resampling of the lines.

    `refs`: whole reference translations, each with a line for every hypothesis. `tokenize`: for
    BLEU. `seed`: from 1, or None for another one each time. Equal to `sacrebleu --confidence`.
    Raises DataError for unequal line counts and metrics that sacreBLEU does not have.
    """
    _check(metrics, seed, n_resamples)
    check_lines(hyps, refs)
    intervals = {}
    with _seeded(seed):
        for name in metrics:
            metric = sacrebleu_metric(name, tokenize)
            score = metric.corpus_score(hyps, refs, n_bootstrap=n_resamples)
            signature = str(metric.get_signature())
            intervals[name] = Interval(float(score._mean), float(score._ci), signature)
    return intervals


def paired_test(
    systems: Mapping[str, Sequence[str]],
    refs: Sequence[Sequence[str]],
    metrics: Sequence[str] = ("bleu",),
    tokenize: str = DEFAULT,
    *,
    test: str = "bs",
    n_samples: int | None = None,
    seed: int | None = SEED,
) -> dict[str, list[Comparison]]:
    """Compare every system with the first one, the baseline: metric → a Comparison for each other.

    `systems`: outputs by name, each with as many lines as every text of `refs`. `test`: "bs"
    (paired bootstrap) or "ar" (paired approximate randomisation). `n_samples`: resamples or trials;
    by default 1,000 or 10,000. The p-values are those of `sacrebleu --paired-bs` or `--paired-ar`.

    It all runs in this process: sacreBLEU's `--paired-jobs` would fork, which is unsafe beside
    PyTorch's threads. A thousand lines take about a second. Raises DataError as
    `confidence_intervals`.
    """
    from sacrebleu.significance import PairedTest

    n_samples = n_samples or SAMPLES[test]
    metrics = list(dict.fromkeys(metrics))
    _check(metrics, seed, n_samples)
    for hyps in systems.values():
        check_lines(hyps, refs)
    baseline, *others = systems
    if not others:
        raise DataError(f"{TESTS[test]}: two systems are needed to compare, found one")
    with _seeded(seed):
        run = PairedTest(
            list(systems.items()),
            {name: sacrebleu_metric(name, tokenize, refs) for name in metrics},
            references=None,  # the metrics have them
            test_type=test,
            n_samples=n_samples,
            n_jobs=1,
        )
        signatures, columns = run()
    found: dict[str, list[Comparison]] = {}
    # sacreBLEU names the columns after its scores, such as chrF2, in the order of the metrics.
    for name, column in zip(metrics, signatures, strict=True):
        results: list[Any] = list(columns[column])
        found[name] = [
            Comparison(
                system,
                baseline,
                name,
                float(result.score),
                float(result.score - results[0].score),
                float(result.p_value),
                _interval(result, str(signatures[column])),
                str(signatures[column]),
            )
            for system, result in zip(others, results[1:], strict=True)
        ]
    return found


def _interval(result: Any, signature: str) -> Interval | None:
    if result.mean is None:
        return None
    return Interval(float(result.mean), float(result.ci), signature)


def default_seed() -> int | None:
    """The seed that the `sacrebleu` command would take: SACREBLEU_SEED, else 12345.

    None stands for `none`: another seed each time. Raises ConfigError if the variable is neither.
    """
    text = os.environ.get(_SEED_VARIABLE, str(SEED)).strip()
    if text.lower() == "none":
        return None
    if not text.isdecimal() or int(text) == 0:
        raise ConfigError(
            f"{_SEED_VARIABLE}: must be a whole number from 1, or none, found {text!r}; correct "
            "the environment variable, or give --seed"
        )
    return int(text)


def _check(metrics: Sequence[str], seed: int | None, n_samples: int) -> None:
    """Raise for arguments that sacreBLEU would not refuse, or not with a message."""
    if unknown := [name for name in metrics if name not in SACREBLEU]:
        raise DataError(
            f"significance: sacreBLEU can test {', '.join(SACREBLEU)}, found {', '.join(unknown)}"
        )
    if seed is not None and seed < 1:  # PairedTest takes 0 for no seed
        raise ConfigError(f"--seed: must be 1 or more, found {seed}")
    if n_samples < 2:
        raise ConfigError(f"resamples: must be 2 or more, found {n_samples}")


@contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    """Let sacreBLEU draw from `seed`, which it reads from the environment and nowhere else."""
    wanted = "none" if seed is None else str(seed)
    with _environment:
        before = os.environ.get(_SEED_VARIABLE)
        if (str(SEED) if before is None else before) == wanted:  # other threads may read it now
            yield
            return
        os.environ[_SEED_VARIABLE] = wanted
        try:
            yield
        finally:
            if before is None:
                del os.environ[_SEED_VARIABLE]
            else:
                os.environ[_SEED_VARIABLE] = before
