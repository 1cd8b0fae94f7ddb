"""A corpus that a model writes of its training data, and the config of what is trained on it.

Sequence-level knowledge distillation: Kim and Rush, 2016. Of several outputs of the teacher, the
one most like the reference is their sequence-level interpolation. Deep encoder, shallow decoder:
Kasai et al., 2021. Own translations of both sides beside the text: Nguyen et al., 2020 ("Data
Diversification").
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mt.config.load import config_from_mapping
from mt.config.schema import Config, DataConfig, Source
from mt.config.yaml_text import dump
from mt.data.reading.corpus import data_root, local_files, read_pairs
from mt.data.reading.text_files import under
from mt.data.tokens.mixing import stages_of
from mt.errors import ConfigError
from mt.files import write_whole
from mt.runs.model_folder import find_model, read_config, read_meta
from mt.search.options import EngineOptions, SearchOptions
from mt.translate import mbr
from mt.translate.streaming import TextFiles, are_large, opened, read_file
from mt.translate.synthetic import TSV_COLUMNS, Recipe, check_output, make_corpus
from mt.translate.translate_file import number_of_lines

SAME = "same"  # the student is the first teacher, trained further


@dataclass(frozen=True)
class DistillText:
    """What the teacher translates, and how one of its outputs is chosen."""

    src: Path | None = None  # None: its training data
    ref: Path | None = None  # references of `src`
    metric: str | None = None  # bleu or chrf, to choose the output most like the reference


def distill(
    files: TextFiles, text: DistillText, shape: str, search: SearchOptions, engine: EngineOptions
) -> Path:
    """Let the teachers translate a text, and configure a student.

    `shape`: encoder and decoder layers of the student, such as 6-2, or `SAME`. Writes the corpus to
    `files.output`, and the student's config beside it. Returns the path of the config. Raises
    MtError for what the user must correct.
    """
    layers = None if shape == SAME else student_layers(shape)
    metric = _metric(text, search.n_best)
    config = _read_teacher(engine)
    validated = [config.data.direction(text) for text in config.data.valid_texts]
    src_lang, tgt_lang = (validated or [(config.data.src_lang, config.data.tgt_lang)])[0]
    if search.from_ == tgt_lang != src_lang:
        raise ConfigError(
            f"--from {search.from_}: the student's config is the teacher's, which is validated and "
            f"tested from {src_lang} into {tgt_lang}; leave --from out, or write the corpus with "
            "mt backtranslate"
        )
    root, sources = _sources(config.data, text)
    if layers is None:
        own = _sources_of_last_stage(config.data)
        if text.src is None:
            sources = own
        else:
            check_output(files, _files_of(own, data_root(config.data)), [])
        model = engine.models[0]
        updates = read_meta(find_model(model), []).get("step") or 0
        student = refined_config(config, files.output, model, _names(engine), updates)
    else:
        student = student_config(config, files.output, layers, _names(engine))
    path = _check_outputs(files, sources, root, engine)
    lines = _read(text, sources, root, with_references=metric is not None)
    recipe = Recipe(
        opened(lines),
        _count(sources.values(), root),
        lambda source, target, _: (source, target),
        {"--metric": metric or ""},
        are_large(_translated_file(source, root) for source in sources.values()),
        None if metric is None else mbr.metric(metric, "--metric"),
    )
    make_corpus(recipe, files, search, engine)
    write_whole(path, student)
    return path


def diversify(files: TextFiles, search: SearchOptions, engine: EngineOptions) -> Path:
    """Let models of both directions translate both sides of their training data.

    Writes the corpus to `files.output`: each source with its translation, and the translation of
    each target with that. Writes beside it the config of a training on the text and the corpus,
    which starts from the first model's weights, and returns its path. Raises MtError for what the
    user must correct.
    """
    config = _read_teacher(engine)
    root, _ = _sources(config.data, DistillText())
    texts = _texts_of_both_directions(config.data)
    sources = {f"data.train[{number}]": text for number, text in texts.items()}
    path = _check_outputs(files, sources, root, engine)
    following = diversified_config(
        config, [*texts.values()], files.output, engine.models[0], _names(engine)
    )
    n_pairs = _count(sources.values(), root)
    recipe = Recipe(
        opened(_read_both_sides(sources, root)),
        None if n_pairs is None else 2 * n_pairs,
        lambda text, output, side: (text, output) if side == "src" else (output, text),
        {},
        are_large(file for _, file in _files_of(sources, root)),
    )
    make_corpus(recipe, files, search, engine)
    write_whole(path, following)
    return path


def _read_teacher(engine: EngineOptions) -> Config:
    """The config of the first model; without what `mt tune` chose for it."""
    config = read_config(engine.models[0])
    if config.data.language_tokens:
        raise ConfigError(
            "--model: translates into several languages, and its corpus is of one direction; write "
            "that with mt translate --to"
        )
    return config


def _texts_of_both_directions(data: DataConfig) -> dict[int, Source]:
    """The texts of the last stage by number, with its weights, one way round.

    Raises ConfigError unless both directions of all are learnt, of one pair of languages.
    """
    entries = _last_texts(data)
    ways = {
        number: {entry.reverse for one, entry in entries if one == number} for number, _ in entries
    }
    for number, found in ways.items():
        if len(found) < 2:
            raise ConfigError(
                f"--model: must translate in both directions, but its training ends with only one "
                f"of data.train[{number}]; train a model with --set "
                '"data.stages=[{both_directions: true}]"'
            )
    if any(entry.tag for _, entry in entries):
        raise ConfigError(
            "--model: its training texts have tags, which a line in either language would need; "
            "write the two corpora with mt distill and mt backtranslate"
        )
    texts = {number: entry for number, entry in entries if not entry.reverse}
    if len({data.direction(text) for text in texts.values()}) > 1:
        raise ConfigError(
            "--model: must have one pair of languages, but its training texts are of several; "
            "train a model of one"
        )
    return texts


def _last_texts(data: DataConfig) -> list[tuple[int, Source]]:
    """The texts of the last stage with its weights, each after its number in `data.train`."""
    texts = zip(data.text_numbers, stages_of(data)[-1].train, strict=True)
    return [(number, text) for number, text in texts if text.weight or text.share]


def _check_outputs(
    files: TextFiles, sources: Mapping[str, Source], root: Path, engine: EngineOptions
) -> Path:
    """Check the place of the corpus; return that of the config beside it.

    Raises ConfigError if a file would be lost.
    """
    check_output(files, _files_of(sources, root), engine.models)
    config = Path(files.output).with_suffix(".yaml")
    if config.exists() and not files.overwrite:
        raise ConfigError(
            f"--output {files.output}: the config of the next training would replace {config}; "
            "give another path, or --overwrite"
        )
    return config


def _files_of(sources: Mapping[str, Source], root: Path) -> list[tuple[str, Path]]:
    return [(name, file) for name, source in sources.items() for file in local_files(source, root)]


def _translated_file(source: Source, root: Path) -> Path:
    return under(root, source.path or (source.tgt if source.reverse else source.src))


def _names(engine: EngineOptions) -> str:
    return " and ".join(str(model) for model in engine.models)


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
    return data_root(data), _forward(zip(data.text_numbers, data.train, strict=True))


def _forward(entries: Iterable[tuple[int, Source]]) -> dict[str, Source]:
    """Each text once, by its key: its entry that is not reversed, if it has one."""
    ordered = sorted(entries, key=lambda one: (one[0], not one[1].reverse))
    return {f"data.train[{number}]": entry for number, entry in ordered}


def _sources_of_last_stage(data: DataConfig) -> dict[str, Source]:
    """Return what the model's training ended with, by its key.

    Raises ConfigError for a model without training data, such as an imported one.
    """
    if not data.train:
        raise ConfigError(
            f"--student {SAME}: trains the model on its own text too, but its config names none; "
            "give the layers of a student, or name --model in train.init_from of a config"
        )
    return _forward(_last_texts(data))


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
        for pair in read_pairs(source, root, name):
            src, ref = reversed(pair) if source.reverse else pair
            line = src.replace("\t", " ")  # a tab would begin the reference
            yield f"{line}\t{ref}" if with_references else line


def _read_both_sides(sources: Mapping[str, Source], root: Path) -> Iterator[str]:
    r"""Yield the lines of each pair as `source \t src` and `target \t tgt`."""
    for name, source in sources.items():
        for src, tgt in read_pairs(source, root, name):
            yield src.replace("\t", " ") + "\tsrc"
            yield tgt.replace("\t", " ") + "\ttgt"


def student_layers(shape: str) -> tuple[int, int]:
    """Return the numbers of encoder and decoder layers in `6-2`; ConfigError for another text."""
    match = re.fullmatch(r"([1-9]\d{0,2})-([1-9]\d{0,2})", shape)
    if match is None:
        raise ConfigError(
            "--student: must be the layers of encoder and decoder, such as 6-2 or 12-1, or "
            f"{SAME}, found {shape!r}"
        )
    return int(match[1]), int(match[2])


def student_config(teacher: Config, corpus: str, layers: tuple[int, int], teachers: str) -> str:
    """Return the YAML of a student's config: the teacher's, but for data, layers and warm start."""
    encoder, decoder = layers
    shape = {"n_encoder_layers": encoder, "n_decoder_layers": decoder}
    train: dict[str, Any] = {"init_from": None, "new_vocabulary": False, "freeze": []}
    comment = (
        f"Student of {teachers}: {encoder} encoder and {decoder} decoder layers, trained on the\n"
        "# teacher's output."
    )
    entry = _entry(corpus, teacher.data, teacher.data.train)
    return _next_config(teacher, [entry], {"model": shape, "train": train}, comment)


def refined_config(config: Config, corpus: str, model: Path, models: str, updates: int = 0) -> str:
    """Return the YAML of the config that trains a model of `updates`, on its text and the corpus.

    Three tenths of the updates, which are a fifth of the epochs as these are twice as long, and a
    third of the learning rate are nearly what was measured with small.yaml (configs/README.md).
    About four validations: twenty are a quarter of such a short training.
    """
    optim, epochs = config.optim, config.train.epochs
    max_steps = max(2, config.train.max_steps * 3 // 10)
    peak_lr = optim.peak_lr or (config.model.d_model * optim.warmup_steps) ** -0.5
    texts = [text for _, text in _last_texts(config.data)]
    if all(text.share for text in texts):  # the corpus gets the other half
        texts = [text.model_copy(update={"share": (text.share or 0) / 2}) for text in texts]
    schedule = {
        "peak_lr": float(f"{peak_lr / 3:.2g}"),
        "schedule": "inverse_sqrt" if optim.schedule == "noam" else optim.schedule,
        "warmup_steps": min(max(1, optim.warmup_steps // 5), max_steps - 1),
    }
    length = {
        "max_epochs": epochs and epochs / 5,
        "max_steps": max_steps,
        "valid_every": updates * 3 // 40 or None,
    }
    comment = f"{model}, trained further on its text and on translations by {models}."
    return _continued(config, texts, corpus, model, comment, optim=schedule, train=length)


def diversified_config(
    config: Config, texts: Sequence[Source], corpus: str, model: Path, models: str
) -> str:
    """Return the YAML of the config for a text and its translations both ways, from a model on."""
    comment = f"Trained on its text and on translations of both sides by {models}."
    return _continued(config, texts, corpus, model, comment, optim={}, train={})


def _continued(
    config: Config,
    texts: Sequence[Source],
    corpus: str,
    model: Path,
    comment: str,
    *,
    optim: Mapping[str, Any],
    train: Mapping[str, Any],
) -> str:
    """The YAML of a config that trains a model further on its texts and a corpus.

    `optim`, `train`: changes to these sections.
    """
    data: dict[str, Any] = {"augment": stages_of(config.data)[-1].augment}
    if config.data.clean is not None:  # a source has a reference, and now translations
        data["clean"] = config.data.clean.model_copy(update={"max_targets": None})
    start = {"init_from": str(model.absolute()), "new_vocabulary": False, "freeze": []}
    changes = {
        "data": data,
        "tokenizer": {"model": None, "tgt_model": None},  # those of the model go on
        "optim": optim,
        "train": {**train, **start},
    }
    entry = _entry(corpus, config.data, texts)
    entries = [*(text.model_dump(mode="json") for text in texts), entry]
    return _next_config(config, entries, changes, comment)


def _entry(corpus: str, data: DataConfig, texts: Sequence[Source]) -> dict[str, Any]:
    """A corpus as an entry of `data.train`; in the languages of the texts, if that is one pair."""
    entry = {"path": str(Path(corpus).absolute()), **TSV_COLUMNS}
    one_way = [text for text in texts if not text.reverse] or texts
    pairs = {data.direction(text) for text in one_way}
    if len(pairs) == 1 and pairs != {(data.src_lang, data.tgt_lang)}:
        entry |= dict(zip(("src_lang", "tgt_lang"), pairs.pop(), strict=True))
    return entry


def _next_config(
    config: Config,
    texts: Sequence[Mapping[str, Any]],
    changes: Mapping[str, Mapping[str, Any]],
    comment: str,
) -> str:
    """The YAML of a config on other texts, with `changes` to its sections, which are all shown."""
    values = config.model_dump(mode="json")
    values["run"]["dir"] = None
    values["data"] |= {"train": texts, "stages": None}  # stages are those of the model's texts
    for section, keys in changes.items():
        values[section] |= keys
    shown = config_from_mapping(values, "the config").model_dump(mode="json", exclude_defaults=True)
    if "model" in changes:
        shown["model"] = {**changes["model"], **shown.get("model", {})}
    return f"# {comment} Whatever is not listed has its default.\n{dump(shown)}"
