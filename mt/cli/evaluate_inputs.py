"""The systems that `mt evaluate` scores, the test sets, and the outputs for them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mt.cli.console import say
from mt.errors import DataError
from mt.evaluation.metrics import check_counts
from mt.evaluation.systems import EvaluationSet
from mt.search.options import EngineOptions, SearchOptions
from mt.translate.streaming import read_input

if TYPE_CHECKING:
    from mt.config.plan import Direction
    from mt.runs.model_folder import ModelFolder

# What messages call the lines of a file: check_counts names them by it.
NamedLines = dict[str, list[str]]


@dataclass(frozen=True)
class System:
    """A system to evaluate: a model, or a file with its outputs."""

    name: str
    path: str
    is_model: bool


class Texts(NamedTuple):
    """A test set, and the outputs for it that are in files."""

    data: EvaluationSet
    hyps: dict[str, list[str]]  # by system


def systems_of(hyp: Sequence[str], model: Sequence[str]) -> list[System]:
    """The systems; the first is the baseline. `NAME=FILE` names one; else its path is its name."""
    systems = []
    for text in hyp:
        name, file = _name_and_path(text)
        systems.append(System(name or text, file, False))
    for text in model:
        name, folder = _name_and_path(text)
        systems.append(System(name or str(Path(folder)), folder, True))
    names = [system.name for system in systems]
    if twice := next((name for name, count in Counter(names).items() if count > 1), None):
        raise DataError(
            f"evaluate: two systems are called {twice}; give one of them another name: NAME={twice}"
        )
    return systems


def _name_and_path(text: str) -> tuple[str, str]:
    """Split NAME=PATH; an existing file may have = in its name."""
    name, equals, path = text.partition("=")
    if not equals or not name or not path or "/" in name or os.path.exists(text):
        return "", text
    return name, path


def scoring_of(
    models: Mapping[str, ModelFolder], tgt_lang: str | None, tokenize: str, into: str
) -> tuple[str, str]:
    """Target language and BLEU tokenizer: as given, else those of the models' configs.

    `into`: the target language of a test set, instead of the configs'.
    """
    if not models or (tgt_lang is not None and tokenize != "auto"):
        return tgt_lang or into or "", tokenize
    pairs = {}
    for name, model in models.items():
        config = model.config
        choice = config.train.bleu_tokenize if tokenize == "auto" and tgt_lang is None else tokenize
        pairs[name] = (tgt_lang or into or config.data.tgt_lang, choice)
    if len(set(pairs.values())) > 1:
        each = "; ".join(f"{name} {', '.join(pair)}" for name, pair in pairs.items())
        raise DataError(
            f"evaluate: target language and BLEU tokenizer of the models differ: {each}; give "
            "--tgt-lang, or --tgt-lang and --tokenize, for all"
        )
    return next(iter(pairs.values()))


# --- test sets --------------------------------------------------------------------------------


def read_texts(
    systems: Sequence[System],
    source: str | None,
    ref: Sequence[str] | None,
    search: SearchOptions,
    models: Mapping[str, ModelFolder],
) -> list[Texts]:
    """Read every test set (the files --src and --ref, else those of the model's config), and the
    outputs that are in files.

    Raises DataError for missing files and unequal counts.
    """
    if not ref:
        return _configured_sets(*next(iter(models.items())), search)
    src = {} if source is None else {f"--src {source}": _read(source, "--src")}
    refs = {f"--ref {path}": _read(path, "--ref") for path in ref}
    hyps = {
        system.name: (f"--hyp {system.path}", _read(system.path, "--hyp"))
        for system in systems
        if not system.is_model
    }
    named = dict(hyps.values()) | src | refs
    check_counts(named)
    numbers = _numbers_with_reference("", refs)
    if numbers:
        named = {label: [lines[n - 1] for n in numbers] for label, lines in named.items()}
    data = EvaluationSet(
        "",
        [named[each] for each in refs],
        next((named[each] for each in src), None),
        _direction_of(models, search.from_, search.to),
        numbers,
    )
    return [Texts(data, {system: named[label] for system, (label, _) in hyps.items()})]


def _read(path: str, option: str) -> list[str]:
    """All lines of a file, or of stdin (`-`); `option` names the file's option in messages."""
    return list(read_input(path, option=option))


def _direction_of(
    models: Mapping[str, ModelFolder], source: str | None, to: str | None
) -> Direction | None:
    """The languages of --from and --to; a model of both directions tells the other language."""
    from mt.config.plan import Direction

    if not models or (not source and not to):
        return Direction(source or "", to or "") if source or to else None
    known = next(iter(models.values())).data.direction(source, to) or ("", "")
    return Direction(source or known[0], to or known[1])


def _numbers_with_reference(name: str, refs: NamedLines) -> Sequence[int]:
    """The numbers of the lines that have a reference, and so can be scored; none if all have."""
    rows = zip(*refs.values(), strict=True)
    numbers = [number for number, row in enumerate(rows, start=1) if "".join(row).strip()]
    n_lines = len(next(iter(refs.values())))
    if not n_lines:
        raise DataError(
            f"{' and '.join(refs)}: has no lines, at least one is required; give the "
            "file with the references"
        )
    if len(numbers) == n_lines:
        return ()
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
    return numbers


def _configured_sets(name: str, model: ModelFolder, search: SearchOptions) -> list[Texts]:
    """The texts of `data.test` in a model's config."""
    from mt.data.reading.corpus import read_pairs
    from mt.training.validation import names_of

    codes = {"--from": search.from_, "--to": search.to}
    if given := " and ".join(f"{option} {code}" for option, code in codes.items() if code):
        raise DataError(
            f"{given}: the texts of data.test have languages of their own; give --src and --ref, "
            f"or leave {given} out"
        )
    data = model.data
    remedy = "give --src FILE and --ref FILE"
    if not data.test:
        raise DataError(f"--model {name}: its config has no data.test to translate; {remedy}")
    several = len(data.directions) > 1
    sets = []
    for title, text in zip(names_of(data.test), data.test, strict=True):
        try:
            pairs = list(read_pairs(text.source, data.root, text.name))
        except DataError as error:
            raise DataError(f"{error} This is data.test of {name}; or {remedy}") from error
        sources, refs = ([pair[side] for pair in pairs] for side in (0, 1))
        numbers = _numbers_with_reference(title, {text.name: refs})
        if numbers:
            sources, refs = ([lines[n - 1] for n in numbers] for lines in (sources, refs))
        is_usual = text.direction == data.usual and not data.has_tokens
        is_told = not is_usual or (several and text.direction in data.directions)
        direction = text.direction if is_told else None
        sets.append(Texts(EvaluationSet(title, [refs], sources, direction, numbers), {}))
    return sets


# --- outputs of models ------------------------------------------------------------------------


def outputs_of(
    systems: Sequence[System],
    models: Mapping[str, ModelFolder],
    texts: Sequence[Texts],
    translate: Callable[..., list[list[str]]],
) -> list[dict[str, list[str]]]:
    """The outputs of the systems for each test set: read from files, or translated now."""
    sets = [text.data for text in texts]
    outputs = {
        system.name: translate(
            models[system.path], sets, name=system.name if len(systems) > 1 else ""
        )
        if system.is_model
        else [text.hyps[system.name] for text in texts]
        for system in systems
    }
    rows = zip(*outputs.values(), strict=True)
    return [dict(zip(outputs, row, strict=True)) for row in rows]


def translate_sets(
    model: ModelFolder,
    data: Sequence[EvaluationSet],
    search: SearchOptions,
    engine: EngineOptions,
    name: str = "",
) -> list[list[str]]:
    """Translate test sets with one model; report on each, by the system's name if it has one."""
    from mt.terminal import Progress, can_show_bar
    from mt.translate.assemble import make_translator
    from mt.translate.load import check_target_language, load_engine

    outputs = []
    for _, to in (test_set.direction or ("", "") for test_set in data):
        check_target_language(model, to or None)
    with load_engine(search, replace(engine, models=[model])) as loaded:
        for test_set in data:
            (source, to), sources = test_set.direction or ("", ""), test_set.sources or []
            with Progress(len(sources), 0, can_show_bar()) as bar:
                translator = make_translator(
                    loaded,
                    to or None,
                    source or None,
                    on_progress=bar.update,
                    number_of=test_set.number,
                )
                translations = translator.translate(sources)
                outputs.append([translation.texts[0] for translation in translations])
            which = ", ".join(filter(None, [name, test_set.name]))
            say(f"{which}: " * bool(which) + translator.summary())
    return outputs
