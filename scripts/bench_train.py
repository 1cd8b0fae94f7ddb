"""Measure training speed: non-padding target tokens per second of the trainer's own update.

    python scripts/bench_train.py --data FOLDER
    python scripts/bench_train.py --data synthetic --shape base --precision bf16 --device cuda \\
        --marian --peak-tflops 790 --json speed.json

FOLDER holds train.de.gz and train.en.gz (--src-lang and --tgt-lang for other languages).
`synthetic` is 200,000 made-up pairs of 32,000 made-up words, with lengths distributed as in WMT.

Shapes: `small` is d_model 256, 4 heads, 3+3 layers, d_ff 1024, batches of 4,096 tokens; `base` is
d_model 512, 8 heads, 6+6 layers, d_ff 2048, batches of 2,048 tokens. On a GPU both take 25,000
tokens. The vocabulary is joint and has 8,000 pieces, 32,000 on a GPU.

--marian also measures Hugging Face's MarianMTModel (pip install transformers) of the same shape,
on the same updates in padded batches, with its own label-smoothed loss and fused AdamW. The models
that are compared take turns, so a change in the machine's speed affects all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import platform
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from synthetic_lengths import synthetic_lengths

from mt.config.load import config_from_mapping
from mt.config.schema import Config
from mt.data.tokens.batches import Prefetcher, Update, shard_of
from mt.runtime.devices import Device, choose_device
from mt.runtime.memory import peak_memory_mb
from mt.training.prepare import prepare
from mt.training.runlog import RunLog
from mt.training.trainer import Trainer

SHAPES = {
    "small": {
        "d_model": 256, "n_heads": 4, "n_encoder_layers": 3, "n_decoder_layers": 3, "d_ff": 1024,
    },
    "base": {
        "d_model": 512, "n_heads": 8, "n_encoder_layers": 6, "n_decoder_layers": 6, "d_ff": 2048,
    },
}  # fmt: skip
TOKENS = {"small": 4096, "base": 2048}
TOKENS_ON_GPU = 25_000
VOCAB_SIZE = 8000
VOCAB_SIZE_ON_GPU = 32_000
LABEL_SMOOTHING = 0.1

# The made-up corpus.
N_SYNTHETIC = 200_000
MEAN_LOG_WORDS = 3.1


# What is measured: one optimizer step on the batches of an update.
Step = Callable[[Update], None]


@dataclass(frozen=True)
class Round:
    """What one round of updates took."""

    seconds: float
    n_src: int  # source tokens, without padding
    n_tgt: int  # target tokens, without padding
    n_padded: int  # tokens of both sides, with padding


@dataclass
class Contender:
    """A model with its own stream of batches, and the rounds measured so far."""

    name: str
    precision: str
    step: Step
    feed: Prefetcher
    trainer: Trainer  # its config, tokenizer, plan and device are those of the model
    rounds: list[Round] = field(default_factory=list)

    def measure(self, n_updates: int) -> Round:
        """Do the next updates, waiting for data included."""
        updates = iter(self.feed)
        n_src = 0
        n_tgt = 0
        n_padded = 0
        synchronize(self.trainer.device)
        start = perf_counter()
        for _ in range(n_updates):
            update = next(updates)
            self.step(update)
            n_src += sum(batch.n_src for batch in update.batches)
            n_tgt += update.n_tgt
            n_padded += sum(batch.n_padded for batch in update.batches)
        synchronize(self.trainer.device)
        return Round(perf_counter() - start, n_src, n_tgt, n_padded)


@dataclass(frozen=True)
class Row:
    """One line of the result: speeds are target tokens per second, medians over the rounds."""

    model: str
    shape: str
    precision: str
    tokens_per_second: int
    slowest: int
    fastest: int
    tflops: float
    share_of_peak: float | None
    share_of_linear: float  # of the rate that F.linear alone reaches at these shapes
    feed: int  # target tokens per second of the thread that makes the batches, alone
    padding: float  # share of padding in all tokens
    updates: int
    vocab_size: int
    parameters: int
    memory_mb: int  # peak of the process, with all models that take turns


def own_step(trainer: Trainer) -> Step:
    """The trainer's own update."""

    def step(update: Update) -> None:
        trainer.updater.train_step(update, trainer.state.step)
        trainer.state.step += 1

    return step


def marian_step(config: Config, vocab_size: int, where: Device) -> Step:
    """An update of a MarianMTModel of the same shape."""
    from transformers import MarianConfig, MarianMTModel
    from transformers.trainer_pt_utils import LabelSmoother

    shape = config.model
    marian: Any = MarianMTModel(
        MarianConfig(
            vocab_size=vocab_size,
            d_model=shape.d_model,
            encoder_layers=shape.n_encoder_layers,
            decoder_layers=shape.n_decoder_layers,
            encoder_attention_heads=shape.n_heads,
            decoder_attention_heads=shape.n_heads,
            encoder_ffn_dim=shape.d_ff,
            decoder_ffn_dim=shape.d_ff,
            dropout=shape.dropout_p,
            attention_dropout=0.0,
            activation_dropout=shape.dropout_p,
            max_position_embeddings=shape.max_positions,
            pad_token_id=0,
            eos_token_id=3,
            bos_token_id=2,
            decoder_start_token_id=2,
            scale_embedding=True,
            activation_function="relu",
            share_encoder_decoder_embeddings=True,
            tie_word_embeddings=True,
            use_cache=False,
        )
    )
    device = where.device
    model = marian.to(device).train()
    smoother = LabelSmoother(LABEL_SMOOTHING)
    optimizer = torch.optim.AdamW(model.parameters(), 5e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)

    def step(update: Update) -> None:
        for cpu_batch in update.batches:
            batch = cpu_batch.to(device)
            labels = torch.full_like(batch.tgt_in, -100).flatten()  # (B * T,)
            labels[batch.tgt_positions] = batch.tgt_out
            with torch.autocast(device.type, where.dtype, enabled=where.precision != "fp32"):
                outputs = model(
                    input_ids=batch.src,
                    attention_mask=batch.src_mask,
                    decoder_input_ids=batch.tgt_in,
                )
                loss = smoother(outputs, labels.view_as(batch.tgt_in))
            (loss * (batch.n_tgt / update.n_tgt)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def write_synthetic(folder: Path, src_lang: str, tgt_lang: str) -> None:
    """Write pairs of lines of made-up words, whose frequencies follow Zipf's law."""
    random = np.random.default_rng(1)
    vowels = ("a", "e", "i", "o", "u", "an", "el", "is")
    syllables = [first + second for first in "bdfgklmnprstvz" for second in vowels]
    words = np.array(["".join(random.choice(syllables, 2 + i % 3)) for i in range(32_000)])
    frequency = 1 / np.arange(1, len(words) + 1)
    frequency /= frequency.sum()
    lengths = synthetic_lengths(random, N_SYNTHETIC, MEAN_LOG_WORDS)
    for language, sizes in zip((src_lang, tgt_lang), lengths, strict=True):
        drawn = random.choice(words, sizes.sum(), p=frequency)
        ends = sizes.cumsum()
        path = folder / f"train.{language}.gz"
        with gzip.open(path, "wt", encoding="utf-8", compresslevel=1) as file:
            for size, end in zip(sizes, ends, strict=True):
                file.write(" ".join(drawn[end - size : end]) + "\n")


def matrix_flops(config: Config, vocab_size: int, n_src: int, n_tgt: int) -> float:
    """Floating-point operations in products with weight matrices, forward and backward.

    Six for each weight and token: two forward, four backward. Attention's own products are left
    out, and so are those with padding.
    """
    model = config.model
    attention = model.d_model * model.d_model  # the size of one of its projections
    feed_forward = 2 * model.d_model * model.d_ff
    # Cross-attention projects the source to keys and values, and the target to queries and outputs.
    per_src = model.n_encoder_layers * (4 * attention + feed_forward)
    per_src += model.n_decoder_layers * 2 * attention
    per_tgt = model.n_decoder_layers * (6 * attention + feed_forward)
    per_tgt += model.d_model * vocab_size
    return 6.0 * (n_src * per_src + n_tgt * per_tgt)


def products(config: Config, vocab_size: int) -> list[tuple[int, int, int]]:
    """(inputs, outputs, how many) of the products with weight matrices in a forward pass."""
    model = config.model
    d_model, d_ff = model.d_model, model.d_ff
    n_encoder, n_decoder = model.n_encoder_layers, model.n_decoder_layers
    n_layers = n_encoder + n_decoder
    return [
        (d_model, 3 * d_model, n_layers),  # queries, keys and values of self-attention
        (d_model, 2 * d_model, n_decoder),  # keys and values of cross-attention
        (d_model, d_model, n_layers + 2 * n_decoder),  # outputs, and queries of cross-attention
        (d_model, d_ff, n_layers),
        (d_ff, d_model, n_layers),
        (d_model, vocab_size, 1),
    ]


def linear_tflops(config: Config, vocab_size: int, rows: int, device: Device) -> float:
    """The rate of `F.linear` alone at the shapes of the model, on batches of `rows` tokens."""
    seconds = 0.0
    flops = 0.0
    for n_in, n_out, count in products(config, vocab_size):
        x = torch.randn(rows, n_in, dtype=device.dtype, device=device.device)
        weight = torch.randn(n_out, n_in, dtype=device.dtype, device=device.device)
        seconds += count * median_seconds(partial(torch.nn.functional.linear, x, weight), device)
        flops += count * 2.0 * rows * n_in * n_out
    return flops / seconds / 1e12


def synchronize(device: Device) -> None:
    """Wait for what a GPU still has to do."""
    if device.is_cuda:
        torch.cuda.synchronize(device.device)


def median_seconds(call: Callable[[], object], device: Device, repeats: int = 5) -> float:
    """The median time of a call, after two to warm up."""
    seconds = []
    for _ in range(repeats + 2):
        synchronize(device)
        start = perf_counter()
        call()
        synchronize(device)
        seconds.append(perf_counter() - start)
    return statistics.median(seconds[2:])


def feed_speed(trainer: Trainer, n_updates: int = 50) -> int:
    """Target tokens per second that the trainer's batches are made at, by one thread."""
    plan = trainer.plan
    updates = list(islice(plan.updates(0), n_updates))
    start = perf_counter()
    n_tgt = sum(shard_of(plan, update, pin=trainer.device.is_cuda)[1] for update in updates)
    return round(n_tgt / (perf_counter() - start))


def bench_config(args: argparse.Namespace, shape: str, precision: str, folder: Path) -> Config:
    """Build the config of one measurement."""
    on_gpu = choose_device(args.device, precision).is_cuda
    tokens = args.tokens or (TOKENS_ON_GPU if on_gpu else TOKENS[shape])
    vocab_size = args.vocab_size or (VOCAB_SIZE_ON_GPU if on_gpu else VOCAB_SIZE)
    src, tgt = args.src_lang, args.tgt_lang
    mapping = {
        "data": {
            "root": str(folder if args.data == "synthetic" else args.data),
            "src_lang": src,
            "tgt_lang": tgt,
            "train": [{"src": f"train.{src}.gz", "tgt": f"train.{tgt}.gz"}],
        },
        "tokenizer": {"vocab_size": vocab_size},
        # With room for as much of an update in a batch as training puts there.
        "batch": {"tokens_per_update": tokens, "tokens_per_batch": 2 * tokens},
        "model": SHAPES[shape],
        "optim": {
            "peak_lr": 5e-4,
            "warmup_steps": 400,
            "label_smoothing": LABEL_SMOOTHING,
        },
        "train": {"precision": precision, "compile": args.compile},
    }
    return config_from_mapping(mapping, "bench")


def contenders(args: argparse.Namespace, shape: str, folder: Path) -> list[Contender]:
    """Build every model of this shape."""
    models = []
    for precision in args.precision:
        config = bench_config(args, shape, precision, folder)
        device = choose_device(args.device, precision)
        log = RunLog(folder, config.train.max_steps)
        trainer = Trainer(prepare(config, device, log), log)
        feed = Prefetcher(trainer.plan, 0, 0, device=device.device)
        models.append(Contender("mt", precision, own_step(trainer), feed, trainer))
        if args.marian:
            marian = marian_step(config, trainer.tokenizer.tgt.size, device)
            padded = replace(trainer.plan, packed=False)
            feed = Prefetcher(padded, 0, 0, device=device.device)
            models.append(Contender("Marian", precision, marian, feed, trainer))
    return models


def bench(args: argparse.Namespace, shape: str, folder: Path) -> list[Row]:
    """Measure all models of a shape, in turns of `--window` updates after a warm-up."""
    models = contenders(args, shape, folder)
    with contextlib.ExitStack() as stack:
        for contender in models:
            stack.enter_context(contender.feed)
            contender.measure(args.warm_up)
        for _ in range(args.updates // args.window):
            for contender in models:
                contender.rounds.append(contender.measure(args.window))
    return [summarize(contender, shape, args) for contender in models]


def summarize(contender: Contender, shape: str, args: argparse.Namespace) -> Row:
    """Make one row of the rounds of a model."""
    trainer = contender.trainer
    rounds = contender.rounds
    vocab_size = trainer.tokenizer.tgt.size
    speeds = [one.n_tgt / one.seconds for one in rounds]
    tflops = statistics.median(
        matrix_flops(trainer.config, vocab_size, one.n_src, one.n_tgt) / one.seconds / 1e12
        for one in rounds
    )
    real = sum(one.n_src + one.n_tgt for one in rounds)
    tokens = trainer.config.batch.tokens_per_update
    linear = linear_tflops(trainer.config, vocab_size, tokens, trainer.device)
    return Row(
        model=contender.name,
        shape=shape,
        precision=contender.precision,
        tokens_per_second=round(statistics.median(speeds)),
        slowest=round(min(speeds)),
        fastest=round(max(speeds)),
        tflops=round(tflops, 3),
        share_of_peak=round(tflops / args.peak_tflops, 4) if args.peak_tflops else None,
        share_of_linear=round(tflops / linear, 4),
        feed=feed_speed(trainer),
        padding=round(1 - real / sum(one.n_padded for one in rounds), 4),
        updates=args.updates,
        vocab_size=vocab_size,
        parameters=sum(p.numel() for p in trainer.updater.model.parameters()),
        memory_mb=round(peak_memory_mb(trainer.device.device)),
    )


def print_row(names: Sequence[str], values: Sequence[str]) -> None:
    """Print one line of the table: names to the left, values to the right."""
    left = " ".join(f"{name:<9}" for name in names)
    print(left, " ".join(f"{value:>12}" for value in values), flush=True)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", required=True, help="folder of the corpus, or synthetic")
    add("--src-lang", default="de")
    add("--tgt-lang", default="en")
    add("--shape", choices=SHAPES, nargs="+", default=list(SHAPES))
    add("--precision", nargs="+", default=["fp32", "bf16"])
    add("--device", default="auto")
    add("--compile", default="auto", choices=["auto", "true", "false"])
    add("--vocab-size", type=int, help="of the joint vocabulary; 8,000, on a GPU 32,000")
    add("--tokens", type=int, help="target tokens per update, which is one batch")
    add("--warm-up", type=int, default=8, help="updates before the clock starts")
    add("--updates", type=int, default=60, help="updates measured")
    add("--window", type=int, default=10, help="updates per round")
    add("--marian", action="store_true", help="also measure Hugging Face's MarianMTModel")
    add("--peak-tflops", type=float, help="peak of the device, to print the share reached")
    add("--json", type=Path, help="also write the rows to this file")
    args = parser.parse_args()
    args.compile = {"auto": "auto", "true": True, "false": False}[args.compile]
    return args


def main() -> None:
    """Measure and print the table."""
    args = parse_arguments()
    processor = platform.processor() or platform.machine()
    print(f"{processor}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    titles = ["target tok/s", "slowest", "fastest", "TFLOP/s", "of F.linear", "of peak"]
    print_row(("model", "shape", "precision"), [*titles, "padding", "memory MB", "feed tok/s"])
    rows = []
    for shape in args.shape:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if args.data == "synthetic":
                write_synthetic(folder, args.src_lang, args.tgt_lang)
            for row in bench(args, shape, folder):
                rows.append(row)
                speeds = [f"{n:,}" for n in (row.tokens_per_second, row.slowest, row.fastest)]
                share = "" if row.share_of_peak is None else f"{row.share_of_peak:.1%}"
                rest = [f"{row.tflops}", f"{row.share_of_linear:.1%}", share]
                rest += [f"{row.padding:.1%}", f"{row.memory_mb:,}", f"{row.feed:,}"]
                print_row((row.model, row.shape, row.precision), [*speeds, *rest])
    if args.json:
        result = {"torch": torch.__version__, "rows": [asdict(row) for row in rows]}
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
