"""The systems that `mt evaluate` scores, the test sets, and the outputs for them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mt.cli import options as opt
from mt.cli.console import say
from mt.errors import DataError
from mt.evaluation.metrics import check_counts
from mt.evaluation.slices import Slicing, by_domain
from mt.evaluation.systems import ANY_DIRECTION, EvaluationSet, TextDirection
from mt.search.options import EngineOptions, SearchOptions
from mt.translate.streaming import read_input

if TYPE_CHECKING:
    from mt.translate.lines import Translation

    # `translate_sets` with a search and an engine.
    TranslateSets = Callable[..., list[list[Translation]]]

# What messages call the lines of a file: check_counts names them by it.
NamedLines = dict[str, list[str]]


class NamedSet(NamedTuple):
    """A test set as it is read."""

    name: str
    sources: NamedLines  # empty if it has none
    refs: NamedLines
    test_set: tuple[str, str] | None = None  # name and languages, of one of sacreBLEU
    direction: TextDirection = ANY_DIRECTION


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """The test sets to read, as the options of these names give them."""

    # NAME=SRC,REF[,REF...], or names that sacreBLEU knows; or else `src` and `ref`; or else
    # `data.test`, or `data.valid`, of the first model's config.
    test_set: Sequence[str] | None = None
    src: str | None = None
    ref: Sequence[str] | None = None
    section: str = "test"
    domain: str | None = None
    from_: str | None = None
    to: str | None = None


@dataclass(frozen=True)
class System:
    """A system to evaluate: a model, or its outputs in files, one for each test set."""

    name: str
    files: str  # as given, a file for each test set; of a model as it was named
    model: Path | None = None


@dataclass(frozen=True)
class Texts:
    """A test set, the outputs that are in files, and labels."""

    data: EvaluationSet
    hyps: dict[str, list[str]]  # by system
    domains: list[str] | None


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
    if twice := _first_twice(names):
        raise DataError(
            f"evaluate: two systems are called {twice}; give one of them another name: NAME={twice}"
        )
    if baseline is not None and baseline not in names:
        raise DataError(
            f"--baseline: must be one of {', '.join(names)}, found {baseline}; correct the name"
        )
    return sorted(systems, key=lambda system: system.name != (baseline or names[0]))  # stable


def _name_and_path(text: str) -> tuple[str, str]:
    """Split NAME=PATH; an existing file may have = in its name."""
    name, equals, path = text.partition("=")
    if not equals or not name or not path or "/" in name or os.path.exists(text):
        return "", text
    return name, path


def _first_twice(names: Sequence[str]) -> str | None:
    return next((name for name, count in Counter(names).items() if count > 1), None)


def scoring_of(
    models: Sequence[Path], tgt_lang: str | None, tokenize: str, into: str | None = None
) -> tuple[str, str]:
    """Target language and BLEU tokenizer: as given, else those of the models' configs.

    `into`: the target language of a test set, instead of the configs'.
    """
    if not models or (tgt_lang is not None and tokenize != "auto"):
        return tgt_lang or into or "", tokenize
    from mt.runs.model_folder import read_config

    pairs = []
    for model in models:
        config = read_config(model)
        choice = config.train.bleu_tokenize if tokenize == "auto" and tgt_lang is None else tokenize
        pairs.append((tgt_lang or into or config.data.tgt_lang, choice))
    if len(set(pairs)) > 1:
        each = "; ".join(
            f"{model} {', '.join(pair)}" for model, pair in zip(models, pairs, strict=True)
        )
        raise DataError(
            f"evaluate: target language and BLEU tokenizer of the models differ: {each}; give "
            "--tgt-lang, or --tgt-lang and --tokenize, for all"
        )
    return pairs[0]


# --- test sets --------------------------------------------------------------------------------


def read_texts(systems: Sequence[System], wanted: TextOptions) -> list[Texts]:
    """Read every test set and the outputs for it.

    Raises DataError for missing files and unequal counts.
    """
    models = [system.model for system in systems if system.model is not None]
    sets = _read_sets(models, wanted)
    names = [test_set.name for test_set in sets]
    if twice := _first_twice(names):
        raise DataError(f"--test-set: two are called {twice}; rename one of them")
    for name, sources, *_ in sets:
        if models and not sources:
            raise DataError(
                f"--test-set {name}: has no source for --model to translate; write {name}=SRC,REF"
            )
    files = {
        system.name: _per_set(system.files, names, "--hyp")
        for system in systems
        if not system.model
    }
    domains: Sequence[str | None] = [None] * len(sets)
    if wanted.domain is not None:
        domains = _per_set(wanted.domain, names, "--domain")
    return [
        _with_outputs(test_set, {name: paths[n] for name, paths in files.items()}, domains[n])
        for n, test_set in enumerate(sets)
    ]


def _read_sets(models: Sequence[Path], wanted: TextOptions) -> list[NamedSet]:
    """Read the sources and references of every test set."""
    source, to = wanted.from_, wanted.to
    if wanted.test_set:
        sets = [
            _listed_set(text)
            if "=" in text or "," in text
            else _set_of_sacrebleu(text, _languages_of(models, source, to))
            for text in wanted.test_set
        ]
    elif wanted.ref:
        src = [] if wanted.src is None else [wanted.src]
        sources = {f"--src {path}": read(path, "--src") for path in src}
        refs = {f"--ref {path}": read(path, "--ref") for path in wanted.ref}
        sets = [NamedSet("", sources, refs)]
    else:
        sets = _configured_sets(models[0], wanted.section)
        options = {"--from": source, "--to": to}
        given = " and ".join(f"{option} {code}" for option, code in options.items() if code)
        if given:
            raise DataError(
                f"{given}: the texts of data.{wanted.section} have languages of their own; give "
                f"--src and --ref, or leave {given} out"
            )
        return sets
    direction = _direction_of(models, source, to)
    return [test_set._replace(direction=direction) for test_set in sets]


def _with_outputs(test_set: NamedSet, hyps: Mapping[str, str], domain: str | None) -> Texts:
    """Read the outputs of the systems for a test set, and the labels of its lines."""
    named = {f"--hyp {path}": read(path, "--hyp") for path in hyps.values()}
    named |= test_set.sources | test_set.refs
    label = f"--domain {domain}"
    if domain is not None:
        named[label] = read(domain, "--domain")
    check_counts(named)
    named, numbers = _with_references(test_set.name, named, test_set.refs)
    data = EvaluationSet(
        test_set.name,
        [named[ref] for ref in test_set.refs],
        next((named[source] for source in test_set.sources), None),
        direction=test_set.direction,
        numbers=numbers,
        test_set=None if numbers else test_set.test_set,  # whose score is that of all lines
    )
    outputs = {system: named[f"--hyp {path}"] for system, path in hyps.items()}
    return Texts(data, outputs, named.get(label))


def _direction_of(models: Sequence[Path], source: str | None, to: str | None) -> TextDirection:
    """The languages of --from and --to; a model of both directions tells the other language."""
    if not models or (not source and not to):
        return TextDirection(source, to)
    from mt.config.plan import plan_data
    from mt.runs.model_folder import read_config

    plan = plan_data(read_config(models[0]).data)
    known = plan.direction(source, to) or (None, None)
    return TextDirection(source or known[0], to or known[1])


def _with_references(
    name: str, texts: NamedLines, refs: NamedLines
) -> tuple[NamedLines, Sequence[int]]:
    """The lines that have a reference, and so can be scored, and their numbers if not all have."""
    rows = zip(*refs.values(), strict=True)
    numbers = [number for number, row in enumerate(rows, start=1) if "".join(row).strip()]
    n_lines = len(next(iter(refs.values())))
    if not n_lines:
        raise DataError(
            f"{' and '.join(refs)}: has no lines, at least one is required; give the "
            "file with the references"
        )
    if len(numbers) == n_lines:
        return texts, ()
    if not numbers:
        raise DataError(
            f"{' and '.join(refs)}: all {n_lines:,} lines are blank, so nothing can be scored; "
            "give the file with the references"
        )
    first = min(set(range(1, n_lines + 1)) - set(numbers))
    say(
        f"{name or 'references'}: {n_lines - len(numbers):,} of {n_lines:,} lines have no "
        f"reference, the first is line {first:,}; they are not scored"
    )
    return {label: [lines[n - 1] for n in numbers] for label, lines in texts.items()}, numbers


def read(path: str, option: str) -> list[str]:
    """All lines of a file, or of stdin (`-`); `option` names the file's option in messages."""
    return list(read_input(path, option=option))


def _per_set(text: str, names: Sequence[str], option: str) -> list[str]:
    """The files for each test set: one, or as many as there are, separated by commas."""
    files = [text] if len(names) == 1 else text.split(",")
    if len(files) != len(names):
        raise DataError(
            f"{option} {text}: names {len(files)} files for {len(names)} test sets "
            f"({', '.join(names)}); give one for each, in this order, separated by commas"
        )
    return files


def _listed_set(text: str) -> NamedSet:
    """The lines of NAME=SRC,REF[,REF...]; SRC may be empty."""
    name, equals, files = text.partition("=")
    src, *refs = files.split(",")
    if not equals or not name or not refs or not all(refs):
        raise DataError(
            f"--test-set: must be NAME=SRC,REF or NAME=SRC,REF,REF (SRC may be empty), found {text}"
        )
    option = f"--test-set {name}"
    sources, references = (
        {f"{option}: {path}": read(path, option) for path in paths if path}
        for paths in ([src], refs)
    )
    return NamedSet(name, sources, references)


def _set_of_sacrebleu(name: str, languages: tuple[str, str] | None) -> NamedSet:
    """The lines of a test set of sacreBLEU, with all references."""
    from mt.data.reading.test_sets import files_of_set, language_pair

    option = f"--test-set {name}"
    if languages is None:
        raise DataError(
            f"{option}: needs the languages, such as --langs de-en; files are NAME=SRC,REF"
        )
    pair = language_pair(name, languages, option)
    src, *refs = (
        {f"{option}: {path}": read(str(path), option)}
        for path in files_of_set(name, languages, option)
    )
    references = {label: lines for ref in refs for label, lines in ref.items()}
    return NamedSet(name, src, references, (name, pair))


def _languages_of(
    models: Sequence[Path], source: str | None, to: str | None
) -> tuple[str, str] | None:
    """The languages of named test sets: as given, else those of the first model, if it has two."""
    if models and not (source and to):
        from mt.config.plan import plan_data
        from mt.runs.model_folder import read_config

        plan = plan_data(read_config(models[0]).data)
        directions = plan.directions or [plan.usual]
        known = plan.direction(source, to) or (directions[0] if len(directions) == 1 else None)
        source, to = known or (source, to)
    return (source, to) if source and to else None


def _configured_sets(model: Path, section: str) -> list[NamedSet]:
    """The texts of `data.test`, or of `data.valid`, in a model's config."""
    from mt.config.plan import plan_data
    from mt.data.reading.corpus import read_pairs
    from mt.data.reading.test_sets import named_set
    from mt.runs.model_folder import read_config
    from mt.training.validation import names_of

    data = plan_data(read_config(model).data)
    texts = data.valid if section == "valid" else data.test
    remedy = "give --src FILE and --ref FILE"
    if section == "test":
        remedy += ", or --test-set NAME=SRC,REF"
    if not texts:
        raise DataError(f"--model {model}: its config has no data.{section} to translate; {remedy}")
    several = len(data.directions) > 1
    sets = []
    for name, text in zip(names_of(texts), texts, strict=True):
        try:
            pairs = list(read_pairs(text.source, data.root, text.name))
        except DataError as error:
            raise DataError(f"{error} This is data.{section} of {model}; or {remedy}") from error
        sources, refs = ([pair[side] for pair in pairs] for side in (0, 1))
        is_usual = text.direction == data.usual and not data.has_tokens
        is_told = not is_usual or (several and text.direction in data.directions)
        direction = TextDirection(*text.direction) if is_told else ANY_DIRECTION
        named = {f"{text.name}.src": sources}, {text.name: refs}
        sets.append(NamedSet(name, *named, named_set(text.source, text.name), direction))
    return sets


# --- outputs of models ------------------------------------------------------------------------


def outputs_of(
    systems: Sequence[System], texts: Sequence[Texts], translate: TranslateSets
) -> list[dict[str, list[str]]]:
    """The outputs of the systems for each test set: read from files, or translated now."""
    sets = [text.data for text in texts]
    names = {text.name: text.name if len(systems) > 1 else "" for text in systems}
    outputs = {
        system.name: [text.hyps[system.name] for text in texts]
        if system.model is None
        else best_texts(translate(system.model, sets, name=names[system.name]))
        for system in systems
    }
    rows = zip(*outputs.values(), strict=True)
    return [dict(zip(outputs, row, strict=True)) for row in rows]


def best_texts(sets: Sequence[Sequence[Translation]]) -> list[list[str]]:
    """The best output of each line."""
    return [[translation.texts[0] for translation in translations] for translations in sets]


def translate_sets(
    model: Path,
    data: Sequence[EvaluationSet],
    search: SearchOptions,
    engine: opt.EngineGroup,
    name: str = "",
) -> list[list[Translation]]:
    """Translate test sets with one model; report on each, by the system's name if it has one."""
    from mt.terminal import Progress, can_show_bar
    from mt.translate.assemble import make_translator
    from mt.translate.load import check_language, load_engine

    outputs = []
    for test_set in data:
        check_language(model, test_set.direction.to)
    with load_engine(search, opt.make(EngineOptions, engine, models=[model])) as loaded:
        for test_set in data:
            direction, sources = test_set.direction, test_set.sources or []
            with Progress(len(sources), 0, can_show_bar()) as bar:
                translator = make_translator(
                    loaded,
                    direction.to,
                    direction.source,
                    on_progress=bar.update,
                    number_of=test_set.number,
                )
                outputs.append([*translator.translate(sources)])
            which = ", ".join(filter(None, [name, test_set.name]))
            say(f"{which}: " * bool(which) + translator.summary())
    return outputs


def with_slices(
    texts: Texts, slicers: Mapping[str, Callable[[Sequence[str]], Slicing]]
) -> EvaluationSet:
    """The test set with its slicings, by slicers of the source and by domains."""
    sources = texts.data.sources
    if sources is None and slicers:
        raise DataError(
            f"--slices {next(iter(slicers))}: slices by the source; give --src FILE, or "
            "--test-set NAME=SRC,REF"
        )
    slicings = [slicer(sources or []) for slicer in slicers.values()]
    if texts.domains is not None:
        slicings.append(by_domain(texts.domains))
    return replace(texts.data, slicings=slicings)
