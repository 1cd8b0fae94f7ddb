"""`mt data clean`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from typing_extensions import assert_never

from mt.cli import options as opt
from mt.cli.console import print_result
from mt.errors import ConfigError


@dataclass(frozen=True)
class ExecutionGroup:
    """Options for who runs the stages, and where their results are until the end."""

    # fmt: off
    workers: Annotated[int | None, opt.execution_option("--workers", metavar="N", min=1, help=
        "processes (default: one per core); with --executor slurm, ranks of a stage")] = None
    executor: Annotated[Literal["local", "slurm"], opt.execution_option(
        "--executor", metavar="NAME", help=
        "local, or slurm: job arrays, started by datatrove (extra cluster) from here")] = "local"
    sbatch: Annotated[list[str] | None, opt.execution_option("--sbatch", metavar="KEY=VALUE", help=
        "with --executor slurm, option of sbatch, such as partition=cpu; repeatable")] = None
    work: Annotated[Path | None, opt.execution_option("--work", metavar="FOLDER", help=
        "folder for scores, which stay there: another --limit scores nothing again (default: "
        "OUT.work, removed at the end)")] = None
    # fmt: on

    def value(self) -> Callable[[Any, Any], None]:
        """The function that runs the stages of a plan, and tells of them. Raises ConfigError."""
        from mt.cleaning.executors import RANKS, run_here, run_on_slurm
        from mt.runtime.machine import usable_cores

        sbatch = self.sbatch or []
        options = dict(option.split("=", 1) for option in sbatch if "=" in option)
        wrong = [option for option in sbatch if "=" not in option]
        if wrong or (sbatch and self.executor != "slurm"):
            required = "must be KEY=VALUE, such as partition=cpu, with --executor slurm"
            raise ConfigError(f"--sbatch {(wrong or sbatch)[0]}: {required}")
        match self.executor:
            case "local":
                return lambda plan, told: run_here(plan, self.workers or usable_cores(), told)
            case "slurm" if "partition" in options:
                return lambda plan, told: run_on_slurm(plan, self.workers or RANKS, options, told)
            case "slurm":
                needed = "needs --sbatch partition=NAME; sinfo lists them"
                raise ConfigError(f"--executor slurm: {needed}")
            case unknown:
                assert_never(unknown)


# fmt: off
def clean(
    corpora: opt.CorpusGroup,
    prefix: Annotated[str, opt.output_option("--output", "-o", metavar="OUT", help=
        "OUT.de and OUT.en, or a table OUT.tsv, .tsv.gz or .tsv.zst")],
    against: Annotated[list[Path] | None, opt.input_option("--against", metavar="FILE", help=
        "text that must not be in the corpora, such as a test set: a pair with one of its lines, "
        "or cells, goes; repeatable")] = None,
    limits: Annotated[list[str] | None, opt.input_option("--limit", metavar="KEY=VALUE", help=
        "key of data.clean, such as max_words=100; null is off; repeatable")] = None,
    rejected: Annotated[Path | None, opt.output_option("--rejected", metavar="FILE", help=
        "rejected pairs with rule, score and place: TSV, plain, .gz or .zst")] = None,
    as_json: Annotated[bool, opt.output_option("--json", help="print the report as JSON")] = False,
    overwrite: Annotated[bool, opt.output_option("--overwrite", help=
        "replace files that are there already")] = False,
    *,
    execution: ExecutionGroup,
) -> None:
    # fmt: on
    """Clean corpora: drop bad pairs, duplicates, leaks.

    The report says for each rule how many pairs it rejects, with examples. Rules and limits are
    those of data.clean in a config. With --config, leaks of its data.valid and data.test go too. A
    command that was interrupted continues when it is given again. OUT.corpus.yaml has the licences
    of the corpora, for the manifest of a training.

    \b
    mt data clean web.de web.en news.tmx -o clean --rejected bad.tsv
    mt data clean --config base.yaml -o clean.tsv.zst --json
    mt data clean corpus/train --langs de-en --against test.en -o clean
    mt data clean web.de web.en --work scores --limit max_words=100 -o clean
    """
    from mt.cleaning import files
    from mt.cleaning.clean import clean_corpora
    from mt.cleaning.plan import plan_of
    from mt.cleaning.report import report_text

    run, work = execution.value(), execution.work
    data = files.data_to_clean(corpora.value(), against or [], limits or [])
    where = "data.train" if corpora.config else "IN"
    output, is_table = files.cleaning_files(prefix, rejected, data, overwrite, where)
    plan = plan_of(data, work or Path(f"{prefix}.work"), is_table, where)
    with files.stage_progress() as progress:
        report, read = clean_corpora(
            plan, lambda plan: run(plan, progress), [output], rejected, keep_work=work is not None
        )
    files.write_record(prefix, output, plan, read)
    print_result(report.to_json() if as_json else report_text(report))
