"""Measure training speed: non-padding target tokens per second, by the trainer's own update.

    python scripts/bench_train.py --data ../shared/data/multi30k
    python scripts/bench_train.py --data synthetic --shape base --precision bf16 --vocab-size 32000 --device cuda \\
        --marian --peak-tflops 790 --json speed.json

The corpus folder holds train.de.gz and train.en.gz (or other languages: --src-lang, --tgt-lang); `synthetic` stands for
200,000 made-up pairs of 32,000 made-up words, as long as those of WMT are. Shapes: small is d_model 256, 4 heads,
3+3 layers, d_ff 1024, 4,096-token batches; base is d_model 512, 8 heads, 6+6 layers, d_ff 2048, 2,048-token batches
(25,000 on a GPU); both with a joint vocabulary of 8,000 (--vocab-size). --marian puts Hugging Face's MarianMTModel
(pip install transformers) of the same shape beside it: the same batches, its own label-smoothed loss, fused AdamW.
All that is compared takes turns, round after round, so that a change in the machine's speed meets them all alike.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from mt.config.load import config_from_mapping
from mt.config.schema import Config
from mt.data.loader import Prefetcher, Update
from mt.runtime.devices import Device, choose_device
from mt.runtime.memory import peak_memory_mb
from mt.training.prepare import prepare
from mt.training.runlog import RunLog
from mt.training.trainer import Trainer

SHAPES = {
    "small": {
        "d_model": 256,
        "n_heads": 4,
        "n_encoder_layers": 3,
        "n_decoder_layers": 3,
        "d_ff": 1024,
    },
    "base": {
        "d_model": 512,
        "n_heads": 8,
        "n_encoder_layers": 6,
        "n_decoder_layers": 6,
        "d_ff": 2048,
    },
}
TOKENS = {"small": 4096, "base": 2048}
SMOOTHING = 0.1


def write_synthetic(folder: Path, args: argparse.Namespace) -> None:
    """Pairs of lines of made-up words, Zipf-distributed; lengths like those of WMT's (28 and 30 tokens in the mean)."""
    random = np.random.default_rng(1)
    syllables = [
        a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "el", "is")
    ]
    words = np.array(["".join(random.choice(syllables, 2 + i % 3)) for i in range(32_000)])
    share = 1 / np.arange(1, len(words) + 1)
    share /= share.sum()
    sizes = np.clip(random.lognormal(3.1, 0.55, 200_000).round(), 1, 120).astype(int)
    for language in (args.src_lang, args.tgt_lang):
        own = np.clip(sizes + random.integers(-2, 3, len(sizes)), 1, None)
        drawn, ends = random.choice(words, own.sum(), p=share), own.cumsum()
        lines = (" ".join(drawn[end - size : end]) for size, end in zip(own, ends, strict=True))
        with gzip.open(
            folder / f"train.{language}.gz", "wt", encoding="utf-8", compresslevel=1
        ) as file:
            file.writelines(f"{line}\n" for line in lines)


def flops(config: Config, vocab_size: int, n_src: int, n_tgt: int) -> float:
    """Of the products with matrices of weights, forwards and backwards: six for each weight and token."""
    m = config.model
    d, ff = m.d_model, m.d_ff
    per_src = m.n_encoder_layers * (4 * d * d + 2 * d * ff) + m.n_decoder_layers * 2 * d * d
    per_tgt = m.n_decoder_layers * (6 * d * d + 2 * d * ff) + d * vocab_size
    return 6.0 * (n_src * per_src + n_tgt * per_tgt)


class Ours:
    """The trainer's own update."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def learn(self, update: Update) -> None:
        self.trainer.updater.train_step(update, self.trainer.state.step)
        self.trainer.state.step += 1


class Marian:
    """MarianMTModel on the same batches."""

    def __init__(self, config: Config, vocab_size: int, device: Device) -> None:
        from transformers import MarianConfig, MarianMTModel
        from transformers.trainer_pt_utils import LabelSmoother

        m = config.model
        self.device, self.smoother = device, LabelSmoother(SMOOTHING)
        shape = MarianConfig(
            vocab_size=vocab_size, d_model=m.d_model, encoder_layers=m.n_encoder_layers,
            decoder_layers=m.n_decoder_layers, encoder_attention_heads=m.n_heads, decoder_attention_heads=m.n_heads,
            encoder_ffn_dim=m.d_ff, decoder_ffn_dim=m.d_ff, dropout=m.dropout, attention_dropout=0.0,
            activation_dropout=m.dropout, max_position_embeddings=m.max_positions, pad_token_id=0, eos_token_id=3,
            bos_token_id=2, decoder_start_token_id=2, scale_embedding=True, activation_function="relu",
            share_encoder_decoder_embeddings=True, tie_word_embeddings=True, use_cache=False,
        )  # fmt: skip
        self.model = MarianMTModel(shape).to(device.device).train()
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), 5e-4, betas=(0.9, 0.98), eps=1e-9, fused=True
        )

    def learn(self, update: Update) -> None:
        for batch in update.batches:
            batch = batch.to(self.device.device)
            labels = torch.full_like(batch.tgt_in, -100).flatten()  # (B T,)
            labels[batch.tgt_positions] = batch.tgt_out
            labels = labels.view_as(batch.tgt_in)
            with torch.autocast(
                self.device.device.type, self.device.dtype, enabled=self.device.precision != "fp32"
            ):
                outputs = self.model(
                    input_ids=batch.src,
                    attention_mask=batch.src_mask,
                    decoder_input_ids=batch.tgt_in,
                )
                loss = self.smoother(outputs, labels)
            (loss * (batch.n_tgt / update.n_tgt)).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def config_of(
    args: argparse.Namespace, shape: str, precision: str, optimizer: str, folder: Path
) -> Config:
    """The config of one measurement."""
    tokens = args.tokens or (25_000 if args.device.startswith("cuda") else TOKENS[shape])
    src, tgt = args.src_lang, args.tgt_lang
    tree = {
        "data": {
            "root": str(folder if args.data == "synthetic" else args.data),
            "src_lang": src,
            "tgt_lang": tgt,
            "train": [{"src": f"train.{src}.gz", "tgt": f"train.{tgt}.gz"}],
        },
        "tokenizer": {"vocab_size": args.vocab_size},
        "batch": {"tokens_per_update": tokens, "tokens_per_batch": tokens},
        "model": SHAPES[shape],
        "optim": {
            "optimizer": optimizer,
            "peak_lr": 5e-4,
            "warmup_steps": 400,
            "label_smoothing": SMOOTHING,
        },
        "train": {"precision": precision, "compile": args.compile},
    }
    return config_from_mapping(tree, "bench")


def measure(
    model: Ours | Marian, device: torch.device, feed: Prefetcher, n_updates: int
) -> tuple[float, int, int]:
    """Seconds that the next updates take, the wait for data counted; their source and target tokens."""
    n_src, n_tgt, updates = 0, 0, iter(feed)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    for _ in range(n_updates):
        update = next(updates)
        model.update(update)
        n_src += sum(batch.n_src for batch in update.batches)
        n_tgt += update.n_tgt
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start, n_src, n_tgt


def bench(args: argparse.Namespace, shape: str, folder: Path) -> list[dict[str, object]]:
    """One row per model, optimiser and precision: the median over rounds of `--window` updates, after a warm-up."""
    runs: dict[tuple[str, str], tuple[Ours | Marian, Prefetcher, Trainer]] = {}
    for precision in args.precision:
        for optimizer in args.optimizer:
            config = config_of(args, shape, precision, optimizer, folder)
            device, log = (
                choose_device(args.device, precision),
                RunLog(folder, config.train.max_steps),
            )
            trainer = Trainer(prepare(config, folder, device, log), folder, log)
            name = "mt" if optimizer == "adamw" else f"mt {optimizer}"
            runs[name, precision] = Ours(trainer), Prefetcher(trainer.plan, 0, 0), trainer
        if args.marian:
            marian = Marian(config, trainer.tokenizer.tgt_vocab_size, device)
            runs["Marian", precision] = marian, Prefetcher(trainer.plan, 0, 0), trainer
    found: dict[tuple[str, str], list[tuple[float, int, int]]] = {name: [] for name in runs}
    with contextlib.ExitStack() as stack:
        for model, feed, trainer in runs.values():
            stack.enter_context(feed)
            measure(model, trainer.device.device, feed, args.warm_up)
        for _ in range(args.updates // args.window):
            for name, (model, feed, trainer) in runs.items():
                found[name].append(measure(model, trainer.device.device, feed, args.window))
    rows: list[dict[str, object]] = []
    for (name, precision), (_, _, trainer) in runs.items():
        speeds = [n_tgt / seconds for seconds, _, n_tgt in found[name, precision]]
        vocab_size = trainer.tokenizer.tgt_vocab_size
        work = [
            flops(trainer.config, vocab_size, n_src, n_tgt) / s / 1e12
            for s, n_src, n_tgt in found[name, precision]
        ]
        rows.append(
            {
                "model": name,
                "shape": shape,
                "precision": precision,
                "tokens_per_second": round(statistics.median(speeds)),
                "slowest": round(min(speeds)),
                "fastest": round(max(speeds)),
                "tflops": round(statistics.median(work), 3),
                "share_of_peak": round(statistics.median(work) / args.peak_tflops, 4)
                if args.peak_tflops
                else None,
                "updates": args.updates,
                "vocab_size": vocab_size,
                "parameters": sum(p.numel() for p in trainer.updater.model.parameters()),
                "memory_mb": round(peak_memory_mb(trainer.device.device)),  # of all that take turns
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="folder of the corpus, or synthetic")
    parser.add_argument("--src-lang", default="de")
    parser.add_argument("--tgt-lang", default="en")
    parser.add_argument("--shape", choices=SHAPES, nargs="+", default=list(SHAPES))
    parser.add_argument("--precision", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--optimizer", nargs="+", default=["adamw"], choices=["adamw", "muon"])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--compile", default="auto", choices=["auto", "true", "false"])
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--tokens", type=int, help="padded tokens of a batch, one batch an update")
    parser.add_argument("--warm-up", type=int, default=8, help="updates before the clock starts")
    parser.add_argument("--updates", type=int, default=60, help="updates measured")
    parser.add_argument("--window", type=int, default=10, help="updates of one round")
    parser.add_argument("--marian", action="store_true", help="beside Hugging Face's MarianMTModel")
    parser.add_argument(
        "--peak-tflops", type=float, help="of the device, to say which share of it is reached"
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.compile = {"auto": "auto", "true": True, "false": False}[args.compile]
    rows = []
    print(
        f"{platform.processor() or platform.machine()}, torch {torch.__version__}, {torch.get_num_threads()} threads"
    )
    titles = ("target tok/s", "slowest", "fastest", "TFLOP/s", "of peak", "memory MB")
    print(
        f"{'model':<7} {'shape':<6} {'precision':<9} "
        + " ".join(f"{title:>12}" for title in titles)
    )
    for shape in args.shape:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if args.data == "synthetic":
                write_synthetic(folder, args)
            for row in bench(args, shape, folder):
                rows.append(row)
                share = "" if row["share_of_peak"] is None else f"{row['share_of_peak']:.1%}"
                print(
                    f"{row['model']:<7} {row['shape']:<6} {row['precision']:<9} {row['tokens_per_second']:>12,} "
                    f"{row['slowest']:>12,} {row['fastest']:>12,} {row['tflops']:>12} {share:>12} "
                    f"{row['memory_mb']:>12,}"
                )
    if args.json:
        args.json.write_text(
            json.dumps({"torch": torch.__version__, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
