"""Languages by their codes: scripts, relatives; how surely a line is in another language."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from mt.cleaning.characters import SCRIPTS, WRITTEN_IN
from mt.data.reading.identify import CLEARLY, FIRST_LOOK, as_line, load_model, relatives_of
from mt.data.reading.language_codes import base_code


def scripts_of(code: str) -> list[int]:
    """The character classes of a language's letters; those of no script for an unknown code.

    A script in the code (zh-Hans, srp_Latn) is the only one. Otherwise any that is usual will do.
    """
    named = {part.title() for part in re.split("[-_]", code)[1:]}
    names = [name for name in SCRIPTS if name in named]
    names += ["Hani"] * bool(named & {"Hans", "Hant"}) + ["Hani", "Kana"] * ("Jpan" in named)
    names += ["Hang"] * bool(named & {"Kore"})
    if not names:
        language = base_code(code)
        names = [name for name, codes in WRITTEN_IN.items() if language in codes]
    return [SCRIPTS[name] for name in names]


class Language:
    """The language that one side of a corpus should be in."""

    def __init__(self, code: str, identify: bool) -> None:
        """Load the model if lines are to be identified. Raises DataError without its package."""
        self.code = base_code(code)
        self.scripts = scripts_of(code)
        self.is_latin = SCRIPTS["Latn"] in self.scripts
        self.relatives = relatives_of(self.code)
        self._labels = {f"__label__{name}" for name in self.relatives}
        is_known = any(self.code in codes for codes in WRITTEN_IN.values())
        self._model: Any = load_model() if identify and is_known else None
        # Igbo is known but not to the model, for which all of it would be in another language.
        self.is_identified = self._model is not None and not self._labels.isdisjoint(
            label
            for _, label in self._model.predict("\n", 1000, -1.0, "replace")  # all it has
        )

    def is_related(self, other: Language) -> bool:
        """Whether sentences of both may well be equal."""
        return other.code in self.relatives

    def other(self, texts: Sequence[str]) -> list[float]:
        """Score each text from 0 to 1: how surely it is in another language.

        0 where the language or a relative is the most probable one; else by how much the
        probability of another language is above that of this one and its relatives.
        """
        lines = [as_line(text, FIRST_LOOK) for text in texts]
        looks = self._model.multilinePredict(lines, 1, CLEARLY, "replace")
        return [
            0.0 if labels and labels[0] in self._labels else self._other(text)
            for text, labels in zip(texts, looks, strict=True)
        ]

    def _other(self, text: str) -> float:
        likely = self._model.predict(as_line(text), 5, 0.01, "replace")
        expected = sum(p for p, label in likely if label in self._labels)
        return max(0.0, min(likely[0][0], 1.0) - expected) if likely else 0.0
