"""The systems of `mt evaluate`: what is known of each, and what its models translate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt.cli.console import say
from mt.errors import DataError

if TYPE_CHECKING:
    from mt.config.schema import Config
    from mt.evaluation.systems import EvaluationSet


@dataclass(frozen=True)
class System:
    """A system to evaluate: a model, or its outputs in files, one for each test set."""

    name: str
    text: str  # as given
    model: Path | None = None


@dataclass(frozen=True)
class Texts:
    """A test set, the outputs that are in files, and labels."""

    data: EvaluationSet
    hyps: dict[str, list[str]]  # by system
    domains: list[str] | None


def config_of(model: Path) -> Config:
    """The config that a model was trained with."""
    from mt.config.load import config_from_mapping
    from mt.runs.model_folder import find_model, read_meta

    folder = find_model(model)
    return config_from_mapping(read_meta(folder, [])["config"], f"config of {folder}")


def scoring_of(models: Sequence[Path], tgt_lang: str | None, tokenize: str) -> tuple[str, str]:
    """Target language and BLEU tokenizer: as given, else those of the models' configs."""
    if not models or (tgt_lang is not None and tokenize != "auto"):
        return tgt_lang or "", tokenize
    found = []
    for model in models:
        config = config_of(model)
        choice = config.train.bleu_tokenize if tokenize == "auto" and tgt_lang is None else tokenize
        found.append((tgt_lang or config.data.tgt_lang, choice))
    if len(set(found)) > 1:
        each = "; ".join(
            f"{model} {language}, {choice}"
            for model, (language, choice) in zip(models, found, strict=True)
        )
        raise DataError(
            f"evaluate: target language and BLEU tokenizer of the models differ: {each}; give "
            "--tgt-lang, or --tgt-lang and --tokenize, for all"
        )
    return found[0]


def outputs_of(
    systems: Sequence[System], texts: Sequence[Texts], decoding: Mapping[str, Any]
) -> dict[str, list[list[str]]]:
    """The outputs of each system for each test set: read from files, or translated now.

    `decoding`: the values of options by their names, None where not given.
    """
    several = len(systems) > 1
    return {
        system.name: [one.hyps[system.name] for one in texts]
        if system.model is None
        else _translate(
            system.model, [one.data for one in texts], decoding, system.name if several else ""
        )
        for system in systems
    }


def _translate(
    model: Path, data: Sequence[EvaluationSet], decoding: Mapping[str, Any], name: str
) -> list[list[str]]:
    """Translate test sets with one model; report on each, by the system's name if it has one."""
    from mt.search.options import EngineOptions, SearchOptions
    from mt.translate.load import load_translator
    from mt.translate.progress import Progress, Tally, can_show_bar

    search = SearchOptions(
        beam_size=decoding["--beam-size"],
        length_penalty=decoding["--length-penalty"],
        with_scores=False,
    )
    options = EngineOptions(
        models=[model],
        engine=decoding["--engine"] or "auto",
        precision=decoding["--precision"] or "auto",
        device=decoding["--device"] or "auto",
        batch_tokens=decoding["--batch-tokens"],
    )
    outputs = []
    with load_translator(search, options, say) as translator:
        for one in data:
            translator.tally = Tally(engine=translator.tally.engine)  # lines count from 1 again
            sources = one.sources or []
            with Progress(len(sources), 0, say, can_show_bar()) as bar:
                translator.on_progress = bar.update
                outputs.append([found.texts[0] for found in translator.translate(sources)])
            which = ", ".join(filter(None, [name, one.name]))
            say(f"{which}: " * bool(which) + translator.tally.summary())
    return outputs
