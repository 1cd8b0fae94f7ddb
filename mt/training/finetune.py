"""Fine-tuning: initial weights from another model, vocabulary transfer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mt.config.schema import Config, shape_keys, vocabulary_keys
from mt.config.settled import with_shape_of
from mt.data.tokens.tokenizer import BYTE, EOS, Tokenizer
from mt.errors import CheckpointError, ConfigError, MtError
from mt.model.checkpoint import LoadedModel, load_model
from mt.model.transformer import Transformer
from mt.runs.model_folder import WEIGHTS, find_model
from mt.terminal import Say


def load_base(config: Config) -> LoadedModel | None:
    """Load the model that `train.init_from` names whole, as `--fresh` may rename its folder.

    Raises CheckpointError if it cannot be read, ConfigError with all keys by which it does not fit.
    """
    if config.train.init_from is None:
        return None
    name = f"train.init_from {config.train.init_from}"
    folder = find_model(Path(config.train.init_from).expanduser(), "train.init_from")
    try:
        base = load_model(folder)
        _ = base.styles  # read while the folder has its name
    except MtError as error:
        raise CheckpointError(f"{name}: {error}") from error
    shaped = with_shape_of(config, base.config)
    if reasons := list(_mismatches(shaped, base.config)):
        raise ConfigError("\n".join(f"{name}: {reason}" for reason in reasons))
    return base


def _mismatches(here: Config, there: Config) -> Iterator[str]:
    # Which embeddings are tied is checked below: some can be untied.
    shape = [key for key in shape_keys() if key != "model.tie_embeddings"]
    remedy = "set what differs to the value there"
    if differing := _differing(shape, here, there):
        yield f"weights only fit a model of the same shape, but {differing}; {remedy}"
    tied, tied_there = here.model.tie_embeddings, there.model.tie_embeddings
    two = "are two matrices there, and one matrix cannot be initialised from two; set"
    kept = [*vocabulary_keys(), *["data.language_tokens"] * there.data.language_tokens]
    if not here.train.new_vocabulary and (differing := _differing(kept, here, there)):
        yield (
            f"its vocabulary is kept, but {differing}; {remedy}, or train.new_vocabulary to true "
            "to train another vocabulary on this data"
        )
    elif tied and here.tokenizer.joint and tied_there > there.tokenizer.joint:
        yield f"source and target embedding {two} tokenizer.joint or model.tie_embeddings to false"
    if tied > tied_there:
        yield f"target embedding and output {two} model.tie_embeddings to false"


def _differing(keys: Sequence[str], here: Config, there: Config) -> str:
    """`model.d_model is 512 there and 256 here` for every key that differs."""

    def shown(value: object) -> str:
        return json.dumps(value, ensure_ascii=False).strip('"')

    return ", ".join(
        f"{key} is {shown(there.value(key))} there and {shown(here.value(key))} here"
        for key in keys
        if there.value(key) != here.value(key) != "auto"
    )


@torch.no_grad()
def load_initial_weights(
    model: Transformer, tokenizer: Tokenizer, source: LoadedModel, say: Say
) -> dict[str, Any]:
    """Copy the weights of `source` into `model`, embeddings and output by vocabulary transfer.

    A piece that both vocabularies have keeps its row: special tokens match by id, others by text. A
    new piece gets the mean row of the old pieces that spell it (Mosin et al., 2023, "Fine-tuning
    transformers: Vocabulary transfer"), or stays random if none do.

    Returns folder, step and checksum of `source`, and where it was imported from, if it was.
    """
    step = source.meta.get("step")
    update = f", update {step:,}" if isinstance(step, int) else ""
    say(f"initial weights from {source.folder}{update}")
    matches = {
        "source": _match_rows(tokenizer.src.all_pieces(), source.tokenizer.src.all_pieces()),
        "target": _match_rows(tokenizer.tgt.all_pieces(), source.tokenizer.tgt.all_pieces()),
    }
    is_joint = tokenizer.joint and source.tokenizer.joint
    for side, match in {"joint": matches["target"]}.items() if is_joint else matches.items():
        say(f"{side} vocabulary: {match}")
    old_parameters = dict(source.model.named_parameters(remove_duplicate=False))
    for name, parameter in model.named_parameters():
        old = old_parameters[name]
        if name == "src_embedding.tokens.weight":
            matches["source"].transfer(parameter, old)
        elif name in ("tgt_embedding.tokens.weight", "output.weight", "output.bias"):
            matches["target"].transfer(parameter, old)
        elif name.endswith("positions"):
            n = min(len(parameter), len(old))
            parameter[:n].copy_(old[:n])
            if n < len(parameter):
                say(f"{name}: positions from {n:,} on stay random, max_positions was {n:,}")
        else:
            parameter.copy_(old)
    origin = {"folder": str(source.folder), "step": step, "sha256": source.meta["sha256"][WEIGHTS]}
    return origin | ({"imported": source.meta["imported"]} if "imported" in source.meta else {})


@dataclass(frozen=True)
class _RowMatch:
    """Which rows of an old embedding matrix initialise the rows of a new one."""

    kept: list[tuple[int, int]]  # (new id, old id)
    spelled: list[tuple[int, list[int]]]  # (new id, ids of the old pieces that spell it, if any)
    dropped: int  # old pieces that the new vocabulary lacks

    def __str__(self) -> str:
        random = sum(not ids for _, ids in self.spelled)
        kept, new = len(self.kept), len(self.spelled)
        text = f"{kept:,} pieces kept, {new:,} new, {self.dropped:,} dropped"
        return text + f"; {random:,} of the new ones stay random" * (random > 0)

    def transfer(self, new: Tensor, old: Tensor) -> None:
        """Fill `new` (V_new, ...) from `old` (V_old, ...)."""
        new_ids, old_ids = (torch.tensor(ids) for ids in zip(*self.kept, strict=True))
        new[new_ids.to(new.device)] = old[old_ids].to(new)
        for row, ids in self.spelled:
            if ids:
                new[row] = old[ids].mean(0).to(new)


def _match_rows(new: Sequence[str], old: Sequence[str]) -> _RowMatch:
    special = EOS + 1
    ids = {piece: i for i, piece in enumerate(old) if i >= special}
    kept = [(i, i) for i in range(special)]
    pieces = list(enumerate(new[special:], start=special))
    kept += [(row, ids[piece]) for row, piece in pieces if piece in ids]
    others = [(row, piece) for row, piece in pieces if piece not in ids]
    spelled = [(row, [] if BYTE.fullmatch(piece) else _spell(piece, ids)) for row, piece in others]
    return _RowMatch(kept, spelled, len(old) - len(kept))


def _spell(piece: str, ids: Mapping[str, int]) -> list[int]:
    """Ids of the old pieces that spell a text, longest match first; else a character's bytes."""
    spelled: list[int] = []
    start = 0
    while start < len(piece):
        end = next((end for end in range(len(piece), start, -1) if piece[start:end] in ids), None)
        bytes_of_character = [f"<0x{value:02X}>" for value in piece[start].encode()]
        parts = bytes_of_character if end is None else [piece[start:end]]
        spelled += [ids[part] for part in parts if part in ids]
        start = end or start + 1
    return spelled
