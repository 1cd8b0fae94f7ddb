"""`details-of-the-transformer-model.txt`, shown on the model that its config builds.

The encoder from ids to the output of its first layer. Nothing it says decides post- or pre-norm.
Where the document errs, the tests show what is right beside what the error gives.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from document_models import (
    ONE_LAYER,
    Attention,
    batch_of,
    build,
    close,
    record_attention,
)

from mt.data.tokens.tokenizer import EOS, PAD

DETAILS: dict[str, Any] = {"norm": "post", "attention_bias": False, **ONE_LAYER}


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> list[Attention]:
    """Every use of attention, in the order of the forward pass."""
    return record_attention(monkeypatch)


def test_shapes_padding_and_mask(spy: list[Attention]) -> None:
    """X (d_B, d_S) is padded to the longest of the batch, and embedded (d_B, d_S, d_E).

    Q, K, V are (d_B, h, d_S, d_k), S is (d_B, h, d_S, d_S) with minus infinity at PAD.
    """
    batch = batch_of([([4, 5, 6, 7], [4]), ([8], [9]), ([5, 6], [9])])
    x, model = batch.src, build(DETAILS)
    assert x.tolist() == [[4, 5, 6, 7, EOS], [8, EOS, PAD, PAD, PAD], [5, 6, EOS, PAD, PAD]]
    embedded = model.src_embedding(x, torch.float64)
    assert embedded.shape == (3, 5, 512)
    assert model.encode(x, batch.src_mask).shape == (3, 5, 512)
    (call,), weight = spy, model.encoder[0].attention.query_key_value.weight
    for ours, w in zip((call.q, call.k, call.v), weight.chunk(3), strict=True):
        assert w.shape == (512, 512)
        close(ours, (embedded @ w.t()).view(3, -1, 8, 64).transpose(1, 2))
        assert ours.shape == (3, 8, 5, 64)
    s = (call.q @ call.k.transpose(-2, -1)).masked_fill((x == PAD).view(3, 1, 1, 5), -math.inf)
    assert s.shape == call.weights.shape == (3, 8, 5, 5)
    close(call.weights, (s / 64**0.5).softmax(-1))
    assert (call.weights[1, :, :, 2:] == 0.0).all()
    # An error: the division after the softmax, and by sqrt(d_E). Rows would add up to 1 / 22.6.
    wrong = s.softmax(-1) / 512**0.5
    close(wrong.sum(-1) * 512**0.5, torch.ones(3, 8, 5).double())
    close(call.weights.sum(-1), torch.ones(3, 8, 5).double())
    assert (wrong * 512**0.5 - call.weights).abs().max() > 0.1  # nor would scaling them up mend it


def test_error_heads_flattened_without_transposing_back(spy: list[Attention]) -> None:
    """The document errs: (d_B, h, d_S, d_k) viewed as (d_B, d_S, h d_k) mixes words and heads.

    Transposed first, row i holds the eight heads of word i.
    """
    attention, x = build(DETAILS).encoder[0].attention, torch.randn(2, 5, 512).double()
    out = attention(x, None)
    heads = spy[0].out
    joined = heads.transpose(1, 2).flatten(2)
    close(joined[1, 3], torch.cat([heads[1, h, 3] for h in range(8)]))
    close(out, attention.output(joined))
    wrong = heads.contiguous().view(2, -1, 8 * 64)
    assert (wrong[0, 0, 64:128] - heads[0, 0, 1]).abs().max() < 1e-12  # word 1 in the row of word 0
    assert (attention.output(wrong) - out).abs().max() > 0.01


def test_error_stops_at_the_encoder() -> None:
    """The document errs: attention and one linear layer, "basically it".

    Ours adds W^O, the residual sums, the norms, a second linear layer and a decoder. Without the
    sums the output is another one.
    """
    model, x = build(DETAILS), torch.randn(1, 4, 512).double()
    layer = model.encoder[0]
    z = layer.around_attention.norm(x + layer.attention(x, None))
    close(layer(x, layer.attention), layer.around_feed_forward.norm(z + layer.feed_forward(z)))
    without_sums = layer.feed_forward(layer.attention(x, None))
    assert (without_sums - layer(x, layer.attention)).abs().max() > 1
    assert len(model.decoder) == 1
