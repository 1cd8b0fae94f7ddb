"""What the sections work on: a model, made-up pairs with the lengths of WMT, and a stopwatch."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from synthetic_lengths import synthetic_lengths

from mt.config.load import config_from_mapping
from mt.config.schema import Config
from mt.data.tokens.batches import Prefetcher
from mt.data.tokens.directions import DirectedPairs
from mt.data.tokens.plan import Plan
from mt.data.tokens.store import Store
from mt.data.tokens.tokenizer import EOS, Tokenizer
from mt.runtime.devices import Device, choose_device
from mt.runtime.distributed import World
from mt.training.update import Updater

# Of the lengths in tokens.
MEAN_LOG_LENGTH = 3.2


@dataclass(frozen=True)
class Setting:
    """Where to measure, and how much."""

    device: str  # cuda, cuda:1 or cpu
    tiny: bool  # so little work that a CPU does it in seconds; the figures mean nothing then

    @cached_property
    def torch_device(self) -> torch.device:
        """The device as torch knows it, prepared; a GPU with its index."""
        return self.choose("fp32").device

    @property
    def is_cuda(self) -> bool:
        """Whether it is a GPU."""
        return self.torch_device.type == "cuda"

    @property
    def precision(self) -> str:
        """The precision that is measured: what `auto` chooses."""
        return choose_device(self.device, "fp32" if self.tiny else "auto").precision

    @property
    def vocab_size(self) -> int:
        """Tokens of the joint vocabulary."""
        return 320 if self.tiny else 32_000

    @property
    def n_pairs(self) -> int:
        """Pairs of the made-up corpus."""
        return 200 if self.tiny else 200_000

    @property
    def batch_tokens(self) -> tuple[int, ...]:
        """Sizes of updates to train with."""
        return (512, 1024) if self.tiny else (8_192, 25_000, 50_000)

    def config(self, tokens: int, compiled: bool, **changes: dict[str, Any]) -> Config:
        """The base model; batches have room for as much of an update as training puts in one."""
        model = {"d_model": 32, "n_heads": 4, "d_ff": 64} if self.tiny else {}
        if self.tiny:
            model |= {"n_encoder_layers": 1, "n_decoder_layers": 1}
        mapping: dict[str, Any] = {
            "data": {"train": [{"src": "made-up", "tgt": "made-up"}]},
            "tokenizer": {"vocab_size": self.vocab_size},
            "batch": {"tokens_per_update": tokens, "tokens_per_batch": 3 * tokens},
            "model": model,
            # Not `auto`, which would train uncompiled after an error, and be measured as compiled.
            "train": {"compile": compiled},
        }
        for section, values in changes.items():
            mapping[section] = {**mapping.get(section, {}), **values}
        return config_from_mapping(mapping, "gpu_check")

    def updater(
        self, config: Config, precision: str | None = None, world: World | None = None
    ) -> Updater:
        """Everything that an update changes, with a stand-in for the tokenizer."""
        tokenizer = cast("Tokenizer", Vocabulary(self.vocab_size))
        device = self.choose(precision)
        return Updater(config, tokenizer, device, world or World(), lambda _: None)

    def choose(self, precision: str | None = None) -> Device:
        """Choose and prepare the device."""
        return choose_device(self.device, precision or self.precision)

    @cached_property
    def pairs(self) -> DirectedPairs:
        """Made-up pairs of tokens as frequent as those of a text: the n-th as 1 / (n + 2.7).

        So an embedding gets many gradients for some of its rows, and none for most (Zipf's law, as
        Mandelbrot has it).
        """
        random = np.random.default_rng(1)
        sides = synthetic_lengths(random, self.n_pairs, MEAN_LOG_LENGTH)
        up_to = (1 / (np.arange(1, self.vocab_size - EOS) + 2.7)).cumsum()
        ids = [
            (EOS + 1 + up_to.searchsorted(random.random(int(side.sum())) * up_to[-1])).astype(
                np.int32
            )
            for side in sides
        ]
        lengths = np.stack(sides)
        # Source and target of each pair in turn: where each id of a side belongs.
        is_source = np.repeat(np.arange(2 * self.n_pairs) % 2 == 0, lengths.T.ravel())
        together = np.empty(len(is_source), np.int32)
        together[is_source], together[~is_source] = ids
        store = Store(cast("Any", together), lengths, (self.n_pairs,), "", "")
        return DirectedPairs.of(store)

    def feed(self, plan: Plan) -> Prefetcher:
        """The updates of a plan from the first epoch on, loaded as training does."""
        return Prefetcher(plan, 0, 0, device=self.torch_device)

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.is_cuda:
            torch.cuda.synchronize(self.torch_device)

    @contextmanager
    def without_waiting(self) -> Iterator[None]:
        """Inside, what makes the host wait for a GPU raises RuntimeError."""
        if not self.is_cuda:
            yield
            return
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    def seconds(self, call: Callable[[], object], repeats: int = 10) -> float:
        """The median time of a call, after two that do not count."""
        if self.tiny:
            repeats = 1
        times = []
        for number in range(repeats + 2):
            self.synchronize()
            start = time.perf_counter()
            call()
            self.synchronize()
            if number >= 2:
                times.append(time.perf_counter() - start)
        return statistics.median(times)


@dataclass(frozen=True)
class Vocabulary:
    """What a model needs to know of a tokenizer, both of whose sides it is."""

    size: int
    joint: bool = True

    @property
    def src(self) -> Vocabulary:
        """The source side."""
        return self

    tgt = src


def n_compiled_graphs() -> int:
    dynamo = sys.modules.get("torch._dynamo.utils")  # loaded by the first compilation
    return 0 if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])
