"""How good a model is while it trains, by the code of `mt translate` and `mt evaluate`."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from mt.data.batches import bucket, collate
from mt.data.corpus import data_root, read_pairs
from mt.data.store import open_built, open_or_build
from mt.decoding.engine import TorchEngine
from mt.decoding.inference import Inference
from mt.decoding.translate import Translator
from mt.errors import ConfigError, NonFiniteError
from mt.evaluation.metrics import Score, score_corpus
from mt.files import write_whole
from mt.runtime.memory import peak_memory_mb
from mt.training.loss import batch_loss
from mt.training.meter import perplexity
from mt.training.signals import StopRequestedError

if TYPE_CHECKING:
    from mt.config.schema import Config, Source
    from mt.data.tokenizer import Tokenizer
    from mt.model.transformer import Transformer
    from mt.runtime.devices import Device
    from mt.runtime.distributed import World
    from mt.training.runlog import RunLog
    from mt.training.signals import Signals

T = TypeVar("T")

# Sentences shown after each validation.
SAMPLES = 8


@dataclass(frozen=True)
class ValidationResult:
    """What a validation finds."""

    nll: float  # nats per target token, without smoothing or dropout
    bleu: Score
    outputs: list[str]

    @property
    def perplexity(self) -> float:
        return perplexity(self.nll)


def read_text(config: Config, source: Source, where: str) -> tuple[list[str], list[str]]:
    """Source lines and raw reference lines of a text to score on."""
    pairs = list(read_pairs(source, data_root(config.data), where))
    return [src for src, _ in pairs], [tgt for _, tgt in pairs]


def translate(
    config: Config, model: Transformer, tokenizer: Tokenizer, device: Device, lines: list[str]
) -> list[str]:
    """The lines translated with the config's decode settings; ConfigError where the memory is too small for it."""
    engine = TorchEngine(Inference(model, device), config.decode)
    translator = Translator(engine, tokenizer, max_source=config.data.max_tokens)
    try:
        return [one.texts[0] for one in translator.translate(lines)]
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"decode: translating data.valid or data.test does not fit into the memory of {device}: "
            f"{peak_memory_mb(device.device):,.0f} MB were in use. Lower decode.beam_size or decode.max_len_factor, or "
            "choose a smaller model"
        ) from error


class Validation:
    """The validation set of a config, as text and as token ids. The first rank reads it, for all."""

    def __init__(
        self,
        config: Config,
        source: Source,
        run: Path,
        tokenizer: Tokenizer,
        log: RunLog,
        world: World,
    ) -> None:
        self.config, self.run, self.tokenizer, self.log = config, run, tokenizer, log
        self.src, self.ref = world.on_main(lambda: read_text(config, source, "data.valid"))
        # Every pair counts that the model can take, whatever the limits for training.
        longest = config.model.max_positions - 1
        limits = {"dedupe": False, "max_length_ratio": math.inf, "max_tokens": longest}
        data = config.data.model_copy(update=limits)
        folder = run / "store" / "valid"
        self.store = world.main_first(
            lambda: open_or_build(folder, [source], "data.valid", data, tokenizer, log.say),
            lambda: open_built(folder),
        )
        world.require_same(run, validation_store=self.store.fingerprint)

    def evaluate(
        self, model: Transformer, device: Device, world: World, signals: Signals
    ) -> ValidationResult:
        """Loss and BLEU of a model (Post, 2018: detokenised output against the raw reference).

        Each rank does a share of the work. Raises StopRequestedError in all of them where a signal comes to one.
        """
        share: tuple[list[float], list[str]] | None = None
        with suppress(StopRequestedError), signals.interruptible():
            losses, lines = self.losses(model, device, world), self.src[world.rank :: world.size]
            try:
                share = losses, translate(self.config, model, self.tokenizer, device, lines)
            except (
                NonFiniteError
            ) as error:  # training may find its way back, or goes back by itself
                self.log.say(f"valid | no translations, since a sentence has none | {error}")
                share = losses, [""] * len(lines)
        shares = world.all_gather(share)
        done = [share for share in shares if share is not None]
        if len(done) < len(shares):
            raise StopRequestedError
        # In the order of the batches, so that the sum is the same to the last bit however many ranks there are.
        nll = sum(interleaved([losses for losses, _ in done])) / self.n_tgt
        outputs = interleaved([outputs for _, outputs in done])
        (bleu,) = score_corpus(outputs, [self.ref], ["bleu"])
        return ValidationResult(nll, bleu, outputs)

    @property
    def fingerprint(self) -> str:
        """Differs where the text does: scores on one text say nothing about another. The store's differs more often."""
        return hashlib.sha256("\n".join([*self.src, *self.ref]).encode()).hexdigest()[:16]

    @property
    def n_tgt(self) -> int:
        """Target tokens of the validation set."""
        return int((self.store.tgt_lengths + 1).sum())

    @torch.no_grad()
    def losses(self, model: Transformer, device: Device, world: World) -> list[float]:
        """Nats of this rank's batches of the validation set, without smoothing or dropout."""
        store = self.store
        model.eval()
        model.compute_dtype = device.dtype
        batches = bucket(
            store.src_lengths, store.tgt_lengths, np.arange(len(store)), self.config.batch.budget
        )
        losses = []
        for indices in batches[world.rank :: world.size]:
            batch = collate([store.pair(i) for i in indices]).to(device.device)
            losses.append(batch_loss(model, model.output, batch, 0.0).nll)
        return [float(loss) for loss in losses]  # the device is waited for once

    def write_samples(self, name: str, outputs: list[str]) -> None:
        """Some sentences with reference and output, into `samples/`."""
        folder = self.run / "samples"
        folder.mkdir(exist_ok=True)
        every = max(1, len(outputs) // SAMPLES)
        lines = [
            f"source     {self.src[i]}\nreference  {self.ref[i]}\noutput     {outputs[i]}\n"
            for i in range(0, len(outputs), every)[:SAMPLES]
        ]
        write_whole(folder / f"{name}.txt", "\n".join(lines))


def names_of(tests: Sequence[Source]) -> list[str]:
    """The source's name of each text of `data.test`, with all that it has where that is not enough to tell it apart."""
    short = [test.path or test.src for test in tests]
    parts = [(test.path, test.name, test.path and test.split, test.src, test.tgt) for test in tests]
    whole = [" ".join(filter(None, known)) for known in parts]
    return [
        name if short.count(name) == 1 else long for name, long in zip(short, whole, strict=True)
    ]


def score_tests(
    config: Config,
    model: Transformer,
    tokenizer: Tokenizer,
    device: Device,
    world: World,
    done: set[str],
) -> Iterator[tuple[str, Score]]:
    """BLEU on each text of `data.test` whose name is not in `done`; the first rank reads, each translates a share."""
    for number, (name, source) in enumerate(
        zip(names_of(config.data.test), config.data.test, strict=True)
    ):
        if name not in done:
            src, ref = world.on_main(partial(read_text, config, source, f"data.test[{number}]"))
            shares = world.all_gather(
                translate(config, model, tokenizer, device, src[world.rank :: world.size])
            )
            (score,) = score_corpus(interleaved(shares), [ref], ["bleu"])
            yield name, score


def interleaved(shares: list[list[T]]) -> list[T]:
    """What was dealt to the ranks in turn, in one sequence again."""
    whole: list[Any] = [None] * sum(map(len, shares))
    for rank, share in enumerate(shares):
        whole[rank :: len(shares)] = share
    return whole
