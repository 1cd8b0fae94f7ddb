"""What the section `data` comes to: the directions that a model learns."""

from __future__ import annotations

from typing import NamedTuple

from mt.config.schema import DataConfig


class Direction(NamedTuple):
    """The languages that a text is translated from and into."""

    src: str
    tgt: str


def directions_of(data: DataConfig) -> list[Direction]:
    """The directions that a model of this `data` has learnt, each once.

    Without those whose reverse alone is trained to the end.
    """
    stage = data.stages[-1] if data.stages else None
    weights = (stage.shares or stage.weights) if stage else None
    if weights is None:
        weights = [text.share or text.weight for text in data.train]
    directions = [Direction(*data.direction(text)) for text in data.train]
    last = {direction for direction, weight in zip(directions, weights, strict=True) if weight}
    return [one for one in dict.fromkeys(directions) if one in last or one[::-1] not in last]


def direction_of(data: DataConfig, source: str | None, to: str | None) -> Direction | None:
    """The direction of a translation, given one of its languages, both or none; None: not known.

    It need not be one that the model of this `data` has learnt. Other languages than those of the
    texts count as not given.
    """
    known = {code for text in data.train for code in data.direction(text)}
    source, to = (code if code in known else None for code in (source, to))
    fitting = [
        direction
        for direction in directions_of(data)
        if source in (None, direction.src) and to in (None, direction.tgt)
    ]
    if len(fitting) == 1:
        return fitting[0]
    return Direction(source, to) if source and to else None
