"""One model, or several → a translator that decodes with torch; on several GPUs, a process each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from mt.data.tokens.tokenizer import Tokenizer
from mt.errors import ConfigError
from mt.model.checkpoint import LoadedModel, load_model
from mt.runtime.devices import can_compile, choose_device
from mt.runtime.memory import keep_freed_memory
from mt.search.candidates import compile_for
from mt.search.engine import TorchEngine
from mt.search.engine_contract import Answer, Engine, search_in_worker
from mt.search.ensemble import Ensemble
from mt.search.inference import Inference
from mt.search.options import EngineOptions, SearchOptions
from mt.terminal import say
from mt.translate.translator import Translator
from mt.translate.workers import Pool


def load_torch(
    search: SearchOptions,
    options: EngineOptions,
    report: Callable[[str], None],
    large: bool = False,
    reasons: str = "",
) -> Translator:
    """Load the models, and start the processes that decode beside this one.

    `reasons`: why this engine was chosen, for the closing summary. Raises MtError for what the user
    must correct.
    """
    device = choose_device(options.device, options.precision, report)
    searches = searches_on_gpus(search, options, large) if device.is_cuda else ()
    if not device.is_cuda:
        keep_freed_memory()
    models = _load_models(options)
    first = models[0]
    members = [Inference(each.model, device) for each in models]
    engine = TorchEngine(
        members[0] if len(members) == 1 else Ensemble(members, options.ensemble or "probability"),
        search.decode_config(first.config),
        search,
        search.constraints(first.tokenizer),
    )
    if large and not searches and can_compile(device):
        engine = with_fused_candidates(engine, first.tokenizer.tgt.size, report)
    workers = 1 if device.is_cuda else options.workers or torch.get_num_threads()
    translator = Translator(
        engine,
        first.tokenizer,
        max_source=min(each.config.data.max_tokens for each in models),
        max_ratio=first.config.data.max_length_ratio,
        # Each of two workers gets half: 0.63 GB in all instead of 0.81 with a small model, and as
        # fast within 5 %.
        batch_tokens=options.batch_tokens or engine.batch_tokens // min(2, workers),
        # A process that has used a GPU cannot be forked.
        pool=Pool(searches, forks=False)
        if searches
        else cpu_pool(engine, first.tokenizer, workers),
        # On a CPU, encoding takes 1 % of the time (Zen 4), and all cores are busy anyway.
        reads_ahead=large and bool(searches),
    )
    hashes = [str(each.meta["sha256"]["model.safetensors"]) for each in models]
    translator.settings = {
        "--engine": "torch",
        "--precision": device.precision,
        "--model": " ".join(hashes),
    }
    if reasons:
        several = f"{len(searches)} GPUs in {device.precision}"
        where = several if len(searches) > 1 else str(device)
        translator.tally.engine = f"torch on {where} ({reasons})"
    return translator


def cpu_pool(engine: Engine, tokenizer: Tokenizer, workers: int) -> Pool | None:
    """Start so many processes that search with the engine; None for one, which needs no other."""
    return None if workers == 1 else Pool([partial(search_in_worker, engine, tokenizer)] * workers)


def with_fused_candidates(
    engine: TorchEngine, vocab_size: int, report: Callable[[str], None]
) -> TorchEngine:
    """Return an engine that chooses tokens by compiled code, if its search and the device can."""
    if engine.options.sample is not None or engine.constraints:
        return engine
    fused = compile_for(engine.device, engine.decode.beam_size, vocab_size, report)
    return replace(engine, fused=fused)


def _load_models(options: EngineOptions) -> list[LoadedModel]:
    models = [load_model(path) for path in options.models]
    for path, other in zip(options.models[1:], models[1:], strict=True):
        if other.tokenizer.fingerprint != models[0].tokenizer.fingerprint:
            raise ConfigError(
                f"--model {path}: has another vocabulary than {options.models[0]}; the models of "
                "an ensemble must be trained with the same tokenizer"
            )
    return models


@dataclass
class SearchOnDevice:
    """A function for a worker process: its first call loads the models onto the device."""

    search: SearchOptions
    options: EngineOptions
    large: bool
    is_first: bool = True  # of several processes one reports what all would report
    loaded: Translator | None = field(default=None, compare=False)

    def __call__(self, *job: Any) -> Answer:
        """Search a batch; see `search_in_worker`."""
        if self.loaded is None:
            self.loaded = load_torch(self.search, self.options, self._report, self.large)
        return search_in_worker(self.loaded.engine, self.loaded.tokenizer, *job)

    def _report(self, text: str) -> None:
        if self.is_first:
            say(text)


def searches_on_gpus(
    search: SearchOptions, options: EngineOptions, large: bool
) -> tuple[SearchOnDevice, ...]:
    """Return the functions of the worker processes, one for each GPU; none if none is needed.

    That is `workers` GPUs, or all that are visible for a large text. With one GPU, its process
    leaves this one free to encode and decode text meanwhile, which pays for a large text. Raises
    ConfigError if there are not so many.
    """
    one = options.device.startswith("cuda:")
    devices = [options.device] if one else visible_gpus()
    wanted = options.workers or (len(devices) if large else 1)
    if wanted > len(devices):
        there = f"--device {options.device}" if one else f"{len(devices)} of them"
        raise ConfigError(
            f"--workers: on GPUs it is a process for each, found {wanted:,} for {there}; "
            "lower it, or leave it out: a large file is then shared by all GPUs"
        )
    if wanted == 1 and (options.workers or not large):
        return ()
    # One worker: the model in the process that loads it.
    return tuple(
        SearchOnDevice(search, replace(options, workers=1, device=device), large, number == 0)
        for number, device in enumerate(devices[:wanted])
    )


def visible_gpus() -> list[str]:
    """Return the names of the GPUs that torch sees."""
    return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
