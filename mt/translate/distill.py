"""Sequence-level knowledge distillation: a corpus written by a teacher, and a student's config.

Kim and Rush, 2016. Of several outputs of the teacher, the one most like the reference is their
sequence-level interpolation. Deep encoder, shallow decoder: Kasai et al., 2021.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mt.config.load import config_from_mapping
from mt.config.schema import Config, DataConfig, Source
from mt.config.yaml_text import dump
from mt.data.reading.corpus import data_root, local_files, read_pairs
from mt.data.reading.text_files import under
from mt.errors import ConfigError
from mt.files import write_whole
from mt.runs.model_folder import read_folder
from mt.search.options import EngineOptions, SearchOptions
from mt.translate import mbr
from mt.translate.streaming import TextFiles, read_file, refuse_overwrite
from mt.translate.synthetic import TSV_COLUMNS, Recipe, check_name, make_corpus, refuse_to_replace
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
    check_name(files.output)
    metric = _metric(text, search.n_best)
    student = Path(files.output).with_suffix(".yaml")
    if student.exists() and not files.overwrite:
        raise ConfigError(
            f"--output {files.output}: the student's config would replace {student}; "
            "give another path, or --overwrite"
        )
    config = read_folder(engine.models[0]).config
    lines = _Lines(config.data, text)
    for name, file in lines.files():
        refuse_overwrite(files.output, {name: file}, engine.models)
    refuse_to_replace(files)
    recipe = Recipe(
        lines.read(with_references=metric is not None),
        lines.count(),
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


class _Lines:
    """The lines that the teacher translates: training data, or a file, maybe with references."""

    def __init__(self, data: DataConfig, text: DistillText) -> None:
        src = text.src
        ref = text.ref
        if src is None:
            if not data.train:
                raise ConfigError(
                    "--model: its config names no training data; give the text with --src"
                )
            self.root = data_root(data)
            self.sources = {f"data.train[{i}]": source for i, source in enumerate(data.train)}
        else:
            self.root = Path()
            pair = Source(src=str(src), tgt=str(src if ref is None else ref))
            self.sources = {"--src" if ref is None else "--src, --ref": pair}
        self.alone = src if ref is None else None  # a file without references

    def files(self) -> Iterator[tuple[str, Path]]:
        """Yield the files that are read, each with the name of its option or key."""
        for name, source in self.sources.items():
            for file in local_files(source, self.root):
                yield name, file

    def count(self) -> int | None:
        """Return the number of lines; None where they would have to be read for it."""
        sources = self.sources.values()
        if any(source.path is not None for source in sources):
            return None
        counts = [number_of_lines(str(under(self.root, source.src))) for source in sources]
        return None if None in counts else sum(filter(None, counts))

    def read(self, with_references: bool) -> Iterator[str]:
        r"""Return the source lines; with references as `source \t reference`.

        Faults of the files are reported before the first line is asked for.
        """
        lines = self._read(with_references)
        return itertools.chain(list(itertools.islice(lines, 1)), lines)

    def _read(self, with_references: bool) -> Iterator[str]:
        if self.alone is not None:
            for line in read_file(self.alone, "--src"):
                yield line.replace("\t", " ")
            return
        for name, source in self.sources.items():
            for src, ref in read_pairs(source, self.root, name):
                text = src.replace("\t", " ")  # a tab would begin the reference
                yield f"{text}\t{ref}" if with_references else text


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
