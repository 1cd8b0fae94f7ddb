"""Minimum Bayes risk: of several outputs for a line, the one most like all the others.

Kumar and Byrne, 2004; on samples of a neural model, Eikema and Aziz, 2020. The outputs stand both for what could be
chosen and for what could be right, so the choice is the one with the highest mean utility against the rest. The
utility is sentence BLEU or chrF as sacreBLEU counts them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from mt.errors import ConfigError

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

UTILITIES = ("chrf", "bleu")


class Choice(NamedTuple):
    """The output chosen."""

    place: int  # among the outputs given; the first of equals
    utility: float  # its mean over the other outputs, 0 to 100


def metric(name: str) -> BLEU | CHRF:
    """The utility of that name. Raises ConfigError for one that is not in `UTILITIES`."""
    if name not in UTILITIES:
        raise ConfigError(f"--mbr: must be {' or '.join(UTILITIES)}, found {name!r}")
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    # Short lines have no 4-grams: BLEU then means the orders that there are.
    return CHRF() if name == "chrf" else BLEU(effective_order=True)


def choose(outputs: Sequence[str], utility: BLEU | CHRF) -> Choice:
    """The output with the highest mean utility where each of the others is right in turn.

    A text that is there several times counts as often: samples come as often as the model finds them likely.
    """
    if len(outputs) == 1:
        return Choice(0, 100.0)
    counts = Counter(outputs)
    means: dict[str, float] = {}
    for text in counts:
        total = sum(
            (count - (other == text)) * utility.sentence_score(text, [other]).score
            for other, count in counts.items()
        )
        means[text] = total / (len(outputs) - 1)
    best = max(outputs, key=means.__getitem__)
    return Choice(outputs.index(best), means[best])
