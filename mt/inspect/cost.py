"""FLOPs and memory of training and decoding, in closed form from the sizes of a model.

Sizes: d d_model, f d_ff, h heads, V target vocabulary, N_e and N_d layers, S and T tokens of source
and target (eos included, padding too), B sentences, k hypotheses of a beam.

FLOPs are those of matrix products, two for each multiply-add, as `torch.utils.flop_counter` counts
them; norms, softmax and dropout are left out. A backward pass has twice the products of its forward
pass. Memory is an estimate: it leaves out the libraries, workspace, and what the allocator keeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import assert_never

from mt.training.loss import CHUNK_ELEMENTS

if TYPE_CHECKING:
    from mt.config.schema import Config, ModelConfig
    from mt.inspect.summary import Summary

# Bytes of a number by precision. Attention on a CPU computes in fp32 whatever the precision is.
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
FP32 = 4
BACKWARD = 2  # FLOPs of a backward pass, in forward passes
PREFIXES = ("", "k", "M", "G", "T", "P")
# Parts of memory whose names in the table are others than in JSON.
NAMES = {
    "optimizer": "optimiser", "ema": "averaged weights", "cache": "keys and values", "total": "sum",
}  # fmt: skip
FIRST_STEPS = 16  # steps that the cache of a new batch has room for; it doubles when they are used


def cost_of(
    summary: Summary,
    config: Config,
    *,
    length: int,
    batch_tokens: int,
    beam_size: int,
    precision: str = "fp32",
) -> dict[str, Any]:
    """FLOPs, and memory in bytes on each device, of a model and sentences of `length` tokens.

    `batch_tokens`: padded tokens of a training batch on each side; in decoding, source tokens times
    beam size. The batch has at least one sentence. `flops` and `memory_bytes` are as in JSON.
    Training FLOPs are forward and backward; R-Drop runs both twice. Those of decoding are
    of all hypotheses of the beam, with the encoder's share.
    """
    model = config.model
    vocabulary = summary.tgt_vocab_size
    forward = forward_flops(model, vocabulary, length, length)
    training = forward * (1 + BACKWARD) * _passes(config) // length
    decoding = sum(
        step_flops(model, vocabulary, beam_size, length, step) for step in range(1, length + 1)
    )
    batch: dict[str, Any] = {"precision": precision, "batch_tokens": batch_tokens}
    memory = {}
    for name, parts in {
        "training": _training_memory(summary, config, length, batch_tokens, BYTES[precision]),
        "decoding": _decoding_memory(
            summary, model, length, batch_tokens, beam_size, BYTES[precision]
        ),
    }.items():
        beam = {"beam_size": beam_size} if name == "decoding" else {}
        memory[name] = {**batch, **beam, **parts, "total": sum(parts.values())}
    flops = {
        "length": length,
        "forward_per_target_token": forward // length,
        "training_per_target_token": training,
        "training_per_update": training * config.batch.tokens_per_update,
        "beam_size": beam_size,
        "decoding_per_output_token": (start_flops(model, length) + decoding) // length,
    }
    return {"flops": flops, "memory_bytes": memory}


def forward_flops(model: ModelConfig, vocabulary: int, src: int, tgt: int) -> int:
    """A training forward pass of one sentence pair: S = `src`, T = `tgt`.

    Encoder:  S N_e (8 d^2 + 4 d f + 4 S d)
    Decoder:  T N_d (12 d^2 + 4 d f + 4 (S + T) d) + S N_d 4 d^2
    Output:   T 2 d V

    A layer's four projections are 8 d^2 for each token, its feed-forward block 4 d f, and scores
    and weighted sum 2 d for each token looked at (masked ones too). In cross-attention queries and
    W^O are 4 d^2 for each target token, keys and values 4 d^2 for each source token.
    """
    d, f = model.d_model, model.d_ff
    decoder = tgt * model.n_decoder_layers * (12 * d * d + 4 * d * f + 4 * (src + tgt) * d)
    return start_flops(model, src) + decoder + tgt * 2 * d * vocabulary


def start_flops(model: ModelConfig, src: int) -> int:
    """The encoder, and the keys and values of cross-attention, for one source sentence."""
    d, f = model.d_model, model.d_ff
    encoder = src * model.n_encoder_layers * (8 * d * d + 4 * d * f + 4 * src * d)
    return encoder + src * model.n_decoder_layers * 4 * d * d


def step_flops(model: ModelConfig, vocabulary: int, beam: int, src: int, step: int) -> int:
    """Decoding step number `step` (from 1) of one sentence: all k hypotheses of its beam.

    k N_d (12 d^2 + 4 d f + 4 (S + C) d) + k 2 d V, where C = 1 + k (step - 1): all hypotheses share
    one cache, whose columns are all multiplied and then masked. The first step has one hypothesis.
    """
    d, f = model.d_model, model.d_ff
    columns = 1 + beam * (step - 1)
    layers = model.n_decoder_layers * (12 * d * d + 4 * d * f + 4 * (src + columns) * d)
    return (1 if step == 1 else beam) * (layers + 2 * d * vocabulary)


def activation_bytes(model: ModelConfig, src: int, tgt: int, rows: int, size: int) -> int:
    """What a forward pass in training keeps for the backward pass, on a CPU.

    For each token, with c bytes a number (`size`) and w bytes in attention (fp32 or wider), where
    [p] is 1 with dropout and 0 without:

    Encoder layer:  c (5 d + f + 4) + w (3 d + h S) + [p] 2 d
    Decoder layer:  c (8 d + f + 6) + w (4 d + h (S + T)) + [p] 3 d, and w 2 d for a source token
    Embedding:      8 (the id) + [p] d
    Last norms:     c (d + 2) with pre-norm; and c d for the encoder's output

    That is: the input of each norm (with its two statistics) and of each product, queries, keys,
    values and weights of attention, and one byte for each element that may be dropped. GELU and
    SiLU keep their input, f more, and their dropout f bytes. GPUs do not keep attention weights.
    """
    d, f, h = model.d_model, model.d_ff, model.n_heads
    wide = max(size, FP32)
    dropped = d if model.dropout else 0
    inside = model.dropout if model.activation_dropout is None else model.activation_dropout
    feed_forward = size * f
    match model.activation:
        case "relu":
            pass
        case "gelu" | "silu":
            feed_forward += size * f + (f if inside else 0)
        case _:
            assert_never(model.activation)
    last = size * (d + 2) if model.pre_norm else 0
    encoder_layer = size * (5 * d + 4) + feed_forward + wide * (3 * d + h * src) + 2 * dropped
    decoder_layer = size * (8 * d + 6) + feed_forward + 3 * dropped
    decoder_layer += wide * (4 * d + h * (src + tgt))
    source = model.n_encoder_layers * encoder_layer + model.n_decoder_layers * wide * 2 * d
    source += 8 + dropped + last + size * d
    target = model.n_decoder_layers * decoder_layer + 8 + dropped + last
    return rows * (src * source + tgt * target)


def cache_bytes(model: ModelConfig, src: int, tgt: int, rows: int, beam: int, size: int) -> int:
    """Keys and values that decoding keeps: 2 N_d d (S + C) numbers for each sentence.

    C is the room of the cache: 16 k columns, doubled until 1 + k (T - 1) fit, T being `tgt` steps.
    """
    room = FIRST_STEPS * beam
    while room < 1 + beam * (tgt - 1):
        room *= 2
    return rows * 2 * model.n_decoder_layers * model.d_model * (src + room) * size


def _passes(config: Config) -> int:
    """How often training runs each batch."""
    return 2 if config.optim.rdrop else 1


def _moments(summary: Summary, optimizer: str) -> int:
    """Numbers that the optimiser keeps: two a weight, of the layers' matrices with Muon one."""
    layers = (block for block in summary.blocks if block.name.startswith(("encoder.", "decoder.")))
    matrices = (one.count for block in layers for one in block.matrices if len(one.shape) == 2)
    return 2 * summary.total - (sum(matrices) if optimizer == "muon" else 0)


def _training_memory(
    summary: Summary, config: Config, length: int, batch_tokens: int, size: int
) -> dict[str, int]:
    layers = sum(block.count for block in summary.blocks if block.name != "embeddings")
    rows = max(1, batch_tokens // length) * _passes(config)
    return {
        # fp32, and a copy of the layers' weights in the precision.
        "weights": FP32 * summary.total + (size * layers if size != FP32 else 0),
        "gradients": FP32 * summary.total,
        "optimizer": FP32 * _moments(summary, config.optim.optimizer),
        "ema": FP32 * summary.total if config.train.ema else 0,
        "activations": activation_bytes(config.model, length, length, rows, size),
        # The loss computes a chunk of logits at a time: scores and probabilities.
        "logits": 2 * FP32 * min(rows * length * summary.tgt_vocab_size, CHUNK_ELEMENTS["cpu"]),
    }


def _decoding_memory(
    summary: Summary, model: ModelConfig, length: int, batch_tokens: int, beam: int, size: int
) -> dict[str, int]:
    rows = max(1, batch_tokens // (length * beam))
    return {
        "weights": size * summary.total,
        "cache": cache_bytes(model, length, length, rows, beam, max(size, FP32)),
        "logits": rows * beam * summary.tgt_vocab_size * FP32,
    }


def format_cost(cost: dict[str, Any]) -> str:
    """Print what `cost_of` returns as a table, below that of the parameters."""
    flops = cost["flops"]
    beam = f"beam {flops['beam_size']}"
    lines = [f"FLOPs of matrix products, sentences of {flops['length']} tokens on both sides"]
    for what, key in (
        ("forward pass, for each target token", "forward_per_target_token"),
        ("training, for each target token", "training_per_target_token"),
        ("training, for each update", "training_per_update"),
        (f"decoding, for each output token, {beam}", "decoding_per_output_token"),
    ):
        lines.append(f"  {what:<59}{_scaled(flops[key], 'FLOPs')}")
    for name, memory in cost["memory_bytes"].items():
        how = f"{beam}, {memory['precision']}" if name == "decoding" else memory["precision"]
        tokens = f"{memory['batch_tokens']:,}"
        lines += ["", f"memory of {name}, estimated, batches of {tokens} tokens, {how}"]
        names = NAMES | ({"logits": "logits of the loss"} if name == "training" else {})
        for key, count in memory.items():
            if key not in ("precision", "batch_tokens", "beam_size") and (key, count) != ("ema", 0):
                lines.append(f"  {names.get(key, key):<59}{_scaled(count, 'B')}")
    return "\n".join([*lines, ""])


def _scaled(count: int, unit: str) -> str:
    """A count in the largest decimal unit that leaves a digit before the point: 12.3 GFLOPs."""
    thousands = min(len(PREFIXES) - 1, (len(str(count)) - 1) // 3)
    return f"{count / 1000**thousands:9.1f} {PREFIXES[thousands]}{unit}"
