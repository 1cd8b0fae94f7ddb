"""Vocabularies of Marian folders: `source.spm`, `target.spm`, `vocab.json`, `target_vocab.json`.

`vocab.json` gives the id of each piece; an id is also the row of the piece in the embeddings. Ours
have pad, unk, bos and eos first, so an import reorders the rows.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mt.data.tokens.sentencepiece_model import SPECIAL_PIECES, write_vocabularies
from mt.data.tokens.tokenizer import BOS, Tokenizer
from mt.interop.normalization import with_normalization
from mt.model.checkpoint import LoadedModel

MODELS = SOURCE_MODEL, TARGET_MODEL = "source.spm", "target.spm"
VOCABULARY, TARGET_VOCABULARY = "vocab.json", "target_vocab.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
TOKENIZER_FILES = (TOKENIZER_CONFIG, VOCABULARY, TARGET_VOCABULARY, *MODELS)


class Vocabulary(NamedTuple):
    """The pieces of one side by our ids, and the row of each in the embeddings of the folder."""

    pieces: list[str]
    rows: list[int]


class MarianTokenizer(NamedTuple):
    """The tokenizer of a Marian folder, as ours."""

    tokenizer: Tokenizer
    source: Vocabulary
    target: Vocabulary
    settings: Mapping[str, Any]  # tokenizer_config.json


# --- reading ----------------------------------------------------------------------------------


def read_tokenizer(
    folder: Path,
    config: Mapping[str, Any],
    faults: list[str],
    never_output: Collection[int] = frozenset(),
) -> MarianTokenizer | None:
    """Read the tokenizer of a Marian folder with this `config.json`, defaults filled in.

    What cannot be used is added to `faults`; None if there are some, also from before. Of the rows
    `never_output`, those without a piece are left out where there are two vocabularies.
    """
    settings = read_json(folder / TOKENIZER_CONFIG, faults, optional=True)
    joint = bool(config["share_encoder_decoder_embeddings"])
    separate = bool(settings.get("separate_vocabs", (folder / TARGET_VOCABULARY).exists()))
    if joint and separate:
        faults.append(
            f"{TARGET_VOCABULARY}: the two vocabularies differ, but config.json has "
            "share_encoder_decoder_embeddings true"
        )
    unk = settings.get("unk_token", SPECIAL_PIECES[1])
    unk = str(unk.get("content") if isinstance(unk, dict) else unk)
    names = ("pad_token_id", "decoder_start_token_id", "eos_token_id")
    pad, start, eos = (config[name] for name in names)
    special = (pad, start if joint else None, eos)
    # Marian models, of which both sides have one size, may name fewer pieces on purpose.
    fillers = range(config["vocab_size"]) if never_output and not joint else ()
    source = _vocabulary(folder / VOCABULARY, config["vocab_size"], unk, special, faults, fillers)
    target = source
    if not joint:
        path = folder / (TARGET_VOCABULARY if separate else VOCABULARY)
        size, special = config["decoder_vocab_size"], (pad, start, eos)
        target = _vocabulary(path, size, unk, special, faults, never_output)
    models = []
    for name in MODELS:
        try:
            models.append((folder / name).read_bytes())
        except OSError as error:
            faults.append(f"{name}: {error.strerror}")
    if faults:
        return None
    vocabulary = write_vocabularies(source.pieces, None if joint else target.pieces)
    try:
        tokenizer = Tokenizer(models[0], models[1], vocabulary)
    except (RuntimeError, ValueError):
        faults.append(f"{SOURCE_MODEL} or {TARGET_MODEL}: damaged, SentencePiece cannot read it")
        return None
    return MarianTokenizer(tokenizer, source, target, settings)


def read_json(path: Path, faults: list[str], optional: bool = False) -> dict[str, Any]:
    """The mapping in a JSON file; {} after adding to `faults` if that fails."""
    if optional and not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair is no text
        if isinstance(value, dict):
            return value
        fault = f"must be a JSON object, found a {type(value).__name__}"
    except OSError as error:
        fault = str(error.strerror)
    except (ValueError, RecursionError) as error:  # not JSON, or not UTF-8
        fault = f"is not JSON ({error})"
    faults.append(f"{path.name}: {fault}")
    return {}


def filler_piece(row: int) -> str:
    """The piece of a row that no piece of the folder names."""
    return f"<row {row}>"


def _vocabulary(
    path: Path, size: int, unk: str, special: tuple[int, int | None, int],
    faults: list[str], fillers: Collection[int],
) -> Vocabulary:  # fmt: skip
    """Pieces and rows by our ids; `special`: their ids of pad, the decoder's start, and eos.

    `<s>` is the start of a side without one, or pad. A row that no piece names gets a piece that no
    text contains, unless it is one of `fillers`.
    """
    n_before = len(faults)
    ids = read_json(path, faults)
    taken = {value for value in ids.values() if type(value) is int and 0 <= value < size}
    pad, start, eos = special
    start = ids.get(SPECIAL_PIECES[BOS], pad) if start is None else start
    if len(faults) > n_before:
        pass  # it cannot be read
    elif len(taken) != len(ids):
        faults.append(
            f"{path.name}: ids must be different whole numbers below {size:,}, the number of rows "
            f"of the embeddings; {len(ids) - len(taken):,} of {len(ids):,} are not"
        )
    elif unk not in ids:
        faults.append(f"{path.name}: the piece {unk} is missing")
    elif not all(0 <= row < size for row in (pad, start, eos)):
        faults.append(
            f"config.json: pad_token_id, decoder_start_token_id and eos_token_id must be ids of "
            f"{path.name}, 0 to {size - 1:,}, found {pad}, {start} and {eos}"
        )
    if faults:  # `size` may be any number then
        return Vocabulary([], [])
    ids |= {filler_piece(row): row for row in set(range(size)) - taken if row not in fillers}
    rows = [pad, ids[unk], start, eos]
    pieces = list(SPECIAL_PIECES)
    for piece, row in sorted(ids.items(), key=lambda item: item[1]):
        is_bos = row == start and piece == SPECIAL_PIECES[BOS]
        if row not in (pad, ids[unk], eos) and not is_bos:
            # Such as </s> where another piece is the end; the number keeps the pieces different.
            pieces.append(f"{piece} {row}" if piece in SPECIAL_PIECES else piece)
            rows.append(row)
    return Vocabulary(pieces, rows)


# --- writing ----------------------------------------------------------------------------------


def write_tokenizer(loaded: LoadedModel, folder: Path) -> None:
    """Write the tokenizer as transformers' `MarianTokenizer` reads it, with our ids."""
    tokenizer, data = loaded.tokenizer, loaded.config.data
    (folder / SOURCE_MODEL).write_bytes(with_normalization(tokenizer.models[0]))
    (folder / TARGET_MODEL).write_bytes(with_normalization(tokenizer.models[-1]))
    special = zip(("pad", "unk", "bos", "eos"), SPECIAL_PIECES, strict=True)
    source = tokenizer.src.all_pieces()
    target = source if tokenizer.joint else tokenizer.tgt.all_pieces()
    for code, number in tokenizer.languages_of(loaded.data).items():
        source[number] = f">>{code}<<"  # which Marian's tokenizer knows
    contents: dict[str, dict[str, Any]] = {
        VOCABULARY: {piece: number for number, piece in enumerate(source)},
        TARGET_VOCABULARY: {piece: number for number, piece in enumerate(target)},
        TOKENIZER_CONFIG: {
            "tokenizer_class": "MarianTokenizer",
            "source_lang": data.src_lang,
            "target_lang": data.tgt_lang,
            "separate_vocabs": not tokenizer.joint,
            "model_max_length": loaded.model.config.max_positions,
            "split_special_tokens": True,  # `</s>` in a text is text
            **{f"{name}_token": piece for name, piece in special},
        },
    }
    if tokenizer.joint:
        del contents[TARGET_VOCABULARY]
    for name, content in contents.items():
        text = json.dumps(content, ensure_ascii=False, indent=1)
        (folder / name).write_text(text, encoding="utf-8")
