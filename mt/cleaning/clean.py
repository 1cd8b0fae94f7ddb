"""Clean corpora, or the training text of a run: run the stages, put results together, sum up."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mt.artefacts import exclusive, make
from mt.cleaning.executors import run_here
from mt.cleaning.plan import CleaningPlan, plan_of
from mt.cleaning.report import HEADER, CleaningReport, sum_up
from mt.config.schema import Source
from mt.data.reading.corpus import local_files
from mt.data.reading.text_files import FileRecords, file_record
from mt.data.tokens.store import META
from mt.errors import DataError, MtError, add_note
from mt.files import whole_file
from mt.runs.run_dir import CLEANED
from mt.runtime.machine import usable_cores
from mt.terminal import say

if TYPE_CHECKING:
    from mt.config.plan import DataPlan
    from mt.runtime.distributed import World
    from mt.training.runlog import RunLog

PACKINGS = (".gz", ".zst")  # of tables that are written
WORK_FILE = "cleaning.json"  # tells that a folder is one of work
REPORT = "report.json"


@dataclass(frozen=True)
class CleanedFiles:
    """Where the pairs of some corpora go: two text files or one table, by the form of the plan."""

    corpora: Sequence[int]
    paths: Sequence[Path]


def clean_corpora(
    plan: CleaningPlan, run: Callable[[CleaningPlan], None], outputs: Sequence[CleanedFiles],
    rejected: Path | None, keep_work: bool = True,
) -> tuple[CleaningReport, FileRecords]:  # fmt: skip
    """Run the stages and write the cleaned corpora and the rejected pairs, each file as a whole.

    `run` runs all stages. What is in the work folder already is not done again; without `keep_work`
    it is removed in the end. Returns also the records of the files of the corpora. Raises DataError
    where no pair is left, or a file cannot be written.
    """
    # Raises first of all where a package or a file is missing.
    notes = list(dict.fromkeys(note for scorer in plan.scorers for note in scorer.notes))
    plan.parts  # noqa: B018
    waiting = f"waiting for another process in the work folder {plan.work}"
    try:
        claim_work(plan.work)
        with exclusive(plan.work / "lock", lambda: say(waiting)):
            claim_work(plan.work)  # the other process may have removed it
            try:
                run(plan)
                report, records = sum_up(plan, notes), records_of(plan)
            except (MtError, KeyboardInterrupt, SystemExit) as error:
                if any(plan.scored.glob("*/*")):
                    done = f"what is done is in {plan.work}; the same command continues with it"
                    add_note(error, done)
                elif not keep_work:
                    shutil.rmtree(plan.work, ignore_errors=True)
                raise
            if rejected is not None:
                every = CleanedFiles(range(len(plan.corpora)), [rejected])
                _concatenate(plan, every, ["rejected"], HEADER)
            kept = [sum(report.corpora[n].kept for n in output.corpora) for output in outputs]
            if all(kept):
                for output in outputs:
                    _concatenate(plan, output, ["pairs"] if plan.is_table else ["src", "tgt"])
            # The kept pairs are in the output.
            shutil.rmtree(plan.kept if keep_work else plan.work, ignore_errors=True)
    except OSError as error:
        raise DataError(
            f"{error.filename or plan.work}: cannot be written: {error.strerror or error}. "
            "Free some space or make it writable. The same command continues with what is done."
        ) from error
    if not all(kept):
        lost = [
            f"{plan.corpora[n].name} ({report.corpora[n].name}): cleaning leaves no pair: "
            + report.corpora[n].summary()
            for output, count in zip(outputs, kept, strict=True)
            if not count
            for n in output.corpora
        ]
        raise DataError(
            "\n".join(lost) + ". Check that the files and the languages are the right ones, or "
            "change the limits in data.clean."
        )
    return report, records


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


def records_of(plan: CleaningPlan) -> FileRecords:
    """The records of all files of the corpora, by their paths as they are given."""
    indices = (plan.index(number)["records"] for number in range(len(plan.parts)))
    read = {os.path.abspath(path): record for known in indices for path, record in known.items()}
    paths = [path for corpus in plan.corpora for path in local_files(corpus.source, plan.root)]
    known = {str(path): read[place] for path in paths if (place := os.path.abspath(path)) in read}
    return {str(path): file_record(path, "", known) for path in paths}


def _concatenate(
    plan: CleaningPlan, output: CleanedFiles, names: Sequence[str], header: str = ""
) -> None:
    """Put the files of all shards end to end, in the order of the corpora; packed by the name."""
    folders = [plan.kept / shard.name for shard in plan.shards if shard.corpus in output.corpora]
    with ExitStack() as stack:
        for name, path in zip(names, output.paths, strict=True):
            file = stack.enter_context(whole_file(path))
            if path.suffix in PACKINGS:
                from xopen import xopen

                packing = path.suffix.removeprefix(".")
                file = stack.enter_context(xopen(file, "wb", threads=0, format=packing))
            file.write(header.encode())
            for folder in folders:
                with (folder / name).open("rb") as content:
                    shutil.copyfileobj(content, file, 1 << 20)


def clean_training_text(data: DataPlan, log: RunLog, world: World) -> DataPlan:
    """Clean the corpora of a run, unless that is done; the plan with cleaned text. DataError."""
    world.main_first(lambda: _clean(data, log), lambda: None)
    return cleaned_data(data, log.run_dir)


def cleaned_data(data: DataPlan, run_dir: Path) -> DataPlan:
    """The plan of a run with the cleaned corpora in the place of the original ones."""
    folder = (run_dir / CLEANED).absolute()
    corpora = [
        replace(corpus, source=Source(src=str(folder / f"{n}.src"), tgt=str(folder / f"{n}.tgt")))
        for n, corpus in enumerate(data.corpora)
    ]
    return replace(data, corpora=tuple(corpora), clean=None)


def _clean(data: DataPlan, log: RunLog) -> None:
    folder = log.run_dir / CLEANED
    plan = plan_of(data, folder.with_name("cleaning"))

    def progress(stage: str, done: int, _: int | None) -> None:
        if not done:
            log.say(f"data.train: cleaning, {stage}")

    def build(partial: Path) -> None:
        outputs = [
            CleanedFiles([n], [partial / f"{n}.src", partial / f"{n}.tgt"])
            for n in range(len(data.corpora))
        ]
        rejected = partial / "rejected.tsv"
        report, records = clean_corpora(
            plan, lambda plan: run_here(plan, usable_cores(), progress), outputs, rejected
        )
        content = json.dumps({"records": records}, indent=1)
        (partial / META).write_text(content, encoding="utf-8")
        (partial / REPORT).write_text(report.to_json(), encoding="utf-8")
        shutil.rmtree(plan.work, ignore_errors=True)
        for note in report.notes:
            log.say(f"warning: data.clean: {note}")
        for corpus, funnel in zip(plan.corpora, report.corpora, strict=True):
            log.say(f"{corpus.name} ({funnel.name}): {funnel.summary()}")
        for name, leak in report.leaks.items():
            if leak.sources or leak.targets:
                log.say(f"{name}: {leak.summary()}")

    make(folder, plan.writing_key, build)
