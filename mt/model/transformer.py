"""The encoder-decoder Transformer (Vaswani et al., 2017, "Attention Is All You Need").

The classes follow the paper's sections. Shapes: B sentences, S source length, T target length,
D d_model, H heads, K = D / H head width, F d_ff, V vocabulary, P positions. Every `mask` is True
where attention is allowed.

Parameters keep the dtype that they were built in (float32 in training). The forward pass runs in
`Transformer.compute_dtype`, to which each layer casts its weights (`gpu_ops`). Unlike with
autocast, the residual stream has low precision too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import assert_never

from mt.config.schema import ModelConfig
from mt.data.tokens.batches import Packed
from mt.model.attention import attend, attention_bias, dropout
from mt.model.gpu_ops import CastWeights, attend_packed

# A function of the residual stream, (B, T, D) -> (B, T, D).
Sublayer = Callable[[Tensor], Tensor]


class Linear(CastWeights, nn.Linear):
    """x W^T + b, (..., inputs) -> (..., outputs), with weights cast to the dtype of x."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, *self.cast_to(x.dtype))

    def part(self, x: Tensor, rows: slice) -> Tensor:
        """Compute only the outputs of these rows of the weight. (..., inputs) -> (..., rows)"""
        return F.linear(x, *(value[rows] for value in self.cast_to(x.dtype)))


class LayerNorm(CastWeights, nn.LayerNorm):
    """`nn.LayerNorm` that casts its weights to the dtype of its input; statistics are float32."""

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.cast_to(x.dtype)
        return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


class Dropout(nn.Dropout):
    """`nn.Dropout` that is fast on a CPU, where p is rounded to a multiple of 1/256."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, self.training)


class ReluDropout(Dropout):
    """Dropout of max(0, x), in one operation on a CPU; may overwrite x."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, self.training, relu=True)


class MultiHeadAttention(nn.Module):
    """Multi-head attention (section 3.2.2), one product: head h takes K columns from h*K."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d_model = config.d_model
        self.n_heads = config.n_heads
        self.dropout = config.attention_dropout
        self.query_key_value = Linear(d_model, 3 * d_model, bias=config.attention_bias)
        self.output = Linear(d_model, d_model, bias=config.attention_bias)

    def forward(
        self,
        x: Tensor,
        bias: Tensor | None = None,
        memory: Tensor | None = None,
        causal: bool = False,
        packed: tuple[Packed, Packed] | None = None,
    ) -> Tensor:
        """Let x (B, T, D) attend to itself, or to memory (B, S, D) if given. -> (B, T, D)

        bias: see `attention_bias`; broadcastable to (B, H, T, T) or (B, H, T, S). causal: without
        a bias, each position attends to those up to itself. packed: where the sentences of x and
        of what it attends to are, if B is 1 and each is a row of several.
        """
        if memory is None:
            q, k, v = self.project(x)
        else:
            k, v = self.key_value(memory)
            q = self.query(x)
        if packed is not None:
            return self.merge(attend_packed(q, k, v, *packed, causal))
        dropout_p = self.dropout if self.training else 0.0
        return self.merge(attend(q, k, v, bias, dropout_p, causal).to(x.dtype))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute queries, keys and values of self-attention. (B, T, D) -> 3 x (B, H, T, K)"""
        q, k, v = self.query_key_value(x).chunk(3, dim=-1)  # 3 x (B, T, D)
        return self.split(q), self.split(k), self.split(v)

    def query(self, x: Tensor) -> Tensor:
        """Compute queries only, the first third of the product. (B, T, D) -> (B, H, T, K)"""
        return self.split(self.query_key_value.part(x, slice(0, x.shape[-1])))

    def key_value(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Compute keys and values only. (B, S, D) -> 2 x (B, H, S, K)"""
        both = self.query_key_value.part(memory, slice(memory.shape[-1], None))  # (B, S, 2D)
        k, v = both.chunk(2, dim=-1)  # 2 x (B, S, D)
        return self.split(k), self.split(v)

    def split(self, x: Tensor) -> Tensor:
        """Split the columns into heads. (B, T, D) -> (B, H, T, K)"""
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)  # of (B, T, H, K)

    def merge(self, x: Tensor) -> Tensor:
        """Concatenate the heads and multiply by W^O. (B, H, T, K) -> (B, T, D)"""
        return self.output(x.transpose(1, 2).flatten(-2))  # of (B, T, D)


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2 (section 3.3), with dropout after the activation."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.inner = Linear(config.d_model, config.d_ff)
        self.outer = Linear(config.d_ff, config.d_model)
        p = config.activation_dropout
        p = config.dropout_p if p is None else p
        self.activation: Callable[[Tensor], Tensor] | None = None
        self.dropout: nn.Module = Dropout(p)
        match config.activation:
            case "relu":
                self.dropout = ReluDropout(p)
            case "gelu":
                self.activation = F.gelu
            case "silu":
                self.activation = F.silu
            case _:
                assert_never(config.activation)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.inner(x)  # (B, T, F)
        return self.outer(self.dropout(self.activation(inner) if self.activation else inner))


class Residual(nn.Module):
    """The residual connection around a sub-layer f, with dropout (sections 3.1 and 5.4).

    It computes x + f(LN(x)) with `norm: pre`, and LN(x + f(x)), as the paper, with `norm: post`.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = LayerNorm(config.d_model)
        self.dropout = Dropout(config.dropout_p)
        self.pre_norm = config.pre_norm

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        if self.pre_norm:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward (section 3.1, figure 1 left)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(config)
        self.feed_forward = FeedForward(config)
        self.around_attention = Residual(config)
        self.around_feed_forward = Residual(config)

    def forward(self, x: Tensor, attention: Sublayer) -> Tensor:
        x = self.around_attention(x, attention)
        return self.around_feed_forward(x, self.feed_forward)


class DecoderLayer(nn.Module):
    """Self-attention, attention to the source, feed-forward (section 3.1, figure 1 right)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config)
        self.cross_attention = MultiHeadAttention(config)
        self.feed_forward = FeedForward(config)
        self.around_self_attention = Residual(config)
        self.around_cross_attention = Residual(config)
        self.around_feed_forward = Residual(config)

    def forward(self, x: Tensor, self_attention: Sublayer, cross_attention: Sublayer) -> Tensor:
        """x (B, T, D) -> (B, T, D). The two arguments compute this layer's attentions.

        They attend to the whole target in training (`Transformer.decode`) and to a cache in
        decoding (`search.inference`); word alignment keeps their weights (`search.alignment`).
        """
        x = self.around_self_attention(x, self_attention)
        x = self.around_cross_attention(x, cross_attention)
        return self.around_feed_forward(x, self.feed_forward)


def sinusoids(n_positions: int, d_model: int) -> Tensor:
    """PE(p, 2i) = sin(p / 10000^(2i/D)), PE(p, 2i+1) = cos(same) (section 3.5): (P, D) float64."""
    position = torch.arange(n_positions, dtype=torch.float64)[:, None]  # (P, 1)
    pair = torch.arange(0, d_model, 2, dtype=torch.float64)  # (D/2,), the 2i
    angle = position / 10000 ** (pair / d_model)  # (P, D/2)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)  # (P, D)


class Embedding(nn.Module):
    """Token embedding x sqrt(D), plus the position, then dropout (sections 3.4, 3.5, 5.4)."""

    def __init__(self, tokens: nn.Embedding, config: ModelConfig) -> None:
        super().__init__()
        self.tokens = tokens
        self.scale = math.sqrt(config.d_model)
        self.dropout = Dropout(config.dropout_p)
        self.learned = config.learned_positions
        self.positions: Tensor
        if self.learned:
            self.positions = nn.Parameter(torch.empty(config.max_positions, config.d_model))
        else:
            table = sinusoids(config.max_positions, config.d_model).float()
            self.register_buffer("positions", table, persistent=False)

    def forward(
        self, ids: Tensor, dtype: torch.dtype, positions: slice | Tensor | None = None
    ) -> Tensor:
        """ids (B, T) at 0, 1, ..., T given positions, or one slice -> (B, T, D) in `dtype`."""
        if positions is None:
            positions = slice(ids.shape[1])
        # In the parameters' dtype, because the gradient of a word is a sum over its occurrences.
        words = self.tokens(ids) * self.scale  # (B, T, D)
        return self.dropout((words + self.positions[positions]).to(dtype))


class Transformer(nn.Module):
    """Encoder, decoder and output matrix (figure 1).

    `tie_embeddings` shares one matrix between the target embedding and the output, and with the
    source embedding too if the vocabulary is joint (section 3.4).
    """

    def __init__(
        self, config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int, joint: bool
    ) -> None:
        super().__init__()
        self.config = config
        self.compute_dtype: torch.dtype | None = None  # None: the dtype of the parameters
        target = nn.Embedding(tgt_vocab_size, config.d_model)
        tied_source = config.tie_embeddings and joint
        source = target if tied_source else nn.Embedding(src_vocab_size, config.d_model)
        self.src_embedding = Embedding(source, config)
        self.tgt_embedding = Embedding(target, config)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.n_encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.n_decoder_layers))
        pre = config.pre_norm  # post-norm layers already end with a norm
        self.encoder_norm = LayerNorm(config.d_model) if pre else nn.Identity()
        self.decoder_norm = LayerNorm(config.d_model) if pre else nn.Identity()
        self.output = Linear(config.d_model, tgt_vocab_size, bias=config.output_bias)
        if config.tie_embeddings:
            self.output.weight = target.weight
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialise: Xavier-uniform matrices (Q, K, V each), zero biases, embeddings N(0, 1/D)."""
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
            elif "embedding" in name:  # a tied output matrix has this name
                nn.init.normal_(parameter, std=self.config.d_model**-0.5)
            else:
                nn.init.xavier_uniform_(parameter)

    @property
    def dtype(self) -> torch.dtype:
        return self.compute_dtype or self.output.weight.dtype

    @property
    def encoder_layers(self) -> list[EncoderLayer]:
        return cast("list[EncoderLayer]", list(self.encoder))

    @property
    def decoder_layers(self) -> list[DecoderLayer]:
        return cast("list[DecoderLayer]", list(self.decoder))

    def encode(self, src: Tensor, src_mask: Tensor, packed: Packed | None = None) -> Tensor:
        """Encode src ids (B, S), src_mask (B, S) True at real tokens. -> memory (B, S, D)

        packed: see `forward`, of src and in the place of src_mask.
        """
        bias = places = within = None
        if packed is None:
            bias = attention_bias(src_mask, self.dtype)[:, None, None, :]  # (B, 1, 1, S)
        else:
            places, within = packed.places, (packed, packed)
        x = self.src_embedding(src, self.dtype, places)  # (B, S, D)
        for layer in self.encoder_layers:
            x = layer(x, partial(layer.attention, bias=bias, packed=within))
        return self.encoder_norm(x)

    def decode(
        self, tgt_in: Tensor, memory: Tensor, src_mask: Tensor,
        packed: tuple[Packed, Packed] | None = None,
    ) -> Tensor:  # fmt: skip
        """Decode tgt_in ids (B, T) with memory (B, S, D), src_mask (B, S). -> (B, T, D)

        Target padding needs no mask: it follows the real tokens, which attend only backwards. So
        self-attention needs no bias, with which a GPU could not take its fastest kernel. packed:
        see `forward`, in the place of src_mask.
        """
        bias = places = within = across = None
        if packed is None:
            bias = attention_bias(src_mask, self.dtype)[:, None, None, :]  # (B, 1, 1, S)
        else:
            sources, targets = packed
            places, within, across = targets.places, (targets, targets), (targets, sources)
        x = self.tgt_embedding(tgt_in, self.dtype, places)  # (B, T, D)
        for layer in self.decoder_layers:
            to_target = partial(layer.self_attention, causal=True, packed=within)
            to_memory = partial(layer.cross_attention, bias=bias, memory=memory, packed=across)
            x = layer(x, self_attention=to_target, cross_attention=to_memory)
        return self.decoder_norm(x)

    def forward(
        self,
        src: Tensor,
        tgt_in: Tensor,
        src_mask: Tensor,
        packed: tuple[Packed, Packed] | None = None,
    ) -> Tensor:
        """Encode and decode. -> (B, T, D), of which `output` makes logits (B, T, V)

        packed: where the sentences of src (1, M) and of tgt_in (1, N) are, if nothing is computed
        for padding (`can_pack`). -> (1, N, D)
        """
        memory = self.encode(src, src_mask, packed and packed[0])
        return self.decode(tgt_in, memory, src_mask, packed)
