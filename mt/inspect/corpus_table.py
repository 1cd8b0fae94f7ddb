"""The counts of corpora as values for JSON, a page and a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mt.cleaning.characters import OTHER_LETTER, SCRIPTS
from mt.cleaning.leaks import LeakCount
from mt.cleaning.report import share_of
from mt.data.tokens.tokenizer import BYTE, EOS, UNK
from mt.evaluation.table import aligned
from mt.inspect.corpus_statistics import RATIOS, ChunkMeter, Counts, added

if TYPE_CHECKING:
    from mt.cleaning.plan import CleaningPlan

# What `mt data stats --json` prints, and parts of it.
Values: TypeAlias = dict[str, Any]

FORMAT = 1
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
TOP_PIECES = 30
ALL = "all corpora"


def statistics_of(
    plan: CleaningPlan, meter: ChunkMeter, counts: Sequence[Counts], notes: Sequence[str]
) -> Values:
    """The statistics of corpora: of several, those of all together come last."""
    named = [(plan.title(number), corpus_counts) for number, corpus_counts in enumerate(counts)]
    if len(named) > 1:
        named.append((ALL, reduce(added, counts)))
    return {
        "format": FORMAT,
        "source": plan.usual.src,
        "target": plan.usual.tgt,
        "corpora": [_corpus(name, corpus_counts, meter) for name, corpus_counts in named],
        "notes": list(notes),
    }


def _corpus(name: str, counts: Counts, meter: ChunkMeter) -> Values:
    leaks = meter.leaks.counts(counts["leaks"]) if meter.leaks else {}
    limits = [f"{limit:g}" for limit in RATIOS]
    ratios = ("word_ratio", "char_ratio")
    optional = ("leaking", "leaking_pairs", "nearly_leaking")
    return {
        "name": name,
        **dict.fromkeys(optional),
        **counts,
        "leaks": {name: asdict(leak) for name, leak in leaks.items()},
        **{key: dict(zip(limits, counts[key].tolist(), strict=True)) for key in ratios},
        "source": _side(counts["source"], meter, "src"),
        "target": _side(counts["target"], meter, "tgt"),
    }


def _side(counts: Counts, meter: ChunkMeter, side: str) -> Values:
    classes = counts["classes"]
    scripts = {name: int(classes[number]) for name, number in SCRIPTS.items()}
    scripts["other"] = int(classes[OTHER_LETTER])
    values: Values = {
        "words": _lengths(counts["words"]),
        "characters": _lengths(counts["characters"]),
        "scripts": _descending(scripts),
        "languages": _descending(counts["languages"]) if meter.identified != 0 else None,
        "identified": counts["identified"],
    }
    if meter.tokenizer is None or not counts["tokens"]["total"]:
        return values | {"tokens": None}
    tokenizer, used = meter.tokenizer, counts["pieces"]
    pieces = (tokenizer.tgt if side == "tgt" else tokenizer.src).all_pieces()
    is_byte = np.array([BYTE.fullmatch(piece) is not None for piece in pieces])
    top = np.argsort(-used, kind="stable")[:TOP_PIECES].tolist()
    return values | {
        "tokens": _lengths(counts["tokens"]),
        "tokens_per_word": counts["tokens"]["total"] / max(counts["words"]["total"], 1),
        "unknown_tokens": int(used[UNK]),
        "byte_tokens": int(used[is_byte].sum()),
        "unused_pieces": int(((used == 0) & ~is_byte)[EOS + 1 :].sum()),
        "top_pieces": [[pieces[i], int(used[i])] for i in top if used[i]],
    }


def _lengths(lengths: Counts) -> Values:
    """Sum, mean and quantiles of the lengths of lines."""
    lines = lengths["lines"]
    n = int(lines.sum())
    at_most = lines.cumsum()
    return {
        "total": lengths["total"],
        "mean": lengths["total"] / n if n else None,
        "quantiles": {
            f"{q:g}": int(np.searchsorted(at_most, q * n)) if n else None for q in QUANTILES
        },
        "longest": max(len(lines) - 1, 0),
    }


def _descending(counts: dict[str, Any]) -> dict[str, float]:
    total = sum(counts.values())
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return {name: round(n / total, 6) for name, n in ordered if n}


def statistics_text(values: Values) -> str:
    """The statistics as a table, a column for each corpus; then leaks, top pieces, notes."""
    blocks = [aligned(list(table_rows(values)), n_left=1)]
    for corpus in values["corpora"]:
        blocks += [
            f"{corpus['name']}: leaks of {name}: {LeakCount(**leak).summary()}"
            for name, leak in corpus["leaks"].items()
        ]
    last = values["corpora"][-1]
    for side in ("source", "target"):
        if last[side]["tokens"]:
            top = " ".join(piece for piece, _ in last[side]["top_pieces"])
            blocks.append(f"most frequent pieces, {values[side]}: {top}")
    return "\n".join([*blocks, *values["notes"]])


def table_rows(values: Values) -> Iterator[list[str]]:
    """Yield rows of cells, a heading first: what is counted, and its value for each corpus."""
    corpora = values["corpora"]
    yield ["", *(corpus["name"][-32:] for corpus in corpora)]
    yield ["pairs", *(f"{corpus['pairs']:,}" for corpus in corpora)]
    for title, key in (
        ("a side blank", "blank"),
        ("invisible characters in a side", "invisible"),
        ("both sides the same", "identical"),
        ("duplicates", "duplicates"),
        ("duplicates by letters and digits", "normalised_duplicates"),
        ("a side in an evaluation set", "leaking"),
        ("both sides in it", "leaking_pairs"),
        ("a side nearly in it", "nearly_leaking"),
    ):
        if corpora[-1][key] is not None:
            yield [title, *(share_of(corpus[key], corpus["pairs"]) for corpus in corpora)]
    for title, key in (("words", "word_ratio"), ("characters", "char_ratio")):
        for limit in ("2", "3", "5"):
            cells = [share_of(corpus[key][limit], corpus["pairs"]) for corpus in corpora]
            yield [f"ratio in {title} above {limit}", *cells]
    for side in ("source", "target"):
        for title, cells in _side_rows([corpus[side] for corpus in corpora]):
            yield [f"{title}, {values[side]}", *cells]


def _side_rows(sides: list[Values]) -> Iterator[tuple[str, list[str]]]:
    """Yield rows about one side of each corpus."""
    for kind in ("words", "characters", "tokens"):
        if any(side[kind] for side in sides):
            yield kind, [f"{side[kind]['total']:,}" if side[kind] else "–" for side in sides]
            title = f"{kind} a line (5 %, median, 95 %, longest)"
            yield title, [_spread(side[kind]) for side in sides]
    if any(side["tokens"] for side in sides):

        def row(title: str, cell: Callable[[Values], str]) -> tuple[str, list[str]]:
            return title, [cell(side) if side["tokens"] else "–" for side in sides]

        yield row("tokens per word", lambda side: f"{side['tokens_per_word']:.3f}")
        for title, key in (("unknown tokens", "unknown_tokens"), ("byte tokens", "byte_tokens")):
            yield row(title, lambda side: share_of(side[key], side["tokens"]["total"]))  # noqa: B023
        yield row("unused pieces", lambda side: f"{side['unused_pieces']:,}")
    for key in ("scripts", "languages"):
        if sides[-1][key] is not None:
            yield key, [_largest(side[key]) for side in sides]


def _spread(lengths: Values | None) -> str:
    if not lengths or lengths["mean"] is None:
        return "–"
    shown = [*(lengths["quantiles"][q] for q in ("0.05", "0.5", "0.95")), lengths["longest"]]
    return " / ".join(f"{length:,}" for length in shown)


def _largest(shares: dict[str, float]) -> str:
    """The three largest shares, such as `de 98.1 %, en 1.2 %`."""
    return ", ".join(f"{name} {100 * share:.1f} %" for name, share in list(shares.items())[:3])
