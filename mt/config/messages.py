"""Messages about a config: what is required, what was found, what to do."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from mt.config.schema import Source, sections

# By pydantic's type of error.
_REQUIRED = {
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "string_too_long": "must be one character",
    "list_type": "must be a list",
    "tuple_type": "must be a list of two numbers",
    "too_long": "must be a list of two numbers",
    "greater_than": "must be above {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be below {lt:g}",
    "less_than_equal": "must be at most {le:,}",
}


def problem(detail: ErrorDetails, steps: Sequence[str | int]) -> str:
    """Return the message for one of pydantic's errors; `steps` lead to the value."""
    kind = detail["type"]
    found = detail["input"]
    context = detail.get("ctx", {})
    in_source = steps[0] == "data" and len(steps) + (kind == "model_type") > 2
    owner = Source if in_source else sections()[str(steps[0])]
    if kind == "missing":
        return "is missing and has no default; add it"
    if kind == "extra_forbidden":
        return unknown_key(str(steps[-1]), owner)
    if kind == "model_type":
        return f"must have keys ({', '.join(owner.model_fields)}), found {shown(found)}"
    if kind == "literal_error":
        options = context["expected"].replace("True", "true").replace("False", "false")
        near = _nearest(str(found), re.findall(r"\w+", options))
        hint = f"; did you mean {near}?" if near else ""
        return f"must be {options.replace(chr(39), '')}, found {shown(found)}{hint}"
    required = _REQUIRED.get(kind, "cannot be used").format(**context)
    return f"{required}, found {shown(found)}{_remedy(kind, found)}"


def shown(found: object) -> str:
    """Return a value as a message shows it: as in YAML, long ones cut off."""
    if isinstance(found, dict | list):
        return "keys below it" if isinstance(found, dict) else "a list"
    words = {None: "nothing (null)", True: "true", False: "false"}
    text = words[found] if found is None or isinstance(found, bool) else repr(found)
    return text if len(text) <= 60 else f"{text[:57]}..."


def unknown_key(key: str, owner: type[BaseModel]) -> str:
    """Return the message for an unknown key: its true section, else the nearest known key."""
    homes = [name for name, model in sections().items() if key in model.model_fields]
    homes += ["data.train"] * (key in Source.model_fields)
    if homes:
        return f"unknown key; {key} belongs in section {' or '.join(homes)}"
    word = key.lower().replace("-", "_")
    if near := _nearest(word, owner.model_fields):
        return f"unknown key; did you mean {near}?"
    elsewhere = {k: f"{name}.{k}" for name, m in sections().items() for k in m.model_fields}
    if near := _nearest(word, elsewhere, 0.8):
        return f"unknown key; did you mean {elsewhere[near]}?"
    return f"unknown key; known here: {', '.join(owner.model_fields)}"


def _nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    near = difflib.get_close_matches(word, list(known), 1, cutoff)
    return near[0] if near else None


def _remedy(kind: str, found: object) -> str:
    if found is None:
        return "; leave the key out for its default"
    if kind == "string_type" and isinstance(found, bool | int | float):
        return "; put the text in quotes"
    if kind == "list_type" and isinstance(found, str):
        return f"; write [{found}]"
    if kind in ("int_type", "float_type") and isinstance(found, str):
        with suppress(ValueError, OverflowError):
            number = int(found) if kind == "int_type" else float(found)
            return f"; write {number} without quotes" if math.isfinite(number) else ""
    return ""
