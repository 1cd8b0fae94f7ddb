"""Export a model to CTranslate2, and check that both assign the same probabilities.

Shapes: V vocabulary, D d_model. CTranslate2 stores matrices as torch does, (outputs, inputs).
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mt.data.tokenizer import EOS, Tokenizer
from mt.decoding.inference import Inference
from mt.decoding.scoring import ForcedDecoder
from mt.errors import CheckpointError, ConfigError
from mt.model.checkpoint import LoadedModel
from mt.model.transformer import (
    DecoderLayer,
    EncoderLayer,
    LayerNorm,
    MultiHeadAttention,
    Residual,
    Transformer,
)
from mt.runtime.devices import Device

# The check scores so many pairs of at most so many tokens with both models in float32. No
# log-probability of a token may differ by more than the tolerance, in nats.
PAIRS = 64
MAX_TOKENS = 20
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Parity:
    """How closely the exported model agrees with ours."""

    pairs: int
    tokens: int
    max_difference: float  # of the log-probability of a token

    def __str__(self) -> str:
        """What `mt export` reports."""
        return (
            f"{self.tokens:,} tokens of {self.pairs} pairs have the same log-probability, "
            f"within {self.max_difference:.1e}"
        )


def export(loaded: LoadedModel, output: Path) -> Parity:
    """Write the model to `output`, a new folder, with the SentencePiece models beside the weights.

    Raises ConfigError if ctranslate2 is not installed, CheckpointError if the folder exists or
    cannot be written, or if the check fails; nothing is left at `output` then.
    """
    library = _import_library()
    if output.exists():
        raise CheckpointError(f"--output {output}: already exists; give another path, or remove it")
    partial = output.with_name(f".{output.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        specification(loaded.model, loaded.tokenizer).save(str(partial))
        loaded.tokenizer.save(partial)
        translator = library.Translator(str(partial), device="cpu", compute_type="float32")
        parity = compare(loaded, translator)
        partial.rename(output)
    except OSError as error:
        need = sum(weight.numel() * 4 for weight in loaded.model.parameters()) / 1e6
        raise CheckpointError(
            f"--output {output}: cannot be written ({error.strerror or error}); the export needs "
            f"{need:,.1f} MB: free some space there, or give a folder on another disk that you "
            "may write to"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return parity


def _import_library() -> Any:
    try:
        import ctranslate2
    except ImportError as error:
        raise ConfigError(
            f"export ctranslate2: needs the package ctranslate2, which cannot be imported "
            f"({error}); run: pip install ctranslate2"
        ) from error
    return ctranslate2


def specification(model: Transformer, tokenizer: Tokenizer) -> Any:
    """Translate the model into CTranslate2's specification, ready to be saved."""
    from ctranslate2.specs import common_spec, transformer_spec

    config = model.config
    activations = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH"}
    spec = transformer_spec.TransformerSpec.from_config(
        (config.n_encoder_layers, config.n_decoder_layers),
        config.n_heads,
        pre_norm=config.norm == "pre",
        activation=common_spec.Activation[activations[config.activation]],
    )
    for side, ours in ((spec.encoder, model.src_embedding), (spec.decoder, model.tgt_embedding)):
        embeddings = side.embeddings[0] if isinstance(side.embeddings, list) else side.embeddings
        embeddings.weight = _array(ours.tokens.weight)  # (V, D)
        side.scale_embeddings = True
        side.position_encodings.encodings = _array(ours.positions)  # (positions, D)
    for theirs, encoder_layer in zip(spec.encoder.layer, model.encoder_layers, strict=True):
        _copy_encoder_layer(theirs, encoder_layer)
    for theirs, decoder_layer in zip(spec.decoder.layer, model.decoder_layers, strict=True):
        _copy_decoder_layer(theirs, decoder_layer)
    if config.norm == "pre":
        _copy_norm(spec.encoder.layer_norm, model.encoder_norm)
        _copy_norm(spec.decoder.layer_norm, model.decoder_norm)
    _copy_linear(spec.decoder.projection, model.output)
    spec.register_source_vocabulary(tokenizer.src_pieces_of(list(range(tokenizer.src_vocab_size))))
    spec.register_target_vocabulary(tokenizer.tgt_pieces_of(list(range(tokenizer.tgt_vocab_size))))
    spec.config.add_source_eos = True  # src = tokens + eos
    spec.config.layer_norm_epsilon = model.encoder_layers[0].around_attention.norm.eps
    spec.validate()
    spec.optimize(quantization=None)
    return spec


def _array(tensor: Tensor) -> Any:
    return tensor.detach().float().cpu().numpy()


def _copy_matrix(theirs: Any, weight: Tensor, bias: Tensor | None) -> None:
    theirs.weight = _array(weight)
    if bias is not None:
        theirs.bias = _array(bias)


def _copy_linear(theirs: Any, ours: nn.Linear) -> None:
    _copy_matrix(theirs, ours.weight, ours.bias)


def _copy_norm(theirs: Any, ours: nn.Module) -> None:
    assert isinstance(ours, LayerNorm)
    theirs.gamma = _array(ours.weight)
    theirs.beta = _array(ours.bias)


def _copy_encoder_layer(theirs: Any, ours: EncoderLayer) -> None:
    _copy_self_attention(theirs.self_attention, ours.attention, ours.around_attention)
    _copy_feed_forward(theirs.ffn, ours)


def _copy_decoder_layer(theirs: Any, ours: DecoderLayer) -> None:
    _copy_self_attention(theirs.self_attention, ours.self_attention, ours.around_self_attention)
    _copy_cross_attention(theirs.attention, ours.cross_attention, ours.around_cross_attention)
    _copy_feed_forward(theirs.ffn, ours)


def _copy_self_attention(theirs: Any, ours: MultiHeadAttention, around: Residual) -> None:
    _copy_norm(theirs.layer_norm, around.norm)
    merged, output = theirs.linear
    _copy_linear(merged, ours.query_key_value)  # (3 D, D)
    _copy_linear(output, ours.output)


def _copy_cross_attention(theirs: Any, ours: MultiHeadAttention, around: Residual) -> None:
    _copy_norm(theirs.layer_norm, around.norm)
    query, key_value, output = theirs.linear
    weight, bias = ours.query_key_value.weight, ours.query_key_value.bias
    width = ours.query_key_value.in_features
    _copy_matrix(query, weight[:width], None if bias is None else bias[:width])  # (D, D)
    _copy_matrix(key_value, weight[width:], None if bias is None else bias[width:])  # (2 D, D)
    _copy_linear(output, ours.output)


def _copy_feed_forward(theirs: Any, ours: EncoderLayer | DecoderLayer) -> None:
    _copy_norm(theirs.layer_norm, ours.around_feed_forward.norm)
    _copy_linear(theirs.linear_0, ours.feed_forward.inner)
    _copy_linear(theirs.linear_1, ours.feed_forward.outer)


def compare(loaded: LoadedModel, translator: Any) -> Parity:
    """Score the same random pairs with both models; raise CheckpointError if they differ.

    Random tokens of all lengths up to `MAX_TOKENS` can reach every row of the embeddings, and an
    untrained model can be compared as well.
    """
    tokenizer = loaded.tokenizer
    draw = random.Random(1)
    longest = min(MAX_TOKENS, loaded.model.config.max_positions - 1)

    def random_ids(vocab_size: int) -> list[int]:
        return [draw.randrange(EOS + 1, vocab_size) for _ in range(draw.randint(1, longest))]

    pairs = [
        (random_ids(tokenizer.src_vocab_size), random_ids(tokenizer.tgt_vocab_size))
        for _ in range(PAIRS)
    ]
    inference = Inference(loaded.model, Device(torch.device("cpu"), "fp32"))
    ours = ForcedDecoder(inference).score(pairs)
    theirs: Sequence[Any] = translator.score_batch(
        [tokenizer.src_pieces_of(src) for src, _ in pairs],
        [tokenizer.tgt_pieces_of(tgt) for _, tgt in pairs],
    )
    differences = [
        abs(one - other)
        for our_scores, their_scores in zip(ours, theirs, strict=True)
        for one, other in zip(our_scores.log_probs, their_scores.log_probs, strict=True)
    ]
    worst = max(differences)
    if not worst <= TOLERANCE:  # NaN fails too
        raise CheckpointError(
            f"export ctranslate2: the converted model gives other probabilities than mt, by up to "
            f"{worst:.4f} nats a token where {TOLERANCE} is allowed, so nothing was written; "
            "please report it with the run's config.yaml"
        )
    return Parity(len(pairs), len(differences), worst)
