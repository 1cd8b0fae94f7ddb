"""What a command prints and how it ends.

Results go to stdout, everything else to stderr; an error is one message and an exit code.
"""

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
    """All commands of `mt`; errors of the user and signals become a message and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; exit with a code of `mt` for all that is no defect of `mt`."""
        try:
            return super().invoke(ctx)
        except BaseException as error:
            code = _report(error)
            if code is None:
                raise
        drop_unwritable()
        # From here on no file is half written, so SIGTERM may end the process at once.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            # Threads of gloo and NCCL still wait for other processes. A regular exit would tear
            # the process group down under them, and Python would abort with code 134.
            with suppress(OSError):
                sys.stderr.flush()
            os._exit(code)
        sys.exit(code)


def _report(error: BaseException) -> int | None:
    """Print the message of an error and return its exit code; None for a defect of `mt`.

    A signal may arrive as another error: while compiled code is imported, KeyboardInterrupt becomes
    an ImportError, which a library may wrap once more. So the causes are searched too.
    """
    if isinstance(error, SystemExit):
        return None  # has its code
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            print("mt: interrupted", file=sys.stderr)
            return 128 + signal.SIGINT
        if isinstance(cause, SystemExit):  # raised by `terminate`
            return 128 + signal.SIGTERM
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, MtError):
        if str(error):  # empty where another process has reported the error
            print(f"mt: {error}", file=sys.stderr)
        return error.exit_code
    # A closed pipe is no error: the reader has read enough, as `head` does.
    return 0 if isinstance(error, BrokenPipeError) else None


def terminate(number: int, _: FrameType | None) -> NoReturn:
    """Handle SIGTERM as an exception, so that half-written files are removed.

    `mt train` installs a handler of its own while it trains.
    """
    sys.exit(128 + number)


def print_result(text: str) -> None:
    """Print a result to stdout. Raises MtError where that cannot be written, as on a full disk."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise MtError(
            f"stdout: cannot be written: {error.strerror}; redirect it to a disk with free space"
        ) from error


def say(text: str) -> None:
    """Print a message to stderr, with `mt: ` before each line."""
    for line in text.split("\n"):
        print(f"mt: {line}", file=sys.stderr)


def drop_unwritable() -> None:
    """Discard output that cannot be written, or Python would complain again at exit."""
    try:
        if sys.stdout:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
