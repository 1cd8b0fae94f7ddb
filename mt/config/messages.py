"""Messages about a config: what is required, what was found, what to do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from mt.config.schema import Config, Source, sections
from mt.removed import why_removed

# Where pydantic's own words do not say what to write, by its type of error.
_REQUIRED = {
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "string_pattern_mismatch": "must be two language codes, such as de-fr or pt_BR-en",
}


def problem(detail: ErrorDetails, steps: Sequence[str | int]) -> str:
    """Return the message for one of pydantic's errors; `steps` lead to the value."""
    kind = detail["type"]
    value = detail["input"]
    owner = _owner(steps if kind == "model_type" else steps[:-1])
    field = owner.model_fields.get(str(steps[-1]))
    path = ".".join(step for step in steps if isinstance(step, str))
    if kind == "missing" or (value is None and field is not None and field.is_required()):
        return "is missing and has no default; add it"
    if kind == "extra_forbidden":
        if reason := why_removed(path):
            return f"was removed in {reason}"
        return unknown_key(str(steps[-1]), owner)
    if kind == "model_type":
        return f"must have keys ({', '.join(owner.model_fields)}), found {shown(value)}"
    if kind == "literal_error":
        if reason := why_removed(f"{path}: {value}"):
            return f"{value} was removed in {reason}"
        options = detail["ctx"]["expected"].replace("'", "")
        known = [word for word in re.findall(r"[\w-]+", options) if word != "or"]
        hint = f"; did you mean {near}?" if (near := nearest(str(value), known)) else ""
        return f"must be {options}, found {shown(value)}{hint}"
    required = _REQUIRED.get(kind) or re.sub(r"^\w+ should", "must", detail["msg"])
    others = get_args(field.annotation) if field is not None else ()
    if kind.endswith("_type"):
        required += " or auto" * (Literal["auto"] in others) + " or null" * (type(None) in others)
    is_scalar = isinstance(value, bool | int | float)
    remedy = "; put the text in quotes" if kind == "string_type" and is_scalar else ""
    if value is None:
        remedy = "; leave the key out for its default"
    return f"{required}, found {shown(value)}{remedy}"


def _owner(steps: Sequence[str | int]) -> type[BaseModel]:
    owner = sections()[str(steps[0])]
    for step in steps[1:]:
        field = owner.model_fields.get(str(step))
        owner = (field and _model_in(field.annotation)) or owner
    return owner


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if inner := get_args(annotation):
        return next(filter(None, map(_model_in, inner)), None)
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return annotation if is_model else None


def shown(value: object) -> str:
    """Return a value as a message shows it: as in YAML, long ones cut off."""
    if isinstance(value, dict):
        return "keys below it"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    words = {None: "nothing (null)", True: "true", False: "false"}
    text = words[value] if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def unknown_key(key: str, owner: type[BaseModel]) -> str:
    """Return the message for an unknown key: its true section, else the nearest known key."""
    homes = [name for name, model in sections().items() if key in model.model_fields]
    homes += ["data.train"] * (key in Source.model_fields)
    if homes:
        return f"unknown key; {key} belongs in section {' or '.join(homes)}"
    known = [*owner.model_fields, *["recipe"] * (owner is Config)]
    if near := nearest(key.lower().replace("-", "_"), known):
        return f"unknown key; did you mean {near}?"
    return f"unknown key; known here: {', '.join(known)}"


def nearest(word: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(word, list(known), 1)), None)
