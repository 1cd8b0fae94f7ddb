"""Rows of data sets that the `datasets` library reads: Parquet, save_to_disk and the hub."""

from __future__ import annotations

import glob
import logging
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mt.data.reading import text_files
from mt.data.reading.compression import suffix_of
from mt.data.reading.text import SUFFIXES, Row, RowText, is_saved_to_disk
from mt.data.reading.text_files import existing_path, matching_files
from mt.errors import DataError

# Of Parquet. By default a batch has the rows of a file's first group, and an empty file has none.
BATCHES = {"batch_size": 1000}


@dataclass(frozen=True)
class DataSetText(RowText):
    """Parquet files, a folder of them, a folder of save_to_disk or a hub data set."""

    @property
    def files(self) -> list[Path]:
        """All of a folder, which consists of other files too."""
        if os.path.isdir(self.path):
            return sorted(filter(os.path.isfile, self.path.rglob("*")))
        return super().files

    def rows(self) -> Iterator[Row]:
        """The rows; every error of the library becomes a `DataError`."""
        number = 0
        try:
            for batch in self._open().iter(batch_size=1000):
                for cells in zip(*batch.values(), strict=True):
                    number += 1
                    place = f"{self.source.path}, row {number:,} (the first is 1)"
                    yield place, dict(zip(batch, cells, strict=True))
        except DataError:
            raise
        except Exception as error:  # the library passes on whatever its many readers raise
            raise DataError(self._unreadable(error)) from error

    def _open(self) -> Any:
        """A data set of the library: local files, local folder or hub name, in this order."""
        import datasets
        import huggingface_hub

        # Errors reach the user as one message of ours, without the libraries' own output.
        for library in (datasets, huggingface_hub):
            library.utils.disable_progress_bars()
            logging.getLogger(library.__name__).setLevel(logging.CRITICAL)
        source, path, name = self.source, self.path, str(self.source.path)
        if path.is_dir():
            return self._of_folder()
        if self.format == "parquet" and self.files:
            self.require_split(path, ["train"])
            literal = [glob.escape(str(file.absolute())) for file in self.files]
            return _load_local("parquet", data_files={"train": literal}, **BATCHES)["train"]
        if path.exists():
            raise DataError(
                f"{self.where}.path: {path} is not of a type that mt reads; required is "
                f"{', '.join(SUFFIXES)} or a folder written by save_to_disk. Set format if the "
                "name does not say it; for two line-aligned text files leave path out and set src "
                "and tgt to the files."
            )
        is_path = name.startswith((".", "/", "~")) or name.count("/") > 1  # not owner/name or name
        if is_path or text_files.is_pattern(name) or suffix_of(Path(name)) in SUFFIXES:
            existing_path(name, self.root, f"{self.where}.path")  # raises
        # A part of a split ("train[:1000]") cannot be streamed.
        streaming = self.stream and not set("[+") & set(source.split)
        return datasets.load_dataset(name, source.name, split=source.split, streaming=streaming)

    def _of_folder(self) -> Any:
        """A split of a folder written by save_to_disk, or of Parquet files as downloaded."""
        import datasets

        path, split = self.path, self.source.split
        if is_saved_to_disk(path):
            saved = datasets.load_from_disk(str(path))
            splits = saved if isinstance(saved, datasets.DatasetDict) else {"train": saved}
            self.require_split(path, list(splits))
            return splits[split].with_format(None)
        if any(path.rglob("*.parquet")):
            # The library finds the splits in the names of the files, or in a data card (README.md).
            kinds = {SUFFIXES.get(suffix_of(file), "parquet") for file in path.rglob("*")}
            batches = BATCHES if kinds == {"parquet"} else {}  # the library may read others
            splits = _load_local(str(path.absolute()), name=self.source.name, **batches)
            self.require_split(path, list(splits))
            return splits[split]
        raise DataError(
            f"{self.where}.path: {path} is a folder without files of a format that mt reads "
            f"({', '.join(SUFFIXES)}, or text whose names end in .{self.source.src} and "
            f".{self.source.tgt}), and save_to_disk did not write it. Set src and tgt to the "
            "endings, or format to the format."
        )

    def _unreadable(self, error: Exception) -> str:
        source, path, name = self.source, self.path, str(self.source.path)
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        if any(file.exists() for file in matching_files(name, self.root)):
            return (
                f"{self.where}.path: {path} cannot be read with the datasets library: {reason}. "
                "Repair or write the file again; every row needs the same columns."
            )
        return (
            f"{self.where}.path: {name!r} cannot be opened. Tried: {path.absolute()} (no such file "
            f"or folder), then the hub data set {name!r}, name {source.name!r}, split "
            f"{source.split!r} ({reason}). Correct path, name or split; without a network, "
            "download the data set beforehand or name a local file."
        )


def _load_local(loader: str, **options: Any) -> Any:
    """All splits of local files, streamed: nothing is copied to disk."""
    import datasets

    # The scratch folder only holds the library's lock file.
    with tempfile.TemporaryDirectory() as scratch:
        return datasets.load_dataset(loader, streaming=True, cache_dir=scratch, **options)
