"""A corpus that teachers write of their training data, and the config of a student of them.

Sequence-level knowledge distillation, and interpolation where several outputs of the teacher are
compared with the reference: Kim and Rush, 2016. Deep encoder, shallow decoder: Kasai et al., 2021.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mt.config.load import config_from_mapping
from mt.config.plan import DataPlan, Direction, held_out_sets, plan_data
from mt.config.schema import Config, Source
from mt.config.yaml_text import dump
from mt.data.reading.corpus import local_files, read_pairs
from mt.data.reading.languages import base_code
from mt.data.reading.text_files import under
from mt.errors import ConfigError
from mt.files import write_whole
from mt.runs.model_folder import open_model
from mt.search.options import EngineOptions, SearchOptions
from mt.synthetic.make_corpus import TSV_COLUMNS, CorpusSpec, check_output, make_corpus
from mt.translate.streaming import TextFiles, are_large, opened, read_file
from mt.translate.translate_file import number_of_lines


def distill(
    files: TextFiles, src: Path | None, shape: str, search: SearchOptions, engine: EngineOptions
) -> Path:
    """Let teachers translate `src` or their training data; the path of an N-M student's config."""
    layers = student_layers(shape)
    if search.n_best > 1 and src is not None:
        fault = "the best output is chosen by the references of the training data"
        raise ConfigError(f"--n-best {search.n_best}: {fault}; leave out --src, or --n-best")
    teacher = open_model(engine.models[0])
    config, data = teacher.config, teacher.data
    if data.has_tokens:
        fault = "translates into several languages, and its corpus is of one direction"
        raise ConfigError(f"--model: {fault}; write that with mt translate --to")
    if held_out_sets(config.data):
        fault = "only its run has the validation and test sets held out of its training text"
        raise ConfigError(f"--model {teacher.folder}: {fault}; name the run directory")
    way, found = direction_of_student(data), data.direction(search.from_, search.to)
    if search.from_ == way.tgt != way.src or found not in (None, way):
        raise ConfigError(
            f"--from {search.from_ or way.src}, --to {search.to or way.tgt}: the student is "
            f"tested from {way.src} into {way.tgt}; leave them out, or take mt backtranslate"
        )
    root, sources = _sources(data, src)
    read = {name: local_files(pair, root) for name, pair in sources.items()}
    inputs = [(name, file) for name, found in read.items() for file in found]
    check_output(files, inputs, engine.folders)
    path = Path(files.output).with_suffix(".yaml")
    is_ours = path.is_file() and path.read_text(errors="replace").startswith("# Student of ")
    if path.exists() and not (files.overwrite and is_ours):
        fault = f"the student's config would replace {path}; give another path"
        raise ConfigError(f"--output {files.output}: {fault}{', or --overwrite' * is_ours}")
    teachers = " and ".join(str(model) for model in engine.folders)
    student = student_config(config, files.output, layers, teachers)
    if src is None:
        lines = _read(sources, root, with_references=search.n_best > 1)
    else:
        lines = (line.replace("\t", " ") for line in read_file(src, "--src"))
    texts = [] if any(pair.path for pair in sources.values()) else [*sources.values()]
    counts = [number_of_lines(str(under(root, pair.src))) for pair in texts] or [None]
    spec = CorpusSpec(
        opened(lines),
        None if None in counts else sum(filter(None, counts)),
        lambda source, target: (source, target),
        {},
        are_large(under(root, source.path or source.src) for source in sources.values()),
        [str(text) for name, found in read.items() for text in found or (sources[name].path,)],
        "mt distill",
    )
    make_corpus(spec, files, search, engine)
    write_whole(path, student)
    return path


def _sources(data: DataPlan, src: Path | None) -> tuple[Path, dict[str, Source]]:
    """Return the root of paths, and what the teacher translates, by its option or key."""
    if src is not None:
        return Path(), {"--src": Source(src=str(src), tgt=str(src))}
    way = direction_of_student(data)
    sources = {}
    for flow in data.flows:
        if [*map(base_code, flow.direction)] == [*map(base_code, way)]:
            corpus = data.corpora[flow.corpus]
            turned = {"src": corpus.source.tgt, "tgt": corpus.source.src} if flow.is_turned else {}
            sources[corpus.name] = corpus.source.model_copy(update=turned)
    if not sources:
        fault = f"has no training data from {way.src} into {way.tgt}"
        raise ConfigError(f"--model: {fault}; give the text with --src")
    return data.root, sources


def direction_of_student(data: DataPlan) -> Direction:
    """The direction of validation, or the usual one, if it is trained, else the first one."""
    wanted = data.valid[0].direction if data.valid else data.usual
    return wanted if wanted in data.directions else [*data.directions, wanted][0]


def _read(sources: Mapping[str, Source], root: Path, with_references: bool) -> Iterator[str]:
    r"""Yield the source lines; with references as `source \t reference`."""
    for name, source in sources.items():
        for src, ref in read_pairs(source, root, name):
            line = src.replace("\t", " ")  # a tab would begin the reference
            yield f"{line}\t{ref}" if with_references else line


def student_layers(shape: str) -> tuple[int, int]:
    """Return the numbers of encoder and decoder layers in `6-2`; ConfigError for another text."""
    if match := re.fullmatch(r"([1-9]\d{0,2})-([1-9]\d{0,2})", shape):
        return int(match[1]), int(match[2])
    must = "must be the layers of encoder and decoder, such as 6-2 or 12-1"
    raise ConfigError(f"--student: {must}, found {shape!r}")


def student_config(teacher: Config, corpus: str, layers: tuple[int, int], teachers: str) -> str:
    """Return the YAML of a student's config: the teacher's, but for data, layers and warm start."""
    encoder, decoder = layers
    shape = {"n_encoder_layers": encoder, "n_decoder_layers": decoder}
    entry: dict[str, Any] = {"path": str(Path(corpus).absolute()), **TSV_COLUMNS}
    data = plan_data(teacher.data)
    if (way := direction_of_student(data)) != data.usual:
        entry |= {"src_lang": way.src, "tgt_lang": way.tgt}
    values = teacher.model_dump(mode="json")
    values["run"]["dir"] = None
    values["data"] |= {"train": [entry], "stages": None}  # stages are those of the teacher's texts
    values["data"]["root"] = str(data.root.absolute())  # data.valid is found from any folder, too
    values["model"] |= shape
    values["train"] |= {"init_from": None, "new_vocabulary": False}
    shown = config_from_mapping(values, "the config").model_dump(mode="json", exclude_defaults=True)
    shown["model"] = {**shape, **shown.get("model", {})}
    return (
        f"# Student of {teachers}: {encoder} encoder and {decoder} decoder layers, trained on the\n"
        f"# teacher's output. Whatever is not listed has its default.\n{dump(shown)}"
    )
