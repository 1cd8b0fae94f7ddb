"""SentencePiece models of the user's own (`tokenizer.model`), checked before they are used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mt.data.reading.text_files import os_errors_as_data_errors
from mt.data.tokens.sentencepiece_model import model_facts
from mt.data.tokens.tokenizer import BOS, EOS, PAD, UNK, Tokenizer, special_ids
from mt.errors import DataError

if TYPE_CHECKING:
    from mt.config.schema import TokenizerConfig


def own_tokenizer(cfg: TokenizerConfig) -> Tokenizer:
    """The tokenizer that `cfg.model`, and `cfg.tgt_model` where there are two vocabularies, name.

    Raises `DataError` for a file that cannot be read or does not fit, with all faults found.
    """
    faults = []
    models = []
    for key, name in (("model", cfg.model), ("tgt_model", cfg.tgt_model)):
        if name is None:
            continue
        try:
            models.append(read_model(Path(name).expanduser(), f"tokenizer.{key}"))
            require_algorithm(models[-1], cfg.type, f"tokenizer.{key}: {name}")
        except DataError as error:
            faults.append(str(error))
    if faults:
        raise DataError("\n".join(faults))
    return Tokenizer(*models)


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
    found = special_ids(processor)
    if found != [PAD, UNK, BOS, EOS]:
        raise DataError(
            f"{where}: {path}: pad, unk, bos and eos must have the ids 0, 1, 2 and 3, found "
            f"{', '.join(map(str, found[:3]))} and {found[3]} (-1: there is none). Make a model "
            "that fits with `mt tokenizer train`, or with spm_train and --pad_id=0 --unk_id=1 "
            "--bos_id=2 --eos_id=3."
        )
    if model_facts(model).space_at_word_end:
        raise DataError(
            f"{where}: {path}: a space must belong to the word after it, but the model was trained "
            "with treat_whitespace_as_suffix. Train it again without that."
        )
    return model


def require_algorithm(model: bytes, required: str, what: str) -> None:
    """Raise `DataError` unless `tokenizer.type` is what the model is; sampling depends on it."""
    found = model_facts(model).algorithm
    if found == required:
        return
    remedy = "name another model"
    if found in ("bpe", "unigram"):
        remedy = f"set tokenizer.type to {found}, or {remedy}"
    raise DataError(
        f"{what}: must be a model of tokenizer.type {required}, found {found}; {remedy}"
    )
