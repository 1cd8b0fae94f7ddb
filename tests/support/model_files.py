"""The files of a folder: their contents, and ways to damage one."""

from __future__ import annotations

from pathlib import Path


def content_of(folder: Path) -> dict[str, bytes]:
    """File name -> content."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def flip(path: Path) -> None:
    """Flip one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    """Cut off the last 7 bytes."""
    path.write_bytes(path.read_bytes()[:-7])


def drop(path: Path) -> None:
    """Delete a file."""
    path.unlink()


def empty(path: Path) -> None:
    """Leave a file of 0 bytes."""
    path.write_bytes(b"")


def fill(path: Path) -> None:
    """Replace the content by 1000 other bytes."""
    path.write_bytes(b"0123456789" * 100)
