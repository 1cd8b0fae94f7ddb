"""Which format a source has: by names, folders and patterns."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from mt.config.data_schema import SourceFormat
from mt.data.reading.compression import PACKED, suffix_of, unpacked_name
from mt.data.reading.text_files import is_pattern, matching_files, under

if TYPE_CHECKING:
    from mt.config.schema import Source

# Suffix of a file's name -> its format. All other names may be a side of a text, such as train.de.
SUFFIXES: dict[str, SourceFormat] = {
    **{".tsv": "tsv", ".txt": "tsv", ".csv": "csv", ".json": "json", ".jsonl": "jsonl"},
    **{".parquet": "parquet", ".tmx": "tmx", ".xlf": "xliff", ".xliff": "xliff"},
    **{".sdlxliff": "xliff", ".mxliff": "xliff", ".mqxliff": "xliff"},
}
# Files that tell about the others in a folder; of a hidden folder, all. manifesto.de is a text.
_ABOUT = re.compile(
    r"(?:.*/)?(?:[.].*|_.*|(?:readme|licen[cs]e|citation|dataset_infos?|manifest)\b[^/]*)", re.I
)


def format_of(source: Source, root: Path) -> SourceFormat:
    """The format that a source says, else that of its name, or of the files in its folder."""
    if source.path is None:
        return "text"
    if source.format is not None:
        return source.format
    path = under(root, source.path)
    if not os.path.isdir(path):
        if suffix_of(path) in SUFFIXES:
            return SUFFIXES[suffix_of(path)]
        sides = (files_ending(source, name, root) for name in (source.src, source.tgt))
        if not os.path.exists(path) and any(sides):
            return "text"
    return next(iter(found_formats(source, root)), "dataset")


def found_formats(source: Source, root: Path) -> dict[SourceFormat, Path]:
    """The formats of the files in a folder or of a pattern, and the first file of each."""
    name = source.path or ""
    path = under(root, name)
    if any(os.path.isfile(path / saved) for saved in ("dataset_dict.json", "state.json")):
        return {"dataset": path}  # written by save_to_disk
    files = matching_files(name, root) if is_pattern(name) else []
    files = texts_in(path) if os.path.isdir(path) else files
    first = {
        format_in_folder(source, file): file for file in reversed(files) if os.path.isfile(file)
    }
    return {kind: first[kind] for kind in get_args(SourceFormat) if kind in first}


def format_in_folder(source: Source, file: Path) -> SourceFormat | None:
    """The format of a file of a folder; a name that ends in a language is a side of a text."""
    endings = (f".{source.src}", f".{source.tgt}")
    return "text" if unpacked_name(file.name).endswith(endings) else SUFFIXES.get(suffix_of(file))


def texts_in(folder: Path) -> list[Path]:
    """The files in a folder without those that are about others, and without hidden ones."""
    files = sorted(filter(os.path.isfile, folder.rglob("*")))
    return [file for file in files if not _ABOUT.fullmatch(file.relative_to(folder).as_posix())]


def files_ending(source: Source, ending: str, root: Path) -> dict[tuple[str, ...], Path]:
    """The files whose names are `path`, a dot and the ending, plain or compressed."""
    path = under(root, source.path or "")
    if os.path.isdir(path):
        names = {file: unpacked_name(str(file.relative_to(path))) for file in texts_in(path)}
        return {
            (name.removesuffix(f".{ending}"),): file
            for file, name in names.items()
            if name.endswith(f".{ending}")
        }
    files: dict[tuple[str, ...], Path] = {}
    for packed in ("", *PACKED):
        name = f"{source.path}.{ending}{packed}"
        for key, file in by_wildcards(name, under(root, name), root).items():
            if file.exists():
                files.setdefault(key, file)
    return files


def by_wildcards(name: str, path: Path, root: Path) -> dict[tuple[str, ...], Path]:
    """Files by the text that the wildcards of `name` stand for; `()` where it has none."""
    if path.exists() or not is_pattern(name):
        return {(): path}
    pattern = re.escape(str(path)).replace(r"\*", "([^/]*)").replace(r"\?", "([^/])")
    matches = ((re.fullmatch(pattern, str(file)), file) for file in matching_files(name, root))
    return {match.groups(): file for match, file in matches if match}
