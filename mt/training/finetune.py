"""What a run starts from: the weights of another run (fine-tuning), and the parts that keep what they start with.

Where the vocabulary is another one, embeddings and output matrix are carried over piece by piece.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mt.config.schema import Config
from mt.data.tokenizer import EOS, Tokenizer
from mt.errors import CheckpointError, ConfigError, MtError
from mt.model.checkpoint import WEIGHTS, LoadedModel, find_model, load_model
from mt.model.transformer import Transformer

# Names of the parameters of each part that `train.freeze` can name. A layer norm belongs to what it surrounds.
PARTS = {
    "source_embedding": r"src_embedding\.",
    "target_embedding": r"tgt_embedding\.",
    "output": r"output\.",
    "encoder": r"encoder(_norm)?\.",
    "decoder": r"decoder(_norm)?\.",
    "self_attention": r"..coder\.\d+\.(around_)?(self_)?attention\.",
    "cross_attention": r"..coder\.\d+\.(around_)?cross_attention\.",
    "feed_forward": r"..coder\.\d+\.(around_)?feed_forward\.",
}
# What may differ from the model that the weights are of, besides dropout of any kind. Any other key of the section
# `model`, and these of `tokenizer`, decide a shape or what a weight means.
FREE_OF_MODEL = {"tie_embeddings", "max_positions"}
OF_VOCABULARY = ("vocab_size", "type", "joint", "byte_fallback")


# --- looking before anything is written -------------------------------------------------------


def resolve_init_from(config: Config) -> LoadedModel | None:
    """The model that `train.init_from` names, None without; read whole, so that its run may change meanwhile.

    Raises CheckpointError where it cannot be read, ConfigError with all that differs where its weights cannot be
    carried over, and where `train.freeze` cannot work.
    """
    if config.train.freeze:
        with torch.device("meta"):  # the vocabulary's size makes no difference
            freeze(Transformer(config.model, 4, 4, config.tokenizer.joint), config.train.freeze)
    if config.train.init_from is None:
        return None
    name = f"train.init_from {config.train.init_from}"
    folder = find_model(Path(config.train.init_from), "train.init_from")
    try:
        source = load_model(folder)
    except MtError as error:
        raise CheckpointError(f"{name}: {error}") from error
    if faults := list(_faults(config, source.config)):
        raise ConfigError("\n".join(f"{name}: {fault}" for fault in faults))
    return source


def _faults(here: Config, there: Config) -> Iterator[str]:
    """Why weights of a model of `there` cannot become those of a model of `here`."""
    keys = [
        key
        for key in type(here.model).model_fields
        if key not in FREE_OF_MODEL and "drop" not in key
    ]
    if differing := _differing("model", keys, here, there):
        yield f"weights go into a model of the same make only, but {differing}; set what differs as it is there"
    if not here.train.new_vocabulary and (
        differing := _differing("tokenizer", OF_VOCABULARY, here, there)
    ):
        yield (
            f"its vocabulary is kept, but {differing}; set what differs as it is there, or train.new_vocabulary to "
            "true to learn another vocabulary from this data"
        )
    elif (
        here.model.tie_embeddings
        and here.tokenizer.joint
        and there.model.tie_embeddings > there.tokenizer.joint
    ):
        yield (
            "source and target embedding are two matrices there, and one cannot take over two; set tokenizer.joint "
            "or model.tie_embeddings to false"
        )
    if here.model.tie_embeddings > there.model.tie_embeddings:
        yield (
            "target embedding and output are two matrices there, and one cannot take over two; set "
            "model.tie_embeddings to false"
        )


def _differing(section: str, keys: Sequence[str], here: Config, there: Config) -> str:
    """`model.d_model is 512 there and 256 here`, one after the other; empty where nothing differs."""
    ours, theirs = (config.model_dump(mode="json")[section] for config in (here, there))
    return ", ".join(
        f"{section}.{key} is {_yaml(theirs[key])} there and {_yaml(ours[key])} here"
        for key in keys
        if theirs[key] != ours[key]
    )


def _yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- frozen parts -----------------------------------------------------------------------------


def freeze(
    model: nn.Module, parts: Sequence[str], say: Callable[[str], None] | None = None
) -> None:
    """Take the parameters of these parts out of training; to be called before the optimiser is built.

    Raises ConfigError where a part is one with another that learns, or where nothing is left to learn. What it is
    good for: Thompson et al. (2018), "Freezing Subnetworks to Analyze Domain Adaptation in NMT".
    """
    if not parts:
        return
    frozen = re.compile("|".join(PARTS[part] for part in parts))
    learning: dict[int, str] = {}  # parameters by identity, as tied ones have several names
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if not frozen.match(name):
            learning[id(parameter)] = _part(name)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if not frozen.match(name):
            continue
        if id(parameter) in learning:
            raise ConfigError(
                f"train.freeze: {_part(name)} is one matrix with {learning[id(parameter)]} here (model.tie_embeddings, "
                "tokenizer.joint), and cannot be frozen without it; add that, or set model.tie_embeddings to false"
            )
        parameter.requires_grad_(False)
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    if not any(learns for _, learns in sizes):
        raise ConfigError(
            f"train.freeze: must leave something to learn, found {', '.join(parts)}; take a part out"
        )
    if say is not None:
        left = sum(size for size, learns in sizes if learns)
        say(
            f"frozen: {', '.join(parts)}; {left:,} of {sum(size for size, _ in sizes):,} weights learn"
        )


def _part(name: str) -> str:
    """The first part that a parameter belongs to."""
    return next(part for part, pattern in PARTS.items() if re.match(pattern, name))


# --- first weights ----------------------------------------------------------------------------


@torch.no_grad()
def load_initial_weights(
    model: Transformer, tokenizer: Tokenizer, source: LoadedModel, say: Callable[[str], None]
) -> dict[str, Any]:
    """Give `model` the weights of `source`, embeddings and output by piece; what the manifest says about them.

    A piece that the vocabulary of `source` has takes its row over, a special token by its id, any other by its
    text. A new piece starts from the mean of the old pieces that spell it (Mosin et al., 2023, "Fine-tuning
    transformers: Vocabulary transfer"), or at random where none does.
    """
    step = source.meta.get("step")
    say(
        f"starts with the weights of {source.folder}"
        + (f", update {step:,}" if isinstance(step, int) else "")
    )
    pairs = {
        "source": _match_rows(_src_pieces(tokenizer), _src_pieces(source.tokenizer)),
        "target": _match_rows(_tgt_pieces(tokenizer), _tgt_pieces(source.tokenizer)),
    }
    one = tokenizer.joint and source.tokenizer.joint
    for side, carried in pairs.items() if not one else [("joint", pairs["target"])]:
        say(f"{side} vocabulary: {carried}")
    before = dict(source.model.named_parameters(remove_duplicate=False))
    for name, parameter in model.named_parameters():
        old = before[name]
        if name == "src_embedding.tokens.weight":
            pairs["source"].rows(parameter, old)
        elif name in ("tgt_embedding.tokens.weight", "output.weight", "output.bias"):
            pairs["target"].rows(parameter, old)
        elif name.endswith("positions"):
            n = min(len(parameter), len(old))
            parameter[:n].copy_(old[:n])
            if n < len(parameter):
                say(f"{name}: positions from {n:,} on start at random, max_positions was {n:,}")
        else:
            parameter.copy_(old)
    return {"folder": str(source.folder), "step": step, "sha256": source.meta["sha256"][WEIGHTS]}


@dataclass(frozen=True)
class _RowMatch:
    """Which rows of an old matrix make those of a new one: (new id, old ids), their mean."""

    kept: list[tuple[int, int]]
    spelled: list[tuple[int, list[int]]]  # new pieces; without old ids where nothing spells them
    dropped: int

    def __str__(self) -> str:
        blank = sum(not ids for _, ids in self.spelled)
        text = (
            f"{len(self.kept):,} pieces kept, {len(self.spelled):,} new, {self.dropped:,} dropped"
        )
        return text + (f"; {blank:,} of the new ones start at random" if blank else "")

    def rows(self, new: Tensor, old: Tensor) -> None:
        """Fill `new` (V_new, ...) from `old` (V_old, ...)."""
        here, there = (torch.tensor(ids) for ids in zip(*self.kept, strict=True))
        new[here.to(new.device)] = old[there].to(new)
        for row, ids in self.spelled:
            if ids:
                new[row] = old[ids].mean(0).to(new)


def _src_pieces(tokenizer: Tokenizer) -> list[str]:
    return tokenizer.src_pieces_of(list(range(tokenizer.src_vocab_size)))


def _tgt_pieces(tokenizer: Tokenizer) -> list[str]:
    return tokenizer.tgt_pieces_of(list(range(tokenizer.tgt_vocab_size)))


def _match_rows(new: Sequence[str], old: Sequence[str]) -> _RowMatch:
    """The pieces of two vocabularies, by id, put side by side. A byte's piece is no text that others could spell."""
    special = EOS + 1
    ids = {piece: i for i, piece in enumerate(old) if i >= special}
    kept, spelled = [(i, i) for i in range(special)], []
    for row, piece in enumerate(new[special:], start=special):
        if piece in ids:
            kept.append((row, ids[piece]))
        else:
            spelled.append(
                (row, [] if re.fullmatch("<0x[0-9A-F]{2}>", piece) else _spell(piece, ids))
            )
    return _RowMatch(kept, spelled, len(old) - len(kept))


def _spell(piece: str, ids: Mapping[str, int]) -> list[int]:
    """The old pieces that make up a text, the longest that fits first; a character that is none by its bytes."""
    found, start = list[int](), 0
    while start < len(piece):
        end = next((end for end in range(len(piece), start, -1) if piece[start:end] in ids), None)
        if end is None:
            end = start + 1
            found += [
                ids[byte] for value in piece[start].encode() if (byte := f"<0x{value:02X}>") in ids
            ]
        else:
            found.append(ids[piece[start:end]])
        start = end
    return found
