"""Contrastive evaluation: does a model find a correct translation more probable than a wrong one?

An item is a source, its correct translation and one or more contrastive ones, which differ from it
by one error: the wrong pronoun, number or word order. The phenomenon that it tests is its label
(Sennrich, 2017, LingEval97; Müller et al., 2018, ContraPro).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mt.config.schema import Source
from mt.data.reading.compression import suffix_of
from mt.data.reading.table_files import TABLE_SUFFIXES, read_table
from mt.errors import DataError
from mt.evaluation.metrics import check_counts
from mt.evaluation.table import aligned

# Columns of a table of items. Further columns whose names begin like this one, contrastive_2 and so
# on, hold further contrastive translations.
SOURCE = "source"
CORRECT = "correct"
CONTRASTIVE = "contrastive"
PHENOMENON = "phenomenon"
# Of items without a label.
NO_LABEL = "(none)"
# The label of all items together, in the table.
ALL = "all items"
# Standard normal quantile of a 95 % interval.
Z95 = 1.959964


@dataclass(frozen=True)
class Item:
    """A source, its correct translation, wrong ones, and what they are about."""

    source: str
    correct: str
    contrastive: tuple[str, ...]
    phenomenon: str = ""


@dataclass(frozen=True)
class ScoredItem:
    """The scores of an item's translations; nan where the model cannot read one, being too long."""

    item: Item
    scores: tuple[float, ...]  # the correct one first

    @property
    def is_scored(self) -> bool:
        """Whether all of its translations have a score."""
        return not any(map(math.isnan, self.scores))

    @property
    def is_correct(self) -> bool:
        """Whether the correct translation scores higher than each of the others."""
        return self.is_scored and self.scores[0] > max(self.scores[1:])

    @property
    def is_tie(self) -> bool:
        """Whether the best of the others scores just as high. It counts as wrong."""
        return self.is_scored and self.scores[0] == max(self.scores[1:])


@dataclass(frozen=True)
class Accuracy:
    """In how many items the model prefers the correct translation."""

    n_items: int
    n_correct: int

    @property
    def value(self) -> float:
        """The share of correct items, 0 to 1."""
        return self.n_correct / self.n_items

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the share (Wilson, 1927)."""
        n, share = self.n_items, self.value
        centre = share + Z95**2 / (2 * n)
        half = Z95 * math.sqrt(share * (1 - share) / n + Z95**2 / (4 * n**2))
        return (centre - half) / (1 + Z95**2 / n), (centre + half) / (1 + Z95**2 / n)


# --- reading ----------------------------------------------------------------------------------


def read_items(path: Path, option: str) -> list[Item]:
    """The items of a table: TSV, CSV, JSON or JSON Lines with the columns above.

    In JSON, `contrastive` may be a list. `option` names the file in messages. Raises DataError.
    """
    if suffix_of(path) not in TABLE_SUFFIXES:
        raise DataError(
            f"{option}: {path} must be a table, .tsv, .csv, .json or .jsonl, with the columns "
            f"{SOURCE}, {CORRECT}, {CONTRASTIVE} and {PHENOMENON}; for plain text, line by line, "
            "give --src and --tgt too"
        )
    table = Source(path=str(path), src=SOURCE, tgt=CORRECT)
    try:
        items = [_item(row, place, option) for place, row in read_table(path, table, option)]
    except DataError as error:  # it is an option here, and no section of a config
        raise DataError(str(error).replace(f"{option}.path: ", f"{option}: ")) from None
    if not items:
        raise DataError(f"{option}: {path} has no items, at least one is required")
    return items


def _item(row: Mapping[str, Any], place: str, option: str) -> Item:
    if missing := [name for name in (SOURCE, CORRECT) if not _is_text(row.get(name))]:
        raise DataError(
            f"{option}: {place}: the columns {SOURCE}, {CORRECT} and {CONTRASTIVE} must hold text, "
            f"found none in {' and '.join(missing)}; the columns are {', '.join(row)}"
        )
    contrastive: list[str] = []
    for name, cell in row.items():
        if name.startswith(CONTRASTIVE):
            contrastive += filter(_is_text, cell if isinstance(cell, list) else [cell])
    if not contrastive:
        raise DataError(
            f"{option}: {place}: a wrong translation is required in the column {CONTRASTIVE}, "
            f"found none; the columns are {', '.join(row)}"
        )
    texts = (row[SOURCE], row[CORRECT], *contrastive)
    source, correct, *wrong = (text.replace("\n", " ") for text in texts)
    label = row.get(PHENOMENON)
    return Item(source, correct, tuple(wrong), "" if label is None else str(label).strip())


def _is_text(cell: object) -> bool:
    return isinstance(cell, str) and bool(cell.strip())


def items_of_lines(
    sources: Mapping[str, Sequence[str]],
    contrastive: Mapping[str, Sequence[str]],
    labels: Mapping[str, Sequence[str]],
) -> list[Item]:
    """Items from texts that belong together line by line, by the names that messages give them.

    `sources` are the source and the correct translation; `labels` is a text of labels, or empty.
    Raises DataError where texts have different numbers of lines, blank ones, or none.
    """
    check_counts({**sources, **contrastive, **labels})
    src, correct = sources.values()
    if not src:
        raise DataError(f"{next(iter(sources))} has no lines, at least one is required")
    for name, lines in {**sources, **contrastive}.items():
        if blank := next((n for n, line in enumerate(lines, 1) if not _is_text(line)), None):
            raise DataError(
                f"{name}, line {blank:,}: text is required, as each item has a source, a correct "
                "and a wrong translation, found a blank line; remove the line from all texts"
            )
    (phenomena,) = labels.values() or ([""] * len(src),)
    rows = zip(src, correct, zip(*contrastive.values(), strict=True), phenomena, strict=True)
    return [Item(source, right, wrong, label.strip()) for source, right, wrong, label in rows]


# --- judging ----------------------------------------------------------------------------------


def translation_pairs(items: Iterable[Item]) -> Iterator[tuple[str, str]]:
    """(source, translation) of all translations of all items, the correct one first."""
    for item in items:
        for translation in (item.correct, *item.contrastive):
            yield item.source, translation


def scored_items(items: Iterable[Item], scores: Iterable[float]) -> Iterator[ScoredItem]:
    """Put items and the scores of their `translation_pairs` together."""
    left = iter(scores)
    for item in items:
        yield ScoredItem(item, tuple(next(left) for _ in (item.correct, *item.contrastive)))


def accuracies(items: Sequence[ScoredItem]) -> tuple[dict[str, Accuracy], Accuracy]:
    """Accuracy by phenomenon, sorted by name, and of all items that have scores.

    The first is empty if no item has a label. Raises DataError if no item has a score.
    """
    scored = [one for one in items if one.is_scored]
    if not scored:
        raise DataError(
            f"contrastive: all {len(items):,} items are too long for the model; split them, or "
            "take a model with a larger model.max_positions"
        )
    groups: dict[str, list[bool]] = {}
    for one in scored:
        groups.setdefault(one.item.phenomenon or NO_LABEL, []).append(one.is_correct)
    if set(groups) == {NO_LABEL}:
        groups = {}
    overall = Accuracy(len(scored), sum(one.is_correct for one in scored))
    by_label = {label: Accuracy(len(one), sum(one)) for label, one in sorted(groups.items())}
    return by_label, overall


def notes_on(items: Sequence[ScoredItem]) -> list[str]:
    """What may mislead in the accuracies: ties, and items without a score."""
    notes = []
    if n_ties := sum(one.is_tie for one in items):
        notes.append(f"{n_ties:,} with equal scores count as wrong")
    if n_left_out := sum(not one.is_scored for one in items):
        notes.append(f"{n_left_out:,} too long for the model are left out")
    return notes


# --- output -----------------------------------------------------------------------------------


def format_items(scored: Iterable[ScoredItem], as_json: bool) -> Iterator[str]:
    """A line per item: 1 if the correct translation is preferred, else 0, and all scores."""
    for one in scored:
        if as_json:
            scores = [None if math.isnan(score) else round(score, 6) for score in one.scores]
            values = {
                "preferred": one.is_correct if one.is_scored else None,
                "scores": scores,
                "phenomenon": one.item.phenomenon or None,
            }
            yield json.dumps(values, ensure_ascii=False)
        else:
            first = str(int(one.is_correct)) if one.is_scored else "nan"
            yield "\t".join([first, *(f"{score:.4f}" for score in one.scores)])


def format_table(phenomena: Mapping[str, Accuracy], overall: Accuracy) -> str:
    """A row per phenomenon and one for all: items, correct ones, accuracy, its interval, in %."""
    rows = [[PHENOMENON, "items", "correct", "accuracy", "95 % interval"]]
    for label, accuracy in (*phenomena.items(), (ALL, overall)):
        low, high = accuracy.interval
        counts = [f"{accuracy.n_items:,}", f"{accuracy.n_correct:,}", f"{100 * accuracy.value:.1f}"]
        rows.append([label, *counts, f"{100 * low:.1f} to {100 * high:.1f}"])
    return aligned(rows, n_left=1)


def table_json(phenomena: Mapping[str, Accuracy], overall: Accuracy) -> str:
    """The table as a JSON object: all items, then each phenomenon; accuracies 0 to 1."""

    def row(accuracy: Accuracy) -> dict[str, Any]:
        return {
            "items": accuracy.n_items,
            "correct": accuracy.n_correct,
            "accuracy": accuracy.value,
            "interval": list(accuracy.interval),
        }

    rows = {label: row(accuracy) for label, accuracy in phenomena.items()}
    return json.dumps({"all": row(overall), "phenomena": rows}, indent=2, ensure_ascii=False)
