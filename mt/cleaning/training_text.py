"""The training text of a run, cleaned before the tokenizer is trained: once, in its directory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from mt.cleaning.clean import CleanedFiles, clean_corpora, records_of
from mt.cleaning.executors import run_here
from mt.cleaning.plan import plan_of
from mt.config.schema import Source
from mt.data.tokens.store import meta_of
from mt.files import new_result
from mt.runs.run_dir import CLEANED
from mt.runtime.machine import usable_cores

if TYPE_CHECKING:
    from mt.config.schema import Config, DataConfig
    from mt.runtime.distributed import World
    from mt.training.runlog import RunLog

META, REPORT = "meta.json", "report.json"
# Tasks of a stage from which on it is logged that the stage begins: of a million pairs.
LOGGED_TASKS = 4


def clean_training_text(config: Config, log: RunLog, world: World) -> Config:
    """The config with `data.train` cleaned.

    The main process cleans, unless the run directory holds the cleaned text of these files and
    settings already. Raises DataError where a corpus cannot be read, or nothing of it is left.
    """
    data = config.data
    world.main_first(lambda: _clean(data, log), lambda: None)
    return config.model_copy(update={"data": cleaned_data(data, log.run_dir)})


def cleaned_data(data: DataConfig, run_dir: Path) -> DataConfig:
    """The `data` section of a run with the cleaned corpora, at their weights, for the original."""
    folder = (run_dir / CLEANED).absolute()
    kept = {"weight", "share", "tag", "reverse", "src_lang", "tgt_lang"}
    train = [
        Source(
            src=str(folder / f"{n}.src"),
            tgt=str(folder / f"{n}.tgt"),
            **source.model_dump(include=kept),
        )
        for n, source in zip(data.text_numbers, data.train, strict=True)
    ]
    return data.model_copy(update={"train": train, "clean": None})


def _clean(data: DataConfig, log: RunLog) -> None:
    folder = log.run_dir / CLEANED
    plan = plan_of(data, folder.with_name("cleaning"))
    if meta_of(folder).get("fingerprint") == plan.kept.name:
        return

    def progress(stage: str, done: int, total: int) -> None:
        if not done and total > LOGGED_TASKS:
            log.say(f"data.train: cleaning, {stage}")

    log.say("data.train: cleaning")
    with new_result(folder) as partial:
        outputs = [
            CleanedFiles([corpus], [partial / f"{n}.src", partial / f"{n}.tgt"])
            for corpus, n in enumerate(data.texts)
        ]
        rejected = partial / "rejected.tsv"
        report = clean_corpora(
            plan, lambda plan: run_here(plan, usable_cores(), progress), outputs, rejected
        )
        meta = {"fingerprint": plan.kept.name, "records": records_of(plan)}
        (partial / META).write_text(json.dumps(meta, indent=1), encoding="utf-8")
        (partial / REPORT).write_text(report.to_json(), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)  # of other files or settings
    shutil.rmtree(plan.work, ignore_errors=True)
    for note in report.notes:
        log.say(f"warning: data.clean: {note}")
    for corpus, funnel in zip(plan.corpora, report.corpora, strict=True):
        log.say(f"{corpus.where} ({funnel.name}): {funnel.summary()}")
    for name, leak in report.leaks.items():
        if leak.sources or leak.targets:
            log.say(f"{name}: {leak.summary()}")
