"""Measure training speed: non-padding target tokens per second, by the trainer's own update.

    python scripts/bench_train.py --data ../shared/data/multi30k
    python scripts/bench_train.py --data CORPUS --shape base --precision bf16 --device cuda --json speed.json

The corpus folder holds train.de.gz and train.en.gz (or other languages: --src-lang, --tgt-lang). Shapes: small is
d_model 256, 4 heads, 3+3 layers, d_ff 1024, 4,096-token batches; base is d_model 512, 8 heads, 6+6 layers,
d_ff 2048, 2,048-token batches (25,000 on a GPU); both with a joint vocabulary of 8,000 (--vocab-size).
Precisions take turns, round after round, so that a change in the machine's speed meets them all alike.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path

import torch

from mt.config import Config, config_from_mapping
from mt.data.batches import Feed
from mt.devices import choose_device, peak_memory_mb
from mt.training.runlog import RunLog
from mt.training.trainer import Trainer

SHAPES = {
    "small": {"d_model": 256, "n_heads": 4, "n_encoder_layers": 3, "n_decoder_layers": 3, "d_ff": 1024},
    "base": {"d_model": 512, "n_heads": 8, "n_encoder_layers": 6, "n_decoder_layers": 6, "d_ff": 2048},
}
TOKENS = {"small": 4096, "base": 2048}


def config_of(args: argparse.Namespace, shape: str, precision: str) -> Config:
    """The config of one measurement."""
    tokens = args.tokens or (25_000 if args.device.startswith("cuda") else TOKENS[shape])
    src, tgt = args.src_lang, args.tgt_lang
    tree = {
        "data": {
            "root": str(args.data),
            "src_lang": src,
            "tgt_lang": tgt,
            "train": [{"src": f"train.{src}.gz", "tgt": f"train.{tgt}.gz"}],
        },
        "tokenizer": {"vocab_size": args.vocab_size},
        "batch": {"tokens_per_update": tokens, "tokens_per_batch": tokens},
        "model": SHAPES[shape],
        "optim": {"peak_lr": 5e-4, "warmup_steps": 400},
        "train": {"precision": precision, "compile": args.compile},
    }
    return config_from_mapping(tree, "bench")


def measure(trainer: Trainer, feed: Feed, n_updates: int) -> float:
    """Target tokens per second over the next updates, the wait for data counted."""
    device, tokens, updates = trainer.device.device, 0, iter(feed)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    for _ in range(n_updates):
        update = next(updates)
        trainer.learner.learn(update, trainer.state.step)
        trainer.state.step += 1
        tokens += update.n_tgt
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return tokens / (time.perf_counter() - start)


def bench(args: argparse.Namespace, shape: str, folder: Path) -> list[dict[str, object]]:
    """One row per precision: the median over rounds of `--window` updates, after `--warm-up` updates."""
    trainers = {}
    for precision in args.precision:
        config = config_of(args, shape, precision)
        log = RunLog(folder, config.train.max_steps)
        trainer = Trainer(config, folder, choose_device(args.device, precision), log)
        feed = Feed(trainer.plan, 0, 0)
        feed.__enter__()
        measure(trainer, feed, args.warm_up)
        trainers[precision] = (trainer, feed)
    speeds: dict[str, list[float]] = {precision: [] for precision in trainers}
    for _ in range(args.updates // args.window):
        for precision, (trainer, feed) in trainers.items():
            speeds[precision].append(measure(trainer, feed, args.window))
    rows: list[dict[str, object]] = []
    for precision, (trainer, feed) in trainers.items():
        feed.__exit__()
        rows.append(
            {
                "shape": shape,
                "precision": precision,
                "tokens_per_second": round(statistics.median(speeds[precision])),
                "slowest": round(min(speeds[precision])),
                "fastest": round(max(speeds[precision])),
                "updates": args.updates,
                "parameters": sum(p.numel() for p in trainer.learner.model.parameters()),
                "memory_mb": round(peak_memory_mb(trainer.device.device)),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--src-lang", default="de")
    parser.add_argument("--tgt-lang", default="en")
    parser.add_argument("--shape", choices=SHAPES, nargs="+", default=list(SHAPES))
    parser.add_argument("--precision", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--compile", default="auto", choices=["auto", "true", "false"])
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--tokens", type=int, help="padded tokens of a batch, one batch an update")
    parser.add_argument("--warm-up", type=int, default=8, help="updates before the clock starts")
    parser.add_argument("--updates", type=int, default=60, help="updates measured")
    parser.add_argument("--window", type=int, default=10, help="updates of one round")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.compile = {"auto": "auto", "true": True, "false": False}[args.compile]
    rows = []
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"{'shape':<6} {'precision':<9} {'target tok/s':>12} {'slowest':>8} {'fastest':>8} {'memory MB':>10}")
    for shape in args.shape:
        with tempfile.TemporaryDirectory() as folder:
            for row in bench(args, shape, Path(folder)):
                rows.append(row)
                print(
                    f"{row['shape']:<6} {row['precision']:<9} {row['tokens_per_second']:>12,} "
                    f"{row['slowest']:>8,} {row['fastest']:>8,} {row['memory_mb']:>10,}"
                )
    if args.json:
        args.json.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
