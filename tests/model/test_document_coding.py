"""`transformer-coding-details.txt`, shown on the model that its config builds.

Pre-norm with a last norm, biases everywhere, three matrices of words, nothing tied.
Where the document errs, the tests show what is right beside what the error gives.
"""

from __future__ import annotations

import math
from functools import partial
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
    close_to_float32,
    learn,
    one_sentence,
    record_attention,
)
from torch import Tensor, nn

from mt.config.schema import ModelConfig
from mt.data.tokens.tokenizer import BOS, EOS, PAD
from mt.inspect.summary import summarise
from mt.model import cpu_ops, transformer
from mt.model.attention import attention_bias, attention_weights, causal_mask
from mt.model.transformer import Transformer

CODING: dict[str, Any] = {
    "norm": "pre",
    "tie_embeddings": False,
    "attention_bias": True,
    "output_bias": True,
}


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> list[Attention]:
    """Every use of attention, in the order of the forward pass."""
    return record_attention(monkeypatch)


def test_embedding_and_positions() -> None:
    """Rows times sqrt(d), plus sine and cosine by its double loop, not learned.

    The table reaches up to the longest sentence of the batch. Its exp(-2i ln 10000 / d) is
    10000^(-2i/d); the line between errs.
    """
    model, (src, _, _) = build({**CODING, **NARROW}), a_batch()
    d, table = 16, torch.zeros(64, 16)
    for position in range(64):
        for i in range(0, d, 2):
            theta = position * math.exp(-i * math.log(10000) / d)
            table[position, i], table[position, i + 1] = math.sin(theta), math.cos(theta)
    out = model.src_embedding(src, torch.float64)
    assert out.shape == (2, 6, d)
    close_to_float32(out, 4 * model.src_embedding.tokens.weight[src] + table[:6])
    assert not [name for name, _ in model.named_parameters() if "positions" in name]
    assert abs(math.exp(math.log(10000) ** (-2 / d)) - 10000 ** (-2 / d)) > 1


def test_attention_scaled_and_masked_before_the_softmax() -> None:
    """softmax(mask(q k^T / sqrt(d_head), -1e9)) v; masked keys get exactly 0.

    Its text errs in naming the width of the embedding, sqrt(512); its code takes that of the head.
    """
    q, k, v = (torch.randn(2, 8, n, 64).double() for n in (5, 6, 6))  # not square
    mask = (torch.arange(6) < torch.tensor([[6], [3]]))[:, None, None, :]
    scores = (q @ k.transpose(2, 3) / 64**0.5).masked_fill(~mask, -1e9)
    weights = attention_weights(q, k, attention_bias(mask, q.dtype))
    close(weights, scores.softmax(-1))
    assert (weights[1, :, :, 3:] == 0.0).all()
    assert (scores.softmax(-1)[1, :, :, 3:] == 0.0).all()
    close(cpu_ops.attend(q, k, v, attention_bias(mask, q.dtype)), scores.softmax(-1) @ v)
    wrong = (q @ k.transpose(2, 3) / 512**0.5).masked_fill(~mask, -1e9).softmax(-1)
    assert (wrong - weights).abs().max() > 0.05


def test_masks() -> None:
    """A padding mask, and a subsequent mask of ones on and below the diagonal.

    It masks the target's padding too, which changes nothing: real positions see earlier ones only.
    """
    rows = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert causal_mask(5, torch.device("cpu")).int().tolist() == rows
    batch = batch_of([([4, 5, 6, 7], [4, 5, 6, 7]), ([8], [9])])
    assert batch.src_mask.int().tolist() == [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]
    model = build({**CODING, **NARROW, **ONE_LAYER})
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


def test_multi_head_attention(spy: list[Attention]) -> None:
    """Four linear layers of 512 with biases, (B, T, 512) to (B, 8, T, 64) and back."""
    attention = build({**CODING, **ONE_LAYER}).decoder[0].cross_attention
    x, y = torch.randn(2, 5, 512).double(), torch.randn(2, 6, 512).double()
    out = attention(x, None, y)
    weights, biases = (
        attention.query_key_value.weight.chunk(3),
        attention.query_key_value.bias.chunk(3),
    )
    parts = zip((x, y, y), weights, biases, strict=True)
    q, k, v = (F.linear(*part).view(2, -1, 8, 64).transpose(1, 2) for part in parts)
    close((spy[0].q, spy[0].k, spy[0].v), (q, k, v))
    assert (q.shape, k.shape, spy[0].weights.shape) == ((2, 8, 5, 64), (2, 8, 6, 64), (2, 8, 5, 6))
    joined = (
        ((q @ k.transpose(2, 3) / 8).softmax(-1) @ v).transpose(1, 2).contiguous().view(2, -1, 512)
    )
    close(out, attention.output(joined))


def test_feed_forward_works_on_each_position_alone() -> None:
    """512 to 2048 to 512 with a ReLU, position by position."""
    feed_forward, x = (
        build({**CODING, **ONE_LAYER}).encoder[0].feed_forward,
        torch.randn(2, 3, 512).double(),
    )
    assert (feed_forward.inner.out_features, feed_forward.outer.out_features) == (2048, 512)
    one_by_one = [[feed_forward(row[None, None])[0, 0] for row in sentence] for sentence in x]
    close(feed_forward(x), torch.stack([torch.stack(rows) for rows in one_by_one]))
    close(
        feed_forward.inner(x).relu() @ feed_forward.outer.weight.t() + feed_forward.outer.bias,
        feed_forward(x),
    )


def test_blocks_norm_before_and_once_more_at_the_end() -> None:
    """x + f(LN(x)) for two sub-layers in the encoder and three in the decoder.

    A last norm follows on each side, then the projection with a bias.
    """
    model, (src, tgt_in, src_mask) = build({**CODING, **NARROW, **ONE_LAYER}), a_batch()
    src_bias = attention_bias(src_mask, torch.float64)[:, None, None]
    tgt_bias = attention_bias(causal_mask(5, src.device), torch.float64)

    def norm(x: Tensor, module: Any) -> Tensor:
        return F.layer_norm(x, (16,), module.weight, module.bias)

    block, x = model.encoder[0], model.src_embedding(src, torch.float64)
    x = x + block.attention(norm(x, block.around_attention.norm), src_bias)
    x = norm(x + block.feed_forward(norm(x, block.around_feed_forward.norm)), model.encoder_norm)
    block, y = model.decoder[0], model.tgt_embedding(tgt_in, torch.float64)
    y = y + block.self_attention(norm(y, block.around_self_attention.norm), tgt_bias)
    y = y + block.cross_attention(norm(y, block.around_cross_attention.norm), src_bias, x)
    y = norm(y + block.feed_forward(norm(y, block.around_feed_forward.norm)), model.decoder_norm)
    close(model.encode(src, src_mask), x)
    close(
        model.output(model(src, tgt_in, src_mask)), y @ model.output.weight.t() + model.output.bias
    )


def test_places_of_dropout(spy: list[Attention]) -> None:
    """Dropout of embeddings plus positions, of each sub-layer's output, and in the feed-forward.

    Attention weights are not dropped.
    """
    model, (src, tgt_in, src_mask) = (
        build({**CODING, **NARROW, **ONE_LAYER}, dropout=0.5).train(),
        a_batch(),
    )
    seen: dict[str, Tensor] = {}
    given: dict[str, Tensor] = {}
    dropouts = {
        name: one for name, one in model.named_modules() if isinstance(one, transformer.Dropout)
    }
    for name, module in dropouts.items():
        module.register_forward_hook(lambda _m, x, _y, name=name: seen.update({name: x[0]}))
        module.register_forward_hook(lambda _m, _x, y, name=name: given.update({name: y}))
    model(src, tgt_in, src_mask)
    encoder = ["around_attention", "around_feed_forward", "feed_forward"]
    decoder = [
        "around_self_attention",
        "around_cross_attention",
        "around_feed_forward",
        "feed_forward",
    ]
    places = [f"encoder.0.{x}" for x in encoder] + [f"decoder.0.{x}" for x in decoder]
    assert set(seen) == {f"{x}.dropout" for x in [*places, "src_embedding", "tgt_embedding"]}
    assert all(
        (x == 0).double().mean() < 0.01 for n, x in seen.items() if ".feed_forward." not in n
    )
    assert (given["encoder.0.feed_forward.dropout"] >= 0).all()  # after the ReLU
    assert seen["encoder.0.feed_forward.dropout"].shape[-1] == 24
    close(seen["src_embedding.dropout"], model.eval().src_embedding(src, torch.float64))
    assert all(torch.allclose(call.weights.sum(-1), torch.ones(()).double()) for call in spy)
    for around in (model.encoder[0].around_attention, model.encoder[0].around_feed_forward):
        around.dropout = nn.Threshold(math.inf, 0.0)  # drops all: only the sum's other side is left
    x = torch.randn(1, 3, 16).double()
    assert torch.equal(model.encoder[0](x, model.encoder[0].attention), x)


def test_xavier() -> None:
    """Xavier-uniform matrices, each of the four of an attention on its own.

    It does so for word embeddings too: times sqrt(512) their standard deviation would be 0.31,
    below the 0.71 of the positions. Ours are N(0, 1/d) as in other implementations, which gives 1.
    """
    model = Transformer(ModelConfig(**{**CODING, **ONE_LAYER}), 10_000, 10_000, joint=False)
    bounds = {
        "output.weight": math.sqrt(6 / (512 + 10_000)),
        "feed_forward": math.sqrt(6 / (512 + 2048)),
    }
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and "embedding" not in name:
            bound = (
                bounds.get(name)
                or bounds["feed_forward" if "feed_forward" in name else "output.weight"]
            )
            bound = math.sqrt(6 / 1024) if "attention" in name else bound
            assert 0.99 * bound < parameter.abs().max() <= bound, name
            assert parameter.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.01), name
    deviation = model.src_embedding.tokens.weight.detach().std().item()
    assert deviation * math.sqrt(512) == pytest.approx(1, rel=0.01)
    assert math.sqrt(512) * math.sqrt(2 / (512 + 10_000)) == pytest.approx(0.31, abs=0.005)
    assert model.src_embedding.positions.square().mean().sqrt() == pytest.approx(0.71, abs=0.005)


def test_number_of_parameters() -> None:
    """The modules of its base model, 8,000 and 6,000 words, added up by hand."""

    def linear(inputs: int, outputs: int) -> int:
        return inputs * outputs + outputs

    attention, norm = 4 * linear(512, 512), 2 * 512
    feed_forward = linear(512, 2048) + linear(2048, 512)
    blocks = 6 * (attention + feed_forward + 2 * norm) + 6 * (
        2 * attention + feed_forward + 3 * norm
    )
    total = 8000 * 512 + 6000 * 512 + blocks + 2 * norm + linear(512, 6000)
    assert summarise(ModelConfig(**CODING), 8000, 6000, joint=False).total == total


def test_greedy_translator_and_error_of_no_cache() -> None:
    """Encode once; append the most probable token until it is the end token.

    The most probable token has the highest score, softmax or not. Without a cache t words cost
    t(t + 1) / 2 positions of the decoder. Earlier rows do not change, so a cache can keep them.
    """
    model = build({**CODING, **NARROW}, **ONE_LAYER).float().train()
    assert (costs := learn(model, [batch_of(PAIRS)], epochs=120))[-1] < 0.05 * costs[0]
    model.eval()
    for source, target in PAIRS:
        src, mask = one_sentence(source)
        features, y, rows, work = (
            model.encode(src, mask),
            torch.tensor([[BOS]]),
            torch.zeros(1, 0, 16),
            0,
        )
        for _ in range(10):
            hidden, work = model.decode(y, features, mask), work + y.shape[1]
            torch.testing.assert_close(hidden[:, :-1], rows, rtol=0, atol=1e-5)
            scores, rows = model.output(hidden[:, -1]), hidden
            token = scores.argmax(dim=-1, keepdim=True)
            assert token == scores.softmax(-1).argmax(dim=-1, keepdim=True)
            if token.item() == EOS:
                break
            y = torch.cat([y, token], dim=1)
        assert y[0, 1:].tolist() == target
        assert work == len(y[0]) * (len(y[0]) + 1) // 2


def test_error_max_positions_is_a_hard_limit() -> None:
    """The document errs: its table of positions is saved, which fixes the length for good.

    Ours is not saved: the same weights work with a longer table.
    """
    model, (src, tgt_in, src_mask) = build({**CODING, **NARROW}, max_positions=6), a_batch()
    longer = build({**CODING, **NARROW}, max_positions=500)
    longer.load_state_dict(model.state_dict())
    close(longer(src, tgt_in, src_mask), model(src, tgt_in, src_mask))
    src, mask = one_sentence([4] * 399)
    assert longer.encode(src, mask).isfinite().all()
    for each in (model, longer):
        each.src_embedding.register_buffer(
            "positions", each.src_embedding.positions, persistent=True
        )
    with pytest.raises(RuntimeError, match=r"size mismatch for src_embedding\.positions"):
        longer.load_state_dict(model.state_dict())
