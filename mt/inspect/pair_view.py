"""Pairs of corpora that meet conditions, with their places, as TSV or in two columns."""

from __future__ import annotations

import heapq
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mt.config.load import config_from_mapping
from mt.config.values import compile_pattern
from mt.data.cleaning.rejected import HEADER, REASONS, tab_free
from mt.data.cleaning.rules import RULES, PairScorer, Rule
from mt.data.reading.text_files import Damage, read_lines
from mt.data.reading.words import display_width
from mt.errors import ConfigError, DataError
from mt.terminal import printable

if TYPE_CHECKING:
    from mt.config.schema import Clean
    from mt.data.cleaning.plan import CleaningPlan

PAIRS_AT_A_TIME = 1_000
SEED = 1
BETWEEN = " │ "


class PlacedPair(NamedTuple):
    """A pair, and where it is, such as `train.de:17`."""

    place: str
    src: str
    tgt: str


@dataclass(frozen=True)
class Conditions:
    """What pairs must meet to be shown, all of it.

    `rules`: they reject the pair, at the limits of `clean`. `pattern`: one side has a match.
    """

    clean: Clean
    rules: Sequence[Rule] = ()
    pattern: re.Pattern[str] | None = None


def conditions_of(
    clean: Clean, rule: str | None, longer: int | None, min_ratio: float | None, match: str | None
) -> Conditions:
    """Return the conditions that options describe. Raises ConfigError.

    `longer` and `min_ratio` are other limits of the rules `words` and `char_ratio`.
    """
    names = [one.name for one in RULES]
    if rule in REASONS and rule not in names:
        raise ConfigError(
            f"--rule {rule}: is found by mt data clean only; give its --rejected FILE here too"
        )
    if rule is not None and rule not in names:
        raise ConfigError(f"--rule: must be one of {', '.join(names)}, found {rule!r}")
    limits = {"words": longer, "char_ratio": min_ratio}
    chosen = {rule, *(name for name, limit in limits.items() if limit is not None)}
    rules = [one for one in RULES if one.name in chosen]
    values = clean.model_dump(mode="json")
    for one in RULES:
        if one.key is not None:
            own = limits.get(one.name)
            values[one.key] = None if one not in rules else values[one.key] if own is None else own
    clean = config_from_mapping({"data": {"clean": values}}, "mt data view").data.clean or clean
    for one in rules:
        if one.limit(clean) is None:
            raise ConfigError(f"--rule {one.name}: data.clean.{one.key} is null, so it is off")
    pattern = None if match is None else compile_pattern(match, "--match")
    return Conditions(clean, rules, pattern)


def matching_pairs(
    plan: CleaningPlan, conditions: Conditions, damage: Damage
) -> Iterator[PlacedPair]:
    """Yield the pairs of a plan's corpora that meet the conditions. Raises DataError."""
    scorers = replace(plan, clean=conditions.clean).scorers if conditions.rules else []
    for part in plan.parts:
        pairs = enumerate(plan.pairs_of(part, damage))
        while chunk := list(islice(pairs, PAIRS_AT_A_TIME)):
            found = chunk
            if (pattern := conditions.pattern) is not None:
                found = [one for one in chunk if any(map(pattern.search, one[1]))]
            if conditions.rules and found:
                found = _rejected(found, conditions, scorers[part.corpus])
            yield from (PlacedPair(part.place(number), *pair) for number, pair in found)


def _rejected(
    pairs: list[tuple[int, tuple[str, str]]], conditions: Conditions, scorer: PairScorer
) -> list[tuple[int, tuple[str, str]]]:
    """The pairs that all rules reject, which score repaired texts."""
    scores = scorer.scores([(scorer.fix(src), scorer.fix(tgt)) for _, (src, tgt) in pairs])
    goes = np.ones(len(pairs), np.bool_)
    for rule in conditions.rules:
        column, limit = scores[:, RULES.index(rule)], rule.limit(conditions.clean)
        assert limit is not None  # see `conditions_of`
        goes &= column < limit if rule.is_minimum else column > limit
    return [pairs[row] for row in np.flatnonzero(goes).tolist()]


def rejected_pairs(path: Path, rule: str | None, match: str | None) -> Iterator[PlacedPair]:
    """Yield the pairs of a file of `mt data clean --rejected` that meet both. Raises MtError."""
    if rule is not None and rule not in REASONS:
        raise ConfigError(f"--rule: must be one of {', '.join(REASONS)}, found {rule!r}")
    pattern = None if match is None else compile_pattern(match, "--match")
    for number, line in enumerate(read_lines(path, "--rejected"), start=1):
        cells = line.split("\t")
        if len(cells) != len(HEADER.split("\t")):
            raise DataError(
                f"--rejected {path}, line {number:,}: these cells are required: "
                f"{', '.join(HEADER.split())}; found {len(cells)}. Name the file that "
                "mt data clean --rejected wrote"
            )
        reason, score, _, place, *texts = cells
        is_shown = rule in (None, reason) and (pattern is None or any(map(pattern.search, texts)))
        if is_shown and f"{line}\n" != HEADER:
            yield PlacedPair(f"{place}: {reason} {score}", *texts)


def drawn(pairs: Iterator[PlacedPair], size: int) -> Iterator[PlacedPair]:
    """Draw so many pairs at random, the same ones each time; they keep their order."""
    draw = random.Random(SEED).random
    keyed = ((draw(), number, pair) for number, pair in enumerate(pairs))
    chosen = heapq.nsmallest(size, keyed)
    return (pair for _, _, pair in sorted(chosen, key=itemgetter(1)))


def as_row(pair: PlacedPair) -> str:
    """Source, target and place as a line of TSV."""
    return "\t".join(map(tab_free, (pair.src, pair.tgt, pair.place)))


def in_columns(pair: PlacedPair, width: int) -> str:
    """Place, then source and target beside each other, in so many columns of a terminal."""
    from rich.console import Console
    from rich.text import Text

    column = max((width - len(BETWEEN)) // 2, 10)
    texts = (Text(printable(tab_free(text))) for text in (pair.src, pair.tgt))
    sides = ([line.plain.rstrip() for line in text.wrap(Console(), column)] for text in texts)
    lines = [
        left + " " * (column - display_width(left)) + BETWEEN + right
        for left, right in zip_longest(*sides, fillvalue="")
    ]
    return "\n".join([printable(pair.place), *(line.rstrip() for line in lines), ""])
