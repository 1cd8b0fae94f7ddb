"""What a command says and how it ends: results to stdout, the rest to stderr, a fault as one message and exit code."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

from typer.core import TyperGroup

from mt.errors import MtError


class Commands(TyperGroup):
    """All commands; here, before Typer sees it, what ends one early becomes a line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BaseException as error:
            code = _told(error)
            if code is None:
                raise
        drop_unwritable()
        signal.signal(
            signal.SIGTERM, signal.SIG_DFL
        )  # nothing is left that would have to be cleared away
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            # Threads of gloo and NCCL still wait for the others; torn down under them, Python is aborted (134).
            with suppress(OSError):
                sys.stderr.flush()
            os._exit(code)
        sys.exit(code)


def _told(error: BaseException) -> int | None:
    """The exit code of what is no defect of ours, once its line is printed; None of all else.

    What a signal raises need not arrive as that: in the middle of an import of compiled code it becomes an ImportError,
    from which somebody may make a message of their own. So its causes are asked too.
    """
    if isinstance(error, SystemExit):
        return None  # has its code
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            print("mt: interrupted", file=sys.stderr)
            return 128 + signal.SIGINT
        if isinstance(cause, SystemExit):  # of `terminate`
            return 128 + signal.SIGTERM
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, MtError):
        if str(error):  # else another process has said it
            print(f"mt: {error}", file=sys.stderr)
        return error.exit_code
    return (
        0 if isinstance(error, BrokenPipeError) else None
    )  # the reader has read enough, as `head` does


def terminate(number: int, _: FrameType | None) -> NoReturn:
    """End as an error does, so that half-written files are removed; `mt train` has its own way while it learns."""
    sys.exit(128 + number)


def print_result(text: str) -> None:
    """A result, to stdout. Raises MtError where that cannot be written, such as on a full disk."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise MtError(
            f"stdout: cannot be written: {error.strerror}; send it to a place that has room"
        ) from error


def say(text: str) -> None:
    """What is no result, to stderr, each line with our name before it."""
    for line in text.split("\n"):
        print(f"mt: {line}", file=sys.stderr)


def drop_unwritable() -> None:
    """Python flushes stdout once more at exit, and would complain again about what cannot be written."""
    try:
        if sys.stdout:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
