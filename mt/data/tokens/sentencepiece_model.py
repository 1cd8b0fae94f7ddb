"""SentencePiece models: whether mt can use a file, and one whose pieces have ids of their own.

Marian trains a SentencePiece model for each language and one vocabulary for both, or one for each.
`mt import` keeps such models: segmentation by the SentencePiece model, ids by the vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mt.data.reading.compression import os_errors_as_data_errors
from mt.errors import DataError
from mt.files import parse_json

# Of pad, unk, bos and eos.
SPECIAL_IDS = [0, 1, 2, 3]


def model_proto(model: bytes) -> Any:
    """A model's `ModelProto`, from its bytes, which SentencePiece can load."""
    # Takes 0.1 s, and only models of the user and of other programs need it.
    from sentencepiece import sentencepiece_model_pb2

    schema: Any = sentencepiece_model_pb2  # which fills itself when it is imported
    return schema.ModelProto.FromString(model)


def user_defined_symbols(model: bytes) -> set[int]:
    pieces = model_proto(model).pieces
    return {number for number, piece in enumerate(pieces) if piece.type == piece.USER_DEFINED}


def special_ids(processor: Any) -> list[int]:
    """The ids of pad, unk, bos and eos; -1 for a missing one."""
    if isinstance(processor, PieceVocabulary):
        return processor.special_ids
    return [processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()]


def read_model(path: Path, where: str) -> bytes:
    """The bytes of a SentencePiece model file that mt can use; `where` names what gave the path."""
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


# The special pieces by id; data/tokens/tokenizer.py has the ids' names.
SPECIAL_PIECES = ("<pad>", "<unk>", "<s>", "</s>")


class PieceVocabulary:
    """Segments by a SentencePiece model and numbers the pieces by a list of them.

    It has those methods of `SentencePieceProcessor` that `Tokenizer` uses. A piece that is not in
    the list is unk. A line may begin with a piece of the list that no SentencePiece model makes:
    `>>deu<<`, by which multilingual Marian models are told the target language.
    """

    def __init__(self, model: bytes, pieces: Sequence[str]) -> None:
        """`pieces`: the text of each id; RuntimeError if the model is damaged."""
        from sentencepiece import SentencePieceProcessor

        self._model = SentencePieceProcessor(model_proto=model)
        self._pieces = list(pieces)
        self._ids = {piece: number for number, piece in enumerate(self._pieces)}
        self.special_ids = [self._ids.get(piece, -1) for piece in SPECIAL_PIECES]
        self._symbols = user_defined_symbols(model)

    def piece_size(self) -> int:
        return len(self._pieces)

    def id_to_piece(self, numbers: list[int]) -> list[str]:
        return [self._pieces[number] for number in numbers]

    def piece_to_id(self, piece: str) -> int:
        return self._ids.get(piece, self.special_ids[1])

    def symbol_ids(self) -> set[int]:
        """The ids of user-defined symbols, and of pieces that SentencePiece does not make."""
        model = self._model
        fixed = self._symbols | {model.unk_id()}
        return {
            number
            for number, place in enumerate(map(model.piece_to_id, self._pieces))
            if place in fixed or model.is_control(place) or model.is_unused(place)
        }

    def encode(
        self, text: str | list[str], out_type: type = int, num_threads: int = 1
    ) -> list[Any]:
        """The ids (`out_type` int) or pieces (str) of a line, or of each of several."""
        if isinstance(text, str):
            return list(self.encode([text], out_type)[0])
        split = [self.split_language(line) for line in text]
        # As text: the list may have characters that the model has not.
        lines = [line for _, line in split]
        rows = self._model.encode(lines, out_type=str, num_threads=num_threads)
        rows = [[lang, *row] if lang else row for (lang, _), row in zip(split, rows, strict=True)]
        return rows if out_type is str else [list(map(self.piece_to_id, row)) for row in rows]

    def split_language(self, line: str) -> tuple[str, str]:
        """Split `>>deu<< text` into the piece for the language, if the list has it, and text."""
        if line.startswith(">>"):
            code, end, rest = line.partition("<<")
            if code + end in self._ids:
                return code + end, rest
        return "", line

    def decode(self, rows: Sequence[Sequence[int | str]], num_threads: int = 1) -> list[str]:
        """The text of each row of ids or pieces."""
        pieces = [[x if isinstance(x, str) else self._pieces[x] for x in row] for row in rows]
        texts: list[str] = self._model.decode(pieces, num_threads=num_threads)
        return texts


def read_vocabularies(content: bytes) -> tuple[list[str], list[str] | None]:
    """Pieces of the joint vocabulary and None, or of source and target. ValueError for others."""
    match parse_json(content):
        case {"joint": pieces}:
            return _pieces(pieces), None
        case {"source": source, "target": target, **rest} if not rest:
            return _pieces(source), _pieces(target)
    raise ValueError("the vocabulary must have the key joint, or source and target")


def _pieces(value: object) -> list[str]:
    pieces = value if isinstance(value, list) else []
    if not pieces or not all(isinstance(piece, str) for piece in pieces):
        raise ValueError("a vocabulary must be a list of pieces")
    if len(set(pieces)) < len(pieces):
        raise ValueError("the pieces of a vocabulary must differ")
    return pieces


def write_vocabularies(src_pieces: Sequence[str], tgt_pieces: Sequence[str] | None) -> bytes:
    """The file of a joint vocabulary (`tgt_pieces` None), or of two."""
    both = {"source": src_pieces, "target": tgt_pieces}
    lists = {"joint": src_pieces} if tgt_pieces is None else both
    return json.dumps(lists, ensure_ascii=False, indent=0).encode()
