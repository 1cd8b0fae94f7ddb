"""The installed package: its name on the package index, where `mt` is another project's."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

DISTRIBUTION = "mt-transformer"
try:
    VERSION = version(DISTRIBUTION)
except PackageNotFoundError:  # it runs from its source
    VERSION = "0+source"


def pip_install(extra: str) -> str:
    """Return the command that adds the packages of an extra of `pyproject.toml`."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
