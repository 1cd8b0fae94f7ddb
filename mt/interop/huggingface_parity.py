"""The proof of an export to transformers: its folder gives the same probabilities as mt."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mt.config.schema import DecodeConfig
from mt.data.tokens.tokenizer import BOS, EOS
from mt.interop.agreement import PAIRS, Translate, largest_difference, scored_pairs
from mt.model.checkpoint import LoadedModel


@dataclass(frozen=True)
class Parity:
    """How closely the exported model agrees with ours."""

    architecture: str  # the class of transformers
    pairs: int
    tokens: int
    max_difference: float  # of the log-probability of a token

    def __str__(self) -> str:
        """What `mt export` reports."""
        return (
            f"{self.architecture}; {self.tokens:,} tokens of {self.pairs} pairs have the same "
            f"log-probability, within {self.max_difference:.1e}"
        )


def compare(library: Any, loaded: LoadedModel, folder: Path) -> Parity:
    """Open the folder as its users do, and score the same random pairs with both models.

    Raises CheckpointError if a log-probability differs by more than `agreement.TOLERANCE`.
    """
    theirs = library.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    library.AutoTokenizer.from_pretrained(folder)
    differences = log_prob_differences(loaded, theirs)
    worst = largest_difference("huggingface", differences)
    return Parity(type(theirs).__name__, PAIRS, len(differences), worst)


@torch.no_grad()
def log_prob_differences(loaded: LoadedModel, theirs: Any) -> list[float]:
    """By how much the log-probability of each token differs, for random pairs of all lengths."""
    differences: list[float] = []
    for (src, tgt), ours in scored_pairs(loaded):
        out = theirs(
            input_ids=torch.tensor([[*src, EOS]]), decoder_input_ids=torch.tensor([[BOS, *tgt]])
        )
        log_probs = out.logits[0].log_softmax(-1)  # (T, V)
        targets = torch.tensor([*tgt, EOS])
        other = log_probs.gather(1, targets[:, None])[:, 0].tolist()
        differences += [abs(a - b) for a, b in zip(ours, other, strict=True)]
    return differences


def translate_with(library: Any, loaded: LoadedModel, folder: Path) -> Translate:
    """Return what translates lines with the exported folder, limits of outputs being ours."""
    theirs = library.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it recommends the package sacremoses
        tokenizer = library.AutoTokenizer.from_pretrained(folder)
    # With that package it would change quotation marks and dashes.
    tokenizer.punc_normalizer = lambda text: text
    positions = loaded.model.config.max_positions

    @torch.no_grad()
    def translate(lines: Sequence[str], search: DecodeConfig) -> list[str]:
        outputs = []
        for line in lines:
            inputs = tokenizer(line, return_tensors="pt", truncation=True, max_length=positions)
            length = inputs.input_ids.shape[1] - 1  # eos
            limit = max(1, int(search.max_len_factor * length + search.max_len_extra))
            found = theirs.generate(
                **inputs,
                num_beams=search.beam_size,
                length_penalty=search.length_penalty,
                early_stopping=search.beam_size > 1,
                max_new_tokens=min(limit + 1, positions),  # eos
                max_length=None,
            )
            outputs.append(tokenizer.decode(found[0], skip_special_tokens=True))
        return outputs

    return translate
