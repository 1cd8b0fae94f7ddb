"""`mt data stats`: what corpora contain."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from mt.cli import options as opt
from mt.cli.console import print_result


def stats(
    corpora: opt.CorpusGroup,
    against: Annotated[list[Path] | None, opt.input_option("--against", metavar="FILE", help=
        "text that should not be in the corpora, such as a test set; repeatable")] = None,
    tokenizer: Annotated[Path | None, opt.input_option("--tokenizer", metavar="PATH", help=
        "count its tokens: SentencePiece .model file, run directory or model folder")] = None,
    every_line: Annotated[bool, opt.input_option("--all", help=
        "identify the language of all lines, not of 1,000 in 10,000")] = False,
    as_json: Annotated[bool, opt.output_option(
        "--json", help="print the statistics as JSON")] = False,
    workers: Annotated[int | None, opt.execution_option("--workers", metavar="N", min=1, help=
        "processes (default: one per core)")] = None,
) -> None:  # fmt: skip
    """Count what corpora contain, each in a column.

    Lengths, ratios, duplicates, scripts, languages, tokens, and leaks: sentences of --against, and
    with --config of its data.valid and data.test. A duplicate equals another pair of any corpus.
    Ratios are those of data.clean. Languages need the extra corpora.

    \b
    mt data stats web.de web.en news.tmx
    mt data stats corpus/train --langs de-en --tokenizer runs/base
    mt data stats --config base.yaml --json
    """
    import json

    from mt.cleaning.files import data_to_clean, stage_progress
    from mt.cleaning.plan import plan_of
    from mt.inspect.corpus_statistics import count_corpora, meter_of
    from mt.inspect.corpus_table import statistics_of, statistics_text
    from mt.runs.model_folder import open_tokenizer
    from mt.runtime.machine import usable_cores

    data = data_to_clean(corpora.value(), against or [], [])
    plan = plan_of(data, Path(), where="data.train" if corpora.config else "IN")
    opened = open_tokenizer(tokenizer, "--tokenizer") if tokenizer is not None else None
    meter, notes = meter_of(plan, opened, every_line)
    with stage_progress() as progress:
        counts, damage = count_corpora(plan, meter, workers or usable_cores(), progress)
    values = statistics_of(plan, meter, counts, [*notes, *damage])
    print_result(json.dumps(values, ensure_ascii=False) if as_json else statistics_text(values))
