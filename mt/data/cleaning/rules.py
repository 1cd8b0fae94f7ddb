"""Score sentence pairs by the rules of `data.clean`; decide by thresholds, apart from scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mt.data.cleaning.characters import DENSE, CharacterCounts, count_characters
from mt.data.cleaning.repair import repairer

if TYPE_CHECKING:
    from mt.config.schema import Clean

Scores = npt.NDArray[np.float32]
# Added to the lengths of both sides before their ratio is taken: short segments may differ more.
WORDS_ADDED = 3
CHARACTERS_ADDED = 10


@dataclass(frozen=True)
class Rule:
    """A rule: its name, the key of its threshold in `data.clean`, and what it measures.

    `reason` is a sentence for people with the fields {score} and {limit}. A rule without a key is
    always on; its limit is 0. With `is_minimum`, scores below the threshold are rejected.
    """

    name: str
    key: str | None
    reason: str
    is_minimum: bool = False

    def limit(self, clean: Clean) -> float | None:
        """The threshold; None where the rule is off."""
        return 0.0 if self.key is None else getattr(clean, self.key)


# The order decides which rule a pair is counted under that several reject.
RULES = (
    Rule("empty", None, "{score:g} of the two sides is blank"),
    Rule("words", "max_words", "{score:,g} words, more than {limit:,g}"),
    Rule("characters", "max_chars", "{score:,g} characters, more than {limit:,g}"),
    Rule("word_ratio", "max_word_ratio", "{score:.2g} times as many words, above {limit:g}"),
    Rule("char_ratio", "max_char_ratio", "{score:.2g} times as many characters, above {limit:g}"),
)
COLUMN = {rule.name: number for number, rule in enumerate(RULES)}


class PairScorer:
    """Repairs lines and scores pairs by the rules that are on."""

    def __init__(self, clean: Clean, src_lang: str, tgt_lang: str) -> None:
        """Load what the rules need. Raises DataError where a package is missing."""
        self.clean = clean
        self.repair: Callable[[str], str] = repairer(clean.mojibake) if clean.repair else str

    def fix(self, text: str) -> str:
        """Return the repaired text of a line."""
        return self.repair(text)

    def scores(self, pairs: Sequence[tuple[str, str]]) -> Scores:
        """Score pairs by `RULES`: (n, len(RULES)), NaN where a rule is off or cannot say."""
        out = np.full((len(pairs), len(RULES)), np.nan, np.float32)
        if pairs:
            src, tgt = (count_characters(side) for side in zip(*pairs, strict=True))
            for rule, column in COLUMN.items():
                if RULES[column].limit(self.clean) is not None:
                    out[:, column] = _MEASURES[rule](src, tgt)
        return out


def decide(scores: Scores, clean: Clean) -> npt.NDArray[np.int8]:
    """Return, for each row of scores, the number of the first rule that rejects it, or -1."""
    first = np.full(len(scores), -1, np.int8)
    for number, rule in reversed(list(enumerate(RULES))):
        limit = rule.limit(clean)
        if limit is not None:
            column = scores[:, number]  # NaN is neither above nor below
            first[column < limit if rule.is_minimum else column > limit] = number
    return first


def reason(rule: int, score: float, clean: Clean) -> str:
    """Say why rule number `rule` rejects a pair, such as `312 words, more than 200`."""
    return RULES[rule].reason.format(score=float(score), limit=RULES[rule].limit(clean))


# --- measures of whole blocks -----------------------------------------------------------------


def _ratio(src: Any, tgt: Any, added: int) -> npt.NDArray[np.float64]:
    return (np.maximum(src, tgt) + added) / (np.minimum(src, tgt) + added)


def _weighted_length(counts: CharacterCounts) -> npt.NDArray[np.int64]:
    return counts.length + 2 * counts.classes[:, DENSE].sum(1)


def _blank_sides(src: CharacterCounts, tgt: CharacterCounts) -> npt.NDArray[np.int64]:
    return (src.visible == 0) * 1 + (tgt.visible == 0)


_MEASURES: dict[str, Callable[[CharacterCounts, CharacterCounts], npt.NDArray[Any]]] = {
    "empty": _blank_sides,
    "words": lambda src, tgt: np.maximum(src.words, tgt.words),
    "characters": lambda src, tgt: np.maximum(src.length, tgt.length),
    "word_ratio": lambda src, tgt: _ratio(src.words, tgt.words, WORDS_ADDED),
    "char_ratio": lambda src, tgt: _ratio(
        _weighted_length(src), _weighted_length(tgt), CHARACTERS_ADDED
    ),
}
