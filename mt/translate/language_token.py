"""The token that tells a model of several languages into which one to translate."""

from __future__ import annotations

from collections.abc import Sequence

from mt.translate.lines import Line, Step


class LanguageToken(Step):
    """Begins each source with the token of a language; see `Tokenizer.before_source`."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids
        self.settings = {"--to": str(ids)}

    def before(self, lines: Sequence[Line]) -> None:
        """Put the token before the tokens of each segment."""
        for line in lines:
            for segment in line.segments:
                segment.source = self.ids + segment.source
