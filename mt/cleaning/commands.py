"""`mt data clean`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mt.cli.console import print_result
from mt.cli.options import CorpusGroup, described

if TYPE_CHECKING:
    from mt.cleaning.plan import CleaningPlan
    from mt.data.reading.text_files import FileRecords


@described("""
    Input:
    against = --against FILE: text that must not be in the corpora, such as a test set: a pair with
        one of its lines, or cells, goes; repeatable
    limits = --limit KEY=VALUE: key of data.clean, such as max_words=100; null is off; repeatable
    Output:
    prefix = --output -o OUT: OUT.de and OUT.en, or a table OUT.tsv, .tsv.gz or .tsv.zst
    rejected = --rejected FILE: rejected pairs with rule, score and place: TSV, plain, .gz or .zst
    as_json = --json: print the report as JSON
    --overwrite: replace files that are there already
    Execution:
    --workers N in 1..: processes (default: one per core); with --executor slurm, ranks of a stage
    --executor NAME: local, or slurm: job arrays, started by datatrove (extra cluster) from here
    --sbatch KEY=VALUE: with --executor slurm, option of sbatch, such as partition=cpu; repeatable
    work = --work FOLDER: folder for scores, which stay there: another --limit scores nothing again
        (default: OUT.work, removed at the end)
""")
def clean(
    corpora: CorpusGroup,
    *,
    prefix: str,
    against: list[Path] | None = None,
    limits: list[str] | None = None,
    rejected: Path | None = None,
    as_json: bool = False,
    overwrite: bool = False,
    workers: int | None = None,
    executor: str = "local",
    sbatch: list[str] | None = None,
    work: Path | None = None,
) -> None:
    """Clean corpora: drop bad pairs, duplicates, leaks.

    The report says for each rule how many pairs it rejects, with examples. Rules and limits are
    those of data.clean in a config. With --config, leaks of its data.valid and data.test go too. A
    command that was interrupted continues when it is given again. OUT.corpus.yaml has the licences
    of corpora that mt data get fetched, for the manifest of a training.

    \b
    mt data clean web.de web.en news.tmx -o clean --rejected bad.tsv
    mt data clean --config base.yaml -o clean.tsv.zst --json
    mt data clean corpus/train --langs de-en --against test.en -o clean
    mt data clean web.de web.en --work scores --limit max_words=100 -o clean
    """
    from mt.cleaning.clean import clean_corpora, records_of
    from mt.cleaning.files import (
        chosen_executor,
        cleaning_files,
        data_to_clean,
        stage_progress,
        write_record,
    )
    from mt.cleaning.plan import plan_of
    from mt.cleaning.report import report_text

    run = chosen_executor(executor, workers, sbatch or [])
    data = data_to_clean(corpora.value(), against or [], limits or [])
    folder = work or Path(f"{prefix}.work")
    where = "data.train" if corpora.config else "IN"
    output, form = cleaning_files(prefix, rejected, work, data, overwrite, where)
    plan = plan_of(data, folder, form, where)
    files: FileRecords = {}
    with stage_progress() as progress:

        def run_stages(plan: CleaningPlan) -> None:
            run(plan, progress)
            files.update(records_of(plan))  # while the work folder is there

        report = clean_corpora(plan, run_stages, [output], rejected, keep_work=work is not None)
    write_record(prefix, output, plan, files)
    print_result(report.to_json() if as_json else report_text(report))
