"""Models → a translator: chooses the engine, torch or CTranslate2, and loads it.

Loads no torch where CTranslate2 decodes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import assert_never

from mt.data.reading.language_codes import base_code
from mt.data.reading.sentences import split_sentences
from mt.data.tokens.writing import direction_of, directions_of
from mt.errors import ConfigError, MtError
from mt.runs.model_folder import (
    SEVERAL_SENTENCES,
    DamagedError,
    find_model,
    read_config,
    read_folder,
    read_meta,
    tuned_of,
)
from mt.search.options import EngineOptions, SearchOptions
from mt.terminal import say
from mt.translate.load_ctranslate2 import load_ctranslate2, why_not_in_precision
from mt.translate.translator import Translator

if TYPE_CHECKING:
    from mt.config.schema import DataConfig

# A GPU's driver makes one of these; torch can tell more, but takes seconds to import.
GPU_FILES = ("/dev/nvidia0", "/dev/kfd", "/dev/dxg")
# A wider beam is more likely a mistake than a wish.
LARGE_BEAM = 1_000
# Options of the search that no output depends on by themselves.
NOT_IN_SETTINGS = {
    *("with_scores", "prefixes", "split_sentences", "as_written", "rerank_with", "rerank_weight"),
    *("to", "from_"),  # what they stand for
}
# Share of training lines with several sentences below which `auto` translates them one by one.
LEAST_SEVERAL = 0.05


def load_translator(
    search: SearchOptions, engine: EngineOptions, large: bool = False
) -> Translator:
    """Load the models into the engine that is asked for, or that suits best.

    `large`: the text is worth starting a process for each GPU. Prints notes, also before slow
    steps. Raises MtError for what the user must correct.
    """
    if search.rerank_with is None:
        translator = _load(search, engine, large)
    else:
        from mt.translate.rerank import load_reranker, with_all_hypotheses

        n_best, search = search.n_best, with_all_hypotheses(search, engine.models[0])
        translator = _load(search, engine, large)
        reranker = load_reranker(search, engine, translator.tokenizer, n_best)
        translator.reranker = reranker
        translator.settings["--rerank-with"] = reranker.settings
    decode = translator.engine.decode
    if decode.beam_size > LARGE_BEAM:
        say(
            f"--beam-size {decode.beam_size:,}: time and memory grow with the beam, and "
            f"translations get no better above about 10; check that more than {LARGE_BEAM:,} "
            "is meant"
        )
    values = vars(search) | vars(decode) | {"ensemble": engine.ensemble or "probability"}
    for name in values.keys() - NOT_IN_SETTINGS:
        translator.settings[f"--{name.replace('_', '-')}"] = str(values[name])
    if note := _tuned_note(translator, search, engine):
        say(note)
    # Several outputs, and drawn ones, show what the model gives.
    translator.escapes_loops = search.n_best == 1 and search.sample is None
    data = read_config(engine.models[0]).data
    translator.tags = {text.tag for text in data.train if text.tag}
    check_source_language(search.from_, data)
    translator.cut = sentence_cutter(search.split_sentences, engine.models[0])
    source = set_languages(translator, search, data)
    if translator.first_ids:
        translator.settings["--to"] = str(translator.first_ids)
    if translator.cut is not None:
        translator.settings["--split-sentences"] = "always"
    if translator.writing is not None:
        translator.settings["--as-written"] = "no"
    if source != data.src_lang:  # also where --to tells it, and no token
        translator.settings["--from"] = source
    return translator


def check_source_language(code: str | None, data: DataConfig) -> None:
    """Raise ConfigError for a `--from` that the model of this `data` does not translate from."""
    known = sorted({language for language, _ in directions_of(data)})
    if code is not None and code not in known and known not in ([], ["src"]):
        raise ConfigError(
            "--from: must be a language that this model translates from "
            f"({', '.join(known)}), found {code}"
        )


def set_languages(translator: Translator, search: SearchOptions, data: DataConfig) -> str:
    """Let a translator, whose model has this `data`, translate `search.from_` into `search.to`.

    Returns the language of the source, that of `data` where it is not known. Raises ConfigError for
    a target language that the model does not know.
    """
    translator.first_ids = translator.tokenizer.before_source(search.to, data)
    direction = direction_of(data, search.from_, search.to)
    source = search.from_ or (direction[0] if direction else data.src_lang)
    if translator.cut is not None:
        translator.cut = partial(split_sentences, language=base_code(source))
    styles = translator.tokenizer.styles
    if styles is not None and not search.as_written:
        translator.unknown_cases = set() if direction else styles.unknown_cases
        # A vocabulary that was taken from another model may be that of other languages.
        translator.writing = styles.between(*direction) if direction else None
    return source


def _tuned_note(translator: Translator, search: SearchOptions, engine: EngineOptions) -> str:
    """Say which settings are used because `mt tune` has chosen them; empty if none is."""
    tuned = tuned_of(read_meta(find_model(engine.models[0]), []))
    if tuned is None:
        return ""
    used = translator.settings
    on_ctranslate2 = used["--engine"] == "ctranslate2"
    settings = {
        f"beam {tuned.beam_size}": search.beam_size is None and search.sample is None,
        f"length penalty {tuned.length_penalty:g}": search.length_penalty is None,
        tuned.precision: on_ctranslate2
        and engine.precision == "auto"
        and used["--precision"] == tuned.precision,
        "shortlist": engine.shortlist is None and "--shortlist" in used,
    }
    chosen = [name for name, is_used in settings.items() if is_used]
    on = f" on text into {tuned.to}" if tuned.to not in (None, search.to) else ""
    return f"{engine.models[0]}: {', '.join(chosen)}, as mt tune has chosen{on}" if chosen else ""


def sentence_cutter(choice: str, model: Path) -> Callable[[str], list[str]] | None:
    """Return what cuts a line into its sentences; None if they are translated together.

    `choice`: of --split-sentences. Raises ConfigError for `always` without the library.
    """
    share = read_meta(find_model(model), []).get(SEVERAL_SENTENCES, 1.0)
    if choice == "never" or (choice == "auto" and share >= LEAST_SEVERAL):
        return None
    cut = partial(split_sentences, language=base_code(read_config(model).data.src_lang))
    try:
        cut("")
    except ConfigError as error:
        if choice == "always":
            raise
        say(f"{error}; until then, lines of several sentences are translated whole")
        return None
    return cut


def _load(search: SearchOptions, engine: EngineOptions, large: bool) -> Translator:
    match engine.engine:
        case "torch":
            reasons = []
        case "ctranslate2":
            if reasons := reasons_for_torch(search, engine):
                raise ConfigError(
                    f"--engine ctranslate2: {'; '.join(reasons)}. Leave this out, or give "
                    "--engine torch, which has every option of the search"
                )
            return load_ctranslate2(read_folder(engine.models[0]), search, engine)
        case "auto":
            reasons = reasons_for_torch(search, engine)
            if not reasons:
                described = read_folder(engine.models[0])  # its faults are reported as they are
                try:
                    return load_ctranslate2(described, search, engine)
                except DamagedError:
                    raise
                except (MtError, RuntimeError) as error:
                    if engine.shortlist_file is not None:  # which torch does not take
                        raise
                    reasons = [str(error)]
        case unknown:
            assert_never(unknown)
    needed = {
        "--shortlist": engine.shortlist_file is not None,
        "--precision int8": engine.precision == "int8",
    }
    if options := " and ".join(name for name, given in needed.items() if given):
        why = "; ".join(reasons) or "--engine torch was asked for"
        raise ConfigError(
            f"{options}: only CTranslate2 can do this, and cannot be used here: {why}; leave it "
            "out, or what CTranslate2 cannot do"
        )
    from mt.translate.load_torch import load_torch

    return load_torch(search, engine, say, large, "; ".join(reasons))


def reasons_for_torch(search: SearchOptions, engine: EngineOptions) -> list[str]:
    """Return why CTranslate2 cannot do what is asked for; nothing if it can."""
    asked = {
        "several models": len(engine.models) > 1,
        "--sample": search.sample is not None,
        "--prefix": search.prefixes,
        "--exact": search.exact,
        "--alignments": search.alignments is not None,
        "--min-length": search.min_length > 0,
        "--no-repeat-ngram": search.no_repeat_ngram > 0,
        "--repetition-penalty": search.repetition_penalty != 1,
        "--forbid": bool(search.forbid),
    }
    missing = [name for name, given in asked.items() if given]
    reasons = [f"CTranslate2 has no {', '.join(missing)} with the same meaning"] if missing else []
    if engine.device not in ("auto", "cpu"):
        reasons.append(f"it decodes on a CPU here, not on --device {engine.device}")
    elif engine.device == engine.engine == "auto" and engine.precision != "int8" and has_gpu():
        reasons.append("there is a GPU")
    if find_spec("ctranslate2") is None:
        reasons.append("faster with CTranslate2: pip install ctranslate2")
    elif not reasons:
        reasons += why_not_in_precision(engine.precision)
    return reasons


def has_gpu() -> bool:
    """Whether this machine seems to have a GPU."""
    return any(os.path.exists(name) for name in GPU_FILES)
