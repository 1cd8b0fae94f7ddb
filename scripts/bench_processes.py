"""Measure training with one process and with several: target tokens per second of `mt train`.

    python scripts/bench_processes.py --data FOLDER --processes 1 2
    python scripts/bench_processes.py --data FOLDER --processes 1 2 --before CHECKOUT

FOLDER, shapes and counted tokens are those of `bench_train.py`. Each run is a whole `mt train
--processes N`; they take turns, and each turn resumes its run. --before names the root of another
checkout of mt, measured as well with one process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml
from bench_train import LABEL_SMOOTHING, SHAPES, VOCAB_SIZE

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Run:
    """A training that is continued in every turn."""

    name: str
    processes: int
    checkout: Path  # whose mt trains
    speeds: list[float] = field(default_factory=list)  # target tokens per second, by window

    def train(self, config: Path, runs: Path, steps: int) -> None:
        """Train up to `steps` updates; keep the speed of each window but the first of this turn."""
        run = runs / self.name.replace(" ", "-")
        command = [sys.executable, "-m", "mt", "train", "-c", str(config), "--run-dir", str(run)]
        command += ["--set", f"train.max_steps={steps}", "--device", "cpu"]
        if self.processes > 1:
            command += ["--processes", str(self.processes)]
        before = len(self._windows(run))
        ended = subprocess.run(command, cwd=self.checkout, capture_output=True, text=True)
        if ended.returncode:
            sys.exit(f"{self.name}: {ended.stderr[-2000:]}")
        self.speeds += self._windows(run)[before + 1 :]

    @staticmethod
    def _windows(run: Path) -> list[float]:
        path = run / "metrics.jsonl"
        if not path.exists():
            return []
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [row["tokens_per_second"] for row in rows if row["kind"] == "train"]


@dataclass(frozen=True)
class Row:
    """One line of the result: speeds are medians over the windows."""

    run: str
    shape: str
    precision: str
    tokens_per_second: int
    slowest: int
    fastest: int
    ratio: float  # to the first row of the same shape and precision


def write_config(args: argparse.Namespace, shape: str, precision: str, path: Path) -> None:
    """Write the config of one shape and precision, without validation."""
    mapping: dict[str, Any] = {
        "data": {
            "root": str(args.data.resolve()),
            "src_lang": args.src_lang,
            "tgt_lang": args.tgt_lang,
            "train": [{"src": f"train.{args.src_lang}.gz", "tgt": f"train.{args.tgt_lang}.gz"}],
        },
        "tokenizer": {"vocab_size": VOCAB_SIZE},
        "batch": {"tokens_per_update": args.tokens, "tokens_per_batch": args.tokens_per_batch},
        "model": SHAPES[shape],
        "optim": {"peak_lr": 5e-4, "warmup_steps": 400, "label_smoothing": LABEL_SMOOTHING},
        "train": {"precision": precision, "log_every": args.window},
    }
    path.write_text(yaml.safe_dump(mapping), encoding="utf-8")


def bench(args: argparse.Namespace, shape: str, precision: str, folder: Path) -> list[Row]:
    """Measure all runs of a shape and precision in turns."""
    runs = [Run(f"{count} process{'es' * (count > 1)}", count, ROOT) for count in args.processes]
    if args.before:
        runs.insert(0, Run("before", 1, args.before.resolve()))
    config = folder / "config.yaml"
    write_config(args, shape, precision, config)
    for turn in range(1, args.turns + 1):
        for run in runs:
            run.train(config, folder, turn * args.updates)
    medians = [statistics.median(run.speeds) for run in runs]
    rows = []
    for run, median in zip(runs, medians, strict=True):
        speeds = (round(median), round(min(run.speeds)), round(max(run.speeds)))
        rows.append(Row(run.name, shape, precision, *speeds, ratio=round(median / medians[0], 2)))
    return rows


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder of the corpus")
    add("--src-lang", default="de")
    add("--tgt-lang", default="en")
    add("--shape", choices=SHAPES, nargs="+", default=["small"])
    add("--precision", nargs="+", default=["fp32", "bf16"])
    add("--processes", type=int, nargs="+", default=[1, os.cpu_count() or 1])
    add("--before", type=Path, help="root of another checkout of mt, the first row")
    add("--tokens", type=int, default=8192, help="target tokens per update")
    add("--tokens-per-batch", type=int, default=4096, help="padded tokens of a side of a batch")
    add("--updates", type=int, default=20, help="updates of a turn")
    add("--window", type=int, default=5, help="updates of a window; a turn's first is not counted")
    add("--turns", type=int, default=2)
    add("--json", type=Path, help="also write the rows to this file")
    return parser.parse_args()


def main() -> None:
    """Measure and print the table."""
    args = parse_arguments()
    rows = []
    print("run           shape precision target tok/s  slowest  fastest  ratio")
    for shape in args.shape:
        for precision in args.precision:
            with tempfile.TemporaryDirectory() as name:
                for row in bench(args, shape, precision, Path(name)):
                    rows.append(row)
                    speeds = f"{row.tokens_per_second:>12,} {row.slowest:>8,} {row.fastest:>8,}"
                    print(f"{row.run:<13} {shape:<5} {precision:<9} {speeds} {row.ratio:>6.2f}")
    if args.json:
        result = {"rows": [asdict(row) for row in rows]}
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
