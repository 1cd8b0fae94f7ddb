"""What `mt evaluate` reads: test sets, the outputs of systems, and texts to slice by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mt.cli.evaluate_models import System, Texts, config_of
from mt.errors import DataError

if TYPE_CHECKING:
    from mt.data.tokens.tokenizer import Tokenizer
    from mt.evaluation.slices import Slicing
    from mt.evaluation.systems import EvaluationSet

SLICES = ("length", "rare", "unknown")


def systems_of(hyp: Sequence[str], model: Sequence[str], baseline: str | None) -> list[System]:
    """The systems, baseline first. `NAME=FILE` names one; else its path is its name."""
    systems = []
    for text in hyp:
        name, files = _name_and_path(text)
        systems.append(System(name or text, files))
    for text in model:
        name, folder = _name_and_path(text)
        systems.append(System(name or str(Path(folder)), text, Path(folder)))
    names = [system.name for system in systems]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise DataError(
            f"evaluate: two systems are called {twice[0]}; give one of them another name: "
            f"NAME={twice[0]}"
        )
    if baseline is not None:
        if baseline not in names:
            raise DataError(
                f"--baseline: must be one of {', '.join(names)}, found {baseline}; correct the name"
            )
        systems.sort(key=lambda system: system.name != baseline)  # stable
    return systems


def read_texts(
    systems: Sequence[System],
    test_sets: Sequence[str],
    src: str | None,
    ref: Sequence[str],
    domain: str | None,
) -> list[Texts]:
    """Read every test set and the outputs for it.

    `test_sets`: each NAME=SRC,REF[,REF...]; without them, `src` and `ref`; without these, the
    `data.test` of the first model's config. Raises DataError for missing files and unequal counts.
    """
    from mt.evaluation.metrics import check_counts

    models = [system.model for system in systems if system.model is not None]
    if test_sets:
        sets = [_listed_set(text) for text in test_sets]
    elif ref:
        named = {f"--ref {path}": read(path, "--ref") for path in ref}
        sources = None if src is None else read(src, "--src")
        before = {} if sources is None else {f"--src {src}": sources}
        sets = [(_evaluation_set("", sources, list(named.values())), before | named)]
    else:
        sets = _configured_sets(models[0])
    names = [data.name for data, _ in sets]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise DataError(f"--test-set: two are called {twice[0]}; rename one of them")
    for data, _ in sets:
        if models and data.sources is None:
            raise DataError(
                f"--test-set {data.name}: has no source for --model to translate; write "
                f"{data.name}=SRC,REF"
            )
    files = {
        system.name: _per_set(system.text, names, "--hyp") for system in systems if not system.model
    }
    domains = None if domain is None else _per_set(domain, names, "--domain")
    texts = []
    for number, (data, named) in enumerate(sets):
        hyps = {name: read(paths[number], "--hyp") for name, paths in files.items()}
        own = {f"--hyp {files[name][number]}": lines for name, lines in hyps.items()} | named
        labels = None
        if domains is not None:
            labels = own[f"--domain {domains[number]}"] = read(domains[number], "--domain")
        check_counts(own)
        texts.append(Texts(data, hyps, labels))
    return texts


def with_slices(
    texts: Sequence[Texts],
    names: Sequence[str],
    train_src: Sequence[str],
    tokenizer_of: Path | None,
    models: Sequence[Path],
) -> list[EvaluationSet]:
    """The test sets with their slicings, by `names` of SLICES and by domains."""
    from mt.evaluation.slices import by_domain, by_length, by_rare_words, by_unknown_pieces

    if any(text.data.sources is None for text in texts) and names:
        raise DataError(
            f"--slices {names[0]}: slices by the source; give --src FILE, or "
            "--test-set NAME=SRC,REF"
        )
    slice_by: dict[str, Callable[[Sequence[str]], Slicing]] = {}
    for name in names:
        if name == "length":
            slice_by[name] = by_length
        elif name == "rare":
            slice_by[name] = partial(by_rare_words, counts=_training_counts(train_src, models))
        else:
            tokenizer = _slicing_tokenizer(tokenizer_of, models)
            slice_by[name] = partial(by_unknown_pieces, tokenizer=tokenizer)
    result = []
    for text in texts:
        slicings = [slice_by[name](text.data.sources or []) for name in names]
        if text.domains is not None:
            slicings.append(by_domain(text.domains))
        result.append(replace(text.data, slicings=slicings))
    return result


def _training_counts(train_src: Sequence[str], models: Sequence[Path]) -> Mapping[str, int]:
    """Counts of the source words of the files named, else of the first model's training data."""
    from itertools import chain

    from mt.data.reading.corpus import training_pairs
    from mt.data.reading.text_files import read_lines
    from mt.evaluation.slices import count_words

    if train_src:
        return count_words(chain(*(read_lines(Path(path), "--train-src") for path in train_src)))
    if not models:
        raise DataError(
            "--slices rare: needs the training data to count words in; give --train-src FILE"
        )
    try:
        return count_words(source for source, _ in training_pairs(config_of(models[0]).data))
    except DataError as error:
        raise DataError(
            f"{error} --slices rare counts words in the training data of {models[0]}; or give "
            "--train-src FILE"
        ) from error


def _slicing_tokenizer(folder: Path | None, models: Sequence[Path]) -> Tokenizer:
    """The tokenizer of a run directory or other folder, else that of the first model."""
    from mt.data.tokens.tokenizer import Tokenizer
    from mt.runs.model_folder import find_model, read_folder

    if folder is None and not models:
        raise DataError("--slices unknown: needs a tokenizer; give --tokenizer-of FOLDER")
    if folder is not None and Tokenizer.exists_in(folder):
        return Tokenizer.load(folder)
    return read_folder(find_model(folder or models[0], "--tokenizer-of")).tokenizer


def read(path: str, option: str) -> list[str]:
    """All lines of a file, or of stdin (`-`); `option` names the file's option in messages."""
    from mt.translate.streaming import read_input

    return list(read_input(path, option=option))


def _name_and_path(text: str) -> tuple[str, str]:
    """Split NAME=PATH; an existing file may have = in its name."""
    name, equals, path = text.partition("=")
    if not equals or not name or not path or "/" in name or Path(text).exists():
        return "", text
    return name, path


def _per_set(text: str, names: Sequence[str], option: str) -> list[str]:
    """The files for each test set: one, or as many as there are, separated by commas."""
    files = [text] if len(names) == 1 else text.split(",")
    if len(files) != len(names):
        raise DataError(
            f"{option} {text}: names {len(files)} files for {len(names)} test sets "
            f"({', '.join(names)}); give one for each, in this order, separated by commas"
        )
    return files


def _evaluation_set(name: str, sources: list[str] | None, refs: list[list[str]]) -> EvaluationSet:
    from mt.evaluation.systems import EvaluationSet

    return EvaluationSet(name, refs, sources)


def _listed_set(text: str) -> tuple[EvaluationSet, dict[str, list[str]]]:
    """Read the files of NAME=SRC,REF[,REF...]; SRC may be empty."""
    name, equals, files = text.partition("=")
    src, *refs = files.split(",")
    if not equals or not name or not refs or not all(refs):
        raise DataError(
            f"--test-set: must be NAME=SRC,REF or NAME=SRC,REF,REF (SRC may be empty), found {text}"
        )
    option = f"--test-set {name}"
    sources = read(src, option) if src else None
    lines = [read(ref, option) for ref in refs]
    named = {} if sources is None else {f"{option}: {src}": sources}
    named |= {f"{option}: {ref}": one for ref, one in zip(refs, lines, strict=True)}
    return _evaluation_set(name, sources, lines), named


def _configured_sets(model: Path) -> list[tuple[EvaluationSet, dict[str, list[str]]]]:
    """The test sets of a model's config."""
    from mt.training.validation import names_of, read_text

    config = config_of(model)
    if not config.data.test:
        raise DataError(
            f"--model {model}: its config has no data.test to translate; give --src FILE and "
            "--ref FILE, or --test-set NAME=SRC,REF"
        )
    sets = []
    for number, (name, source) in enumerate(
        zip(names_of(config.data.test), config.data.test, strict=True)
    ):
        try:
            sources, refs = read_text(config, source, f"data.test[{number}]")
        except DataError as error:
            raise DataError(
                f"{error} This is a test set of {model}; or give --src FILE and --ref FILE, or "
                "--test-set NAME=SRC,REF"
            ) from error
        sets.append((_evaluation_set(name, sources, [refs]), {f"data.test[{number}]": refs}))
    return sets
