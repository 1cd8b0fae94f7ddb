"""`mt data`: fetch, count and clean corpora, prepare training."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mt.cli.console import print_result
from mt.cli.help import PanelCommand, command_group
from mt.cli.options import CorpusGroup, described
from mt.errors import ConfigError
from mt.fetch.commands import get

if TYPE_CHECKING:
    from mt.data.cleaning.plan import CleaningPlan
    from mt.data.reading.text_files import FileRecords

app = command_group("data", "Fetch, count and clean corpora; prepare training.")


app.command("get", cls=PanelCommand)(get)


@app.command("clean", cls=PanelCommand)
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
    from mt.cli.clean import (
        chosen_executor,
        cleaning_files,
        data_to_clean,
        stage_progress,
        write_record,
    )
    from mt.data.cleaning.clean import clean_corpora, records_of
    from mt.data.cleaning.plan import plan_of
    from mt.data.cleaning.report import report_text

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


@app.command("stats", cls=PanelCommand)
@described("""
    Input:
    against = --against FILE: text that should not be in the corpora, such as a test set; repeatable
    --tokenizer PATH: count its tokens: SentencePiece .model file, run directory or model folder
    every_line = --all: identify the language of all lines, not of 1,000 in 10,000
    Output:
    as_json = --json: print the statistics as JSON
    html = --html FILE: also write them as a page, with histograms; completely or not at all
    cleaning = --cleaning REPORT: what mt data clean --json printed: the page shows what each rule
        rejected, with examples
    Execution:
    --workers N in 1..: processes (default: one per core)
""")
def stats(
    corpora: CorpusGroup,
    against: list[Path] | None = None,
    tokenizer: Path | None = None,
    every_line: bool = False,
    as_json: bool = False,
    html: Path | None = None,
    cleaning: Path | None = None,
    workers: int | None = None,
) -> None:
    """Count what corpora contain, each in a column.

    Lengths, ratios, duplicates, scripts, languages, tokens, and leaks: sentences of --against, and
    with --config of its data.valid and data.test. A duplicate equals another pair of any corpus.
    Ratios are those of data.clean. Languages need the extra corpora.

    \b
    mt data stats web.de web.en news.tmx
    mt data stats corpus/train --langs de-en --tokenizer runs/base
    mt data stats --config base.yaml --html corpora.html
    mt data clean web.de web.en -o clean --json > report.json
    mt data stats web.de web.en --html web.html --cleaning report.json
    """
    from mt.cli.clean import data_to_clean, stage_progress
    from mt.data.cleaning.plan import plan_of
    from mt.inspect.corpus_statistics import count_corpora, meter_of
    from mt.inspect.corpus_table import statistics_of, statistics_text
    from mt.inspect.pictures import check_replaceable, save_file
    from mt.report.corpus_page import GENERATOR, make_corpus_page, read_cleaning_report
    from mt.runs.model_folder import open_tokenizer
    from mt.runtime.machine import usable_cores

    data = data_to_clean(corpora.value(), against or [], [])
    if cleaning is not None and html is None:
        raise ConfigError(f"--cleaning {cleaning}: is shown on a page only; give --html FILE")
    if html is not None:
        check_replaceable(html, GENERATOR, "--html")
    report = read_cleaning_report(cleaning) if cleaning is not None else None
    plan = plan_of(data, Path(), where="data.train" if corpora.config else "IN")
    opened = open_tokenizer(tokenizer, "--tokenizer") if tokenizer is not None else None
    meter, notes = meter_of(plan, opened, every_line)
    with stage_progress() as progress:
        counts, damage = count_corpora(plan, meter, workers or usable_cores(), progress)
    values = statistics_of(plan, meter, counts, [*notes, *damage])
    if html is not None:
        save_file(html, make_corpus_page(values, report), "--html")
    print_result(json.dumps(values, ensure_ascii=False) if as_json else statistics_text(values))


@app.command("prepare", cls=PanelCommand)
@described("""
    Execution:
    --shard K/N: encode part K of N, as job K of an array; the last job joins the parts
""")
def prepare(
    config: str, settings: list[str] | None = None, run_dir: Path | None = None, shard: str = "1/1"
) -> None:
    """Train the tokenizer and encode text ahead of mt train.

    mt train finds both in the same run directory. The result is the same for any number of jobs; in
    an array of Slurm, K is $SLURM_ARRAY_TASK_ID. A job that was interrupted continues. Without
    --shard, what other jobs have left is encoded too.

    \b
    mt data prepare --config wmt14.yaml
    mt data prepare --config wmt14.yaml --shard 3/8
    """
    from mt.config.load import load_config, require_training_data

    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise ConfigError(f"--shard: must be K/N with K in 1..N, such as 3/8, found {shard!r}")
    loaded = load_config(config, settings or [])
    require_training_data(loaded.config)
    folder = run_dir or loaded.run_dir

    from mt.training.launch import prepare_data

    print_result(prepare_data(loaded.config, folder, (int(match[1]), int(match[2]))))
