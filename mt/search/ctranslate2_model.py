"""Convert the weights of a model for CTranslate2, and score pairs with the result.

Shapes: V vocabulary, D d_model. CTranslate2 stores matrices as torch does, (outputs, inputs).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor, nn
from typing_extensions import assert_never

from mt.data.tokens.tokenizer import Tokenizer
from mt.model.transformer import FeedForward, MultiHeadAttention, Residual, Transformer, sinusoids
from mt.search.scoring import LogProbs, Pair

# CTranslate2's name of each precision that weights can be stored in.
QUANTIZATIONS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "int8"}
WHOLE = slice(None)
# CTranslate2 searches up to 256 tokens, unless it is told another limit.
LEAST_POSITIONS = 512


def specification(
    model: Transformer,
    tokenizer: Tokenizer,
    quantization: str = "fp32",
    first_ids: Sequence[int] = (),
) -> Any:
    """The model as CTranslate2's specification. `first_ids`: what comes before each source."""
    from ctranslate2.specs import transformer_spec

    config = model.config
    spec = transformer_spec.TransformerSpec.from_config(
        (config.n_encoder_layers, config.n_decoder_layers),
        config.n_heads,
        pre_norm=config.pre_norm,
        activation=_activation(config.activation),
    )
    for side, ours in ((spec.encoder, model.src_embedding), (spec.decoder, model.tgt_embedding)):
        embeddings = side.embeddings[0] if isinstance(side.embeddings, list) else side.embeddings
        embeddings.weight = _array(ours.tokens.weight)  # (V, D)
        side.scale_embeddings = True
        # A sentence past the table is an error of CTranslate2, whose users do not know its length.
        longest = max(config.max_positions, LEAST_POSITIONS)
        positions = ours.positions if ours.learned else sinusoids(longest, config.d_model)
        side.position_encodings.encodings = _array(positions)  # (positions, D)
    merged, cross = [WHOLE], [slice(config.d_model), slice(config.d_model, None)]
    for theirs, inner in zip(spec.encoder.layer, model.encoder_layers, strict=True):
        _copy_attention(theirs.self_attention, inner.attention, inner.around_attention, merged)
        _copy_feed_forward(theirs.ffn, inner.feed_forward, inner.around_feed_forward)
    for theirs, layer in zip(spec.decoder.layer, model.decoder_layers, strict=True):
        around = layer.around_self_attention, layer.around_cross_attention
        _copy_attention(theirs.self_attention, layer.self_attention, around[0], merged)
        _copy_attention(theirs.attention, layer.cross_attention, around[1], cross)
        _copy_feed_forward(theirs.ffn, layer.feed_forward, layer.around_feed_forward)
    if config.pre_norm:
        _copy_norm(spec.encoder.layer_norm, model.encoder_norm)
        _copy_norm(spec.decoder.layer_norm, model.decoder_norm)
    _copy_linear(spec.decoder.projection, model.output)
    spec.register_source_vocabulary(tokenizer.src.all_pieces())
    spec.register_target_vocabulary(tokenizer.tgt.all_pieces())
    spec.config.add_source_eos = True  # src = tokens + eos
    if first_ids:
        (spec.config.bos_token,) = tokenizer.src.pieces_of(first_ids)
        spec.config.add_source_bos = True
    spec.config.layer_norm_epsilon = model.encoder_layers[0].around_attention.norm.eps
    spec.validate()
    spec.optimize(quantization=QUANTIZATIONS[quantization])
    return spec


def _activation(name: Literal["relu", "gelu", "silu"]) -> Any:
    from ctranslate2.specs.common_spec import Activation

    match name:
        case "relu":
            return Activation.RELU
        case "gelu":
            return Activation.GELU
        case "silu":
            return Activation.SWISH
        case unknown:
            assert_never(unknown)


def _array(tensor: Tensor) -> Any:
    """A copy in float32: CTranslate2 scales arrays in place when it makes them int8."""
    return tensor.detach().float().cpu().numpy().copy()


def _copy_linear(theirs: Any, ours: nn.Linear, rows: slice = WHOLE) -> None:
    theirs.weight = _array(ours.weight[rows])
    if ours.bias is not None:
        theirs.bias = _array(ours.bias[rows])


def _copy_norm(theirs: Any, ours: nn.Module) -> None:
    theirs.gamma, theirs.beta = map(_array, ours.parameters())  # weight and bias


def _copy_attention(
    theirs: Any, ours: MultiHeadAttention, around: Residual, parts: Sequence[slice]
) -> None:
    """Copy attention; `parts`: rows of our (3 D, D) matrix that are matrices of their own there."""
    _copy_norm(theirs.layer_norm, around.norm)
    *inputs, output = theirs.linear
    for part, rows in zip(inputs, parts, strict=True):
        _copy_linear(part, ours.query_key_value, rows)
    _copy_linear(output, ours.output)


def _copy_feed_forward(theirs: Any, ours: FeedForward, around: Residual) -> None:
    _copy_norm(theirs.layer_norm, around.norm)
    _copy_linear(theirs.linear_0, ours.inner)
    _copy_linear(theirs.linear_1, ours.outer)


def scorer(tokenizer: Tokenizer, translator: Any) -> LogProbs:
    """Return what scores pairs of token ids with a `ctranslate2.Translator`."""

    def log_probs(pairs: Sequence[Pair]) -> list[Sequence[float]]:
        sources = [tokenizer.src.pieces_of(list(src)) for src, _ in pairs]
        targets = [tokenizer.tgt.pieces_of(list(tgt)) for _, tgt in pairs]
        return [score.log_probs for score in translator.score_batch(sources, targets)]

    return log_probs
