"""How good a model is while it trains, by the code of `mt translate` and `mt evaluate`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from mt.data.batches import bucket, collate
from mt.data.corpus import data_root, read_pairs
from mt.data.store import open_or_build
from mt.decoding.inference import Inference
from mt.decoding.translate import Translator
from mt.evaluation.metrics import Score, score_corpus
from mt.files import write_whole
from mt.training.loss import batch_loss

if TYPE_CHECKING:
    from mt.config import Config, Source
    from mt.data.tokenizer import Tokenizer
    from mt.devices import Device
    from mt.model.transformer import Transformer
    from mt.training.runlog import RunLog

# Sentences shown after each validation.
SAMPLES = 8


@dataclass(frozen=True)
class Verdict:
    """What a validation finds."""

    nll: float  # nats per target token, without smoothing or dropout
    bleu: Score
    outputs: list[str]

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.nll, 700.0))


def read_text(config: Config, source: Source, where: str) -> tuple[list[str], list[str]]:
    """Source lines and raw reference lines of a text to score on."""
    pairs = list(read_pairs(source, data_root(config.data), where))
    return [src for src, _ in pairs], [tgt for _, tgt in pairs]


def translate(config: Config, model: Transformer, tokenizer: Tokenizer, device: Device, lines: list[str]) -> list[str]:
    """The lines translated with the config's decode settings."""
    translator = Translator(Inference(model, device), tokenizer, config.decode, max_source=config.data.max_tokens)
    return [one.texts[0] for one in translator.translate(lines)]


class Validation:
    """The validation set of a config, as text and as token ids."""

    def __init__(self, config: Config, source: Source, run: Path, tokenizer: Tokenizer, log: RunLog) -> None:
        self.config, self.run, self.tokenizer = config, run, tokenizer
        self.src, self.ref = read_text(config, source, "data.valid")
        # Every pair counts that the model can take, whatever the limits for training.
        longest = config.model.max_positions - 1
        limits = {"dedupe": False, "max_length_ratio": math.inf, "max_tokens": longest}
        data = config.data.model_copy(update=limits)
        self.store = open_or_build(run / "store" / "valid", [source], "data.valid", data, tokenizer, log.say)

    def judge(self, model: Transformer, device: Device) -> Verdict:
        """Loss and BLEU of a model (Post, 2018: detokenised output against the raw reference)."""
        nll = self.loss(model, device)
        outputs = translate(self.config, model, self.tokenizer, device, self.src)
        (bleu,) = score_corpus(outputs, [self.ref], ["bleu"])
        return Verdict(nll, bleu, outputs)

    @torch.no_grad()
    def loss(self, model: Transformer, device: Device) -> float:
        """Nats per target token of the validation set, without smoothing or dropout."""
        store = self.store
        model.eval()
        model.compute_dtype = device.dtype
        total, tokens = torch.zeros((), device=device.device), 0
        budget = self.config.batch.tokens_per_batch
        for indices in bucket(store.src_lengths, store.tgt_lengths, np.arange(len(store)), budget):
            batch = collate([store.pair(i) for i in indices]).to(device.device)
            total += batch_loss(model, model.output, batch, 0.0).nll
            tokens += batch.n_tgt
        return float(total) / tokens

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


def score_tests(config: Config, model: Transformer, tokenizer: Tokenizer, device: Device) -> dict[str, Score]:
    """BLEU on each text of `data.test`, by its source's name."""
    scores = {}
    for number, source in enumerate(config.data.test):
        src, ref = read_text(config, source, f"data.test[{number}]")
        outputs = translate(config, model, tokenizer, device, src)
        (scores[source.path or source.src],) = score_corpus(outputs, [ref], ["bleu"])
    return scores
