"""A setting, declared once by the part of mt that uses it: a field of a frozen dataclass."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from mt.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])


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


def with_keywords(*kinds: type) -> Callable[[F], F]:
    """Give a function that takes `**options` the declared fields of dataclasses as keywords."""

    def decorated(function: F) -> F:
        first, *_ = inspect.signature(function).parameters.values()
        keywords = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=getattr(kind, name), annotation=hint
            )
            for kind in kinds
            for name, (_, hint) in declared(kind).items()
        ]
        function.__signature__ = inspect.Signature([first, *keywords])  # type: ignore[attr-defined]
        return function

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
    bounds = [] if low is None else [f"at least {low:g}"]
    bounds += [] if above is None else [f"above {above:g}"]
    bounds += [] if high is None else [f"at most {high:g}"]
    return " and ".join(bounds) or "finite"
