"""`attention-and-transformers-background.txt`, shown on the model that its config builds.

Post-norm, d_ff 1024, no biases in attention, two vocabularies of 10,000 words with nothing tied.
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
    close_to_float32,
    learn,
    one_sentence,
    record_attention,
)
from torch import Tensor, nn

from mt.config.schema import ModelConfig
from mt.data.tokens.tokenizer import BOS, EOS, PAD
from mt.model import transformer
from mt.model.attention import attention_bias, causal_mask
from mt.model.transformer import Transformer
from mt.training.loss import smoothed_cross_entropy

BACKGROUND: dict[str, Any] = {"d_ff": 1024, "norm": "post", "dropout": 0.0, "attention_bias": False}
BACKGROUND |= {"tie_embeddings": False, **ONE_LAYER}


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> list[Attention]:
    """Every use of attention, in the order of the forward pass."""
    return record_attention(monkeypatch)


def test_shapes_and_number_of_parameters() -> None:
    """The matrices of one layer each side, by hand.

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


def test_attention_of_every_head(spy: list[Attention]) -> None:
    """q = x W_Q, s_ij = q_i k_j / sqrt(64), softmax by row.

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


def test_error_output_matrix_on_the_wrong_side(spy: list[Attention]) -> None:
    """The document errs: an n x n W_0 left of the heads.

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


def test_encoder_layer_and_its_norms(spy: list[Attention]) -> None:
    """LN(Z + X), then LN(max(0, Z'W_1 + B_1)W_2 + B_2 + Z').

    It errs in calling the divisor a variance: rows leave a norm with deviation 1 only when it is
    the deviation. It also gives gain and shift one entry per word (n); they have one per component.
    """
    model = build(BACKGROUND)
    layer = model.encoder_layers[0]
    x = 3 * torch.randn(1, 4, 512).double()
    out = layer(x, layer.attention)[0]

    def norm(rows: Tensor, module: nn.LayerNorm) -> Tensor:
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
    wrong = (total - total.mean(1, keepdim=True)) / total.var(1, correction=0, keepdim=True)
    assert (wrong.std(dim=1, correction=0) < 0.5).all()


def test_causal_mask(spy: list[Attention]) -> None:
    """s_ij where j <= i, minus infinity where j > i."""
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


def test_one_hot_embedding_and_added_positions() -> None:
    """One-hot row times W_embedded, plus the position.

    It has no factor sqrt(d): its W_embedded is sqrt(512) times the matrix that is stored, free as
    that is of the output matrix. Adding, not concatenating, leaves 512 components.
    """
    model = build(BACKGROUND)
    for side in (model.src_embedding, model.tgt_embedding):
        ids = torch.tensor([[4, 9, EOS]])
        one_hot = F.one_hot(ids[0], 12).double()
        w_embedded = math.sqrt(512) * side.tokens.weight
        close(side(ids, torch.float64)[0], one_hot @ w_embedded + side.positions[:3].double())


def test_error_cosine_first_and_a_frequency_for_every_component() -> None:
    """The document errs: cos(k w_1), sin(k w_2), cos(k w_3), ...

    The paper's are sin(k w_0), cos(k w_0), sin(k w_1), ..., two to a frequency; then a step from
    k to k + 1 is one matrix for all k, so counting from 1 (as there) or 0 tells the same. With a
    frequency of its own for each component there is no such matrix.
    """
    model = build(BACKGROUND)
    right, wrong = [], []
    for i in range(256):
        frequency = 10000 ** (-2 * i / 512)
        right += [math.sin(20 * frequency), math.cos(20 * frequency)]
    for i in range(1, 513, 2):
        wrong += [
            math.cos(20 * 10000 ** (-2 * i / 512)),
            math.sin(20 * 10000 ** (-2 * (i + 1) / 512)),
        ]
    close_to_float32(model.src_embedding.positions[20], torch.tensor(right))
    assert (torch.tensor(right) - torch.tensor(wrong)).abs().max() > 1

    def misfit_of_a_step(table: Tensor) -> float:
        step = torch.linalg.lstsq(table[:-1], table[1:]).solution
        return (table[:-1] @ step - table[1:]).abs().max().item()

    k, pair = torch.arange(64.0).double()[:, None], torch.arange(1, 9).double()
    angle = k * 10000 ** (-2 * pair / 8)
    own_frequencies = torch.where(pair % 2 == 1, angle.cos(), angle.sin())
    assert misfit_of_a_step(transformer.sinusoids(64, 8)) < 1e-9
    assert misfit_of_a_step(own_frequencies) > 1e-3


def test_decoder_layer(spy: list[Attention]) -> None:
    """Queries of the decoder, 10 x 512, keys and values of the encoder, 5 x 512.

    Scores are 10 x 5, divided by sqrt(64) in each head; LN of each sum, as in the encoder. At its
    end the document lets six queries ask three words only; the end token is a key like any other.
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


def test_cost_and_error_of_the_fixed_length() -> None:
    """P = softmax(Z W^O) by row, C = -sum ln p of the right words, over 10,000 words.

    It errs in padding every sentence to a fixed n: that adds nothing to the real rows, and a cost
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


def test_a_row_predicts_the_next_word() -> None:
    """The document errs: the output's row i is the target's row i.

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


def test_training_sentence_by_sentence_and_inference_step_by_step() -> None:
    """A sentence is a batch; the whole model runs again for every word.

    Its input is the start word, the words so far and empty words, until it predicts the end word.
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
