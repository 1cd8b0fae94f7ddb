"""A setting, declared once by the part of mt that uses it: a field of a frozen dataclass."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, wraps
from pathlib import Path
from types import NoneType
from typing import Any, Literal, ParamSpec, TypeVar, cast, get_args, get_origin, get_type_hints

from mt.errors import ConfigError
from mt.removed import why_option_left

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Setting:
    """A field's option, keyword of the API, help and limits."""

    help: str
    panel: str | None = None  # of --help
    metavar: str | None = None
    min: float | None = None
    above: float | None = None  # values must be greater
    max: float | None = None
    off: str = ""  # the end of a message: which value switches it off
    torch_only: bool = False  # CTranslate2 has nothing with the same meaning
    is_option: bool = True  # of commands that take the whole dataclass

    def option(self, field: str) -> str:
        return f"--{field.strip('_').replace('_', '-')}"


@cache
def declared(kind: type) -> dict[str, tuple[Setting, Any]]:
    """The declared fields of a dataclass: each with its setting and its type."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        field.name: (setting, hints[field.name].__origin__)
        for field in fields(kind)
        for setting in getattr(hints[field.name], "__metadata__", ())
        if isinstance(setting, Setting)
    }


def called_with(kind: Callable[P, T], command: str) -> Callable[[Callable[[T], R]], Callable[P, R]]:
    """Give a function of one dataclass the fields of that as parameters, which `help` lists."""
    hints = get_type_hints(kind)
    signature = inspect.signature(kind)
    fields = [each.replace(annotation=hints[each.name]) for each in signature.parameters.values()]
    known = declared(cast("type", kind))

    def decorated(function: Callable[[T], R]) -> Callable[P, R]:
        @wraps(function)
        def called(*args: P.args, **keywords: P.kwargs) -> R:
            for name in sorted(keywords.keys() - signature.parameters.keys()):
                reason = why_option_left(command, name.replace("_", "-"))
                why = f"it was removed in {reason}" if reason else f"known are {', '.join(known)}"
                raise ConfigError(f"{function.__name__}: has no option {name}; {why}")
            given = {name: value for name, value in keywords.items() if value is not None}
            return function(kind(*args, **given))  # type: ignore[arg-type]

        helps = [f"    `{name}`: {setting.help}." for name, (setting, _) in known.items()]
        called.__doc__ = "\n".join([function.__doc__ or "", *helps])
        called.__signature__ = inspect.Signature(fields)  # type: ignore[attr-defined]
        return called

    return decorated


def changed(settings: Any) -> Iterator[tuple[str, Setting, Any]]:
    """Yield option, setting and value of each field whose value is not the default."""
    defaults = {field.name: field.default for field in fields(settings)}
    for name, (setting, _) in declared(settings.__class__).items():
        value = getattr(settings, name)
        if value != defaults[name]:
            yield setting.option(name), setting, value


def check(settings: Any) -> None:
    """Raise ConfigError for a value of another type, or out of its range."""
    for name, (setting, kind) in declared(settings.__class__).items():
        value = getattr(settings, name)
        kinds = get_args(kind) if NoneType in get_args(kind) else (kind,)
        if value is None and NoneType in kinds:
            continue
        if Path in kinds and isinstance(value, str):
            object.__setattr__(settings, name, Path(value))
            continue
        if required := _required(setting, kinds[0], value):
            off = f"; {setting.off}" if setting.off else ""
            raise ConfigError(f"{setting.option(name)}: must be {required}, found {value!r}{off}")


def _required(setting: Setting, kind: Any, value: Any) -> str:
    if get_origin(kind) is Literal:
        *first, last = get_args(kind)
        return "" if value in (*first, last) else f"{', '.join(first)} or {last}"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int and not (is_number and isinstance(value, int)):
        return "a whole number" + (f" from {setting.min:g} on" if setting.min is not None else "")
    if kind is float and not is_number:
        return "a number"
    if kind not in (int, float):
        words = {bool: "true or false", str: "text", Path: "a path"}
        if isinstance(kind, type) and is_dataclass(kind):
            words[kind] = f"mt.{kind.__name__}(...)"
        return words[kind] if kind in words and not isinstance(value, kind) else ""
    low, above, high = setting.min, setting.above, setting.max
    is_in = (low is None or value >= low) and (above is None or value > above)
    if is_in and (high is None or value <= high) and value == value and abs(value) != float("inf"):
        return ""
    limits = {"at least": low, "above": above, "at most": high}
    bounds = [f"{name} {limit:g}" for name, limit in limits.items() if limit is not None]
    return " and ".join(bounds) or "finite"
