"""FLOPs of a model's matrix products, counted by torch on tensors without numbers.

Two for each multiply-add; norms, softmax and dropout are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.utils.flop_counter import FlopCounterMode

from mt.model.transformer import Transformer

if TYPE_CHECKING:
    from mt.config.schema import Config
    from mt.inspect.summary import Summary

PREFIXES = ("", "k", "M", "G", "T", "P")


def count_flops(summary: Summary, config: Config, length: int) -> dict[str, int]:
    """Count the FLOPs of sentence pairs of `length` tokens on both sides, for JSON.

    Training is a forward and a backward pass. An update has
    `batch.tokens_per_update` target tokens, but at least one sentence; padding is not counted.
    """
    with torch.device("meta"):
        model = Transformer(
            config.model, summary.src_vocab_size, summary.tgt_vocab_size, summary.joint
        ).eval()
        ids = torch.zeros(1, length, dtype=torch.long)
        with FlopCounterMode(display=False) as counter:
            logits = model.output(model(ids, ids, torch.ones(1, length, dtype=torch.bool)))
            forward = counter.get_total_flops()
            logits.sum().backward()
    training = counter.get_total_flops() // length
    per_update = max(length, config.batch.tokens_per_update)
    return {
        "length": length,
        "forward_per_target_token": forward // length,
        "training_per_target_token": training,
        "tokens_per_update": per_update,
        "training_per_update": training * per_update,
    }


def format_flops(flops: dict[str, int]) -> str:
    """Format what `count_flops` returns as a table."""
    update = f"training, an update of {flops['tokens_per_update']:,} target tokens"
    rows = {
        "forward pass, a target token with its source": flops["forward_per_target_token"],
        "training, a target token with its source": flops["training_per_target_token"],
        update: flops["training_per_update"],
    }
    title = f"FLOPs of matrix products, sentences of {flops['length']} tokens on both sides"
    lines = [title, *(f"  {what:<59}{_scaled(count)}" for what, count in rows.items())]
    return "\n".join([*lines, "memory: mt train --dry-run measures it", ""])


def _scaled(count: int) -> str:
    """A count in the largest unit that leaves a digit before the point: 12.3 GFLOPs."""
    thousands = min(len(PREFIXES) - 1, (len(str(count)) - 1) // 3)
    return f"{count / 1000**thousands:9.1f} {PREFIXES[thousands]}FLOPs"
