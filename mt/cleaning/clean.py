"""Clean corpora: run the stages, put their results together, sum up what was done."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from mt.artefacts import exclusive
from mt.cleaning.plan import CleaningPlan
from mt.cleaning.report import HEADER, CleaningReport, sum_up
from mt.cleaning.stages import write_packed
from mt.data.reading.corpus import local_files
from mt.data.reading.text_files import FileRecords, file_record
from mt.errors import DataError, MtError, add_note
from mt.files import whole_file
from mt.terminal import say

LOCK = "lock"  # in the work folder
WORK_FILE = "cleaning.json"  # tells that a folder is one of work
Run = Callable[[CleaningPlan], None]


@dataclass(frozen=True)
class CleanedFiles:
    """Where the pairs of some corpora go: two text files or one table, by the form of the plan."""

    corpora: Sequence[int]
    paths: Sequence[Path]


def clean_corpora(
    plan: CleaningPlan,
    run: Run,
    outputs: Sequence[CleanedFiles],
    rejected: Path | None,
    keep_work: bool = True,
) -> CleaningReport:
    """Run the stages and write the cleaned corpora and the rejected pairs, each file as a whole.

    `run` runs all stages. What is in the work folder already is not done again; without `keep_work`
    it is removed in the end. Raises DataError where no pair is left, or a file cannot be written.
    """
    # Raises first of all where a package or a file is missing.
    notes = list(dict.fromkeys(note for scorer in plan.scorers for note in scorer.notes))
    plan.parts  # noqa: B018
    waiting = f"waiting for another process in the work folder {plan.work}"
    try:
        claim_work(plan.work)
        with exclusive(plan.work / LOCK, lambda: say(waiting)):
            claim_work(plan.work)  # the other process may have removed it
            try:
                run(plan)
                report = sum_up(plan, notes)
            except (MtError, KeyboardInterrupt, SystemExit) as error:
                _keep_or_remove(plan, error, keep_work)
                raise
            if rejected is not None:
                header = plan.work / "header"
                write_packed(header, HEADER, plan.form.rejected_packing)
                every = CleanedFiles(range(len(plan.corpora)), [rejected])
                _concatenate(plan, every, ["rejected"], [header])
            empty = [
                number
                for output in outputs
                if not any(report.corpora[number].kept for number in output.corpora)
                for number in output.corpora
            ]
            for output in outputs if not empty else ():
                _concatenate(plan, output, ["pairs"] if plan.form.is_table else ["src", "tgt"])
            # The kept pairs are in the output.
            shutil.rmtree(plan.kept if keep_work else plan.work, ignore_errors=True)
    except OSError as error:
        raise DataError(
            f"{error.filename or plan.work}: cannot be written: {error.strerror or error}. "
            "Free some space or make it writable, or name another folder with --work. The same "
            "command continues with what is done."
        ) from error
    if empty:
        lost = [
            f"{plan.corpora[number].name} ({report.corpora[number].name}): cleaning leaves no "
            f"pair: {report.corpora[number].summary()}"
            for number in empty
        ]
        raise DataError(
            "\n".join(lost) + ". Check that the files and the languages are the right ones, or "
            "change the limits in data.clean."
        )
    return report


def claim_work(folder: Path) -> None:
    """Make the work folder, or check that it is one. Raises DataError."""
    folder.mkdir(parents=True, exist_ok=True)
    names = {path.name for path in folder.iterdir()}
    if names and WORK_FILE not in names:
        raise DataError(
            f"{folder}: is no work folder of a cleaning, because it has no {WORK_FILE}, and is not "
            "empty. Name another folder with --work."
        )
    (folder / WORK_FILE).touch()


def _keep_or_remove(plan: CleaningPlan, error: BaseException, keep_work: bool) -> None:
    """After an error or a signal, say where what is done lies; remove the folder of nothing."""
    if any(plan.scored.glob("*/*")):
        add_note(error, f"what is done is in {plan.work}; the same command continues with it")
    elif not keep_work:
        shutil.rmtree(plan.work, ignore_errors=True)


def records_of(plan: CleaningPlan) -> FileRecords:
    """The records of all files of the corpora, by their paths as they are given."""
    known: FileRecords = {}
    for number in range(len(plan.parts)):
        known |= plan.index(number)["records"]
    read = {os.path.abspath(path): record for path, record in known.items()}
    paths = [path for corpus in plan.corpora for path in local_files(corpus.source, plan.root)]
    known = {str(path): read[place] for path in paths if (place := os.path.abspath(path)) in read}
    return {str(path): file_record(path, "", known) for path in paths}


def _concatenate(
    plan: CleaningPlan, output: CleanedFiles, names: Sequence[str], first: Sequence[Path] = ()
) -> None:
    """Put `first` and the files of all shards end to end, in the order of the corpora."""
    folders = [plan.kept / shard.name for shard in plan.shards if shard.corpus in output.corpora]
    with ExitStack() as stack:
        for name, path in zip(names, output.paths, strict=True):
            file = stack.enter_context(whole_file(path))
            for source in [*first, *(folder / name for folder in folders)]:
                with source.open("rb") as content:
                    shutil.copyfileobj(content, file, 1 << 20)
