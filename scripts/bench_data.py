"""Measure the token store and the loading of batches on a large made-up corpus.

    python scripts/bench_data.py --folder /scratch/bench --json data.json
    python scripts/bench_data.py --folder /scratch/bench --pairs 1000000

Writes `--pairs` pairs (default: 20 million, 6 GB) to --folder, unless they are there, trains a
tokenizer, and measures in a process of its own each:

build    pairs encoded a second on all cores; bytes a token on disk; the most memory
train    seconds from opening the store to the first batch, as after a restart; the most memory;
         target tokens a second that the loader makes batches of; padding

Memory is what the process has in RAM beyond what it had before the data: that of its own ("data"),
and that of mapped files, which all processes of a machine share ("mapped"). The lengths of the
sentences are spread as those of WMT are. One pair in a hundred is a duplicate.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from synthetic_lengths import synthetic_lengths

from mt.config.load import config_from_mapping
from mt.config.plan import plan_data
from mt.config.schema import BatchConfig, Config, TokenizerConfig
from mt.data.reading.corpus import training_pairs
from mt.data.tokens.directions import DirectedPairs
from mt.data.tokens.store import open_built, open_or_build
from mt.data.tokens.tokenizer import PairSample, Tokenizer, train_on_sample
from mt.files import whole_file
from mt.training.prepare import training_texts

PAIRS = 20_000_000
# Pairs that differ; the corpus has them again and again, with a number before each.
BLOCK = 200_000
MEAN_LOG_WORDS = 3.0
N_WORDS = 30_000
VOCAB_SIZE = 16_000
TOKENIZER_PAIRS = 100_000
TOKENS_PER_UPDATE, TOKENS_PER_BATCH = 25_000, 8192
SECONDS_OF_LOADING = 10.0


def write_corpus(folder: Path, n_pairs: int) -> None:
    """Write train.src and train.tgt, each whole or not at all."""
    random = np.random.default_rng(1)
    letters = np.array(list("etaoinshrdlucmfwypvbgkqjxz"))
    words = np.array(
        ["".join(random.choice(letters, n)) for n in random.integers(2, 11, N_WORDS)], object
    )
    frequency = 1 / np.arange(10, N_WORDS + 10)
    for side, lengths in zip(
        ("src", "tgt"), synthetic_lengths(random, BLOCK, MEAN_LOG_WORDS), strict=True
    ):
        drawn = random.choice(words, int(lengths.sum()), p=frequency / frequency.sum())
        lines = [" ".join(line) + "\n" for line in np.split(drawn, lengths.cumsum()[:-1])]
        with whole_file(folder / f"train.{side}") as file:
            for start in range(0, n_pairs, BLOCK):
                block = lines[: n_pairs - start]
                # One in a hundred has no number of its own: a duplicate in every block.
                numbered = (
                    f"{0 if i % 100 == 0 else start + i} {line}" for i, line in enumerate(block)
                )
                file.write("".join(numbered).encode())


def config_of(folder: Path) -> Config:
    """A config that trains on the corpus."""
    train = [{"src": "train.src", "tgt": "train.tgt"}]
    return config_from_mapping({"data": {"root": str(folder), "train": train}}, "bench")


@contextmanager
def memory_watched() -> Iterator[dict[str, float]]:
    """The most MB beyond those at the start, its own and mapped ones, once the block has ended."""
    ended = threading.Event()
    before = resident_mb()
    found = {"data_mb": 0.0, "mapped_mb": 0.0}

    def watch() -> None:
        while not ended.wait(0.02):
            for name, now, start in zip(found, resident_mb(), before, strict=True):
                found[name] = max(found[name], round(now - start, 1))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def resident_mb() -> tuple[float, float]:
    """MB in RAM: of this process alone, and of files that it maps. Linux only."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    values = dict(line.split(":", 1) for line in lines)
    anonymous, mapped = (int(values[name].split()[0]) / 1024 for name in ("RssAnon", "RssFile"))
    return anonymous, mapped


def build(folder: Path) -> dict[str, Any]:
    """Build the store anew."""
    config = config_of(folder)
    tokenizer = Tokenizer.load(folder)
    with memory_watched() as memory:
        start = perf_counter()
        texts = training_texts(plan_data(config.data), tokenizer, folder / "store", {})
        store = open_or_build(folder / "store", texts, print)
        seconds = perf_counter() - start
    size = sum(path.stat().st_size for path in (folder / "store").iterdir())
    n_tokens = len(store.ids)
    return {
        "pairs_per_second": round(store.corpora[0].read / seconds),
        "seconds": round(seconds, 1),
        "pairs": len(store),
        "tokens": n_tokens,
        "bytes_per_token": round(size / n_tokens, 3),
        **memory,
    }


def load(folder: Path) -> dict[str, Any]:
    """Load batches from the store, as a training that starts again."""
    from mt.data.tokens.batches import Prefetcher
    from mt.data.tokens.plan import Plan

    batch = BatchConfig(tokens_per_update=TOKENS_PER_UPDATE, tokens_per_batch=TOKENS_PER_BATCH)
    with memory_watched() as memory:
        start = perf_counter()
        pairs = DirectedPairs.of(open_built(folder / "store"))
        plan = Plan(pairs, [1.0], batch, 1)
        with Prefetcher(plan, 0, 0) as updates:
            n_tgt = n_real = n_padded = n_batches = 0
            for number, update in enumerate(updates):
                if number == 0:
                    first = perf_counter() - start
                    loading = perf_counter()
                n_tgt += update.n_tgt
                n_batches += len(update.batches)
                n_real += sum(batch.n_src + batch.n_tgt for batch in update.batches)
                n_padded += sum(batch.n_padded for batch in update.batches)
                # The first epoch, or a part of it that outlives the planning of the second.
                if update.last or perf_counter() - loading > SECONDS_OF_LOADING:
                    break
            seconds = perf_counter() - loading
    return {
        "seconds_to_first_batch": round(first, 2),
        "target_tokens_per_second": round(n_tgt / seconds),
        "padding": round(1 - n_real / n_padded, 4),
        "batches_per_update": round(n_batches / (number + 1), 2),
        **memory,
    }


STAGES: dict[str, Callable[[Path], dict[str, Any]]] = {"build": build, "train": load}


def main() -> None:
    """Run all stages, or the one that `--stage` names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True, help="where corpus and store go")
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"default: {PAIRS:,}")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.stage:
        print(json.dumps(STAGES[args.stage](args.folder)))
        return
    folder = args.folder / f"{args.pairs}"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "train.tgt").exists():
        write_corpus(folder, args.pairs)
    if not Tokenizer.exists_in(folder):
        sample = PairSample(TOKENIZER_PAIRS)
        pairs = islice(training_pairs(plan_data(config_of(folder).data)), BLOCK)
        deque(sample.watch(pairs), maxlen=0)
        settings = TokenizerConfig(vocab_size=VOCAB_SIZE)
        train_on_sample(settings, sample, print).save(folder)
    results: dict[str, Any] = {"pairs": args.pairs}
    for stage in STAGES:
        command = [sys.executable, __file__, "--folder", str(folder), "--stage", stage]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        results[stage] = json.loads(done.stdout.splitlines()[-1])
        print(stage, json.dumps(results[stage], indent=1))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
