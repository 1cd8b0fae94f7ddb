"""Sequence-level knowledge distillation: a corpus written by a teacher, and a student's config.

Kim and Rush, 2016. Of several outputs of the teacher, the one most like the reference is their
sequence-level interpolation. Deep encoder, shallow decoder: Kasai et al., 2021.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mt.config.load import config_from_mapping
from mt.config.schema import Config, DataConfig, Source
from mt.config.yaml_text import dump
from mt.data.reading.corpus import data_root, local_files, read_pairs
from mt.data.reading.text_files import under
from mt.errors import ConfigError
from mt.files import write_whole
from mt.runs.model_folder import read_config
from mt.search.options import EngineOptions, SearchOptions
from mt.translate import mbr
from mt.translate.streaming import TextFiles, read_file
from mt.translate.synthetic import TSV_COLUMNS, Recipe, check_output, make_corpus
from mt.translate.translate_file import number_of_lines


@dataclass(frozen=True)
class DistillText:
    """What the teacher translates, and how one of its outputs is chosen."""

    src: Path | None = None  # None: its training data
    ref: Path | None = None  # references of `src`
    metric: str | None = None  # bleu or chrf, to choose the output most like the reference


def distill(
    files: TextFiles,
    text: DistillText,
    shape: str,
    search: SearchOptions,
    engine: EngineOptions,
    say: Callable[[str], None],
) -> Path:
    """Let the teachers translate a text, and configure a student.

    `shape`: encoder and decoder layers of the student, such as 6-2. Writes the corpus to
    `files.output`, and the student's config beside it. Returns the path of the config. Raises
    MtError for what the user must correct.
    """
    layers = student_layers(shape)
    metric = _metric(text, search.n_best)
    config = read_config(engine.models[0])  # without what mt tune chose for the teacher
    if config.data.language_tokens:
        raise ConfigError(
            "--model: translates into several languages, and a student learns one direction; write "
            "its corpus with mt translate --to"
        )
    root, sources = _sources(config.data, text)
    inputs = [
        (name, file) for name, source in sources.items() for file in local_files(source, root)
    ]
    check_output(files, inputs, engine.models)
    student = Path(files.output).with_suffix(".yaml")
    if student.exists() and not files.overwrite:
        raise ConfigError(
            f"--output {files.output}: the student's config would replace {student}; "
            "give another path, or --overwrite"
        )
    lines = _read(text, sources, root, with_references=metric is not None)
    first = list(itertools.islice(lines, 1))  # opens the files: their faults are reported now
    recipe = Recipe(
        itertools.chain(first, lines),
        _count(sources.values(), root),
        lambda source, target: (source, target),
        {"--metric": metric or ""},
        None if metric is None else mbr.metric(metric, "--metric"),
    )
    make_corpus(recipe, files, search, engine, say)
    teachers = " and ".join(str(model) for model in engine.models)
    write_whole(student, student_config(config, files.output, layers, teachers))
    return student


def _metric(text: DistillText, n_best: int) -> str | None:
    """Return the metric that chooses an output, None without a choice; refuse what is missing."""
    if text.ref is not None and text.src is None:
        raise ConfigError("--ref: translates nothing without --src; give both, or neither")
    if n_best > 1:
        if text.src is not None and text.ref is None:
            raise ConfigError(
                f"--n-best {n_best}: the best output is chosen by a reference; "
                "give --ref, or leave out --n-best"
            )
        return text.metric or "bleu"
    if text.metric or text.ref:
        option = "--metric" if text.metric else "--ref"
        raise ConfigError(f"{option}: chooses among several outputs; give --n-best 8, say")
    return None


def _sources(data: DataConfig, text: DistillText) -> tuple[Path, dict[str, Source]]:
    """Return the root of paths, and what the teacher translates, by its option or key."""
    if text.src is not None:
        pair = Source(src=str(text.src), tgt=str(text.ref or text.src))
        return Path(), {"--src, --ref" if text.ref else "--src": pair}
    if not data.train:
        raise ConfigError("--model: its config names no training data; give the text with --src")
    return data_root(data), {f"data.train[{i}]": source for i, source in data.texts.items()}


def _count(sources: Iterable[Source], root: Path) -> int | None:
    """Return the number of lines; None where they would have to be read for it."""
    if any(source.path is not None for source in sources):
        return None
    counts = [number_of_lines(str(under(root, source.src))) for source in sources]
    return None if None in counts else sum(filter(None, counts))


def _read(
    text: DistillText, sources: Mapping[str, Source], root: Path, with_references: bool
) -> Iterator[str]:
    r"""Yield the source lines; with references as `source \t reference`."""
    if text.src is not None and text.ref is None:
        for line in read_file(text.src, "--src"):
            yield line.replace("\t", " ")
        return
    for name, source in sources.items():
        for src, ref in read_pairs(source, root, name):
            line = src.replace("\t", " ")  # a tab would begin the reference
            yield f"{line}\t{ref}" if with_references else line


def student_layers(shape: str) -> tuple[int, int]:
    """Return the numbers of encoder and decoder layers in `6-2`; ConfigError for another text."""
    match = re.fullmatch(r"([1-9]\d{0,2})-([1-9]\d{0,2})", shape)
    if match is None:
        raise ConfigError(
            "--student: must be the layers of encoder and decoder, such as 6-2 or 12-1, "
            f"found {shape!r}"
        )
    return int(match[1]), int(match[2])


def student_config(teacher: Config, corpus: str, layers: tuple[int, int], teachers: str) -> str:
    """Return the YAML of a student's config: the teacher's, but for data, layers and warm start."""
    encoder, decoder = layers
    values = teacher.model_dump(mode="json")
    values["run"]["dir"] = None
    values["data"]["train"] = [{"path": str(Path(corpus).absolute()), **TSV_COLUMNS}]
    values["data"]["stages"] = None  # they are those of the teacher's texts
    values["model"] |= {"n_encoder_layers": encoder, "n_decoder_layers": decoder}
    values["train"] |= {"init_from": None, "new_vocabulary": False, "freeze": []}
    student = config_from_mapping(values, "the student's config")
    shown = student.model_dump(mode="json", exclude_defaults=True)
    layers_shown = {"n_encoder_layers": encoder, "n_decoder_layers": decoder}
    shown["model"] = layers_shown | shown.get("model", {})
    return (
        f"# Student of {teachers}: {encoder} encoder and {decoder} decoder layers, trained on the\n"
        f"# teacher's output. Whatever is not listed has its default.\n{dump(shown)}"
    )
