"""Errors that are the user's to fix, never a defect of `mt` itself.

The command line prints the message of an `MtError` without a traceback and exits with its code.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class MtError(Exception):
    """Base class; the message names what, where, required, found, and the remedy."""

    exit_code = 2


class ConfigError(MtError):
    """An invalid config file, `--set` or combination of settings."""


class TooLittleMemoryError(ConfigError):
    """A batch or a model that does not fit into the memory of the device."""


class DataError(MtError):
    """A corpus, input file or output path that cannot be used as it is."""


class CheckpointError(MtError):
    """A model folder, checkpoint or run directory that cannot be used as it is."""


class NonFiniteError(CheckpointError):
    """A model whose output probabilities are NaN or infinite."""


class TrainingDivergedError(MtError):
    """Training gave up: the loss or its gradient was non-finite too often."""

    exit_code = 3


class RankLostError(MtError):
    """Another rank of the same training has died; a restart of all ranks can resume."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: worth another try


class DeviceFailedError(MtError):
    """A GPU reports a fault after which this process cannot use it; a new process may."""

    exit_code = 75


class OtherRankFailedError(MtError):
    """Another rank has reported the error: this one exits silently, with the same exit code."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("")
        self.exit_code = exit_code


def add_note(error: BaseException, note: str) -> None:
    """Add what is said after an error's own message, as `add_note` of Python 3.11 does."""
    error.__dict__.setdefault("__notes__", []).append(note)


def first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


@contextmanager
def leaf_for(wanted: str) -> Iterator[None]:
    """Import a leaf in the block; ConfigError, which says what is `wanted`, where it is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("mt."):
            raise
        raise ConfigError(
            f"{wanted}: needs {error.name}, which this installation does not have; install the "
            "whole of mt, or do without"
        ) from error
