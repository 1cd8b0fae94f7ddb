"""The token store: the pairs of a corpus as token ids on disk, memory-mapped and so shared.

A store is a folder with `pairs.tokens` (ids of source and target in turn, end to end, no bos or
eos), `lengths.npy` and `meta.json`. It is built in a folder beside it (see `store_parts`) and put
in its place when complete.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mt.artefacts import content_key, is_made, key_of, make
from mt.data.reading.corpus import local_files
from mt.data.reading.text_files import FileRecords, file_record
from mt.data.tokens.filters import Counts
from mt.data.tokens.store_parts import (
    TOKENS,
    StoreTexts,
    Watch,
    encode_parts,
    merge_parts,
    use_work_folder,
)
from mt.errors import DataError
from mt.files import read_json, write_whole

if TYPE_CHECKING:
    from mt.config.plan import Corpus

FORMAT = 2
META = "meta.json"
# Pairs of whose starts in the file of tokens one is kept in memory.
BLOCK = 32

Ids: TypeAlias = npt.NDArray[np.integer[Any]]
Starts: TypeAlias = npt.NDArray[np.int64]


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
        "tokenizer": texts.tokenizer.fingerprint,
        "limits": texts.limits,
        "tokens before": texts.n_before,
        "languages": [corpus.direction for corpus in texts.corpora] if texts.by_language else [],
    }
    places = range(len(texts.corpora))
    heaviest_first = sorted(places, key=lambda number: -texts.corpora[number].weight)
    if texts.limits.dedupe:
        content["duplicates stay in"] = heaviest_first
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
    """Open the store of these texts in `folder`; build it if it is missing, damaged or outdated.

    `watch` gets the pairs of each corpus that are encoded. Of several processes one builds it, and
    the others wait. A build that was killed continues with the parts that it lacks. Raises
    DataError where a text cannot be read or no pair is left.
    """
    fingerprint = fingerprint_of(texts)
    work = folder.with_name(folder.name + ".partial")
    watched = watch or (lambda pairs, *_: pairs)

    def wait() -> None:
        log(f"{texts.where}: waiting for another process, which builds the token store")

    def build(partial: Path) -> None:
        use_work_folder(work, fingerprint)
        try:
            _merge(work, partial, encode_parts(work, texts, watched), texts)
        except DataError:  # other texts or settings are needed, and so other parts
            shutil.rmtree(work, ignore_errors=True)
            raise

    try:
        make(folder, fingerprint, build, wait)
        shutil.rmtree(work, ignore_errors=True)
        if texts.records != known_records(folder):  # the same texts in another place
            meta = meta_of(folder) | {"records": texts.records}
            write_whole(folder / META, json.dumps(meta, indent=1))
    except OSError as error:
        # numpy reports a full disk without the system's reason.
        reason = f"{folder}: the token store cannot be written: {error.strerror or error}"
        raise DataError(
            f"{reason}; free some space and run the same command again, which continues after the "
            "parts that are encoded, or choose another --run-dir"
        ) from error
    store = open_built(folder)
    log(f"{texts.where}: {store.counts}")
    for line in _corpus_messages(store.corpora, texts):
        log(line)
    return store


def _merge(work: Path, folder: Path, parts: list[Path], texts: StoreTexts) -> None:
    """Fill the folder of a store from the parts in `work`. Raises DataError, OSError."""
    corpora = merge_parts(work, folder, parts, texts)
    total = sum(corpora, Counts())
    if not total.kept:
        raise DataError(
            f"{texts.where}: no pair is left ({total.summary(texts.limits)}); check that the files "
            "are the right ones, or raise data.max_tokens and data.max_length_ratio"
        )
    meta = {
        "records": texts.records,
        "dtype": texts.id_type.str,
        "kept": [counts.kept for counts in corpora],
        "counts": total.summary(texts.limits),
        "corpora": [asdict(counts) for counts in corpora],
    }
    (folder / META).write_text(json.dumps(meta, indent=1), encoding="utf-8")


def _corpus_messages(corpora: Sequence[Counts], texts: StoreTexts) -> Iterator[str]:
    """The counts of each of several corpora, and a warning where one loses more than half."""
    for counts, corpus in zip(corpora, texts.corpora, strict=False):
        name = f"{corpus.name} ({corpus.file})"
        if len(corpora) > 1:
            yield f"{name}: {counts.summary(texts.limits)}"
        if 2 * counts.kept >= counts.read:
            continue
        reason = ". Check that source and target belong together, and the limits in data"
        if 2 * counts.duplicate > counts.read - counts.kept:
            reason = (
                ", most others are duplicates: a pair stays in the corpus of the highest weight, "
                "else in the first one. Set data.dedupe to false to use them all"
            )
        yield f"warning: {name}: only {counts.kept:,} of {counts.read:,} pairs kept{reason}"


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
        raise DataError(f"{folder}: contains no complete token store.") from None
