"""What the tests of the five documents share: their models, recorded attention, tiny batches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from mt.config.schema import ModelConfig
from mt.data.tokens.batches import Batch, collate
from mt.data.tokens.tokenizer import EOS
from mt.model import cpu_ops, transformer
from mt.model.transformer import Transformer
from mt.training.loss import smoothed_cross_entropy

close = partial(torch.testing.assert_close, rtol=0, atol=1e-10)
close_to_float32 = partial(torch.testing.assert_close, rtol=0, atol=2e-7, check_dtype=False)
ONE_LAYER = {"n_encoder_layers": 1, "n_decoder_layers": 1}
NARROW = {"d_model": 16, "n_heads": 2, "d_ff": 24, "max_positions": 64}


def build(system: dict[str, Any], words: int = 12, **changes: Any) -> Transformer:
    """The model of a document in float64; gains and biases are moved from 1 and 0, to show up."""
    torch.manual_seed(1)
    model = Transformer(ModelConfig(**{**system, **changes}), words, words, joint=False).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.normal_(mean=float(name.endswith("norm.weight")), std=0.1)
    return model.eval()


class Attention(NamedTuple):
    """One use of attention: q, k, v and out (B, h, T, d_k), weights (B, h, T, S)."""

    q: Tensor
    k: Tensor
    v: Tensor
    weights: Tensor
    out: Tensor


def record_attention(monkeypatch: pytest.MonkeyPatch) -> list[Attention]:
    """Record every use of attention, in the order of the forward pass."""
    calls: list[Attention] = []
    matrices: list[Tensor] = []
    weigh = cpu_ops.attention_weights
    attend = cpu_ops.attend

    def record_weights(q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
        matrices.append(weigh(q, k, bias))
        return matrices[-1]

    def record_output(
        q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: float
    ) -> Tensor:
        out = attend(q, k, v, bias, dropout)
        calls.append(Attention(q, k, v, matrices[-1], out))
        return out

    monkeypatch.setattr(cpu_ops, "attention_weights", record_weights)
    monkeypatch.setattr(transformer, "attend", record_output)
    return calls


# Six pairs over the words 4 to 9: the translation is backwards, and 9 is left out.
SENTENCES = [[4, 5, 6], [7, 4], [8, 9, 5, 4], [6], [5, 7, 9, 8, 6], [9, 4, 4]]
PAIRS = [(s, [word for word in reversed(s) if word != 9]) for s in SENTENCES]


def batch_of(pairs: Sequence[tuple[list[int], list[int]]]) -> Batch:
    return collate([(np.array(s, np.int64), np.array(t, np.int64)) for s, t in pairs])


def learn(model: Transformer, batches: list[Batch], epochs: int) -> list[float]:
    """Adam on the cost -sum ln p per token; gives the cost of every epoch."""
    adam, costs = torch.optim.Adam(model.parameters(), lr=5e-3), []
    for _ in range(epochs):
        costs.append(0.0)
        for batch in batches:
            hidden = model(batch.src, batch.tgt_in, batch.src_mask).flatten(0, 1)[
                batch.tgt_positions
            ]
            output = model.output
            cost = smoothed_cross_entropy(hidden, output.weight, output.bias, batch.tgt_out, 0.0)
            adam.zero_grad()
            (cost.smoothed / batch.n_tgt).backward()
            adam.step()
            costs[-1] += cost.nll.item()
    return costs


def one_sentence(words: list[int]) -> tuple[Tensor, Tensor]:
    """src (1, S) with its end token, and a mask with no padding."""
    src = torch.tensor([[*words, EOS]])
    return src, torch.ones_like(src, dtype=torch.bool)


def a_batch(words: int = 12) -> tuple[Tensor, Tensor, Tensor]:
    """src (2, 6) of 6 and 3 tokens, tgt_in (2, 5) of 5 and 2, src_mask (2, 6)."""
    generator = torch.Generator().manual_seed(2)
    src = torch.randint(4, words, (2, 6), generator=generator)
    tgt_in = torch.randint(4, words, (2, 5), generator=generator)
    src_mask = torch.arange(6) < torch.tensor([[6], [3]])
    return src * src_mask, tgt_in * (torch.arange(5) < torch.tensor([[5], [2]])), src_mask
