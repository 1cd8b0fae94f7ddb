"""What a cleaning did: counts by rule and corpus, examples, leaks; as a value, JSON and text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mt.data.cleaning.leaks import LeakCount
from mt.data.cleaning.rejected import EXAMPLES, REASONS

FORMAT = 1


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
    """What a cleaning did. `mt data clean --json` writes it with `to_json`, in this form.

    `examples` and the funnels name reasons alike. `near_leaks` are pairs that stay although half of
    one side stands in an evaluation set; their examples are those of `near_leak`.
    """

    format: int
    corpora: list[CorpusFunnel]
    examples: dict[str, ReasonExamples]
    leaks: dict[str, LeakCount]  # by evaluation set
    near_leaks: int
    expected_false_drops: float  # pairs taken for a duplicate of another by chance
    notes: list[str]  # what was not checked, and why

    @property
    def read(self) -> int:
        """Pairs read, of all corpora."""
        return sum(corpus.read for corpus in self.corpora)

    @property
    def kept(self) -> int:
        """Pairs kept, of all corpora."""
        return sum(corpus.kept for corpus in self.corpora)

    def rejected(self, reason: str) -> int:
        """Pairs that a reason rejects, of all corpora."""
        return sum(corpus.rejected[reason] for corpus in self.corpora)

    def to_json(self) -> str:
        """JSON of the same fields."""
        return json.dumps(asdict(self), ensure_ascii=False, indent=1)

    @classmethod
    def from_json(cls, text: str) -> CleaningReport:
        """Return the report that `to_json` wrote. Raises ValueError, KeyError or TypeError."""
        found = json.loads(text)
        if found["format"] != FORMAT:
            raise ValueError(f"report of format {found['format']}, {FORMAT} is required")
        found["corpora"] = [CorpusFunnel(**corpus) for corpus in found["corpora"]]
        found["leaks"] = {name: LeakCount(**leak) for name, leak in found["leaks"].items()}
        found["examples"] = {
            name: ReasonExamples(*([ExamplePair(**pair) for pair in own[k]] for k in own))
            for name, own in found["examples"].items()
        }
        return cls(**found)


def sum_up(
    corpora: Sequence[tuple[str, float]],
    shards: Iterable[Mapping[str, Any]],
    leaks: dict[str, LeakCount],
    false_drops: float,
    notes: list[str],
) -> CleaningReport:
    """Make the report of (name, weight) of the corpora and the counts of all shards."""
    n_reasons = len(REASONS) + 1
    counts = [[[0, 0] for _ in range(n_reasons)] for _ in corpora]
    totals = [{"read": 0, "short": 0, "repaired": 0} for _ in corpora]
    examples: list[list[dict[str, Any]]] = [[] for _ in range(n_reasons)]
    for shard in shards:
        corpus = shard["corpus"]
        for key in totals[corpus]:
            totals[corpus][key] += shard[key]
        for reason, (pairs, short) in enumerate(shard["rejected"]):
            counts[corpus][reason][0] += pairs
            counts[corpus][reason][1] += short
            examples[reason] += shard["examples"][reason]
    funnels = []
    for (name, weight), own, total in zip(corpora, counts, totals, strict=True):
        rejected = {reason: own[number][0] for number, reason in enumerate(REASONS)}
        short = {reason: own[number][1] for number, reason in enumerate(REASONS)}
        kept = total["read"] - sum(rejected.values())
        short_kept = total["short"] - sum(short.values())
        funnel = CorpusFunnel(
            name, weight, total["read"], kept, total["repaired"], total["short"], short_kept,
            rejected, short,
        )  # fmt: skip
        funnels.append(funnel)
    near = sum(own[-1][0] for own in counts)
    shown = {
        name: ReasonExamples(_first(own), _first(one for one in own if one["is_short"]))
        for name, own in zip((*REASONS, "near_leak"), examples, strict=True)
        if own
    }
    return CleaningReport(FORMAT, funnels, shown, leaks, near, false_drops, notes)


def _first(examples: Iterable[dict[str, Any]]) -> list[ExamplePair]:
    """The first examples in the random order."""
    ordered = sorted(examples, key=lambda example: example["order"])[:EXAMPLES]
    fields = ExamplePair.__dataclass_fields__
    return [ExamplePair(**{key: example[key] for key in fields}) for example in ordered]


# --- text -------------------------------------------------------------------------------------


def report_text(report: CleaningReport) -> str:
    """The whole report as text: the table, leaks, examples of each reason."""
    blocks = ["\n".join(_table(report)), "\n".join(_leaks(report))]
    for name, examples in report.examples.items():
        count = report.near_leaks if name == "near_leak" else report.rejected(name)
        blocks.append("\n".join(_examples(name, count, examples)))
    return "\n\n".join(block for block in blocks if block)


def _table(report: CleaningReport) -> Iterator[str]:
    """Rows of the funnel: a column for each corpus, and the short segments of all."""
    columns = [*report.corpora]
    heads = [corpus.name[-24:] for corpus in columns] + ["short segments"]
    short_read = sum(corpus.short_read for corpus in columns)
    rows = [["", *heads]]
    rows.append(["read", *(f"{corpus.read:,}" for corpus in columns), f"{short_read:,}"])
    for reason in REASONS:
        if report.rejected(reason):
            own = [_share(corpus.rejected[reason], corpus.read) for corpus in columns]
            short = sum(corpus.short_rejected[reason] for corpus in columns)
            rows.append([reason, *own, _share(short, short_read)])
    kept = [_share(corpus.kept, corpus.read) for corpus in columns]
    short_kept = sum(corpus.short_kept for corpus in columns)
    rows.append(["kept", *kept, _share(short_kept, short_read)])
    repaired = [_share(corpus.repaired, corpus.read) for corpus in columns]
    rows.append(["of these repaired", *repaired, ""])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        yield "  ".join(cells).rstrip()
    yield from report.notes
    if report.expected_false_drops:
        yield (
            "expected number of pairs taken for duplicates by chance: "
            f"{report.expected_false_drops:.1g}"
        )


def _share(count: int, total: int) -> str:
    return f"{count:,} {100 * count / max(total, 1):6.2f} %"


def _leaks(report: CleaningReport) -> Iterator[str]:
    for name, leak in report.leaks.items():
        yield f"{name}: {leak.summary()}"
    if report.near_leaks:
        yield f"nearly in one of these sets, but kept: {report.near_leaks:,} pairs"


def _examples(name: str, count: int, examples: ReasonExamples) -> Iterator[str]:
    for title, own in (("", examples.drawn), (" among short segments", examples.short)):
        if not own or (title and own == examples.drawn):
            continue
        yield f"{name}{title}: {len(own)} of {count:,}" if not title else f"{name}{title}:"
        for example in own:
            yield f"  {example.place}: {example.reason}"
            yield f"    {example.src}"
            yield f"    {example.tgt}"
