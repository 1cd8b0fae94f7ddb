"""Which engine decodes: torch, or CTranslate2 where it can do all that is asked for.

Needs no torch, and loads none where CTranslate2 decodes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mt.config.load import config_from_mapping
from mt.config.schema import Config, DecodeConfig
from mt.data.tokens.tokenizer import Tokenizer
from mt.errors import ConfigError, MtError
from mt.runs.model_folder import ModelFolder, read_folder
from mt.runtime.machine import usable_cores
from mt.search.engine_contract import Engine
from mt.search.options import SearchOptions
from mt.translate.converted import Convert, converted_model

ENGINES = ("auto", "torch", "ctranslate2")
# CTranslate2's name for each precision that its engine takes. The search is exact in float32, and
# that is what `auto` gives.
COMPUTE_TYPES = {"auto": "float32", "fp32": "float32", "bf16": "bfloat16", "int8": "int8"}
# The name of a vocabulary map in a model folder of CTranslate2.
VOCABULARY_MAP = "vmap.txt"
# A GPU's driver makes one of these; torch can tell more, but takes seconds to import.
GPU_FILES = ("/dev/nvidia0", "/dev/kfd", "/dev/dxg")


@dataclass(frozen=True, kw_only=True)
class EngineRequest:
    """All that the choice of an engine depends on, and that it is made with."""

    models: Sequence[Path]
    decode: Mapping[str, Any] = field(default_factory=dict)  # None: as the model's config has it
    name: str = "torch"  # one of ENGINES
    precision: str = "auto"
    device: str = "auto"
    n_best: int = 1
    options: SearchOptions = field(default_factory=SearchOptions)
    ensemble: str | None = None
    # Processes or threads on a CPU, None: one per core; GPUs, None: one, or all for a large text.
    workers: int | None = None
    large: bool = False  # a text that is worth starting a process for each GPU
    with_scores: bool = True  # False: the scores of hypotheses are not needed
    prefixes: bool = False  # outputs must begin with given texts
    shortlist: Path | None = None  # a vocabulary map: the only target pieces to choose from
    convert: Convert | None = None  # None: only a model that has been converted before


@dataclass(frozen=True)
class LoadedEngine:
    """An engine and what is known of its model."""

    engine: Engine
    name: str
    where: str  # what it computes on
    tokenizer: Tokenizer
    config: Config  # of the first model
    max_source: int  # tokens of the longest source that it was trained for, eos not counted
    weights: str  # hashes of the weights
    precision: str
    workers: int  # processes to decode with
    # Functions of the worker processes, where each has a device of its own.
    searches: tuple[Callable[..., Any], ...] = ()
    note: str = ""  # what was chosen, and why


def load_engine(request: EngineRequest, say: Callable[[str], None]) -> LoadedEngine:
    """Load the models into the engine that `request.name` asks for, or that suits best.

    `say` hears about what takes time. Raises MtError for what the user must correct.
    """
    if request.name not in ENGINES:
        raise ConfigError(f"--engine: must be {', '.join(ENGINES)}, found {request.name!r}")
    if request.name == "torch":
        return _load_torch(request, say)
    reasons = reasons_for_torch(request)
    if request.name == "ctranslate2":
        if reasons:
            raise ConfigError(
                f"--engine ctranslate2: {'; '.join(reasons)}. Leave this out, or give "
                "--engine torch, which supports everything"
            )
        return load_ctranslate2(request, say, read_folder(request.models[0]))
    if not reasons:
        described = read_folder(request.models[0])  # its faults are reported as they are
        try:
            return load_ctranslate2(request, say, described)
        except (MtError, RuntimeError) as error:
            if request.shortlist is not None:  # which torch does not take
                raise
            reasons = [str(error)]
    if request.shortlist is not None:
        raise ConfigError(
            f"--shortlist: only CTranslate2 can use one ({'; '.join(reasons)}); leave it out"
        )
    loaded = _load_torch(request, say)
    return replace(loaded, note=f"torch on {loaded.where} ({'; '.join(reasons)})")


def _load_torch(request: EngineRequest, say: Callable[[str], None]) -> LoadedEngine:
    from mt.translate.load_torch import load_torch

    if request.shortlist is not None:
        raise ConfigError("--shortlist: only with --engine ctranslate2, which can use one")
    return load_torch(request, say)


def reasons_for_torch(request: EngineRequest) -> list[str]:
    """Return why CTranslate2 cannot do what is asked for; nothing if it can."""
    options = request.options
    asked = {
        "several models": len(request.models) > 1,
        "--sample": options.sampling is not None,
        "--prefix": request.prefixes,
        "--exact": options.exact,
        "--alignments": options.alignment is not None,
        "--min-length": options.min_length > 0,
        "--no-repeat-ngram": options.no_repeat_ngram > 0,
        "--repetition-penalty": options.repetition_penalty != 1,
        "--forbid": bool(options.forbidden),
    }
    missing = [name for name, given in asked.items() if given]
    reasons = [f"CTranslate2 has no {', '.join(missing)} as mt means it"] if missing else []
    if request.device not in ("auto", "cpu"):
        reasons.append(f"it decodes on a CPU here, not on --device {request.device}")
    elif request.device == "auto" and request.name == "auto" and has_gpu():
        reasons.append("there is a GPU")
    if find_spec("ctranslate2") is None:
        reasons.append("faster with CTranslate2: pip install ctranslate2")
    elif not reasons:
        reasons += _faults_of_ctranslate2(request.precision)
    return reasons


def has_gpu() -> bool:
    """Whether this machine seems to have a GPU."""
    return any(os.path.exists(name) for name in GPU_FILES)


def _faults_of_ctranslate2(precision: str) -> list[str]:
    """Why it does not work here in this precision; empty if it does."""
    try:
        import ctranslate2
    except (ImportError, OSError) as error:  # installed, but not for this system
        # A signal that arrives while compiled code is imported comes as an ImportError.
        if isinstance(error.__cause__ or error.__context__, KeyboardInterrupt | SystemExit):
            raise
        return [f"CTranslate2 cannot be imported ({error})"]
    known: set[str] = ctranslate2.get_supported_compute_types("cpu")
    if COMPUTE_TYPES.get(precision) in known:
        return []
    return [f"CTranslate2 has no {precision} on this CPU"]


def decode_config(config: Config, given: Mapping[str, Any]) -> DecodeConfig:
    """Return the model's decoding settings, replaced by those of `given` that are not None."""
    changed = {key: value for key, value in given.items() if value is not None}
    values = {**config.decode.model_dump(), **changed}
    return config_from_mapping({"decode": values}, "command line").decode


def load_ctranslate2(
    request: EngineRequest, say: Callable[[str], None], described: ModelFolder
) -> LoadedEngine:
    """Load the converted model; convert it first if that was not done. Raises MtError."""
    import ctranslate2

    from mt.search.engine_ctranslate2 import CTranslate2Engine

    config = described.config
    threads = request.workers or available_cores()
    precision = "fp32" if request.precision == "auto" else request.precision
    decode = decode_config(config, request.decode)
    folder = converted_model(described, request.convert, say)
    files = None
    if request.shortlist is not None:
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        files[VOCABULARY_MAP] = _read_shortlist(request.shortlist, described.tokenizer)
    translator = ctranslate2.Translator(
        str(folder),
        files=files,
        device="cpu",
        compute_type=COMPUTE_TYPES[precision],
        inter_threads=threads,
        intra_threads=1,
    )
    engine = CTranslate2Engine(
        translator,
        described.tokenizer,
        decode,
        config.model.max_positions,
        precision,
        threads,
        request.n_best,
        request.with_scores,
        request.shortlist is not None,
    )
    where = f"CPU in {precision}, {threads} thread{'s' * (threads != 1)}"
    return LoadedEngine(
        engine,
        "ctranslate2",
        where,
        described.tokenizer,
        config,
        max_source=config.data.max_tokens,
        weights=described.weights_hash,
        precision=precision,
        workers=1,
        note=f"CTranslate2 {ctranslate2.__version__} on {where}",
    )


def _read_shortlist(path: Path, tokenizer: Tokenizer) -> bytes:
    """Read a vocabulary map; ConfigError if it is none of this vocabulary.

    CTranslate2 ignores pieces that it does not know: of a wrong file, every output would be empty.
    """
    remedy = "mt export ctranslate2 --shortlist writes such a file, vmap.txt"
    try:
        content = path.read_bytes()
        lines = content.decode("utf-8").split("\n")
    except OSError as error:
        raise ConfigError(
            f"--shortlist {path}: cannot be read ({error.strerror}); {remedy}"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--shortlist {path}: must be UTF-8; {remedy}") from error
    known = set(tokenizer.tgt_pieces_of(list(range(tokenizer.tgt_vocab_size))))
    for number, line in enumerate(lines, 1):
        _, tab, candidates = line.partition("\t")
        unknown = [piece for piece in candidates.split(" ") if piece and piece not in known]
        if unknown or (line and not tab):
            found = f"found {unknown[0]!r}" if unknown else "found no tab"
            raise ConfigError(
                f"--shortlist {path}, line {number:,}: must be a source piece, a tab, and target "
                f"pieces of this model, {found}; {remedy}"
            )
    return content


def available_cores() -> int:
    """Cores to decode with: OMP_NUM_THREADS if it is set, as for torch, else all."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isdecimal() and int(given):
        return int(given)
    return usable_cores()
