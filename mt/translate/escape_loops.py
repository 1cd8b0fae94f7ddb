"""Search again where an output repeats itself up to its length limit."""

from __future__ import annotations

from collections.abc import Sequence

from mt.translate.lines import Line, Segment, Step
from mt.translate.loaded_engine import LoadedEngine
from mt.translate.progress import Tally
from mt.translate.quality_flags import loops


class EscapeLoops(Step):
    """Searches lines with a loop a second time, greedily and without repeated tokens.

    That output replaces one that loops if it does not loop itself. Log-probabilities do not decide:
    without `with_scores` an engine may not know them, and the texts must be the same.
    """

    def __init__(self, engine: LoadedEngine) -> None:
        self.engine = engine
        self.n_looped = 0  # sources whose outputs repeated themselves up to the limit
        self.n_escaped = 0  # of these, those whose second search found something better

    def after(self, lines: Sequence[Line]) -> None:
        """Replace outputs of segments, before they are joined."""
        looping = [
            (segment, line)
            for line in lines
            for segment in line.segments
            if segment.outputs[0].truncated and _loops(segment, line)
        ]
        copies = [Segment(segment.source, segment.prefix) for segment, _ in looping]
        for _ in self.engine.search([Line(0, "", segments=copies)], Tally(), loop_free=True):
            pass
        for (segment, line), copy in zip(looping, copies, strict=True):
            self.n_looped += 1
            if not _loops(copy, line):
                segment.outputs = copy.outputs
                self.n_escaped += 1

    def notes(self) -> list[str]:
        """How often there was a loop."""
        if not self.n_looped:
            return []
        return [
            f"{self.n_looped:,} repeating up to the limit and searched again, better for "
            f"{self.n_escaped:,}"
        ]


def _loops(segment: Segment, line: Line) -> bool:
    """Whether the best output of a segment repeats itself as the line does not."""
    return loops(segment.outputs[0].text.split(), line.text.split())
