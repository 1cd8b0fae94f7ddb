"""`transformer-slides.txt`, shown on the model that its config builds.

The paper's base model seen from outside: 6 + 6 layers, 8 heads of 64.
Where the document errs, the tests show what is right beside what the error gives.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from document_models import (
    NARROW,
    ONE_LAYER,
    PAIRS,
    Attention,
    a_batch,
    batch_of,
    build,
    close,
    learn,
    one_sentence,
    record_attention,
)
from torch import nn

from mt.config.schema import ModelConfig
from mt.data.tokens.tokenizer import BOS, EOS, PAD
from mt.model import cpu_ops, transformer
from mt.model.attention import attention_weights
from mt.model.transformer import Transformer

SLIDES: dict[str, Any] = {"norm": "post", "attention_bias": False}


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> list[Attention]:
    """Every use of attention, in the order of the forward pass."""
    return record_attention(monkeypatch)


def test_stacks() -> None:
    """Six encoders of two sub-layers and six decoders of three, alike except for their weights.

    Vectors of 512, eight heads; words are embedded below the first layer only.
    """
    with torch.device("meta"):
        model = Transformer(ModelConfig(**SLIDES), 50, 50, joint=False)
    assert (len(model.encoder), len(model.decoder)) == (6, 6)
    for stack, parts in (
        (model.encoder, ["attention"]),
        (model.decoder, ["self_attention", "cross_attention"]),
    ):
        shapes = [[(n, p.shape) for n, p in layer.named_parameters()] for layer in stack]
        assert all(other == shapes[0] for other in shapes)
        assert len({id(p) for layer in stack for p in layer.parameters()}) == 6 * len(shapes[0])
        names = [name for name, _ in stack[0].named_children() if not name.startswith("around")]
        assert names == [*parts, "feed_forward"]
        assert not [m for m in stack.modules() if isinstance(m, nn.Embedding)]
        attentions = [m for m in stack.modules() if isinstance(m, transformer.MultiHeadAttention)]
        assert all((m.n_heads, m.output.in_features) == (8, 8 * 64) for m in attentions)


def test_scores_divided_by_8() -> None:
    """Two words, keys of 64: scores 80 and 64, divided by 8, are 10 and 8.

    The softmax gives the first e^2 / (e^2 + 1) = 0.880797 and the second 0.119203; these are their
    shares of the output. Then with matrices: X (2 x 4) times W (4 x 3) is Q (2 x 3), and Z (2 x 3)
    is softmax(Q K^T / sqrt(3)) V.
    """
    q = torch.ones(1, 1, 1, 64).double()
    k = torch.stack([torch.full((64,), 80 / 64), torch.ones(64)]).double()[None, None]
    weights = attention_weights(q, k, None)
    assert weights.flatten().tolist() == pytest.approx([0.880797, 0.119203], abs=1e-6)
    v = torch.tensor([[1.0, 0.0], [0.0, 2.0]]).double()[None, None]
    assert cpu_ops.attend(q, k, v, None).flatten().tolist() == pytest.approx(
        [0.880797, 0.238406], abs=1e-6
    )
    x, *matrices = (torch.randn(shape).double() for shape in ((2, 4), (4, 3), (4, 3), (4, 3)))
    q, k, v = (x @ w for w in matrices)
    assert q.shape == (2, 3)
    s = (q @ k.t() / math.sqrt(3)).exp()
    close(
        cpu_ops.attend(q[None, None], k[None, None], v[None, None], None)[0, 0],
        s / s.sum(1, keepdim=True) @ v,
    )


def test_eight_heads_look_at_different_words(spy: list[Attention]) -> None:
    """Eight attentions with weights of their own give eight Z; side by side, times W^O."""
    model = build(SLIDES, **ONE_LAYER)
    attention, x = model.encoder[0].attention, torch.randn(1, 6, 512).double()
    out = attention(x, None)
    (call,) = spy
    for one in range(8):
        for other in range(one):
            assert (call.weights[0, one] - call.weights[0, other]).abs().max() > 0.02
    z = torch.cat([call.out[0, head] for head in range(8)], dim=1)
    assert z.shape == (6, 8 * 64)
    close(out[0], z @ attention.output.weight.t())


def test_top_encoder_gives_every_decoder_its_keys_and_values(spy: list[Attention]) -> None:
    """K and V of each encoder-decoder attention are made of the top encoder's output."""
    model, (src, tgt_in, src_mask) = build({**SLIDES, **NARROW}), a_batch()
    memory = model.encode(src, src_mask)
    spy.clear()
    model.decode(tgt_in, memory, src_mask)
    for layer, cross in zip(model.decoder, spy[1::2], strict=True):
        _, w_k, w_v = layer.cross_attention.query_key_value.weight.chunk(3)
        close(cross.k.transpose(1, 2).flatten(2), memory @ w_k.t())
        close(cross.v.transpose(1, 2).flatten(2), memory @ w_v.t())
    assert not torch.equal(spy[1].k, spy[3].k)


def test_features() -> None:
    """All positions at once; any two positions one step apart; order only by positions."""
    model, (src, mask) = build({**SLIDES, **NARROW, **ONE_LAYER}), one_sentence([4, 5, 6, 7])
    tgt_in, memory = torch.tensor([[BOS, 7, 6, 5]]), model.encode(src, mask)
    at_once = model.decode(tgt_in, memory, mask)
    for n in range(1, 5):  # what a recurrent network would do one after the other
        close(model.decode(tgt_in[:, :n], memory, mask)[:, -1], at_once[:, n - 1])
    layer, x = model.encoder[0], torch.randn(1, 5, 16).double()
    jacobian = torch.autograd.functional.jacobian(lambda x: layer(x, layer.attention), x)[
        0, :, :, 0
    ]  # (5, 16, 5, 16)
    assert (jacobian.abs().amax(dim=(1, 3)) > 1e-6).all()
    order = [2, 0, 3, 1, 4]
    close(layer(x[:, order], layer.attention), layer(x, layer.attention)[:, order])
    assert not torch.allclose(model.encode(src[:, order], mask), memory[:, order], atol=1e-3)


def test_decoding_until_the_special_symbol(spy: list[Attention]) -> None:
    """Steps repeat until the symbol says that the output is complete.

    It errs in padding inputs to the longest sentence of the training data. Ours are as long as the
    batch, even longer than any in training; attention to 60 instead of 4 positions gives the same
    result for 225 times the work.
    """
    model = build({**SLIDES, **NARROW, **ONE_LAYER}).float().train()
    learn(model, [batch_of(PAIRS)], epochs=120)
    model.eval()
    for source, target in PAIRS:
        src, mask = one_sentence(source)
        memory, output = model.encode(src, mask), [BOS]
        while output[-1] != EOS and len(output) < 12:
            scores = model.output(model.decode(torch.tensor([output]), memory, mask))[0, -1]
            output.append(int(scores.argmax()))
        assert output == [BOS, *target, EOS]
    spy.clear()
    src, mask = one_sentence([4, 5, 6])
    memory = model.encode(src, mask)
    padded = F.pad(src, (0, 56), value=PAD)
    torch.testing.assert_close(
        model.encode(padded, padded != PAD)[:, :4], memory, rtol=0, atol=1e-5
    )
    assert spy[1].weights.numel() == 225 * spy[0].weights.numel()
    longer, mask = one_sentence([4, 5, 6, 7] * 10)  # eight times the longest of training
    assert model.encode(longer, mask).isfinite().all()
