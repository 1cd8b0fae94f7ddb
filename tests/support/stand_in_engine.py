"""A translator without a model: an engine that writes what a function gives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from mt.translate.as_trained import AsTrained
from mt.translate.lines import Line, Step, Translation
from mt.translate.translator import Translator


class StandInEngine:
    """In the place of a `LoadedEngine`."""

    reads_ahead = False
    name = "stands in"
    engine = SimpleNamespace(window=1000)

    def __init__(self, translate: Callable[[str], Translation]) -> None:
        self.translate = translate
        self.seen: list[str] = []
        self.settings: dict[str, str] = {}
        self.lock = threading.RLock()

    def __exit__(self, *_: object) -> None:
        pass

    def search(self, lines: list[Line], _: object) -> Iterator[float]:
        for line in lines:
            self.seen.append(line.text)
            line.translation = self.translate(line.text)
        yield 1.0


def stand_in_translator(engine: Any, protection: Step | None = None, **wants: Any) -> Translator:
    """A translator with no step but a protection, and that for emoji."""
    wants.pop("prefixes", None)
    steps: list[Step] = [] if protection is None else [protection]
    return Translator(engine, [*steps, AsTrained(None)], {}, **wants)
