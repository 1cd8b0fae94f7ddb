"""What a section finds: one JSON line per item, written at once, and printed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mt.errors import first_line


@dataclass(frozen=True)
class Item:
    """One thing that was checked or measured."""

    section: str
    name: str
    status: str  # ok, failed, or skipped
    value: Any = None
    unit: str = ""
    note: str = ""

    def __str__(self) -> str:
        """The line that is printed."""
        value = f"{self.value:,.4g}" if isinstance(self.value, float) else str(self.value)
        shown = "" if self.value is None else f"{value} {self.unit}".rstrip()
        parts = (f"{self.status:<8}", f"{self.name:<48}", shown, self.note)
        return "  ".join(part for part in parts if part)


class NotJudgedError(Exception):
    """A check that says nothing on this device; the text says why."""


class Report:
    """Appends the items of one section to a file, until the section's time is up."""

    def __init__(self, path: Path, section: str, seconds: float) -> None:
        self.path = path
        self.section = section
        self.end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds until the time is up."""
        return self.end - time.monotonic()

    def add(
        self, name: str, status: str = "ok", value: Any = None, unit: str = "", note: str = ""
    ) -> None:
        """Write and print one item."""
        item = Item(self.section, name, status, value, unit, note)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(item), ensure_ascii=False) + "\n")
        print(item, flush=True)

    def check(self, name: str, call: Callable[[], str]) -> None:
        """Do a check: it fails if `call` raises an exception, and returns a note if not."""

        def checked() -> None:
            self.add(name, note=call())

        self.attempt(name, checked)

    def attempt(self, name: str, call: Callable[[], None]) -> None:
        """Call what adds items itself; an exception is an item, and no reason to stop."""
        if self.left() <= 0:
            self.add(name, "skipped", note="the time of this section is up")
            return
        try:
            call()
        except NotJudgedError as reason:
            self.add(name, "skipped", note=str(reason))
        except Exception as error:
            self.add(name, "failed", note=f"{type(error).__name__}: {first_line(error)}"[:300])


def read_items(path: Path) -> list[Item]:
    """Read the items that sections have written."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [Item(**json.loads(line)) for line in lines]
