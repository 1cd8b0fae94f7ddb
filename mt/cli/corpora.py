"""Corpora on the command line of `mt data`: which names belong together, and their languages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mt.config import yaml_text
from mt.config.load import config_from_mapping
from mt.config.schema import DataConfig
from mt.data.reading.compression import suffix_of, unpacked_name
from mt.data.reading.languages import require_language
from mt.data.reading.text import SUFFIXES
from mt.data.reading.text_files import is_pattern, matching_files, read_lines
from mt.errors import ConfigError

CODE = r"[A-Za-z]{2,3}(?:[_-][A-Za-z0-9]+)?"  # of a language


def data_of(names: list[str], langs: str | None) -> DataConfig:
    """The `data` section whose `train` are the corpora of these names."""
    train = [mapping_of(words) for words in paired(names)]
    src, tgt = languages(langs, train)
    for source in train:
        if isinstance(source, dict) and not {"path", "src_lang"} & source.keys():
            remedy = f"swap source and target, or give --langs {tgt}-{src}"
            require_language(str(source.get("src", "")), src, tgt, remedy)
            require_language(str(source.get("tgt", "")), tgt, src, remedy)
    section = {"src_lang": src, "tgt_lang": tgt, "train": train}
    return config_from_mapping({"data": section}, "IN").data


def paired(names: list[str]) -> list[list[str]]:
    """The names of each corpus: two for text files, source and target, else one. ConfigError."""
    groups: list[list[str]] = []
    rest = iter(names)
    for name in rest:
        require_there(name)
        groups.append([name])
        if is_side_of_text(Path(name)):
            require_there(following := next(rest, ""))
            if not is_side_of_text(Path(following)):
                raise ConfigError(
                    f"{name}: is a text file, after which its translation is required, found "
                    f"{following or 'nothing'}; name source and target files in turn"
                )
            groups[-1].append(following)
    return groups


def require_there(name: str) -> None:
    """Raise ConfigError for a name that can only be that of a file, and there is none."""
    path = Path(name)
    if is_pattern(name) or path.exists():
        return
    is_side = re.fullmatch(rf"\.{CODE}", Path(unpacked_name(name)).suffix)
    # A.de-en may be what A.de-en.de and A.de-en.en have in common.
    longer = matching_files(f"{name}.*", Path())
    is_stem = any(Path(unpacked_name(str(other))) != path for other in longer)
    if suffix_of(path) in SUFFIXES or (is_side and not is_stem):
        raise ConfigError(f"{name}: there is no such file. Correct the name.")


def is_side_of_text(path: Path) -> bool:
    """Whether a file or pattern is one side of a text; a .txt with a tab at first is a table."""
    if is_pattern(str(path)) and not path.exists():
        files = matching_files(str(path), Path())
        endings = {Path(unpacked_name(file.name)).suffix for file in files}
        return len(endings) == 1 and all(map(is_side_of_text, files))
    if not path.is_file():
        return False
    if suffix_of(path) != ".txt":
        return suffix_of(path) not in SUFFIXES
    return "\t" not in next(read_lines(path), "")


def mapping_of(words: list[str]) -> Any:
    """Return a source as a config has it."""
    if len(words) == 2:
        return {"src": words[0], "tgt": words[1]}
    if not words[0].startswith("{"):
        return {"path": words[0]}
    try:
        return yaml_text.parse(words[0])
    except ValueError as error:
        raise ConfigError(f"{words[0]}: {error}") from None


def languages(langs: str | None, train: list[Any]) -> tuple[str, str]:
    """Source and target language: as given, else the endings of the first files. ConfigError."""
    if langs is not None:
        # The hyphen in the middle: that of pt-BR-en stands after a country.
        source = r"[A-Za-z]{2,3}(?:_\w+|-[A-Z]{2}(?=-))?"
        if match := re.fullmatch(rf"({source})-({CODE})", langs):
            return match[1], match[2]
        raise ConfigError(
            f"--langs: must be two languages, such as de-en or pt_BR-en, found {langs!r}"
        )
    for source in train:
        if isinstance(source, dict) and "path" not in source and {"src", "tgt"} <= source.keys():
            src, tgt = (suffix_of(Path(str(source[side])))[1:] for side in ("src", "tgt"))
            if src != tgt and re.fullmatch(CODE, src) and re.fullmatch(CODE, tgt):
                return src, tgt
    if any(isinstance(entry, dict) and not {"src", "tgt"} <= entry.keys() for entry in train):
        raise ConfigError(
            "--langs: is required for files that hold both languages, such as --langs de-en"
        )
    return "src", "tgt"
