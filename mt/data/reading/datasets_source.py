"""Rows of data sets that the `datasets` library reads: Parquet, save_to_disk and the hub."""

from __future__ import annotations

import glob
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mt.data.reading.compression import suffix_of
from mt.data.reading.formats import SUFFIXES, format_of, local_files
from mt.data.reading.text_files import existing_path, is_pattern, matching_files, under
from mt.errors import DataError

if TYPE_CHECKING:
    from mt.config.schema import Source
    from mt.data.reading.columns import Row

# Of Parquet. By default a batch has the rows of a file's first group, and an empty file has none.
BATCHES = {"batch_size": 1000}


def read_dataset(source: Source, root: Path, where: str, stream: bool = False) -> Iterator[Row]:
    """The rows of Parquet files, a folder of them, a folder of save_to_disk or a hub data set.

    With `stream` a hub data set is not downloaded whole. Every error of the library becomes a
    `DataError`.
    """
    number = 0
    try:
        for batch in _open_dataset(source, root, where, stream).iter(batch_size=1000):
            for cells in zip(*batch.values(), strict=True):
                number += 1
                place = f"{source.path}, row {number:,} (the first is 1)"
                yield place, dict(zip(batch, cells, strict=True))
    except DataError:
        raise
    except Exception as error:  # the library passes on whatever its many readers raise
        raise DataError(_unreadable(source, root, where, error)) from error


def _open_dataset(source: Source, root: Path, where: str, stream: bool) -> Any:
    """A `Dataset` or `IterableDataset`: local files, local folder or hub name, in this order."""
    import datasets
    import huggingface_hub

    # Errors reach the user as one message of ours, without the libraries' own output.
    for library in (datasets, huggingface_hub):
        library.utils.disable_progress_bars()
        logging.getLogger(library.__name__).setLevel(logging.CRITICAL)
    name = cast(str, source.path)
    path = under(root, name)
    if path.is_dir():
        return _folder_dataset(source, path, where)
    files = local_files(source, root)
    if format_of(source, root) == "parquet" and files:
        require_split(source, path, where, ["train"])
        literal = [glob.escape(str(file.absolute())) for file in files]
        return _load_local("parquet", data_files={"train": literal}, **BATCHES)["train"]
    if path.exists():
        raise DataError(
            f"{where}.path: {path} is not of a type that mt reads; required is "
            f"{', '.join(SUFFIXES)} or a folder written by save_to_disk. Set format if the name "
            "does not say it; for two line-aligned text files leave path out and set src and tgt "
            "to the files."
        )
    is_path = name.startswith((".", "/", "~")) or name.count("/") > 1  # not owner/name or name
    if is_path or is_pattern(name) or suffix_of(Path(name)) in SUFFIXES:
        existing_path(name, root, f"{where}.path")  # raises
    # A part of a split ("train[:1000]") cannot be streamed.
    streaming = stream and not set("[+") & set(source.split)
    return datasets.load_dataset(name, source.name, split=source.split, streaming=streaming)


def _load_local(loader: str, **options: Any) -> Any:
    """All splits of local files, streamed: nothing is copied to disk."""
    import datasets

    # The scratch folder only holds the library's lock file.
    with tempfile.TemporaryDirectory() as scratch:
        return datasets.load_dataset(loader, streaming=True, cache_dir=scratch, **options)


def _folder_dataset(source: Source, path: Path, where: str) -> Any:
    """A split of a folder written by save_to_disk, or of Parquet files as downloaded."""
    import datasets

    if any((path / name).is_file() for name in ("dataset_dict.json", "state.json")):
        saved = datasets.load_from_disk(str(path))
        splits = saved if isinstance(saved, datasets.DatasetDict) else {"train": saved}
        require_split(source, path, where, list(splits))
        return splits[source.split].with_format(None)
    if any(path.rglob("*.parquet")):
        # The library finds the splits in the names of the files, or in a data card (README.md).
        kinds = {SUFFIXES.get(suffix_of(file), "parquet") for file in path.rglob("*")}
        batches = BATCHES if kinds == {"parquet"} else {}  # the library may read others
        splits = _load_local(str(path.absolute()), name=source.name, **batches)
        require_split(source, path, where, list(splits))
        return splits[source.split]
    raise DataError(
        f"{where}.path: {path} is a folder without files of a format that mt reads "
        f"({', '.join(SUFFIXES)}, or text whose names end in .{source.src} and .{source.tgt}), and "
        "save_to_disk did not write it. Set src and tgt to the endings, or format to the format."
    )


def require_split(source: Source, path: Path, where: str, splits: list[str]) -> None:
    """Raise `DataError` if the split of a source is not among these."""
    if source.split not in splits:
        raise DataError(
            f"{where}.split: {path} has no split {source.split!r}; set split to one that it has: "
            f"{', '.join(map(repr, splits))}."
        )


def _unreadable(source: Source, root: Path, where: str, error: Exception) -> str:
    path = under(root, cast(str, source.path))
    reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    if any(file.exists() for file in matching_files(cast(str, source.path), root)):
        return (
            f"{where}.path: {path} cannot be read with the datasets library: {reason}. Repair or "
            "write the file again; every row needs the same columns."
        )
    return (
        f"{where}.path: {source.path!r} cannot be opened. Tried: {path.absolute()} (no such file "
        f"or folder), then the hub data set {source.path!r}, name {source.name!r}, split "
        f"{source.split!r} ({reason}). Correct path, name or split; without a network, download "
        f"the data set beforehand or name a local file.{_set_of_sacrebleu(source)}"
    )


def _set_of_sacrebleu(source: Source) -> str:
    """A hint for a test set that stands in the place of a path."""
    from sacrebleu import DATASETS

    name = source.path
    return f" The test set of sacreBLEU is {{test_set: {name}}}." if name in DATASETS else ""
