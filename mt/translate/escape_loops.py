"""Search again where an output repeats itself up to its length limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mt.translate.lines import Line, Segment
from mt.translate.loaded_engine import LoadedEngine
from mt.translate.progress import Tally
from mt.translate.quality_flags import loops


class EscapeLoops:
    """Searches as an engine does; lines with a loop come last, after a second, greedy search.

    Its output replaces one that loops if it does not loop itself. Log-probabilities do not decide:
    without `with_scores` an engine may not know them, and the texts must be the same.
    """

    def __init__(self, engine: LoadedEngine) -> None:
        self.engine = engine
        self.n_looped = 0  # sources whose outputs repeated themselves up to the limit
        self.n_escaped = 0  # of these, those whose second search found something better

    def search(self, lines: Sequence[Line], tally: Tally) -> Iterator[tuple[list[Line], float]]:
        """Find outputs; otherwise as `LoadedEngine.search`."""
        looping: dict[Line, list[Segment]] = {}
        for done, share in self.engine.search(lines, tally):
            looping |= {line: segments for line in done if (segments := _looping(line))}
            yield [line for line in done if line not in looping], share
        if not looping:
            return
        held_back = [line for line in lines if line in looping]
        copies = [
            Line(
                line.number,
                line.text,
                segments=[Segment(segment.source, segment.prefix) for segment in looping[line]],
            )
            for line in held_back
        ]
        for _ in self.engine.search(copies, tally, loop_free=True):
            pass
        for line, copy in zip(held_back, copies, strict=True):
            for segment, other in zip(looping[line], copy.segments, strict=True):
                self.n_looped += 1
                if not _loops(other, line):
                    segment.outputs = other.outputs
                    self.n_escaped += 1
        yield held_back, 1.0

    def notes(self) -> list[str]:
        """How often there was a loop."""
        if not self.n_looped:
            return []
        return [
            f"{self.n_looped:,} repeating up to the limit and searched again, better for "
            f"{self.n_escaped:,}"
        ]


def _looping(line: Line) -> list[Segment]:
    segments = line.segments
    return [part for part in segments if part.outputs[0].truncated and _loops(part, line)]


def _loops(segment: Segment, line: Line) -> bool:
    """Whether the best output of a segment repeats itself as the line does not."""
    return loops(segment.outputs[0].text.split(), line.text.split())
