"""Messages for a person: one line each on stderr, without what would command a terminal."""

from __future__ import annotations

import sys
from contextlib import suppress

# Characters that move a cursor, colour a terminal, or make a page or a picture invalid: control
# characters become the signs for them (␛, ␍), those without a sign U+FFFD.
_SIGNS = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"} | {0x7F: 0x2421}
_SIGNS |= dict.fromkeys([*range(0x80, 0xA0), 0xFFFE, 0xFFFF], 0xFFFD)


def printable(text: str) -> str:
    """Return a text that can be shown; tabs and line ends stay.

    Texts, names of files and keys come from anywhere: an escape sequence in one could rewrite what
    stands on the terminal.
    """
    return text.translate(_SIGNS)


def say(text: str) -> None:
    """Print a message to stderr, with `mt: ` before each line, so that grep finds all of it.

    A stderr that cannot be written (a full disk, a closed pipe) neither ends the work nor changes
    the exit code.
    """
    lines = "\n".join(f"mt: {line}" for line in printable(text).split("\n"))
    with suppress(OSError):
        print(lines, file=sys.stderr, flush=True)
