"""`corpus.yaml`: where a corpus is from, its licence and files; what cleaned text is made of."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError, computed_field

from mt.config import yaml_text
from mt.errors import ConfigError, DataError
from mt.files import sha256_of, write_whole

RECORD = "corpus.yaml"  # of text that was made from other text, OUT.corpus.yaml
HEADING = """\
# Written by mt: what these files were made of. Training copies it into manifest.json, and from
# there it comes into model cards.
"""
Record = TypeVar("Record", bound=BaseModel)


class CorpusFile(BaseModel, extra="forbid"):
    """A file as it was fetched."""

    bytes: int
    sha256: str


class CorpusRecord(BaseModel, extra="forbid"):
    """A corpus: source, licence and files."""

    source: str  # as it was asked for, such as mtdata:OPUS-europarl-v8-deu-eng
    name: str
    version: str
    languages: list[str]  # source and target
    url: list[str]
    fetched: str = ""  # date, ISO 8601
    licence: str  # or "not stated by ..."
    citation: str
    files: dict[str, CorpusFile] = {}  # by name inside the folder


class TrainedCorpus(CorpusRecord, extra="ignore"):  # a later version may record more
    """A corpus behind a model, or behind a text that was made from others."""

    changed: list[str]  # the files that are not as they were fetched, or cleaned
    cleaned: list[str] = []  # the files that mt data clean has made of it
    through: list[str] = []  # what came between it and the text, such as a teacher

    @computed_field  # type: ignore[prop-decorator]
    @property
    def state(self) -> str:
        """The state of its files when the run was trained, for people."""
        states = {"cleaned": self.cleaned, "changed since it was fetched": self.changed}
        said = [f"{state}: {', '.join(names)}" for state, names in states.items() if names]
        said += self.through
        return "; ".join(said) or ("as fetched" if self.url else "no corpus.yaml")

    def used(self, *ways: str) -> TrainedCorpus:
        return self.model_copy(update={"through": [*dict.fromkeys([*self.through, *ways])]})

    @classmethod
    def of_unknown_origin(cls, name: str, reason: str) -> TrainedCorpus:
        empty = {"source": "", "version": "", "languages": [], "url": [], "changed": []}
        known = {"name": name, "licence": f"unknown: {reason}", "citation": "not stated"}
        return cls.model_validate({**empty, **known})


class CleanedRecord(BaseModel, extra="forbid"):
    """The corpora that cleaned text, or text that a model wrote, was made of."""

    files: dict[str, CorpusFile]  # of that text, by name
    made_by: str = ""  # a command; "": mt data clean
    corpora: list[TrainedCorpus]

    @classmethod
    def replace(
        cls, path: Path, text: Iterable[Path], corpora: list[TrainedCorpus], made_by: str = ""
    ) -> None:
        """Write the record beside a complete text; none of corpora nobody knows. DataError."""
        try:
            path.unlink(missing_ok=True)
            if any(corpus.source or corpus.through for corpus in corpora):
                record = cls(files=described(text), made_by=made_by, corpora=corpora)
                write_whole(path, HEADING + yaml_text.dump(record.model_dump()))
        except OSError as error:
            raise DataError(
                f"{path}: cannot be written: {error.strerror or error}; the text is complete, but "
                "training on it will not know its licences. Make room, and run the command again, "
                "with --overwrite"
            ) from error


def described(paths: Iterable[Path]) -> dict[str, CorpusFile]:
    return {
        path.name: CorpusFile(bytes=path.stat().st_size, sha256=sha256_of(path)) for path in paths
    }


def record_path(prefix: str | Path) -> Path:
    return Path(f"{prefix}.{RECORD}")


def read_record(path: Path, kind: type[Record]) -> Record | None:
    """The record in a file, None where there is none. Raises ConfigError for any other file."""
    if not path.is_file():
        return None
    try:
        return kind.model_validate(yaml_text.read(path))
    except ValidationError as error:
        of = "a corpus" if kind is CorpusRecord else "mt data clean"
        raise ConfigError(
            f"{path}: is not a record of {of} ({len(error.errors())} keys differ); rename it, or "
            "restore it"
        ) from None
