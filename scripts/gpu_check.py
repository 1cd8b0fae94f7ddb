"""Check and measure mt on a GPU with one command, in at most nine minutes.

    PYTHONPATH=. python scripts/gpu_check.py --output gpu-check.jsonl
    PYTHONPATH=. python scripts/gpu_check.py --levers --output gpu-levers.jsonl

It downloads nothing, reads no corpus, and needs torch, NumPy, PyYAML, pydantic and this repository.
Each section runs in a process of its own within its own time, and appends what it finds to the
output at once, so that a crash or a time limit loses nothing else. The output is one JSON object a
line: section, name, status, value, unit, note.

`--levers` measures instead what might make a GPU faster, in at most eight minutes, and decides by a
fixed rule what to adopt (`gpu_sections/decision.py`).

`--device cpu` runs the same code in a minute, with a tiny model, to test it. Those figures mean
nothing, and what only a GPU can show is printed as skipped.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpu_sections.report import Item, Report, read_items

# Import names of the packages that are needed, and the names that pip installs them by.
PACKAGES = {
    "torch": "torch",
    "numpy": "numpy",
    "yaml": "pyyaml",
    "pydantic": "pydantic",
    "mt": "this repository: run with PYTHONPATH=.",
}
# The sections and their shares of the time.
SECTIONS = {
    "environment": 0.06,
    "correctness": 0.23,
    "kernels": 0.12,
    "training": 0.32,
    "decoding": 0.17,
    "translating": 0.10,
}
# Those of --levers: the last one gets all the time that is left.
LEVERS = {
    "launches": 0.09,
    "products": 0.05,
    "attentions": 0.13,
    "workers": 0.23,
    "updates": 0.50,
}
MINUTES, MINUTES_OF_LEVERS = 9.0, 8.0
# Seconds beyond its time after which a section is ended: imports, and the last item.
GRACE = 20
# Seconds for the start of this script, and for its closing table.
MARGIN = 15
AIMS = (
    # what, its section, the end of its items' names, aim, whether more is better, unit
    ("training", "training", ": training", 750_000, True, "target tokens/s"),
    ("first update", "training", ": first update after", 60, False, "s"),
    ("recompilations", "training", ": recompilations", 0, False, ""),
    ("waiting for data", "training", ": waiting for data", 1, False, "%"),
    ("decoding, greedy", "decoding", "greedy: decoding", 300_000, True, "tokens/s"),
)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 or cpu")
    parser.add_argument("--output", type=Path, default=Path("gpu-check.jsonl"), help="a new file")
    parser.add_argument("--levers", action="store_true", help="compare ways to be faster")
    parser.add_argument("--minutes", type=float, help="time for all sections, by default 9 or 8")
    names = [*SECTIONS, *LEVERS]
    parser.add_argument("--sections", nargs="+", choices=names, help="by default all")
    parser.add_argument("--tiny", action="store_true", help="so little work that a CPU can do it")
    parser.add_argument("--section", choices=names, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.minutes = args.minutes or (MINUTES_OF_LEVERS if args.levers else MINUTES)
    args.sections = args.sections or list(LEVERS if args.levers else SECTIONS)
    return args


def missing_packages() -> list[str]:
    """Return what must be installed first."""
    return [install for name, install in PACKAGES.items() if importlib.util.find_spec(name) is None]


def device_refusal(name: str) -> str:
    """Why nothing can be measured on this device, empty if it can.

    Without a CUDA context: a GPU that takes one process at a time is for the sections.
    """
    import torch

    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        return f"--device: must be cuda, cuda:N or cpu, found {name!r}"
    count = torch.cuda.device_count()
    if device.type == "cpu" or (device.index or 0) < count:
        return ""
    found = f"{count} GPU{'s' * (count != 1)}" if count else "no GPU"
    return (
        f"--device {name}: torch {torch.__version__} sees {found}; --device cpu tries this script "
        "out"
    )


def missing_for_code() -> list[str]:
    """What Triton needs for its C code and this machine does not have; before torch is loaded."""
    from mt.runtime.machine import c_compiler, python_header

    found = {"a C compiler (gcc)": c_compiler(), "Python.h (python3-dev)": python_header()}
    return [name for name, path in found.items() if path is None]


def seconds_for(sections: list[str], left: float) -> float:
    """The time of the first of the `sections` that share the time that is left."""
    shares = SECTIONS | LEVERS
    share = shares[sections[0]] / sum(shares[name] for name in sections)
    return max(5.0, (left - GRACE * len(sections)) * share)


def run_section(args: argparse.Namespace) -> None:
    """Run one section in this process."""
    from gpu_sections.setting import Setting

    report = Report(args.output, args.section, args.seconds)
    section = importlib.import_module(f"gpu_sections.{args.section}")
    section.run(report, Setting(args.device, args.tiny))


def start_section(args: argparse.Namespace, name: str, seconds: float) -> None:
    """Run one section in a process of its own; record it if it crashes or takes too long."""
    command = [sys.executable, __file__, "--section", name, "--seconds", f"{seconds:.0f}"]
    command += ["--device", args.device, "--output", str(args.output)]
    command += ["--tiny"] if args.tiny else []
    print(f"\n== {name} (at most {seconds:.0f} s)", flush=True)
    report = Report(args.output, name, seconds)
    start = time.monotonic()
    try:
        code = subprocess.run(command, timeout=seconds + GRACE, check=False).returncode
    except subprocess.TimeoutExpired:
        report.add("section", "failed", note=f"ended after {seconds + GRACE:.0f} s")
        return
    status = "failed" if code else "ok"
    note = f"exit code {code}" if code else ""
    report.add("section", status, time.monotonic() - start, "s", note)


def decision(items: list[Item]) -> str:
    """What the measurements of --levers decide, and what failed or says nothing."""
    from gpu_sections.decision import decide, table_of

    return "\n".join(["decision", *decide(*table_of(items)).lines, *failures(items)])


def closing_table(items: list[Item]) -> str:
    """What was aimed at, what was reached, and what takes the most time."""
    lines = [f"{'':<20} {'aim':>12} {'reached':>12}"]
    for what, section, ending, aim, more, unit in AIMS:
        values = [
            float(item.value)
            for item in items
            if item.section == section and item.name.endswith(ending) and item.value is not None
        ]
        # Of several the highest speed, but the longest time and the most recompilations.
        most = max(values) if values else None
        reached = (
            "not measured" if most is None else f"{most:,.4g}" if most < 100 else f"{most:,.0f}"
        )
        met = "" if most is None else "met" if (most >= aim if more else most <= aim) else "missed"
        lines.append(f"{what:<20} {aim:>12,} {reached:>12}  {unit:<16} {met}")
    kernels = [item for item in items if item.name.endswith(": kernel")]
    if kernels:
        largest = max(kernels, key=lambda item: float(item.value))
        lines.append(f"largest kernel: {largest.name.removesuffix(': kernel')}: {largest.note}")
    return "\n".join([*lines, *failures(items)])


def failures(items: list[Item]) -> list[str]:
    """Lines that name what was skipped and what failed."""
    lines = []
    for status, counted in (("skipped", "not judged"), ("failed", "failed")):
        chosen = [item for item in items if item.status == status]
        listed = [f"{item.section}: {item.name}: {item.note}" for item in chosen]
        lines += ["", f"{len(chosen)} {counted}", *listed] if chosen else []
    return (
        lines if any(item.status == "failed" for item in items) else [*lines, "", "nothing failed"]
    )


def main() -> int:
    """Run the sections, then print the closing table. Exit code 1 if anything failed, else 0."""
    start = time.monotonic()
    args = parse_arguments()
    args.tiny |= args.device == "cpu"
    end = start + 60 * args.minutes - MARGIN
    missing = missing_packages()
    if missing:
        print(f"gpu_check: install first: {', '.join(missing)}", file=sys.stderr)
        return 2
    if args.section:
        run_section(args)
        return 0
    if args.output.exists():
        print(f"gpu_check: --output {args.output}: exists; name another file", file=sys.stderr)
        return 2
    if refusal := device_refusal(args.device):
        print(f"gpu_check: {refusal}", file=sys.stderr)
        return 2
    missing = missing_for_code()
    if missing and not args.tiny:
        print(
            f"gpu_check: nothing will be compiled, for want of {' and '.join(missing)}", flush=True
        )
    with tempfile.TemporaryDirectory() as cache:
        # What an earlier run has compiled would make the first update look fast.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        for number, name in enumerate(args.sections):
            start_section(args, name, seconds_for(args.sections[number:], end - time.monotonic()))
    items = read_items(args.output)
    table = decision(items) if args.levers else closing_table(items)
    print(f"\n{table}\n\nall items: {args.output}")
    return 1 if any(item.status == "failed" for item in items) else 0


if __name__ == "__main__":
    sys.exit(main())
