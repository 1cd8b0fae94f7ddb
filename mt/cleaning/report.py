"""The report of a cleaning: counts by rule and corpus, examples, leaks; as JSON and text."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from mt.cleaning.leaks import Found, LeakCount
from mt.cleaning.plan import CleaningPlan
from mt.cleaning.rejected import EXAMPLES, NEAR_LEAK, REASONS
from mt.data.tokens.duplicates import expected_false_drops
from mt.evaluation.table import aligned
from mt.files import read_json


@dataclass(frozen=True)
class CorpusFunnel:
    """One corpus on its way through the cleaning: pairs read, rejected by each reason, kept.

    `short`: of pairs whose source has under 25 characters. Each rejected pair counts once, under
    the first reason; `rejected` has the reasons in their order.
    """

    name: str
    weight: float
    read: int
    kept: int
    repaired: int  # of those kept
    short_read: int
    short_kept: int
    rejected: dict[str, int]
    short_rejected: dict[str, int]

    def summary(self) -> str:
        """One line, such as `9 of 10 pairs kept, 2 of them repaired; rejected: 1 duplicate`."""
        kept = f"{self.kept:,} of {self.read:,} pairs kept"
        kept += f", {self.repaired:,} of them repaired" * (self.repaired > 0)
        counts = ", ".join(f"{count:,} {name}" for name, count in self.rejected.items() if count)
        return f"{kept}; rejected: {counts}" if counts else kept


@dataclass(frozen=True)
class ExamplePair:
    """A pair that is shown as an example of a reason."""

    corpus: str
    place: str  # file:line
    score: str  # empty where the reason is not a number
    reason: str
    src: str
    tgt: str


@dataclass(frozen=True)
class ReasonExamples:
    """Pairs drawn at random of those that one reason rejects: of all, and of short ones."""

    drawn: list[ExamplePair]
    short: list[ExamplePair]


@dataclass(frozen=True)
class CleaningReport:
    """The report of a cleaning. `mt data clean --json` writes it with `to_json`, in this form.

    `examples` and the funnels name reasons alike. `near_leaks` are pairs that stay although half of
    one side stands in an evaluation set; their examples are those of `near_leak`.
    """

    format: Literal[1]
    corpora: list[CorpusFunnel]
    examples: dict[str, ReasonExamples]
    leaks: dict[str, LeakCount]  # by evaluation set
    near_leaks: int
    expected_false_drops: float  # pairs taken for a duplicate of another by chance
    notes: list[str]  # what was not checked, and why

    @property
    def read(self) -> int:
        return sum(corpus.read for corpus in self.corpora)

    @property
    def kept(self) -> int:
        return sum(corpus.kept for corpus in self.corpora)

    def rejected(self, reason: str) -> int:
        return sum(corpus.rejected[reason] for corpus in self.corpora)

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False, indent=1)


def sum_up(plan: CleaningPlan, notes: list[str]) -> CleaningReport:
    """The report of a cleaning whose stages are done; `notes` say what was not checked."""
    index = plan.evaluation_index
    leaking = Found()
    corpora = plan.corpora
    pairs: list[Counter[str]] = [Counter() for _ in corpora]
    short: list[Counter[str]] = [Counter() for _ in corpora]
    examples: dict[str, list[list[Any]]] = {reason: [[], []] for reason in (*REASONS, NEAR_LEAK)}
    for shard in plan.shards:
        counts = read_json(plan.kept / shard.name / "counts.json")
        pairs[shard.corpus].update(counts["pairs"])
        short[shard.corpus].update(counts["short"])
        for reason, both in examples.items():
            for examples_of, drawn in zip(both, counts["examples"][reason], strict=True):
                examples_of += drawn
        if index is not None:
            scored = np.load(plan.scored / shard.name / "scores.npz")
            leaking += Found(scored["src"], scored["tgt"], scored["pairs"])
    funnels = [
        CorpusFunnel(
            plan.title(number), corpus.weight, every["read"], every["kept"], every["repaired"],
            few["read"], few["kept"],
            {reason: every[reason] for reason in REASONS},
            {reason: few[reason] for reason in REASONS},
        )
        for number, (corpus, every, few) in enumerate(zip(corpora, pairs, short, strict=True))
    ]  # fmt: skip
    shown = {
        reason: ReasonExamples(*map(_first, both)) for reason, both in examples.items() if both[0]
    }
    leaks = index.counts(leaking) if index is not None else {}
    near = sum(counts[NEAR_LEAK] for counts in pairs)
    compared = sum(counts["read"] for counts in pairs) if plan.clean.duplicates else 0
    damage = [
        f"{corpora[part.corpus].name}: {message}"
        for number, part in enumerate(plan.parts)
        for message in plan.index(number)["damage"]
    ]
    chance = expected_false_drops(compared)
    return CleaningReport(1, funnels, shown, leaks, near, chance, notes + damage)


def _first(examples: list[tuple[float, dict[str, str]]]) -> list[ExamplePair]:
    """The first examples in the random order."""
    ordered = sorted(examples, key=lambda example: example[0])
    return [ExamplePair(**pair) for _, pair in ordered[:EXAMPLES]]


def report_text(report: CleaningReport) -> str:
    """The whole report as text: the table, leaks, examples of each reason."""
    blocks = [
        _table(report),
        _leaks(report),
        *(_examples(report, name) for name in report.examples),
    ]
    return "\n\n".join(filter(None, map("\n".join, blocks)))


def _table(report: CleaningReport) -> Iterator[str]:
    """Rows of the funnel: a column for each corpus, and the short segments of all."""
    corpora = report.corpora
    short = CorpusFunnel(
        "short segments", 0, sum(corpus.short_read for corpus in corpora),
        sum(corpus.short_kept for corpus in corpora), 0, 0, 0,
        {reason: sum(each.short_rejected[reason] for each in corpora) for reason in REASONS}, {},
    )  # fmt: skip
    columns = [*corpora, short]
    rows = [
        ["", *(corpus.name[-24:] for corpus in columns)],
        ["read", *(f"{corpus.read:,}" for corpus in columns)],
    ]
    for reason in filter(report.rejected, REASONS):
        rows.append([reason, *(share_of(each.rejected[reason], each.read) for each in columns)])
    rows.append(["kept", *(share_of(corpus.kept, corpus.read) for corpus in columns)])
    repaired = (share_of(corpus.repaired, corpus.read) for corpus in corpora)
    rows.append(["of these repaired", *repaired, ""])
    yield aligned(rows, n_left=1)
    yield from report.notes
    if chance := report.expected_false_drops:
        yield f"expected number of pairs taken for duplicates by chance: {chance:.1g}"


def share_of(count: int, total: int) -> str:
    """A count and its share of all, as a cell of a table."""
    return f"{count:,} {100 * count / max(total, 1):6.2f} %"


def _leaks(report: CleaningReport) -> Iterator[str]:
    for name, leak in report.leaks.items():
        yield f"{name}: {leak.summary()}"
    if report.near_leaks:
        yield f"nearly in one of these sets, but kept: {report.near_leaks:,} pairs"


def _examples(report: CleaningReport, name: str) -> Iterator[str]:
    count = report.near_leaks if name == NEAR_LEAK else report.rejected(name)
    drawn, short = report.examples[name].drawn, report.examples[name].short
    blocks = {f"{name}: {len(drawn)} of {count:,}": drawn, f"{name} among short segments:": short}
    for heading, shown in blocks.items():
        if shown and not (shown is short and short == drawn):
            yield heading
            for pair in shown:
                yield f"  {pair.place}: {pair.reason}\n    {pair.src}\n    {pair.tgt}"
