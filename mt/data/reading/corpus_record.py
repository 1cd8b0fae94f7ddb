"""`corpus.yaml`: where the corpus in a folder is from, its licence, and what its files were."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ValidationError

from mt.config import yaml_text
from mt.errors import ConfigError
from mt.files import sha256_of, write_whole

RECORD = "corpus.yaml"
HEADING = """\
# Written by mt data get. Training copies it into manifest.json, and from there it comes
# into model cards. With this file alone, mt data get fetches the same corpus again.
"""


class CorpusFile(BaseModel, extra="forbid"):
    """A file as it was fetched."""

    bytes: int
    sha256: str


class CorpusRecord(BaseModel, extra="forbid"):
    """What is known of a fetched corpus."""

    source: str  # as it was asked for, such as opus:Europarl/latest
    name: str
    version: str
    languages: list[str]  # source and target
    url: list[str]
    fetched: str = ""  # date, ISO 8601
    licence: str  # or "not stated by ..."
    citation: str
    files: dict[str, CorpusFile] = {}  # by name inside the folder

    def differing(self, folder: Path) -> dict[str, str]:
        """The files that are not as they were fetched: `missing` or `changed`, by name."""
        states = {}
        for name, file in self.files.items():
            path = folder / name
            if not path.is_file():
                states[name] = "missing"
            elif path.stat().st_size != file.bytes or sha256_of(path) != file.sha256:
                states[name] = "changed"
        return states

    def write(self, folder: Path) -> None:
        """Write the record into `folder`. Raises OSError."""
        write_whole(folder / RECORD, HEADING + yaml_text.dump(self.model_dump()))


class TrainedCorpus(CorpusRecord, extra="ignore"):  # a later version may record more
    """A fetched corpus in the manifest of a run that was trained on it."""

    changed: list[str]  # the files that are not as they were fetched


def files_in(folder: Path) -> dict[str, CorpusFile]:
    """Size and SHA-256 of the files in `folder`, by name."""
    return {
        path.name: CorpusFile(bytes=path.stat().st_size, sha256=sha256_of(path))
        for path in sorted(filter(Path.is_file, folder.iterdir()))
    }


def read_record(folder: Path) -> CorpusRecord | None:
    """The record of `folder`, None where there is none. Raises ConfigError for any other file."""
    path = folder / RECORD
    if not path.is_file():
        return None
    try:
        return CorpusRecord.model_validate(yaml_text.read(path))
    except ValidationError as error:
        raise ConfigError(
            f"{path}: is not a record of mt data get ({len(error.errors())} keys differ); rename "
            "it, or restore it"
        ) from None
