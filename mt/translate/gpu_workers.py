"""Several GPUs: a process for each, with a copy of the model, that searches batches."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from mt.errors import ConfigError
from mt.search.engine_contract import Hypothesis, Ids, search_in_worker
from mt.translate.choose_engine import EngineRequest


@dataclass
class SearchOnDevice:
    """A function for a worker process: its first call loads the model onto the device."""

    request: EngineRequest
    is_first: bool = True  # of several processes one says what all would say
    engine: Any = field(default=None, compare=False)

    def __call__(
        self, sources: Sequence[Ids], prefixes: Sequence[Ids]
    ) -> tuple[list[list[Hypothesis]], int]:
        """Search a batch; see `search_in_worker`."""
        if self.engine is None:
            from mt.translate.load_torch import load_torch

            self.engine = load_torch(self.request, self._say).engine
        return search_in_worker(self.engine, sources, prefixes)

    def _say(self, text: str) -> None:
        if self.is_first:
            print(f"mt: {text}", file=sys.stderr)


def searches_on_gpus(request: EngineRequest) -> tuple[SearchOnDevice, ...]:
    """Return the functions of the worker processes, one for each GPU; none if none is needed.

    That is `request.workers` GPUs, or all that are visible for a large text. With one GPU, its
    process leaves this one free to encode and decode text meanwhile, which pays for a large text.
    Raises ConfigError if there are not so many.
    """
    one = request.device.startswith("cuda:")
    devices = [request.device] if one else visible_gpus()
    wanted = request.workers or (len(devices) if request.large else 1)
    if wanted > len(devices):
        found = f"--device {request.device}" if one else f"{len(devices)} of them"
        raise ConfigError(
            f"--workers: on GPUs it is a process for each, found {wanted:,} for {found}; "
            "lower it, or leave it out: a large file is then shared by all GPUs"
        )
    if wanted == 1 and (request.workers or not request.large):
        return ()
    # One worker: the model in the process that loads it.
    alone = replace(request, workers=1, convert=None)
    return tuple(
        SearchOnDevice(replace(alone, device=device), is_first=number == 0)
        for number, device in enumerate(devices[:wanted])
    )


def visible_gpus() -> list[str]:
    """Return the names of the GPUs that torch sees."""
    return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
