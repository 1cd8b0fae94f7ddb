"""The report of a cleaning: rejected pairs with rule, score and place; counts and leaks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mt.cleaning import rules
from mt.cleaning.leaks import SOURCE, TARGET, Found, LeakCount
from mt.cleaning.plan import CleaningPlan, Shard, read_artefact
from mt.cleaning.rules import RULES
from mt.evaluation.table import aligned

# Reasons that need more than the pair itself, numbered after the rules.
LEAK, DUPLICATE = range(len(RULES), len(RULES) + 2)
REASONS = (*(rule.name for rule in RULES), "leak", "duplicate")
EXAMPLES = 10  # examples that a report shows of each reason
SEED = 1
SHOWN = 300  # characters of a text that an example shows
HEADER = "rule\tscore\tcorpus\tplace\tsource\ttarget\n"


@dataclass(frozen=True)
class ExamplePair:
    """A pair that is shown as an example of a reason."""

    corpus: str
    place: str  # file:line
    score: str  # empty where the reason is not a number
    reason: str
    src: str
    tgt: str


def tab_free(text: str) -> str:
    return text.replace("\t", " ") if "\t" in text else text


@dataclass(frozen=True)
class ShardFindings:
    """Scores and decisions of the earlier stages about the n pairs of a shard."""

    plan: CleaningPlan
    shard: Shard
    pairs: Sequence[tuple[str, str]]  # as they were read
    decisions: npt.NDArray[np.int8]  # (n,) number in `REASONS`, -1: stays
    scores: npt.NDArray[np.float32]  # (n, rules)
    flags: npt.NDArray[np.uint8]  # (n,) of `LeakIndex`
    repaired: npt.NDArray[np.int64]  # numbers of pairs

    def rejected_rows(self) -> Iterator[str]:
        """Yield a row of `HEADER`'s columns for each rejected pair."""
        for row in np.flatnonzero(self.decisions >= 0).tolist():
            number = int(self.decisions[row])
            example = self._example(row, number)
            cells = REASONS[number], example.score, example.corpus, example.place
            yield "\t".join([*cells, *map(tab_free, self.pairs[row])]) + "\n"

    def counts(self) -> dict[str, Any]:
        """Count the pairs of this shard by reason; each example has its place in a random order."""
        is_kept = self.decisions < 0
        counts = {
            "read": len(self.pairs),
            "kept": int(is_kept.sum()),
            "repaired": int(is_kept[self.repaired].sum()),
        }
        # A random order of the pairs, the same however many processes there are.
        random = np.random.default_rng([SEED, self.shard.part, self.shard.number])
        order = random.random(len(self.pairs))
        examples = {}
        for number, name in enumerate(REASONS):
            rows = np.flatnonzero(self.decisions == number)
            counts[name] = len(rows)
            drawn = rows[np.argsort(order[rows])[:EXAMPLES]].tolist()
            examples[name] = [(order[row], asdict(self._example(row, number))) for row in drawn]
        return {"pairs": counts, "examples": examples}

    def _example(self, row: int, number: int) -> ExamplePair:
        title = self.plan.title(self.shard.corpus)
        place = self.plan.parts[self.shard.part].place(self.shard.start + row)
        texts = (text[:SHOWN] + "…" * (len(text) > SHOWN) for text in self.pairs[row])
        score, reason = "", "equals another pair"
        if number < len(RULES):
            value = float(self.scores[row, number])
            score, reason = f"{value:.4g}", rules.reason(number, value, self.plan.clean)
        elif number == LEAK:
            sides = {SOURCE: "source", TARGET: "target"}
            side = sides.get(int(self.flags[row]), "source and target")
            reason = f"its {side} is in a validation or test set"
        return ExamplePair(title, place, score, reason, *texts)


@dataclass(frozen=True)
class CorpusFunnel:
    """Pairs of a corpus that were read, rejected (once, for the first of `REASONS`), and kept."""

    name: str
    weight: float
    read: int
    kept: int
    repaired: int  # of those kept
    rejected: dict[str, int]

    def summary(self) -> str:
        """One line, such as `9 of 10 pairs kept, 2 of them repaired; rejected: 1 duplicate`."""
        kept = f"{self.kept:,} of {self.read:,} pairs kept"
        kept += f", {self.repaired:,} of them repaired" * (self.repaired > 0)
        counts = ", ".join(f"{count:,} {name}" for name, count in self.rejected.items() if count)
        return f"{kept}; rejected: {counts}" if counts else kept


@dataclass(frozen=True)
class CleaningReport:
    """The report of a cleaning, which `mt data clean --json` writes in this form."""

    format: Literal[2]
    corpora: list[CorpusFunnel]
    examples: dict[str, list[ExamplePair]]  # drawn at random
    leaks: dict[str, LeakCount]  # by evaluation set
    notes: list[str]  # what was not checked, and why

    def rejected(self, reason: str) -> int:
        return sum(corpus.rejected[reason] for corpus in self.corpora)

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False, indent=1)


def sum_up(plan: CleaningPlan, notes: list[str]) -> CleaningReport:
    """The report of a cleaning whose stages are done; `notes` say what was not checked."""
    index = plan.evaluation_index
    leaking = Found()
    pairs: list[Counter[str]] = [Counter() for _ in plan.corpora]
    examples: dict[str, list[Any]] = {reason: [] for reason in REASONS}
    for shard in plan.shards:
        counts = read_artefact(plan.kept / shard.name / "counts.json")
        pairs[shard.corpus].update(counts["pairs"])
        for reason, drawn in examples.items():
            drawn += counts["examples"][reason]
        if index is not None:
            scored = read_artefact(plan.scored / shard.name / "scores.npz")
            leaking += Found(scored["src"], scored["tgt"], scored["pairs"])
    funnels = []
    for number, (corpus, found) in enumerate(zip(plan.corpora, pairs, strict=True)):
        counts = found["read"], found["kept"], found["repaired"]
        rejected = {reason: found[reason] for reason in REASONS}
        funnels.append(CorpusFunnel(plan.title(number), corpus.weight, *counts, rejected))
    shown = {
        reason: [ExamplePair(**pair) for _, pair in sorted(drawn, key=itemgetter(0))[:EXAMPLES]]
        for reason, drawn in examples.items()
        if drawn
    }
    damage = [
        f"{plan.corpora[part.corpus].name}: {message}"
        for number, part in enumerate(plan.parts)
        for message in plan.index(number)["damage"]
    ]
    leaks = index.counts(leaking) if index is not None else {}
    return CleaningReport(2, funnels, shown, leaks, notes + damage)


def report_text(report: CleaningReport) -> str:
    """The whole report as text: a table with a column for each corpus, leaks, examples."""
    reasons = [*filter(report.rejected, REASONS)]
    columns = [["", "read", *reasons, "kept", "of these repaired"]]
    for corpus in report.corpora:
        counts = [*(corpus.rejected[reason] for reason in reasons), corpus.kept, corpus.repaired]
        shares = [share_of(count, corpus.read) for count in counts]
        columns.append([corpus.name[-24:], f"{corpus.read:,}", *shares])
    lines = [aligned([*zip(*columns, strict=True)], n_left=1), *report.notes, ""]
    lines += [f"{name}: {leak.summary()}" for name, leak in report.leaks.items()]
    for name, drawn in report.examples.items():
        lines += ["", f"{name}: {len(drawn)} of {report.rejected(name):,}"]
        for pair in drawn:
            lines += [f"  {pair.place}: {pair.reason}", f"    {pair.src}", f"    {pair.tgt}"]
    return "\n".join(lines).rstrip("\n")


def share_of(count: int, total: int) -> str:
    return f"{count:,} {100 * count / max(total, 1):6.2f} %"
