"""Dropout of attention weights, inside the feed-forward, and of whole source words."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from mt.config.schema import ModelConfig
from mt.data.tokens.tokenizer import EOS
from mt.model.attention import attend, attention_bias, causal_mask
from mt.model.transformer import Dropout, FeedForward, Transformer

SMALL: dict[str, Any] = {"d_model": 12, "n_heads": 3, "d_ff": 20, "max_positions": 16}
SMALL |= {"n_encoder_layers": 2, "n_decoder_layers": 2, "dropout": 0.0}
ALL_ON = {"dropout": 0.5, "attention_dropout": 0.5, "activation_dropout": 0.3}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])


def build(**options: Any) -> Transformer:
    torch.manual_seed(1)
    return Transformer(ModelConfig(**{**SMALL, **options}), 13, 11, joint=False)


def batch() -> tuple[Tensor, Tensor, Tensor]:
    """src (3, 6) with eos at the ends, tgt_in (3, 5), src_mask (3, 6)."""
    src = torch.tensor([[4, 5, 6, 7, 8, EOS], [9, 10, 4, EOS, 0, 0], [EOS, 0, 0, 0, 0, 0]])
    generator = torch.Generator().manual_seed(2)
    return src, torch.randint(4, 11, (3, 5), generator=generator), src != 0


def scores(model: Transformer, seed: int = 3) -> Tensor:
    torch.manual_seed(seed)
    out: Tensor = model.output(model(*batch()))
    return out


def random_attention(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k and v (2, 3, 5, 4), and a causal bias (5, 5), so that some weights are exactly 0."""
    torch.manual_seed(4)
    q, k, v = (torch.randn(2, 3, 5, 4, dtype=dtype) for _ in range(3))
    return q, k, v, attention_bias(causal_mask(5, q.device), dtype)


def seeded(*inputs: Any, seed: int = 5) -> Tensor:
    torch.manual_seed(seed)
    return attend(*inputs)


def used_weights(q: Tensor, k: Tensor, bias: Tensor | None, p: float) -> Tensor:
    """What the values are multiplied by (B, H, T, S), seen by values that are the identity."""
    eye = torch.eye(k.shape[2], dtype=k.dtype).expand(*k.shape[:2], -1, -1)
    return seeded(q, k, eye, bias, p)


# --- attention weights ------------------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize("p", [0.004, 0.1, 0.5, 0.9])
def test_attention_weights_are_dropped_with_probability_p_and_the_rest_scaled(
    p: float, dtype: torch.dtype
) -> None:
    """With equal scores each weight 1/S becomes 0 or 1 / (S (1 - q)), q = round(256 p) / 256.

    Of n = 131,072 weights the share of zeros is q within 5 standard errors, also by column, head
    and sentence; then the mean is 1/S within the same error.
    """
    alike, n, share = torch.zeros(8, 4, 64, 8, dtype=dtype), 131_072, round(256 * p) / 256
    weights = used_weights(alike, alike, None, p).double()
    assert weights.numel() == n
    error = 5 * math.sqrt(share * (1 - share))
    zero = (weights == 0).double()
    assert (zero.mean() - share).abs() < error / math.sqrt(n)
    for dim in range(4):
        means = zero.transpose(0, dim).flatten(1).mean(1)
        assert (means - share).abs().max() < error / math.sqrt(n / len(means))
    kept = weights[weights != 0].unique()
    assert len(kept) == 1
    assert kept.item() * 64 * (1 - share) == pytest.approx(1, rel=1e-6)
    assert (weights.mean() * 64 - 1).abs() < error / math.sqrt(n) / (1 - share)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_gradient_of_attention_dropout_is_that_of_plain_autograd(p: float, masked: bool) -> None:
    """The formula in float64, by autograd, with the mask that the forward pass has used."""
    q, k, v, causal = random_attention()
    bias = causal if masked else None
    plain = ((q @ k.transpose(-2, -1)) / 2 + (0 if bias is None else bias)).softmax(-1)
    mask = (used_weights(q, k, bias, p) / plain).nan_to_num(0.0)
    drawn = mask[plain > 0]
    assert set((drawn * (1 - round(256 * p) / 256)).round(decimals=12).tolist()) == {0.0, 1.0}
    found = []
    upstream = torch.randn(2, 3, 5, 4, dtype=torch.float64)
    for ours in (True, False):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        if ours:
            out = seeded(*leaves, bias, p)
        else:
            score = (leaves[0] @ leaves[1].transpose(-2, -1)) / 2 + (0 if bias is None else bias)
            out = (score.softmax(-1) * mask) @ leaves[2]
        found.append((out.detach(), *torch.autograd.grad(out, leaves, upstream)))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-13)


def test_without_attention_dropout_nothing_is_drawn() -> None:
    q, k, v, bias = random_attention()
    state = torch.get_rng_state()
    out = attend(q, k, v, bias, 0.0)
    model = build(attention_dropout=0.5).eval()
    torch.set_rng_state(state)
    model(*batch())
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(out, attend(q, k, v, bias))
    torch.testing.assert_close(
        out, (q @ k.transpose(-2, -1) / 2 + bias).softmax(-1) @ v, rtol=0, atol=1e-14
    )


def test_every_attention_of_the_model_drops(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 of the encoder, 2 x 2 of the decoder; only in training."""
    seen: list[float] = []

    def note(*inputs: Any) -> Tensor:
        seen.append(inputs[4])
        return attend(*inputs)

    monkeypatch.setattr("mt.model.transformer.attend", note)
    model = build(attention_dropout=0.2)
    model.train()(*batch())
    model.eval()(*batch())
    assert seen == [0.2] * 6 + [0.0] * 6


# --- inside the feed-forward ------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_activation_dropout_of_null_is_dropout(activation: str) -> None:
    """The same draws in the same order, bit for bit; a number of its own is another."""
    one, same, other = (
        build(dropout=0.3, activation=activation, **more).train()
        for more in ({}, {"activation_dropout": 0.3}, {"activation_dropout": 0.0})
    )
    assert torch.equal(scores(one), scores(same))
    assert not torch.equal(scores(one), scores(other))
    places = {
        name: m.p
        for name, m in other.named_modules()
        if isinstance(m, Dropout) and "word" not in name
    }
    assert {p for name, p in places.items() if ".feed_forward." in name} == {0.0}
    assert {p for name, p in places.items() if ".feed_forward." not in name} == {0.3}


@pytest.mark.parametrize(("own", "expected"), [(None, 0.25), (0.5, 0.5), (0.0, 0.0)])
def test_feed_forward_drops_between_its_products(own: float | None, expected: float) -> None:
    torch.manual_seed(7)
    config = ModelConfig(**SMALL | {"dropout": 0.25, "activation_dropout": own})
    block, x = FeedForward(config), torch.randn(2, 3, 12)
    torch.manual_seed(8)
    out = block(x)
    torch.manual_seed(8)
    assert torch.equal(out, block.outer(Dropout(expected)(block.inner(x).relu())))


# --- all of them ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("key", ALL_ON)
def test_each_acts_in_training_and_repeats_with_the_seed(key: str, dtype: torch.dtype) -> None:
    plain = build(activation_dropout=0.0)
    model = build(**{"activation_dropout": 0.0, key: ALL_ON[key]})
    plain.compute_dtype = model.compute_dtype = dtype
    assert torch.equal(scores(model.train()), scores(model))
    assert not torch.equal(scores(model), scores(model, seed=4))
    state = torch.get_rng_state()
    for without in (plain.eval(), plain.train()):
        assert torch.equal(scores(model.eval()), scores(without))
    torch.set_rng_state(state)
    model.output(model(*batch()))
    assert torch.equal(torch.get_rng_state(), state)
    assert plain.state_dict().keys() == model.state_dict().keys()
