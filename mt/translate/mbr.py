"""Minimum Bayes risk: of several outputs for a line, choose the one most like all the others.

Kumar and Byrne, 2004; on samples of a neural model, Eikema and Aziz, 2020. The outputs serve both
as candidates and as references: the choice has the highest mean utility against the rest. The
utility is sentence BLEU or chrF as computed by sacreBLEU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mt.errors import ConfigError
from mt.translate.lines import Line, Step

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

UTILITIES = ("chrf", "bleu")


class ChooseByMbr(Step):
    """Keeps one of the outputs of each line."""

    def __init__(self, utility: str) -> None:
        """`utility`: of `UTILITIES`; ConfigError for any other."""
        self.utility = metric(utility)

    def found(self, lines: Sequence[Line]) -> None:
        """Choose while the engine works on: 16 samples of a line take some milliseconds."""
        for line in lines:
            texts, scores = line.translation.texts, line.translation.scores
            line.rank = rank = choose(texts, self.utility)
            line.translation = line.translation._replace(
                texts=texts[rank : rank + 1], scores=scores[rank : rank + 1]
            )


def metric(name: str, option: str = "--mbr") -> BLEU | CHRF:
    """Return the utility of that name, which `option` has given.

    Raises ConfigError for one that is not in `UTILITIES`.
    """
    if name not in UTILITIES:
        raise ConfigError(f"{option}: must be {' or '.join(UTILITIES)}, found {name!r}")
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    # Short lines have no 4-grams: effective order means that BLEU averages the orders they have.
    return CHRF() if name == "chrf" else BLEU(effective_order=True)


def choose(outputs: Sequence[str], utility: BLEU | CHRF) -> int:
    """Return the index of the output with the highest sum of utilities, the first of ties.

    Each of the other outputs is a reference. A text that occurs several times counts as often:
    samples repeat what the model finds likely.
    """
    counts = Counter(outputs)
    sums = {
        text: sum(
            (count - (other == text)) * utility.sentence_score(text, [other]).score
            for other, count in counts.items()
        )
        for text in counts
    }
    return outputs.index(max(outputs, key=sums.__getitem__))
