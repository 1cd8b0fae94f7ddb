"""The provenance of a run: settings that differ from the base config, status, command."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from mt.config.schema import Config
from mt.report.curves import UNITS
from mt.report.run_summary import RunSummary
from mt.runs.metrics import number
from mt.runs.run_dir import CONFIG

# Keys that say which data is used; the page has a table of it.
DATA_KEYS = ("data.root", "data.train", "data.valid", "data.test")
# A run without a log line for so many seconds, or three usual intervals, is no longer running.
SILENT = 600.0
# How the last lines of a log begin, by how the training ended.
ENDS = (
    (re.compile(r"all [\d,]+ updates are done|[\d,]+ updates were done already"), "finished"),
    (re.compile(r"no better validation in the last"), "finished early: no better validation"),
    (re.compile(r"stopped by (SIG\w+)"), "interrupted"),
    (re.compile(r"training gave up"), "diverged"),
)
STARTED = re.compile(r"run directory .* on ")
# Lines of the log that are worth showing.
NOTABLE = re.compile(
    r"warning: |resuming after |back to the weights|skipped|config changed|damaged|gave up"
    r"|stopped by|note: |non-finite"
)
MAX_NOTABLE = 40
# Characters of a command that stands in one line.
WIDTH = 100


def differing_keys(configs: Sequence[Config], with_data: bool = False) -> dict[str, list[str]]:
    """The keys whose values differ, with the value of each config."""
    trees: list[Mapping[str, Mapping[str, Any]]] = [
        config.model_dump(mode="json") for config in configs
    ]
    differing = {}
    for section, keys in trees[0].items() if trees else ():
        for name in keys:
            key = f"{section}.{name}"
            values = [tree[section][name] for tree in trees]
            is_shown = with_data or key not in DATA_KEYS
            if key != "run.dir" and is_shown and any(value != values[0] for value in values):
                shown = [_shown(key, value) for value in values]
                whole = list(map(str, values))
                differing[key] = shown if len(set(shown)) == len(set(whole)) else whole
    return differing


def _shown(key: str, value: Any) -> str:
    if key in DATA_KEYS and key != "data.root":
        sources = value if isinstance(value, list) else [value] if value else []
        return ", ".join(str(source["path"] or source["src"]) for source in sources) or "none"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return "[" + ", ".join(_shown("", entry) for entry in value) + "]"
    return f"{value:,}" if isinstance(value, int) and abs(value) >= 10_000 else str(value)


def commands_of(run: RunSummary) -> tuple[str, str]:
    """The command that trained the run as it was typed, and one from its resolved config."""
    command = run.manifest.get("command")
    typed = ""
    if isinstance(command, list) and command and all(isinstance(word, str) for word in command):
        program, *arguments = command
        name = Path(program).name
        words = ["python", "-m", "mt"] if name == "__main__.py" else [name]
        processes = run.manifest.get("processes", 1)
        if isinstance(processes, int) and processes > 1:
            words = ["torchrun", f"--nproc-per-node={processes}", "-m", "mt"]
        typed = _wrapped([*words, *arguments])
        cwd = run.manifest.get("cwd")
        if isinstance(cwd, str):
            typed = f"cd {shlex.quote(cwd)}\n{typed}"
    config = run.folder / CONFIG
    again = shlex.join(["mt", "train", "--config", str(config), "--run-dir", "runs/again"])
    return typed, again if config.is_file() else ""


def _wrapped(words: Sequence[str]) -> str:
    """A shell command; a long one has a line for each option."""
    text = shlex.join(words)
    if len(text) <= WIDTH:
        return text
    lines: list[str] = []
    for word in map(shlex.quote, words):
        if not lines or (word.startswith("-") and len(lines[-1].split()) > 1):
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    return " \\\n    ".join(lines)


def status_of(run: RunSummary, now: datetime) -> tuple[str, str]:
    """Whether a run has ended, and how; a run without a last word is judged by its log's age.

    The first text is a word such as `finished` or `running`, the second says how far it is.
    """
    step, most = run.metrics.last_step, run.config.train.max_steps if run.config else 0
    if run.config and run.config.train.max_epochs and number(run.manifest, "max_steps") > 0:
        most = int(run.manifest["max_steps"])
    done = f"{step:,} of {most:,} updates" if most else f"{step:,} updates"
    for line in reversed(run.log):
        text = line[20:]
        for pattern, word in ENDS:
            if match := pattern.match(text):
                detail = f"by {match[1]} after {done}" if word == "interrupted" else done
                return word, detail
        if STARTED.match(text):
            break
    last = next((at for line in reversed(run.log) if (at := _time_of(line)) is not None), None)
    if last is None:
        return "unknown", done
    age = max(0.0, (now - last).total_seconds())
    records = run.metrics.train["seconds"]
    interval = records[-1] / len(records) if len(records) else 0.0
    if age < max(SILENT, 3 * interval):
        left = ""
        if 0 < step < most and run.metrics.seconds:
            left = f", about {duration(run.metrics.seconds * (most - step) / step)} left"
        return "running", f"{done}{left}, last log line {_ago(age)}"
    return "not finished", f"{done}; last log line {_ago(age)}"


def _time_of(line: str) -> datetime | None:
    try:
        return datetime.strptime(line[:19], "%Y-%m-%d %H:%M:%S")
    except ValueError:
        return None


def _ago(seconds: float) -> str:
    size, unit = next((unit for unit in UNITS if seconds >= 2 * unit[0]), UNITS[-1])
    return f"{seconds / size:.0f} {unit} ago"


def notable_lines(run: RunSummary) -> list[str]:
    """Lines of the log that tell of something unusual; the newest, if there are many."""
    return [line for line in run.log if NOTABLE.search(line)][-MAX_NOTABLE:]


def duration(seconds: float) -> str:
    """`1 h 52 min`, `48 s`."""
    if not math.isfinite(seconds):  # of a damaged line
        return "–"
    minutes = round(seconds / 60)
    if seconds < 120:
        return f"{seconds:.0f} s"
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02} min"
    return f"{hours / 24:.1f} days"
