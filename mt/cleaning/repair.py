"""Repair the text of a line: Unicode normalisation, invisible characters, mojibake, white space."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from importlib.util import find_spec

from mt.data.reading.text_files import normalize_line
from mt.data.reading.words import without_invisible
from mt.errors import DataError

# UTF-8 decoded as Latin-1, Windows-1252 or Windows-1251, and entities: ftfy looks closer at these.
_HIGH = "\u0080-\u00bf\u02c6\u02dc\u2013-\u203a\u20ac\u2122"
_LATIN = f"(?<=[\u00c2-\u00f4])[{_HIGH}ŒœŠšŸŽžƒ]"
_CYRILLIC_HIGH = f"[{_HIGH}\u0400-\u040f\u0450-\u045f\u0490\u0491№]"
_CYRILLIC = f"(?<=[РС]){_CYRILLIC_HIGH}[РС]{_CYRILLIC_HIGH}"
# One set in front, which re looks for without trying each branch: seven times as fast.
_SUSPICIOUS = re.compile(
    "[\u0080-\u009f\ufffd\u00c2-\u00f4РС&]"
    rf"(?:(?<=[\u0080-\u009f\ufffd])|{_LATIN}|{_CYRILLIC}|(?<=&)#?\w+;)"
)


def repairer(mojibake: bool) -> Callable[[str], str]:
    """Return the function that repairs a line; with `mojibake`, wrong decoding too, by ftfy.

    Raises DataError where ftfy is needed and missing. Clean text costs a microsecond or two.
    """
    fix_mojibake = _mojibake_fixer() if mojibake else None

    def repair(text: str) -> str:
        ascii_only = text.isascii()
        if fix_mojibake and (not ascii_only or "&" in text) and _SUSPICIOUS.search(text):
            text = fix_mojibake(text)
        is_normal = ascii_only or unicodedata.is_normalized("NFC", text)
        text = without_invisible(text)
        if is_normal and text.isprintable() and "  " not in text and text.strip() == text:
            return text
        return normalize_line(text)

    return repair


def _mojibake_fixer() -> Callable[[str], str]:
    if find_spec("ftfy") is None:
        raise DataError(
            "data.clean.mojibake: needs the package ftfy, which is not installed; run "
            "`pip install mt[corpora]`, or set data.clean.mojibake to false"
        )
    import ftfy

    # Only wrong decoding and entities: quotes, ligatures and full-width signs are the author's.
    config = ftfy.TextFixerConfig(
        normalization=None,
        uncurl_quotes=False,
        fix_latin_ligatures=False,
        fix_character_width=False,
        fix_line_breaks=False,
        remove_terminal_escapes=False,
        remove_control_chars=False,
        explain=False,
    )
    return lambda text: ftfy.fix_text_segment(text, config)
