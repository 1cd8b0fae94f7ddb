"""Pairs become token ids on disk, once: memory-mapped, so that any process can share them.

A store is a folder with `src.tokens` and `tgt.tokens` (ids end to end, no bos or eos), `lengths.npy` and
`meta.json`. It is written beside its place and renamed when complete.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mt.data.clean import Counts, clean_text, keeps_length
from mt.data.corpus import data_root, file_facts, local_files, read_pairs
from mt.errors import DataError
from mt.files import sync_files, sync_folder, write_whole

if TYPE_CHECKING:
    from mt.config.schema import DataConfig, Source
    from mt.data.tokenizer import Tokenizer

FORMAT = 1
# Lines encoded at a time: enough to keep SentencePiece's threads busy, little enough to keep in memory.
CHUNK = 20_000

Ids = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Store:
    """Token ids of n pairs, and where each corpus of the config ends."""

    src: Ids  # all source ids end to end
    tgt: Ids
    src_lengths: npt.NDArray[np.int64]  # (n,) tokens without eos
    tgt_lengths: npt.NDArray[np.int64]  # (n,)
    src_starts: npt.NDArray[np.int64]  # (n,) where each source begins in `src`
    tgt_starts: npt.NDArray[np.int64]  # (n,)
    kept: tuple[int, ...]  # pairs of each source of the config, one source after the other
    counts: str  # what was kept and dropped, in words
    fingerprint: str

    def __len__(self) -> int:
        return len(self.src_lengths)

    def pair(self, index: int) -> tuple[Ids, Ids]:
        """Ids of source and target of one pair, without bos and eos."""
        s, t = self.src_starts[index], self.tgt_starts[index]
        return self.src[s : s + self.src_lengths[index]], self.tgt[t : t + self.tgt_lengths[index]]


def fingerprint_of(
    sources: list[Source], data: DataConfig, tokenizer: Tokenizer, facts: dict[str, Any]
) -> str:
    """SHA-256 over all that decides what is in the store: texts, tokenizer and limits.

    Not the names of the texts: a corpus that has moved is still the same.
    """
    root = data_root(data)

    def text(source: Source) -> list[Any]:
        columns = source.path and [source.src, source.tgt, source.name, source.split]
        files = [facts[str(path)]["sha256"] for path in local_files(source, root)]
        return [columns, files or source.path]

    content = {
        "format": FORMAT,
        "sources": [text(source) for source in sources],
        "tokenizer": tokenizer.fingerprint,
        "limits": [data.max_tokens, data.max_length_ratio, data.dedupe],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def corpus_facts(sources: list[Source], data: DataConfig, known: dict[str, Any]) -> dict[str, Any]:
    """Size, SHA-256 and lines of every local file; `known` facts are reused while size and time agree."""
    root, facts = data_root(data), {}
    for source in sources:
        for path in local_files(source, root):
            name, stat = str(path), path.stat()
            old = known.get(name)
            if old and old["size"] == stat.st_size and old["mtime_ns"] == stat.st_mtime_ns:
                facts[name] = old
                continue
            sha256, lines = file_facts(path)
            facts[name] = {
                "size": stat.st_size,
                "mtime_ns": stat.st_mtime_ns,
                "sha256": sha256,
                "lines": lines,
            }
    return facts


def known_facts(folder: Path) -> dict[str, Any]:
    """The facts of the files that the store in `folder` was built from; empty where there is none."""
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
) -> Store:
    """The store of these texts in `folder`, built if it is not there or is another's.

    Of several processes one alone calls this, for it writes. Raises DataError where a text cannot be read, or no pair
    is left.
    """
    known = known_facts(folder)
    facts = corpus_facts(sources, data, known)
    fingerprint = fingerprint_of(sources, data, tokenizer, facts)
    store = _open(folder, fingerprint)
    try:
        if store is None:
            _build(
                folder,
                sources,
                where,
                data,
                tokenizer,
                {"fingerprint": fingerprint, "facts": facts},
            )
            store = _open(folder, fingerprint)
            assert store is not None
        elif facts != known:  # the same texts elsewhere
            meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
            write_whole(folder / "meta.json", json.dumps(meta | {"facts": facts}, indent=1))
    except OSError as error:
        # numpy reports a full disk without the system's reason.
        reason = f"{folder}: the token store cannot be written: {error.strerror or error}"
        raise DataError(f"{reason}; make room there or choose another --run-dir") from error
    log(f"{where}: {store.counts}")
    return store


def open_built(folder: Path) -> Store:
    """The store that another process has built in `folder`, whatever of; the texts are not looked at.

    Raises DataError where there is none.
    """
    store = _open(folder)
    if store is None:
        raise DataError(f"{folder}: holds no whole token store.")
    return store


def _open(folder: Path, wanted: str | None = None) -> Store | None:
    """The store in `folder`; None where it is not whole, or not of the fingerprint `wanted`."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        fingerprint = str(meta["fingerprint"])
        if wanted not in (None, fingerprint):
            return None
        lengths = np.load(folder / "lengths.npy").astype(np.int64)  # (2, n)
        dtype = np.dtype(meta["dtype"])
        src, tgt = (
            np.memmap(folder / f"{side}.tokens", dtype=dtype, mode="r") for side in ("src", "tgt")
        )
        kept, counts = tuple(meta["kept"]), meta["counts"]
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        EOFError,
    ):  # EOFError: numpy's word for an empty file
        return None
    if len(src) != lengths[0].sum() or len(tgt) != lengths[1].sum():
        return None
    starts = lengths.cumsum(axis=1) - lengths  # (2, n)
    return Store(
        src, tgt, lengths[0], lengths[1], starts[0], starts[1],
        kept, counts, fingerprint,
    )  # fmt: skip


def _build(
    folder: Path,
    sources: list[Source],
    where: str,
    data: DataConfig,
    tokenizer: Tokenizer,
    meta: dict[str, Any],
) -> None:
    counts, kept = Counts(), [0] * len(sources)
    lengths = array(
        "I"
    )  # src, tgt, src, tgt, ...: 8 bytes a pair, where a list of tuples takes 100
    widest = max(tokenizer.src_vocab_size, tokenizer.tgt_vocab_size)
    dtype = np.dtype("<u2" if widest <= 2**16 else "<u4")
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        with (
            (partial / "src.tokens").open("wb") as src_file,
            (partial / "tgt.tokens").open("wb") as tgt_file,
        ):
            for number, src, tgt in _encoded(sources, where, data, tokenizer, counts):
                if keeps_length(len(src), len(tgt), data, counts):
                    src_file.write(np.asarray(src, dtype).tobytes())
                    tgt_file.write(np.asarray(tgt, dtype).tobytes())
                    lengths.extend((len(src), len(tgt)))
                    kept[number] += 1
        if not lengths:
            raise DataError(
                f"{where}: no pair is left ({counts.summary(data)}); check that the files are the "
                "right ones, or loosen data.max_tokens and data.max_length_ratio"
            )
        np.save(partial / "lengths.npy", np.asarray(lengths, np.uint32).reshape(-1, 2).T)
        meta |= {"dtype": dtype.str, "kept": kept, "counts": counts.summary(data)}
        (partial / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")
        sync_files(partial)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _encoded(
    sources: list[Source], where: str, data: DataConfig, tokenizer: Tokenizer, counts: Counts
) -> Iterator[tuple[int, list[int], list[int]]]:
    """(number of the source, src ids, tgt ids) of every pair that holds text."""
    root, current = data_root(data), 0

    def all_pairs() -> Iterator[tuple[str, str]]:
        nonlocal current
        for current, source in enumerate(sources):
            name = f"{where}[{current}]" if where == "data.train" else where
            yield from read_pairs(source, root, name)

    # One filter for all corpora: a pair that stands in two of them is a duplicate too.
    tagged = ((current, pair) for pair in clean_text(all_pairs(), data.dedupe, counts))
    while chunk := list(islice(tagged, CHUNK)):
        src = tokenizer.encode_src([pair[0] for _, pair in chunk])
        tgt = tokenizer.encode_tgt([pair[1] for _, pair in chunk])
        for (number, _), src_ids, tgt_ids in zip(chunk, src, tgt, strict=True):
            yield number, src_ids, tgt_ids
