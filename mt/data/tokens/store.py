"""The token store: the pairs of a corpus as token ids on disk, memory-mapped and so shared.

A store is a folder with `pairs.tokens` (ids of source and target in turn, end to end, no bos or
eos), `lengths.npy` and `meta.json`. Text is read once: duplicates are encoded too, and dropped when
the keys of all pairs are known.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt

from mt.artefacts import content_key, is_made, key_of, make
from mt.config.plan import Corpus, Limits
from mt.data.reading.corpus import local_files, open_text, read_pairs
from mt.data.reading.text import Pairs
from mt.data.reading.text_files import FileRecords, file_record
from mt.data.reading.words import has_visible
from mt.data.tokens.duplicates import Flags, Hashes, duplicates_of, heaviest_first, pair_keys
from mt.data.tokens.tokenizer import Tokenizer
from mt.errors import DataError
from mt.files import read_json, save_array, write_whole
from mt.runtime.machine import usable_cores

FORMAT = 2
META = "meta.json"
TOKENS = "pairs.tokens"
ENCODED = "encoded.tokens"  # with the duplicates
# Pairs of whose starts in the file of tokens one is kept in memory.
BLOCK = 32
# Lines encoded at a time: enough to occupy SentencePiece's threads, few enough for the memory.
LINES_PER_CHUNK = 20_000
# Longest sides, eos counted, of which two can be added in 16 bits.
LONGEST_IN_16_BITS = 2**15 - 1

Ids: TypeAlias = npt.NDArray[np.integer[Any]]
Starts: TypeAlias = npt.NDArray[np.int64]

# Yields the pairs that it is given; also gets what is done with them, and their number if known.
Watch: TypeAlias = Callable[[Pairs, str, "int | None"], Iterable[tuple[str, str]]]


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

    def pairs(self, watch: Watch) -> Iterator[Pairs]:
        """The pairs of each corpus, watched."""
        for corpus in self.corpora:
            text = open_text(corpus.source, self.root)
            files = text.files if text.format == "text" else ()  # lines of rows need not be pairs
            total = sum(self.records[str(path)]["lines"] or 0 for path in files) // 2
            pairs = read_pairs(corpus.source, self.root, corpus.name)
            yield iter(watch(pairs, f"encoding {self.where}", total or None))


# Fields of `Counts`; no fault comes first.
LENGTH_FAULTS = ("", "empty", "too_long", "ratio")


@dataclass
class Counts:
    """Pairs read, and pairs dropped by reason; a dropped pair has exactly one reason."""

    read: int = 0
    empty: int = 0
    duplicate: int = 0
    too_long: int = 0
    ratio: int = 0

    @property
    def kept(self) -> int:
        return self.read - self.empty - self.duplicate - self.too_long - self.ratio

    def __add__(self, other: Counts) -> Counts:
        return Counts(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    def reasons(self, limits: Limits) -> list[str]:
        """Why pairs were dropped, such as `1 longer than 256 tokens`."""
        reasons = [
            (self.empty, "with an empty side"),
            (self.duplicate, "duplicate" if self.duplicate == 1 else "duplicates"),
            (self.too_long, f"longer than {limits.max_tokens:,} tokens"),
            (self.ratio, f"with one side over {limits.max_length_ratio:g} times the other"),
        ]
        return [f"{count:,} {reason}" for count, reason in reasons if count]

    def summary(self, limits: Limits) -> str:
        """One line, such as `9 of 10 pairs kept; dropped: 1 longer than 256 tokens`."""
        dropped = ", ".join(self.reasons(limits))
        kept = f"{self.kept:,} of {self.read:,} pairs kept"
        return f"{kept}; dropped: {dropped}" if dropped else kept


def _with_text(pairs: Pairs, counts: Counts) -> Pairs:
    """Yield the pairs that have text on both sides; count all, and the others as empty."""
    for src, tgt in pairs:
        counts.read += 1
        if has_visible(src) and has_visible(tgt):
            yield src, tgt
        else:
            counts.empty += 1


def length_fault(n_src: int, n_tgt: int, limits: Limits) -> str:
    """Why a pair of so many tokens, without eos, is dropped: one of `LENGTH_FAULTS`; "": kept."""
    shorter, longer = (n_src, n_tgt) if n_src < n_tgt else (n_tgt, n_src)
    if shorter == 0:
        return "empty"
    if longer > limits.max_tokens:
        return "too_long"
    return "ratio" if longer > limits.max_length_ratio * shorter else ""


@dataclass(frozen=True)
class Store:
    """Token ids of n pairs, one corpus after the other, without bos and eos."""

    ids: Ids  # source and target of each pair in turn, end to end
    lengths: Ids  # (2, n) tokens of sources and targets
    kept: tuple[int, ...]  # pairs of each corpus
    counts: str  # pairs kept and dropped, as a sentence
    fingerprint: str
    corpora: tuple[Counts, ...] = ()  # of each corpus; () of an epoch's store
    augmented: str = ""  # what `data.augment` has changed, for the log; "" on disk

    def __len__(self) -> int:
        return self.lengths.shape[1]

    @cached_property
    def _block_starts(self) -> tuple[Ids, Starts]:
        """The lengths of pairs (n,), and where every `BLOCK`-th pair begins."""
        lengths = self.lengths[0] + self.lengths[1]
        sums = np.add.reduceat(lengths, range(0, len(self), BLOCK), dtype=np.int64)
        return lengths, np.append(0, sums.cumsum())

    def starts(self, indices: Ids) -> Starts:
        """(B,) Where each of these pairs begins in `ids`."""
        lengths, starts = self._block_starts
        blocks = indices // BLOCK
        columns = (blocks * BLOCK)[:, None] + np.arange(BLOCK)  # (B, BLOCK)
        before = columns < indices[:, None]
        return starts[blocks] + (lengths.take(columns, mode="clip") * before).sum(1, dtype=np.int64)


def fingerprint_of(texts: StoreTexts) -> str:
    """SHA-256 of what decides the content of the store, but for the names of files."""
    content = {
        "format": FORMAT,
        "corpora": [text_key(corpus, texts.root, texts.records) for corpus in texts.corpora],
        "tokenizer": texts.tokenizer.fingerprint, "limits": texts.limits,
        "tokens before": texts.n_before,
        "languages": [corpus.direction for corpus in texts.corpora] if texts.by_language else [],
    }  # fmt: skip
    if texts.limits.dedupe:
        content["duplicates stay in"] = heaviest_first([each.weight for each in texts.corpora])
    return content_key(content)


def text_key(corpus: Corpus, root: Path, records: FileRecords) -> list[Any]:
    """Return what decides a corpus's pairs: the content of its files, and how they are read."""
    source = corpus.source
    files = [records[str(path)]["sha256"] for path in local_files(source, root)]
    # Of two text files their content says all.
    names = {"path"} | ({"src", "tgt", "name", "split"} if source.path is None else set())
    settings = source.model_dump(mode="json", exclude=names, exclude_defaults=True)
    return [settings, files or source.path]


def corpus_records(corpora: Sequence[Corpus], root: Path, known: FileRecords) -> FileRecords:
    paths = [path for corpus in corpora for path in local_files(corpus.source, root)]
    return {str(path): file_record(path, "", known) for path in paths}


def known_records(folder: Path) -> FileRecords:
    """Records of the files that the store in `folder` was built from; empty without a store."""
    records = meta_of(folder).get("records")
    return records if isinstance(records, dict) else {}


def meta_of(folder: Path) -> dict[str, Any]:
    """`meta.json` of the store or cleaned text in `folder`; empty where that is damaged."""
    try:
        return dict(read_json(folder / META))
    except (OSError, ValueError, TypeError):
        return {}


def open_or_build(
    folder: Path, texts: StoreTexts, log: Callable[[str], None], watch: Watch | None = None
) -> Store:
    """Open the store of these texts in `folder`; build it if it is missing, damaged or outdated."""
    watched = watch or (lambda pairs, *_: pairs)
    waiting = f"{texts.where}: waiting for another process, which builds the token store"
    try:
        key = fingerprint_of(texts)
        make(folder, key, lambda new: _build(new, texts, watched), lambda: log(waiting))
        if texts.records != known_records(folder):  # the same texts in another place
            meta = meta_of(folder) | {"records": texts.records}
            write_whole(folder / META, json.dumps(meta, indent=1))
    except OSError as error:
        raise DataError(
            f"{folder}: the token store cannot be written: {error.strerror or error}; free some "
            "space and run the same command again, or choose another --run-dir"
        ) from error
    store = open_built(folder)
    log(f"{texts.where}: {store.counts}")
    for counts, corpus in zip(store.corpora, texts.corpora, strict=False):
        name = f"{corpus.name} ({corpus.shown})"
        if len(store.corpora) > 1:
            log(f"{name}: {counts.summary(texts.limits)}")
        if 2 * counts.kept < counts.read:
            log(
                f"warning: {name}: only {counts.kept:,} of {counts.read:,} pairs kept. Check that "
                "source and target belong together, and the limits in data; of duplicates in "
                "several texts one stays, unless data.dedupe is false"
            )
    return store


def _build(folder: Path, texts: StoreTexts, watch: Watch) -> None:
    """Fill the folder of a store. Raises DataError, OSError."""
    with (folder / ENCODED).open("wb") as file:
        encoded = [_encode(file, n, pairs, texts) for n, pairs in enumerate(texts.pairs(watch))]
    dropped = [np.zeros(len(corpus.faults), np.bool_) for corpus in encoded]
    if texts.limits.dedupe:
        weights = [corpus.weight for corpus in texts.corpora]
        dropped = duplicates_of([corpus.keys for corpus in encoded], weights)
    corpora = [corpus.counted(own) for corpus, own in zip(encoded, dropped, strict=True)]
    total = sum(corpora, Counts())
    if not total.kept:
        is_training = texts.where == "data.train"
        keys = "data.max_tokens, data.max_length_ratio" if is_training else "model.max_positions"
        raise DataError(
            f"{texts.where}: no pair is left ({total.summary(texts.limits)}); check that the files "
            f"are the right ones, or raise {keys}"
        )
    lengths = np.concatenate([corpus.lengths for corpus in encoded])  # (n, 2)
    fitting = zip(encoded, dropped, strict=True)
    stays = np.concatenate([~own[corpus.faults == 0] for corpus, own in fitting])
    _copy(folder, lengths.sum(1, dtype=np.int64), stays, texts.id_type)
    save_array(folder / "lengths.npy", np.ascontiguousarray(lengths[stays].T))
    meta = {
        "records": texts.records, "dtype": texts.id_type.str,
        "kept": [counts.kept for counts in corpora], "counts": total.summary(texts.limits),
        "corpora": [asdict(counts) for counts in corpora],
    }  # fmt: skip
    (folder / META).write_text(json.dumps(meta, indent=1), encoding="utf-8")


@dataclass(frozen=True)
class _Encoded:
    """A corpus with n pairs with text, whose ids are in the file but for those with a fault."""

    counts: Counts
    keys: Hashes  # (n, 2)
    faults: npt.NDArray[np.uint8]  # (n,) places in LENGTH_FAULTS
    lengths: Ids  # (m, 2) of the pairs without a fault

    def counted(self, dropped: Flags) -> Counts:
        """The counts with the faults, and with the duplicates that are dropped, (n,)."""
        by_fault = np.bincount(self.faults[~dropped], minlength=len(LENGTH_FAULTS))
        by_reason = zip(LENGTH_FAULTS[1:], map(int, by_fault[1:]), strict=True)
        return self.counts + Counts(duplicate=int(dropped.sum()), **dict(by_reason))


def _encode(file: BinaryIO, number: int, pairs: Pairs, texts: StoreTexts) -> _Encoded:
    """Write the ids of the pairs of a corpus that fit."""
    counts = Counts()
    keys = [np.empty((0, 2), np.uint64)]
    faults = bytearray()
    lengths = [np.empty((0, 2), texts.length_type)]
    cleaned = _with_text(pairs, counts)
    threads, limits = usable_cores(), texts.limits
    n_src, n_tgt = texts.n_before[number]
    # Pairs of several languages may have one text, such as a name, and are no duplicates.
    languages = f"{texts.corpora[number].direction} " if texts.by_language else ""
    while chunk := list(islice(cleaned, LINES_PER_CHUNK)):
        if limits.dedupe:
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
        sizes = [(len(src), len(tgt)) for src, tgt in kept]
        lengths.append(np.array(sizes, texts.length_type).reshape(-1, 2))
        ids = chain.from_iterable(chain.from_iterable(kept))
        file.write(np.fromiter(ids, texts.id_type).tobytes())
    found = np.frombuffer(faults, np.uint8)
    return _Encoded(counts, np.concatenate(keys), found, np.concatenate(lengths))


def _copy(folder: Path, lengths: Starts, stays: Flags, id_type: np.dtype[Any]) -> None:
    """Copy the ids of the pairs that stay, (n,), into the file of tokens; `lengths`: of pairs."""
    with (folder / ENCODED).open("rb") as encoded, (folder / TOKENS).open("wb") as file:
        for start in range(0, len(stays), 50 * LINES_PER_CHUNK):
            block = slice(start, start + 50 * LINES_PER_CHUNK)
            ids = np.fromfile(encoded, id_type, int(lengths[block].sum()))
            file.write(ids[np.repeat(stays[block], lengths[block])].tobytes())
    (folder / ENCODED).unlink()


def open_built(folder: Path) -> Store:
    """Open the store in `folder`, without reading the texts. DataError if there is none."""
    try:
        if not is_made(folder, None):
            raise ValueError
        meta = read_json(folder / META)
        # As arrays, whose rows are taken faster than those of np.memmap.
        lengths = np.asarray(np.load(folder / "lengths.npy", mmap_mode="r"))
        ids = np.asarray(np.memmap(folder / TOKENS, dtype=np.dtype(meta["dtype"]), mode="r"))
        corpora = tuple(Counts(**corpus) for corpus in meta["corpora"])
        kept, counts = tuple(meta["kept"]), meta["counts"]
        return Store(ids, lengths, kept, counts, key_of(folder), corpora)
    except (OSError, ValueError, KeyError, TypeError, EOFError):  # EOFError: an empty .npy file
        raise DataError(f"{folder}: holds no whole token store; remove that folder") from None
