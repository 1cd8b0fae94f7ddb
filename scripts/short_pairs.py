"""Words and short phrases of a corpus with their translations: one more text to train on.

    python scripts/short_pairs.py --src train.de --tgt train.en --output short

writes short.src and short.tgt. A model that has seen whole sentences only makes a sentence of a
single word; see configs/experiments.md. Words are aligned by IBM Model 1 in both directions, and a
phrase is what the alignments agree on (Koehn et al., 2003, "Statistical Phrase-Based Translation",
section 3.1).
"""

from __future__ import annotations

import argparse
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import chain, product
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np

from mt.data.reading.words import single_spaced, tokens
from mt.data.tokens.directions import DirectedPairs
from mt.data.tokens.store import Store
from mt.data.tokens.tokenizer import EOS
from mt.errors import DataError, MtError
from mt.evaluation.metrics import check_counts
from mt.interop.ctranslate2 import translation_table
from mt.translate.streaming import open_output, read_input, write_lines

LONGEST = 3  # words of a source, of Chinese characters; a translation has one more at most
# Of what is written, the shares of sources of one, two and three words.
SHARES = (0.4, 0.35, 0.25)
# How often a pair must occur, and in which share of the phrases with this source, and this target.
LEAST, LEAST_OF_SOURCE, LEAST_OF_TARGET = 3, 0.4, 0.2
# A held-out phrase is drawn from the most frequent ones, so many for each. Its references are the
# translations in this share of its phrases.
DRAWN_FROM, REFERENCE = 40, 0.1

Links = set[tuple[int, int]]  # the numbers of a source word and of a target word


class Sentence(NamedTuple):
    """A line as tokens that are the line when joined, and which of them are no space."""

    tokens: list[str]
    words: list[int]

    @classmethod
    def of(cls, line: str) -> Sentence:
        parts = tokens(unicodedata.normalize("NFC", single_spaced(line)))
        return cls(parts, [number for number, part in enumerate(parts) if not part.isspace()])

    def keys(self) -> list[str]:
        return [self.tokens[number].lower() for number in self.words]

    def phrase(self, first: int, last: int) -> str:
        """The text of these words; "" if there is punctuation among them."""
        inside = self.words[first : last + 1]
        if not all(self.tokens[number][0].isalnum() for number in inside):
            return ""
        return "".join(self.tokens[inside[0] : inside[-1] + 1])


class Phrase(NamedTuple):
    """A source with its translations, the most frequent first."""

    frequency: int
    src: str
    tgts: list[str]


def read(args: argparse.Namespace) -> tuple[list[Sentence], list[Sentence]]:
    """The sentences of both files. Raises DataError for unequal counts."""
    lines = {
        f"--{name} {path}": [*read_input(path, option=f"--{name}")]
        for name, path in (("src", args.src), ("tgt", args.tgt))
    }
    check_counts(lines)
    src, tgt = map(sentences_of, lines.values())
    return src, tgt


def sentences_of(lines: Iterable[str]) -> list[Sentence]:
    """The lines as sentences; the first word of each in the case that it has elsewhere."""
    sentences = [*map(Sentence.of, lines)]
    forms: defaultdict[str, Counter[str]] = defaultdict(Counter)
    words = [[n for n in numbers if parts[n][0].isalnum()] for parts, numbers in sentences]
    for (parts, _), numbers in zip(sentences, words, strict=True):
        for number in numbers[1:]:
            forms[parts[number].lower()][parts[number]] += 1
    for (parts, _), numbers in zip(sentences, words, strict=True):
        if numbers and (known := forms.get(parts[numbers[0]].lower())):
            parts[numbers[0]] = known.most_common(1)[0][0]
    return sentences


def aligned(sources: list[list[str]], targets: list[list[str]]) -> Iterator[Links]:
    """Yield the links from each target word to the source word that it comes from, if any."""
    src_ids = {word: EOS + 1 + i for i, word in enumerate(dict.fromkeys(chain(*sources)))}
    tgt_ids = {word: EOS + 1 + i for i, word in enumerate(dict.fromkeys(chain(*targets)))}
    size = EOS + 1 + len(tgt_ids)
    ids = [
        np.array([table[word] for word in words], np.int64)
        for pair in zip(sources, targets, strict=True)
        for table, words in zip((src_ids, tgt_ids), pair, strict=True)
    ]
    lengths = np.array([len(row) for row in ids], np.int64).reshape(-1, 2).T
    store = Store(np.concatenate(ids), lengths, (len(sources),), "", "")
    src, tgt, probabilities = translation_table(DirectedPairs.of(store), size)
    keys = src * size + tgt  # ascending
    for source, target in zip(ids[::2], ids[1::2], strict=True):
        # The empty word comes first, and so wins what nothing explains: of a large corpus the
        # table has a sample.
        wanted = np.append(EOS, source)[:, None] * size + target  # (S + 1, T)
        places = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
        found = np.where(keys[places] == wanted, probabilities[places], 0.0)
        yield {(i - 1, j) for j, i in enumerate(found.argmax(0).tolist()) if i}


def symmetric(forward: Links, backward: Links) -> Links:
    """The links of both, and those of one beside them that link a word without any."""
    links = forward & backward
    waiting = (forward | backward) - links
    while near := {
        (i, j)
        for i, j in waiting
        if links & {(i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)}
        and not ({i} <= {link[0] for link in links} and {j} <= {link[1] for link in links})
    }:
        links |= near
        waiting -= near
    return links


def phrases(src: Sentence, tgt: Sentence, links: Links) -> Iterator[tuple[str, str]]:
    """Yield the phrases of a pair: words that are linked with no word outside of the phrase."""
    linked = sorted({i for i, _ in links})
    for first, last in product(linked, repeat=2):
        if not first <= last < first + LONGEST:
            continue
        targets = {j for i, j in links if first <= i <= last}
        low, high = min(targets), max(targets)
        sources = {i for i, j in links if low <= j <= high}
        if high - low <= LONGEST and first <= min(sources) and max(sources) <= last:
            texts = src.phrase(first, last), tgt.phrase(low, high)
            if all(texts):
                yield texts


def frequent(found: Iterable[tuple[str, str]]) -> list[Phrase]:
    """The phrases that have one usual translation, the most frequent first."""
    counts = Counter(found)
    of_src: Counter[str] = Counter()
    of_tgt: Counter[str] = Counter()
    translations: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for (src, tgt), count in counts.items():
        of_src[src] += count
        of_tgt[tgt] += count
        translations[src].append((count, tgt))
    kept = []
    for src, each in translations.items():
        each.sort(reverse=True)
        count, tgt = each[0]
        usual = count >= LEAST_OF_SOURCE * of_src[src] and count >= LEAST_OF_TARGET * of_tgt[tgt]
        if usual and count >= LEAST and not src.isdecimal():
            others = [text for n, text in each[1:] if n >= max(2, REFERENCE * of_src[src])]
            kept.append(Phrase(count, src, [tgt, *others]))
    return sorted(kept, reverse=True)


def chosen(known: list[Phrase], n_pairs: int) -> list[Phrase]:
    """The most frequent ones of each number of words, `n_pairs` at most, in random order."""
    pairs = []
    for n_words, share in enumerate(SHARES, 1):
        of_length = [one for one in known if len(Sentence.of(one.src).words) == n_words]
        pairs += of_length[: round(share * n_pairs)]
    Random(1).shuffle(pairs)
    return pairs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--src", required=True, help="source lines, also compressed")
    parser.add_argument("--tgt", required=True, help="target lines")
    parser.add_argument("--output", required=True, help="beginning of the names of the two files")
    parser.add_argument("--share", type=float, default=0.03, help="of the lines (default: 0.03)")
    parser.add_argument("--held-out", type=int, default=0, metavar="N", help=(
        "leave out N frequent ones to judge a model by: they go to OUTPUT.held-out.src, all their "
        "translations, with tabs between them, to OUTPUT.held-out.tgt"))  # fmt: skip
    try:
        run(parser.parse_args())
    except MtError as error:
        parser.exit(error.exit_code, f"short_pairs.py: {error}\n")


def check(args: argparse.Namespace, names: list[str]) -> None:
    """Raise DataError for an option that cannot be, and for a file that exists."""
    if not 0 < args.share <= 1:
        raise DataError(f"--share: must be above 0 and at most 1, found {args.share}")
    if args.held_out < 0:
        raise DataError(f"--held-out: must be 0 or more, found {args.held_out}")
    if args.src == args.tgt == "-":
        raise DataError("--src, --tgt: only one of them can be stdin; name a file for the other")
    if args.output.endswith("/") or Path(args.output).is_dir():
        raise DataError(f"--output: must begin the names of files, found the folder {args.output}")
    if there := [name for name in names if Path(name).exists()]:
        raise DataError(f"--output: {there[0]} exists; give another name, or remove it")


def run(args: argparse.Namespace) -> None:
    """Read, align, count, and write. Raises MtError."""
    sides = ["src", "tgt"] + ["held-out.src", "held-out.tgt"] * bool(args.held_out)
    names = [f"{args.output}.{side}" for side in sides]
    check(args, names)
    with ExitStack() as stack:
        files = [stack.enter_context(open_output(name)) for name in names]
        sources, targets = read(args)
        words = [[sentence.keys() for sentence in side] for side in (sources, targets)]
        both = zip(aligned(*words), aligned(*words[::-1]), strict=True)
        links = (symmetric(forward, {(i, j) for j, i in backward}) for forward, backward in both)
        pairs = zip(sources, targets, links, strict=True)
        known = frequent(chain.from_iterable(phrases(*pair) for pair in pairs)) if sources else []
        if args.held_out > len(known) // 2:
            raise DataError(
                f"--held-out: must be at most half of the {len(known):,} words and phrases that "
                f"were found, found {args.held_out:,}"
            )
        held_out = Random(1).sample(known[: DRAWN_FROM * args.held_out], args.held_out)
        left_out = {phrase.src.lower() for phrase in held_out}
        rest = [phrase for phrase in known if phrase.src.lower() not in left_out]
        usual = chosen(rest, round(args.share * len(sources)))
        if not usual:
            raise DataError(
                f"--src, --tgt: of {len(sources):,} pairs, {len(known):,} words and phrases occur "
                f"{LEAST} times with one translation, and none is to be written; give more text, "
                "or a larger --share"
            )
        lines = [[one.src for one in usual], [one.tgts[0] for one in usual]]
        lines += [[one.src for one in held_out], ["\t".join(one.tgts) for one in held_out]]
        for file, texts in zip(files, lines, strict=False):
            write_lines(file, texts)
    print(f"{', '.join(names)}: {len(usual):,} words and phrases, {len(held_out):,} held out")


if __name__ == "__main__":
    main()
