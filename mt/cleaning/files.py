"""The options of `mt data clean`, made into limits, files to write, and a progress bar."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from mt.cleaning.clean import PACKINGS, CleanedFiles
from mt.cleaning.plan import CleaningPlan
from mt.config import yaml_text
from mt.config.load import config_from_mapping
from mt.config.plan import DataPlan, plan_data
from mt.config.schema import DataConfig
from mt.data.reading.compression import PACKED, suffix_of
from mt.data.reading.corpus import local_files
from mt.data.reading.corpus_record import CleanedRecord, read_record, record_path
from mt.data.reading.text import SUFFIXES
from mt.data.reading.text_files import FileRecords, matching_files
from mt.errors import ConfigError
from mt.runs.origin import corpora_of_text
from mt.terminal import Progress, can_show_bar


def data_to_clean(data: DataConfig, against: list[Path], limits: list[str]) -> DataPlan:
    """The plan of a `data` section with `clean` as the options say. Raises ConfigError."""
    clean: dict[str, Any] = data.clean.model_dump(mode="json") if data.clean else {}
    for limit in limits:
        key, separator, value = limit.partition("=")
        if not separator:
            raise ConfigError(f"--limit {limit}: must be KEY=VALUE, such as max_words=100")
        if key == "against":
            raise ConfigError(f"--limit {limit}: names a file, not a limit; give --against {value}")
        try:
            clean[key] = yaml_text.parse(value)
        except ValueError as error:
            raise ConfigError(f"--limit {limit}: {error}") from None
    # Their paths start here, not at data.root.
    clean["against"] = [*clean.get("against", []), *(str(path.absolute()) for path in against)]
    section = {"data": {"clean": clean}}
    return replace(plan_data(data), clean=config_from_mapping(section, "--limit").data.clean)


def cleaning_files(
    prefix: str, rejected: Path | None, data: DataPlan, overwrite: bool, where: str
) -> tuple[CleanedFiles, bool]:
    """The files that -o names; is it a table? ConfigError also where a file would be lost."""
    for option, name in (("--output", prefix), ("--rejected", str(rejected))):
        if name == "-":
            raise ConfigError(f"{option} -: must be a file, stdout is not written to; name one")
        if (ending := Path(name).suffix) in PACKED.keys() - PACKINGS:
            raise ConfigError(f"{option} {name}: {' or '.join(PACKINGS)} is written, not {ending}")
    packing = Path(prefix).suffix if Path(prefix).suffix in PACKINGS else ""
    is_table = prefix.removesuffix(packing).endswith(".tsv")
    fault = ""
    src, tgt = data.corpora[0].direction
    directions = dict.fromkeys(str(corpus.direction) for corpus in data.corpora)
    if (ending := suffix_of(Path(prefix))) in {*SUFFIXES, f".{src}", f".{tgt}"} - {".tsv"}:
        fault = f"two files {prefix}.{src} and {prefix}.{tgt} would be written; leave {ending} "
        fault += "out for these, or name a table that ends in .tsv"
    elif packing and not is_table:
        fault = f"only a table can be compressed, as OUT.tsv{packing}"
    elif prefix.endswith("/") or Path(prefix).is_dir():
        fault = f"is a folder; add a name, as {Path(prefix)}/clean"
    elif len(directions) > 1:
        fault = f"would mix directions ({', '.join(directions)}); clean each direction by itself"
    elif src == tgt and not is_table:
        fault = f"both sides would be {prefix}.{src}; give --langs, or a name that ends in .tsv"
    if fault:
        raise ConfigError(f"--output {prefix}: {fault}")
    paths = [Path(prefix)] if is_table else [Path(f"{prefix}.{side}") for side in (src, tgt)]
    record = record_path(prefix)
    read_record(record, CleanedRecord)  # that of another program is not replaced
    _refuse_to_lose([*paths, *filter(None, [rejected]), record], data, overwrite, where)
    return CleanedFiles(range(len(data.corpora)), paths), is_table


def write_record(prefix: str, output: CleanedFiles, plan: CleaningPlan, files: FileRecords) -> None:
    """Replace the record of what cleaned text was made of, where a part of `files` was fetched."""
    sources = [corpus for corpus in plan.corpora if not local_files(corpus.source, plan.root)]
    corpora = corpora_of_text(files, [corpus.file for corpus in sources])
    CleanedRecord.replace(record_path(prefix), filter(Path.is_file, output.paths), corpora)


def _refuse_to_lose(written: Sequence[Path], data: DataPlan, overwrite: bool, where: str) -> None:
    from mt.translate.streaming import refuse_overwrite

    read = [
        (text.name.replace("data.train", where, 1), path)
        for text in data.named
        for path in local_files(text.source, data.root)
    ]
    for name in data.clean.against if data.clean else []:
        read += [("--against", path) for path in matching_files(name, data.root)]
    for number, path in enumerate(written):
        refuse_overwrite(str(path), read)
        if path.exists() and not overwrite and path is not written[-1]:  # a record may be replaced
            raise ConfigError(f"{path}: exists; name another, or --overwrite to replace it")
        if os.path.realpath(path) in map(os.path.realpath, written[:number]):
            raise ConfigError(f"--rejected {path}: is the output too; name another file")
        if not path.absolute().parent.is_dir():
            raise ConfigError(f"{path}: there is no folder {path.parent}; make it first")


@contextmanager
def stage_progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """A function of a stage, its tasks done, and all or None: shows a bar, else lines."""
    stages: dict[str, Progress] = {}

    def show(stage: str, done: int, total: int | None) -> None:
        if stage not in stages:
            stack.close()  # the bar of the stage before
            progress = Progress(total, 0, can_show_bar("-"), "tasks", stage)
            stages[stage] = stack.enter_context(progress)
        stages[stage].update(done)

    with ExitStack() as stack:
        yield show
