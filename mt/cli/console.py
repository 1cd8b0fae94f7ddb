"""Results of commands to stdout; messages to stderr; an error as one message and an exit code."""

from __future__ import annotations

import errno
import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

from mt.cli.help import Group
from mt.errors import MtError
from mt.runtime.machine import received
from mt.terminal import printable
from mt.terminal import say as say

# What to do where the system refuses a name, wherever a command first looks there.
REFUSED_NAMES = {
    errno.ENAMETOOLONG: "give it a shorter name",
    errno.EACCES: "check its rights and those of the folders above it (ls -l)",
}


class Commands(Group):
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
        # `python -m` ends by SIGINT, whatever the code, if Ctrl-C came within an `exec` of text, as
        # while a dataclass is imported. The next such `exec` makes Python forget that.
        exec("")
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
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(cause)
    stop = next((item for item in chain if isinstance(item, KeyboardInterrupt | SystemExit)), None)
    message = ""
    code: int | None = None
    if isinstance(error, SystemExit):
        pass  # has its code
    elif isinstance(stop, KeyboardInterrupt):
        message, code = "interrupted", 128 + signal.SIGINT
    elif stop is not None:  # raised by `terminate`
        code = 128 + signal.SIGTERM
    elif isinstance(error, MtError):  # without a text where another process has reported it
        message, code = str(error), error.exit_code
    elif isinstance(error, BrokenPipeError):  # the reader has read enough, as `head` does
        code = 0
    elif (
        isinstance(error, OSError)
        and (remedy := REFUSED_NAMES.get(error.errno or 0))
        and isinstance(error.filename, str | bytes)
    ):
        message, code = f"{os.fsdecode(error.filename)}: {error.strerror}; {remedy}", 2
    else:
        if hasattr(error, "message"):  # an unknown option, for instance, which Typer reports
            error.message = printable(error.message)
        return None
    notes = [note for error in chain for note in getattr(error, "__notes__", ())]
    if lines := [*filter(None, [message, *notes])]:
        say("\n".join(lines))
    return code


def terminate(number: int, _: FrameType | None) -> NoReturn:
    """Handle SIGTERM or Ctrl-C as an exception, so that half-written files are removed.

    `mt train` installs a handler of its own while it trains.
    """
    received.append(number)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)


def print_result(text: str, is_printable: bool = False) -> None:
    """Print a result for a person, or JSON, to stdout; see `printable`.

    `is_printable`: it is already, and its escape sequences are colours of `mt`.
    Raises MtError where that cannot be written, as on a full disk.
    """
    try:
        print(text if is_printable else printable(text), flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise MtError(
            f"stdout: cannot be written: {error.strerror}; redirect it to a disk with free space"
        ) from error


def drop_unwritable() -> None:
    """Discard what stdout and stderr cannot write, or Python would complain again at exit."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
