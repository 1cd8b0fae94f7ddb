"""Encode texts in parts of a million pairs, then merge them.

A part is a folder that appears whole, so a build that was killed continues with the parts that it
lacks. Text is read once: duplicates are encoded too, and dropped in merging, when the keys of all
pairs are known.
"""

from __future__ import annotations

import json
import shutil
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mt.artefacts import whole_folder
from mt.data.reading.corpus import open_text, read_pairs
from mt.data.tokens.duplicates import duplicates_of, pair_keys
from mt.data.tokens.filters import LENGTH_FAULTS, Counts, length_fault, with_text
from mt.errors import DataError
from mt.files import read_json, save_array
from mt.runtime.machine import usable_cores

if TYPE_CHECKING:
    from mt.config.plan import Corpus, Limits
    from mt.data.reading.text_files import FileRecords
    from mt.data.tokens.tokenizer import Tokenizer

PAIRS_PER_PART = 1_000_000
# Lines encoded at a time: enough to occupy SentencePiece's threads, few enough for the memory.
LINES_PER_CHUNK = 20_000
# Longest sides, eos counted, of which two can be added in 16 bits.
LONGEST_IN_16_BITS = 2**15 - 1
TOKENS = "pairs.tokens"  # source and target in turn, end to end

# Yields the pairs that it is given, and may count them; also gets what is done with them, and how
# many there are, None where that is not known.
Watch: TypeAlias = Callable[
    [Iterator[tuple[str, str]], str, "int | None"], Iterable[tuple[str, str]]
]


@dataclass(frozen=True)
class StoreTexts:
    """All that a store is made of, and how."""

    corpora: Sequence[Corpus]
    root: Path
    where: str  # their key in the config, for messages
    limits: Limits
    tokenizer: Tokenizer
    records: FileRecords
    # Tokens that training puts before the sides of each corpus; they count in its lengths.
    n_before: Sequence[tuple[int, int]]
    by_language: bool = False  # pairs in other languages are no duplicates

    @property
    def id_type(self) -> np.dtype[Any]:
        largest = max(self.tokenizer.src.size, self.tokenizer.tgt.size)
        return np.dtype("<u2" if largest <= 2**16 else "<u4")

    @property
    def length_type(self) -> np.dtype[Any]:
        return np.dtype("<u2" if self.limits.max_tokens < LONGEST_IN_16_BITS else "<u4")

    def pairs(self, watch: Watch) -> Iterator[Iterator[tuple[str, str]]]:
        """The pairs of each corpus, watched."""
        for corpus in self.corpora:
            total = 0  # is not known of rows, whose lines need not be pairs
            text = open_text(corpus.source, self.root)
            if text.format == "text":
                total = sum(self.records[str(path)]["lines"] or 0 for path in text.files) // 2
            pairs = read_pairs(corpus.source, self.root, corpus.name)
            yield iter(watch(pairs, f"encoding {self.where}", total or None))


def use_work_folder(work: Path, fingerprint: str) -> None:
    """Make the folder of parts, without those of another store; one process at a time. OSError."""
    file = work / "key"
    key = f"{fingerprint}/{PAIRS_PER_PART}"
    if not file.exists() or file.read_text(encoding="utf-8") != key:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        file.write_text(key, encoding="utf-8")


def encode_parts(work: Path, texts: StoreTexts, watch: Watch) -> list[Path]:
    """Encode the parts that are not in `work`; the folders of all, in order. OSError, DataError."""
    parts: list[Path] = []
    for corpus, pairs in enumerate(texts.pairs(watch)):
        for first in pairs:
            part = work / f"{len(parts):05}"
            part_pairs = chain([first], islice(pairs, PAIRS_PER_PART - 1))
            if part.exists():
                deque(part_pairs, maxlen=0)
            else:
                _encode_part(part, corpus, part_pairs, texts)
            parts.append(part)
    return parts


def _encode_part(
    part: Path, corpus: int, pairs: Iterator[tuple[str, str]], texts: StoreTexts
) -> None:
    """Write ids and lengths of the pairs that fit, and the keys and faults of all with text."""
    counts = Counts()
    # src, tgt, src, tgt, ...: 8 bytes a pair, where a list of tuples takes 100
    lengths = array("I")
    faults = bytearray()  # places in LENGTH_FAULTS
    keys = [np.empty((0, 2), np.uint64)]
    cleaned = with_text(pairs, counts)
    threads = usable_cores()
    limits = texts.limits
    n_src, n_tgt = texts.n_before[corpus]
    # Pairs of several languages may have one text, such as a name, and are no duplicates.
    languages = f"{texts.corpora[corpus].direction} " if texts.by_language else ""
    with whole_folder(part, "stays") as partial, (partial / TOKENS).open("wb") as file:
        while chunk := list(islice(cleaned, LINES_PER_CHUNK)):
            if texts.limits.dedupe:
                keys.append(pair_keys([(languages + src, tgt) for src, tgt in chunk]))
            src = texts.tokenizer.src.encode([src for src, _ in chunk], threads)
            tgt = texts.tokenizer.tgt.encode([tgt for _, tgt in chunk], threads)
            rows = list(zip(src, tgt, strict=True))
            reasons = [
                length_fault(len(src) and len(src) + n_src, len(tgt) and len(tgt) + n_tgt, limits)
                for src, tgt in rows
            ]
            faults += bytes(map(LENGTH_FAULTS.index, reasons))
            kept = [row for row, fault in zip(rows, reasons, strict=True) if not fault]
            lengths.extend(chain.from_iterable((len(src), len(tgt)) for src, tgt in kept))
            ids = chain.from_iterable(chain.from_iterable(kept))
            file.write(np.fromiter(ids, texts.id_type).tobytes())
        save_array(partial / "lengths.npy", np.array(lengths, texts.length_type).reshape(-1, 2).T)
        save_array(partial / "keys.npy", np.concatenate(keys))
        save_array(partial / "faults.npy", np.frombuffer(faults, np.uint8))
        meta = {"corpus": corpus, "counts": asdict(counts)}
        (partial / "meta.json").write_text(json.dumps(meta), encoding="utf-8")


def merge_parts(work: Path, folder: Path, parts: list[Path], texts: StoreTexts) -> list[Counts]:
    """Join the parts in `folder`, without duplicates; the counts by corpus. OSError, DataError."""
    try:
        return _merged(folder, parts, texts)
    except (FileNotFoundError, ValueError, TypeError, LookupError, EOFError) as error:
        raise DataError(
            f"{work}: a part of the token store is damaged ({error}); the parts are "
            "removed: run the same command again, which encodes the texts anew"
        ) from error


def _merged(folder: Path, parts: list[Path], texts: StoreTexts) -> list[Counts]:
    metas = [read_json(part / "meta.json") for part in parts]
    corpora = [Counts() for _ in texts.corpora]
    lengths = [np.empty((2, 0), texts.length_type)]
    duplicates = _find_duplicates(parts, metas, texts)
    with (folder / TOKENS).open("wb") as file:
        for part, meta, dropped in zip(parts, metas, duplicates, strict=True):
            faults = np.load(part / "faults.npy")
            by_fault = np.bincount(faults[~dropped], minlength=len(LENGTH_FAULTS))
            by_reason = zip(LENGTH_FAULTS[1:], map(int, by_fault[1:]), strict=True)
            counts = Counts(duplicate=int(dropped.sum()), **dict(by_reason))
            corpora[meta["corpus"]] += Counts(**meta["counts"]) + counts
            stays = ~dropped[faults == 0]
            part_lengths = np.load(part / "lengths.npy")
            lengths.append(part_lengths[:, stays])
            ids = np.fromfile(part / TOKENS, texts.id_type)
            file.write(ids[np.repeat(stays, part_lengths.sum(0, dtype=np.int64))].tobytes())
    save_array(folder / "lengths.npy", np.concatenate(lengths, axis=1))
    return corpora


def _find_duplicates(
    parts: list[Path], metas: list[dict[str, Any]], texts: StoreTexts
) -> list[npt.NDArray[np.bool_]]:
    """Of each part, whether a pair with text equals another one, of its own or another corpus."""
    sizes = [len(np.load(part / "faults.npy", mmap_mode="r")) for part in parts]
    if not texts.limits.dedupe:
        return [np.zeros(size, np.bool_) for size in sizes]
    keys = [[np.empty((0, 2), np.uint64)] for _ in texts.corpora]
    for part, meta in zip(parts, metas, strict=True):
        keys[meta["corpus"]].append(np.load(part / "keys.npy"))
    weights = [corpus.weight for corpus in texts.corpora]
    flags = duplicates_of([np.concatenate(of_corpus) for of_corpus in keys], weights)
    # Parts follow each other as the pairs of the corpora do.
    return np.split(np.concatenate(flags), np.cumsum(sizes)[:-1])
