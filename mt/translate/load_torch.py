"""Load one model, or several, into the engine that decodes with torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from mt.errors import ConfigError
from mt.model.checkpoint import LoadedModel, load_model
from mt.runtime.devices import Device, can_compile, choose_device
from mt.runtime.memory import keep_freed_memory
from mt.search.candidates import compile_for
from mt.search.engine import TorchEngine
from mt.search.ensemble import Ensemble
from mt.search.inference import Inference
from mt.translate.choose_engine import EngineRequest, LoadedEngine, decode_config
from mt.translate.gpu_workers import searches_on_gpus


def load_torch(request: EngineRequest, say: Callable[[str], None]) -> LoadedEngine:
    """Load the models. Raises MtError for what the user must correct."""
    chosen = choose_device(request.device, request.precision, say)
    searches = searches_on_gpus(request) if chosen.is_cuda else ()
    if not chosen.is_cuda:
        keep_freed_memory()
    loaded = _load_models(request.models)
    first = loaded[0]
    engine = TorchEngine(
        _incremental_model(loaded, chosen, request.ensemble),
        decode_config(first.config, request.decode),
        request.n_best,
        request.options.sampling,
        request.options.constraints(first.tokenizer),
        request.options.exact,
    )
    if request.large and not searches and can_compile(chosen):
        engine = with_fused_candidates(engine, first.tokenizer.tgt_vocab_size, say)
    return LoadedEngine(
        engine,
        "torch",
        f"{len(searches)} GPUs in {chosen.precision}" if len(searches) > 1 else str(chosen),
        first.tokenizer,
        first.config,
        max_source=min(each.config.data.max_tokens for each in loaded),
        weights=" ".join(str(each.meta["sha256"]["model.safetensors"]) for each in loaded),
        precision=chosen.precision,
        workers=1 if chosen.is_cuda else request.workers or torch.get_num_threads(),
        searches=searches,
    )


def with_fused_candidates(
    engine: TorchEngine, vocab_size: int, say: Callable[[str], None]
) -> TorchEngine:
    """Return an engine that chooses tokens by compiled code, if its search and the device can."""
    if engine.sampling is not None or engine.constraints:
        return engine
    # An ensemble averages in fp32.
    dtype = engine.model.model.dtype if isinstance(engine.model, Inference) else torch.float32
    fused = compile_for(engine.device, dtype, engine.decode.beam_size, vocab_size, say)
    return replace(engine, fused=fused)


def _load_models(paths: Sequence[Path]) -> list[LoadedModel]:
    loaded = [load_model(path) for path in paths]
    for path, other in zip(paths[1:], loaded[1:], strict=True):
        if other.tokenizer.fingerprint != loaded[0].tokenizer.fingerprint:
            raise ConfigError(
                f"--model {path}: has another vocabulary than {paths[0]}; the models of an "
                "ensemble must be trained with the same tokenizer"
            )
    return loaded


def _incremental_model(
    loaded: Sequence[LoadedModel], device: Device, ensemble: str | None
) -> Inference | Ensemble:
    members = [Inference(each.model, device) for each in loaded]
    return members[0] if len(members) == 1 else Ensemble(members, ensemble or "probability")
