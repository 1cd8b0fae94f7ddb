"""Measure translation speed in lines per second, of both engines of mt and of CTranslate2 alone.

    python scripts/bench_translate.py --model runs/multi30k --input corpora/multi30k/train.de.gz

CTranslate2 alone is a script as its users write it: SentencePiece, `translate_batch` on all lines
at its best batch size, SentencePiece. All translate with the same model, each in its own process.
The time from text to text counts; with --start-up that of whole processes. The engines take
turns, so a change in the machine's speed affects all of them; figures are medians.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import date
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest import mock

from mt.data.reading.text_files import read_lines
from mt.data.tokens.tokenizer import Tokenizer
from mt.evaluation.systems import EvaluationSet, Settings, evaluate_systems
from mt.runs.model_folder import open_model
from mt.search.options import EngineName, EngineOptions, PrecisionName, SearchOptions
from mt.translate.load_ctranslate2 import available_cores, convert

# Examples in a batch of CTranslate2, of which the fastest on the first lines is taken.
BATCH_SIZES = (16, 32, 64, 128)
TUNING_LINES = 600
ENGINES = ("torch", "ctranslate2")  # of mt
# CTranslate2 has no bf16 on most CPUs.
NOT_THERE = {("ctranslate2", "bf16"), ("torch", "int8")}
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


def every_nth(lines: list[str], count: int) -> list[str]:
    """Pick `count` lines from the whole text."""
    step = max(1, len(lines) // count)
    return lines[::step][:count]


@contextmanager
def in_process(serve: Callable[..., None], *arguments: Any) -> Iterator[Translate]:
    """Run `serve(connection, *arguments)` in a process of its own that translates what it is sent.

    With OMP_NUM_THREADS=1: CTranslate2 has its own threads, and mt one process per core.
    """
    context = multiprocessing.get_context("spawn")
    connection, its_end = context.Pipe()
    process = context.Process(target=serve, args=(its_end, *arguments))
    with mock.patch.dict(os.environ, OMP_NUM_THREADS="1"):
        process.start()
    its_end.close()  # so that recv() fails if the process dies

    def translate(lines: list[str]) -> list[str]:
        connection.send(lines)
        texts: list[str] = connection.recv()
        return texts

    try:
        yield translate
    finally:
        connection.close()  # which ends it
        process.join(10)
        process.terminate()


def mixed(lines: list[str], count: int) -> list[str]:
    """Make `count` lines of very different lengths: each joins 1 to 6 lines of the text."""
    draw = random.Random(1)
    return [" ".join(draw.choices(lines, k=draw.randint(1, 6))) for _ in range(count)]


def mt_engine(
    args: argparse.Namespace,
    engine: EngineName,
    precision: PrecisionName,
    beam: int,
    shortlist: Path | None = None,
) -> Any:
    """Translate as `mt translate` does."""
    search = SearchOptions(beam_size=beam, with_scores=False)
    options = EngineOptions(
        models=[args.model],
        engine=engine,
        precision=precision,
        device=args.device,
        workers=args.workers or available_cores(),
        batch_tokens=args.batch_tokens,
        shortlist=shortlist,
    )
    return in_process(serve_mt, search, options)


def received(connection: Connection) -> Iterator[list[str]]:
    """Yield what arrives until the other end closes."""
    while True:
        try:
            yield connection.recv()
        except EOFError:
            return


def serve_mt(connection: Connection, search: SearchOptions, options: EngineOptions) -> None:
    """Receive lines and send their translations."""
    from mt.translate.load import load_translator

    with load_translator(search, options) as translator:
        for lines in received(connection):
            connection.send([one.texts[0] for one in translator.translate(lines)])


def serve_ctranslate2(
    connection: Connection, model: Path, folder: Path, precision: str, beam: int, threads: int
) -> None:
    """Receive lines and send their translations. The first lines choose the batch size."""
    import ctranslate2

    described = open_model(model)
    tokenizer = described.tokenizer
    translator: Any = ctranslate2.Translator(
        str(folder), device="cpu", compute_type=precision, inter_threads=threads, intra_threads=1
    )

    def translate(lines: list[str], size: int) -> list[str]:
        results = translator.translate_batch(
            [tokenizer.src.pieces_of(ids) for ids in tokenizer.src.encode(lines)],
            beam_size=beam,
            length_penalty=described.config.decode.length_penalty,
            max_batch_size=size,
        )
        piece_id = tokenizer.tgt.processor.piece_to_id
        return tokenizer.tgt.decode([[*map(piece_id, each.hypotheses[0])] for each in results])

    def seconds(lines: list[str], size: int) -> float:
        start = perf_counter()
        translate(lines, size)
        return perf_counter() - start

    size = 0
    for lines in received(connection):
        if not size:
            seconds(lines[:32], 32)
            size = min(BATCH_SIZES, key=lambda each: seconds(lines, each))
            print(f"CTranslate2 in {precision}, beam {beam}: fastest with {size} examples a batch")
        connection.send(translate(lines, size))


def export_model(model: Path, stack: ExitStack) -> Path:
    """Export the model to a temporary CTranslate2 folder."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "model"
    folder.mkdir()
    convert(open_model(model), folder)
    return folder


def start_engines(args: argparse.Namespace, folder: Path, stack: ExitStack) -> list[Engine]:
    """Start every engine asked for."""
    engines = []
    for beam in args.beam_size:
        for name in args.engine:
            for precision in args.precision:
                if (name, precision) in NOT_THERE:
                    continue
                shortlists = {f"mt {name}": None}
                if args.shortlist and name == "ctranslate2":
                    shortlists["mt shortlist"] = args.shortlist
                for title, shortlist in shortlists.items():
                    ours = mt_engine(args, name, precision, beam, shortlist)
                    engines.append(Engine(title, precision, beam, stack.enter_context(ours)))
        for precision in args.ctranslate2:
            threads = args.workers or available_cores()
            theirs = stack.enter_context(
                in_process(serve_ctranslate2, args.model, folder, precision, beam, threads)
            )
            engines.append(Engine("CTranslate2", precision, beam, theirs))
    return engines


def bench_speed(args: argparse.Namespace, lines: list[str]) -> list[dict[str, Any]]:
    """Measure and print the speed of all engines, and their latency where it is asked for."""
    references = None
    if args.reference:
        references = every_nth(list(read_lines(args.reference)), args.lines)
    tokenizer = open_model(args.model).tokenizer
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        folder = export_model(args.model, stack) if args.ctranslate2 else Path()
        engines = start_engines(args, folder, stack)
        for engine in engines:  # the first use of a kernel is slow
            engine.translate(lines[:TUNING_LINES])
        for _ in range(args.repeats):
            for engine in engines:
                engine.measure(lines)
        print(f"{date.today()}, {len(lines):,} lines")
        print(f"{'engine':<14} {'precision':<9} beam  lines/s tokens/s  slowest  fastest   BLEU")
        for engine in engines:
            speed = summarize(engine, tokenizer, references)
            print_speed(speed)
            rows.append(asdict(speed))
        for engine in engines:
            if args.latency and engine.beam == 1:
                rows.append(bench_latency(engine, lines[: args.latency]))
    return rows


def summarize(engine: Engine, tokenizer: Tokenizer, references: list[str] | None) -> Speed:
    """Make a row of the turns of an engine."""
    n_lines = len(engine.output)
    n_tokens = sum(len(ids) + 1 for ids in tokenizer.tgt.encode(engine.output))
    seconds = statistics.median(engine.seconds)
    bleu = None
    if references:
        data = EvaluationSet("", [references])
        scored = evaluate_systems(data, {"": engine.output}, Settings(["bleu"]))
        bleu = scored.systems[""][0].score.value
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
    print(f"{speed.engine:<14} {speed.precision:<9} {speed.beam:>4} {figures} {bleu}")


def bench_latency(engine: Engine, lines: list[str]) -> dict[str, Any]:
    """Translate one line at a time and print the latency."""
    milliseconds = []
    for line in lines:
        start = perf_counter()
        engine.translate([line])
        milliseconds.append(1000 * (perf_counter() - start))
    median = statistics.median(milliseconds)
    last = sorted(milliseconds)[round(0.99 * (len(milliseconds) - 1))]
    figures = f"median {median:.1f} ms, 99th percentile {last:.1f} ms"
    print(f"{engine.name:<14} {engine.precision:<9} one line at a time: {figures}")
    row = {"engine": engine.name, "precision": engine.precision}
    return {**row, "latency_ms": median, "latency_99_ms": last}


# CTranslate2 alone, as a whole process: model folder, tokenizer, precision, beam, threads, text.
SCRIPT = """
import sys, ctranslate2, sentencepiece
folder, model, precision, beam, threads, source = sys.argv[1:]
pieces = sentencepiece.SentencePieceProcessor(model)
translator = ctranslate2.Translator(
    folder, compute_type=precision, inter_threads=int(threads), intra_threads=1
)
lines = open(source, encoding="utf-8").read().split("\\n")[:-1]
results = translator.translate_batch(
    pieces.encode(lines, out_type=str), beam_size=int(beam), max_batch_size=64
)
print("\\n".join(pieces.decode([result.hypotheses[0] for result in results])))
"""


def bench_start_up(args: argparse.Namespace, lines: list[str]) -> list[dict[str, Any]]:
    """Time whole processes, greedy: with all lines, and with one."""
    rows: list[dict[str, Any]] = []
    threads = str(args.workers or available_cores())
    with ExitStack() as stack:
        folder = export_model(args.model, stack)
        tokenizer = str(next(folder.glob("tokenizer*.model")))
        for count in (len(lines), 1):
            source = folder.with_name(f"{count}.txt")
            source.write_text("".join(f"{line}\n" for line in lines[:count]), encoding="utf-8")
            for precision, theirs in (("fp32", "float32"), ("int8", "int8")):
                ours = ["-m", "mt", "translate", "-m", str(args.model), str(source)]
                ours += ["--beam-size", "1", "--precision", precision, "--workers", threads]
                commands = {
                    f"mt {name}": [*ours, "--engine", name]
                    for name in ENGINES
                    if (name, precision) not in NOT_THERE
                }
                alone = ["-c", SCRIPT, str(folder), tokenizer, theirs, "1", threads, str(source)]
                for name, seconds in time_in_turns(commands | {"CTranslate2": alone}, args.repeats):
                    row = {"engine": name, "precision": precision, "lines": count}
                    print(
                        f"{name:<14} {precision:<9} {count:>6,} lines, start-up included: ", end=""
                    )
                    print(f"{seconds:.2f} s")
                    rows.append({**row, "seconds": seconds})
    return rows


def time_in_turns(commands: dict[str, list[str]], repeats: int) -> Iterator[tuple[str, float]]:
    """Run Python commands in turns; yield the median seconds of each."""
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(repeats):
        for name, command in commands.items():
            start = perf_counter()
            subprocess.run([sys.executable, *command], capture_output=True, check=True)
            seconds[name].append(perf_counter() - start)
    for name, times in seconds.items():
        yield name, statistics.median(times)


def count_flips(args: argparse.Namespace, lines: list[str]) -> None:
    """Print how many outputs depend on the precision, or on what else is in the batch.

    The lines are shuffled and translated in batches of several sizes. The outputs are compared with
    those of fp32 in batches of the default size.
    """
    order = random.Random(1).sample(range(len(lines)), len(lines))
    shuffled = [lines[i] for i in order]
    for beam in args.beam_size:
        args.batch_tokens = None
        with mt_engine(args, args.engine[0], "fp32", beam) as translate:
            expected = translate(lines)
        for precision in args.precision:
            for tokens in (50, 400, None):  # about 3 lines, 25 lines, and the default
                args.batch_tokens = None if tokens is None else tokens * beam
                with mt_engine(args, args.engine[0], precision, beam) as translate:
                    texts = translate(shuffled)
                changed = sum(expected[i] != text for i, text in zip(order, texts, strict=True))
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
    add("--engine", nargs="+", choices=ENGINES, default=list(ENGINES), help="of mt")
    add("--precision", nargs="+", default=["fp32", "bf16", "int8"])
    add("--shortlist", type=Path, help="vmap.txt: also translate with it")
    add("--mixed", action="store_true", help="lines of 1 to 6 lines of the text, joined")
    add("--ctranslate2", nargs="*", default=["float32", "int8"], help="its precisions, or none")
    add("--start-up", action="store_true", help="time whole processes instead, greedy")
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
    text = list(read_lines(args.input))
    lines = mixed(text, args.lines) if args.mixed else every_nth(text, args.lines)
    if args.flips:
        count_flips(args, lines)
        return
    rows = bench_start_up(args, lines) if args.start_up else bench_speed(args, lines)
    if args.json:
        versions = {name: version(name) for name in ("torch", "ctranslate2")}
        result = {"date": str(date.today()), **versions, "rows": rows}
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
