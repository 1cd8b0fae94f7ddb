"""Paths into a config, such as `data.train[0].src`, and `--set PATH=VALUE`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from mt.config import yaml_text

# The keys and list indices that lead to a value: ("data", "train", 0, "src").
Steps = Sequence[str | int]


def path_of(steps: Steps) -> str:
    """Return the path of ("data", "train", 0, "src"): "data.train[0].src"."""
    return "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in steps).removeprefix(".")


def leaves(value: Any, path: str = "") -> Iterator[str]:
    """Yield the path of every value in a tree; a list is one value unless it holds mappings."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from leaves(below, f"{path}.{key}".removeprefix("."))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for index, below in enumerate(value):
            yield from leaves(below, f"{path}[{index}]")
    else:
        yield path


def is_within(path: str, holder: str) -> bool:
    """Whether `path` is `holder` or lies below it."""
    return path == holder or path.startswith((f"{holder}.", f"{holder}["))


def is_set(path: str, set_paths: Iterable[str]) -> bool:
    """Whether a setting named this path, a value below it, or a mapping or list around it."""
    return any(is_within(path, other) or is_within(other, path) for other in set_paths)


def apply(setting: str, tree: dict[str, Any]) -> str:
    """Put the value of `section.key=value` into the tree; return its path.

    Raises ValueError for a setting that cannot be read, and where the path leads nowhere.
    """
    path, equals, text = setting.partition("=")
    steps = [int(i) if i else word for word, i in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path)]
    if not equals or not steps or path_of(steps) != path:
        raise ValueError("must be section.key=value, such as optim.peak_lr=1e-3")
    value = yaml_text.parse(text)
    if len(steps) == 1 and (value is None or isinstance(value, dict)):
        raise ValueError(f"must name one key, found a whole section; write {path}.KEY=value")
    _put(tree, steps, value, "")
    return path


def _put(tree: Any, steps: Steps, value: object, here: str) -> None:
    """Set the value below `tree`, whose path is `here`; create missing mappings and lists."""
    step, rest = steps[0], steps[1:]
    if isinstance(step, str) and isinstance(tree, list):
        raise ValueError(f"{here} is a list; say which entry, such as {here}[0].{step}")
    if not isinstance(tree, dict if isinstance(step, str) else list):
        raise ValueError(f"there is nothing below {here}; set {here} itself")
    node: Any = tree  # a mapping or a list, as the step requires
    if isinstance(step, int):
        if step > len(node):
            raise ValueError(
                f"{here} has {len(node)} entries; set {here}[{len(node)}] or {here}=[...]"
            )
        if step == len(node):
            node.append(None)
    if rest:
        child = node[step] if isinstance(step, int) else node.get(step)
        if child is None:
            child = [] if isinstance(rest[0], int) else {}
        _put(child, rest, value, path_of([here, step]).lstrip("."))
        value = child
    node[step] = value
