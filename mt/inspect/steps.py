"""Every matrix of one sentence, in the order in which the model computes them.

The walk calls the modules of the model one by one; on a model of meta tensors it gives shapes.
Shapes: S source tokens, T target tokens, D d_model, H heads, K = D / H. The batch is one sentence.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mt.config.plan import plan_data
from mt.config.schema import Config
from mt.data.tokens.tokenizer import BOS, EOS
from mt.errors import ConfigError
from mt.inspect.attention import checked, usual_source
from mt.model.attention import attention_weights, causal_mask
from mt.model.checkpoint import load_model
from mt.model.transformer import (
    Embedding,
    FeedForward,
    MultiHeadAttention,
    Residual,
    Transformer,
    sinusoids,
)
from mt.runtime.devices import choose_device
from mt.search.engine import TorchEngine
from mt.search.inference import Inference, fp32_logits
from mt.search.options import SearchOptions
from mt.search.search import Stepper
from mt.training.loss import logits_gradient

PACKAGE = Path(__file__).parents[1]
N_BEST_TOKENS = 5  # the most probable tokens that each step of the search shows
LENGTHS = (10, 12)  # tokens of the two sides where a config alone is given, eos and bos included


@dataclass(frozen=True)
class MatrixStep:
    """A matrix that the model computes for a sentence."""

    part: str  # such as `encoder layer 1`
    name: str  # such as Q
    formula: str
    shape: tuple[int, ...]
    place: str  # file and line that compute it
    values: Any  # two-dimensional NumPy array; None for shapes alone
    rows: Sequence[str]  # what its rows stand for; empty where they are no tokens


@dataclass
class Walk:
    """The matrices so far. `layer` and `head`, from 1, are those that are shown in full."""

    model: Transformer
    layer: int
    head: int
    part: str = ""
    rows: Sequence[str] = ()  # tokens of the part at hand
    matrices: list[MatrixStep] = field(default_factory=list)

    def add(
        self,
        name: str,
        formula: str,
        value: Tensor,
        function: Callable[..., Any],
        fragment: str,
        rows: Sequence[str] | None = None,
    ) -> None:
        """Note a matrix, or that of the head that is shown, and where `function` has `fragment`."""
        matrix = value[0] if value.ndim > 2 else value
        shown = matrix[self.head - 1] if matrix.ndim > 2 else matrix
        # A copy: the next operation may overwrite the tensor.
        values = None if value.is_meta else np.atleast_2d(shown.numpy().copy())
        place, rows = line(function, fragment), self.rows if rows is None else rows
        shape = tuple(matrix.shape)
        self.matrices.append(MatrixStep(self.part, name, formula, shape, place, values, rows))

    def of_layer(self, number: int, depth: int) -> Walk:
        """Return this walk for the layer that is shown, else one whose notes nobody reads."""
        return self if number == min(self.layer, depth) else replace(self, matrices=[])

    def residual(self, around: Residual, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Walk through `Residual`: add and norm, in the order of `norm`."""
        forward = Residual.forward
        if around.pre_norm:
            normed = around.norm(x)
            self.add("LN(X)", "norm before the sub-layer", normed, forward, "norm(x)")
            x = x + sublayer(normed)
            self.add("X", "X + sub-layer(LN(X))", x, forward, "x + self")
            return x
        total = x + sublayer(x)
        self.add("X + f(X)", "X + sub-layer(X)", total, forward, "return self.norm")
        x = around.norm(total)
        self.add("X", "LN(X + sub-layer(X))", x, forward, "return self.norm")
        return x

    def attention(
        self,
        module: MultiHeadAttention,
        memory: tuple[Tensor, Sequence[str]] | None,
        mask: Tensor | None,
        x: Tensor,
    ) -> Tensor:
        """Walk through multi-head attention: x (1, T, D); a memory (1, S, D) has its own tokens."""
        first = "LN(X)" if self.model.config.pre_norm else "X"
        source = first if memory is None else "M"
        code = MultiHeadAttention
        places: list[tuple[Callable[..., Any], str]]
        if memory is None:
            q, k, v = module.project(x)
            places, seen = [(code.project, "query_key_value")] * 3, self.rows
        else:
            q, (k, v), seen = module.query(x), module.key_value(memory[0]), memory[1]
            places = [(code.query, "part"), *[(code.key_value, "part")] * 2]
        bias = " + b" if module.query_key_value.bias is not None else ""
        sides = ((first, self.rows), (source, seen), (source, seen))
        for name, value, (of, rows), place in zip("QKV", (q, k, v), sides, places, strict=True):
            formula = f"{of} W_{name}{bias}, columns of head {self.head}"
            self.add(name, formula, value, *place, rows)
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)  # (1, H, T, S)
        self.add("S", f"Q Kᵀ / √{q.shape[-1]}", scores, attention_weights, "scores = (q")
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
            formula = "-∞ where a later token stands"
            self.add("S masked", formula, scores, attention_weights, "scores + bias")
        weights = scores.softmax(-1)
        formula = f"softmax of each row of S, head {self.head}"
        self.add("P", formula, weights, attention_weights, "scores.softmax")
        mixed = weights @ v  # (1, H, T, K)
        self.add("Z", "P V", mixed, code.forward, "self.merge(attend(q")
        joined = mixed.transpose(1, 2).flatten(-2)  # of (1, T, H, K)
        self.add("Z joined", "the heads side by side", joined, code.merge, "self.output")
        output = module.output(joined)
        self.add("Z W_O", f"joined heads · W_O{bias}", output, code.merge, "self.output")
        return output

    def feed_forward(self, module: FeedForward, x: Tensor) -> Tensor:
        """Walk through the feed-forward: x (1, T, D) -> (1, T, D)."""
        inner = module.inner(x)
        first = "LN(X)" if self.model.config.pre_norm else "X"
        self.add("X W_1", f"{first} W_1 + b_1", inner, FeedForward.forward, "self.inner")
        active = module.dropout(module.activation(inner) if module.activation else inner)
        outer = FeedForward.forward, "return self.outer"
        self.add("A", f"{self.model.config.activation}({first} W_1 + b_1)", active, *outer)
        output = module.outer(active)
        self.add("A W_2", "A W_2 + b_2", output, *outer)
        return output

    def embed(self, side: str, module: Embedding, ids: Tensor) -> Tensor:
        """Walk through the embedding of a side, src or tgt: ids (1, T) -> (1, T, D)."""
        formula = "number of each token in the vocabulary"
        of_side = Transformer.encode if side == "src" else Transformer.decode
        self.add("ids", formula, ids, of_side, f"{side}_embedding")
        words = module.tokens(ids) * module.scale
        formula = f"row of the embedding matrix · √{words.shape[-1]}"
        self.add("E", formula, words, Embedding.forward, "self.tokens(ids)")
        positions = module.positions[: ids.shape[1]][None]
        if module.learned:
            self.add("PE", "learned", positions, Embedding.__init__, "torch.empty")
        else:
            formula = "sine and cosine of position / 10000^(2i/D)"
            self.add("PE", formula, positions, sinusoids, "stack")
        x = words + positions
        self.add("X", "E + PE", x, Embedding.forward, "words + self.positions")
        return x


@torch.inference_mode()
def walk(
    model: Transformer,
    src: Tensor,
    tgt_in: Tensor,
    labels: tuple[Sequence[str], Sequence[str]],
    layer: int = 1,
    head: int = 1,
) -> list[MatrixStep]:
    """Return every matrix of one sentence pair, src (1, S) and tgt_in (1, T), in order.

    `labels`: of the tokens on both sides. Layers other than `layer` (a stack that has fewer: its
    last) give their output alone. Raises ConfigError for a layer or head that is not there.
    """
    config = model.config
    depth = max(config.n_encoder_layers, config.n_decoder_layers)
    for option, number, most in (("--layer", layer, depth), ("--head", head, config.n_heads)):
        if not 1 <= number <= most:
            raise ConfigError(f"{option}: the model has 1 to {most}, found {number}")
    notes = Walk(model, layer, head)
    notes.part, notes.rows = "source", labels[0]
    memory = _walk_encoder(notes, notes.embed("src", model.src_embedding, src))
    notes.part, notes.rows = "target", labels[1]
    x = notes.embed("tgt", model.tgt_embedding, tgt_in)
    x = _walk_decoder(notes, x, (memory, labels[0]))
    notes.part = "output"
    logits = model.output(x)
    matrix = "the embedding matrix" if config.tie_embeddings else "a matrix of its own"
    bias = " + b" if config.output_bias else ""
    formula = f"X Wᵀ{bias}, W: {matrix}"
    notes.add("logits", formula, logits, fp32_logits, "model.output(x")
    formula = "softmax of each row: the next token"
    notes.add("p", formula, logits.softmax(-1), logits_gradient, "logits.softmax")
    return notes.matrices


def _walk_encoder(notes: Walk, x: Tensor) -> Tensor:
    """x (1, S, D) -> memory (1, S, D)"""
    model = notes.model
    for number, layer in enumerate(model.encoder_layers, start=1):
        notes.part = f"encoder layer {number}"
        steps = notes.of_layer(number, len(model.encoder))
        attend = partial(steps.attention, layer.attention, None, None)
        x = steps.residual(layer.around_attention, x, attend)
        feed_forward = partial(steps.feed_forward, layer.feed_forward)
        x = steps.residual(layer.around_feed_forward, x, feed_forward)
        if steps is not notes:
            notes.add("X", "as in the layer that is shown", x, Transformer._encode, "x = layer")
    notes.part = "memory"
    x = model.encoder_norm(x)
    formula = "LN(X)" if model.config.pre_norm else "X"
    notes.add("M", formula, x, Transformer._encode, "encoder_norm")
    return x


def _walk_decoder(notes: Walk, x: Tensor, memory: tuple[Tensor, Sequence[str]]) -> Tensor:
    """x (1, T, D), memory (1, S, D) with its tokens -> (1, T, D), of which the output is made"""
    model = notes.model
    mask = causal_mask(x.shape[1], x.device)
    for number, layer in enumerate(model.decoder_layers, start=1):
        notes.part = f"decoder layer {number}"
        steps = notes.of_layer(number, len(model.decoder))
        attend = partial(steps.attention, layer.self_attention, None, mask)
        x = steps.residual(layer.around_self_attention, x, attend)
        attend = partial(steps.attention, layer.cross_attention, memory, None)
        x = steps.residual(layer.around_cross_attention, x, attend)
        feed_forward = partial(steps.feed_forward, layer.feed_forward)
        x = steps.residual(layer.around_feed_forward, x, feed_forward)
        if steps is not notes:
            notes.add("X", "as in the layer that is shown", x, Transformer._decode, "x = layer")
    notes.part = "output"
    x = model.decoder_norm(x)
    formula = "LN(X)" if model.config.pre_norm else "X"
    notes.add("X", formula, x, Transformer._decode, "decoder_norm")
    return x


def line(function: Callable[..., Any], fragment: str) -> str:
    """Return file and line of the first line of a function that has a fragment."""
    source, first = inspect.getsourcelines(function)
    number = next(i for i, text in enumerate(source) if fragment in text)
    path = Path(inspect.getsourcefile(function) or "").relative_to(PACKAGE.parent)
    return f"{path}:{first + number}"


# --- the search, step by step -----------------------------------------------------------------


@dataclass(frozen=True)
class Prefix:
    """A hypothesis before a step of the search, and what may follow it."""

    tokens: tuple[str, ...]
    best: tuple[tuple[str, float], ...]  # the most probable next tokens with their probabilities


@dataclass
class RecordingStepper:
    """A `Stepper` that notes the live hypotheses of its one sentence before each step."""

    stepper: Stepper
    pieces: Callable[[Sequence[int]], list[str]]
    steps: list[list[Prefix]]
    ids: list[list[int]] = field(default_factory=list)

    def step(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Extend every hypothesis, and note it."""
        before = self.ids or [[]]
        rows = zip(tokens[0].tolist(), parents[0].tolist(), strict=True)
        self.ids = [[*before[parent], token] for token, parent in rows]
        logits = self.stepper.step(tokens, parents)
        count = min(N_BEST_TOKENS, logits.shape[-1])
        values, best = logits[0].float().softmax(-1).topk(count)  # (N, 5), (N, 5)
        prefixes = [
            Prefix(tuple(self.pieces(ids[1:])), tuple(zip(self.pieces(top), shares, strict=True)))
            for ids, top, shares in zip(self.ids, best.tolist(), values.tolist(), strict=True)
            if EOS not in ids
        ]
        if prefixes:
            self.steps.append(prefixes)
        return logits

    def keep(self, rows: Tensor) -> None:
        self.stepper.keep(rows)


class RecordingInference:
    """An `Inference` whose steppers note what they do."""

    def __init__(self, inference: Inference, pieces: Callable[[Sequence[int]], list[str]]) -> None:
        self.inference = inference
        self.pieces = pieces
        self.steps: list[list[Prefix]] = []

    def start(self, *arguments: Any) -> RecordingStepper:
        return RecordingStepper(self.inference.start(*arguments), self.pieces, self.steps)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inference, name)


# --- what the command asks for ----------------------------------------------------------------


def steps_of_sentence(
    model: Path,
    sentences: tuple[str, str | None],
    to: str | None,
    layer: int,
    head: int,
    beam_size: int | None,
) -> tuple[list[MatrixStep], list[list[Prefix]], str]:
    """Return the matrices of a sentence, the steps of its search, and the text that it finds.

    `sentences`: source and target, for which None is the one that the search finds. Raises
    ConfigError for a blank sentence, and for one too long for the model.
    """
    loaded = load_model(model)
    tokenizer, inference = loaded.tokenizer, Inference(loaded.model, choose_device("cpu", "fp32"))
    first_ids = tokenizer.before_source(to, plan_data(loaded.config.data))
    longest = inference.max_tokens
    encoded = tokenizer.src.encode([usual_source(loaded, *sentences, to)])[0]
    src = first_ids + checked(encoded, "the sentence", longest - len(first_ids))
    decode = SearchOptions(beam_size=beam_size or 1).decode_config(loaded.config)

    def pieces(ids: Sequence[int]) -> list[str]:
        return ["</s>" if number == EOS else tokenizer.tgt.pieces_of([number])[0] for number in ids]

    recording: Any = RecordingInference(inference, pieces)
    (tgt,) = TorchEngine(recording, decode).search([src], [[]]).ids()[:1]
    text = tokenizer.tgt.decode([tgt])[0]
    if sentences[1] is not None:
        tgt = checked(tokenizer.tgt.encode([sentences[1]])[0], "--target", longest)
    labels = [*tokenizer.src.pieces_of(src), "</s>"], ["<s>", *tokenizer.tgt.pieces_of(tgt)]
    src_ids, tgt_in = torch.tensor([[*src, EOS]]), torch.tensor([[BOS, *tgt]])
    return walk(loaded.model.eval(), src_ids, tgt_in, labels, layer, head), recording.steps, text


def steps_of_config(config: Config, layer: int, head: int) -> list[MatrixStep]:
    """Return the matrices of a model of this config without their values, for typical lengths."""
    with torch.device("meta"):
        size = config.tokenizer.size
        model = Transformer(config.model, size, size, config.tokenizer.joint).eval()
        src, tgt_in = (torch.zeros(1, length, dtype=torch.long) for length in LENGTHS)
    return walk(model, src, tgt_in, ((), ()), layer, head)
