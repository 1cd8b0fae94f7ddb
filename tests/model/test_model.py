"""The model against its formulas: a NumPy restatement, torch's own layers, and invariances."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from conftest import MonkeyPatch
from numpy.typing import NDArray
from torch import Tensor

from mt.config.schema import ModelConfig
from mt.model import attention, transformer
from mt.model.attention import attention_bias, causal_mask
from mt.model.transformer import Dropout, Transformer

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Weights = dict[str, Array]
SMALL: dict[str, Any] = {"d_model": 12, "n_heads": 3, "d_ff": 20, "max_positions": 16}
SMALL |= {"n_encoder_layers": 2, "n_decoder_layers": 3}
NORMS = pytest.mark.parametrize("norm", ["pre", "post"])


def build(
    src_vocab: int = 13, tgt_vocab: int = 11, joint: bool = False, **options: Any
) -> Transformer:
    """A small model in float64; no bias is 0 and no gain 1, so that an unused one shows."""
    torch.manual_seed(1)
    model = Transformer(ModelConfig(**{**SMALL, **options}), src_vocab, tgt_vocab, joint)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.normal_(mean=float(name.endswith("norm.weight")), std=0.3)
    return model.double().eval()


def batch(vocab: int = 11) -> tuple[Tensor, Tensor, Tensor]:
    """Three sentences of 6, 4 and 1 source tokens and 5, 2 and 3 target tokens, padded with 0."""
    generator = torch.Generator().manual_seed(2)
    src = torch.randint(1, vocab, (3, 6), generator=generator)
    tgt_in = torch.randint(1, vocab, (3, 5), generator=generator)
    src_mask = torch.arange(6) < torch.tensor([[6], [4], [1]])
    tgt_real = torch.arange(5) < torch.tensor([[5], [2], [3]])
    return src * src_mask, tgt_in * tgt_real, src_mask


@pytest.fixture
def recorded(monkeypatch: MonkeyPatch) -> list[Tensor]:
    """Every attention matrix, in the order of the forward pass."""
    matrices: list[Tensor] = []
    original = attention.attention_weights

    def record(q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
        matrices.append(original(q, k, bias))
        return matrices[-1]

    monkeypatch.setattr(attention, "attention_weights", record)
    return matrices


# --- the formulas in NumPy, one sentence and one head at a time -------------------------------


def np_softmax(scores: Array) -> Array:
    shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def np_norm(x: Array, w: Weights, name: str) -> Array:
    """(x - mean) / sqrt(variance + eps), the variance over D and not over D - 1."""
    mean = x.mean(axis=1, keepdims=True)
    variance = ((x - mean) ** 2).sum(axis=1, keepdims=True) / x.shape[1]
    return (x - mean) / np.sqrt(variance + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]


def np_attention(x: Array, memory: Array, mask: Mask, w: Weights, name: str, n_heads: int) -> Array:
    """x (T, D) attends to memory (S, D) where mask (T, S) is True."""
    d = x.shape[1]
    width = d // n_heads
    merged = w[f"{name}.query_key_value.weight"]
    bias = w.get(f"{name}.query_key_value.bias", np.zeros(3 * d))
    heads = []
    for h in range(n_heads):
        of_q, of_k, of_v = (slice(p * d + h * width, p * d + (h + 1) * width) for p in range(3))
        q = x @ merged[of_q].T + bias[of_q]
        k = memory @ merged[of_k].T + bias[of_k]
        v = memory @ merged[of_v].T + bias[of_v]
        scores = q @ k.T / math.sqrt(width)
        scores[~mask] = -np.inf
        heads.append(np_softmax(scores) @ v)
    out = np.concatenate(heads, axis=1) @ w[f"{name}.output.weight"].T
    return out + w.get(f"{name}.output.bias", np.zeros(d))


def np_feed_forward(x: Array, w: Weights, name: str, activation: str) -> Array:
    inner = x @ w[f"{name}.inner.weight"].T + w[f"{name}.inner.bias"]
    if activation == "relu":
        inner = np.maximum(inner, 0)
    elif activation == "silu":
        inner = inner / (1 + np.exp(-inner))
    else:  # x times the normal distribution function of x
        inner = inner * (1 + np.vectorize(math.erf)(inner / math.sqrt(2))) / 2
    return inner @ w[f"{name}.outer.weight"].T + w[f"{name}.outer.bias"]


def np_sinusoids(n_positions: int, d: int) -> Array:
    table = np.zeros((n_positions, d))
    for p, i in itertools.product(range(n_positions), range(d // 2)):
        table[p, 2 * i] = math.sin(p / 10000 ** (2 * i / d))
        table[p, 2 * i + 1] = math.cos(p / 10000 ** (2 * i / d))
    return table


def np_stack(
    x: Array, side: str, config: ModelConfig, w: Weights, memory: Array | None, src_mask: Mask
) -> Array:
    """All layers of one side for one sentence. x (T, D), memory (S, D) or None in the encoder."""
    t = len(x)
    causal = np.tril(np.ones((t, t), dtype=bool))
    n_layers = config.n_encoder_layers if memory is None else config.n_decoder_layers
    for layer in (f"{side}.{n}" for n in range(n_layers)):
        if memory is None:
            blocks: list[tuple[str, Array | None, Mask]] = [
                ("attention", None, np.tile(src_mask, (t, 1)))
            ]
        else:
            cross = ("cross_attention", memory, np.tile(src_mask, (t, 1)))
            blocks = [("self_attention", None, causal), cross]
        for block, other, mask in [*blocks, ("feed_forward", None, causal)]:
            norm = f"{layer}.around_{block}.norm"
            y = np_norm(x, w, norm) if config.norm == "pre" else x
            if block == "feed_forward":
                y = np_feed_forward(y, w, f"{layer}.{block}", config.activation)
            else:
                keys = y if other is None else other
                y = np_attention(y, keys, mask, w, f"{layer}.{block}", config.n_heads)
            x = x + y if config.norm == "pre" else np_norm(x + y, w, norm)
    return np_norm(x, w, f"{side}_norm") if config.norm == "pre" else x


def np_forward(
    model: Transformer, batch: tuple[Tensor, Tensor, Tensor], table: Array
) -> tuple[Array, Array]:
    """Encoder output (B, S, D) and scores over the vocabulary (B, T, V); sinusoids from `table`."""
    config, w = model.config, {k: v.numpy() for k, v in model.state_dict().items()}

    def embed(side: str, ids: Array) -> Array:
        positions = w[f"{side}_embedding.positions"] if config.positions == "learned" else table
        words = w[f"{side}_embedding.tokens.weight"][ids]
        return words * math.sqrt(config.d_model) + positions[: len(ids)]

    memories, scores = [], []
    for src, tgt_in, src_mask in zip(*(x.numpy() for x in batch), strict=True):
        memory = np_stack(embed("src", src), "encoder", config, w, None, src_mask)
        hidden = np_stack(embed("tgt", tgt_in), "decoder", config, w, memory, src_mask)
        memories.append(memory)
        scores.append(hidden @ w["output.weight"].T + w.get("output.bias", 0.0))
    return np.stack(memories), np.stack(scores)


@NORMS
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("tie", [False, True])
@pytest.mark.parametrize("joint", [False, True])
def test_forward_pass_equals_the_formulas(
    norm: str, positions: str, activation: str, biases: bool, tie: bool, joint: bool
) -> None:
    """For every option, on a padded batch, at every position."""
    biased = {"attention_bias": biases, "output_bias": biases}
    options = {"norm": norm, "positions": positions, "activation": activation, **biased}
    model = build(11 if joint else 13, 11, joint, tie_embeddings=tie, **options)
    src, tgt_in, src_mask = batch()
    with torch.no_grad():
        memory = model.encode(src, src_mask)
        scores = model.output(model(src, tgt_in, src_mask))
    exact = np_sinusoids(16, 12)
    as_stored = exact.astype(np.float32).astype(np.float64)  # the model keeps its table in float32
    for table, tolerance in ((exact, 1e-6), (as_stored, 1e-11)):
        np_memory, np_scores = np_forward(model, (src, tgt_in, src_mask), table)
        np.testing.assert_allclose(memory, np_memory, rtol=0, atol=tolerance)
        np.testing.assert_allclose(scores, np_scores, rtol=0, atol=tolerance)


def test_sinusoids_are_accurate_to_float32_at_every_position_up_to_1024() -> None:
    """An angle near 1023 kept in float32 would be off by up to 3e-5."""
    model = Transformer(ModelConfig(n_encoder_layers=1, n_decoder_layers=1), 5, 5, joint=True)
    exact = np_sinusoids(1024, 512)
    np.testing.assert_allclose(model.src_embedding.positions, exact, rtol=0, atol=2**-24)
    assert not model.src_embedding.positions.requires_grad


# --- torch's own layers -----------------------------------------------------------------------


# --- invariances ------------------------------------------------------------------------------


@NORMS
def test_a_future_target_token_changes_no_earlier_output(norm: str) -> None:
    model, (src, tgt_in, src_mask) = build(norm=norm), batch()
    hidden = model(src, tgt_in, src_mask)
    for position in range(1, 5):
        changed = tgt_in.clone()
        changed[:, position] = (changed[:, position] + 1) % 11
        changed_hidden = model(src, changed, src_mask)
        assert torch.equal(changed_hidden[:, :position], hidden[:, :position])
        assert ((changed_hidden - hidden)[:, position:].abs().amax(-1) > 1e-6).all()


@NORMS
def test_padding_changes_nothing(norm: str) -> None:
    """More of it on either side, other ids in it, or none around a single sentence."""
    model, (src, tgt_in, src_mask) = build(norm=norm), batch()
    hidden = model(src, tgt_in, src_mask)
    pad = torch.zeros(3, 4, dtype=torch.int64)
    wide_mask = torch.cat([src_mask, pad.bool()], dim=1)
    wide = model(torch.cat([src, pad], dim=1), torch.cat([tgt_in, pad], dim=1), wide_mask)
    torch.testing.assert_close(wide[:, :5], hidden, rtol=0, atol=1e-12)
    assert torch.equal(model(src.masked_fill(~src_mask, 7), tgt_in, src_mask), hidden)
    for row, (n_src, n_tgt) in enumerate([(6, 5), (4, 2), (1, 3)]):
        one = slice(row, row + 1)
        alone = model(src[one, :n_src], tgt_in[one, :n_tgt], src_mask[one, :n_src])
        torch.testing.assert_close(alone, hidden[one, :n_tgt], rtol=0, atol=1e-12)


def test_a_causal_kernel_learns_what_a_mask_of_padding_does(monkeypatch: MonkeyPatch) -> None:
    """Gradients of a GPU's `is_causal`, of our own attention, and of a mask that hides padding too.

    Target padding is at the end, and its outputs are in no loss.
    """
    model, (src, tgt_in, src_mask) = build(), batch()
    real = torch.arange(5) < torch.tensor([[5], [2], [3]])
    hidden_padding = attention_bias(
        causal_mask(5, src.device) & (real[:, None] | torch.eye(5).bool()), torch.float64
    )[:, None]  # (B, 1, T, T); a padded position sees itself
    asked: list[bool] = []
    torch_attention: Any = torch.nn.functional.scaled_dot_product_attention

    def masked(*inputs: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool) -> Any:
        asked.append(is_causal)
        assert (attn_mask is None) == is_causal
        return torch_attention(*inputs, hidden_padding if is_causal else attn_mask, dropout_p)

    def gradients() -> list[Tensor]:
        model.zero_grad()
        model(src, tgt_in, src_mask)[real].square().sum().backward()
        return [one.grad.clone() for one in model.parameters() if one.grad is not None]

    ours = gradients()
    monkeypatch.setattr(attention, "_uses_torch", lambda _: True)
    causal = gradients()
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", masked)
    expected = gradients()
    assert asked == [False] * 2 + [True, False] * 3
    for found in (ours, causal):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


# --- initial values ---------------------------------------------------------------------------


def assert_uniform(matrix: Tensor, bound: float) -> None:
    """Uniform in (-bound, bound), by largest value, mean and variance within 5 standard errors.

    Of n draws the mean has the standard error bound / sqrt(3 n); the squares have the mean
    bound^2 / 3 and the variance bound^4 (1/5 - 1/9). All of 4,000 below 0.99 bound: 10^-17.
    """
    n = matrix.numel()
    assert 0.99 * bound < matrix.abs().max() <= bound
    assert matrix.mean().abs() < 5 * bound / math.sqrt(3 * n)
    assert (matrix.square().mean() - bound**2 / 3).abs() < 5 * bound**2 * math.sqrt(4 / 45 / n)


def test_q_k_and_v_are_each_xavier_uniform() -> None:
    """As one (3D, D) matrix they would get the bound sqrt(6 / 4D) = 0.71 of the right one."""
    torch.manual_seed(3)
    model = Transformer(ModelConfig(d_model=64, n_heads=4, d_ff=96), 200, 300, joint=False)
    attentions = [m for m in model.modules() if isinstance(m, transformer.MultiHeadAttention)]
    assert len(attentions) == 6 + 2 * 6
    for heads in attentions:
        for matrix in (*heads.query_key_value.weight.chunk(3), heads.output.weight):
            assert_uniform(matrix, math.sqrt(6 / (64 + 64)))
    for layer in (*model.encoder, *model.decoder):
        assert_uniform(layer.feed_forward.inner.weight, math.sqrt(6 / (64 + 96)))
        assert_uniform(layer.feed_forward.outer.weight, math.sqrt(6 / (64 + 96)))
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            assert (parameter == float("norm.weight" in name)).all(), name


@pytest.mark.parametrize("tie", [False, True])
def test_embeddings_start_with_variance_one_over_d(tie: bool) -> None:
    """x sqrt(D) they have variance one; an output matrix of its own is Xavier-uniform."""
    torch.manual_seed(4)
    options = ModelConfig(
        d_model=64, n_heads=4, tie_embeddings=tie, positions="learned", output_bias=True
    )
    model = Transformer(options, 2000, 3000, joint=False)
    embeddings = (model.src_embedding, model.tgt_embedding)
    for matrix in [e.tokens.weight for e in embeddings] + [e.positions for e in embeddings]:
        n = matrix.numel()
        assert matrix.mean().abs() < 5 * 64**-0.5 / math.sqrt(n)
        assert (matrix.std() * 8 - 1).abs() < 5 / math.sqrt(2 * n)  # standard error of a deviation
        assert matrix.abs().max() * 8 > 3  # normal, not uniform: that would end at 1.73
    if not tie:
        assert_uniform(model.output.weight, math.sqrt(6 / (3000 + 64)))
    assert (model.output.bias == 0).all()


@pytest.mark.parametrize(
    ("tie", "joint", "distinct"),
    [(True, True, 1), (True, False, 2), (False, True, 3), (False, False, 3)],
)
def test_tied_matrices_are_the_same_storage(tie: bool, joint: bool, distinct: int) -> None:
    model = build(11, 11, joint, tie_embeddings=tie)
    fresh = build(11, 11, joint, tie_embeddings=tie)
    fresh.load_state_dict(model.state_dict())
    for one in (model, fresh):
        source, target = one.src_embedding.tokens.weight, one.tgt_embedding.tokens.weight
        assert len({w.data_ptr() for w in (source, target, one.output.weight)}) == distinct
        assert (target is one.output.weight) == tie
        assert (target is source) == (tie and joint)


# --- dropout ----------------------------------------------------------------------------------


def test_dropout_is_off_outside_training() -> None:
    x = torch.randn(7, 3)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x
    model, inputs = build(dropout=0.5), batch()
    assert torch.equal(model(*inputs), model(*inputs))
    model.train()
    assert not torch.equal(model(*inputs), model(*inputs))


# --- bfloat16 ---------------------------------------------------------------------------------


@NORMS
def test_bfloat16_arithmetic_is_close_and_leaves_parameters_in_float32(norm: str) -> None:
    """bfloat16 keeps 8 binary digits: each rounding is off by at most u = 2^-8, at random.

    A sub-layer rounds about six times in a row (norm, products, softmax or activation, sum); six
    layers have 15 sub-layers, and 90 random errors add up to sqrt(90) u = 3.7 % of the output.
    Gradients go that way twice, and a ReLU near zero may flip: four times as much.
    """
    torch.manual_seed(7)
    config = ModelConfig(d_model=64, n_heads=4, d_ff=128, n_encoder_layers=3, n_decoder_layers=3)
    config = config.model_copy(update={"norm": norm, "max_positions": 16, "dropout": 0.0})
    model, (src, tgt_in, src_mask) = Transformer(config, 11, 11, joint=True), batch()
    upstream = torch.randn(3, 5, 11)

    def run() -> tuple[Tensor, Tensor]:
        model.zero_grad()
        scores = model.output(model(src, tgt_in, src_mask))
        (scores.float() * upstream).sum().backward()
        grads = [p.grad for p in model.parameters()]
        assert all(g is not None and g.dtype == torch.float32 for g in grads)
        return scores.detach(), torch.cat([g.flatten() for g in grads if g is not None])

    exact_scores, exact_grads = run()
    model.compute_dtype = torch.bfloat16
    scores, grads = run()
    assert scores.dtype == torch.bfloat16
    assert all(p.dtype == torch.float32 for p in model.parameters())
    bound = math.sqrt(90) * 2**-8
    output_error = ((scores.float() - exact_scores).norm() / exact_scores.norm()).item()
    grad_error = ((grads - exact_grads).norm() / exact_grads.norm()).item()
    assert 2**-12 < output_error < bound  # a smaller error would mean that it ran in float32
    assert 2**-12 < grad_error < 4 * bound
