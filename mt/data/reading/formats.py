"""Which format a source has, and which files belong to it: by names, folders and patterns."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from mt.config.data_schema import SourceFormat
from mt.data.reading.compression import PACKED, suffix_of, unpacked_name
from mt.data.reading.test_sets import fetched_files, files_of_set
from mt.data.reading.text_files import existing_path, is_pattern, matching_files, under
from mt.errors import DataError

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
        if any(_sides(source, root)) and not os.path.exists(path):
            return "text"
    return next(iter(found_formats(source, root)), "dataset")


def found_formats(source: Source, root: Path) -> dict[SourceFormat, Path]:
    """The formats of the files in a folder or of a pattern, and the first file of each."""
    name = source.path or ""
    path = under(root, name)
    if any(os.path.isfile(path / saved) for saved in ("dataset_dict.json", "state.json")):
        return {"dataset": path}  # written by save_to_disk
    files = matching_files(name, root) if is_pattern(name) else []
    files = _texts_in(path) if os.path.isdir(path) else files
    first = {
        format_in_folder(source, file): file for file in reversed(files) if os.path.isfile(file)
    }
    return {kind: first[kind] for kind in get_args(SourceFormat) if kind in first}


def format_in_folder(source: Source, file: Path) -> SourceFormat | None:
    """The format of a file of a folder; a name that ends in a language is a side of a text."""
    endings = (f".{source.src}", f".{source.tgt}")
    return "text" if unpacked_name(file.name).endswith(endings) else SUFFIXES.get(suffix_of(file))


def _texts_in(folder: Path) -> list[Path]:
    """The files in a folder without those that are about others, and without hidden ones."""
    files = sorted(filter(os.path.isfile, folder.rglob("*")))
    return [file for file in files if not _ABOUT.fullmatch(file.relative_to(folder).as_posix())]


def local_files(source: Source, root: Path) -> list[Path]:
    """The files on this machine that a source is read from; none for a hub name."""
    if source.test_set is not None:
        return fetched_files(source.test_set, (source.src, source.tgt))[:2]
    if source.path is None:
        return [*matching_files(source.src, root), *matching_files(source.tgt, root)]
    kind = format_of(source, root)
    path = under(root, source.path)
    if kind == "text":
        return [file for side in _sides(source, root) for file in side.values()]
    if os.path.isdir(path):
        if kind in ("dataset", "parquet"):  # which consists of other files too
            return sorted(filter(os.path.isfile, path.rglob("*")))
        return [file for file in _texts_in(path) if format_in_folder(source, file) == kind]
    files = [file for file in matching_files(source.path, root) if os.path.isfile(file)]
    return [file for file in files if format_in_folder(source, file) == kind] or files


def require_one_format(source: Source, root: Path, where: str) -> None:
    """Raise `DataError` where files of a folder or pattern have two formats, and none is chosen."""
    if source.path is None or source.format is not None:
        return
    path = under(root, source.path)
    kinds = found_formats(source, root)
    is_folder = os.path.isdir(path)
    if len(kinds) > 1 and (is_folder or format_of(source, root) != "text"):
        shown = ", ".join(f"{kind} ({file})" for kind, file in kinds.items())
        raise DataError(
            f"{where}.path: the {'folder' if is_folder else 'pattern'} {path} has files of "
            f"{len(kinds)} formats, one is required: {shown}. Set format to the one to read, or "
            "name the files (FOLDER/*SUFFIX)."
        )


def aligned_files(source: Source, root: Path, where: str) -> list[tuple[Path, Path]]:
    """The text files of a source: (source, target) paths that belong together.

    In names with `*` or `?`, and in folders, those files belong together for which the rest of the
    name is the same.
    """
    src, tgt = (side_files(source, side, root, f"{where}.{side}") for side in ("src", "tgt"))
    for side, files, other in (("src", src, tgt), ("tgt", tgt, src)):
        if alone := sorted(other.keys() - files.keys()):
            raise DataError(
                f"{where}.{side}: no file belongs to {other[alone[0]]}; with * and ? in a name "
                "each source file needs a target file for which they stand for the same text, in a "
                "folder one whose name differs in the ending only. Add the file, or correct the "
                "name."
            )
    return [(src[key], tgt[key]) for key in sorted(src)]


def side_files(source: Source, side: str, root: Path, where: str) -> dict[tuple[str, ...], Path]:
    """The text files of one side, by what tells them apart. Raises `DataError` if there is none."""
    name: str = getattr(source, side)
    if source.test_set is not None:
        source_file, reference, *_ = files_of_set(
            source.test_set, (source.src, source.tgt), where.removesuffix(f".{side}")
        )
        return {(): source_file if side == "src" else reference}
    if source.path is None:
        return _by_wildcards(name, existing_path(name, root, where), root)
    files = _side(source, name, root)
    if not files:
        if not under(root, source.path).is_dir():
            existing_path(f"{source.path}.{name}", root, where)  # raises
        raise DataError(
            f"{where}: no file of the folder {under(root, source.path)} ends in .{name}. Set "
            f"{side} to the ending of its files."
        )
    return files


def _sides(source: Source, root: Path) -> tuple[dict[tuple[str, ...], Path], ...]:
    return tuple(_side(source, name, root) for name in (source.src, source.tgt))


def _side(source: Source, ending: str, root: Path) -> dict[tuple[str, ...], Path]:
    """The files whose names are `path`, a dot and the ending, plain or compressed."""
    path = under(root, source.path or "")
    if os.path.isdir(path):
        names = {file: unpacked_name(str(file.relative_to(path))) for file in _texts_in(path)}
        return {
            (name.removesuffix(f".{ending}"),): file
            for file, name in names.items()
            if name.endswith(f".{ending}")
        }
    files: dict[tuple[str, ...], Path] = {}
    for packed in ("", *PACKED):
        name = f"{source.path}.{ending}{packed}"
        for key, file in _by_wildcards(name, under(root, name), root).items():
            if file.exists():
                files.setdefault(key, file)
    return files


def _by_wildcards(name: str, path: Path, root: Path) -> dict[tuple[str, ...], Path]:
    """Files by the text that the wildcards of `name` stand for; `()` where it has none."""
    if path.exists() or not is_pattern(name):
        return {(): path}
    pattern = re.escape(str(path)).replace(r"\*", "([^/]*)").replace(r"\?", "([^/])")
    matches = ((re.fullmatch(pattern, str(file)), file) for file in matching_files(name, root))
    return {match.groups(): file for match, file in matches if match}
