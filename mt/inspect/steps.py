"""Every matrix of one sentence, in the order in which the model computes them.

The walk calls the modules of the model one by one; on a model of meta tensors it gives shapes.
Shapes: S source tokens, T target tokens, D d_model, H heads, K = D / H. The batch is 1 with values.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from mt.config.schema import Config
from mt.data.tokens.tokenizer import BOS, EOS
from mt.inspect.attention import check_choice, checked, usual_source
from mt.model.attention import attention_weights, causal_mask
from mt.model.checkpoint import load_model
from mt.model.transformer import (
    DecoderLayer,
    Embedding,
    EncoderLayer,
    FeedForward,
    LayerNorm,
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
from mt.training.loss import logits_gradient, smoothed_cross_entropy

PACKAGE = Path(__file__).parents[1]
N_BEST_TOKENS = 5  # the most probable tokens that each step of the search shows
SELF, MASKED, CROSS = "self-attention", "masked self-attention", "cross-attention"
FORWARD = "feed-forward"

Place = tuple[Callable[..., Any], str]  # a function, and what stands in its line
Pieces = Callable[[Sequence[int]], list[str]]


@dataclass(frozen=True)
class MatrixStep:
    """A matrix that the model computes for a sentence."""

    part: str  # such as `encoder layer 1, self-attention`
    name: str  # such as Q
    formula: str
    shape: tuple[int, ...]
    place: str  # file and line that compute it
    rows: Sequence[str]  # what its rows stand for; empty where they are no tokens
    columns: Sequence[str]  # of scores and weights: the tokens that are attended to
    whole: Any  # NumPy array of that shape; None for shapes alone
    head: int | None  # that is shown, from 0, of a matrix for each head
    notes: Sequence[str] = ()  # a line for each row that says more than its first numbers

    @property
    def values(self) -> Any:
        """The two-dimensional array that is shown; None for shapes alone."""
        if self.whole is None:
            return None
        return np.atleast_2d(self.whole if self.head is None else self.whole[self.head])


@dataclass
class Walk:
    """The matrices so far. `layer` and `head`, from 1, are those that are shown in full."""

    model: Transformer
    layer: int
    head: int
    part: str = ""
    rows: Sequence[str] = ()  # tokens of the part at hand
    matrices: list[MatrixStep] = field(default_factory=list)
    others: list[MatrixStep] = field(default_factory=list)  # those of layers that are not shown
    weights: dict[str, Any] = field(default_factory=dict)  # by part and name, as NumPy arrays

    def add(
        self, name: str, formula: str, value: Tensor, function: Callable[..., Any], fragment: str,
        rows: Sequence[str] | None = None, columns: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Note a matrix, of all heads, and where `function` has `fragment`."""
        matrix = value[0] if value.ndim > 2 and len(value) == 1 else value
        head = self.head - 1 if value.ndim > 3 else None
        # A copy: the next operation may overwrite the tensor.
        whole = None if value.is_meta else matrix.numpy().copy()
        place, rows = line(function, fragment), self.rows if rows is None else rows
        about = (self.part, name, formula, tuple(matrix.shape), place, rows, columns)
        self.matrices.append(MatrixStep(*about, whole, head))

    def keep(self, **weights: Tensor | None) -> None:
        """Keep weights of the part at hand; matrices so that they stand at the right of a X."""
        for name, weight in weights.items():
            if weight is not None and not weight.is_meta:
                self.weights[f"{self.part}/{name}"] = weight.detach().t().numpy()

    def within(self, part: str, name: str) -> Walk:
        self.part = f"{part}, {name}"
        return self

    def norm(self, module: nn.LayerNorm, x: Tensor, names: tuple[str, str], place: Place) -> Tensor:
        """Walk through a layer norm of x (1, T, D); `names` of x and of the result."""
        of, name = names
        at = LayerNorm.forward, "F.layer_norm"
        mean = x.mean(-1, keepdim=True)  # (1, T, 1)
        sigma = (x.var(-1, correction=0, keepdim=True) + module.eps).sqrt()  # (1, T, 1)
        self.add("mean", f"of each row of {of}", mean, *at)
        self.add("σ", f"√(variance of each row + {module.eps:g})", sigma, *at)
        self.add("normal", f"({of} - mean) / σ", (x - mean) / sigma, *at)
        self.add("γ", "gain of each column", module.weight[None], *at, rows=())
        self.add("β", "bias of each column", module.bias[None], *at, rows=())
        normed: Tensor = module(x)
        formula = "normal · γ + β"
        self.add(name, formula if name == f"LN({of})" else f"LN({of}) = {formula}", normed, *place)
        return normed

    def residual(self, around: Residual, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Walk through `Residual`: add and norm, in the order of `norm`."""
        forward = Residual.forward
        if around.pre_norm:
            normed = self.norm(around.norm, x, ("X", "LN(X)"), (forward, "norm(x)"))
            x = x + sublayer(normed)
            self.add("X", "X + sub-layer(LN(X))", x, forward, "x + self")
            return x
        total = x + sublayer(x)
        place = forward, "return self.norm"
        self.add("X + f(X)", "X + sub-layer(X)", total, *place)
        return self.norm(around.norm, total, ("X + f(X)", "X"), place)

    def attention(
        self, module: MultiHeadAttention, memory: tuple[Tensor, Sequence[str]] | None,
        mask: Tensor | None, x: Tensor,
    ) -> Tensor:  # fmt: skip
        """Walk through multi-head attention: x (1, T, D); a memory (1, S, D) has its own tokens."""
        first = "LN(X)" if self.model.config.pre_norm else "X"
        source = first if memory is None else "M"
        code = MultiHeadAttention
        places: list[Place]
        if memory is None:
            q, k, v = module.project(x)
            places, seen = [(code.project, "query_key_value")] * 3, self.rows
        else:
            q, (k, v), seen = module.query(x), module.key_value(memory[0]), memory[1]
            places = [(code.query, "part"), *[(code.key_value, "part")] * 2]
        product = module.query_key_value
        bias = " + b" if product.bias is not None else ""
        for kind, values in (("W", product.weight), ("b", product.bias)):
            parts = zip("QKV", () if values is None else values.chunk(3), strict=values is not None)
            self.keep(**{f"{kind}_{name}": part for name, part in parts})
        self.keep(W_O=module.output.weight, b_O=module.output.bias)
        sides = ((first, self.rows), (source, seen), (source, seen))
        for name, value, (of, rows), place in zip("QKV", (q, k, v), sides, places, strict=True):
            formula = f"{of} W_{name}{bias}, columns of head {self.head}"
            self.add(name, formula, value, *place, rows)
        at = attention_weights, "scores = (q"
        raw = q @ k.transpose(-2, -1)  # (1, H, T, S)
        self.add("S", f"Q Kᵀ, head {self.head}", raw, *at, columns=seen)
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)  # (1, H, T, S), as mt does
        self.add("S scaled", f"S / √{q.shape[-1]}", scores, *at, columns=seen)
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
            formula = "-∞ where a later token stands"
            at = attention_weights, "scores + bias"
            self.add("S masked", formula, scores, *at, columns=seen)
        weights = scores.softmax(-1)
        formula = f"softmax of each row of S {'scaled' if mask is None else 'masked'}"
        self.add("P", formula, weights, attention_weights, "scores.softmax", columns=seen)
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
        self.keep(W_1=module.inner.weight, b_1=module.inner.bias)
        self.keep(W_2=module.outer.weight, b_2=module.outer.bias)
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
        self.keep(W_E=module.tokens.weight.T)
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

    def cost(self, target: list[int], smoothing: float, pieces: Pieces) -> None:
        """Say of p what is most probable and what is right, (T,) ids; then sum up what that costs.

        C = -Σ ln p, and the loss of training, where the label smoothing ε spreads a part of the
        right token's mass over all V tokens: Σ (1-ε)(-ln p) + ε · the mean of -ln p over V.
        """
        log_p = torch.from_numpy(self.matrices[-2].whole).log_softmax(-1)  # (T, V), never -∞
        shares, best = log_p.exp().topk(min(N_BEST_TOKENS, log_p.shape[-1]))
        right = log_p[torch.arange(len(target)), torch.tensor(target)]
        lines = [
            f"{share_of(zip(pieces(top), of_top, strict=True))}   right: {token} "
            f"{math.exp(own):.3f}, ln {own:.3f}"
            for top, of_top, token, own in zip(
                best.tolist(), shares.tolist(), pieces(target), right.tolist(), strict=True
            )
        ]
        self.matrices[-1] = replace(self.matrices[-1], notes=lines)
        self.part = "cost"
        at = smoothed_cross_entropy, "part = -log_p"
        nll = -right.sum()
        self.add("C", "-Σ ln p of the right tokens", nll[None, None], *at, rows=())
        smoothed = (1 - smoothing) * nll - smoothing * log_p.mean(-1).sum()
        formula = f"(1 - ε) C + ε · mean of -ln p over V, ε = {smoothing:g}"
        at = smoothed_cross_entropy, "smoothed +="
        self.add("C smoothed", formula, smoothed[None, None], *at, rows=())


def share_of(tokens: Iterable[tuple[str, float]]) -> str:
    """Say how probable some tokens are."""
    return "  ".join(f"{token} {share:.3f}" for token, share in tokens)


@torch.inference_mode()
def walk(
    model: Transformer, src: Tensor, tgt_in: Tensor,
    labels: tuple[Sequence[str], Sequence[str]], layer: int = 1, head: int = 1,
) -> Walk:  # fmt: skip
    """Walk through one sentence pair, src (1, S) and tgt_in (1, T).

    `labels`: of both sides' tokens. Of layers other than `layer` (a stack that has fewer: its last)
    only the output is among the `matrices`. Raises ConfigError for a layer or head beyond the last.
    """
    config = model.config
    depth = max(config.n_encoder_layers, config.n_decoder_layers)
    check_choice(layer, depth, head, config.n_heads)
    notes = Walk(model, layer, head)
    notes.part, notes.rows = "source", labels[0]
    memory = _walk_stack(notes, notes.embed("src", model.src_embedding, src), None)
    notes.part, notes.rows = "target", labels[1]
    x = notes.embed("tgt", model.tgt_embedding, tgt_in)
    x = _walk_stack(notes, x, (memory, labels[0]))
    logits = model.output(x)
    notes.keep(W=model.output.weight, b=model.output.bias)
    matrix = "the embedding matrix, transposed" if config.tie_embeddings else "a matrix of its own"
    bias = " + b" if config.output_bias else ""
    formula = f"{'LN(X)' if config.pre_norm else 'X'} W{bias}, W: {matrix}"
    notes.add("logits", formula, logits, fp32_logits, "model.output(x")
    formula = "softmax of each row: the next token"
    notes.add("p", formula, logits.softmax(-1), logits_gradient, "logits.softmax")
    return notes


def _walk_stack(notes: Walk, x: Tensor, memory: tuple[Tensor, Sequence[str]] | None) -> Tensor:
    """Walk through the encoder, or with a memory (1, S, D) and its tokens the decoder.

    x (1, T, D) -> (1, T, D): the memory, or that of which the output is made.
    """
    model = notes.model
    code: Callable[..., Any] = Transformer.encode
    side, stack, end, name = "encoder", model.encoder, "memory", "M"
    if memory is not None:
        code = Transformer.decode
        side, stack, end = "decoder", model.decoder, "output"
        name = "LN(X)" if model.config.pre_norm else "X"
    for number, layer in enumerate(cast("list[EncoderLayer | DecoderLayer]", [*stack]), start=1):
        notes.part = part = f"{side} layer {number}"
        is_shown = number == min(notes.layer, len(stack))
        steps = notes if is_shown else replace(notes, matrices=notes.others, others=[])
        if isinstance(layer, DecoderLayer):
            mask = causal_mask(x.shape[1], x.device)
            attend = partial(steps.attention, layer.self_attention, None, mask)
            x = steps.within(part, MASKED).residual(layer.around_self_attention, x, attend)
            attend = partial(steps.attention, layer.cross_attention, memory, None)
            x = steps.within(part, CROSS).residual(layer.around_cross_attention, x, attend)
        else:
            attend = partial(steps.attention, layer.attention, None, None)
            x = steps.within(part, SELF).residual(layer.around_attention, x, attend)
        feed_forward = partial(steps.feed_forward, layer.feed_forward)
        x = steps.within(part, FORWARD).residual(layer.around_feed_forward, x, feed_forward)
        if not is_shown:
            notes.add("X", "as in the layer that is shown", x, code, "x = layer")
    notes.part = end
    place, norm = (code, f"{side}_norm"), getattr(model, f"{side}_norm")
    if isinstance(norm, nn.LayerNorm):
        return notes.norm(norm, x, ("X", name), place)
    notes.add(name, "X", x, *place)  # post-norm has none after a stack
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
    log_prob: float  # the sum of ln p of its tokens
    best: tuple[tuple[str, float], ...]  # the most probable next tokens with their probabilities


@dataclass(frozen=True)
class Search:
    """The steps of a search, and the hypotheses that ended, best first."""

    steps: Sequence[Sequence[Prefix]]
    ended: Sequence[tuple[tuple[str, ...], float, float]]  # tokens, ln p, score
    length_penalty: float
    text: str


@dataclass
class RecordingStepper:
    """A `Stepper` that notes the live hypotheses of its one sentence before each step."""

    stepper: Stepper
    pieces: Pieces
    steps: list[list[Prefix]]
    ids: list[list[int]] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)  # of `ids`
    next_log_probs: Tensor | None = None  # (N, V) after the last step

    def step(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Extend every hypothesis, and note it."""
        before, log_probs, after = self.ids or [[]], self.log_probs, self.next_log_probs
        rows = [*zip(tokens[0].tolist(), parents[0].tolist(), strict=True)]
        self.ids = [[*before[parent], token] for token, parent in rows]
        self.log_probs = [0.0] * len(rows)  # of bos alone
        if after is not None:
            self.log_probs = [log_probs[row] + float(after[row, token]) for token, row in rows]
        logits = self.stepper.step(tokens, parents)
        self.next_log_probs = logits[0].float().log_softmax(-1)
        count = min(N_BEST_TOKENS, logits.shape[-1])
        values, best = self.next_log_probs.exp().topk(count)  # (N, 5), (N, 5)
        found = zip(self.ids, self.log_probs, best.tolist(), values.tolist(), strict=True)
        prefixes = [
            Prefix(tuple(self.pieces(ids[1:])), total, tuple(zip(self.pieces(top), p, strict=True)))
            for ids, total, top, p in found
            if EOS not in ids
        ]
        if prefixes:
            self.steps.append(prefixes)
        return logits

    def keep(self, rows: Tensor) -> None:
        self.stepper.keep(rows)


# --- what the command asks for ----------------------------------------------------------------


def steps_of_sentence(
    model: Path, sentences: tuple[str, str | None], to: str | None,
    layer: int, head: int, beam_size: int | None,
) -> tuple[Walk, Search]:  # fmt: skip
    """Return the matrices of a sentence, and its search.

    `sentences`: source, and target or None. ConfigError for a blank sentence, or one too long.
    """
    loaded = load_model(model)
    tokenizer, inference = loaded.tokenizer, Inference(loaded.model, choose_device("cpu", "fp32"))
    first_ids = tokenizer.before_source(to, loaded.data)
    longest = inference.max_tokens
    encoded = tokenizer.src.encode([usual_source(loaded, *sentences, to)])[0]
    src = first_ids + checked(encoded, "the sentence", longest - len(first_ids))
    options = SearchOptions(beam_size=beam_size or 1, n_best=beam_size or 1)
    decode = options.decode_config(loaded.config)

    def pieces(ids: Sequence[int]) -> list[str]:
        return ["</s>" if number == EOS else tokenizer.tgt.pieces_of([number])[0] for number in ids]

    steps: list[list[Prefix]] = []
    recording, start = cast("Any", inference), inference.start
    recording.start = lambda *given: RecordingStepper(start(*given), pieces, steps)
    (ended,) = TorchEngine(inference, decode, options).search([src], [[]])
    hypotheses = [(tuple(pieces(one.tokens)), one.log_prob, one.score) for one in ended]
    tgt = list(ended[0].tokens)
    text = tokenizer.tgt.decode([tgt])[0]
    search = Search(steps, hypotheses, decode.length_penalty, text)
    if sentences[1] is not None:
        tgt = checked(tokenizer.tgt.encode([sentences[1]])[0], "--target", longest)
    labels = [*tokenizer.src.pieces_of(src), "</s>"], ["<s>", *tokenizer.tgt.pieces_of(tgt)]
    src_ids, tgt_in = torch.tensor([[*src, EOS]]), torch.tensor([[BOS, *tgt]])
    notes = walk(loaded.model.eval(), src_ids, tgt_in, labels, layer, head)
    notes.cost([*tgt, EOS], loaded.config.optim.label_smoothing, pieces)
    return notes, search


def steps_of_config(
    config: Config, layer: int, head: int, lengths: tuple[int, int], batch: int
) -> Walk:
    """Return matrices without values: `batch` pairs of `lengths` tokens, eos and bos included."""
    with torch.device("meta"):
        size = config.tokenizer.size
        model = Transformer(config.model, size, size, config.tokenizer.joint).eval()
        src, tgt_in = (torch.zeros(batch, length, dtype=torch.long) for length in lengths)
    return walk(model, src, tgt_in, ((), ()), layer, head)
