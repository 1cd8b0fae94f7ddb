"""Parts of a test set, each scored by itself: by source length, rare words, unknown pieces, domain.

A slicing assigns each line of a test set to a slice; the functions below make slicings from plain
lists of lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from mt.data.reading.words import words
from mt.errors import DataError

if TYPE_CHECKING:
    from mt.data.tokens.tokenizer import Tokenizer

# Slices by the source, as `--slices` names them.
SLICES = ("length", "rare", "unknown")
# Slices by length, each with about as many lines as the others.
LENGTH_SLICES = 5
# A source is sliced by how often its rarest word is in the training data: lowest count of each
# slice, and its label.
RARE_WORDS = ((100, "100 or more"), (10, "10–99"), (1, "1–9"), (0, "never"))


@dataclass(frozen=True)
class Slice:
    """Some lines of a test set."""

    label: str
    lines: tuple[int, ...]  # from 0, ascending


@dataclass(frozen=True)
class Slicing:
    """The slices of a test set by one property. Each line is in one slice, none is empty."""

    by: str  # length, rare, unknown or domain
    title: str  # what the labels say, for a table
    slices: tuple[Slice, ...]


def by_length(sources: Sequence[str], n_slices: int = LENGTH_SLICES) -> Slicing:
    """Slice by the number of source words, into up to `n_slices` with about as many lines each.

    The same sources give the same slices, so that systems can be compared.
    """
    lengths = [len(words(line)) for line in sources]
    ranked = sorted(lengths) or [0]
    tops = sorted({ranked[(i * len(ranked) - 1) // n_slices] for i in range(1, n_slices + 1)})
    labels = {}
    low = ranked[0]
    for top in tops:
        labels[top] = str(top) if low == top else f"{low}–{top}"
        low = top + 1
    return _slicing(
        "length",
        "words in the source",
        [labels[next(top for top in tops if length <= top)] for length in lengths],
        list(labels.values()),
    )


def by_rare_words(sources: Sequence[str], counts: Mapping[str, int]) -> Slicing:
    """Slice by how often the rarest word of each source is in the training data.

    `counts`: occurrences by word, see `count_words`. A line without words is in the first slice.
    """

    def label(line: str) -> str:
        rarest = min((counts.get(word, 0) for word in words(line)), default=RARE_WORDS[0][0])
        return next(label for least, label in RARE_WORDS if rarest >= least)

    labels = [label for _, label in RARE_WORDS]
    title = "times the rarest source word is in the training data"
    return _slicing("rare", title, [label(line) for line in sources], labels)


def by_unknown_pieces(sources: Sequence[str], tokenizer: Tokenizer) -> Slicing:
    """Slice by whether the tokenizer's vocabulary lacks characters of the source.

    Such characters become the unknown token, or bytes with `tokenizer.byte_fallback`.
    """
    from mt.data.tokens.tokenizer import BYTE, UNK

    pieces = enumerate(tokenizer.src.all_pieces())
    known = [number != UNK and not BYTE.fullmatch(piece) for number, piece in pieces]
    labels = [
        "none" if all(known[token] for token in ids) else "1 or more"
        for ids in tokenizer.src.encode(list(sources))
    ]
    return _slicing("unknown", "unknown pieces in the source", labels, ["none", "1 or more"])


def by_domain(labels: Sequence[str]) -> Slicing:
    """Slice by a label for each line, such as its domain; labels in the order they first appear."""
    named = [label.strip() or "(no label)" for label in labels]
    return _slicing("domain", "domain", named, list(dict.fromkeys(named)))


def count_words(lines: Iterable[str]) -> Counter[str]:
    """How often each word is in a text, lower-cased and without punctuation around it."""
    texts: Counter[str] = Counter()
    for line in lines:
        texts.update(line.split())
    counts: Counter[str] = Counter()
    for text, count in texts.items():
        for word in words(text):
            counts[word] += count
    return counts


def slicer(
    name: str,
    train_src: Sequence[str],
    tokenizer_of: Path | None,
    models: Sequence[Path],
    source_lang: str | None = None,
) -> Callable[[Sequence[str]], Slicing]:
    """A function that slices sources by one of SLICES.

    Rare are words of the files `train_src`, else of the first model's training data; unknown is
    what the tokenizer in `tokenizer_of` lacks, else the first model's. DataError without either.
    `source_lang`: of a model that translates from several languages.
    """
    if name == "length":
        return by_length
    if name == "rare":
        return partial(by_rare_words, counts=_training_counts(train_src, models, source_lang))
    return partial(by_unknown_pieces, tokenizer=_slicing_tokenizer(tokenizer_of, models))


def _training_counts(
    train_src: Sequence[str], models: Sequence[Path], source_lang: str | None
) -> Mapping[str, int]:
    from mt.config.plan import plan_data
    from mt.data.reading.corpus import translated_pairs
    from mt.data.reading.text_files import read_lines
    from mt.runs.model_folder import read_config

    if train_src:
        return count_words(chain(*(read_lines(Path(path), "--train-src") for path in train_src)))
    if not models:
        raise DataError(
            "--slices rare: needs the training data to count words in; give --train-src FILE"
        )
    try:
        data = plan_data(read_config(models[0]).data)
        language = source_lang or data.usual.src
        is_known = language in {flow.direction.src for flow in data.flows}
        pairs = translated_pairs(data, language if is_known else "")
        return count_words(source for source, _ in pairs)
    except DataError as error:
        raise DataError(
            f"{error} --slices rare counts words in the training data of {models[0]}; or give "
            "--train-src FILE"
        ) from error


def _slicing_tokenizer(folder: Path | None, models: Sequence[Path]) -> Tokenizer:
    from mt.runs.model_folder import open_tokenizer

    if folder is not None:
        return open_tokenizer(folder, "--tokenizer-of")
    if not models:
        raise DataError("--slices unknown: needs a tokenizer; give --tokenizer-of FOLDER")
    return open_tokenizer(models[0])


def _slicing(by: str, title: str, labels: Sequence[str], order: Sequence[str]) -> Slicing:
    """Put each line into the slice of its label; slices in `order`."""
    lines: dict[str, list[int]] = {label: [] for label in order}
    for number, label in enumerate(labels):
        lines[label].append(number)
    slices = (Slice(label, tuple(numbers)) for label, numbers in lines.items() if numbers)
    return Slicing(by, title, tuple(slices))
