"""Messages about a config: of single values, and of those that cannot work together."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from mt.config.data_schema import Source, TextEntry
from mt.config.plan import corpora_and_flows, named_entries, texts_of
from mt.config.schema import Config, sections
from mt.removed import why_removed

# Pieces with a meaning of their own in a SentencePiece model of mt.
SPECIAL_PIECE = re.compile("<pad>|<unk>|</?s>|<0x[0-9A-F]{2}>")
OF_PATH = ("format", "name", "delimiter", "quoting")  # keys that say how it is read
# Where pydantic's own words do not say what to write, by its type of error.
_REQUIRED = {
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "string_pattern_mismatch": "must be two language codes, such as de-fr or pt_BR-en",
}


def problem(detail: ErrorDetails, steps: Sequence[str | int]) -> str:
    """The message for one of pydantic's errors; `steps` lead to the value."""
    kind, value = detail["type"], detail["input"]
    owner = _owner(steps if kind == "model_type" else steps[:-1])
    field = owner.model_fields.get(str(steps[-1]))
    path = ".".join(step for step in steps if isinstance(step, str))
    if kind == "missing" or (value is None and field is not None and field.is_required()):
        return "is missing and has no default; add it"
    if kind == "extra_forbidden":
        removed = why_removed(path)
        return f"was removed in {removed}" if removed else unknown_key(str(steps[-1]), owner)
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
    remedy = "; leave the key out for its default" if value is None else ""
    if kind == "string_type" and isinstance(value, bool | int | float):
        remedy = "; put the text in quotes"
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
    """A value as a message shows it: as in YAML, long ones cut off."""
    if isinstance(value, dict):
        return "keys below it"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if value is None:
        return "nothing (null)"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def unknown_key(key: str, owner: type[BaseModel]) -> str:
    """The message for an unknown key: its true section, else the nearest known key."""
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


class Fault(NamedTuple):
    """A fault of a config. The message names the first path; `paths` are all involved."""

    paths: list[str]
    text: str


def combination_faults(config: Config) -> Iterator[Fault]:
    """Check all combinations. A fault counts only if all sections of its paths are valid."""
    for check in (_sizes, _stages, _entries, _languages, _symbols, _vocabulary, _training):
        yield from check(config)


def _sizes(config: Config) -> Iterator[Fault]:
    """A sentence has data.max_tokens and eos, a target also bos; a batch takes the longest pair."""
    model, longest = config.model, config.data.max_tokens
    if model.d_model % model.n_heads or model.d_model % 2:
        multiple = f"must be even and a multiple of model.n_heads ({model.n_heads})"
        yield Fault(["model.d_model", "model.n_heads"], f"{multiple}, found {model.d_model}")
    for key, more in (("model.max_positions", 2), ("batch.tokens_per_batch", 1)):
        if isinstance(number := config.value(key), int) and number < longest + more:
            least = f"data.max_tokens + {more} ({longest + more})"
            yield Fault([key, "data.max_tokens"], f"must be at least {least}, found {number}")


def _stages(config: Config) -> Iterator[Fault]:
    stages = config.data.stages or []
    n_texts = len(corpora_and_flows(config.data)[1])
    for number, stage in enumerate(stages):
        path = f"data.stages[{number}]"
        until = stage.until.model_dump(exclude_none=True) if stage.until else {}
        is_last = number + 1 == len(stages)
        if len(until) != (not is_last):
            required = "null in the last stage" if is_last else "{updates: 2000} or {share: 0.2}"
            found = ", ".join(until) or shown(None)
            yield Fault([f"{path}.until"], f"must be {required}, found {found}")
        if stage.weights is not None and (len(stage.weights) != n_texts or not any(stage.weights)):
            yield Fault(
                [f"{path}.weights", "data.train"],
                f"must have a number for each of the {n_texts} texts of data.train, one of them "
                f"above 0, found {stage.weights}; 0 leaves a text out",
            )


def _entries(config: Config) -> Iterator[Fault]:
    """An entry has two files, or a path with sides; or a path with several directions."""
    train = config.data.train
    for path, entry in named_entries(config.data):
        given = entry.model_dump(exclude_defaults=True)
        to_train = path.startswith("data.train")
        if isinstance(entry.split, int):
            yield from _held_out(path, given, train)
            continue
        for side in ("src", "tgt") if not entry.path else ():
            if side not in given:
                yield Fault(
                    [f"{path}.{side}"],
                    "is required: name a text file; or, with path, a file of pairs, or what both "
                    "files have in common",
                )
        for key in given:
            is_lost = key in OF_PATH and not entry.path
            if is_lost or (key in ("tag", "reverse", "weight") and not to_train):
                why = "says how path is read" if is_lost else "is for data.train"
                remedy = " without path; add path" if is_lost else "; remove it"
                yield Fault([f"{path}.{key}"], f"{why}, found {shown(given[key])}{remedy}")
        sides = given.keys() & {"src", "tgt", "src_lang", "tgt_lang", "reverse"}
        if entry.directions and (sides or not entry.path):
            yield Fault(
                [f"{path}.directions", f"{path}.path"],
                "stands with path, and without src, tgt, src_lang, tgt_lang and reverse, which it "
                "says for each direction; name what the files have in common with path",
            )


def _held_out(path: str, given: dict[str, object], train: list[TextEntry]) -> Iterator[Fault]:
    """A set that is held out has no other key, and the training texts a direction each."""
    split = given["split"]
    if path.startswith("data.train"):
        yield Fault([f"{path}.split"], f"must be text, found {split}; remove it")
    elif len(given) > 1:
        alone = f"write {{split: {split}}} alone"
        yield Fault([path], f"is held out of data.train, and has no other key; {alone}")
    elif several := [n for n, text in enumerate(train) if text.directions]:
        yield Fault(
            [f"data.train[{several[0]}].directions", path],
            "cannot stand where a set is held out; write a text for each direction, or name files "
            f"in {path}",
        )
    elif train and (train[0].reverse or train[0].tag):
        yield Fault(
            ["data.train[0]", path],
            f"is what {path} is held out of, so it must have neither reverse nor tag; put a text "
            "as it is translated first",
        )


def _languages(config: Config) -> Iterator[Fault]:
    """Languages of texts must be told apart by tokens or tags."""
    data = config.data
    flows = corpora_and_flows(data)[1]
    languages = [*dict.fromkeys(flow.direction.tgt for flow in flows)]
    for path, entry in named_entries(data) if data.language_tokens and languages else ():
        # A set that is held out is in the languages of data.train[0].
        for text in texts_of(data, entry, path) if not isinstance(entry.split, int) else ():
            if (into := text.direction.tgt) not in languages and not path.startswith("data.train"):
                yield Fault(
                    [f"{path}.tgt_lang", "data.language_tokens"],
                    f"must be a language that data.train translates into "
                    f"({', '.join(languages)}), found {into}",
                )
    targets: dict[tuple[str, str | None], str] = {}
    for flow in flows if not data.language_tokens else ():
        src, tgt = flow.direction
        if (other := targets.setdefault((src, flow.tag), tgt)) != tgt:
            yield Fault(
                ["data.language_tokens", f"{flow.name}.tgt_lang"],
                f"must be true where {src} is translated into {other} and {tgt}, or nothing would "
                "tell the model which; set it, or give the texts a tag each",
            )
            return


def _symbols(config: Config) -> Iterator[Fault]:
    """User-defined symbols survive the normalisation of lines; a text's tag is one of them."""
    symbols, path = config.tokenizer.user_defined_symbols, "tokenizer.user_defined_symbols"
    for symbol in dict.fromkeys(symbols):
        is_word = symbol.split() == [symbol] and "\u2581" not in symbol
        reasons = {
            "each be there once": symbols.count(symbol) == 1,
            "not be special tokens or bytes": not SPECIAL_PIECE.fullmatch(symbol),
            "be texts without white space (or U+2581, its sign)": is_word,
            "be in Unicode's form NFC": symbol == unicodedata.normalize("NFC", symbol),
        }
        if broken := next((reason for reason, holds in reasons.items() if not holds), None):
            yield Fault([path], f"must {broken}, found {shown(symbol)}")
    keeps_vocabulary = config.train.init_from is not None and not config.train.new_vocabulary
    if config.tokenizer.model is not None or keeps_vocabulary:  # looked at when texts are encoded
        return
    for entry_path, entry in named_entries(config.data):
        if entry.tag and entry.tag not in symbols:
            yield Fault(
                [f"{entry_path}.tag", path, "train.init_from"],
                f"must be in {path}, which makes it one token, found {shown(entry.tag)}; add it "
                "there",
            )


def _vocabulary(config: Config) -> Iterator[Fault]:
    """A vocabulary has room for what each has; two have sides; the user's own is as it is."""
    tokenizer, train, data = config.tokenizer, config.train, config.data
    least, size = tokenizer.symbols, tokenizer.vocab_size
    if least > 4 and size != "auto" and size <= least:
        yield Fault(
            ["tokenizer.vocab_size", "tokenizer.byte_fallback", "tokenizer.user_defined_symbols"],
            f"must be above {least} ({256 * tokenizer.byte_fallback} bytes, "
            f"{len(tokenizer.user_defined_symbols)} user-defined symbols, 4 special tokens), "
            f"found {size}",
        )
    both_ways = [flow.name for flow in corpora_and_flows(data)[1] if flow.is_turned]
    both_ways += [f"data.stages[{n}]" for n, s in enumerate(data.stages or []) if s.both_directions]
    if both_ways and not tokenizer.joint:
        yield Fault(
            ["tokenizer.joint", "data.train", "data.stages"],
            f"must be true where training goes both ways ({both_ways[0]}), as either language is "
            "source and target then, found false; or train one way (set data.stages to null, if a "
            "recipe has both_directions)",
        )
    needs_second = tokenizer.model is not None and not tokenizer.joint
    if needs_second != (tokenizer.tgt_model is not None):
        wanted = "the target's model file" if needs_second else "null"
        yield Fault(
            ["tokenizer.tgt_model", "tokenizer.model", "tokenizer.joint"],
            f"must be {wanted} where tokenizer.model is {shown(tokenizer.model)} and "
            f"tokenizer.joint {shown(tokenizer.joint)}, found {shown(tokenizer.tgt_model)}",
        )
    for key in ("character_coverage", "user_defined_symbols", "split_digits"):
        default, value = type(tokenizer).model_fields[key].default, getattr(tokenizer, key)
        if tokenizer.model is not None and value != default:
            yield Fault(
                [f"tokenizer.{key}", "tokenizer.model"],
                f"must be left out with tokenizer.model, which is not trained again, found "
                f"{shown(value)}",
            )
    if tokenizer.model is not None and train.init_from is not None and not train.new_vocabulary:
        yield Fault(
            ["tokenizer.model", "train.init_from", "train.new_vocabulary"],
            "must be null with train.init_from, whose vocabulary is kept, found "
            f"{shown(tokenizer.model)}; set train.new_vocabulary to true to replace it",
        )
    if train.new_vocabulary and train.init_from is None:
        yield Fault(["train.new_vocabulary"], "must be false without train.init_from, found true")


def _training(config: Config) -> Iterator[Fault]:
    optim, train = config.optim, config.train
    if optim.schedule == "cosine" and optim.warmup_steps >= train.max_steps:
        yield Fault(
            ["optim.warmup_steps", "optim.schedule", "train.max_steps"],
            f"must be below train.max_steps ({train.max_steps}) with schedule cosine, "
            f"found {optim.warmup_steps}; lower it, or raise train.max_steps",
        )
    needs_peak = optim.schedule != "noam"  # which computes it from d_model
    if needs_peak != (optim.peak_lr is not None):
        yield Fault(
            ["optim.peak_lr", "optim.schedule"],
            f"must be {'a number' if needs_peak else 'null'} with schedule {optim.schedule}, "
            f"found {optim.peak_lr or shown(None)}",
        )
