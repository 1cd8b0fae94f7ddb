"""The data of a run: its files as they were and as they are now, and leaks into training data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from mt.cleaning.leaks import LeakIndex
from mt.cleaning.training_text import cleaned_data
from mt.config.plan import DataPlan, plan_data
from mt.config.schema import Config
from mt.data.reading.corpus import local_files, read_pairs, translated_pairs
from mt.data.tokens.duplicates import is_among
from mt.errors import DataError, first_line
from mt.files import sha256_of
from mt.report.run_summary import RunSummary, scored_texts
from mt.runs.origin import corpora_of, recorded_history

# Training pairs that are read to count leaks.
MAX_PAIRS = 5_000_000
# Leaked sentences that are shown.
EXAMPLES = 3


def read_corpora(run: RunSummary) -> dict[str, Any]:
    """List the `files` of a run, and count `leaks` in files still there; its origin beside them.

    `history`: the starts of its training; `behind`: all corpora that it came from. `note` says how
    leaks were counted, or why they were not.
    """
    history = recorded_history(run.manifest, run.label, run.metrics.last_step)
    origin = {"history": history, "behind": corpora_of(history)}
    if run.config is None:
        note = "Leaks were not counted, because the config is not known."
        return {**origin, "files": [], "leaks": [], "note": note}
    data = located(run.config, run.manifest)
    try:
        # What a run was trained on is in its directory, where its text was cleaned.
        is_cleaned = run.config.data.clean is not None
        leaks, note = _leaks(run, cleaned_data(data, run.folder) if is_cleaned else data)
    except DataError as error:
        leaks, note = [], f"Leaks were not counted: {first_line(error)}"
    is_moved = data.root != plan_data(run.config.data).root
    files = _files(data, run.recorded_files, Path(run.manifest["cwd"] if is_moved else ""))
    return {**origin, "files": files, "leaks": leaks, "note": note}


def located(config: Config, manifest: Mapping[str, Any]) -> DataPlan:
    """The plan of a run's data with paths that start where they did when it was trained."""
    data = plan_data(config.data)
    cwd = manifest.get("cwd")
    if data.root.is_absolute() or not isinstance(cwd, str) or Path.cwd() == Path(cwd):
        return data
    here = [path for text in data.named for path in local_files(text.source, data.root)[:1]]
    if here and all(path.exists() for path in here):
        return data
    return replace(data, root=Path(cwd) / data.root)


def _files(
    data: DataPlan, recorded: Mapping[str, dict[str, Any]], base: Path
) -> list[dict[str, Any]]:
    """List the files of a run as they were recorded, by names below `base`, and as they are now."""
    places = []
    for text in data.named:
        use = re.split(r"[\[ ]", text.name.removeprefix("data."))[0]
        for place in local_files(text.source, data.root) or [Path(text.file)]:
            is_inside = str(place) not in recorded and place.is_relative_to(base)
            places.append((use, str(place.relative_to(base) if is_inside else place), place))
    listed = {name for _, name, _ in places}
    places += [("", name, base / name) for name in recorded if name not in listed]  # of a pattern
    files = []
    for use, name, place in places:
        lines = recorded.get(name, {}).get("lines")
        sha256 = str(recorded.get(name, {}).get("sha256", ""))
        shown = {"use": use, "name": name, "lines": lines if isinstance(lines, int) else None}
        files.append({**shown, "sha256": sha256, "state": _state(place, sha256)})
    return files


def _state(path: Path, sha256: str) -> str:
    """State of a file now, compared with its digest when the run was trained."""
    if not path.is_file():
        return "not here now"
    if not sha256:
        return "not recorded"
    try:
        return "unchanged" if sha256_of(path) == sha256 else "changed since"
    except OSError:
        return "cannot be read"


def _leaks(run: RunSummary, data: DataPlan) -> tuple[list[dict[str, Any]], str]:
    """Count leaks, and say how; memory grows with the evaluation sets, not the training data."""
    sets = dict(_evaluation_sets(run, data))
    if not sets:
        note = "Leaks were not counted: there is no validation or test set on this machine."
        return [], note
    files = [local_files(corpus.source, data.root) for corpus in data.corpora]
    if not files or not all(some and all(path.is_file() for path in some) for some in files):
        return [], "Leaks were not counted: the training data is not on this machine."
    index = LeakIndex(sets, with_runs=False)
    training = translated_pairs(data)
    leaking = index.search(islice(training, MAX_PAIRS))
    leaks = []
    for name, count in index.counts(leaking).items():
        is_leaked = is_among(index.sets[name].src, leaking.src)
        examples = [sets[name][row][0] for row in np.flatnonzero(is_leaked)[:EXAMPLES]]
        leak = {"name": name, "sentences": count.sentences, "sources": count.sources}
        leaks.append({**leak, "pairs": count.pairs, "examples": examples})
    limit = f" of the first {MAX_PAIRS:,} pairs" if next(training, None) is not None else ""
    return leaks, (
        f"A source counts as leaked if a source{limit} of the training data has the same letters "
        "and digits; white space, punctuation, case and accents do not matter."
    )


def _evaluation_sets(
    run: RunSummary, data: DataPlan
) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """(name, pairs) of each validation and test set: from kept outputs, else from its files.

    A set of which neither is left is not among them.
    """
    kept = {test.name: test.sentences for test in run.scored}
    for name, text in scored_texts(data).items():
        if sentences := kept.get(name):
            yield name, [(sentence.source, sentence.reference) for sentence in sentences]
            continue
        if not local_files(text.source, data.root):
            continue  # not here, and not to be fetched now
        with suppress(DataError):
            yield name, list(read_pairs(text.source, data.root, name))
