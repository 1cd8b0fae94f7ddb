"""Compare an exported model with mt: the same probabilities, then the same translations.

Random pairs are scored by both, which the file of each export does with `scored_pairs`. What equal
probabilities come to is shown on a sample of the validation text: how many translations are the
same, and both BLEU scores.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from mt.config.schema import DecodeConfig
from mt.data.reading.corpus import data_root, read_pairs
from mt.data.tokens.tokenizer import EOS
from mt.errors import CheckpointError, MtError
from mt.evaluation.bleu_tokenizer import choose_tokenizer
from mt.evaluation.metrics import bleu
from mt.model.checkpoint import LoadedModel
from mt.runtime.devices import Device
from mt.search.engine import TorchEngine
from mt.search.inference import Inference
from mt.search.scoring import ForcedDecoder, Pair
from mt.translate.translator import Translator

# So many pairs of at most so many tokens are scored with both models in float32. No log-probability
# of a token may differ by more than the tolerance, in nats.
PAIRS = 64
MAX_TOKENS = 20
TOLERANCE = 1e-3
# Sentence pairs of the validation text that are translated.
LINES = 200
# Translates lines with this search.
Translate = Callable[[Sequence[str], DecodeConfig], Sequence[str]]


def scored_pairs(loaded: LoadedModel) -> list[tuple[Pair, tuple[float, ...]]]:
    """Random pairs of token ids, and mt's log-probability of each target token, eos included.

    Random tokens of all lengths up to `MAX_TOKENS` can reach every row of the embeddings, and an
    untrained model can be compared as well.
    """
    tokenizer = loaded.tokenizer
    draw = random.Random(1)
    longest = min(MAX_TOKENS, loaded.model.config.max_positions - 1)

    def random_ids(vocab_size: int) -> list[int]:
        return [draw.randrange(EOS + 1, vocab_size) for _ in range(draw.randint(1, longest))]

    pairs: list[Pair] = [
        (random_ids(tokenizer.src_vocab_size), random_ids(tokenizer.tgt_vocab_size))
        for _ in range(PAIRS)
    ]
    inference = Inference(loaded.model, Device(torch.device("cpu"), "fp32"))
    scores = ForcedDecoder(inference).score(pairs)
    return [(pair, each.log_probs) for pair, each in zip(pairs, scores, strict=True)]


def largest_difference(
    program: str, differences: Sequence[float], tolerance: float = TOLERANCE
) -> float:
    """Return the largest difference, in nats; raise CheckpointError if it is over `tolerance`."""
    worst = max(differences)
    if not worst <= tolerance:  # NaN fails too
        raise CheckpointError(
            f"export {program}: the converted model gives other probabilities than mt, by up to "
            f"{worst:.4f} nats a token where {tolerance} is allowed, so nothing was written; "
            "please report it with the run's config.yaml"
        )
    return worst


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
    tokenize = choose_tokenizer(data.tgt_lang, loaded.config.train.bleu_tokenize)
    return Agreement(
        lines=len(pairs),
        same=sum(one == other for one, other in zip(ours, theirs, strict=True)),
        ours=bleu(ours, [references], tokenize).value,
        theirs=bleu(theirs, [references], tokenize).value,
    )
