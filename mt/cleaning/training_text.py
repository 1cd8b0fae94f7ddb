"""The training text of a run, cleaned before the tokenizer is trained: once, in its directory."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mt.artefacts import make
from mt.cleaning.clean import CleanedFiles, clean_corpora, records_of
from mt.cleaning.executors import run_here
from mt.cleaning.plan import plan_of
from mt.config.schema import Source
from mt.data.tokens.store import META
from mt.runs.run_dir import CLEANED
from mt.runtime.machine import usable_cores

if TYPE_CHECKING:
    from mt.config.plan import DataPlan
    from mt.runtime.distributed import World
    from mt.training.runlog import RunLog

REPORT = "report.json"


def clean_training_text(data: DataPlan, log: RunLog, world: World) -> DataPlan:
    """The plan with its corpora cleaned.

    The main process cleans, unless the run directory holds the cleaned text of these files and
    settings already. Raises DataError where a corpus cannot be read, or nothing of it is left.
    """
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
        report = clean_corpora(
            plan, lambda plan: run_here(plan, usable_cores(), progress), outputs, rejected
        )
        meta = {"records": records_of(plan)}
        (partial / META).write_text(json.dumps(meta, indent=1), encoding="utf-8")
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
