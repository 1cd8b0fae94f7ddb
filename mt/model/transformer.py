"""The encoder-decoder Transformer (Vaswani et al., 2017, "Attention Is All You Need"), whole in this file.

Letters of the shape comments: B sentences, S source length, T target length, D d_model, H heads,
K = D / H head width, F d_ff, V vocabulary. Every `mask` is True where attention is allowed.

Parameters stay in the dtype they were built in (float32 in training); the forward pass runs in
`Transformer.compute_dtype`, to which each layer casts its own weights. Unlike autocast this keeps the
residual stream in the low precision too, and it is visible in the code.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from mt.data.tokenizer import EOS
from mt.runtime.devices import small_products

if TYPE_CHECKING:
    from mt.config.schema import ModelConfig


class Linear(nn.Linear):
    """`nn.Linear` that casts its weights to the dtype of its input."""

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.weight.to(x.dtype), bias)

    def part(self, x: Tensor, rows: slice) -> Tensor:
        """The product with some rows of the weight alone: these columns of the output."""
        bias = None if self.bias is None else self.bias[rows].to(x.dtype)
        return F.linear(x, self.weight[rows].to(x.dtype), bias)


class LayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` that casts its weights to the dtype of its input (statistics are kept in float32)."""

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


class Dropout(nn.Module):
    """Each element is 0 with probability p, else x / (1 - p) (Srivastava et al., 2014); nothing when not training.

    On a CPU, p is taken to the nearest of 1/256, ..., 255/256, and the scale with it.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor, relu: bool = False) -> Tensor:
        """Dropout of x, or of max(0, x) in the place of x."""
        if not self.training or self.p == 0 or x.device.type != "cpu":
            return F.dropout(x.relu_() if relu else x, self.p, self.training)
        dropout: Any = _CpuReluDropout.apply if relu else _CpuDropout.apply
        return cast("Tensor", dropout(x, _of_256(self.p)))


def _of_256(p: float) -> int:
    """How many of the 256 values of a byte stand for "dropped"; 0 only where nothing is to be."""
    return min(255, max(1, round(256 * p))) if p else 0


def _draw_bytes(shape: torch.Size) -> Tensor:
    """Random bytes. torch's dropout makes a Bernoulli variable of a 32-bit draw for each element, which is half
    the time of a training step; the eight bytes of a 64-bit draw cost a tenth of that."""
    draws = torch.empty((shape.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
    return draws.view(torch.uint8)[: shape.numel()].view(shape)


def _kept(draws: Tensor, dropped: int, dtype: torch.dtype) -> Tensor:
    """What to multiply by: 0 where the byte is one of the `dropped` smallest of 256, else 1 / (1 - dropped / 256)."""
    # Straight to floating point: torch multiplies by booleans ten times slower.
    keep = torch.ge(draws, dropped, out=torch.empty(draws.shape, dtype=dtype))
    return keep.mul_(256 / (256 - dropped))


class _CpuDropout(torch.autograd.Function):
    """Keeps one byte an element for the way back: with `_CpuReluDropout` 0.25 GB less in training of a small model in
    float32, and 10 % faster, than keeping what x was multiplied by."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: int) -> Tensor:
        draws = _draw_bytes(x.shape)
        ctx.save_for_backward(draws)
        ctx.dropped = dropped
        return _kept(draws, dropped, x.dtype).mul_(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (draws,) = ctx.saved_tensors
        return _kept(draws, ctx.dropped, grad.dtype).mul_(grad), None


class _CpuReluDropout(torch.autograd.Function):
    """Keeps its output alone, which the next layer keeps anyway: not 0 is what was neither dropped nor negative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: int) -> Tensor:
        out = _kept(_draw_bytes(x.shape), dropped, x.dtype).mul_(x).relu_()
        ctx.save_for_backward(out)
        ctx.scale = 256 / (256 - dropped)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (out,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(grad, out, 0).mul_(ctx.scale), None


def attention_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask as a term of the scores: 0 where True, -inf where False, so that softmax gives exactly 0."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -math.inf)


def causal_mask(length: int, device: torch.device) -> Tensor:
    """Position t attends to positions <= t. (T, T)"""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril_()


def attention_weights(q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
    """softmax(Q K^T / sqrt(K) + bias), each row a distribution over the keys (section 3.2.1).

    q (B, H, T, K), k (B, H, S, K), bias broadcastable to (B, H, T, S); gives (B, H, T, S).
    """
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)  # (B, H, T, S)
    if bias is not None:
        scores = scores + bias
    return scores.softmax(dim=-1)


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: float = 0.0) -> Tensor:
    """Attention(Q, K, V) of section 3.2.1. q (B, H, T, K), k and v (B, H, S, K) -> (B, H, T, K).

    Each weight is dropped with the probability `dropout`, after the softmax, as `Dropout` does it. The paper does not
    tell of that; its authors' code (tensor2tensor) does it.
    """
    if q.is_cuda:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
    attention: Any = _CpuAttention.apply
    return cast("Tensor", attention(q, k, v, bias, _of_256(dropout)))


class _CpuAttention(torch.autograd.Function):
    """The two products of attention on a CPU: in float32 at least, and by MKL.

    Sentences are short, so these products are small and come in ever new shapes. oneDNN writes machine code for
    each new shape, 0.5 ms a product where MKL multiplies in 0.1 to 0.3 (584 x 14 x 64 and 200 x 5 x 65, two Zen 5
    cores); torch's fused kernel is slower still.

    Which weights were dropped takes no memory until the way back: a weight has no use for its sign, so these are kept
    as negative ones.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropped: int
    ) -> Tensor:
        wide = torch.promote_types(q.dtype, torch.float32)
        q, k, v = (x.to(wide).contiguous() for x in (q, k, v))
        with small_products():
            weights = attention_weights(
                q, k, None if bias is None else bias.to(wide)
            )  # (B, H, T, S)
            if dropped:
                kept = _kept(_draw_bytes(weights.shape), dropped, wide)  # 0, or at least 1
                out = (kept * weights) @ v
                weights.copysign_(kept.sub_(0.5))
            else:
                out = weights @ v
        ctx.save_for_backward(q, k, v, weights)
        ctx.dropped = dropped
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights = ctx.saved_tensors
        scale = q.shape[-1] ** -0.5
        with small_products():
            grad_weights = grad @ v.transpose(-2, -1)
            if ctx.dropped:
                kept_scale = 256 / (256 - ctx.dropped)
                grad_v = weights.relu().mul_(kept_scale).transpose(-2, -1) @ grad
                # A weight of 0 counts as dropped, which is as good: its score's gradient is 0 either way.
                grad_weights = torch.ops.aten.threshold_backward(grad_weights, weights, 0)
                weights, scale = weights.abs(), scale * kept_scale
            else:
                grad_v = weights.transpose(-2, -1) @ grad
            grad_scores = torch._softmax_backward_data(
                grad_weights, weights, -1, weights.dtype
            ).mul_(scale)
            return grad_scores @ k, grad_scores.transpose(-2, -1) @ q, grad_v, None, None


class MultiHeadAttention(nn.Module):
    """Section 3.2.2. One product makes Q, K and V of all heads; head h reads columns h*K to (h+1)*K of each."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_heads = config.n_heads
        self.dropout = config.attention_dropout
        self.query_key_value = Linear(
            config.d_model, 3 * config.d_model, bias=config.attention_bias
        )
        self.output = Linear(config.d_model, config.d_model, bias=config.attention_bias)

    def heads(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, H, T, K)"""
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def merge(self, x: Tensor) -> Tensor:
        """The concatenated heads times W^O. (B, H, T, K) -> (B, T, D)"""
        return self.output(x.transpose(1, 2).flatten(-2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        """q (B, H, T, K), k and v (B, H, S, K) -> (B, T, D), with dropout in training."""
        dropout = self.dropout if self.training else 0.0
        return self.merge(attend(q, k, v, bias, dropout).to(q.dtype))

    def self_attention(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x (B, T, D) attends to itself -> (B, T, D)"""
        q, k, v = self.query_key_value(x).chunk(3, dim=-1)  # 3 x (B, T, D)
        return self.attend(self.heads(q), self.heads(k), self.heads(v), bias)

    def query(self, x: Tensor) -> Tensor:
        """The queries alone, by the first third of the merged weight. (B, T, D) -> (B, H, T, K)"""
        return self.heads(self.query_key_value.part(x, slice(0, x.shape[-1])))

    def key_value(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values alone. (B, S, D) -> 2 x (B, H, S, K)"""
        k, v = self.query_key_value.part(memory, slice(memory.shape[-1], None)).chunk(2, dim=-1)
        return self.heads(k), self.heads(v)

    def cross_attention(self, x: Tensor, memory: Tensor, bias: Tensor | None) -> Tensor:
        """x (B, T, D) attends to the encoder's output (B, S, D) -> (B, T, D)"""
        k, v = self.key_value(memory)
        return self.attend(self.query(x), k, v, bias)


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2 (section 3.3), with dropout inside. (B, T, D) -> (B, T, D)"""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.inner = Linear(config.d_model, config.d_ff)
        self.outer = Linear(config.d_ff, config.d_model)
        self.relu = config.activation == "relu"
        inside = config.activation_dropout
        self.dropout = Dropout(config.dropout if inside is None else inside)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.inner(x)  # (B, T, F)
        return self.outer(self.dropout(inner if self.relu else F.gelu(inner), relu=self.relu))


class Residual(nn.Module):
    """What surrounds each sub-layer f: x + f(LN(x)) (`norm: pre`) or LN(x + f(x)) (`norm: post`, the paper's)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = LayerNorm(config.d_model)
        self.dropout = Dropout(config.dropout)
        self.pre_norm = config.norm == "pre"

    def before(self, x: Tensor) -> Tensor:
        return self.norm(x) if self.pre_norm else x

    def after(self, x: Tensor, fx: Tensor) -> Tensor:
        x = x + self.dropout(fx)
        return x if self.pre_norm else self.norm(x)


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward (section 3.1, figure 1 left). (B, S, D) -> (B, S, D)"""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(config)
        self.feed_forward = FeedForward(config)
        self.around_attention = Residual(config)
        self.around_feed_forward = Residual(config)

    def forward(self, x: Tensor, src_bias: Tensor | None) -> Tensor:
        around = self.around_attention
        x = around.after(x, self.attention.self_attention(around.before(x), src_bias))
        around = self.around_feed_forward
        return around.after(x, self.feed_forward(around.before(x)))


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the source, feed-forward (figure 1 right). (B, T, D) -> (B, T, D)"""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config)
        self.cross_attention = MultiHeadAttention(config)
        self.feed_forward = FeedForward(config)
        self.around_self_attention = Residual(config)
        self.around_cross_attention = Residual(config)
        self.around_feed_forward = Residual(config)

    def forward(
        self, x: Tensor, memory: Tensor, src_bias: Tensor | None, tgt_bias: Tensor
    ) -> Tensor:
        around = self.around_self_attention
        x = around.after(x, self.self_attention.self_attention(around.before(x), tgt_bias))
        around = self.around_cross_attention
        x = around.after(
            x, self.cross_attention.cross_attention(around.before(x), memory, src_bias)
        )
        around = self.around_feed_forward
        return around.after(x, self.feed_forward(around.before(x)))


def sinusoids(n_positions: int, d_model: int) -> Tensor:
    """PE(p, 2i) = sin(p / 10000^(2i/D)), PE(p, 2i+1) = cos(same) (section 3.5). (P, D), worked out in float64."""
    position = torch.arange(n_positions, dtype=torch.float64)[:, None]  # (P, 1)
    pair = torch.arange(0, d_model, 2, dtype=torch.float64)  # (D/2,), the 2i
    angle = position / 10000 ** (pair / d_model)  # (P, D/2)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)  # (P, D)


class Embedding(nn.Module):
    """Token embedding x sqrt(D), plus the position, then dropout (sections 3.4, 3.5, 5.4). (B, T) -> (B, T, D)

    `word_dropout` is the probability with which a token's embedding is 0 as a whole in training, its position being
    left (Gal and Ghahramani, 2016, for each word of the vocabulary; here, as Sennrich et al., 2016, "Edinburgh Neural
    Machine Translation Systems for WMT 16", for each token of a sentence). What is kept is divided by 1 - p; the
    latter's software multiplied by 1 - p in decoding instead, to the same end. An eos is never dropped, nor scaled.
    """

    def __init__(
        self, tokens: nn.Embedding, config: ModelConfig, word_dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.tokens = tokens
        self.scale = math.sqrt(config.d_model)
        self.dropout = Dropout(config.dropout)
        self.word_dropout = Dropout(word_dropout)
        self.learned = config.positions == "learned"
        self.positions: Tensor
        if self.learned:
            self.positions = nn.Parameter(torch.empty(config.max_positions, config.d_model))
        else:
            table = sinusoids(config.max_positions, config.d_model).float()
            self.register_buffer("positions", table, persistent=False)

    def forward(self, ids: Tensor, dtype: torch.dtype, position: int | None = None) -> Tensor:
        """ids (B, T) at positions 0, 1, ..., or all at `position` -> (B, T, D) in `dtype`."""
        span = slice(ids.shape[1]) if position is None else slice(position, position + 1)
        # The look-up stays in the parameters' dtype: its gradient sums over all uses of a word.
        words = self.tokens(ids) * self.scale  # (B, T, D)
        if self.training and self.word_dropout.p:
            kept = self.word_dropout(words.new_ones(*ids.shape, 1))  # (B, T, 1), 0 or 1 / (1 - p)
            words = words * kept.masked_fill(ids[..., None] == EOS, 1.0)
        return self.dropout((words + self.positions[span]).to(dtype))


class Transformer(nn.Module):
    """Encoder, decoder and output matrix.

    `tie_embeddings` makes the target embedding and the output matrix one; the source embedding too where the
    vocabulary is joint (section 3.4).
    """

    def __init__(
        self, config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int, joint: bool
    ) -> None:
        super().__init__()
        self.config = config
        self.compute_dtype: torch.dtype | None = None  # None: that of the parameters
        target = nn.Embedding(tgt_vocab_size, config.d_model)
        tied_source = config.tie_embeddings and joint
        source = target if tied_source else nn.Embedding(src_vocab_size, config.d_model)
        self.src_embedding = Embedding(source, config, config.source_word_dropout)
        self.tgt_embedding = Embedding(target, config)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.n_encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.n_decoder_layers))
        pre = config.norm == "pre"  # post-norm layers end in a norm already
        self.encoder_norm = LayerNorm(config.d_model) if pre else nn.Identity()
        self.decoder_norm = LayerNorm(config.d_model) if pre else nn.Identity()
        self.output = Linear(config.d_model, tgt_vocab_size, bias=config.output_bias)
        if config.tie_embeddings:
            self.output.weight = target.weight
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Xavier-uniform matrices, each of Q, K, V on its own; zero biases; embeddings N(0, 1/D)."""
        for module in self.modules():
            if isinstance(module, MultiHeadAttention):
                for matrix in module.query_key_value.weight.chunk(3):
                    nn.init.xavier_uniform_(matrix)
                if module.query_key_value.bias is not None:
                    nn.init.zeros_(module.query_key_value.bias)
            elif isinstance(module, Embedding) and module.learned:
                nn.init.normal_(module.positions, std=self.config.d_model**-0.5)
        for name, parameter in self.named_parameters():
            if "query_key_value" in name or "positions" in name or "norm" in name:
                continue
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif "embedding" in name or (name == "output.weight" and self.config.tie_embeddings):
                nn.init.normal_(parameter, std=self.config.d_model**-0.5)
            else:
                nn.init.xavier_uniform_(parameter)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the forward pass runs in."""
        return self.compute_dtype or self.output.weight.dtype

    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        """src ids (B, S), src_mask (B, S) True at real tokens -> memory (B, S, D)."""
        bias = attention_bias(src_mask, self.dtype)[:, None, None, :]  # (B, 1, 1, S)
        x = self.src_embedding(src, self.dtype)
        for layer in self.encoder:
            x = layer(x, bias)
        return self.encoder_norm(x)

    def decode(self, tgt_in: Tensor, memory: Tensor, src_mask: Tensor) -> Tensor:
        """tgt_in ids (B, T), memory (B, S, D), src_mask (B, S) -> decoder output (B, T, D), before `output`.

        Padding of the target needs no mask: it follows the real tokens, which attend only backwards.
        """
        src_bias = attention_bias(src_mask, self.dtype)[:, None, None, :]  # (B, 1, 1, S)
        tgt_bias = attention_bias(causal_mask(tgt_in.shape[1], tgt_in.device), self.dtype)  # (T, T)
        x = self.tgt_embedding(tgt_in, self.dtype)
        for layer in self.decoder:
            x = layer(x, memory, src_bias, tgt_bias)
        return self.decoder_norm(x)

    def forward(self, src: Tensor, tgt_in: Tensor, src_mask: Tensor) -> Tensor:
        """Decoder output (B, T, D); `output` turns it into scores (B, T, V)."""
        return self.decode(tgt_in, self.encode(src, src_mask), src_mask)
