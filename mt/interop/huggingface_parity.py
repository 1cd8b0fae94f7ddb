"""The proof of an export to transformers: the same probabilities, and the same translations."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mt.data.corpus import data_root, read_pairs
from mt.data.tokenizer import BOS, EOS, Tokenizer
from mt.decoding.engine import TorchEngine
from mt.decoding.inference import Inference
from mt.decoding.scoring import ForcedDecoder
from mt.errors import CheckpointError, MtError
from mt.evaluation.bleu_tokenizer import choose_tokenizer
from mt.evaluation.metrics import bleu
from mt.model.checkpoint import LoadedModel
from mt.runtime.devices import Device

# So many pairs of at most so many random tokens are scored by both models in float32; no
# log-probability of a token may differ by more than the tolerance, in nats.
PAIRS = 64
MAX_TOKENS = 20
TOLERANCE = 1e-3
# So many lines of the validation set are translated by both.
LINES = 50
LONGEST = 100  # tokens of such a line


@dataclass(frozen=True)
class Parity:
    """How closely the exported model agrees with ours."""

    architecture: str
    tokens: int  # compared by probability
    max_difference: float  # of the log-probability of a token
    lines: int  # translated by both; 0 without a validation set
    equal_tokens: int  # lines that both split into the same tokens
    equal_outputs: int
    bleu: tuple[float, float] | None  # ours and theirs

    def __str__(self) -> str:
        """What `mt export` reports."""
        text = (
            f"{self.architecture}; {self.tokens:,} tokens of {PAIRS} pairs have the same "
            f"log-probability, within {self.max_difference:.1e}; "
        )
        if not self.lines:
            return f"{text}no text of data.valid to translate was found"
        text += (
            f"{self.lines} lines of data.valid: {self.equal_tokens} split into the same tokens, "
            f"{self.equal_outputs} translated alike"
        )
        if self.bleu is not None:
            text += f", BLEU {self.bleu[0]:.2f} here, {self.bleu[1]:.2f} there"
        return text


def compare(library: Any, loaded: LoadedModel, folder: Path) -> Parity:
    """Open the folder as its users do, and compare it with our model.

    Raises CheckpointError if a log-probability differs by more than `TOLERANCE`.
    """
    theirs = library.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    tokenizer = library.AutoTokenizer.from_pretrained(folder)
    # With the package sacremoses it would change quotation marks and dashes.
    tokenizer.punc_normalizer = lambda text: text
    inference = Inference(loaded.model, Device(torch.device("cpu"), "fp32"))
    differences = _differences(inference, theirs, loaded.tokenizer)
    worst = max(differences)
    if not worst <= TOLERANCE:  # NaN fails too
        raise CheckpointError(
            f"export huggingface: the converted model gives other probabilities than mt, by up to "
            f"{worst:.4f} nats a token where {TOLERANCE} is allowed, so nothing was written; "
            "please report it with the run's config.yaml"
        )
    pairs = _sample(loaded)
    found = _translate_both(loaded, inference, theirs, tokenizer, [source for source, _ in pairs])
    equal_tokens, ours, other = found
    return Parity(
        type(theirs).__name__,
        len(differences),
        worst,
        len(pairs),
        equal_tokens,
        sum(a == b for a, b in zip(ours, other, strict=True)),
        _bleu(loaded, ours, other, [target for _, target in pairs]) if pairs else None,
    )


@torch.no_grad()
def _differences(inference: Inference, theirs: Any, tokenizer: Tokenizer) -> list[float]:
    """By how much the log-probability of each token differs, for random pairs of all lengths."""
    draw = random.Random(1)
    longest = min(MAX_TOKENS, inference.max_tokens - 1)

    def random_ids(vocab_size: int) -> list[int]:
        return [draw.randrange(EOS + 1, vocab_size) for _ in range(draw.randint(1, longest))]

    pairs = [
        (random_ids(tokenizer.src_vocab_size), random_ids(tokenizer.tgt_vocab_size))
        for _ in range(PAIRS)
    ]
    differences: list[float] = []
    for (src, tgt), ours in zip(pairs, ForcedDecoder(inference).score(pairs), strict=True):
        out = theirs(
            input_ids=torch.tensor([[*src, EOS]]), decoder_input_ids=torch.tensor([[BOS, *tgt]])
        )
        log_probs = out.logits[0].log_softmax(-1)  # (T, V)
        targets = torch.tensor([*tgt, EOS])
        other = log_probs.gather(1, targets[:, None])[:, 0].tolist()
        differences += [abs(a - b) for a, b in zip(ours.log_probs, other, strict=True)]
    return differences


def _sample(loaded: LoadedModel) -> list[tuple[str, str]]:
    """The first pairs of the validation set that are not long; none if it is not at hand."""
    data = loaded.config.data
    if data.valid is None:
        return []
    try:
        lines = list(
            itertools.islice(read_pairs(data.valid, data_root(data), "data.valid"), 4 * LINES)
        )
    except (MtError, OSError):
        return []
    longest = min(LONGEST, loaded.model.config.max_positions - 1)
    sizes = loaded.tokenizer.encode_src([source for source, _ in lines])
    fitting = [pair for pair, ids in zip(lines, sizes, strict=True) if 0 < len(ids) < longest]
    return fitting[:LINES]


@torch.no_grad()
def _translate_both(
    loaded: LoadedModel, inference: Inference, theirs: Any, tokenizer: Any, lines: list[str]
) -> tuple[int, list[str], list[str]]:
    """Number of lines split alike, our translations and theirs."""
    if not lines:
        return 0, [], []
    sources = loaded.tokenizer.encode_src(lines)
    engine = TorchEngine(inference, loaded.config.decode)
    ours = [list(found[0].tokens) for found in engine.search(sources)]
    equal = 0
    other = []
    for line, source in zip(lines, sources, strict=True):
        inputs = tokenizer(line, return_tensors="pt")
        equal += inputs.input_ids[0].tolist() == [*source, EOS]
        limit = engine.limit(source, ()) + 1  # eos
        found = theirs.generate(**inputs, max_new_tokens=limit, max_length=None)
        other.append(tokenizer.decode(found[0], skip_special_tokens=True))
    return equal, loaded.tokenizer.decode_tgt(ours), other


def _bleu(loaded: LoadedModel, ours: list[str], other: list[str], refs: list[str]) -> Any:
    config = loaded.config
    tokenize = choose_tokenizer(config.data.tgt_lang, config.train.bleu_tokenize)
    return tuple(bleu(hyps, [refs], tokenize).value for hyps in (ours, other))
