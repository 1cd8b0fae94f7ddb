"""The data of a run: its files as they were and as they are now, and leaks into training data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt.config.schema import Config, named_sources
from mt.data.reading.corpus import data_root, local_files, read_pairs
from mt.errors import DataError, first_line
from mt.files import sha256_of
from mt.report.facts import scored_sources

if TYPE_CHECKING:
    from mt.config.schema import DataConfig
    from mt.report.facts import Run

# Training pairs that are read to count leaks.
MAX_PAIRS = 5_000_000
# Leaked sentences that are shown.
EXAMPLES = 3


@dataclass(frozen=True)
class DataFile:
    """A file of the corpus."""

    use: str  # train, valid or test
    name: str
    lines: int | None
    sha256: str
    state: str  # what it is now


@dataclass
class Leak:
    """How many sources of an evaluation set are in the training data too."""

    name: str
    sentences: int
    sources: int = 0
    pairs: int = 0  # with the same translation
    examples: list[str] = field(default_factory=list)


@dataclass
class Corpora:
    """What the page says about the data."""

    files: list[DataFile] = field(default_factory=list)
    leaks: list[Leak] = field(default_factory=list)
    note: str = ""  # how leaks were counted, or why they were not


def read_corpora(run: Run) -> Corpora:
    """List the files of a run and count leaks, as far as the files are still there."""
    corpora = Corpora()
    if run.config is None:
        corpora.note = "Leaks were not counted, because the config is not known."
        return corpora
    data = located(run.config, run.manifest)
    corpora.files = _files(run.config, data, run.recorded_files)
    try:
        _count_leaks(run, data, corpora)
    except DataError as error:
        corpora.leaks = []
        corpora.note = f"Leaks were not counted: {first_line(error)}"
    return corpora


def located(config: Config, manifest: Mapping[str, Any]) -> DataConfig:
    """The `data` section with paths that start where they did when the run was trained."""
    data = config.data
    cwd = manifest.get("cwd")
    root = data_root(data)
    if root.is_absolute() or not isinstance(cwd, str) or Path.cwd() == Path(cwd):
        return data
    here = [path for _, source in named_sources(data) for path in local_files(source, root)[:1]]
    if here and all(path.exists() for path in here):
        return data
    return data.model_copy(update={"root": str(Path(cwd) / root)})


def _files(
    config: Config, data: DataConfig, recorded: Mapping[str, dict[str, Any]]
) -> list[DataFile]:
    before = data_root(config.data)
    now = data_root(data)
    files: list[DataFile] = []
    named: set[str] = set()
    for where, source in named_sources(config.data):
        use = where.removeprefix("data.").split("[")[0]
        # As it was recorded, and where it is found now.
        then = local_files(source, before) or [Path(source.path or "")]
        places = local_files(source, now) or then
        for path, place in zip(then, places, strict=False):
            files.append(_file(use, str(path), place, recorded.get(str(path), {})))
            named.add(str(path))
    files += [  # of a pattern, and gone
        _file("", name, Path(name), fact) for name, fact in recorded.items() if name not in named
    ]
    return files


def _file(use: str, name: str, place: Path, recorded: Mapping[str, Any]) -> DataFile:
    """A file that was `recorded` by this name and is looked for at `place`."""
    sha256, lines = str(recorded.get("sha256", "")), recorded.get("lines")
    return DataFile(
        use, name, lines if isinstance(lines, int) else None, sha256, _state(place, sha256)
    )


def _state(path: Path, sha256: str) -> str:
    """What a file is now, compared with its digest when the run was trained."""
    if not path.is_file():
        return "not here now"
    if not sha256:
        return "not recorded"
    try:
        return "unchanged" if sha256_of(path) == sha256 else "changed since"
    except OSError:
        return "cannot be read"


def _count_leaks(run: Run, data: DataConfig, corpora: Corpora) -> None:
    """Fill in `corpora.leaks`; memory grows with the evaluation sets, not the training data."""
    root = data_root(data)
    sets = dict(_evaluation_sets(run, data, root))
    if not sets:
        corpora.note = "Leaks were not counted: there is no validation or test set on this machine."
        return
    files = [local_files(source, root) for source in data.train]
    if not files or not all(some and all(path.is_file() for path in some) for some in files):
        corpora.note = "Leaks were not counted: the training data is not on this machine."
        return
    wanted = {key(source) for pairs in sets.values() for source, _ in pairs}
    wanted.discard("")
    targets: dict[str, set[str]] = {}
    n_read = 0
    for number, source in enumerate(data.train):
        pairs = islice(read_pairs(source, root, f"data.train[{number}]"), MAX_PAIRS - n_read)
        for src, tgt in pairs:
            n_read += 1
            if (normalised := key(src)) in wanted:
                targets.setdefault(normalised, set()).add(key(tgt))
    for name, rows in sets.items():
        leak = Leak(name, len(rows))
        for src, tgt in rows:
            found = targets.get(key(src))
            if found is not None:
                leak.sources += 1
                leak.pairs += key(tgt) in found
                if len(leak.examples) < EXAMPLES:
                    leak.examples.append(src)
        corpora.leaks.append(leak)
    limit = f" of the first {MAX_PAIRS:,} pairs" if n_read == MAX_PAIRS else ""
    corpora.note = (
        f"A source counts as leaked if the same words stand in a source{limit} of the training "
        "data; white space does not matter, case does."
    )


def _evaluation_sets(
    run: Run, data: DataConfig, root: Path
) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """(name, pairs) of each validation and test set: from kept outputs, else from its files.

    A set of which neither is left is not among them.
    """
    kept = {one.name: one.sentences for one in run.scored}
    for name, source in scored_sources(data).items():
        if sentences := kept.get(name):
            yield name, [(one.source, one.reference) for one in sentences]
            continue
        if source.path is not None and not local_files(source, root):
            continue  # on a hub, not here
        with suppress(DataError):
            yield name, list(read_pairs(source, root, name))


def key(line: str) -> str:
    """A line as it is compared: without white space around and between words but one space."""
    return " ".join(line.split())
