"""Vocabularies of Marian folders: `source.spm`, `target.spm`, `vocab.json`, `target_vocab.json`.

`vocab.json` gives the id of each piece; an id is also the row of the piece in the embeddings. Ours
have pad, unk, bos and eos first, so rows change places.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mt.data.tokens.piece_vocabulary import SPECIAL_PIECES, write_vocabularies
from mt.data.tokens.sentencepiece_model import model_facts
from mt.data.tokens.tokenizer import Tokenizer

SOURCE_MODEL, TARGET_MODEL = "source.spm", "target.spm"
VOCABULARY, TARGET_VOCABULARY = "vocab.json", "target_vocab.json"


@dataclass(frozen=True)
class Vocabulary:
    """The pieces of one side by our ids, and the row of each in the embeddings of the folder."""

    pieces: list[str]
    rows: list[int]


@dataclass(frozen=True)
class MarianTokenizer:
    """The tokenizer of a Marian folder, as ours."""

    tokenizer: Tokenizer
    source: Vocabulary
    target: Vocabulary
    type: str  # bpe or unigram
    byte_fallback: bool
    src_lang: str | None
    tgt_lang: str | None


def read_tokenizer(
    folder: Path, config: Mapping[str, Any], faults: list[str]
) -> MarianTokenizer | None:
    """Read the tokenizer of a Marian folder with this `config.json`, defaults filled in.

    What cannot be used is added to `faults`; None if there is no tokenizer then.
    """
    n_before = len(faults)
    settings = read_json(folder / "tokenizer_config.json", [])
    joint = bool(config["share_encoder_decoder_embeddings"])
    separate = bool(settings.get("separate_vocabs", (folder / TARGET_VOCABULARY).exists()))
    if joint and separate:
        faults.append(
            f"{TARGET_VOCABULARY}: the two vocabularies differ, but config.json has "
            "share_encoder_decoder_embeddings true"
        )
    unk = _text(settings.get("unk_token", "<unk>"))
    start, pad = config["decoder_start_token_id"], config["pad_token_id"]
    eos = config["eos_token_id"]
    src_ids = _read_ids(folder / VOCABULARY, config["vocab_size"], faults)
    source = _vocabulary(src_ids, VOCABULARY, unk, (pad, start if joint else pad, eos), faults)
    target = source
    if not joint:
        name = TARGET_VOCABULARY if separate else VOCABULARY
        tgt_ids = _read_ids(folder / name, config["decoder_vocab_size"], faults)
        target = _vocabulary(tgt_ids, name, unk, (pad, start, eos), faults)
    models = [_read_bytes(folder / name, faults) for name in (SOURCE_MODEL, TARGET_MODEL)]
    if len(faults) > n_before:
        return None
    vocabulary = write_vocabularies(source.pieces, None if joint else target.pieces)
    try:
        tokenizer = Tokenizer(models[0], models[1], vocabulary)
    except (RuntimeError, ValueError):
        faults.append(f"{SOURCE_MODEL} or {TARGET_MODEL}: damaged, SentencePiece cannot read it")
        return None
    algorithm = model_facts(models[0]).algorithm
    kind = "bpe" if algorithm == "bpe" else "unigram"
    languages = [settings.get(key) for key in ("source_lang", "target_lang")]
    src_lang, tgt_lang = (name if isinstance(name, str) and name else None for name in languages)
    return MarianTokenizer(
        tokenizer, source, target, kind, _has_bytes(models[0]), src_lang, tgt_lang
    )


def read_json(path: Path, faults: list[str]) -> dict[str, Any]:
    """The mapping in a JSON file; {} after adding to `faults` if that fails."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        faults.append(f"{path.name}: {error.strerror}")
        return {}
    except ValueError as error:  # not JSON, or not UTF-8
        faults.append(f"{path.name}: is not JSON ({error})")
        return {}
    if not isinstance(value, dict):
        faults.append(f"{path.name}: must be a JSON object, found a {type(value).__name__}")
        return {}
    return value


def _read_bytes(path: Path, faults: list[str]) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        faults.append(f"{path.name}: {error.strerror}")
        return b""


def _text(token: Any) -> str:
    """A token in `tokenizer_config.json`: a text, or a mapping that has it."""
    return str(token.get("content", "")) if isinstance(token, dict) else str(token)


def _read_ids(path: Path, size: int, faults: list[str]) -> dict[str, int]:
    """The row of each piece; a row that no piece names gets a piece that no text contains."""
    before = len(faults)
    ids = read_json(path, faults)
    if len(faults) > before:
        return {}
    numbers = [value for value in ids.values() if isinstance(value, int) and 0 <= value < size]
    if len(numbers) != len(ids) or len(set(numbers)) != len(numbers):
        faults.append(
            f"{path.name}: ids must be different whole numbers below {size:,}, the number of rows "
            f"of the embeddings; {len(ids) - len(set(numbers)):,} of {len(ids):,} are not"
        )
        return {}
    return ids | {f"<row {row}>": row for row in set(range(size)) - set(numbers)}


def _vocabulary(
    ids: Mapping[str, int], name: str, unk: str, special: tuple[int, int, int], faults: list[str]
) -> Vocabulary:
    """Pieces and rows by our ids; `special` are their ids of pad, the decoder's start, and eos."""
    pad, start, eos = special
    if not ids:
        return Vocabulary([], [])
    if unk not in ids:
        faults.append(f"{name}: the piece {unk} is missing")
        return Vocabulary([], [])
    rows = [pad, ids[unk], start, eos]
    if not all(isinstance(row, int) and 0 <= row < len(ids) for row in rows):
        faults.append(
            f"config.json: pad_token_id, decoder_start_token_id and eos_token_id must be ids of "
            f"{name}, 0 to {len(ids) - 1:,}, found {pad}, {start} and {eos}"
        )
        return Vocabulary([], [])
    pieces = list(SPECIAL_PIECES)
    for piece, row in sorted(ids.items(), key=lambda item: item[1]):
        if row not in (pad, ids[unk], eos):
            # Such as </s> where another piece is the end; the number keeps the pieces different.
            pieces.append(f"{piece} {row}" if piece in SPECIAL_PIECES else piece)
            rows.append(row)
    return Vocabulary(pieces, rows)


def _has_bytes(model: bytes) -> bool:
    """Whether unknown characters are spelled in bytes."""
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor(model_proto=model)
    return any(processor.is_byte(i) for i in range(processor.piece_size()))
