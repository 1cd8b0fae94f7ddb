"""Values that each key allows but that cannot work together."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

from mt.config.messages import shown
from mt.config.plan import corpora_and_flows, texts_of
from mt.config.schema import Config, DataConfig, TextEntry

# Pieces with a meaning of their own in a SentencePiece model of mt.
SPECIAL_PIECE = re.compile("<pad>|<unk>|</?s>|<0x[0-9A-F]{2}>")
OF_PATH = ("format", "name", "delimiter", "quoting")  # keys that say how it is read


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
    model, tokens, longest = config.model, config.batch.tokens_per_batch, config.data.max_tokens
    if model.d_model % model.n_heads or model.d_model % 2:
        yield Fault(
            ["model.d_model", "model.n_heads"],
            f"must be even and a multiple of model.n_heads ({model.n_heads}), "
            f"found {model.d_model}",
        )
    for key, number, more in (
        ("model.max_positions", model.max_positions, 2),
        ("batch.tokens_per_batch", tokens, 1),
    ):
        if isinstance(number, int) and number < longest + more:
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


def _named(data: DataConfig) -> list[tuple[str, TextEntry]]:
    lists = {"train": data.train, "valid": data.valid, "test": data.test}
    return [(f"data.{key}[{i}]", each) for key in lists for i, each in enumerate(lists[key])]


def _entries(config: Config) -> Iterator[Fault]:
    """An entry has two files, or a path with sides; or a path with several directions."""
    train = config.data.train
    for path, entry in _named(config.data):
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
    languages = list(dict.fromkeys(flow.direction.tgt for flow in flows))
    for path, entry in _named(data) if data.language_tokens and languages else ():
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
        reasons = {
            "each be there once": symbols.count(symbol) == 1,
            "not be special tokens or bytes": not SPECIAL_PIECE.fullmatch(symbol),
            "be texts without white space (or U+2581, its sign)": symbol.split() == [symbol]
            and "\u2581" not in symbol,
            "be in Unicode's form NFC": symbol == unicodedata.normalize("NFC", symbol),
        }
        if broken := next((reason for reason, holds in reasons.items() if not holds), None):
            yield Fault([path], f"must {broken}, found {shown(symbol)}")
    keeps_vocabulary = config.train.init_from is not None and not config.train.new_vocabulary
    if config.tokenizer.model is not None or keeps_vocabulary:  # looked at when texts are encoded
        return
    for entry_path, entry in _named(config.data):
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
            f"must be {wanted} with tokenizer.model {shown(tokenizer.model)} and tokenizer.joint "
            f"{shown(tokenizer.joint)}, found {shown(tokenizer.tgt_model)}",
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


def _training(config: Config) -> Iterator[Fault]:
    optim, train = config.optim, config.train
    if optim.schedule == "cosine" and optim.warmup_steps >= train.max_steps:
        yield Fault(
            ["optim.warmup_steps", "optim.schedule", "train.max_steps"],
            f"must be below train.max_steps ({train.max_steps}) with schedule cosine, "
            f"found {optim.warmup_steps}",
        )
    needs_peak = optim.schedule != "noam"  # which computes it from d_model
    if needs_peak != (optim.peak_lr is not None):
        yield Fault(
            ["optim.peak_lr", "optim.schedule"],
            f"must be {'a number' if needs_peak else 'null'} with schedule {optim.schedule}, "
            f"found {optim.peak_lr or shown(None)}",
        )
