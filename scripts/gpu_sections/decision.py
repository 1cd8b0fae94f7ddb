"""What the measurements of `gpu_check.py --levers` decide: a function of a table of timings."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

from gpu_sections.report import Item

# Names of ways of attention.
TODAY = "today"
EFFICIENT = "A'"
AGAIN = "today again"  # a control: if it seems faster than today's, the measurement is too noisy
# Sizes of updates that decide, in target tokens.
DECISIVE = (25_000, 50_000)
GAIN = 1.03  # of the median over today's
GAIN_OF_ROWS = 1.10  # of the median of A over that of A'
MOST_ERROR = 1.5  # of the gradients, in today's errors
LEAST_PRODUCTS = 540  # TFLOP/s; below, products are what to work on
# The same update again and again, by a CUDA graph and without one.
REPLAYED, LAUNCHED = ", replayed", ", launched"


@dataclass
class Timings:
    """What was measured of a way to do an update."""

    windows: dict[int, list[float]] = field(default_factory=dict)  # target tokens/s by size
    error: float | None = None  # of the gradients, relative; None if not measured
    waits: bool | None = None  # whether the host waits for the GPU
    recompilations: int = 0

    def gain(self, other: Timings) -> float:
        """The largest ratio of medians, of the sizes that decide; 0 if there are none."""
        sizes = self.windows.keys() & other.windows.keys() & set(DECISIVE)
        ratios = [median(self.windows[n]) / median(other.windows[n]) for n in sizes]
        return max(ratios, default=0.0)

    def is_clearly_faster(self, other: Timings) -> bool:
        """Whether its slowest window beats the other's fastest, and by 3 % in the median."""
        sizes = self.windows.keys() & other.windows.keys() & set(DECISIVE)
        return any(
            min(self.windows[n]) > max(other.windows[n])
            and median(self.windows[n]) >= GAIN * median(other.windows[n])
            for n in sizes
        )

    def objection(self, today: Timings) -> str:
        """Why this is not adopted in place of `today`, whatever its speed; empty if nothing is."""
        if self.error is None or today.error is None:
            return "the error of its gradients was not measured"
        if not self.error <= MOST_ERROR * today.error:  # NaN is refused too
            return f"its gradients have {self.error / today.error:.1f} times today's error"
        if self.waits is not False:
            return "it waits for the GPU" if self.waits else "nothing shows that it never waits"
        if self.recompilations:
            return f"it was compiled again, {self.recompilations} times"
        return ""


@dataclass
class Decision:
    """What to adopt, and a line for each way that says why or why not."""

    attention: str  # the name of a way
    replays: bool  # with CUDA graphs
    lines: list[str]


def decide(table: dict[str, Timings], products: float | None = None) -> Decision:
    """Apply the rule to all ways; names of replayed ones end in `REPLAYED`.

    A way is adopted if it is clearly faster than today's and has no objection. A, attention tiled
    by tokens, is code of ours, so it must also make an update 10 % faster than A' does, if A' is
    adopted. CUDA graphs are adopted if the chosen way is clearly faster replayed than launched.
    `products`: the TFLOP/s of all products of an update.
    """
    if TODAY not in table:
        return Decision(TODAY, False, ["today's update was not measured, so nothing is decided"])
    today = table[TODAY]
    if AGAIN in table and table[AGAIN].is_clearly_faster(today):
        noise = table[AGAIN].gain(today)
        return Decision(TODAY, False, [f"{AGAIN}: x{noise:.2f}; too noisy, nothing is decided"])
    lines, adopted = [], []
    for name, timings in table.items():
        if name in (TODAY, AGAIN) or name.endswith((REPLAYED, LAUNCHED)) or not timings.windows:
            continue
        objection = timings.objection(today)
        if not objection and not timings.is_clearly_faster(today):
            objection = "it is not clearly faster"
        lines.append(f"{name}: x{timings.gain(today):.2f}; {objection or 'better than today'}")
        if not objection:
            adopted.append(name)
    best = max(adopted, key=lambda name: table[name].gain(today), default=TODAY)
    if best != EFFICIENT and EFFICIENT in adopted:
        gain = table[best].gain(table[EFFICIENT])
        if gain < GAIN_OF_ROWS:
            lines.append(f"{best} is x{gain:.2f} of {EFFICIENT}; it takes x{GAIN_OF_ROWS:.2f}")
            best = EFFICIENT
    replayed, launched = (table.get(best + kind, Timings()) for kind in (REPLAYED, LAUNCHED))
    replays = replayed.is_clearly_faster(launched)
    clearly = "clearly" if replays else "not clearly"
    shown = f"x{replayed.gain(launched):.2f}, {clearly} faster"
    lines.append(f"CUDA graphs: {shown if replayed.windows else 'not measured'}")
    if products is not None and products < LEAST_PRODUCTS:
        lines.append(
            f"products reach {products:.0f} of {LEAST_PRODUCTS} TFLOP/s: next, time "
            "max-autotune-no-cudagraphs at one static shape"
        )
    lines.append(f"adopt: attention {best}, {'with' if replays else 'without'} CUDA graphs")
    return Decision(best, replays, lines)


# The items of a way, after its name: those of the sections `attentions` and `updates`.
WINDOWS = re.compile(r"(.+): ([\d,]+) tokens")
ERROR, WAITS, RECOMPILATIONS = ": gradient error", ": waits for nothing", ": recompilations"
PRODUCTS = "products of an update, "


def table_of(items: Iterable[Item]) -> tuple[dict[str, Timings], float | None]:
    """The table of timings that items hold, and the best TFLOP/s of the products of an update."""
    table: dict[str, Timings] = {}
    products: list[float] = []
    for item in items:
        name = item.name
        if item.section == "updates" and item.status == "ok" and (found := WINDOWS.fullmatch(name)):
            size = int(found[2].replace(",", ""))
            table.setdefault(found[1], Timings()).windows[size] = item.value
        elif name.endswith(ERROR) and item.status == "ok":
            table.setdefault(name.removesuffix(ERROR), Timings()).error = item.value
        elif name.endswith(WAITS) and item.status != "skipped":
            table.setdefault(name.removesuffix(WAITS), Timings()).waits = item.status == "failed"
        elif name.endswith(RECOMPILATIONS) and item.section == "updates":
            table.setdefault(
                name.removesuffix(RECOMPILATIONS), Timings()
            ).recompilations = item.value
        elif name.startswith(PRODUCTS) and item.status == "ok":
            products.append(item.value)
    return table, max(products, default=None)
