"""Score sentence pairs by the rules of `data.clean`; decide by thresholds, apart from scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mt.data.cleaning import measures
from mt.data.cleaning.languages import Language
from mt.data.cleaning.measures import PairBlock, Values
from mt.data.cleaning.repair import repairer

if TYPE_CHECKING:
    from mt.config.schema import Clean

Scores = npt.NDArray[np.float32]
# Raised where a rule or a repair gives other results: scores of another version are not used.
SCORES_VERSION = 1
# Pairs measured together: their characters stay in the processor's cache.
BLOCK = 1024


@dataclass(frozen=True)
class Rule:
    """A rule: its name, the key of its threshold in `data.clean`, and what it measures.

    `quantity` says for people what a score counts, and `form` how it is written. A rule without a
    key is always on; its limit is 0. With `is_minimum`, scores below the threshold are rejected.
    """

    name: str
    key: str | None
    measure: Callable[[PairBlock], Values]
    quantity: str
    form: str = ".0%"
    is_minimum: bool = False

    def limit(self, clean: Clean) -> float | None:
        """The threshold; None where the rule is off."""
        return 0.0 if self.key is None else getattr(clean, self.key)


# Of several rules that reject a pair, the first one counts.
RULES = (
    Rule("empty", None, measures.blank_sides, "of 2 sides blank", "g"),
    Rule("words", "max_words", measures.words, "words", ",g"),
    Rule("characters", "max_chars", measures.characters, "characters", ",g"),
    Rule("word_ratio", "max_word_ratio", measures.word_ratio, "times as many words", ".3g"),
    Rule("char_ratio", "max_char_ratio", measures.character_ratio, "times the characters", ".3g"),
    Rule("letters", "min_letters", measures.letters, "letters", is_minimum=True),
    Rule("symbols", "max_symbols", measures.symbols, "odd signs"),
    Rule("repeats", "max_repeats", measures.repeats, "repeated words", "g"),
    Rule("copied", "max_copied", measures.copied, "of words copied"),
    Rule("script", "max_other_script", measures.other_script, "letters of another script"),
    Rule("links", "max_missing_links", measures.missing_links, "of the links differ"),
    Rule("numbers", "max_wrong_numbers", measures.wrong_numbers, "of the numbers differ"),
    Rule("language", "max_other_language", measures.other_language, "sure of another language"),
)


class PairScorer:
    """Repairs lines and scores pairs by the rules that are on."""

    def __init__(self, clean: Clean, src_lang: str, tgt_lang: str) -> None:
        """Load what the rules need. Raises DataError where a package is missing."""
        self.fix = repairer(clean.mojibake) if clean.repair else str
        self._rules = [(i, rule) for i, rule in enumerate(RULES) if rule.limit(clean) is not None]
        identify = clean.max_other_language is not None
        self._languages = Language(src_lang, identify), Language(tgt_lang, identify)

    @property
    def notes(self) -> list[str]:
        """What cannot be measured, for reports: the script and language of unknown codes."""
        return [
            f"the {side} side is not checked for its script and language: {language.code!r} is no "
            "known language code, such as de"
            for side, language in zip(("source", "target"), self._languages, strict=True)
            if not language.scripts
        ]

    def scores(self, pairs: Sequence[tuple[str, str]]) -> Scores:
        """Score repaired pairs by `RULES`: (n, len(RULES)), NaN where not measured."""
        out = np.full((len(pairs), len(RULES)), np.nan, np.float32)
        for start in range(0, len(pairs), BLOCK):
            block = PairBlock(pairs[start : start + BLOCK], self._languages)
            for number, rule in self._rules:
                out[start : start + BLOCK, number] = rule.measure(block)
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


def reason(number: int, score: float, clean: Clean) -> str:
    """Say why a rule rejects a pair, such as `312 words, above 200`."""
    rule = RULES[number]
    limit = f"{'below' if rule.is_minimum else 'above'} {rule.limit(clean):{rule.form}}"
    return f"{score:{rule.form}} {rule.quantity}" + f", {limit}" * (rule.key is not None)
