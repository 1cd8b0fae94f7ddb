"""`mt --version`: which mt, torch, Python and device a report is about."""

from __future__ import annotations

import platform

from mt import __version__


def version_text() -> str:
    """One property per line. Imports torch to find the device that `--device auto` would take."""
    import torch

    from mt.runtime.devices import choose_device

    return (
        f"mt {__version__}\n"
        f"torch {torch.__version__}\n"
        f"Python {platform.python_version()}\n"
        f"device: {choose_device()}"
    )
