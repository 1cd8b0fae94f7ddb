"""One model, or several → an engine that decodes with torch; on several GPUs, a process each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from mt.errors import ConfigError
from mt.model.checkpoint import LoadedModel, build_model, load_model
from mt.runs.model_folder import open_model
from mt.runtime.devices import Device, can_compile, choose_device, find_device
from mt.runtime.memory import keep_freed_memory
from mt.search.candidates import compile_for
from mt.search.engine import TorchEngine
from mt.search.inference import Ensemble, Inference
from mt.search.options import EngineOptions, SearchOptions
from mt.terminal import Say, say
from mt.translate.loaded_engine import Answer, LoadedEngine
from mt.translate.workers import Pool

# The device of a process whose workers compute: tensors without numbers.
ELSEWHERE = Device(torch.device("meta"), "fp32")
# Of a process that has loaded its models: device, precision, and the padded source tokens x beam of
# a batch that fits into its memory.
OnDevice = tuple[str, str, int]


def load_torch(
    search: SearchOptions, options: EngineOptions, large: bool = False, reasons: str = "",
    report: Say = say,
) -> LoadedEngine:  # fmt: skip
    """Load the models, and on several GPUs start a process for each; `reasons`: why torch."""
    on_gpu = find_device(options.device).type == "cuda"
    searches = searches_on_gpus(search, options, large) if on_gpu else ()
    # Some GPUs take one process only: a worker, unless this one aligns words on a GPU of its own.
    is_elsewhere = bool(searches) and not search.alignments
    device = ELSEWHERE if is_elsewhere else choose_device(options.device, options.precision)
    if not on_gpu:
        keep_freed_memory()
    models = _load_models(options, device)
    first = models[0]
    members = [Inference(each.model, device) for each in models]
    model = members[0] if len(members) == 1 else Ensemble(members)
    engine = TorchEngine(model, search.decode_config(first.config), search)
    is_plain = search.sample is None and not search.no_repeat_ngram
    if large and is_plain and not searches and can_compile(device):
        beam_size, vocab_size = engine.decode.beam_size, first.tokenizer.tgt.size
        engine = replace(engine, fused=compile_for(engine.device, beam_size, vocab_size, report))
    pool = Pool(searches) if searches else None
    if pool is not None:  # the workers load their models
        said = dict(pool.imap_unordered([()] * len(pool.workers)))
        where, precision, _ = said[0]
        batch_tokens = min(fitting for *_, fitting in said.values())
        if len(searches) > 1:
            where = f"{len(searches)} GPUs in {precision}"
    else:
        if not on_gpu and options.workers is not None:
            torch.set_num_threads(options.workers)
        where, precision, batch_tokens = str(device), device.precision, engine.batch_tokens
    hashes = " ".join(each.weights_hash for each in models)
    return LoadedEngine.of_model(
        first, engine, max_source=min(each.config.data.max_tokens for each in models),
        batch_tokens=options.batch_tokens or batch_tokens, pool=pool,
        reads_ahead=large and bool(searches),  # on a CPU all cores are busy anyway
        settings={"--engine": "torch", "--precision": precision, "--model": hashes},
        name=f"torch on {where} ({reasons})" if reasons else "",
    )  # fmt: skip


def _load_models(options: EngineOptions, device: Device) -> list[LoadedModel]:
    """Load the models; without their weights where another process computes."""
    if device is ELSEWHERE:
        opened = [open_model(path) for path in options.models]
        with device.device:
            empty = [build_model(each.config, each.tokenizer) for each in opened]
        models = list(map(LoadedModel.of, opened, empty))
    else:
        models = [load_model(path) for path in options.models]
    first = models[0]
    for other in models[1:]:
        if other.tokenizer.fingerprint != first.tokenizer.fingerprint:
            raise ConfigError(
                f"--model {other.folder}: has another vocabulary than {first.folder}; the models "
                "of an ensemble must be trained with the same tokenizer"
            )
        theirs, ours = other.data.directions, first.data.directions
        if not {*theirs} & {*ours} and {direction[::-1] for direction in theirs} & {*ours}:
            raise ConfigError(
                f"--model {other.folder}: translates from {' to '.join(theirs[0])}, {first.folder} "
                f"from {' to '.join(ours[0])}; the models of an ensemble must have one direction"
            )
    return models


@dataclass
class SearchOnDevice:
    """A function for a worker process: its first call loads the models onto the device."""

    search: SearchOptions
    options: EngineOptions
    large: bool
    is_first: bool = True  # of several processes one reports what all would report
    loaded: LoadedEngine | None = field(default=None, compare=False)

    def __call__(self, *job: Any) -> Answer | OnDevice:
        """Search a batch, see `LoadedEngine.answer`; without one, only load."""
        if self.loaded is None:
            report = say if self.is_first else lambda _: None
            self.loaded = load_torch(self.search, self.options, self.large, report=report)
        if job:
            return self.loaded.answer(*job)
        engine = self.loaded.engine
        assert isinstance(engine, TorchEngine)
        device = Device(engine.device, self.loaded.settings["--precision"])
        return str(device), device.precision, engine.batch_tokens


def searches_on_gpus(
    search: SearchOptions, options: EngineOptions, large: bool
) -> tuple[SearchOnDevice, ...]:
    """Return the functions of the worker processes, one for each GPU; none if none is needed.

    That is `workers` GPUs, or all that are visible for a large text. With one GPU, its process
    leaves this one free to encode and decode text meanwhile, which pays for a large text. Where
    this process aligns words, it takes the first GPU.
    """
    is_given = options.device.startswith("cuda:")
    devices = [options.device] if is_given else visible_gpus()
    wanted = options.workers or (len(devices) if large else 1)
    if wanted > len(devices):
        there = f"--device {options.device}" if is_given else f"{len(devices)} of them"
        raise ConfigError(
            f"--workers: on GPUs it is a process for each, found {wanted:,} for {there}; "
            "lower it, or leave it out: a large file is then shared by all GPUs"
        )
    if wanted == 1 and (options.workers or not large):
        return ()
    # One worker: the model in the process that loads it.
    return tuple(
        SearchOnDevice(search, replace(options, workers=1, device=device), large, number == 0)
        for number, device in enumerate(devices[int(search.alignments) : wanted])
    )


def visible_gpus() -> list[str]:
    return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
