"""The report of `mt doctor` as text: a line or a small table for each finding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from textwrap import wrap
from typing import Any

# Names of instruction sets that users and vendors write.
UNITS = {
    "avx2": "AVX2", "avx512": "AVX-512", "vnni": "VNNI (int8)", "avx512_bf16": "AVX-512 BF16",
    "amx_tile": "AMX",
}  # fmt: skip

# Characters of a line, after its name.
WIDTH = 88

Report = Mapping[str, Any]


def format_report(report: Report) -> str:
    """Lines with a name in front, as wide as the longest."""
    lines: dict[str, Callable[[Report], str]] = {
        "versions": _versions,
        "system": _system,
        "processor": _processor,
        "GPU": _gpus,
        "compiler": _compiler,
        "memory": _memory,
        "disk": _disk,
        "precision": _precision,
        "CPU speed": _cpu_speed,
        "GPU speed": _gpu_speed,
        "extras": _extras,
        "notes": _notes,
        "training": _verdict,
    }
    width = max(map(len, lines))
    text = []
    for name, describe in lines.items():
        try:
            described = describe(report)
        except KeyError:  # of a finding that failed
            described = _errors(report, name)
        first, *more = described.split("\n")
        if first:
            text += [f"{name:<{width}}  {first}", *(f"{'':<{width}}  {line}" for line in more)]
    return "\n".join(text)


def _errors(report: Report, name: str) -> str:
    """Why a line is missing: the errors of the findings that it is made of."""
    sources = {
        "versions": ["packages", "system"],
        "system": ["system", "environment"],
        "processor": ["system", "torch"],
        "GPU": ["torch", "driver"],
        "compiler": ["compiler", "torch"],
        "memory": ["torch"],
        "disk": ["disk"],
        "precision": ["torch"],
        "CPU speed": ["cpu"],
        "GPU speed": ["gpu"],
        "extras": ["extras"],
    }
    errors = [report[key]["error"] for key in sources[name] if "error" in report.get(key, {})]
    return f"not known ({'; '.join(errors)})"


def _versions(report: Report) -> str:
    packages = report["packages"]
    found = [f"{name} {version or '(not installed)'}" for name, version in packages.items()]
    first = [found[0], f"Python {report['system']['python']}", found[1]]
    return "\n".join([", ".join(first), *wrap(", ".join(found[2:]), WIDTH)])


def _system(report: Report) -> str:
    settings = [f"{name}={value}" for name, value in report["environment"].items()]
    return "\n".join(filter(None, [report["system"]["platform"], " ".join(settings)]))


def _processor(report: Report) -> str:
    system, torch = report["system"], report["torch"]
    units = [UNITS[name] for name in torch["instructions"]]
    return (
        f"{system['processor']}: {system['usable_cores']} of {system['cores']} cores, "
        f"{torch['threads']} used; {', '.join(units) or 'no vector units that torch reports'}"
    )


def _gpus(report: Report) -> str:
    torch, driver = report["torch"], report["driver"]
    lines = [
        f"{gpu['name']}, compute capability {gpu['capability']}, "
        f"{gpu['free_mb'] / 1e3:.1f} of {gpu['memory_mb'] / 1e3:.1f} GB free"
        for gpu in torch["gpus"]
    ]
    build = f"CUDA {torch['cuda']}" if torch["cuda"] else "PyTorch without CUDA"
    found = driver.get("version") or "none"
    driver_text = f"not known ({driver['error']})" if "error" in driver else found
    return "\n".join([*(lines or ["none"]), f"{build}, NVIDIA driver: {driver_text}"])


def _compiler(report: Report) -> str:
    compiler, torch = report["compiler"], report["torch"]
    found = compiler["version"] or compiler["path"] or "no C compiler"
    triton = "Triton" if torch["triton"] else "no Triton"
    used = "compiles the model" if torch["compile"] else "does not compile: that takes a GPU"
    return f"{found}, {triton}; train.compile: auto {used}"


def _memory(report: Report) -> str:
    return f"{report['torch']['memory_mb'] / 1e3:.1f} GB available"


def _disk(report: Report) -> str:
    disk = report["disk"]
    return (
        f"{disk['free_mb'] / 1e3:.1f} GB free in {disk['current_folder']}, "
        f"{disk['temporary_mb'] / 1e3:.1f} GB for temporary files"
    )


def _precision(report: Report) -> str:
    torch = report["torch"]
    int8 = "int8" if torch["int8"] else "fp32, because this CPU and torch have no fast int8"
    return (
        f"auto is {torch['auto']['precision']} on {torch['auto']['device'].split(' in ')[0]}; "
        f"--precision int8 on the CPU computes in {int8}"
    )


def _cpu_speed(report: Report) -> str:
    rows = [
        (f"{one['threads']} thread{'s' * (one['threads'] > 1)}", one["gflops"])
        for one in report["cpu"]["products"]
    ]
    return _speed_table("GFLOP/s", rows, 1.0)


def _gpu_speed(report: Report) -> str:
    if not report["torch"].get("gpus"):
        return ""
    return _speed_table("TFLOP/s", [("", report["gpu"]["products"])], 1e3)


def _speed_table(unit: str, rows: list[tuple[str, Mapping[str, float | None]]], per: float) -> str:
    """Speeds by precision, one row for each number of threads."""
    precisions = list(rows[0][1])
    lines = [f"{unit:<11}" + "".join(f"{name:>8}" for name in precisions)]
    for name, speeds in rows:
        cells = ["-" if speed is None else f"{speed / per:,.0f}" for speed in speeds.values()]
        lines.append(f"{name:<11}" + "".join(f"{cell:>8}" for cell in cells))
    return "\n".join(lines)


def _extras(report: Report) -> str:
    width = max(map(len, report["extras"]))
    lines = []
    for name, extra in report["extras"].items():
        state = (
            f"installed {extra['version'] or ''}".strip()
            if extra["installed"]
            else f"not installed: {extra['install']}"
        )
        lines.append(f"{name:<{width}}  {extra['adds']}; {state}")
    return "\n".join(lines)


def _notes(report: Report) -> str:
    return "\n".join(line for note in report["notes"] for line in wrap(note, WIDTH))


def _verdict(report: Report) -> str:
    if report["problems"]:
        return "cannot start (see below)"
    return f"can start, on {report['torch']['auto']['device']}"
