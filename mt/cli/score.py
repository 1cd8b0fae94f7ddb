"""`mt score`: the log-probability of given translations, and which of several a model prefers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mt.cli.console import print_result, say
from mt.cli.options import described
from mt.errors import ConfigError

if TYPE_CHECKING:
    from mt.evaluation.contrastive import Item
    from mt.translate.score_lines import Scorer


@described("""
    Input:
    --src FILE: source text, also compressed; - is stdin
    --tgt FILE: its translation, line by line; - is stdin
    --contrastive FILE: wrong translations to compare with --tgt, line by line; without --src and
        --tgt: a table with columns source, correct, contrastive, phenomenon; repeatable
    --phenomena FILE: what each line of --contrastive tests, for a table by phenomenon
    Output:
    as_json = --json: write a JSON object per line, with the score of every token
""")
def score(
    model: Path,
    src: str | None = None,
    tgt: str | None = None,
    to: str | None = None,
    contrastive: list[str] | None = None,
    phenomena: str | None = None,
    output: str = "-",
    alignments: bool = False,
    alignment_heads: str | None = None,
    as_json: bool = False,
    length_penalty: float | None = None,
    batch_tokens: int | None = None,
    precision: str = "auto",
    device: str = "auto",
) -> None:
    """Score given translations with a model, line by line.

    A score is log-probability / length^A; the end symbol counts in both.

    With --contrastive, print in how many of the items the correct translation scores higher than
    the wrong ones, in all and by phenomenon; -o FILE gets 1 or 0 and the scores, item by item.

    \b
    mt score --model runs/base --src test.de --tgt test.en
    mt score --model runs/base --src test.de --tgt test.en --json -o scores.jsonl
    mt score --model runs/base --contrastive errors.tsv
    mt score --model runs/base --src test.de --tgt test.en --contrastive wrong.en
    """
    from mt.translate.streaming import refuse_overwrite

    contrastive = contrastive or []
    _check_options(src, tgt, contrastive, phenomena, aligned=alignments or bool(alignment_heads))
    inputs = [("--src", src), ("--tgt", tgt), ("--phenomena", phenomena)]
    inputs += [("--contrastive", path) for path in contrastive]
    refuse_overwrite(output, inputs, [model])
    from mt.search.options import EngineOptions, SearchOptions
    from mt.translate.score_lines import load_scorer

    heads = alignment_heads or ("auto" if alignments else None)
    search = SearchOptions(to=to, length_penalty=length_penalty, alignments=heads)
    options = EngineOptions(
        models=[model],
        engine="torch",
        precision=precision,
        device=device,
        batch_tokens=batch_tokens,
    )
    scorer = partial(load_scorer, search, options)
    if contrastive:
        items = _read_items(src, tgt, contrastive, phenomena)
        _score_contrastive(scorer, items, output, as_json)
    else:
        assert src is not None
        assert tgt is not None
        _score_lines(scorer, src, tgt, output, as_json)


def _score_lines(
    load: Callable[[], Scorer], src: str, tgt: str, output: str, as_json: bool
) -> None:
    """Write the score of each pair of lines."""
    from mt.translate.score_lines import format_scored
    from mt.translate.streaming import open_output, read_input, write_lines

    sources = read_input(src, option="--src")
    targets = read_input(tgt, option="--tgt")
    with open_output(output) as file:
        scorer = load()
        aligned = bool(scorer.forced.heads)
        write_lines(file, format_scored(scorer.score(sources, targets), as_json, aligned))
    say(scorer.summary())


def _read_items(
    src: str | None, tgt: str | None, contrastive: Sequence[str], phenomena: str | None
) -> list[Item]:
    """The items of a table, or of texts that belong together line by line."""
    from mt.evaluation.contrastive import items_of_lines, read_items
    from mt.translate.streaming import read_input

    def texts(name: str, *paths: str) -> dict[str, list[str]]:
        return {f"{name} {path}": list(read_input(path, option=name)) for path in paths}

    if src is None or tgt is None:
        return [item for path in contrastive for item in read_items(Path(path), "--contrastive")]
    return items_of_lines(
        texts("--src", src) | texts("--tgt", tgt),
        texts("--contrastive", *contrastive),
        texts("--phenomena", phenomena) if phenomena else {},
    )


def _score_contrastive(
    load: Callable[[], Scorer], items: Sequence[Item], output: str, as_json: bool
) -> None:
    """Print the accuracy in all and by phenomenon; write a line per item to a file, if named."""
    from mt.evaluation.contrastive import (
        accuracies,
        format_items,
        format_table,
        notes_on,
        scored_items,
        table_json,
        translation_pairs,
    )
    from mt.translate.streaming import open_output, write_lines

    with nullcontext() if output == "-" else open_output(output) as file:
        scorer = load()
        pairs = list(translation_pairs(items))
        scored = scorer.score((src for src, _ in pairs), (tgt for _, tgt in pairs))
        results = list(scored_items(items, (pair.score for pair in scored)))
        phenomena, overall = accuracies(results)
        if file is not None:
            write_lines(file, format_items(results, as_json))
    print_result((table_json if as_json else format_table)(phenomena, overall))
    # No perplexity: that of correct and wrong translations together says nothing.
    n_scored = scorer.pairs - scorer.too_long.count
    say(f"{len(items):,} items: {n_scored:,} translations scored in {scorer.seconds:.1f} s")
    for note in notes_on(results):
        say(f"note: {note}")


def _check_options(
    src: str | None,
    tgt: str | None,
    contrastive: Sequence[str],
    phenomena: str | None,
    aligned: bool,
) -> None:
    """Refuse options that are missing or do not go together."""

    given = [f"--{name}" for name, path in (("src", src), ("tgt", tgt)) if path is not None]
    if len(given) == 1:
        missing = "--tgt" if src is not None else "--src"
        raise ConfigError(f"{given[0]}: needs {missing} too, line by line; give both")
    if not given and not contrastive:
        raise ConfigError(
            "score: nothing to score; give --src and --tgt, or --contrastive with a table"
        )
    files = [src, tgt, phenomena, *contrastive]
    if files.count("-") > 1:
        raise ConfigError(
            f"{', '.join(given) or '--contrastive'}: only one of them can be stdin; name a file "
            "for the other"
        )
    if phenomena is not None and not (given and contrastive):
        raise ConfigError(
            "--phenomena: labels the lines of --src, --tgt and --contrastive; in a table the "
            "labels are the column phenomenon"
        )
    if contrastive and aligned:
        raise ConfigError("--alignments: not with --contrastive; leave one of them out")
