"""Clean corpora: run the stages, put their results together, sum up what was done."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mt.data.cleaning.duplicates import expected_false_drops
from mt.data.cleaning.leaks import Found
from mt.data.cleaning.plan import CleaningPlan, claim_work
from mt.data.cleaning.report import CleaningReport, sum_up
from mt.data.cleaning.rules import PairScorer
from mt.data.reading.text_files import FileRecords
from mt.errors import DataError
from mt.files import exclusive, whole_file
from mt.terminal import say

LOCK = "lock"  # in the work folder
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
    # Raises first of all where a package is missing.
    notes = PairScorer(plan.clean, plan.src_lang, plan.tgt_lang).notes
    claim_work(plan.work)
    waiting = f"waiting for another process in the work folder {plan.work}"
    with exclusive(plan.work / LOCK, lambda: say(waiting)):
        claim_work(plan.work)  # the other process may have removed it
        return _clean_corpora(plan, run, outputs, rejected, keep_work, notes)


def _clean_corpora(
    plan: CleaningPlan,
    run: Run,
    outputs: Sequence[CleanedFiles],
    rejected: Path | None,
    keep_work: bool,
    notes: list[str],
) -> CleaningReport:
    """Clean in a work folder of which no other process removes what this one still reads."""
    try:
        run(plan)
        if rejected is not None:
            every = range(len(plan.corpora))
            _concatenate(plan, [CleanedFiles(every, [rejected])], ["rejected"])
        report = sum_up_plan(plan, notes)
        _require_pairs(plan, report, outputs)
        _concatenate(plan, outputs, ["pairs"] if plan.form.is_table else ["src", "tgt"])
    except OSError as error:
        raise DataError(
            f"{error.filename or plan.work}: cannot be written: {error.strerror or error}. Free "
            "some space, or name a folder on another disk with --work. The same command continues "
            "with what is done."
        ) from error
    finished = [plan.kept, *plan.work.glob("*/*.partial")]  # the kept pairs are in the output
    for folder in finished if keep_work else [plan.work]:
        shutil.rmtree(folder, ignore_errors=True)
    return report


def sum_up_plan(plan: CleaningPlan, notes: list[str]) -> CleaningReport:
    """The report of a cleaning whose stages are done; `notes` say what was not checked."""
    found = Found()
    counts = []
    shards = plan.shards()
    for shard in shards:
        counts.append(json.loads((plan.kept / shard.name / "counts.json").read_text("utf-8")))
        if plan.evaluation_index is not None:
            with np.load(plan.scores / shard.name / "leaks.npz") as leaks:
                found += Found(leaks["src"], leaks["tgt"], leaks["pairs"])
    index = plan.evaluation_index
    compared = sum(shard.pairs for shard in shards) if plan.clean.duplicates else 0
    corpora = [(corpus.name, corpus.source.weight) for corpus in plan.corpora]
    leak_counts = index.counts(found) if index is not None else {}
    damage = [
        f"{plan.corpora[part.corpus].where}: {message}"
        for number, part in enumerate(plan.parts)
        for message in plan.index(number)["damage"]
    ]
    notes = notes + damage
    return sum_up(corpora, counts, leak_counts, expected_false_drops(compared), notes)


def records_of(plan: CleaningPlan) -> FileRecords:
    """The records of the files that the pairs were read from."""
    records: FileRecords = {}
    for number in range(len(plan.parts)):
        records |= plan.index(number)["records"]
    return records


def _require_pairs(
    plan: CleaningPlan, report: CleaningReport, outputs: Sequence[CleanedFiles]
) -> None:
    """Raise DataError where an output would be empty."""
    for output in outputs:
        own = [report.corpora[number] for number in output.corpora]
        if not any(corpus.kept for corpus in own):
            lost = "\n".join(
                f"{plan.corpora[number].where} ({report.corpora[number].name}): cleaning leaves no "
                f"pair: {report.corpora[number].summary()}"
                for number in output.corpora
            )
            raise DataError(
                f"{lost}. Check that the files and the languages are the right ones, or change the "
                "limits in data.clean."
            )


def _concatenate(plan: CleaningPlan, outputs: Sequence[CleanedFiles], names: Sequence[str]) -> None:
    """Put the files of all shards end to end, in the order of the corpora."""
    for output in outputs:
        with ExitStack() as stack:
            files = [stack.enter_context(whole_file(path)) for path in output.paths]
            for shard in plan.shards():
                if shard.corpus in output.corpora:
                    for name, file in zip(names, files, strict=True):
                        with (plan.kept / shard.name / name).open("rb") as own:
                            shutil.copyfileobj(own, file, 1 << 20)
