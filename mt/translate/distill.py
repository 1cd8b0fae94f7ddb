"""Sequence-level knowledge distillation: a corpus written by a teacher, and a student's config.

Kim and Rush, 2016. Of several outputs of the teacher, the one most like the reference is their
sequence-level interpolation. Deep encoder, shallow decoder: Kasai et al., 2021.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from mt.config.load import config_from_mapping
from mt.config.schema import Config, DataConfig, Source
from mt.config.yaml_text import dump
from mt.data.reading.corpus import data_root, local_files, read_pairs
from mt.data.reading.text_files import under
from mt.errors import ConfigError
from mt.files import write_whole
from mt.runs.model_folder import read_folder
from mt.translate import mbr
from mt.translate.streaming import read_file, refuse_overwrite
from mt.translate.synthetic import TSV_COLUMNS, check_output, make_corpus
from mt.translate.translate_file import TranslateOptions, number_of_lines


def distill(
    options: TranslateOptions,
    shape: str,
    src: Path | None,
    ref: Path | None,
    metric: str | None,
    say: Callable[[str], None],
) -> Path:
    """Let the teachers translate their training data, or `src`, and configure a student.

    `shape`: encoder and decoder layers of the student, such as 6-2. `ref`: references of `src`.
    `metric`: bleu or chrf, which chooses the output most like the reference among
    `options.n_best`. Writes the corpus to `options.output`, and the student's config beside it.

    Returns the path of the config. Raises MtError for what the user must correct.
    """
    layers = student_layers(shape)
    check_output(options)
    if ref is not None and src is None:
        raise ConfigError("--ref: translates nothing without --src; give both, or neither")
    utility = None
    if options.n_best > 1:
        if src is not None and ref is None:
            raise ConfigError(
                f"--n-best {options.n_best}: the best output is chosen by a reference; "
                "give --ref, or leave out --n-best"
            )
        utility = mbr.metric(metric or "bleu", "--metric")
    elif metric or ref:
        option = "--metric" if metric else "--ref"
        raise ConfigError(f"{option}: chooses among several outputs; give --n-best 8, say")
    student = Path(options.output).with_suffix(".yaml")
    if student.exists():
        raise ConfigError(
            f"--output {options.output}: the student's config would replace {student}; "
            "give another path, or remove it"
        )
    config = read_folder(options.models[0]).config
    text = _Text(config.data, src, ref)
    for name, file in text.files():
        refuse_overwrite(options.output, {name: file})
    make_corpus(
        options,
        text.lines(with_references=utility is not None),
        text.count(),
        lambda source, target: (source, target),
        say,
        utility,
        {"--metric": "" if utility is None else metric or "bleu"},
    )
    teachers = " and ".join(str(model) for model in options.models)
    write_whole(student, student_config(config, options.output, layers, teachers))
    return student


class _Text:
    """What the teacher translates: its training data, or a file, with or without references."""

    def __init__(self, data: DataConfig, src: Path | None, ref: Path | None) -> None:
        self.src = src
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
        self.alone = src is not None and ref is None

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

    def lines(self, with_references: bool) -> Iterator[str]:
        r"""Return the source lines; with references as `source \t reference`.

        Faults of the files are reported before the first line is asked for.
        """
        lines = self._lines(with_references)
        return itertools.chain(list(itertools.islice(lines, 1)), lines)

    def _lines(self, with_references: bool) -> Iterator[str]:
        if self.alone:
            assert self.src is not None
            for line in read_file(self.src, "--src"):
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
