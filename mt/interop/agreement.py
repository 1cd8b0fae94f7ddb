"""Translate a sample of the validation text with mt and with an exported model, and compare.

Equal probabilities are proved elsewhere; this shows what they come to: how many translations are
the same, and both BLEU scores.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from mt.config.schema import DecodeConfig
from mt.data.corpus import data_root, read_pairs
from mt.decoding.engine import TorchEngine
from mt.decoding.inference import Inference
from mt.decoding.translate import Translator
from mt.errors import MtError
from mt.evaluation.bleu_tokenizer import choose_tokenizer
from mt.evaluation.metrics import bleu
from mt.model.checkpoint import LoadedModel
from mt.runtime.devices import Device

# Sentence pairs of the validation text that are translated.
LINES = 200
# Translates lines with this search.
Translate = Callable[[Sequence[str], DecodeConfig], Sequence[str]]


@dataclass(frozen=True)
class Agreement:
    """Translations of the same lines by two programs."""

    lines: int
    same: int
    ours: float  # BLEU
    theirs: float

    def __str__(self) -> str:
        """What `mt export` reports."""
        return (
            f"first {self.lines:,} lines of data.valid: {self.same:,} translations are the same, "
            f"BLEU {self.theirs:.2f}, of mt {self.ours:.2f} "
            f"(difference {self.theirs - self.ours:+.2f})"
        )


def agreement(
    loaded: LoadedModel, translate: Translate, search: DecodeConfig | None = None
) -> Agreement | str:
    """Compare `translate` with mt in fp32 on the validation text of the model's config.

    `search`: that of both; None is the model's own. Returns the reason where that text cannot be
    read: a model may be exported far from where it was trained.
    """
    data = loaded.config.data
    if data.valid is None:
        return "the model's config has no data.valid, so no translations were compared"
    try:
        pairs = list(itertools.islice(read_pairs(data.valid, data_root(data), "data.valid"), LINES))
    except MtError as error:
        return f"no translations were compared: {error}"
    sources = [src for src, _ in pairs]
    references = [ref for _, ref in pairs]
    search = search or loaded.config.decode
    device = Device(torch.device("cpu"), "fp32")
    translator = Translator(
        TorchEngine(Inference(loaded.model, device), search),
        loaded.tokenizer,
        max_source=data.max_tokens,
    )
    ours = [translation.texts[0] for translation in translator.translate(sources)]
    theirs = translate(sources, search)
    tokenize = choose_tokenizer(data.tgt_lang)
    return Agreement(
        lines=len(pairs),
        same=sum(one == other for one, other in zip(ours, theirs, strict=True)),
        ours=bleu(ours, [references], tokenize).value,
        theirs=bleu(theirs, [references], tokenize).value,
    )
