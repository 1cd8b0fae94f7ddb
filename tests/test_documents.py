"""The five documents that `mt` implements, each shown on the model that its config builds.

A section per document, named by its file: what it states about shapes, counts, formulas, masks,
costs and inference. Where a document slips, the right thing is shown beside what the slip gives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mt.config.schema import ModelConfig
from mt.data.batches import Batch, collate
from mt.data.tokenizer import BOS, EOS, PAD
from mt.model import cpu_ops, transformer
from mt.model.attention import attention_bias, attention_weights, causal_mask
from mt.model.summary import summarise
from mt.model.transformer import Transformer
from mt.training.loss import smoothed_cross_entropy

close = partial(torch.testing.assert_close, rtol=0, atol=1e-10)
close_to_float32 = partial(torch.testing.assert_close, rtol=0, atol=2e-7, check_dtype=False)
ONE_LAYER = {"n_encoder_layers": 1, "n_decoder_layers": 1}
NARROW = {"d_model": 16, "n_heads": 2, "d_ff": 24, "max_positions": 64}


def build(system: dict[str, Any], words: int = 12, **changes: Any) -> Transformer:
    """The system of a document in float64, gains and biases moved from 1 and 0 so that they count."""
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


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> list[Attention]:
    """Every use of attention, in the order of the forward pass."""
    calls: list[Attention] = []
    matrices: list[Tensor] = []
    weigh, attend = cpu_ops.attention_weights, cpu_ops.attend

    def weigh_and_note(q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
        matrices.append(weigh(q, k, bias))
        return matrices[-1]

    def attend_and_note(
        q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: float
    ) -> Tensor:
        out = attend(q, k, v, bias, dropout)
        calls.append(Attention(q, k, v, matrices[-1], out))
        return out

    monkeypatch.setattr(cpu_ops, "attention_weights", weigh_and_note)
    monkeypatch.setattr(transformer, "attend", attend_and_note)
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


# === attention-and-transformers-background.txt ================================================
# Post-norm, d_ff 1024, no biases in attention, two vocabularies of 10,000 words with nothing tied.

BACKGROUND: dict[str, Any] = {"d_ff": 1024, "norm": "post", "dropout": 0.0, "attention_bias": False}
BACKGROUND |= {"tie_embeddings": False, **ONE_LAYER}


def test_background_shapes_and_number_of_parameters() -> None:
    """attention-and-transformers-background.txt: the matrices of one layer each side, by hand.

    8 heads of three 512 x 64 matrices, W_1 512 x 1024, b_1, W_2 1024 x 512, b_2, a gain and a shift
    per norm, two embeddings of 10000 x 512 and W^O 512 x 10000. W_0 is 512 x 512 (see below).
    """
    with torch.device("meta"):
        model = Transformer(ModelConfig(**BACKGROUND), 10_000, 10_000, joint=False)
    encoder, decoder = model.encoder[0], model.decoder[0]
    for attention in (encoder.attention, decoder.self_attention, decoder.cross_attention):
        for merged in attention.query_key_value.weight.chunk(3):
            assert [tuple(w.shape) for w in merged.t().chunk(8, dim=1)] == [(512, 64)] * 8
        assert attention.output.weight.shape == (512, 512)
        assert attention.query_key_value.bias is attention.output.bias is None
    for feed_forward in (encoder.feed_forward, decoder.feed_forward):
        assert feed_forward.inner.weight.t().shape == (512, 1024)
        assert feed_forward.outer.weight.t().shape == (1024, 512)
    embeddings = [model.src_embedding.tokens.weight, model.tgt_embedding.tokens.weight]
    assert [tuple(w.shape) for w in embeddings] == [(10_000, 512)] * 2
    assert model.output.weight.t().shape == (512, 10_000)
    assert embeddings[0] is not embeddings[1] is not model.output.weight
    by_hand = 3 * (8 * 3 * 512 * 64 + 512 * 512) + 2 * (512 * 1024 + 1024 + 1024 * 512 + 512)
    by_hand += 5 * (512 + 512) + 3 * 10_000 * 512
    assert sum(p.numel() for p in model.parameters()) == by_hand == 20_611_072


def test_background_attention_of_every_head(spy: list[Attention]) -> None:
    """attention-and-transformers-background.txt: q = x W_Q, s_ij = q_i k_j / sqrt(64), softmax by row.

    For three words and the end token, entry by entry; z_i is the sum of p_ij v_j.
    """
    model = build(BACKGROUND)
    x = model.src_embedding(one_sentence([4, 5, 6])[0], torch.float64)[0]  # (n, 512)
    attention = model.encoder[0].attention
    attention(x[None], None)
    merged = [w.t() for w in attention.query_key_value.weight.chunk(3)]  # concat(W_1, ..., W_8)
    for head in range(8):
        q, k, v = (x @ w[:, 64 * head : 64 * head + 64] for w in merged)  # (n, 64)
        close(spy[0].q[0, head], q)
        s = torch.tensor([[q_i.dot(k_j).item() / 8 for k_j in k] for q_i in q]).double()
        p = torch.stack([row.exp() / row.exp().sum() for row in s])
        torch.testing.assert_close(spy[0].weights[0, head], p, rtol=1e-5, atol=1e-7)
        assert (spy[0].weights > 0).all()
        close(spy[0].weights.sum(-1), torch.ones(1, 8, 4).double())
        z = [sum(spy[0].weights[0, head, i, j] * v[j] for j in range(4)) for i in range(4)]
        close(spy[0].out[0, head], torch.stack(z))


def test_background_slip_output_matrix_on_the_wrong_side(spy: list[Attention]) -> None:
    """attention-and-transformers-background.txt slips: an n x n W_0 left of the heads.

    It would fit one sentence length only, and mix the words of a sentence: the first target word
    would see the last. The paper's stands on the right, d x d, and works on each word by itself.
    """
    model = build(BACKGROUND)
    attention, y = model.decoder[0].self_attention, torch.randn(1, 5, 512).double()
    changed = torch.cat([y[:, :4], y[:, 4:] + 1], dim=1)
    bias = attention_bias(causal_mask(5, y.device), y.dtype)
    out, out_changed = (attention(x, bias)[0] for x in (y, changed))
    z, z_changed = (torch.cat([*call.out[0]], dim=-1) for call in spy)  # [Z_1 ... Z_8], (n, 512)
    close(out, z @ attention.output.weight.t())
    assert torch.equal(out[:4], out_changed[:4])
    assert not torch.equal(out[4], out_changed[4])
    w_0 = torch.randn(5, 5).double()
    assert ((w_0 @ z)[0] - (w_0 @ z_changed)[0]).abs().max() > 1e-2
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        w_0 @ z[:4]


def test_background_encoder_layer_and_its_norms(spy: list[Attention]) -> None:
    """attention-and-transformers-background.txt: LN(Z + X), then LN(max(0, Z'W_1 + B_1)W_2 + B_2 + Z').

    It slips in calling the divisor a variance: rows leave a norm with deviation 1 only when it is
    the deviation. It also gives gain and shift one entry per word (n); they have one per component.
    """
    model = build(BACKGROUND)
    layer: Any = model.encoder[0]
    x = 3 * torch.randn(1, 4, 512).double()
    out = layer(x, layer.attention)[0]

    def norm(rows: Tensor, module: Any) -> Tensor:
        mean = rows.mean(dim=1, keepdim=True)
        deviation = ((rows - mean) ** 2).mean(dim=1, keepdim=True).sqrt()
        return (rows - mean) / deviation * module.weight + module.bias

    total = x[0] + torch.cat([*spy[0].out[0]], dim=-1) @ layer.attention.output.weight.t()
    first, second = layer.around_attention.norm, layer.around_feed_forward.norm
    z = norm(total, first)
    inner, outer = layer.feed_forward.inner, layer.feed_forward.outer
    ff = (z @ inner.weight.t() + inner.bias).clamp_min(0) @ outer.weight.t() + outer.bias
    torch.testing.assert_close(out, norm(ff + z, second), rtol=0, atol=1e-4)  # no epsilon there
    assert first.weight.shape == first.bias.shape == (512,)
    nn.init.ones_(first.weight)
    nn.init.zeros_(first.bias)
    normal = first(total)
    close(normal.mean(dim=1), torch.zeros(4).double())
    torch.testing.assert_close(
        normal.std(dim=1, correction=0), torch.ones(4).double(), rtol=1e-5, atol=0
    )
    slipped = (total - total.mean(1, keepdim=True)) / total.var(1, correction=0, keepdim=True)
    assert (slipped.std(dim=1, correction=0) < 0.5).all()


def test_background_causal_mask(spy: list[Attention]) -> None:
    """attention-and-transformers-background.txt: s_ij where j <= i, minus infinity where j > i."""
    model, (src, tgt_in, src_mask) = build(BACKGROUND), a_batch()
    model(src, tgt_in, src_mask)
    _, masked, _ = spy
    s = masked.q @ masked.k.transpose(2, 3) / math.sqrt(64)
    for i in range(5):
        for j in range(5):
            if j > i:
                s[:, :, i, j] = -math.inf
                assert (masked.weights[:, :, i, j] == 0.0).all()
    close(masked.weights, s.exp() / s.exp().sum(-1, keepdim=True))


def test_background_one_hot_embedding_and_added_positions() -> None:
    """attention-and-transformers-background.txt: one-hot row times W_embedded, plus the position.

    It has no factor sqrt(d): its W_embedded is sqrt(512) times the matrix that is stored, free as
    that is of the output matrix. Adding, not concatenating, leaves 512 components.
    """
    model = build(BACKGROUND)
    for side in (model.src_embedding, model.tgt_embedding):
        ids = torch.tensor([[4, 9, EOS]])
        one_hot = F.one_hot(ids[0], 12).double()
        w_embedded = math.sqrt(512) * side.tokens.weight
        close(side(ids, torch.float64)[0], one_hot @ w_embedded + side.positions[:3].double())


def test_background_slip_cosine_first_and_a_frequency_for_every_component() -> None:
    """attention-and-transformers-background.txt slips: cos(k w_1), sin(k w_2), cos(k w_3), ...

    The paper's are sin(k w_0), cos(k w_0), sin(k w_1), ..., two to a frequency; then a step from
    k to k + 1 is one matrix for all k, so counting from 1 (as there) or 0 tells the same. With a
    frequency of its own for each component there is no such matrix.
    """
    model = build(BACKGROUND)
    right, slipped = [], []
    for i in range(256):
        frequency = 10000 ** (-2 * i / 512)
        right += [math.sin(20 * frequency), math.cos(20 * frequency)]
    for i in range(1, 513, 2):
        slipped += [
            math.cos(20 * 10000 ** (-2 * i / 512)),
            math.sin(20 * 10000 ** (-2 * (i + 1) / 512)),
        ]
    close_to_float32(model.src_embedding.positions[20], torch.tensor(right))
    assert (torch.tensor(right) - torch.tensor(slipped)).abs().max() > 1

    def misfit_of_a_step(table: Tensor) -> float:
        step = torch.linalg.lstsq(table[:-1], table[1:]).solution
        return (table[:-1] @ step - table[1:]).abs().max().item()

    k, pair = torch.arange(64.0).double()[:, None], torch.arange(1, 9).double()
    angle = k * 10000 ** (-2 * pair / 8)
    own_frequencies = torch.where(pair % 2 == 1, angle.cos(), angle.sin())
    assert misfit_of_a_step(transformer.sinusoids(64, 8)) < 1e-9
    assert misfit_of_a_step(own_frequencies) > 1e-3


def test_background_decoder_layer(spy: list[Attention]) -> None:
    """attention-and-transformers-background.txt: queries of the decoder, 10 x 512; keys and values of the encoder,
    5 x 512; scores 10 x 5, divided by sqrt(64) in each head; LN of each sum, as in the encoder.

    At its end it lets six queries ask three words only; the end token is a key like any other.
    """
    model, (src, mask) = build(BACKGROUND), one_sentence([4, 5, 6, 7])
    tgt_in = torch.tensor([[BOS, *[4, 5, 6] * 3]])
    memory = model.encode(src, mask)
    assert (tgt_in.shape, memory.shape) == ((1, 10), (1, 5, 512))
    out, (_, masked, cross), layer = model.decode(tgt_in, memory, mask), spy, model.decoder[0]
    y = model.tgt_embedding(tgt_in, torch.float64)
    z = masked.out.transpose(1, 2).flatten(2) @ layer.self_attention.output.weight.t()
    y = layer.around_self_attention.norm(z + y)
    w_q, w_k, w_v = (w.t() for w in layer.cross_attention.query_key_value.weight.chunk(3))
    for ours, by_document in ((cross.q, y @ w_q), (cross.k, memory @ w_k), (cross.v, memory @ w_v)):
        close(ours.transpose(1, 2).flatten(2), by_document)
    close(cross.weights, (cross.q @ cross.k.transpose(2, 3) / 8).softmax(-1))
    assert cross.weights.shape == (1, 8, 10, 5)
    assert (cross.weights[..., 4] > 0).all()
    z = cross.out.transpose(1, 2).flatten(2) @ layer.cross_attention.output.weight.t()
    y = layer.around_cross_attention.norm(z + y)
    close(out, layer.around_feed_forward.norm(layer.feed_forward(y) + y))


def test_background_cost_and_slip_of_the_fixed_length() -> None:
    """attention-and-transformers-background.txt: P = softmax(Z W^O) by row, C = -sum ln p of the right
    words, over 10,000 words.

    It slips in padding every sentence to a fixed n: that adds nothing to the real rows, and a cost
    summed to n, empty words included, depends on n. Ours pads to the longest of the batch.
    """
    model = build({**BACKGROUND, **NARROW}, words=10_000)
    src, mask = one_sentence([400, 500, 600])
    words = [44, 55, 66, 77, 88]
    batch = batch_of([([400, 500, 600], words)])
    assert (batch.src.tolist(), batch.tgt_in.tolist()) == (src.tolist(), [[BOS, *words]])
    hidden = model(src, batch.tgt_in, mask)
    p = (hidden[0] @ model.output.weight.t()).softmax(dim=1)
    assert p.shape == (6, 10_000)
    close(p.sum(dim=1), torch.ones(6).double())
    by_hand = -sum(p[i, word].log().item() for i, word in enumerate([*words, EOS]))
    cost = smoothed_cross_entropy(hidden[0], model.output.weight, None, batch.tgt_out, 0.0)
    assert cost.nll.item() == pytest.approx(by_hand, abs=1e-9)
    costs = []
    for n in (12, 20):
        src_n = F.pad(src, (0, n - 4), value=PAD)
        tgt_n = F.pad(batch.tgt_in, (0, n - 6), value=PAD)
        hidden_n = model(src_n, tgt_n, src_n != PAD)[0]
        close(hidden_n[:6], hidden[0])
        empties = F.pad(batch.tgt_out, (0, n - 6), value=PAD)
        costs.append(smoothed_cross_entropy(hidden_n, model.output.weight, None, empties, 0.0).nll)
    assert by_hand + 10 < costs[0].item() < costs[1].item() - 10


def test_background_a_row_predicts_the_next_word() -> None:
    """attention-and-transformers-background.txt slips: the output's row i is the target's row i.

    The mask lets row i see word i, so that this would be copied; what row i does not see is i + 1.
    """
    model, batch = build({**BACKGROUND, **NARROW}), batch_of([([4, 5], [6, 7, 8])])
    assert batch.tgt_in.tolist() == [[BOS, 6, 7, 8]]
    assert batch.tgt_out.tolist() == [6, 7, 8, EOS]
    hidden = model(batch.src, batch.tgt_in, batch.src_mask)
    for i in range(1, 4):
        changed = batch.tgt_in.clone()
        changed[0, i] = 9
        moved = (model(batch.src, changed, batch.src_mask) - hidden)[0].abs().amax(-1) > 0
        assert not moved[i - 1]
        assert moved[i]


def test_background_training_sentence_by_sentence_and_inference_step_by_step() -> None:
    """attention-and-transformers-background.txt: a sentence is a batch; the whole model runs again for
    every word, on the start word, the words so far and empty words, until the end word is predicted.
    """
    model = build({**BACKGROUND, **NARROW}).float().train()
    costs = learn(model, [batch_of([pair]) for pair in PAIRS], epochs=40)
    assert costs[-1] < 0.05 * costs[0]
    model.eval()
    n = 8
    for source, target in PAIRS:
        src, mask = one_sentence(source)
        y = torch.full((1, n), PAD)
        y[0, 0] = BOS
        for row in range(n - 1):
            p = model.output(model(src, y, mask))[0].softmax(dim=1)
            y[0, row + 1] = p[row].argmax()
            if y[0, row + 1] == EOS:
                break
        assert y[0].tolist() == [BOS, *target, EOS, *[PAD] * (n - len(target) - 2)]


# === transformer-coding-details.txt ===========================================================
# Pre-norm with a last norm, biases everywhere, three matrices of words, nothing tied.

CODING: dict[str, Any] = {
    "norm": "pre",
    "tie_embeddings": False,
    "attention_bias": True,
    "output_bias": True,
}


def test_coding_embedding_and_positions() -> None:
    """transformer-coding-details.txt: rows times sqrt(d), plus sine and cosine by its double loop, up to the
    longest of the batch; not learned. (Its exp(-2i ln 10000 / d) is 10000^(-2i/d); the line between slips.)
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


def test_coding_attention_scaled_and_masked_before_the_softmax() -> None:
    """transformer-coding-details.txt: softmax(mask(q k^T / sqrt(d_head), -1e9)) v; masked ones get exactly 0.

    Its text slips in naming the width of the embedding, sqrt(512); its code takes the head's, sqrt(64).
    """
    q, k, v = (torch.randn(2, 8, n, 64).double() for n in (5, 6, 6))  # not square
    mask = (torch.arange(6) < torch.tensor([[6], [3]]))[:, None, None, :]
    scores = (q @ k.transpose(2, 3) / 64**0.5).masked_fill(~mask, -1e9)
    weights = attention_weights(q, k, attention_bias(mask, q.dtype))
    close(weights, scores.softmax(-1))
    assert (weights[1, :, :, 3:] == 0.0).all()
    assert (scores.softmax(-1)[1, :, :, 3:] == 0.0).all()
    close(cpu_ops.attend(q, k, v, attention_bias(mask, q.dtype)), scores.softmax(-1) @ v)
    slipped = (q @ k.transpose(2, 3) / 512**0.5).masked_fill(~mask, -1e9).softmax(-1)
    assert (slipped - weights).abs().max() > 0.05


def test_coding_masks() -> None:
    """transformer-coding-details.txt: a padding mask, and a subsequent mask of ones on and below the diagonal.

    It joins the target's padding to that; real positions, which see only earlier ones, are the same without.
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


def test_coding_multi_head_attention(spy: list[Attention]) -> None:
    """transformer-coding-details.txt: four linear layers of 512 with biases, (B, T, 512) to (B, 8, T, 64) and back."""
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


def test_coding_feed_forward_works_on_each_position_alone() -> None:
    """transformer-coding-details.txt: 512 to 2048 to 512 with a ReLU, position by position."""
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


def test_coding_blocks_norm_before_and_once_more_at_the_end() -> None:
    """transformer-coding-details.txt: x + f(LN(x)) for two sub-layers of an encoder block and three of a
    decoder block, a last norm on each side, then the projection with a bias.
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


def test_coding_places_of_dropout(spy: list[Attention]) -> None:
    """transformer-coding-details.txt: on the sums of embeddings and positions, on each sub-layer's output before
    it is added, and between the two layers of the feed-forward; none on attention weights.
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


def test_coding_xavier() -> None:
    """transformer-coding-details.txt: Xavier-uniform matrices, each of the four of an attention on its own.

    Its word embeddings too; times sqrt(512) those would have a deviation of 0.31, below the 0.71 of the
    positions. Ours, N(0, 1/d) as other implementations have them, have 1.
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


def test_coding_number_of_parameters() -> None:
    """transformer-coding-details.txt: the modules of its base model, 8,000 and 6,000 words, added up by hand."""

    def linear(inputs: int, outputs: int) -> int:
        return inputs * outputs + outputs

    attention, norm = 4 * linear(512, 512), 2 * 512
    feed_forward = linear(512, 2048) + linear(2048, 512)
    blocks = 6 * (attention + feed_forward + 2 * norm) + 6 * (
        2 * attention + feed_forward + 3 * norm
    )
    total = 8000 * 512 + 6000 * 512 + blocks + 2 * norm + linear(512, 6000)
    assert summarise(ModelConfig(**CODING), 8000, 6000, joint=False).total == total


def test_coding_greedy_translator_and_slip_of_no_cache() -> None:
    """transformer-coding-details.txt: encode once; the most probable token joins the input until it is the end.

    The most probable is that of the highest score, softmax or not. Without a cache t words cost t(t + 1) / 2
    positions of the decoder; the earlier rows come out as they did, so that keeping them is enough.
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


def test_coding_slip_max_positions_is_a_hard_limit() -> None:
    """transformer-coding-details.txt slips: its table of positions is part of the saved weights, so that a model
    keeps the length it was trained with. Ours is not: the same weights go on with a longer one.
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


# === transformers-demystified-1.txt ===========================================================
# The paper's base model: post-norm, no biases in attention. It counts as if nothing were tied.

DEMYSTIFIED: dict[str, Any] = {"norm": "post", "attention_bias": False, "tie_embeddings": False}


def test_demystified_dimensions(spy: list[Attention]) -> None:
    """transformers-demystified-1.txt: T_E 7 and T_D 5 rows of d_m 512 throughout; in a head of d_K = d_V = 64
    A is T x T, A = softmax of A' by row, and T_D x T_E across; Z' is T x h d_V, W^O is h d_V x d_m.
    """
    model = build(DEMYSTIFIED, **ONE_LAYER)
    src, mask = one_sentence([4] * 6)
    memory = model.encode(src, mask)
    hidden = model.decode(torch.tensor([[BOS, 4, 5, 6, 7]]), memory, mask)
    assert (memory.shape, hidden.shape) == ((1, 7, 512), (1, 5, 512))
    for call, (n_queries, n_keys) in zip(spy, [(7, 7), (5, 5), (5, 7)], strict=True):
        assert call.q.shape == (1, 8, n_queries, 64)
        assert call.k.shape == call.v.shape == (1, 8, n_keys, 64)
        assert call.weights.shape == (1, 8, n_queries, n_keys)
        close(call.weights.sum(-1), torch.ones(1, 8, n_queries).double())
        first_row = sum(call.weights[0, :, 0, j, None] * call.v[0, :, j] for j in range(n_keys))
        close(call.out[0, :, 0], first_row)
        assert call.out.transpose(1, 2).flatten(2).shape == (1, n_queries, 8 * 64)
    assert model.encoder[0].attention.output.weight.t().shape == (8 * 64, 512)
    assert (spy[1].weights == spy[1].weights.tril()).all()  # forbidden: exactly 0
    p = model.output(hidden).softmax(-1)
    assert p.shape == (1, 5, 12)  # over the output dictionary
    close(p.sum(-1), torch.ones(1, 5).double())


def test_demystified_data_flow() -> None:
    """transformers-demystified-1.txt: each layer feeds the next, and the last encoder's output every decoder."""
    model = build({**DEMYSTIFIED, **NARROW}, n_encoder_layers=4, n_decoder_layers=3)
    seen: list[tuple[Tensor, Tensor]] = []  # input and output of each layer
    memories: list[Tensor] = []
    for layer in [*model.encoder, *model.decoder]:
        layer.register_forward_hook(lambda _m, x, y: seen.append((x[0], y)))
    for layer in model.decoder_layers:
        layer.cross_attention.register_forward_pre_hook(
            lambda _m, _x, options: memories.append(options["memory"]), with_kwargs=True
        )
    src, tgt_in, src_mask = a_batch()
    hidden = model(src, tgt_in, src_mask)
    for n in (1, 2, 3, 5, 6):
        assert seen[n][0] is seen[n - 1][1]
    assert len(memories) == 3
    assert all(memory is seen[3][1] for memory in memories)
    assert hidden is seen[6][1]  # post-norm: no norm after the last


def test_demystified_number_of_matrices() -> None:
    """transformers-demystified-1.txt: 3h + 5, 6h + 6, 9h + 11 and N (9h + 11) + 3; counted on built models."""
    for n, h in ((6, 8), (2, 4)):
        config = ModelConfig(
            **{**DEMYSTIFIED, "n_encoder_layers": n, "n_decoder_layers": n, "n_heads": h}
        )
        with torch.device("meta"):
            model = Transformer(config, 10, 10, joint=False)
        counts = {"encoder": 0, "decoder": 0, "peripheral": 0}
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                matrices = (
                    parameter.t().split(512 // h, dim=1)
                    if "query_key_value" in name
                    else [parameter]
                )
                counts[
                    name.split(".")[0] if name.startswith(("encoder", "decoder")) else "peripheral"
                ] += len(matrices)
        assert counts == {"encoder": n * (3 * h + 5), "decoder": n * (6 * h + 6), "peripheral": 3}
        total = summarise(config, 10, 10, joint=False).matrices
        assert sum(counts.values()) == total == n * (9 * h + 11) + 3
    assert 6 * (9 * 8 + 11) + 3 == 501


def test_demystified_number_of_parameters_and_slips() -> None:
    """transformers-demystified-1.txt: its sums (1) to (6), d_m 512, d_K = d_V = 64, d_ff 2048, h 8, N 6.

    It slips in leaving out the layer norms (and biases of the projections, where there are any), and in counting
    three matrices of words: with 37,000 that is 101 million. Tied, as in the paper, it is 63, "about 65".
    """
    attention = (512 * 64 + 512 * 64 + 512 * 64) * 8 + 8 * 64 * 512  # (1), (3), (4)
    feed_forward = 512 * 2048 + 2048 + 2048 * 512 + 512  # (2), (5)
    words = 37_000 * 512
    by_document = 6 * (3 * attention + 2 * feed_forward) + 3 * words  # (6)
    assert by_document == 100_902_912
    norms = (6 * 2 + 6 * 3) * 2 * 512
    config = ModelConfig(**DEMYSTIFIED)
    assert summarise(config, 37_000, 37_000, joint=True).total == by_document + norms
    biased = config.model_copy(update={"attention_bias": True})
    assert summarise(biased, 37_000, 37_000, joint=True).total == by_document + norms + 18 * 4 * 512
    tied = config.model_copy(update={"tie_embeddings": True})
    assert (
        summarise(tied, 37_000, 37_000, joint=True).total
        == by_document + norms - 2 * words
        == 63_045_632
    )
    with torch.device("meta"):  # positions: nothing to learn, and no other dimensions
        positions = Transformer(config, 10, 10, joint=True).src_embedding.positions
    assert not isinstance(positions, nn.Parameter)
    assert positions.shape[1] == 512


# === details-of-the-transformer-model.txt =====================================================
# The encoder from ids to the output of its first layer. Nothing it says decides post- or pre-norm.

DETAILS: dict[str, Any] = {"norm": "post", "attention_bias": False, **ONE_LAYER}


def test_details_shapes_padding_and_mask(spy: list[Attention]) -> None:
    """details-of-the-transformer-model.txt: X (d_B, d_S) padded to the longest of the batch, embedded
    (d_B, d_S, d_E); Q, K, V (d_B, h, d_S, d_k); S (d_B, h, d_S, d_S), minus infinity at PAD before the softmax.
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
    # Slip: the division after the softmax, and by sqrt(d_E). Rows would add up to 1 / 22.6.
    slipped = s.softmax(-1) / 512**0.5
    close(slipped.sum(-1) * 512**0.5, torch.ones(3, 8, 5).double())
    close(call.weights.sum(-1), torch.ones(3, 8, 5).double())
    assert (
        slipped * 512**0.5 - call.weights
    ).abs().max() > 0.1  # nor would scaling them up mend it


def test_details_slip_heads_flattened_without_transposing_back(spy: list[Attention]) -> None:
    """details-of-the-transformer-model.txt slips: (d_B, h, d_S, d_k) viewed as (d_B, d_S, h d_k) mixes words
    and heads. Transposed first, row i holds the eight heads of word i.
    """
    attention, x = build(DETAILS).encoder[0].attention, torch.randn(2, 5, 512).double()
    out = attention(x, None)
    heads = spy[0].out
    joined = heads.transpose(1, 2).flatten(2)
    close(joined[1, 3], torch.cat([heads[1, h, 3] for h in range(8)]))
    close(out, attention.output(joined))
    slipped = heads.contiguous().view(2, -1, 8 * 64)
    assert (
        slipped[0, 0, 64:128] - heads[0, 0, 1]
    ).abs().max() < 1e-12  # word 1 in the row of word 0
    assert (attention.output(slipped) - out).abs().max() > 0.01


def test_details_slip_stops_at_the_encoder() -> None:
    """details-of-the-transformer-model.txt slips: attention and one linear layer, "basically it". Ours adds W^O,
    the sums, the norms and a second linear layer, and has a decoder; without the sums it is something else.
    """
    model, x = build(DETAILS), torch.randn(1, 4, 512).double()
    layer = model.encoder[0]
    z = layer.around_attention.norm(x + layer.attention(x, None))
    close(layer(x, layer.attention), layer.around_feed_forward.norm(z + layer.feed_forward(z)))
    without_sums = layer.feed_forward(layer.attention(x, None))
    assert (without_sums - layer(x, layer.attention)).abs().max() > 1
    assert len(model.decoder) == 1


# === transformer-slides.txt ===================================================================
# The paper's base model seen from outside: 6 + 6 layers, 8 heads of 64.

SLIDES: dict[str, Any] = {"norm": "post", "attention_bias": False}


def test_slides_stacks() -> None:
    """transformer-slides.txt: six encoders of two sub-layers and six decoders of three, alike but with weights
    of their own, vectors of 512, and eight heads; words are embedded below the first layer only.
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


def test_slides_scores_divided_by_8() -> None:
    """transformer-slides.txt: two words, keys of 64: scores 80 and 64, divided by 8 are 10 and 8, and the softmax
    gives the first e^2 / (e^2 + 1) = 0.880797; the output is that much of the first value and 0.119203 of the other.
    Then with matrices: X (2 x 4) times W (4 x 3) is Q (2 x 3), and Z (2 x 3) is softmax(Q K^T / sqrt(3)) V.
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


def test_slides_eight_heads_look_at_different_words(spy: list[Attention]) -> None:
    """transformer-slides.txt: eight attentions with weights of their own give eight Z; side by side, times W^O."""
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


def test_slides_top_encoder_gives_every_decoder_its_keys_and_values(spy: list[Attention]) -> None:
    """transformer-slides.txt: K and V of each encoder-decoder attention are made of the top encoder's output."""
    model, (src, tgt_in, src_mask) = build({**SLIDES, **NARROW}), a_batch()
    memory = model.encode(src, src_mask)
    spy.clear()
    model.decode(tgt_in, memory, src_mask)
    for layer, cross in zip(model.decoder, spy[1::2], strict=True):
        _, w_k, w_v = layer.cross_attention.query_key_value.weight.chunk(3)
        close(cross.k.transpose(1, 2).flatten(2), memory @ w_k.t())
        close(cross.v.transpose(1, 2).flatten(2), memory @ w_v.t())
    assert not torch.equal(spy[1].k, spy[3].k)


def test_slides_features() -> None:
    """transformer-slides.txt: all positions at once; any two positions one step apart; order only by positions."""
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


def test_slides_decoding_until_the_special_symbol(spy: list[Attention]) -> None:
    """transformer-slides.txt: steps repeat until the symbol says that the output is complete.

    It slips in making inputs as long as the longest sentence of the training data: the length is the batch's,
    also one that training never saw, and attention to 60 instead of 4 positions gives the same for 225 times the work.
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
