"""Figures of the model worked out by hand: parameters, scores, positions, masks, places of dropout.

The whole forward pass is compared with its formulas in test_model.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mt.config.schema import ModelConfig
from mt.data.tokens.batches import Batch, collate
from mt.data.tokens.tokenizer import PAD
from mt.inspect.summary import summarise
from mt.model import attention
from mt.model.attention import attention_bias, attention_weights, causal_mask
from mt.model.transformer import Dropout, Transformer

close = partial(torch.testing.assert_close, rtol=0, atol=1e-10)
NORMS = pytest.mark.parametrize("norm", ["pre", "post"])


def build(**options: Any) -> Transformer:
    """A narrow model of 12 words in float64, with no bias of 0 and no gain of 1."""
    torch.manual_seed(1)
    sizes = {"d_model": 16, "n_heads": 2, "d_ff": 24, "max_positions": 64, "n_encoder_layers": 1}
    config = ModelConfig(**{**sizes, "n_decoder_layers": 1, "tie_embeddings": False, **options})
    model = Transformer(config, 12, 12, joint=False).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.normal_(mean=float(name.endswith("norm.weight")), std=0.1)
    return model.eval()


def batch_of(*pairs: tuple[list[int], list[int]]) -> Batch:
    return collate([(np.array(src, np.int64), np.array(tgt, np.int64)) for src, tgt in pairs])


# --- parameters -------------------------------------------------------------------------------


HEADS = 8 * 3 * 512 * 64 + 8 * 64 * 512  # W^Q, W^K and W^V of 8 heads, and W^O
NORM = 2 * 512  # a gain and a shift
FFN = 512 * 2048 + 2048 + 2048 * 512 + 512


@pytest.mark.parametrize(
    ("options", "words", "by_hand"),
    [
        # One layer a side, d_ff 1024: three attentions, two feed-forwards, five norms, and three
        # matrices of words.
        (
            {"n_encoder_layers": 1, "n_decoder_layers": 1, "d_ff": 1024, "norm": "post"},
            (10_000, 10_000),
            3 * HEADS + 2 * (512 * 1024 + 1024 + 1024 * 512 + 512) + 5 * NORM + 3 * 10_000 * 512,
        ),
        # The paper's base model without tied matrices, and with biases of the projections.
        (
            {"norm": "post"},
            (37_000, 37_000),
            6 * (3 * HEADS + 2 * FFN + 5 * NORM) + 3 * 37_000 * 512,
        ),
        (
            {"norm": "post", "attention_bias": True},
            (37_000, 37_000),
            6 * (3 * (HEADS + 4 * 512) + 2 * FFN + 5 * NORM) + 3 * 37_000 * 512,
        ),
        # Pre-norm ends each side with a norm; biases everywhere.
        (
            {"attention_bias": True, "output_bias": True},
            (8000, 6000),
            6 * (3 * (HEADS + 4 * 512) + 2 * FFN + 5 * NORM)
            + 2 * NORM
            + (8000 + 2 * 6000) * 512
            + 6000,
        ),
    ],
    ids=["one layer", "untied base", "biased base", "pre-norm"],
)
def test_n_parameters(options: dict[str, Any], words: tuple[int, int], by_hand: int) -> None:
    config = ModelConfig(**{"attention_bias": False, "tie_embeddings": False, **options})
    assert summarise(config, words, joint=False).total == by_hand
    with torch.device("meta"):
        model = Transformer(config, *words, joint=False)
    assert sum(parameter.numel() for parameter in model.parameters()) == by_hand


# --- attention and masks ----------------------------------------------------------------------


def test_scores_of_80_and_64_divided_by_8() -> None:
    """They are 10 and 8: the softmax gives the first e^2 / (e^2 + 1) = 0.880797.

    Dividing by the root of the model's width would give another weight, dividing after the softmax
    rows that do not add up to 1.
    """
    q = torch.ones(1, 1, 1, 64).double()
    k = torch.stack([torch.full((64,), 80 / 64), torch.ones(64)]).double()[None, None]
    v = torch.tensor([[1.0, 0.0], [0.0, 2.0]]).double()[None, None]
    weights = attention_weights(q, k, None).flatten().tolist()
    assert weights == pytest.approx([0.880797, 0.119203], abs=1e-6)
    out = attention.attend(q, k, v, None).flatten().tolist()
    assert out == pytest.approx([0.880797, 0.238406], abs=1e-6)
    hidden = attention_bias(torch.tensor([True, False]), q.dtype)
    assert attention_weights(q, k, hidden).flatten().tolist() == [1.0, 0.0]


def test_masks_of_a_batch() -> None:
    """Ones on and below the diagonal; padding of the target needs no mask of its own."""
    rows = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert causal_mask(5, torch.device("cpu")).int().tolist() == rows
    batch = batch_of(([4, 5, 6, 7], [4, 5, 6, 7]), ([8], [9]))
    assert batch.src_mask.int().tolist() == [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]
    model = build()
    memory, real = model.encode(batch.src, batch.src_mask), batch.tgt_in != PAD
    both = attention_bias((real[:, None, :] & torch.tensor(rows).bool())[:, None], memory.dtype)
    src_bias = attention_bias(batch.src_mask, memory.dtype)[:, None, None]
    layer = model.decoder_layers[0]
    x = layer(
        model.tgt_embedding(batch.tgt_in, memory.dtype),
        partial(layer.self_attention, bias=both),
        partial(layer.cross_attention, bias=src_bias, memory=memory),
    )
    hidden = model.decode(batch.tgt_in, memory, batch.src_mask)
    close(model.decoder_norm(x)[real], hidden[real])
    assert not torch.equal(model.decoder_norm(x), hidden)


# --- positions --------------------------------------------------------------------------------


def test_word_and_position_are_added_before_they_are_rounded() -> None:
    embedding = build().float().src_embedding
    words, positions = 4 * embedding.tokens.weight[4:], embedding.positions[:8]
    found = embedding(torch.arange(4, 12)[None], torch.bfloat16)[0]
    assert torch.equal(found, (words + positions).bfloat16())
    assert not torch.equal(found, words.bfloat16() + positions.bfloat16())


def test_the_same_weights_work_with_more_positions() -> None:
    """Sinusoids are not saved."""
    model, longer = build(max_positions=6), build(max_positions=500)
    longer.load_state_dict(model.state_dict())
    batch = batch_of(([4, 5, 6], [7, 8]))
    inputs = batch.src, batch.tgt_in, batch.src_mask
    close(longer(*inputs), model(*inputs))
    src = torch.full((1, 400), 4)
    assert longer.encode(src, src != PAD).isfinite().all()


# --- dropout ----------------------------------------------------------------------------------


@NORMS
def test_places_of_dropout(norm: str) -> None:
    """On embeddings plus positions, on each sub-layer's output, and after the ReLU."""
    model, batch = build(norm=norm, dropout=0.5).train(), batch_of(([4, 5, 6], [7, 8]), ([9], [4]))
    seen: dict[str, tuple[Tensor, Tensor]] = {}  # input and output, by place

    def note(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        seen[names[module]] = inputs[0].clone(), output

    names: dict[nn.Module, str] = {}
    names |= {m: n for n, m in model.named_modules() if isinstance(m, Dropout)}
    for module in names:
        module.register_forward_hook(note)
    model(batch.src, batch.tgt_in, batch.src_mask)
    encoder = ["around_attention", "around_feed_forward", "feed_forward"]
    decoder = ["around_self_attention", "around_cross_attention", *encoder[1:]]
    places = [f"encoder.0.{x}" for x in encoder] + [f"decoder.0.{x}" for x in decoder]
    assert set(seen) == {f"{x}.dropout" for x in [*places, "src_embedding", "tgt_embedding"]}
    for place, (given, dropped) in seen.items():
        if ".feed_forward." in place:  # it reads the inner layer before the ReLU
            assert (given.shape[-1], bool((dropped >= 0).all())) == (24, True)
        else:
            assert (given == 0).double().mean() < 0.01
            close(dropped[dropped != 0], 2 * given[dropped != 0])
    embedded = model.eval().src_embedding(batch.src, torch.float64)
    close(seen["src_embedding.dropout"][0], embedded)
    layer: Any = model.encoder[0]
    x = torch.randn(1, 3, 16).double()
    for around in (layer.around_attention, layer.around_feed_forward):
        around.dropout = nn.Threshold(math.inf, 0.0)  # drops all: only the sum's other side is left
    norms = layer.around_attention.norm, layer.around_feed_forward.norm
    left = x if norm == "pre" else norms[1](norms[0](x))
    assert torch.equal(layer(x, layer.attention), left)


# --- all of it --------------------------------------------------------------------------------
