"""Encode texts in parts of a million pairs, in any order and by any process; then merge them.

A part is a folder that appears whole, so a build that was killed continues with the parts that it
lacks, and the jobs of an array each encode some. Text is read once: duplicates are encoded too, and
dropped in merging, when the keys of all pairs are known.
"""

from __future__ import annotations

import json
import shutil
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mt.data.reading.corpus import data_root, local_files, read_pairs
from mt.data.reading.formats import format_of
from mt.data.tokens.duplicates import DuplicateFinder, pair_keys
from mt.data.tokens.filters import LENGTH_FAULTS, Counts, length_fault, with_text
from mt.errors import DataError
from mt.files import new_result, read_json
from mt.runtime.machine import usable_cores

if TYPE_CHECKING:
    from mt.config.schema import DataConfig, Source
    from mt.data.reading.text_files import FileRecords
    from mt.data.tokens.tokenizer import Tokenizer

PAIRS_PER_PART = 1_000_000
# Lines encoded at a time: enough to occupy SentencePiece's threads, few enough for the memory.
LINES_PER_CHUNK = 20_000
# Longest sides, eos counted, of which two can be added in 16 bits.
LONGEST_IN_16_BITS = 2**15 - 1
SPACE = "\u2581"  # SentencePiece's piece for a space
TOKEN_FILES = ("src.tokens", "tgt.tokens")

# Yields the pairs that it is given, and may count them; also gets what is done with them, and how
# many there are, None where that is not known.
Watch: TypeAlias = Callable[
    [Iterator[tuple[str, str]], str, "int | None"], Iterable[tuple[str, str]]
]
# Whose part of the work it is: (1, 4) is the first of four.
Shard: TypeAlias = tuple[int, int]
ALONE: Shard = (1, 1)


@dataclass(frozen=True)
class StoreTexts:
    """What a store is made of, and how."""

    sources: list[Source]
    where: str  # their key in the config, for messages
    data: DataConfig
    tokenizer: Tokenizer
    records: FileRecords

    def name(self, number: int) -> str:
        """A corpus in messages: one of several for training, else the only one."""
        is_train = self.where == "data.train"
        return f"{self.where}[{list(self.data.texts)[number]}]" if is_train else self.where

    def tags(self, number: int) -> list[str | None]:
        """The tags before source and target of a corpus: the second is for the pairs reversed."""
        is_train = self.where == "data.train"
        return self.data.tags_of(list(self.data.texts)[number]) if is_train else [None, None]

    def languages(self, number: int) -> list[str | None]:
        """The languages whose tokens stand before source and target of a corpus; None: no token."""
        if self.where == "data.train":
            return self.data.token_languages(list(self.data.texts)[number])
        into = self.data.direction(self.sources[number])[1]
        return [into if self.data.language_tokens else None, None]

    def first_ids(self, number: int) -> list[list[int]]:
        """The tokens of languages before source and target. Raises DataError for one unknown."""
        known = self.tokenizer.languages
        if missing := [code for code in self.languages(number) if code and code not in known]:
            raise DataError(
                f"data.language_tokens: the vocabulary has no token for {missing[0]}, found "
                f"{', '.join(known) or 'none'}; an existing vocabulary cannot get it: train a "
                "new one, or set language_tokens to false"
            )
        return [[known[code]] if code else [] for code in self.languages(number)]

    def prefixes(self, number: int) -> list[str]:
        """What stands before source and target. Raises DataError where it is not one token."""
        for tag in filter(None, self.tags(number)):
            pieces = self.tokenizer.src.pieces(tag)
            if [piece for piece in pieces if piece != SPACE] != [tag]:
                raise DataError(
                    f"{self.name(number)}.tag: must be one token of the vocabulary, found {tag} as "
                    f"{' '.join(pieces)}; a vocabulary that exists cannot get it: train a new one "
                    "with tokenizer.user_defined_symbols, or remove the tag"
                )
        return [f"{tag} " if tag else "" for tag in self.tags(number)]

    @property
    def id_type(self) -> np.dtype[Any]:
        """The smallest type that holds all ids."""
        largest = max(self.tokenizer.src.size, self.tokenizer.tgt.size)
        return np.dtype("<u2" if largest <= 2**16 else "<u4")

    @property
    def length_type(self) -> np.dtype[Any]:
        """The smallest type that holds the length of a pair."""
        return np.dtype("<u2" if self.data.max_tokens < LONGEST_IN_16_BITS else "<u4")

    def corpora(self, watch: Watch) -> Iterator[Iterator[tuple[str, str]]]:
        """The pairs of each corpus, watched."""
        root = data_root(self.data)
        for number, source in enumerate(self.sources):
            total = 0  # is not known of rows, whose lines need not be pairs
            if format_of(source, root) == "text":
                files = local_files(source, root)
                total = sum(self.records[str(path)]["lines"] or 0 for path in files) // 2
            pairs = read_pairs(source, root, self.name(number))
            yield iter(watch(pairs, f"encoding {self.where}", total or None))


def use_work_folder(work: Path, fingerprint: str) -> None:
    """Make the folder of parts; parts that were encoded for another store are removed.

    Only one process at a time may call it. Raises OSError.
    """
    file = work / "key"
    key = f"{fingerprint}/{PAIRS_PER_PART}"
    if not file.exists() or file.read_text(encoding="utf-8") != key:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        file.write_text(key, encoding="utf-8")


def encode_parts(work: Path, texts: StoreTexts, watch: Watch, shard: Shard = ALONE) -> list[Path]:
    """Encode those parts of `shard` that are not in `work`; the folders of all parts, in order.

    Those of other shards need not exist. Raises OSError, and DataError where a text cannot be read.
    """
    parts: list[Path] = []
    number, of = shard
    for corpus, pairs in enumerate(texts.corpora(watch)):
        for first in pairs:
            part = work / f"{len(parts):05}"
            own = chain([first], islice(pairs, PAIRS_PER_PART - 1))
            if len(parts) % of == number - 1 and not part.exists():
                _encode_part(part, corpus, own, texts)
            else:
                for _ in own:
                    pass
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
    before_src, before_tgt = texts.prefixes(corpus)
    first_src, first_tgt = texts.first_ids(corpus)
    # Pairs of several languages may have one text, such as a name, and are no duplicates.
    languages = " ".join(map(str, texts.languages(corpus))) if any(first_src + first_tgt) else ""
    with new_result(part) as partial, ExitStack() as stack:
        files = [stack.enter_context((partial / name).open("wb")) for name in TOKEN_FILES]
        while chunk := list(islice(cleaned, LINES_PER_CHUNK)):
            if texts.data.dedupe:
                keys.append(pair_keys([(languages + src, tgt) for src, tgt in chunk]))
            src = texts.tokenizer.src.encode([before_src + src for src, _ in chunk], threads)
            tgt = texts.tokenizer.tgt.encode([before_tgt + tgt for _, tgt in chunk], threads)
            # What is empty must stay so, to be found.
            src = [first_src + ids if ids else ids for ids in src]
            tgt = [first_tgt + ids if ids else ids for ids in tgt]
            rows = list(zip(src, tgt, strict=True))
            found = [length_fault(len(src), len(tgt), texts.data) for src, tgt in rows]
            faults += bytes(map(LENGTH_FAULTS.index, found))
            kept = [row for row, fault in zip(rows, found, strict=True) if not fault]
            lengths.extend(chain.from_iterable((len(src), len(tgt)) for src, tgt in kept))
            for side, file in enumerate(files):
                ids = chain.from_iterable(row[side] for row in kept)
                file.write(np.fromiter(ids, texts.id_type).tobytes())
        np.save(partial / "lengths.npy", np.array(lengths, texts.length_type).reshape(-1, 2).T)
        np.save(partial / "keys.npy", np.concatenate(keys))
        np.save(partial / "faults.npy", np.frombuffer(faults, np.uint8))
        meta = {"corpus": corpus, "counts": asdict(counts)}
        (partial / "meta.json").write_text(json.dumps(meta), encoding="utf-8")


def merge_parts(work: Path, parts: list[Path], texts: StoreTexts) -> tuple[Path, list[Counts]]:
    """Join the parts, without duplicates, in a folder inside `work`; also the counts by corpus.

    Raises OSError, and DataError where a part is damaged.
    """
    try:
        return _merged(work, parts, texts)
    except (FileNotFoundError, ValueError, TypeError, LookupError, EOFError) as error:
        raise DataError(
            f"{work}: a part of the token store is damaged ({error}); the parts are removed: run "
            "the same command again, which encodes the texts anew"
        ) from error


def _merged(work: Path, parts: list[Path], texts: StoreTexts) -> tuple[Path, list[Counts]]:
    metas = [read_json(part / "meta.json") for part in parts]
    corpora = [Counts() for _ in texts.sources]
    merged = work / "merged"
    shutil.rmtree(merged, ignore_errors=True)
    merged.mkdir()
    lengths = [np.empty((2, 0), texts.length_type)]
    duplicates = _find_duplicates(work, parts, metas, texts)
    with ExitStack() as stack:
        files = [stack.enter_context((merged / name).open("wb")) for name in TOKEN_FILES]
        for part, meta, dropped in zip(parts, metas, duplicates, strict=True):
            faults = np.load(part / "faults.npy")
            found = np.bincount(faults[~dropped], minlength=len(LENGTH_FAULTS))
            by_reason = zip(LENGTH_FAULTS[1:], map(int, found[1:]), strict=True)
            counts = Counts(duplicate=int(dropped.sum()), **dict(by_reason))
            corpora[meta["corpus"]] += Counts(**meta["counts"]) + counts
            stays = ~dropped[faults == 0]
            own_lengths = np.load(part / "lengths.npy")
            lengths.append(own_lengths[:, stays])
            for name, file, side in zip(TOKEN_FILES, files, own_lengths, strict=True):
                ids = np.fromfile(part / name, texts.id_type)
                file.write(ids[np.repeat(stays, side)].tobytes())
    np.save(merged / "lengths.npy", np.concatenate(lengths, axis=1))
    return merged, corpora


def _find_duplicates(
    work: Path, parts: list[Path], metas: list[dict[str, Any]], texts: StoreTexts
) -> list[npt.NDArray[np.bool_]]:
    """Of each part, whether a pair with text equals another one, of its own or another corpus."""
    sizes = [len(np.load(part / "faults.npy", mmap_mode="r")) for part in parts]
    if not texts.data.dedupe:
        return [np.zeros(size, np.bool_) for size in sizes]
    finder = DuplicateFinder(work / "keys", [source.weight for source in texts.sources])
    for part, meta in zip(parts, metas, strict=True):
        finder.add(meta["corpus"], np.load(part / "keys.npy"))
    # Parts follow each other as the pairs of the corpora do.
    return np.split(np.concatenate(finder.dropped()), np.cumsum(sizes)[:-1])
