"""Lines for the model as its training text would write them, and outputs as the lines were."""

from __future__ import annotations

from collections.abc import Sequence, Set

from mt.data.tokens.writing import Case, Writing, Written, case_of
from mt.translate.lines import Line, Step


class AsTrained(Step):
    """Changes case, final stop and emoji of lines, and changes outputs back; see `Writing`.

    A line with a prefix stays as it is.
    """

    def __init__(
        self, writing: Writing | None, unknown_cases: Set[Case], keep_words: bool = False
    ) -> None:
        """`writing` None: the language of the lines is not known, so all stay as they are.

        `unknown_cases`: those that would be changed if it were. `keep_words`: as for `usual`.
        """
        self.writing = writing
        self.unknown_cases = unknown_cases
        self.keep_words = keep_words
        self.settings = {} if writing is None else {"--as-written": "no"}
        self.n_rewritten = 0
        self.n_unknown = 0
        self._written: dict[Line, Written] = {}

    def before(self, lines: Sequence[Line]) -> None:
        """Write lines as the training text does."""
        for line in lines:
            if line.prefix:
                continue
            if self.writing is None:
                self.n_unknown += case_of(line.text) in self.unknown_cases
                continue
            line.text, written = self.writing.usual(line.text, self.keep_words)
            if written is not None:
                self._written[line] = written

    def after(self, lines: Sequence[Line]) -> None:
        """Write translations as their lines were written."""
        if self.writing is None:
            return
        for line in lines:
            written = self._written.pop(line, None)
            if written is None:
                continue
            self.n_rewritten += 1
            translation = line.translation
            texts = [self.writing.written(text, written) for text in translation.texts]
            links = translation.alignments
            if links and written.has_stop:
                from mt.search.alignment import links_within

                source = line.text.removesuffix(self.writing.src.final_stop)
                pairs = zip(links, texts, strict=True)
                links = tuple(links_within(link, source, text) for link, text in pairs)
            line.translation = translation._replace(texts=tuple(texts), alignments=links)

    def notes(self) -> list[str]:
        """How many lines were changed, or would have been."""
        notes = []
        if self.n_rewritten:
            notes.append(f"{self.n_rewritten:,} translated as the training text would write them")
        if self.n_unknown:
            notes.append(
                f"{self.n_unknown:,} in capitals, Title Case or lower case translated as they are: "
                "--from CODE, their language, may help"
            )
        return notes
