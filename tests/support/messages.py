"""What a message must say, without its wording: place, what was found, remedy."""

from __future__ import annotations


def says(message: str, *parts: object) -> bool:
    """Whether a message holds all parts, in this order; the first one missing is an error."""
    rest = message
    for part in map(str, parts):
        _, found, rest = rest.partition(part)
        assert found, f"{part!r} is missing, or out of order, in: {message}"
    return True
