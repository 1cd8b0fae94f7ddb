"""The origin of a model or a text: its history, and the corpora behind it.

A model's history is the starts of its training, those of the model that it began from first. It
stands in `meta.json` of each model folder and in `manifest.json`. A text's corpora stand in the
record beside it, those of the model that wrote it included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from mt.data.reading.corpus_record import (
    RECORD,
    CleanedRecord,
    CorpusRecord,
    TrainedCorpus,
    read_cleaned_record,
    read_record,
)
from mt.errors import ConfigError
from mt.runs.model_folder import read_meta, run_dir_of

HISTORY = "history"  # the key of `meta.json` and `manifest.json`


class Start(BaseModel, extra="ignore"):
    """A start of a training: its updates, and on what; or an import, without updates."""

    model: str  # name of its run directory
    began_from: str
    from_update: int = 0
    to_update: int = 0
    files: dict[str, dict[str, Any]] = {}  # SHA-256 and lines, by path
    corpora: list[TrainedCorpus]

    @property
    def updates(self) -> str:
        return f"{self.from_update + 1:,}–{self.to_update:,}" if self.to_update else "none"

    def without_folders(self) -> Start:
        """Return a copy with file names alone: the folders of a machine stay private.

        Of files with one name, the folder just above each is kept, and they are numbered at need.
        """
        files: dict[str, dict[str, Any]] = {}
        counts = Counter(Path(path).name for path in self.files)
        for path, file in self.files.items():
            place = Path(path)
            name = (
                str(Path(place.parent.name, place.name)) if counts[place.name] > 1 else place.name
            )
            numbered = (f"{name} ({number})" for number in count(2))
            files[next(key for key in chain([name], numbered) if key not in files)] = file
        return self.model_copy(update={"files": files})

    def is_continued_by(self, other: Start) -> bool:
        ended_here = self.model == other.model and 0 < self.to_update == other.from_update
        return ended_here and (self.files, self.corpora) == (other.files, other.corpora)


def model_name(folder: Path) -> str:
    return (run_dir_of(folder) or folder).name


def history_of(folder: Path, meta: Mapping[str, Any]) -> list[Start]:
    """The starts that a model folder with this `meta.json` is the result of.

    Where there are none, as in early models of 0.3.0, or they are damaged, that is one of them.
    """
    name, step = model_name(folder), meta.get("step")
    try:
        starts = [Start.model_validate(entry) for entry in meta.get(HISTORY) or ()]
    except (ValidationError, TypeError):
        starts = []
    return starts or [_unrecorded(name, step if isinstance(step, int) else 0)]


def _unrecorded(name: str, step: int = 0) -> Start:
    unknown = TrainedCorpus.of_unknown_origin(f"training data of {name}", "not recorded")
    return Start(model=name, began_from="not recorded", to_update=step, corpora=[unknown])


def continued(earlier: Iterable[Start], start: Start, step: int) -> list[dict[str, Any]]:
    """A history with a start that has come to an update; without it where that did none.

    A start that goes on with the data of the one before is one with it.
    """
    starts = [*earlier]
    if step > start.from_update:
        before = starts.pop() if starts and starts[-1].is_continued_by(start) else start
        starts.append(before.model_copy(update={"to_update": step}))
    return [each.model_dump() for each in starts]


def files_of(records: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """SHA-256 and lines of files, by path, of all that their records hold."""
    return {
        name: {"sha256": record["sha256"], "lines": record["lines"]}
        for name, record in records.items()
    }


def corpora_of(history: Iterable[Start]) -> list[TrainedCorpus]:
    return merged(corpus for start in history for corpus in start.corpora)


def corpora_of_text(
    files: Mapping[str, Mapping[str, Any]], others: Sequence[str] = ()
) -> list[TrainedCorpus]:
    """The corpora that text belongs to or was made from; without a record, they are unknown.

    `files`: records with `sha256`, by path. `others`: names of text that is in no local file.
    """
    digests: dict[Path, dict[str, str]] = {}  # by folder and name
    for path, file in files.items():
        digests.setdefault(Path(path).parent, {})[Path(path).name] = file["sha256"]
    corpora: list[TrainedCorpus] = []
    unknown: list[str] = []
    for folder, used in digests.items():
        recorded: set[str] = set()
        for names, corpus in _corpora_in(folder, used):
            recorded |= names
            corpora.append(corpus)
        unknown += [name for name in used if name not in recorded]
    if unknown := [*dict.fromkeys([*unknown, *others])]:
        reason = f"no {RECORD} beside it"
        corpora.append(TrainedCorpus.of_unknown_origin(", ".join(unknown), reason))
    return merged(corpora)


def _corpora_in(folder: Path, used: Mapping[str, str]) -> Iterator[tuple[set[str], TrainedCorpus]]:
    """The corpora that the files of a folder are, or were made from; `used`: SHA-256 by name."""

    def changed(names: set[str], record: CorpusRecord | CleanedRecord) -> list[str]:
        return sorted(name for name in names if used[name] != record.files[name].sha256)

    with suppress(ConfigError):  # a corpus.yaml of another program
        record = read_record(folder)
        if record and (names := record.files.keys() & used):
            yield names, TrainedCorpus(**record.model_dump(), changed=changed(names, record))
    for path in sorted(folder.glob(f"*.{RECORD}")):
        with suppress(ConfigError):
            made = read_cleaned_record(path)
            if made and (names := made.files.keys() & used):
                cleaned = {} if made.made_by else {"cleaned": sorted(names)}
                for corpus in made.corpora:
                    both = corpus.changed + changed(names, made)
                    yield names, corpus.model_copy(update={**cleaned, "changed": both})


def corpora_of_output(
    name: str, text: Iterable[TrainedCorpus], models: Iterable[Path]
) -> list[TrainedCorpus]:
    """The corpora behind what `models`, their folders, have made of `text` into the file `name`."""
    corpora = [corpus.used(f"translated into {name}") for corpus in text]
    for folder in models:
        history = history_of(folder, read_meta(folder, []))
        how = f"training data of {model_name(folder)}, which wrote {name}"
        corpora += [corpus.used(how) for corpus in corpora_of(history)]
    return merged(corpora)


def merged(corpora: Iterable[TrainedCorpus]) -> list[TrainedCorpus]:
    """Each corpus once, with every way in which it was used."""
    once: dict[str, TrainedCorpus] = {}
    for corpus in corpora:
        key = corpus.model_dump_json(exclude={"through", "state"})
        once[key] = once.get(key, corpus).used(*corpus.through)
    return [*once.values()]
