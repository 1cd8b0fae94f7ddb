"""Every config key as tables in Markdown, made from the schema: `configs/keys.md`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from mt.config.schema import json_schema

INTRODUCTION = """\
# Every config key

```bash
mt config schema --markdown > configs/keys.md    # how this page is made; never edit it by hand
mt config show --config tiny.yaml                # the values of a config, and where each is from
```

[README.md](README.md) says how a config works. "Values" are the limits of a number, or the words
that a key takes. "On resume" is what a changed key does to an existing run:

| on resume | effect |
|---|---|
| | The run continues. |
| order | It starts a new epoch, in another order. |
| text | It cleans, filters and encodes the corpus again, then starts a new epoch. |
| refused | It stops with a message. Give another `--run-dir`, or `--fresh`. |"""
LIMITS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
TYPING_ERROR = 1000  # limits from here on only refuse a zero too many
ON_RESUME = {"nothing": "", "plan": "order", "text": "text", "model": "refused"}
HEAD = "| key | default | values | meaning | on resume |\n|---|---|---|---|---|"
Json = dict[str, Any]


def key_table() -> str:
    """The whole page: an introduction, then a table for each section of a config."""
    schema = json_schema()
    recipe = schema["properties"].pop("recipe")
    parts = [INTRODUCTION, f"`recipe`, at the top: {recipe['description']}."]
    for name, field in schema["properties"].items():
        rows = _rows(schema["$defs"], str(_model_in(field)), "", set())
        parts += [f"## {name}", "\n".join([HEAD, *rows])]
    return "\n\n".join(parts)


def _rows(defs: Json, model: str, prefix: str, seen: set[str]) -> Iterator[str]:
    """A row for each key of `model`, and below it those of a model in it, where it is met first."""
    seen.add(model)
    for key, field in defs[model]["properties"].items():
        name, inner = prefix + key, _model_in(field)
        meaning = field["description"].replace("<", "&lt;")
        effect = ON_RESUME[field.get("x-affects", "nothing")]
        default = field.get("default", [])
        default = default if isinstance(default, str) else json.dumps(default)
        row = f"| `{name}` | {default} | {_values(field)} | {meaning} | {effect} |"
        yield row.replace("  ", " ")
        if inner and inner not in seen:
            dot = "[]." if key in ("train", "stages") else "."
            yield from _rows(defs, inner, name + dot, seen)


def _types(field: Json) -> list[Json]:
    inner = [*field.get("anyOf", []), *field.get("prefixItems", [])]
    inner += [field["items"]] if "items" in field else []
    return [field, *(type_ for part in inner for type_ in _types(part))]


def _model_in(field: Json) -> str | None:
    return next(
        (type_["$ref"].rpartition("/")[2] for type_ in _types(field) if "$ref" in type_), None
    )


def _values(field: Json) -> str:
    """The limits of a key's numbers and the words that it takes; of any text, nothing."""
    types = _types(field)
    words = [word for type_ in types for word in [*type_.get("enum", []), type_.get("const")]]
    limits = [
        f"{sign}{type_[limit]}"
        for type_ in types
        for limit, sign in LIMITS.items()
        if type_.get(limit, TYPING_ERROR) < TYPING_ERROR
    ]
    is_any_text = any("minLength" in type_ for type_ in types)
    texts = [] if is_any_text else [*limits, *(word for word in words if word)]
    return ", ".join(dict.fromkeys(texts))
