"""Translation speed, beside CTranslate2 where that is installed: lines per second from text to text.

    python scripts/bench_translate.py --model runs/multi30k --input corpora/multi30k/train.de.gz

Both decode one model: `--model` is exported first. Tokenisation and detokenisation count, starting up does not. The
settings take turns, so that a machine that gets slower slows all of them; figures are medians over the turns.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import torch

from mt.data.text_files import read_lines
from mt.decoding.translate import load_translator
from mt.evaluation.metrics import score_corpus
from mt.model.checkpoint import load_model

# CTranslate2's best batch sizes on two cores of an AMD EPYC, one thread for each of two translators.
CT2_BATCH = {"float32": 128, "int8": 32}
Texts = Callable[[list[str]], list[str]]


def spread(lines: list[str], count: int) -> list[str]:
    """`count` lines from all over the text."""
    step = max(1, len(lines) // count)
    return lines[::step][:count]


@contextmanager
def ours(args: argparse.Namespace, precision: str, beam: int) -> Iterator[Texts]:
    """mt as `mt translate` runs it."""
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
def theirs(args: argparse.Namespace, folder: Path, precision: str, beam: int) -> Iterator[Texts]:
    """CTranslate2 on the same number of cores, one thread each.

    In a process of its own, with OMP_NUM_THREADS=1: in one that has loaded torch for two threads it is half as fast.
    """
    context = multiprocessing.get_context("spawn")
    ours_end, their_end = context.Pipe()
    work = (their_end, args.model, folder, precision, beam, args.workers or torch.get_num_threads())
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    process = context.Process(target=serve_ctranslate2, args=work, daemon=True)
    process.start()
    their_end.close()  # so that its death is the end of what can be received
    if before is None:
        del os.environ["OMP_NUM_THREADS"]
    else:
        os.environ["OMP_NUM_THREADS"] = before

    def translate(lines: list[str]) -> list[str]:
        ours_end.send(lines)
        texts: list[str] = ours_end.recv()
        return texts

    try:
        yield translate
    finally:
        process.terminate()
        process.join()


def serve_ctranslate2(
    connection: Any, model: Path, folder: Path, precision: str, beam: int, threads: int
) -> None:
    """The life of CTranslate2's process: lines come in, lines go out."""
    import ctranslate2

    loaded = load_model(model)
    tokenizer, decode = loaded.tokenizer, loaded.config.decode
    translator: Any = ctranslate2.Translator(
        str(folder), device="cpu", compute_type=precision, inter_threads=threads, intra_threads=1
    )
    while True:
        try:
            lines = connection.recv()
        except EOFError:
            return
        results = translator.translate_batch(
            [tokenizer.src_pieces_of(ids) for ids in tokenizer.encode_src(lines)],
            beam_size=beam,
            length_penalty=decode.length_penalty,
            max_batch_size=CT2_BATCH.get(precision, 64),
            max_decoding_length=256,
            disable_unk=True,
        )
        connection.send([str(tokenizer._tgt.decode(result.hypotheses[0])) for result in results])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--lines", type=int, default=5000)
    parser.add_argument("--beam-size", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--precision", nargs="+", default=["fp32", "bf16", "int8"])
    parser.add_argument(
        "--ctranslate2",
        nargs="*",
        default=["float32", "int8"],
        help="its precisions; none: without it",
    )
    parser.add_argument("--workers", type=int)
    parser.add_argument("--batch-tokens", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--latency", type=int, default=0, help="also so many lines one at a time, greedy"
    )
    parser.add_argument(
        "--flips",
        action="store_true",
        help="instead: lines that change with batches and precisions",
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    lines = spread(list(read_lines(args.input)), args.lines)
    if args.flips:
        flips(args, lines)
        return
    references = spread(list(read_lines(args.reference)), args.lines) if args.reference else None
    tokenizer = load_model(args.model).tokenizer
    rows = []
    with ExitStack() as stack:
        engines: dict[tuple[str, str, int], Texts] = {}
        folder = exported(args.model, stack) if args.ctranslate2 else Path()
        for beam in args.beam_size:
            for precision in args.precision:
                engines["mt", precision, beam] = stack.enter_context(ours(args, precision, beam))
            for precision in args.ctranslate2:
                engines["ctranslate2", precision, beam] = stack.enter_context(
                    theirs(args, folder, precision, beam)
                )
        seconds: dict[tuple[str, str, int], list[float]] = {key: [] for key in engines}
        outputs: dict[tuple[str, str, int], list[str]] = {}
        for translate in engines.values():
            translate(lines[:64])  # first use of kernels
        for _ in range(args.repeats):
            for key, translate in engines.items():
                start = time.perf_counter()
                outputs[key] = translate(lines)
                seconds[key].append(time.perf_counter() - start)
        print(
            f"{date.today()}, {len(lines):,} lines, torch {torch.__version__}, {args.repeats} turns"
        )
        print(f"{'engine':<12} {'precision':<9} beam  lines/s tokens/s  slowest  fastest   BLEU")
        for key, times in seconds.items():
            name, precision, beam = key
            speed = len(lines) / statistics.median(times)
            tokens = sum(
                len(ids) + 1 for ids in tokenizer.encode_tgt(outputs[key])
            ) / statistics.median(times)
            bleu = (
                score_corpus(outputs[key], [references], ["bleu"])[0].value if references else None
            )
            slow, fast = len(lines) / max(times), len(lines) / min(times)
            shown = "" if bleu is None else f"{bleu:6.2f}"
            figures = " ".join(f"{value:>8,.0f}" for value in (speed, tokens, slow, fast))
            print(f"{name:<12} {precision:<9} {beam:>4} {figures} {shown}")
            row = {"engine": name, "precision": precision, "beam": beam, "lines_per_second": speed}
            rows.append({**row, "tokens_per_second": tokens, "bleu": bleu})
        for key in [key for key in engines if args.latency and key[2] == 1]:
            rows.append(latency(key, engines[key], lines[: args.latency]))
    if args.json:
        args.json.write_text(
            json.dumps(
                {"date": str(date.today()), "torch": torch.__version__, "rows": rows}, indent=1
            )
        )


def flips(args: argparse.Namespace, lines: list[str]) -> None:
    """How many outputs differ from those of fp32 in batches of the default size."""
    for beam in args.beam_size:
        args.batch_tokens = None
        with ours(args, "fp32", beam) as translate:
            expected = translate(lines)
        shuffled = random.Random(1).sample(range(len(lines)), len(lines))
        for precision in args.precision:
            for tokens in (50, 400, None):  # about 3 lines, 25, and 500 shared by the beam
                args.batch_tokens = None if tokens is None else tokens * beam
                with ours(args, precision, beam) as translate:
                    found = dict(
                        zip(shuffled, translate([lines[i] for i in shuffled]), strict=True)
                    )
                changed = sum(found[i] != text for i, text in enumerate(expected))
                budget = "default" if tokens is None else f"{tokens} tokens"
                share = f"{changed:,} of {len(lines):,} lines differ ({changed / len(lines):.2%})"
                print(
                    f"{precision:<5} beam {beam}, shuffled, batches of {budget}: {share}",
                    flush=True,
                )


def exported(model: Path, stack: ExitStack) -> Path:
    """The model as a CTranslate2 folder."""
    from mt.interop.ctranslate2 import export

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "model"
    print(export(load_model(model), folder))
    return folder


def latency(key: tuple[str, str, int], translate: Texts, lines: list[str]) -> dict[str, Any]:
    """Milliseconds for one line at a time."""
    taken = []
    for line in lines:
        start = time.perf_counter()
        translate([line])
        taken.append(1000 * (time.perf_counter() - start))
    median, last = statistics.median(taken), sorted(taken)[round(0.99 * (len(taken) - 1))]
    print(
        f"{key[0]:<12} {key[1]:<9} one line at a time: median {median:.1f} ms, 99th percentile {last:.1f} ms"
    )
    return {"engine": key[0], "precision": key[1], "latency_ms": median, "latency_99_ms": last}


if __name__ == "__main__":
    main()
