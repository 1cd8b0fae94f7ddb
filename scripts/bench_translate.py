"""Measure translation speed in lines per second, and CTranslate2's if it is installed.

    python scripts/bench_translate.py --model runs/multi30k --input corpora/multi30k/train.de.gz

Both translate with the same model, which is first exported for CTranslate2. The time from text to
text counts, with splitting into pieces and joining them again, but without start-up. The engines
take turns, so a change in the machine's speed affects all of them; figures are medians.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import date
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from mt.data.text_files import read_lines
from mt.data.tokenizer import Tokenizer
from mt.decoding.translate import load_translator
from mt.evaluation.metrics import score_corpus
from mt.interop.ctranslate2 import export
from mt.model.checkpoint import load_model

# CTranslate2's fastest batch sizes, found on two cores of an AMD EPYC with one thread per core.
CTRANSLATE2_BATCH_SIZES = {"float32": 128, "int8": 32}
Translate = Callable[[list[str]], list[str]]


@dataclass
class Engine:
    """One way to translate, and what was measured of it."""

    name: str
    precision: str
    beam: int
    translate: Translate
    seconds: list[float] = field(default_factory=list)
    output: list[str] = field(default_factory=list)

    def measure(self, lines: list[str]) -> None:
        """Translate the lines once and record the time."""
        start = perf_counter()
        self.output = self.translate(lines)
        self.seconds.append(perf_counter() - start)


@dataclass(frozen=True)
class Speed:
    """One row of the table: medians over the turns."""

    engine: str
    precision: str
    beam: int
    lines_per_second: float
    tokens_per_second: float
    slowest: float  # lines per second
    fastest: float
    bleu: float | None


@dataclass(frozen=True)
class Latency:
    """Milliseconds from one line to its translation, greedy."""

    engine: str
    precision: str
    latency_ms: float  # median
    latency_99_ms: float  # 99th percentile


def every_nth(lines: list[str], count: int) -> list[str]:
    """Pick `count` lines from the whole text."""
    step = max(1, len(lines) // count)
    return lines[::step][:count]


@contextmanager
def mt_engine(args: argparse.Namespace, precision: str, beam: int) -> Iterator[Translate]:
    """Translate as `mt translate` does."""
    with load_translator(
        [args.model],
        {"beam_size": beam},
        precision=precision,
        device=args.device,
        workers=args.workers,
        batch_tokens=args.batch_tokens,
    ) as translator:
        yield lambda lines: [one.texts[0] for one in translator.translate(lines)]


@contextmanager
def ctranslate2_engine(
    args: argparse.Namespace, folder: Path, precision: str, beam: int
) -> Iterator[Translate]:
    """Translate with CTranslate2 on the same number of cores, one thread each.

    It has its own process with OMP_NUM_THREADS=1: in a process where torch runs two threads it is
    half as fast.
    """
    context = multiprocessing.get_context("spawn")
    connection, its_end = context.Pipe()
    threads = args.workers or torch.get_num_threads()
    process = context.Process(
        target=serve_ctranslate2,
        args=(its_end, args.model, folder, precision, beam, threads),
        daemon=True,
    )
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    process.start()
    if before is None:
        del os.environ["OMP_NUM_THREADS"]
    else:
        os.environ["OMP_NUM_THREADS"] = before
    its_end.close()  # so that recv() fails if the process dies

    def translate(lines: list[str]) -> list[str]:
        connection.send(lines)
        texts: list[str] = connection.recv()
        return texts

    try:
        yield translate
    finally:
        process.terminate()
        process.join()


def serve_ctranslate2(
    connection: Connection, model: Path, folder: Path, precision: str, beam: int, threads: int
) -> None:
    """Receive lines and send their translations, until the other end closes."""
    import ctranslate2

    loaded = load_model(model)
    tokenizer = loaded.tokenizer
    translator: Any = ctranslate2.Translator(
        str(folder), device="cpu", compute_type=precision, inter_threads=threads, intra_threads=1
    )
    while True:
        try:
            lines: list[str] = connection.recv()
        except EOFError:
            return
        results = translator.translate_batch(
            [tokenizer.src_pieces_of(ids) for ids in tokenizer.encode_src(lines)],
            beam_size=beam,
            length_penalty=loaded.config.decode.length_penalty,
            max_batch_size=CTRANSLATE2_BATCH_SIZES.get(precision, 64),
            max_decoding_length=256,
            disable_unk=True,
        )
        hypotheses = ([tokenizer.tgt_piece_id(p) for p in r.hypotheses[0]] for r in results)
        connection.send(tokenizer.decode_tgt(list(hypotheses)))


def export_model(model: Path, stack: ExitStack) -> Path:
    """Export the model to a temporary CTranslate2 folder."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "model"
    print(export(load_model(model), folder))
    return folder


def start_engines(args: argparse.Namespace, stack: ExitStack) -> list[Engine]:
    """Start every engine asked for."""
    folder = export_model(args.model, stack) if args.ctranslate2 else Path()
    engines = []
    for beam in args.beam_size:
        for precision in args.precision:
            ours = stack.enter_context(mt_engine(args, precision, beam))
            engines.append(Engine("mt", precision, beam, ours))
        for precision in args.ctranslate2:
            theirs = stack.enter_context(ctranslate2_engine(args, folder, precision, beam))
            engines.append(Engine("ctranslate2", precision, beam, theirs))
    return engines


def bench_speed(args: argparse.Namespace, lines: list[str]) -> list[dict[str, Any]]:
    """Measure and print the speed of all engines, and their latency where it is asked for."""
    references = None
    if args.reference:
        references = every_nth(list(read_lines(args.reference)), args.lines)
    tokenizer = load_model(args.model).tokenizer
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        engines = start_engines(args, stack)
        for engine in engines:
            engine.translate(lines[:64])  # the first use of a kernel is slow
        for _ in range(args.repeats):
            for engine in engines:
                engine.measure(lines)
        print(f"{date.today()}, {len(lines):,} lines, torch {torch.__version__}")
        print(f"{'engine':<12} {'precision':<9} beam  lines/s tokens/s  slowest  fastest   BLEU")
        for engine in engines:
            speed = summarize(engine, tokenizer, references)
            print_speed(speed)
            rows.append(asdict(speed))
        for engine in engines:
            if args.latency and engine.beam == 1:
                rows.append(asdict(bench_latency(engine, lines[: args.latency])))
    return rows


def summarize(engine: Engine, tokenizer: Tokenizer, references: list[str] | None) -> Speed:
    """Make a row of the turns of an engine."""
    n_lines = len(engine.output)
    n_tokens = sum(len(ids) + 1 for ids in tokenizer.encode_tgt(engine.output))
    seconds = statistics.median(engine.seconds)
    bleu = None
    if references:
        bleu = score_corpus(engine.output, [references], ["bleu"])[0].value
    return Speed(
        engine.name,
        engine.precision,
        engine.beam,
        lines_per_second=n_lines / seconds,
        tokens_per_second=n_tokens / seconds,
        slowest=n_lines / max(engine.seconds),
        fastest=n_lines / min(engine.seconds),
        bleu=bleu,
    )


def print_speed(speed: Speed) -> None:
    """Print one line of the table."""
    values = (speed.lines_per_second, speed.tokens_per_second, speed.slowest, speed.fastest)
    figures = " ".join(f"{value:>8,.0f}" for value in values)
    bleu = "" if speed.bleu is None else f"{speed.bleu:6.2f}"
    print(f"{speed.engine:<12} {speed.precision:<9} {speed.beam:>4} {figures} {bleu}")


def bench_latency(engine: Engine, lines: list[str]) -> Latency:
    """Translate one line at a time and print the latency."""
    milliseconds = []
    for line in lines:
        start = perf_counter()
        engine.translate([line])
        milliseconds.append(1000 * (perf_counter() - start))
    median = statistics.median(milliseconds)
    last = sorted(milliseconds)[round(0.99 * (len(milliseconds) - 1))]
    figures = f"median {median:.1f} ms, 99th percentile {last:.1f} ms"
    print(f"{engine.name:<12} {engine.precision:<9} one line at a time: {figures}")
    return Latency(engine.name, engine.precision, median, last)


def count_flips(args: argparse.Namespace, lines: list[str]) -> None:
    """Print how many outputs depend on the precision, or on what else is in the batch.

    The lines are shuffled and translated in batches of several sizes. The outputs are compared with
    those of fp32 in batches of the default size.
    """
    order = random.Random(1).sample(range(len(lines)), len(lines))
    shuffled = [lines[i] for i in order]
    for beam in args.beam_size:
        args.batch_tokens = None
        with mt_engine(args, "fp32", beam) as translate:
            expected = translate(lines)
        for precision in args.precision:
            for tokens in (50, 400, None):  # about 3 lines, 25 lines, and the default
                args.batch_tokens = None if tokens is None else tokens * beam
                with mt_engine(args, precision, beam) as translate:
                    found = translate(shuffled)
                changed = sum(expected[i] != text for i, text in zip(order, found, strict=True))
                size = "the default size" if tokens is None else f"{tokens} tokens"
                share = f"{changed:,} of {len(lines):,} lines differ ({changed / len(lines):.2%})"
                print(f"{precision:<5} beam {beam}, shuffled, batches of {size}: {share}")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", type=Path, required=True, help="run directory, checkpoint or exported folder")
    add("--input", type=Path, required=True, help="text to translate, plain or .gz")
    add("--reference", type=Path, help="its translation, for BLEU")
    add("--lines", type=int, default=5000, help="lines to translate, taken from the whole text")
    add("--beam-size", type=int, nargs="+", default=[1, 5])
    add("--precision", nargs="+", default=["fp32", "bf16", "int8"])
    add("--ctranslate2", nargs="*", default=["float32", "int8"], help="its precisions, or none")
    add("--workers", type=int, help="processes of mt and threads of CTranslate2; one per core")
    add("--batch-tokens", type=int, help="as in mt translate")
    add("--device", default="auto")
    add("--repeats", type=int, default=3, help="turns of each engine")
    add("--latency", type=int, default=0, help="also translate this many lines one at a time")
    add("--flips", action="store_true", help="count outputs that change with batch or precision")
    add("--json", type=Path, help="also write the rows to this file")
    return parser.parse_args()


def main() -> None:
    """Measure and print the table."""
    args = parse_arguments()
    lines = every_nth(list(read_lines(args.input)), args.lines)
    if args.flips:
        count_flips(args, lines)
        return
    rows = bench_speed(args, lines)
    if args.json:
        result = {"date": str(date.today()), "torch": torch.__version__, "rows": rows}
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
