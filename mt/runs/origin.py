"""The origin of a model or a text: its history, and the corpora behind it.

A model's history, in `meta.json` and `manifest.json`, is the starts of its training, those of the
model that it began from first. A text's corpora stand in the record beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from mt.data.reading import corpus_record
from mt.data.reading.corpus_record import RECORD, CleanedRecord, CorpusRecord, TrainedCorpus
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
        """A copy with file names alone, and the folder just above each of files with one name."""
        files: dict[str, dict[str, Any]] = {}
        counts = Counter(Path(path).name for path in self.files)
        for path, file in self.files.items():
            name, folder = Path(path).name, Path(path).parent.name
            name = str(Path(folder, name)) if counts[name] > 1 else name
            numbered = (f"{name} ({number})" for number in count(2))
            files[next(key for key in chain([name], numbered) if key not in files)] = file
        return self.model_copy(update={"files": files})

    def is_continued_by(self, other: Start) -> bool:
        ended_here = self.model == other.model and 0 < self.to_update == other.from_update
        return ended_here and (self.files, self.corpora) == (other.files, other.corpora)


def model_name(folder: Path) -> str:
    return (run_dir_of(folder) or folder).name


def history_of(folder: Path, meta: Mapping[str, Any]) -> list[Start]:
    """The starts that a model folder with this `meta.json` is the result of."""
    with suppress(ValidationError, TypeError):
        if starts := [Start.model_validate(entry) for entry in meta.get(HISTORY) or ()]:
            return starts
    # They are damaged, or of an early 0.3.0.
    name, step = model_name(folder), meta.get("step")
    unknown = TrainedCorpus.of_unknown_origin(f"training data of {name}", "not recorded")
    to_update = step if isinstance(step, int) else 0
    return [Start(model=name, began_from="not recorded", to_update=to_update, corpora=[unknown])]


def continued(earlier: Iterable[Start], start: Start, step: int) -> list[dict[str, Any]]:
    """A history with a start that has come to an update; without it where that did none."""
    starts = [*earlier]
    if step > start.from_update:
        before = starts.pop() if starts and starts[-1].is_continued_by(start) else start
        starts.append(before.model_copy(update={"to_update": step}))
    return [each.model_dump() for each in starts]


def files_of(records: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """SHA-256 and lines of files, by path, of all that their records hold."""
    keys = ("sha256", "lines")
    return {path: {key: record[key] for key in keys} for path, record in records.items()}


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
        found = list(_corpora_in(folder, used))
        corpora += [corpus for _, corpus in found]
        recorded = set[str]().union(*(names for names, _ in found))
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
        record = corpus_record.read_record(folder / RECORD, CorpusRecord)
        if record and (names := record.files.keys() & used):
            yield names, TrainedCorpus(**record.model_dump(), changed=changed(names, record))
    for path in sorted(folder.glob(f"*.{RECORD}")):
        with suppress(ConfigError):
            made = corpus_record.read_record(path, CleanedRecord)
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
