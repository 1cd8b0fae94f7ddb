"""Lines for the model as its training text would write them, and outputs as the lines were."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence, Set
from itertools import zip_longest

from mt.data.reading.words import has_letter, has_visible, single_spaced, without_invisible
from mt.data.tokens.symbols import Symbols, links_with_symbols, with_symbols, without_symbols
from mt.data.tokens.writing import Case, Writing, Written, case_of
from mt.translate.lines import Line, Step


class AsTrained(Step):
    """Changes case, final stop and symbols of lines, and changes outputs back.

    Invisible characters are dropped, and lines without a letter are not translated. A line with a
    prefix keeps all but invisible characters.
    """

    def __init__(self, writing: Writing | None, unknown_cases: Set[Case] = frozenset()) -> None:
        self.writing = writing  # of the training text; None: it is not known
        self.unknown_cases = unknown_cases  # changed, if the language of the lines were known
        self.settings = {"--as-written": "no" if writing else "unknown"}
        self.n_rewritten = 0
        self.n_unknown = 0
        self.n_letterless = 0
        # The parts of lines that the model does not see.
        self._changed: dict[Line, tuple[Symbols, Written | None]] = {}
        self._letterless: dict[Line, str] = {}

    def before(self, lines: Sequence[Line]) -> None:
        """Write lines as the training text does."""
        for line in lines:
            if not has_visible(line.text):
                continue
            line.text = without_invisible(line.text)
            if line.prefix:
                continue
            if not has_letter(line.text):
                self._letterless[line], line.text = line.text, ""
                continue
            text = line.text
            symbols = without_symbols(unicodedata.normalize("NFC", text))
            written = None
            if self.writing is None:
                self.n_unknown += case_of(symbols.plain) in self.unknown_cases
            else:
                text, written = self.writing.usual(symbols.plain)
            if symbols.symbols or written is not None:
                self._changed[line] = symbols, written
                line.text = text if written else symbols.plain

    def after(self, lines: Sequence[Line]) -> None:
        """Write translations as their lines were written."""
        for line in lines:
            if (text := self._letterless.pop(line, None)) is not None:
                self.n_letterless += 1
                line.text = text
                line.translation = line.translation._replace(texts=(single_spaced(text),))
            elif changed := self._changed.pop(line, None):
                self.n_rewritten += 1
                self._rewrite(line, *changed)

    def _rewrite(self, line: Line, symbols: Symbols, written: Written | None) -> None:
        outputs, links = line.translation.texts, line.translation.alignments
        if written is not None and self.writing is not None:
            outputs = tuple(self.writing.written(text, written) for text in outputs)
            if links and written.has_stop:
                from mt.search.alignment import links_within

                source = line.text.removesuffix(self.writing.src.final_stop)
                pairs = zip(links, outputs, strict=True)
                links = tuple(links_within(link, source, text) for link, text in pairs)
        texts = outputs
        if symbols.symbols:
            aligned = zip_longest(outputs, links, fillvalue="")
            rows = [with_symbols(output, symbols, link) for output, link in aligned]
            # A symbol may come with white space of its own.
            texts = tuple(single_spaced(text) for text, _ in rows)
            links = tuple(
                links_with_symbols(link, symbols, output, *row)
                for link, output, row in zip(links, outputs, rows, strict=False)
            )
        line.translation = line.translation._replace(texts=texts, alignments=links)

    def notes(self) -> list[str]:
        """How many lines were changed, or would have been."""
        counts = {
            "without a letter, kept as they are": self.n_letterless,
            "translated as the training text would write them": self.n_rewritten,
            "in capitals, Title Case or lower case translated as they are: --from CODE, their "
            "language, may help": self.n_unknown,
        }
        return [f"{count:,} {what}" for what, count in counts.items() if count]
