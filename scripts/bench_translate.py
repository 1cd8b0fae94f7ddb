"""Measure translation speed: sentences and output tokens per second of a trained model, start-up excluded.

    python scripts/bench_translate.py --model runs/multi30k --input ../shared/data/multi30k/train.de.gz

Translates 5,000 lines spread evenly over the input, greedily and with beam 5. Settings take turns, repeat after
repeat, and the median is quoted. With --reference, BLEU of each setting is printed too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

from mt.data.corpus import read_lines
from mt.decoding.translate import Translator
from mt.devices import choose_device, peak_memory_mb
from mt.evaluation.metrics import score_corpus
from mt.model.checkpoint import load_model


def spread(lines: list[str], count: int) -> list[str]:
    """`count` lines at equal distances."""
    return lines[:: max(1, len(lines) // count)][:count]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--lines", type=int, default=5000)
    parser.add_argument("--beam-size", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--precision", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--batch-tokens", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    lines = spread(list(read_lines(args.input)), args.lines)
    references = spread(list(read_lines(args.reference)), args.lines) if args.reference else None
    loaded = load_model(args.model)
    settings = [(precision, beam) for precision in args.precision for beam in args.beam_size]
    runs: dict[tuple[str, int], list[dict[str, float]]] = {setting: [] for setting in settings}
    bleu: dict[tuple[str, int], float] = {}
    for _ in range(args.repeats):
        for precision, beam in settings:
            translator = Translator(
                loaded.model,
                loaded.tokenizer,
                loaded.config.decode.model_copy(update={"beam_size": beam}),
                choose_device(args.device, precision),
                max_source=loaded.config.data.max_tokens,
                batch_tokens=args.batch_tokens,
            )
            list(translator.translate(lines[:64]))  # first use of kernels
            tokens_before, start = translator.tally.tokens, time.perf_counter()
            texts = [one.texts[0] for one in translator.translate(lines)]
            seconds = time.perf_counter() - start
            tokens = translator.tally.tokens - tokens_before
            runs[precision, beam].append({"seconds": seconds, "tokens": tokens})
            if references:
                bleu[precision, beam] = score_corpus(texts, [references], ["bleu"])[0].value
    memory = peak_memory_mb(choose_device(args.device).device)
    print(f"{len(lines):,} lines, torch {torch.__version__}, {torch.get_num_threads()} threads, {memory:,.0f} MB")
    print(f"{'precision':<9} {'beam':>4} {'lines/s':>8} {'tokens/s':>9} {'slowest':>8} {'fastest':>8} {'BLEU':>6}")
    rows = []
    for (precision, beam), results in runs.items():
        speeds = [len(lines) / run["seconds"] for run in results]
        middle = statistics.median(speeds)
        tokens = statistics.median(run["tokens"] / run["seconds"] for run in results)
        score = f"{bleu[precision, beam]:6.2f}" if references else "     -"
        print(
            f"{precision:<9} {beam:>4} {middle:>8,.0f} {tokens:>9,.0f} "
            f"{min(speeds):>8,.0f} {max(speeds):>8,.0f} {score}"
        )
        rows.append({"precision": precision, "beam": beam, "lines_per_second": middle, "tokens_per_second": tokens})
    if args.json:
        args.json.write_text(json.dumps({"memory_mb": memory, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
