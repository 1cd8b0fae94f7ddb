"""Models → an engine or a translator; torch is not even imported where CTranslate2 decodes."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from typing_extensions import assert_never

from mt.errors import ConfigError, MtError
from mt.runs.model_folder import DamagedError, ModelFolder, open_model
from mt.search.options import EngineOptions, SearchOptions
from mt.settings import changed
from mt.translate.load_ctranslate2 import load_ctranslate2, why_not_in_precision
from mt.translate.loaded_engine import LoadedEngine
from mt.translate.translator import Translator, make_translator

# A GPU's driver makes one of these; torch can tell more, but takes seconds to import.
GPU_FILES = ("/dev/nvidia0", "/dev/kfd", "/dev/dxg")


def load_engine(search: SearchOptions, engine: EngineOptions, large: bool = False) -> LoadedEngine:
    """Load the models into the engine that suits best; `large`: worth a process for each GPU."""
    engine = opened(engine)
    first = open_model(engine.models[0])
    code, data = search.from_, first.data
    known = sorted({each for way in data.directions for each in way[: 1 + data.has_tokens]})
    if code is not None and code not in known and known and "src" not in known:
        must = f"must be a language that this model translates from ({', '.join(known)})"
        raise ConfigError(f"--from: {must}, found {code}")
    return _load(first, search, engine, large)


def opened(engine: EngineOptions) -> EngineOptions:
    return replace(engine, models=[open_model(model) for model in engine.models])


def load_translator(
    search: SearchOptions, engine: EngineOptions, large: bool = False, **wants: Any
) -> Translator:
    """Load an engine and make a translator; `wants`: what `make_translator` takes beside it."""
    engine = opened(engine)
    first = open_model(engine.models[0])
    first.tokenizer.before_source(search.to, first.data)  # refuses --to before anything is loaded
    return make_translator(load_engine(search, engine, large), search.to, search.from_, **wants)


def _load(
    first: ModelFolder, search: SearchOptions, engine: EngineOptions, large: bool
) -> LoadedEngine:
    match engine.engine:
        case "torch":
            reasons = []
        case "ctranslate2":
            if reasons := reasons_for_torch(search, engine):
                raise ConfigError(
                    f"--engine ctranslate2: {'; '.join(reasons)}. Leave this out, or give "
                    "--engine torch, which has every option of the search"
                )
            return load_ctranslate2(first, search, engine)
        case "auto":
            reasons = reasons_for_torch(search, engine)
            if not reasons:
                try:
                    return load_ctranslate2(first, search, engine)
                except DamagedError:
                    raise
                except (MtError, RuntimeError) as error:
                    if engine.shortlist is not None:  # which torch does not take
                        raise
                    reasons = [str(error)]
        case unknown:
            assert_never(unknown)
    needed = ["--shortlist"] * (engine.shortlist is not None)
    needed += ["--precision int8"] * (engine.precision == "int8")
    if options := " and ".join(needed):
        why = "; ".join(reasons) or "--engine torch was asked for"
        raise ConfigError(
            f"{options}: only CTranslate2 can do this, and cannot be used here: {why}; leave it "
            "out, or what CTranslate2 cannot do"
        )
    from mt.translate.load_torch import load_torch

    return load_torch(search, engine, large, "; ".join(reasons))


def reasons_for_torch(search: SearchOptions, engine: EngineOptions) -> list[str]:
    """Return why CTranslate2 cannot do what is asked for; nothing if it can."""
    missing = ["several models"] if len(engine.models) > 1 else []
    missing += ["--prefix"] if search.prefixes else []
    missing += [option for option, setting, _ in changed(search) if setting.torch_only]
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
    return any(os.path.exists(name) for name in GPU_FILES)
