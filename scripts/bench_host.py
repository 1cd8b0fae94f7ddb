"""Measure what translation costs beside the search: lines per second with a stand-in engine.

    python scripts/bench_host.py --tokenizer RUN --input corpora/multi30k/train.de.gz
    python scripts/bench_host.py --tokenizer RUN --input corpora/multi30k/train.de.gz --json FILE

A stand-in for the engine "translates" each line into its own tokens, backwards. All else is what
`mt translate` does with a file: reading, SentencePiece, sorting, batches, quality flags, writing.
On a fast GPU this is what bounds `mt translate`. Every turn prints lines per second and the
processor time that a line takes; the last line has the medians.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from mt.config.schema import DecodeConfig
from mt.data.reading.text_files import read_lines
from mt.data.tokens.batches import pad_rows
from mt.data.tokens.tokenizer import BOS, EOS, PAD, Tokenizer
from mt.search.engine import TorchEngine
from mt.search.engine_contract import Hypotheses, Job
from mt.search.options import EngineOptions, SearchOptions
from mt.search.search import collect
from mt.translate import translate_file
from mt.translate.loaded_engine import LoadedEngine
from mt.translate.streaming import TextFiles
from mt.translate.translate_file import LineFormat
from mt.translate.translator import make_translator

PENALTY = 1.0


@dataclass(frozen=True)
class Backwards(TorchEngine):
    """An engine without a model."""

    tokens: int = 8192
    lines: int = 20_000

    @property
    def device(self) -> torch.device:
        """A CPU."""
        return torch.device("cpu")

    @property
    def max_length(self) -> int:
        """More than any line has."""
        return 1023

    @property
    def batch_tokens(self) -> int:
        """As given."""
        return self.tokens

    @property
    def window(self) -> int:
        """As given."""
        return self.lines

    def search_batches(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Hypotheses]]:
        """Each source backwards, through the last step of every search."""
        for number, (sources, _) in enumerate(jobs):
            tokens = pad_rows([np.asarray(source[::-1]) for source in sources], BOS, EOS)
            tokens[tokens == PAD] = EOS
            log_probs = torch.full((len(tokens), 1), -9.5)
            rows = torch.arange(len(tokens))
            last = rows, torch.from_numpy(tokens)[:, None], log_probs
            yield number, collect([last], PENALTY)


@dataclass(frozen=True)
class Turn:
    """One translation of the file."""

    lines_per_second: float
    microseconds: float  # of processor time for a line, encoding included


def measure(args: argparse.Namespace, source: Path, count: int) -> Turn:
    """Translate the file once."""
    tokenizer = Tokenizer.load(args.tokenizer)
    engine = Backwards(
        None,  # type: ignore[arg-type]
        DecodeConfig(beam_size=1),
        tokens=args.batch_tokens,
        lines=args.window,
    )
    loaded = LoadedEngine(
        engine=engine,
        tokenizer=tokenizer,
        max_source=256,
        reads_ahead=args.reads_ahead,
    )
    files = TextFiles(source=str(source), output=f"{source}.out", overwrite=True)
    start, cpu = time.perf_counter(), time.process_time()
    with (
        mock.patch.object(translate_file, "load_translator", return_value=make_translator(loaded)),
    ):
        options = EngineOptions(models=[source])
        translate_file.translate_file(files, LineFormat(), SearchOptions(), options)
    cpu, seconds = time.process_time() - cpu, time.perf_counter() - start
    return Turn(count / seconds, 1e6 * cpu / count)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder of its model files")
    parser.add_argument("--input", type=Path, required=True, help="a text file, plain or .gz")
    parser.add_argument(
        "--lines", type=int, default=100_000, help="repeated if the file is shorter"
    )
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--window", type=int, default=20_000, help="lines sorted together")
    parser.add_argument("--batch-tokens", type=int, default=8192)
    parser.add_argument(
        "--reads-ahead", action="store_true", help="encode while others are searched"
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    return parser.parse_args()


def main() -> None:
    """Translate in turns, and print the medians."""
    args = parse_arguments()
    torch.set_num_threads(1)
    lines = list(itertools.islice(itertools.cycle(list(read_lines(args.input))), args.lines))
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "input.txt"
        source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        turns = [measure(args, source, len(lines)) for _ in range(args.turns)]
    print(f"{date.today()}, {len(lines):,} lines, batches of {args.batch_tokens:,} tokens")
    speed = statistics.median(turn.lines_per_second for turn in turns)
    median = Turn(speed, statistics.median(turn.microseconds for turn in turns))
    print(f"{median.lines_per_second:,.0f} lines/s, {median.microseconds:.1f} us a line")
    if args.json:
        content = {"median": asdict(median), "turns": [asdict(turn) for turn in turns]}
        args.json.write_text(json.dumps(content, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
