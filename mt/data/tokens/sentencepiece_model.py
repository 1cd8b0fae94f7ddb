"""SentencePiece model files: what one says of itself, and whether mt can use it.

The file is a protocol buffer, `ModelProto` in `sentencepiece_model.proto` of SentencePiece. The few
fields that its Python package gives no access to are read here, so that no protobuf is
needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mt.data.reading.compression import os_errors_as_data_errors
from mt.errors import DataError

# Of pad, unk, bos and eos.
SPECIAL_IDS = [0, 1, 2, 3]
ALGORITHMS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}

# Numbers of fields in the messages ModelProto, SentencePiece, TrainerSpec and NormalizerSpec.
PIECES = 1
TRAINER_SPEC = 2
NORMALIZER_SPEC = 3
TYPE_OF_PIECE = 3
MODEL_TYPE = 3
TREAT_WHITESPACE_AS_SUFFIX = 24
PRECOMPILED_CHARSMAP = 2
USER_DEFINED = 4  # a value of SentencePiece.type


@dataclass(frozen=True)
class ModelInfo:
    """Properties of a SentencePiece model."""

    algorithm: str  # unigram, bpe, word or char
    user_defined_symbols: tuple[int, ...]  # their ids
    space_at_word_end: bool  # pieces are "word▁" and not "▁word"
    has_normalization: bool  # replaces text by a map


def model_info(model: bytes) -> ModelInfo:
    """Read the properties of a model from its bytes, which SentencePiece can load."""
    algorithm = 1  # the value of a field that is not written
    symbols = []
    space_at_word_end = False
    has_normalization = False
    n_pieces = 0
    for field, value in fields(model):
        if field == PIECES and isinstance(value, bytes):
            if dict(fields(value)).get(TYPE_OF_PIECE) == USER_DEFINED:
                symbols.append(n_pieces)
            n_pieces += 1
        elif field == TRAINER_SPEC and isinstance(value, bytes):
            spec = dict(fields(value))
            kind = spec.get(MODEL_TYPE, algorithm)
            algorithm = kind if isinstance(kind, int) else algorithm
            space_at_word_end = bool(spec.get(TREAT_WHITESPACE_AS_SUFFIX, False))
        elif field == NORMALIZER_SPEC and isinstance(value, bytes):
            has_normalization = bool(dict(fields(value)).get(PRECOMPILED_CHARSMAP))
    name = ALGORITHMS.get(algorithm, "unknown")
    return ModelInfo(name, tuple(symbols), space_at_word_end, has_normalization)


def special_ids(processor: Any) -> list[int]:
    """The ids of pad, unk, bos and eos in a SentencePieceProcessor; -1 for a missing one."""
    return [processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()]


def read_model(path: Path, where: str) -> bytes:
    """The bytes of a SentencePiece model file whose special ids and spaces are those of mt.

    `where` names what gave the path, for messages. Raises `DataError` for any other file.
    """
    from sentencepiece import SentencePieceProcessor

    if path.is_dir():
        raise DataError(
            f"{where}: {path} is a folder, a SentencePiece model file is required; name the .model "
            "file in it"
        )
    with os_errors_as_data_errors(path, where):
        model = path.read_bytes()
    try:
        if not model:
            raise RuntimeError("the file is empty")
        processor = SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
        raise DataError(
            f"{where}: {path} is not a SentencePiece model that can be loaded. Name a .model file "
            "(not a .vocab), as `mt tokenizer train` or spm_train write it."
        ) from error
    ids = special_ids(processor)
    if ids != SPECIAL_IDS:
        raise DataError(
            f"{where}: {path}: pad, unk, bos and eos must have the ids 0, 1, 2 and 3, found "
            f"{', '.join(map(str, ids[:3]))} and {ids[3]} (-1: there is none). Make a model "
            "that fits with `mt tokenizer train`, or with spm_train and --pad_id=0 --unk_id=1 "
            "--bos_id=2 --eos_id=3."
        )
    if model_info(model).space_at_word_end:
        raise DataError(
            f"{where}: {path}: a space must belong to the word after it, but the model was trained "
            "with treat_whitespace_as_suffix. Train it again without that."
        )
    return model


def require_algorithm(model: bytes, required: str, what: str) -> None:
    """Raise `DataError` unless `tokenizer.type` is what the model is; sampling depends on it."""
    algorithm = model_info(model).algorithm
    if algorithm == required:
        return
    remedy = "name another model"
    if algorithm in ("bpe", "unigram"):
        remedy = f"set tokenizer.type to {algorithm}, or {remedy}"
    raise DataError(
        f"{what}: must be a model of tokenizer.type {required}, found {algorithm}; {remedy}"
    )


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field: an int, or bytes of a text, message or fixed-width number.

    The encoding is described at https://protobuf.dev/programming-guides/encoding/.
    """
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        kind = tag & 7
        if kind == 0:
            value, place = _varint(message, place)
            yield tag >> 3, value
            continue
        if kind == 2:
            length, place = _varint(message, place)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"not a SentencePiece model: a field of wire type {kind}")
        yield tag >> 3, message[place : place + length]
        place += length


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """The integer at `place`, seven bits a byte with the lowest first, and the place after it."""
    value = 0
    shift = 0
    while True:
        if place >= len(message):
            raise ValueError("not a SentencePiece model: it is cut off")
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, place
