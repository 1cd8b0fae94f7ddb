"""Functions that fail, which a test puts in the place of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn


def raising(error: BaseException | type[BaseException]) -> Callable[..., NoReturn]:
    """A function that raises this error, whatever it is called with."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    return fail
