"""Lines for the model as its training text would write them, and outputs as the lines were."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence, Set
from itertools import zip_longest
from typing import NamedTuple

from mt.data.reading.words import has_letter, has_visible, single_spaced, without_invisible
from mt.data.tokens.symbols import Symbols, links_with_symbols, with_symbols, without_symbols
from mt.data.tokens.writing import Case, Writing, Written, case_of
from mt.translate.lines import Line, Step


class _Part(NamedTuple):
    """A line of a text, which may have several, and how the model sees it."""

    symbols: Symbols
    seen: str = ""  # empty without a letter
    written: Written | None = None


class AsTrained(Step):
    """Changes case, final stop and symbols of lines, and changes outputs back.

    Invisible characters are dropped, and lines without a letter are not translated. A line with a
    prefix keeps all but invisible characters. Of a text with line feeds each line counts.
    """

    def __init__(self, writing: Writing | None, unknown_cases: Set[Case] = frozenset()) -> None:
        self.writing = writing  # of the training text; None: it is not known
        self.unknown_cases = unknown_cases  # changed, if the language of the lines were known
        self.settings = {"--as-written": "no" if writing else "unknown"}
        self.n_rewritten = 0
        self.n_unknown = 0
        self.n_letterless = 0
        self._changed: dict[Line, list[_Part]] = {}

    def before(self, lines: Sequence[Line]) -> None:
        """Write lines as the training text does."""
        for line in lines:
            if not has_visible(line.text):
                continue
            line.text = without_invisible(line.text)
            if line.prefix:
                continue
            parts = [self._part(text.strip()) for text in line.text.strip().split("\n")]
            if self.writing is None:
                cases = map(case_of, (part.symbols.plain for part in parts))
                self.n_unknown += not self.unknown_cases.isdisjoint(cases)
            if any(part.symbols.symbols or part.seen != part.symbols.plain for part in parts):
                self._changed[line] = parts
                line.text = "\n".join(part.seen for part in parts if part.seen)

    def _part(self, text: str) -> _Part:
        if not has_letter(text):
            return _Part(Symbols(text, text))
        symbols = without_symbols(unicodedata.normalize("NFC", text))
        usual = self.writing.usual(symbols.plain) if self.writing else (symbols.plain,)
        return _Part(symbols, *usual)

    def after(self, lines: Sequence[Line]) -> None:
        """Write translations as their lines were written."""
        for line in lines:
            if (parts := self._changed.pop(line, None)) is None:
                continue
            self.n_rewritten += line.text != ""
            self.n_letterless += line.text == ""
            line.text = line.text or "\n".join(part.symbols.line for part in parts)
            found = line.translation
            rows = zip_longest(found.texts, found.alignments)
            texts, links = zip(*(self._joined(parts, *row) for row in rows), strict=True)
            line.translation = found._replace(
                texts=texts, alignments=links[: len(found.alignments)]
            )

    def _joined(self, parts: Sequence[_Part], output: str, links: str | None) -> tuple[str, str]:
        """An output of all lines of a text, and its links, as their source lines were written."""
        if links is not None:  # which needed torch
            from mt.search.alignment import links_within, moved_links
        source, text, joined, outputs = "", "", list[str](), iter(output.split("\n"))
        for symbols, seen, how in parts:
            written, own = single_spaced(symbols.line), ""
            if seen:
                tgt = next(outputs, "")
                written = self.writing.written(tgt, how) if self.writing and how else tgt
                if links is not None:
                    own = links_within(links, seen[:-1] if how and how.has_stop else seen, written)
                    links = moved_links(links, f"{seen}\n", f"{tgt}\n", -1)
                if symbols.symbols:
                    shown, spans = with_symbols(written, symbols, own)
                    own = links_with_symbols(own, symbols, written, shown, spans)
                    written = single_spaced(shown)  # a symbol may have white space of its own
            joined += [] if links is None else [moved_links(own, source, text)]
            source, text = f"{source}{symbols.line}\n", f"{text}{written}\n"
        return text[:-1], " ".join(filter(None, joined))

    def notes(self) -> list[str]:
        """How many lines were changed, or would have been."""
        counts = {
            "without a letter, kept as they are": self.n_letterless,
            "translated as the training text would write them": self.n_rewritten,
            "in capitals, Title Case or lower case translated as they are: --from CODE, their "
            "language, may help": self.n_unknown,
        }
        return [f"{count:,} {what}" for what, count in counts.items() if count]
