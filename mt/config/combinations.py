"""Values that each key allows but that cannot work together."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from inspect import signature
from typing import NamedTuple

from pydantic import BaseModel

from mt.config.messages import shown
from mt.config.plan import corpora_and_flows, texts_of
from mt.config.schema import (
    BatchConfig,
    DataConfig,
    ModelConfig,
    OptimConfig,
    TextEntry,
    TokenizerConfig,
    TrainConfig,
)

# Pieces with a meaning of their own in a SentencePiece model of mt.
SPECIAL_PIECE = re.compile("<pad>|<unk>|</?s>|<0x[0-9A-F]{2}>")


class Fault(NamedTuple):
    """A fault of a config. The message names the first path; `paths` are all involved."""

    paths: list[str]
    text: str


def combination_faults(sections: Mapping[str, BaseModel]) -> Iterator[Fault]:
    """Check all combinations: each takes the sections that its parameters name.

    Where one is not in `sections`, being invalid, the check is left out.
    """
    for check in _CHECKS:
        names = signature(check).parameters
        if sections.keys() >= names.keys():
            yield from check(*(sections[name] for name in names))


def _heads(model: ModelConfig) -> Iterator[Fault]:
    if model.d_model % model.n_heads or model.d_model % 2:
        yield Fault(
            ["model.d_model", "model.n_heads"],
            f"must be even and a multiple of model.n_heads ({model.n_heads}), "
            f"found {model.d_model}",
        )


def _positions(model: ModelConfig, data: DataConfig) -> Iterator[Fault]:
    """A training sentence has data.max_tokens, bos and eos."""
    least = data.max_tokens + 2
    if model.max_positions < least:
        yield Fault(
            ["model.max_positions", "data.max_tokens"],
            f"must be at least data.max_tokens + 2 ({least}), found {model.max_positions}",
        )


def _longest_pair(batch: BatchConfig, data: DataConfig) -> Iterator[Fault]:
    """A batch takes the longest pair: data.max_tokens and one special token."""
    least = data.max_tokens + 1
    if isinstance(batch.tokens_per_batch, int) and batch.tokens_per_batch < least:
        yield Fault(
            ["batch.tokens_per_batch", "data.max_tokens"],
            f"must be at least data.max_tokens + 1 ({least}), found {batch.tokens_per_batch}",
        )


def _cases(data: DataConfig) -> Iterator[Fault]:
    stages = enumerate(data.stages or [])
    augments = {f"data.stages[{n}].augment": stage.augment for n, stage in stages}
    for path, shares in {"data.augment": data.augment, **augments}.items():
        if shares is not None and (total := shares.caps + shares.title + shares.lower) > 1:
            text = f"must be at most 1 together with title and lower, found {total:g}"
            yield Fault([f"{path}.{key}" for key in ("caps", "title", "lower")], text)


def _stages(data: DataConfig) -> Iterator[Fault]:
    """All stages but the last one end, and each has pairs."""
    stages = data.stages or []
    n_texts = len(corpora_and_flows(data)[1])
    for number, stage in enumerate(stages):
        path = f"data.stages[{number}]"
        until = stage.until.model_dump(exclude_none=True) if stage.until else {}
        if number + 1 < len(stages) and not until:
            yield Fault(
                [f"{path}.until"],
                "must say where the stage ends, as another one follows, found nothing; add "
                "{updates: 2000} or {share: 0.2}",
            )
        elif stage.until is not None and number + 1 == len(stages):
            yield Fault([f"{path}.until"], "must be null in the last stage, which has no end")
        elif len(until) == 2:
            yield Fault(
                [f"{path}.until.share"],
                f"must stand without updates, found {until['share']:g}; leave one of them out",
            )
        if stage.weights is not None and len(stage.weights) != n_texts:
            yield Fault(
                [f"{path}.weights", "data.train"],
                f"must have a number for each of the {n_texts} texts of data.train, found "
                f"{len(stage.weights)}; 0 leaves a text out",
            )
        elif stage.weights is not None and not any(stage.weights):
            yield Fault([f"{path}.weights"], "must be above 0 for one text at least, found none")


def named_sources(data: DataConfig) -> list[tuple[str, TextEntry]]:
    """Every entry of texts with its path, such as `data.train[0]`."""
    lists = {"train": data.train, "valid": data.valid, "test": data.test}
    return [(f"data.{key}[{i}]", each) for key in lists for i, each in enumerate(lists[key])]


def _sides(data: DataConfig) -> Iterator[Fault]:
    """An entry has two files, or a path with sides; or a path with several directions."""
    for path, source in named_sources(data):
        if isinstance(source.split, int):
            yield from _held_out(path, source, data.train)
            continue
        for side in ("src", "tgt"):
            if getattr(source, side) is None and source.path is None:
                yield Fault(
                    [f"{path}.{side}"],
                    "is required: name a text file; or, with path, a file of pairs, or what both "
                    "files have in common",
                )
        sides = (source.src, source.tgt, source.src_lang, source.tgt_lang, source.reverse)
        if source.directions and (not source.path or any(sides)):
            yield Fault(
                [f"{path}.directions", f"{path}.path"],
                "stands with path, and without src, tgt, src_lang, tgt_lang and reverse, which it "
                "says for each direction; name what the files have in common with path",
            )


def _held_out(path: str, entry: TextEntry, train: list[TextEntry]) -> Iterator[Fault]:
    """A set that is held out has no other key, and the training texts a direction each."""
    if path.startswith("data.train"):
        yield Fault([f"{path}.split"], f"must be text, found {entry.split}; remove it")
    elif len(entry.model_dump(exclude_defaults=True)) > 1:
        yield Fault(
            [path],
            "is held out of data.train, and has no other key; write "
            f"{{split: {entry.split}}} alone",
        )
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


def _misplaced(data: DataConfig) -> Iterator[Fault]:
    """Keys that say how `path` is read, and keys that only training has."""
    of_path = {"name": "configuration of a data set", "tags": "treatment of inline tags in path"}
    of_path |= {key: f"{key} of path" for key in ("format", "delimiter", "quoting")}
    for path, source in named_sources(data):
        for key, value in source.model_dump(exclude_defaults=True).items():
            place = f"{path}.{key}"
            if key in of_path and not source.path:
                text = f"is the {of_path[key]}, found {shown(value)} without path; add path"
                yield Fault([place, f"{path}.path"], text)
            elif key in ("tag", "reverse", "weight") and not path.startswith("data.train"):
                yield Fault([place], f"is for data.train, found {shown(value)}; remove it")


def _languages(data: DataConfig) -> Iterator[Fault]:
    """Languages of texts must be told apart by tokens or tags."""
    flows = corpora_and_flows(data)[1]
    languages = list(dict.fromkeys(flow.direction.tgt for flow in flows))
    if data.language_tokens:
        for path, source in named_sources(data) if languages else ():
            if isinstance(source.split, int):  # it is in the languages of data.train[0]
                continue
            for text in texts_of(data, source, path):
                into = text.direction.tgt
                if not path.startswith("data.train") and into not in languages:
                    yield Fault(
                        [f"{path}.tgt_lang", "data.language_tokens"],
                        f"must be a language that data.train translates into "
                        f"({', '.join(languages)}), found {into}",
                    )
        return
    targets: dict[tuple[str, str | None], str] = {}
    for flow in flows:
        src, tgt = flow.direction
        if (other := targets.setdefault((src, flow.tag), tgt)) != tgt:
            yield Fault(
                ["data.language_tokens", f"{flow.name}.tgt_lang"],
                f"must be true where {src} is translated into {other} and {tgt}, or nothing would "
                "tell the model which; set it, or give the texts a tag each",
            )
            return


def _tags(data: DataConfig, tokenizer: TokenizerConfig, train: TrainConfig) -> Iterator[Fault]:
    keeps_vocabulary = train.init_from is not None and not train.new_vocabulary
    if tokenizer.model is not None or keeps_vocabulary:  # looked at when texts are encoded
        return
    for path, source in named_sources(data):
        if source.tag and source.tag not in tokenizer.user_defined_symbols:
            yield Fault(
                [f"{path}.tag", "tokenizer.user_defined_symbols"],
                "must be in tokenizer.user_defined_symbols, which makes it one token, found "
                f"{shown(source.tag)}; add it there",
            )


def _directions(data: DataConfig, tokenizer: TokenizerConfig) -> Iterator[Fault]:
    if tokenizer.joint:
        return
    for flow in corpora_and_flows(data)[1]:
        if flow.is_turned and flow.name.endswith(")"):  # of several directions
            yield Fault(
                [f"{flow.name.partition(' ')[0]}.directions", "tokenizer.joint"],
                "must not be both ways of a text with tokenizer.joint: false, found "
                f"{flow.direction} and {flow.direction.turned}; set tokenizer.joint to true, or "
                "remove one of them",
            )
    turned = [f"data.train[{n}].reverse" for n, entry in enumerate(data.train) if entry.reverse]
    stages = enumerate(data.stages or [])
    turned += [f"data.stages[{n}].both_directions" for n, stage in stages if stage.both_directions]
    for path in turned:
        yield Fault(
            [path, "tokenizer.joint"],
            "must be false with tokenizer.joint: false, as either language is source and target "
            "then, found true; set tokenizer.joint to true, or this to false (or data.stages to "
            "null, if a recipe has both_directions)",
        )


def _vocabulary(tokenizer: TokenizerConfig) -> Iterator[Fault]:
    least = tokenizer.symbols
    if least > 4 and tokenizer.vocab_size != "auto" and tokenizer.vocab_size <= least:
        parts = ["256 bytes"] if tokenizer.byte_fallback else []
        if symbols := len(tokenizer.user_defined_symbols):
            parts.append(f"{symbols} user-defined symbols")
        yield Fault(
            ["tokenizer.vocab_size", "tokenizer.byte_fallback", "tokenizer.user_defined_symbols"],
            f"must be above {least} ({', '.join(parts)}, 4 special tokens)"
            + (" with byte_fallback" if tokenizer.byte_fallback else "")
            + f", found {tokenizer.vocab_size}",
        )


def _symbols(tokenizer: TokenizerConfig) -> Iterator[Fault]:
    """User-defined symbols must survive the normalisation of lines and differ from other tokens."""
    path = "tokenizer.user_defined_symbols"
    seen: set[str] = set()
    for symbol in tokenizer.user_defined_symbols:
        if symbol in seen:
            yield Fault([path], f"must each be there once, found {shown(symbol)} twice")
        seen.add(symbol)
        if SPECIAL_PIECE.fullmatch(symbol):
            yield Fault([path], f"must not be special tokens or bytes, found {shown(symbol)}")
        elif len(symbol.split()) != 1 or "\u2581" in symbol or symbol != symbol.strip():
            yield Fault(
                [path],
                f"must be texts without white space (or U+2581, its sign), found {shown(symbol)}",
            )
        elif symbol != unicodedata.normalize("NFC", symbol):
            yield Fault([path], f"must be in Unicode's form NFC, found {shown(symbol)}")


def _own_tokenizer(tokenizer: TokenizerConfig) -> Iterator[Fault]:
    """A model of the user's own for each vocabulary, and no settings for training one."""
    if tokenizer.model is None:
        if tokenizer.tgt_model is not None:
            yield Fault(
                ["tokenizer.tgt_model", "tokenizer.model"],
                "must be null without tokenizer.model, "
                f"found {shown(tokenizer.tgt_model)}; name both files",
            )
        return
    if tokenizer.joint != (tokenizer.tgt_model is None):
        required = (
            "null with joint: true (one vocabulary for both languages)"
            if tokenizer.joint
            else "the model file of the target with joint: false (tokenizer.model is the source's)"
        )
        yield Fault(
            ["tokenizer.tgt_model", "tokenizer.model", "tokenizer.joint"],
            f"must be {required}, found {shown(tokenizer.tgt_model)}",
        )
    settings = {"character_coverage": "null", "user_defined_symbols": "[]", "split_digits": "true"}
    for key, default in settings.items():
        if (value := getattr(tokenizer, key)) != type(tokenizer).model_fields[key].default:
            yield Fault(
                [f"tokenizer.{key}", "tokenizer.model"],
                f"must be {default} with tokenizer.model, which is not trained again, "
                f"found {shown(value)}",
            )


def _kept_vocabulary(tokenizer: TokenizerConfig, train: TrainConfig) -> Iterator[Fault]:
    if tokenizer.model is not None and train.init_from is not None and not train.new_vocabulary:
        yield Fault(
            ["tokenizer.model", "train.init_from", "train.new_vocabulary"],
            "must be null with train.init_from, whose vocabulary is kept, found "
            f"{shown(tokenizer.model)}; set train.new_vocabulary to true to replace it",
        )


def _warmup(optim: OptimConfig, train: TrainConfig) -> Iterator[Fault]:
    if optim.schedule == "cosine" and optim.warmup_steps >= train.max_steps:
        yield Fault(
            ["optim.warmup_steps", "optim.schedule", "train.max_steps"],
            f"must be below train.max_steps ({train.max_steps}) with schedule cosine, "
            f"found {optim.warmup_steps}",
        )


def _peak(optim: OptimConfig) -> Iterator[Fault]:
    """The schedule noam computes its peak from d_model; all others need one."""
    needs_peak = optim.schedule != "noam"
    if needs_peak != (optim.peak_lr is not None):
        yield Fault(
            ["optim.peak_lr", "optim.schedule"],
            f"must be {'a number' if needs_peak else 'null'} with schedule {optim.schedule}, "
            f"found {optim.peak_lr or shown(None)}",
        )


def _new_vocabulary(train: TrainConfig) -> Iterator[Fault]:
    if train.new_vocabulary and train.init_from is None:
        yield Fault(
            ["train.new_vocabulary", "train.init_from"],
            "must be false without train.init_from, found true; "
            "training from scratch always learns a vocabulary",
        )


_CHECKS: tuple[Callable[..., Iterator[Fault]], ...] = (
    _heads, _positions, _longest_pair, _cases, _misplaced, _stages, _languages, _tags,
    _sides, _directions, _vocabulary, _symbols, _own_tokenizer, _warmup, _peak, _new_vocabulary,
    _kept_vocabulary,
)  # fmt: skip
