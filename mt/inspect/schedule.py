"""The learning-rate schedule of a config: at chosen updates as a table, and as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mt.config.schema import Config
from mt.inspect.pictures import LINE_STYLES, saved_figure
from mt.training.update import learning_rate

# Parts of warm-up and of the updates after it that the table has rows for.
WARM_UP = 4
AFTER = 8
BAR = 40  # characters of the bar for the highest rate
POINTS = 1_000  # of a curve


def rate_of(config: Config, step: int) -> float:
    return learning_rate(step, config.optim, config.model.d_model, config.train.max_steps)


def steps_of(config: Config) -> list[int]:
    """Updates worth a row: the first, quarters of the warm-up, eighths of what follows it."""
    last = config.train.max_steps
    warm = min(config.optim.warmup_steps, last)
    steps = {1, *(warm * part // WARM_UP for part in range(1, WARM_UP + 1))}
    steps |= {warm + (last - warm) * part // AFTER for part in range(1, AFTER + 1)}
    return sorted(steps - {0})


def schedule_table(configs: Mapping[str, Config]) -> str:
    """A row for each chosen update, a column for each config; one config also gets a bar."""
    steps = sorted({step for config in configs.values() for step in steps_of(config)})
    heads = list(configs) if len(configs) > 1 else ["lr"]
    widths = [max(10, len(head) + 2) for head in heads]
    lines = ["    update" + "".join(f"{head:>{w}}" for head, w in zip(heads, widths, strict=True))]
    highest = max(rate_of(config, step) for config in configs.values() for step in steps)
    for step in steps:
        line = f"{step:>10,}"
        for config, width in zip(configs.values(), widths, strict=True):
            is_over = step > config.train.max_steps
            line += " " * width if is_over else f"{rate_of(config, step):>{width}.2e}"
        if len(configs) == 1:
            line += "  " + "█" * round(BAR * rate_of(config, step) / highest)
        lines.append(line.rstrip())
    return "\n".join(lines)


def save_schedule(output: Path, configs: Mapping[str, Config]) -> None:
    """Draw a curve of each config's rates over the updates."""
    with saved_figure(output, 7, 3.5, layout="constrained") as figure:
        axes = figure.subplots()
        for number, (name, config) in enumerate(configs.items()):
            last = config.train.max_steps
            steps = sorted({*range(1, last + 1, max(1, last // POINTS)), *steps_of(config), last})
            rates = [rate_of(config, step) for step in steps]
            axes.plot(steps, rates, label=name, linestyle=LINE_STYLES[number % len(LINE_STYLES)])
        axes.set(xlabel="update", ylabel="learning rate")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
