"""Rejected pairs of a shard: written with rule, score and place; counted; examples drawn."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import assert_never

from mt.data.cleaning.leaks import NEAR_SHARE, RUN_LETTERS, SOURCE, TARGET
from mt.data.cleaning.plan import CleaningPlan, Packing, Shard
from mt.data.cleaning.rules import RULES, reason

# Reasons that need more than the pair itself, numbered after the rules.
LEAK, DUPLICATE, MANY_TARGETS = range(len(RULES), len(RULES) + 3)
REASONS = (*(rule.name for rule in RULES), "leak", "duplicate", "many_targets")
# Examples that a report shows of each reason: of all pairs, and of short ones.
EXAMPLES = 10
SEED = 1
# Characters of a text that an example shows.
SHOWN_CHARACTERS = 300
HEADER = "rule\tscore\tcorpus\tplace\tsource\ttarget\n"


def write_packed(path: Path, text: str, packing: Packing) -> None:
    """Write text as a file of its own that can be appended to others of the same packing."""
    content = text.encode()
    match packing:
        case "":
            path.write_bytes(content)
        case ".gz":
            path.write_bytes(gzip.compress(content, 6, mtime=0) if content else b"")
        case ".zst":
            from xopen import xopen

            with xopen(path, "wb", threads=0, format="zst") as file:
                file.write(content)
        case _:
            assert_never(packing)


def tab_free(text: str) -> str:
    """The text as a cell of a TSV file."""
    return text.replace("\t", " ") if "\t" in text else text


@dataclass(frozen=True)
class ShardFindings:
    """What the earlier stages found out about the n pairs of a shard."""

    plan: CleaningPlan
    shard: Shard
    pairs: Sequence[tuple[str, str]]  # as they were read
    decisions: npt.NDArray[np.int8]  # (n,) number in `REASONS`, -1: stays
    scores: npt.NDArray[np.float32]  # (n, rules)
    is_short: npt.NDArray[np.bool_]  # (n,)
    flags: npt.NDArray[np.uint8]  # (n,) of `LeakIndex`
    near: npt.NDArray[np.float32]  # (n,)

    def rejected_rows(self) -> Iterator[str]:
        """Yield a row of `HEADER`'s columns for each rejected pair."""
        if self.shard.part == self.shard.number == 0:
            yield HEADER
        corpus = self.plan.corpora[self.shard.corpus].name
        for row in np.flatnonzero(self.decisions >= 0).tolist():
            number = int(self.decisions[row])
            cells = REASONS[number], self._reason(row, number)[0], corpus, self._place(row)
            yield "\t".join([*cells, *map(tab_free, self.pairs[row])]) + "\n"

    def counts(self) -> dict[str, Any]:
        """What a report says of this shard: pairs by reason, also of short ones; and examples."""
        is_near = (self.decisions < 0) & (self.near >= NEAR_SHARE) & (self.flags == 0)
        rows = [np.flatnonzero(self.decisions == number) for number in range(len(REASONS))]
        rows.append(np.flatnonzero(is_near))
        # A random order of the pairs, the same however many processes there are.
        order = np.random.default_rng([SEED, self.shard.part, self.shard.number]).random(
            len(self.pairs)
        )
        return {
            "corpus": self.shard.corpus,
            "read": len(self.pairs),
            "short": int(self.is_short.sum()),
            "rejected": [[len(own), int(self.is_short[own].sum())] for own in rows],
            "examples": [
                [self._example(row, number, float(order[row])) for row in self._drawn(own, order)]
                for number, own in enumerate(rows)
            ],
        }

    def _drawn(self, rows: npt.NDArray[np.int64], order: npt.NDArray[np.float64]) -> list[int]:
        """The first rows in a random order: of all, and of short ones."""
        short = rows[self.is_short[rows]]
        first = [own[np.argsort(order[own])[:EXAMPLES]] for own in (rows, short)]
        return sorted({int(row) for own in first for row in own})

    def _example(self, row: int, number: int, order: float) -> dict[str, Any]:
        score, reason_text = self._reason(row, number)
        src, tgt = (_clipped(text) for text in self.pairs[row])
        return {
            "order": order,
            "is_short": bool(self.is_short[row]),
            "corpus": self.plan.corpora[self.shard.corpus].name,
            "place": self._place(row),
            "score": score,
            "reason": reason_text,
            "src": src,
            "tgt": tgt,
        }

    def _place(self, row: int) -> str:
        return self.plan.parts[self.shard.part].place(self.shard.start + row)

    def _reason(self, row: int, number: int) -> tuple[str, str]:
        """The score by which a pair is rejected, empty without one, and the reason in words."""
        if number < len(RULES):
            score = float(self.scores[row, number])
            return f"{score:.4g}", reason(number, score, self.plan.clean)
        if number == LEAK:
            flags = int(self.flags[row])
            sides = "source and target" if flags & SOURCE and flags & TARGET else "source"
            sides = sides if flags & SOURCE else "target"
            return "", f"its {sides} is in a validation or test set"
        if number == DUPLICATE:
            return "", f"equals another pair ({self.plan.clean.duplicates})"
        if number == MANY_TARGETS:
            return "", f"its source has {self.plan.clean.max_targets} other targets already"
        near = float(self.near[row])
        return f"{near:.4g}", f"{near:.0%} of its runs of {RUN_LETTERS} letters are in a test set"


def _clipped(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"
