"""The token store: the pairs of a corpus as token ids on disk, memory-mapped and so shared.

A store is a folder with `src.tokens` and `tgt.tokens` (ids end to end, no bos or eos),
`lengths.npy` and `meta.json`. It is written to a folder beside it and renamed when complete.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mt.data.cleaning.filters import Counts, DuplicateFilter, clean_text, keeps_length
from mt.data.reading.corpus import data_root, local_files, read_pairs
from mt.data.reading.formats import format_of
from mt.data.reading.text_files import FileRecords, file_record
from mt.errors import DataError
from mt.files import sync_files, sync_folder, write_whole

if TYPE_CHECKING:
    from pydantic import BaseModel

    from mt.config.schema import DataConfig, Source
    from mt.data.tokens.tokenizer import Tokenizer

FORMAT = 1
# Keys that the fingerprint of a store need not take as they stand. A key that is not here counts.
DATA_KEYS = {
    *("train", "valid", "test", "max_tokens", "max_length_ratio", "dedupe"),  # in another form
    *("root", "src_lang", "tgt_lang"),  # where the texts are, and what they are called
}
SOURCE_KEYS = {
    *("src", "tgt", "path", "name", "split", "delimiter", "quoting"),  # in another form
    "weight",  # `Plan` applies it; what stays of duplicates is in the fingerprint
}
# Lines encoded at a time: enough to occupy SentencePiece's threads, few enough for the memory.
LINES_PER_CHUNK = 20_000

# Yields the pairs that it is given, and may count them; also gets their number, if it is known.
Watch: TypeAlias = Callable[[Iterator[tuple[str, str]], "int | None"], Iterable[tuple[str, str]]]
Ids = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Store:
    """Token ids of n pairs, one corpus of the config after the other."""

    src: Ids  # all source ids end to end
    tgt: Ids
    src_lengths: npt.NDArray[np.int64]  # (n,) tokens without eos
    tgt_lengths: npt.NDArray[np.int64]  # (n,)
    kept: tuple[int, ...]  # pairs of each corpus
    counts: str  # pairs kept and dropped, as a sentence
    fingerprint: str
    corpora: tuple[Counts, ...] = ()  # of each corpus; empty in stores of version 0.1.0

    def __len__(self) -> int:
        return len(self.src_lengths)

    @cached_property
    def src_starts(self) -> npt.NDArray[np.int64]:
        """(n,) Where each source begins in `src`."""
        return self.src_lengths.cumsum() - self.src_lengths

    @cached_property
    def tgt_starts(self) -> npt.NDArray[np.int64]:
        """(n,) Where each target begins in `tgt`."""
        return self.tgt_lengths.cumsum() - self.tgt_lengths

    @property
    def longest(self) -> int:
        """Tokens of the longest side of all pairs, eos counted."""
        return int(max(self.src_lengths.max(), self.tgt_lengths.max())) + 1

    def pair(self, index: int) -> tuple[Ids, Ids]:
        """Ids of source and target of one pair, without bos and eos."""
        src, tgt = self.src_starts[index], self.tgt_starts[index]
        src_end, tgt_end = src + self.src_lengths[index], tgt + self.tgt_lengths[index]
        return self.src[src:src_end], self.tgt[tgt:tgt_end]


def other_settings(section: BaseModel, known: set[str]) -> dict[str, Any]:
    """The values of a config section that are not at their default, without the keys in `known`.

    They are in every fingerprint: a key that is new in the schema changes it, unless the key is
    left at its default, as in all runs from before.
    """
    return section.model_dump(mode="json", exclude=known, exclude_defaults=True)


def fingerprint_of(
    sources: list[Source], data: DataConfig, tokenizer: Tokenizer, records: FileRecords
) -> str:
    """SHA-256 of everything that decides the content of the store: texts, tokenizer, settings.

    The names of the files do not count: a corpus that has moved is still the same. Stores of all
    versions have the same form, so that they are not built again.
    """
    root = data_root(data)

    def text(source: Source) -> list[Any]:
        columns = source.path and [source.src, source.tgt, source.name, source.split]
        if columns and (source.delimiter or source.quoting):
            columns += [source.delimiter, source.quoting]
        files = [records[str(path)]["sha256"] for path in local_files(source, root)]
        others = other_settings(source, SOURCE_KEYS)
        return [columns, files or source.path, *([others] if others else [])]

    content = {
        "format": FORMAT,
        "sources": [text(source) for source in sources],
        "tokenizer": tokenizer.fingerprint,
        "limits": [data.max_tokens, data.max_length_ratio, data.dedupe],
    }
    if others := other_settings(data, DATA_KEYS):
        content["settings"] = others
    if data.dedupe and _heavier_than_before(sources):
        numbers = range(len(sources))
        content["duplicates stay in"] = sorted(numbers, key=lambda n: -sources[n].weight)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _heavier_than_before(sources: list[Source]) -> list[int]:
    """Numbers of the corpora with a higher weight than some corpus before them, heaviest first."""
    later = [
        number
        for number, source in enumerate(sources)
        if any(before.weight < source.weight for before in sources[:number])
    ]
    return sorted(later, key=lambda number: -sources[number].weight)


def corpus_records(sources: list[Source], data: DataConfig, known: FileRecords) -> FileRecords:
    """The records of every local file; see `file_record`."""
    root = data_root(data)
    paths = [path for source in sources for path in local_files(source, root)]
    return {str(path): file_record(path, "", known) for path in paths}


def known_records(folder: Path) -> FileRecords:
    """Records of the files that the store in `folder` was built from; empty without a store."""
    try:
        return dict(json.loads((folder / "meta.json").read_text(encoding="utf-8"))["facts"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def open_or_build(
    folder: Path,
    sources: list[Source],
    where: str,
    data: DataConfig,
    tokenizer: Tokenizer,
    log: Callable[[str], None],
    watch: Watch | None = None,
    read: FileRecords | None = None,
) -> Store:
    """Open the store of these texts in `folder`; build it if it is missing, damaged or outdated.

    `watch` gets the pairs of each corpus that are encoded, and how many there are, None where that
    is not known. It yields the same pairs, and may count them. `read`: records of the files
    that have been read already.

    Only one of several processes may call this, because it writes. Raises DataError where a text
    cannot be read or no pair is left.
    """
    known = known_records(folder)
    records = corpus_records(sources, data, {**known, **(read or {})})
    fingerprint = fingerprint_of(sources, data, tokenizer, records)
    store = _open(folder, fingerprint)
    try:
        if store is None:
            meta = {"fingerprint": fingerprint, "facts": records}
            watch = watch or (lambda pairs, _: pairs)
            _build(folder, sources, where, data, tokenizer, meta, watch)
            store = _open(folder, fingerprint)
            assert store is not None
        elif records != known:  # the same texts in another place
            meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
            write_whole(folder / "meta.json", json.dumps(meta | {"facts": records}, indent=1))
    except OSError as error:
        # numpy reports a full disk without the system's reason.
        reason = f"{folder}: the token store cannot be written: {error.strerror or error}"
        raise DataError(f"{reason}; free some space or choose another --run-dir") from error
    log(f"{where}: {store.counts}")
    for line in _corpus_messages(store.corpora, sources, where, data):
        log(line)
    return store


def _corpus_messages(
    corpora: Sequence[Counts], sources: list[Source], where: str, data: DataConfig
) -> Iterator[str]:
    """The counts of each of several corpora, and a warning where one loses more than half."""
    for number, (counts, source) in enumerate(zip(corpora, sources, strict=False)):
        name = f"{_name(where, number)} ({source.path or source.src})"
        if len(corpora) > 1:
            yield f"{name}: {counts.summary(data)}"
        if 2 * counts.kept >= counts.read:
            continue
        reason = f"only {counts.kept:,} of {counts.read:,} pairs kept"
        if 2 * counts.duplicate > counts.read - counts.kept:
            reason += (
                ", most others are duplicates: a pair stays in the corpus of the highest weight, "
                "else in the first one. Set data.dedupe to false to use them all"
            )
        else:
            reason += ". Check that source and target belong together, and the limits in data"
        yield f"warning: {name}: {reason}"


def _name(where: str, number: int) -> str:
    """A corpus in messages: one of several for training, else the only one."""
    return f"{where}[{number}]" if where == "data.train" else where


def open_built(folder: Path) -> Store:
    """Open the store that another process has built in `folder`, without reading the texts.

    Raises DataError if there is none.
    """
    store = _open(folder)
    if store is None:
        raise DataError(f"{folder}: contains no complete token store.")
    return store


def _open(folder: Path, wanted: str | None = None) -> Store | None:
    """The store in `folder`; None if it is incomplete or its fingerprint is not `wanted`."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        fingerprint = str(meta["fingerprint"])
        if wanted not in (None, fingerprint):
            return None
        lengths = np.load(folder / "lengths.npy").astype(np.int64)  # (2, n)
        dtype = np.dtype(meta["dtype"])
        src = np.memmap(folder / "src.tokens", dtype=dtype, mode="r")
        tgt = np.memmap(folder / "tgt.tokens", dtype=dtype, mode="r")
        corpora = tuple(Counts(**corpus) for corpus in meta.get("corpora", ()))
        kept, counts = tuple(meta["kept"]), meta["counts"]
    except (OSError, ValueError, KeyError, TypeError, EOFError):  # EOFError: an empty .npy file
        return None
    if len(src) != lengths[0].sum() or len(tgt) != lengths[1].sum():
        return None
    return Store(src, tgt, lengths[0], lengths[1], kept, counts, fingerprint, corpora)


def _build(
    folder: Path,
    sources: list[Source],
    where: str,
    data: DataConfig,
    tokenizer: Tokenizer,
    meta: dict[str, Any],
    watch: Watch,
) -> None:
    """Write the store to a folder beside `folder`, then put it there."""
    corpora = [Counts() for _ in sources]
    # src, tgt, src, tgt, ...: 8 bytes a pair, where a list of tuples takes 100.
    lengths = array("I")
    largest_vocabulary = max(tokenizer.src_vocab_size, tokenizer.tgt_vocab_size)
    dtype = np.dtype("<u2" if largest_vocabulary <= 2**16 else "<u4")
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        with (
            (partial / "src.tokens").open("wb") as src_file,
            (partial / "tgt.tokens").open("wb") as tgt_file,
        ):
            encoded = _encoded(sources, where, data, tokenizer, corpora, meta["facts"], watch)
            for counts, src, tgt in encoded:
                if keeps_length(len(src), len(tgt), data, counts):
                    src_file.write(np.asarray(src, dtype).tobytes())
                    tgt_file.write(np.asarray(tgt, dtype).tobytes())
                    lengths.extend((len(src), len(tgt)))
        total = sum(corpora, Counts())
        if not lengths:
            raise DataError(
                f"{where}: no pair is left ({total.summary(data)}); check that the files are the "
                "right ones, or raise data.max_tokens and data.max_length_ratio"
            )
        np.save(partial / "lengths.npy", np.asarray(lengths, np.uint32).reshape(-1, 2).T)
        meta |= {
            "dtype": dtype.str,
            "kept": [counts.kept for counts in corpora],
            "counts": total.summary(data),
            "corpora": [asdict(counts) for counts in corpora],
        }
        (partial / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")
        sync_files(partial)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _encoded(
    sources: list[Source],
    where: str,
    data: DataConfig,
    tokenizer: Tokenizer,
    corpora: list[Counts],
    records: Mapping[str, Any],
    watch: Watch,
) -> Iterator[tuple[Counts, list[int], list[int]]]:
    """(counts of the corpus, src ids, tgt ids) of every pair that passes `clean_text`."""
    root = data_root(data)
    # One filter for all corpora: a pair that is in two of them is a duplicate too.
    duplicates = DuplicateFilter() if data.dedupe else None
    if duplicates is not None:
        for number in _heavier_than_before(sources):
            source = sources[number]
            duplicates.reserve(read_pairs(source, root, _name(where, number)), source.weight)
    for number, (source, counts) in enumerate(zip(sources, corpora, strict=True)):
        total = 0  # is not known of rows, whose lines need not be pairs
        if format_of(source, root) == "text":
            total = sum(records[str(path)]["lines"] or 0 for path in local_files(source, root)) // 2
        pairs = watch(read_pairs(source, root, _name(where, number)), total or None)
        cleaned = clean_text(pairs, counts, duplicates, source.weight)
        while chunk := list(islice(cleaned, LINES_PER_CHUNK)):
            src = tokenizer.encode_src([pair[0] for pair in chunk])
            tgt = tokenizer.encode_tgt([pair[1] for pair in chunk])
            for src_ids, tgt_ids in zip(src, tgt, strict=True):
                yield counts, src_ids, tgt_ids
