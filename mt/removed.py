"""Names that have left mt: removed.txt says since when, why, and what to do instead.

Commands and options begin with `mt`, also several options of one command; shipped configs end in
`.yaml`, all others are keys of a config without indices of lists, or `KEY: VALUE`. A key that is
off is ignored, so that configs and models of an earlier version still load.
"""

from __future__ import annotations

import re
from pathlib import Path

_LINES = Path(__file__).with_name("removed.txt").read_text(encoding="utf-8").splitlines()
REMOVED = dict(line.split(" = ", 1) for line in _LINES)
# Of the other keys: null, 0, [] or false.
OFF = {"optim.optimizer": "adamw", "data.train.tags": "strip"}


def why_removed(key: str) -> str:
    """The line about a key of a config, without indices of lists; "" for another one."""
    key = re.sub(r"^data\.(valid|test)\.", "data.train.", key)
    return REMOVED.get(key.replace("data.stages.augment.", "data.augment."), "")


def why_option_left(command: str, option: str) -> str:
    """The line about an option, without dashes, of a command; "" for another one."""
    names = (name for name in REMOVED if name.startswith(f"{command} --"))
    return next((REMOVED[name] for name in names if f"--{option}" in name.split()), "")
