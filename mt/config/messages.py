"""Messages about a config: what is required, what was found, what to do."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Literal, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from mt.config.schema import Config, Source, sections
from mt.removed import why_removed

# By pydantic's type of error.
_REQUIRED = {
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "string_too_long": "must be one character",
    "string_pattern_mismatch": "must be two language codes, such as de-fr or pt_BR-en",
    "list_type": "must be a list",
    "tuple_type": "must be a list of two numbers",
    "too_long": "must be a list of two numbers",
    "too_short": "must not be empty",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
}
# What other toolkits call our keys.
_OTHER_NAMES = {
    "batch_size": "batch.tokens_per_update",
    "beam": "decode.beam_size",
    "epochs": "train.max_epochs",
    "hidden_size": "model.d_model",
    "learning_rate": "optim.peak_lr",
    "lr": "optim.peak_lr",
    "max_update": "train.max_steps",
    "max_updates": "train.max_steps",
    "num_heads": "model.n_heads",
    "warmup": "optim.warmup_steps",
}


def problem(detail: ErrorDetails, steps: Sequence[str | int]) -> str:
    """Return the message for one of pydantic's errors; `steps` lead to the value."""
    kind = detail["type"]
    value = detail["input"]
    context = detail.get("ctx", {})
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
        keys = ", ".join(owner.model_fields)
        return f"must have keys ({keys}), found {shown(value)}{_remedy(kind, value)}"
    if kind == "literal_error":
        if reason := why_removed(f"{path}: {value}"):
            return f"{value} was removed in {reason}"
        options = context["expected"].replace("'", "")
        known = [word for word in re.findall(r"[\w-]+", options) if word != "or"]
        hint = f"; did you mean {near}?" if (near := nearest(str(value), known)) else ""
        return f"must be {options}, found {shown(value)}{hint}"
    # A whole number in full; 9,223,372,036,854,775,807 has no other form.
    bounds = {
        key: f"{bound:,}" if isinstance(bound, int) else f"{bound:,.15g}"
        for key, bound in context.items()
        if isinstance(bound, int | float)
    }
    required = _REQUIRED.get(kind, "cannot be used").format(**context | bounds)
    others = get_args(field.annotation) if field is not None else ()
    if kind in ("int_type", "float_type", "bool_type") and Literal["auto"] in others:
        required += " or auto"
    if str(value).lower() == "none" and type(None) in others:
        return f"{required} or null, found {shown(value)}; write null"
    return f"{required}, found {shown(value)}{_remedy(kind, value)}"


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
    word = key.lower().replace("-", "_")
    elsewhere = {k: f"{name}.{k}" for name, m in sections().items() for k in m.model_fields}
    near = _OTHER_NAMES.get(word) or nearest(
        word, [*owner.model_fields, *["recipe"] * (owner is Config)]
    )
    if near := near or elsewhere.get(nearest(word, elsewhere, 0.8) or ""):
        return f"unknown key; did you mean {near}?"
    return f"unknown key; known here: {', '.join(owner.model_fields)}"


def unknown_section(name: str) -> str:
    if near := nearest(name.lower(), sections()):
        return f"unknown section; did you mean {near}?"
    return f"unknown section; known: {', '.join(sections())}"


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    near = difflib.get_close_matches(word, list(known), 1, cutoff)
    return near[0] if near else None


def _remedy(kind: str, value: object) -> str:
    """The remedy for a value of the wrong type, as far as its form tells."""
    text = value if isinstance(value, str) else ""
    if value is None:
        return "; leave the key out for its default"
    match kind:
        case "model_type" if isinstance(value, list) and any(isinstance(e, dict) for e in value):
            return "; write its keys without dashes"
        case "model_type" if re.match(r"\w+\s*[:=]", text):
            return "; write KEY: VALUE, with a space after the colon"
        case "string_type" if isinstance(value, bool | int | float):
            return "; put the text in quotes"
        case "list_type" if text:
            return f"; write [{text}]"
        case "bool_type" if text.lower() in ("true", "false"):
            return f"; write {text.lower()} without quotes"
        case "float_type" if re.fullmatch(r"\d+,\d+", text):
            return f"; write {text.replace(',', '.')}"
        case "int_type" | "float_type" if text:
            with suppress(ValueError, OverflowError):
                number = int(text) if kind == "int_type" else float(text)
                return f"; write {number} without quotes" if math.isfinite(number) else ""
    return ""
