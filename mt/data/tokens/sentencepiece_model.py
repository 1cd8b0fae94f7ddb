"""SentencePiece model files: what one says of itself, and whether mt can use it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mt.data.reading.compression import os_errors_as_data_errors
from mt.errors import DataError

# Of pad, unk, bos and eos.
SPECIAL_IDS = [0, 1, 2, 3]


def model_proto(model: bytes) -> Any:
    """A model's `ModelProto`, from its bytes, which SentencePiece can load."""
    # Takes 0.1 s, and only models of the user and of other programs need it.
    from sentencepiece import sentencepiece_model_pb2

    schema: Any = sentencepiece_model_pb2  # which fills itself when it is imported
    return schema.ModelProto.FromString(model)


def user_defined_symbols(model: bytes) -> set[int]:
    """The ids of a model's user-defined symbols."""
    pieces = model_proto(model).pieces
    return {number for number, piece in enumerate(pieces) if piece.type == piece.USER_DEFINED}


def special_ids(processor: Any) -> list[int]:
    """The ids of pad, unk, bos and eos in a SentencePieceProcessor; -1 for a missing one."""
    return [processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()]


def read_model(path: Path, where: str) -> bytes:
    """The bytes of a SentencePiece model file whose special ids and spaces are those of mt.

    `where` names what gave the path. Raises `DataError` for any other file.
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
    if model_proto(model).trainer_spec.treat_whitespace_as_suffix:
        raise DataError(
            f"{where}: {path}: a space must belong to the word after it, but the model was trained "
            "with treat_whitespace_as_suffix. Train it again without that."
        )
    return model
