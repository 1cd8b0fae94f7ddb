"""`mt config`: check a config, show its values, describe its keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from mt.cli import options as opt
from mt.cli.console import print_result, say
from mt.cli.help import command_group
from mt.errors import DataError, leaf_for

app = command_group("config", "Check, show and describe configs.")


@app.command("check")
def check(config: opt.ConfigName, settings: opt.Settings = None) -> None:
    """Check a config and its data, without training. A model to fine-tune is opened too.

    \b
    mt config check --config base.yaml
    """
    from mt.config.load import load_config, require_training_data
    from mt.config.plan import plan_data
    from mt.data.reading.check import check_data

    loaded = load_config(config, settings or [])
    require_training_data(loaded.config)
    plan = plan_data(loaded.config.data)
    data = check_data(plan)
    checks: list[Callable[[], object]] = []
    if loaded.config.tokenizer.model is not None:
        from mt.data.tokens.tokenizer import own_tokenizer

        checks.append(partial(own_tokenizer, loaded.config.tokenizer))
    if plan.clean is not None:
        with leaf_for("data.clean"):
            from mt.cleaning.plan import files_against
        checks.append(partial(files_against, plan.clean, plan.root))
    for check_more in checks:
        try:
            check_more()
        except DataError as error:
            data.faults.append(str(error))
    if data.faults:
        raise DataError("\n".join(data.faults))
    for line in (*data.unread, *(f"warning: {warning}" for warning in data.warnings)):
        say(line)
    if loaded.config.train.init_from:
        from mt.training.finetune import load_base

        load_base(loaded.config)
    print_result(f"{loaded.path}: good")


@app.command("show")
def show(config: opt.ConfigName, settings: opt.Settings = None) -> None:
    """Print every value of a config and its origin.

    \b
    mt config show --config tiny.yaml --set optim.peak_lr=1e-3
    """
    from mt.config.load import load_config, with_origins

    print_result(with_origins(load_config(config, settings or [])))


@app.command("schema")
def schema(
    markdown: Annotated[bool, opt.output_option("--markdown", help=
        "print a table of all keys instead: the page configs/keys.md")] = False,
) -> None:  # fmt: skip
    """Print the JSON Schema of configs: what each key means and takes. Editors can use it.

    \b
    mt config schema > mt.schema.json
    """
    from mt.config.schema import json_schema

    print_result(key_table() if markdown else json.dumps(json_schema(), indent=2))


# --- configs/keys.md ------------------------------------------------------------------------

INTRODUCTION = Path(__file__).with_name("keys_introduction.txt")
LIMITS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
TYPING_ERROR = 1000  # limits from here on only refuse a zero too many
ON_RESUME = {"nothing": "", "plan": "order", "text": "text", "model": "refused"}
HEAD = "| key | default | values | meaning | on resume |\n|---|---|---|---|---|"
Json = dict[str, Any]


def key_table() -> str:
    """The whole page: an introduction, then a table for each section of a config."""
    from mt.config.schema import json_schema

    schema = json_schema()
    recipe = schema["properties"].pop("recipe")
    introduction = INTRODUCTION.read_text(encoding="utf-8").rstrip("\n")
    parts = [introduction, f"`recipe`, at the top: {recipe['description']}."]
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
    names = (type_["$ref"].rpartition("/")[2] for type_ in _types(field) if "$ref" in type_)
    return next(names, None)


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
    if any("minLength" in type_ for type_ in types):
        return ""
    return ", ".join(dict.fromkeys([*limits, *filter(None, words)]))
