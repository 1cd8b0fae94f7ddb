"""What a message must say, without its wording: place, what was found, remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


def says(message: str, *parts: object) -> bool:
    """Whether a message holds all parts, in this order; the first one missing is an error."""
    rest = message
    for part in map(str, parts):
        _, found, rest = rest.partition(part)
        assert found, f"{part!r} is missing, or out of order, in: {message}"
    return True


@contextmanager
def raises_saying(error: type[Exception], *parts: object) -> Iterator[None]:
    """The block must raise this error, whose message holds all parts, in this order."""
    with pytest.raises(error) as caught:
        yield
    assert says(str(caught.value), *parts)
