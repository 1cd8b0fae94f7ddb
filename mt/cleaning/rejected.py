"""Rejected pairs of a shard: written with rule, score and place; counted; examples drawn."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from typing_extensions import assert_never

from mt.cleaning.leaks import NEAR_SHARE, RUN_LETTERS, SOURCE, TARGET
from mt.cleaning.plan import CleaningPlan, Packing, Shard
from mt.cleaning.rules import RULES, reason

Rows: TypeAlias = npt.NDArray[np.int64]
# Reasons that need more than the pair itself, numbered after the rules.
LEAK, DUPLICATE, MANY_TARGETS = range(len(RULES), len(RULES) + 3)
REASONS = (*(rule.name for rule in RULES), "leak", "duplicate", "many_targets")
NEAR_LEAK = "near_leak"  # after these, of pairs that stay
# Examples that a report shows of each reason: of all pairs, and of short ones.
EXAMPLES = 10
SEED = 1
# Characters of a text that an example shows.
SHOWN = 300
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
    return text.replace("\t", " ") if "\t" in text else text


@dataclass(frozen=True)
class ShardFindings:
    """Scores and decisions of the earlier stages about the n pairs of a shard."""

    plan: CleaningPlan
    shard: Shard
    pairs: Sequence[tuple[str, str]]  # as they were read
    decisions: npt.NDArray[np.int8]  # (n,) number in `REASONS`, -1: stays
    scores: npt.NDArray[np.float32]  # (n, rules)
    is_short: npt.NDArray[np.bool_]  # (n,)
    flags: npt.NDArray[np.uint8]  # (n,) of `LeakIndex`
    near: npt.NDArray[np.float32]  # (n,)
    repaired: Rows  # numbers of pairs

    def rejected_rows(self) -> Iterator[str]:
        """Yield a row of `HEADER`'s columns for each rejected pair."""
        for row in np.flatnonzero(self.decisions >= 0).tolist():
            number = int(self.decisions[row])
            example = self._pair(row, number)
            cells = REASONS[number], example["score"], example["corpus"], example["place"]
            yield "\t".join([*cells, *map(tab_free, self.pairs[row])]) + "\n"

    def counts(self) -> dict[str, Any]:
        """Count the pairs of this shard by reason, short ones also apart; with examples.

        Each example has its place in a random order; those of short pairs are drawn apart.
        """
        is_near = (self.decisions < 0) & (self.near >= NEAR_SHARE) & (self.flags == 0)
        rows = {name: np.flatnonzero(self.decisions == i) for i, name in enumerate(REASONS)}
        rows[NEAR_LEAK] = np.flatnonzero(is_near)
        # A random order of the pairs, the same however many processes there are.
        random = np.random.default_rng([SEED, self.shard.part, self.shard.number])
        order = random.random(len(self.pairs))

        def drawn(numbers: Rows, number: int) -> list[tuple[float, dict[str, str]]]:
            first = numbers[np.argsort(order[numbers])[:EXAMPLES]].tolist()
            return [(order[row], self._pair(row, number)) for row in first]

        examples = {
            name: (drawn(numbers, number), drawn(numbers[self.is_short[numbers]], number))
            for number, (name, numbers) in enumerate(rows.items())
        }
        rows["read"] = np.arange(len(self.pairs))
        rows["kept"] = np.flatnonzero(self.decisions < 0)
        rows["repaired"] = self.repaired[self.decisions[self.repaired] < 0]
        return {
            "pairs": {name: len(numbers) for name, numbers in rows.items()},
            "short": {name: int(self.is_short[numbers].sum()) for name, numbers in rows.items()},
            "examples": examples,
        }

    def _pair(self, row: int, number: int) -> dict[str, str]:
        """A pair as an example of a reason: the fields of `ExamplePair`."""
        score, reason_text = self._reason(row, number)
        src, tgt = (text[:SHOWN] + "…" * (len(text) > SHOWN) for text in self.pairs[row])
        return {
            "corpus": self.plan.title(self.shard.corpus),
            "place": self.plan.parts[self.shard.part].place(self.shard.start + row),
            "score": score,
            "reason": reason_text,
            "src": src,
            "tgt": tgt,
        }

    def _reason(self, row: int, number: int) -> tuple[str, str]:
        """The score by which a pair is rejected, empty without one, and the reason in words."""
        clean = self.plan.clean
        if number < len(RULES):
            score = float(self.scores[row, number])
            return f"{score:.4g}", reason(number, score, clean)
        if number == LEAK:
            sides = {SOURCE: "source", TARGET: "target"}
            side = sides.get(int(self.flags[row]), "source and target")
            return "", f"its {side} is in a validation or test set"
        if number == DUPLICATE:
            return "", f"equals another pair ({clean.duplicates})"
        if number == MANY_TARGETS:
            return "", f"its source has {clean.max_targets} other targets already"
        near = float(self.near[row])
        return f"{near:.4g}", f"{near:.0%} of its runs of {RUN_LETTERS} letters are in a test set"
