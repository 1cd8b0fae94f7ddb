"""Measure the rules of data.clean: planted dirt that they find, good pairs that they lose.

    python scripts/bench_cleaning.py --data FOLDER --messages /usr/share/locale --json cleaning.json
    python scripts/bench_cleaning.py --data FOLDER --langs de-en --write OUT --share 0.4

FOLDER holds train.LANGUAGE.gz of Multi30k in at least three languages, aligned line by line. The
second corpus is the translated messages of the programs on this machine (--messages, a folder as
/usr/share/locale of Linux): mostly short, with names, options, numbers, and languages of several
scripts. It is not all clean: some messages are not translated.

The first table says which share of good pairs the default rules reject (duplicates not counted),
the others which share of the pairs damaged in one way is rejected, or repaired to the good pair;
all also for sources under 25 characters. --write makes three corpora instead: clean.*, dirty.* (the
same pairs and damaged ones, a --share of all) and cleaned.* (dirty.* by the default rules and
`duplicates`).
"""

from __future__ import annotations

import argparse
import gettext
import gzip
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import permutations
from pathlib import Path

from mt.cleaning.rules import RULES, PairScorer, decide
from mt.config.schema import Clean
from mt.data.tokens.duplicates import normalised

Pair = tuple[str, str]
SHORT = 25  # characters
GOOD = "good pairs"
CYRILLIC = str.maketrans("abcdefghijklmnopqrstuvwxyz", "абцдефгхийклмнопярстуввхыз")
BOILERPLATE = [
    ("Alle Rechte vorbehalten.", "All rights reserved."),
    ("Hier klicken, um mehr zu lesen", "Click here to read more"),
    ("Zum Warenkorb hinzufügen", "Add to the shopping basket"),
    ("Diese Seite verwendet Cookies.", "This page uses cookies."),
]


@dataclass
class Texts:
    """Good pairs of two languages, and the same lines in a third one to damage them with."""

    name: str
    langs: tuple[str, str]
    pairs: list[Pair]
    third: list[str]


# --- damage: (number, texts, random numbers) -> the pair; None where it cannot be damaged so ----


def _other_language(i: int, texts: Texts, draw: random.Random) -> Pair | None:
    src, tgt = texts.pairs[i]
    return (src, texts.third[i]) if draw.random() < 0.5 else (texts.third[i], tgt)


def _other_script(i: int, texts: Texts, _: random.Random) -> Pair | None:
    src, tgt = texts.pairs[i]
    latin = sum(character in CYRILLIC for character in map(ord, tgt.lower()))
    return (src, tgt.lower().translate(CYRILLIC)) if 2 * latin > len(tgt) else None


def _misaligned(i: int, texts: Texts, _: random.Random) -> Pair | None:
    return texts.pairs[i][0], texts.pairs[(i + 1) % len(texts.pairs)][1]


def _truncated(i: int, texts: Texts, draw: random.Random) -> Pair | None:
    src, tgt = texts.pairs[i]
    keep = int(len(tgt) * draw.uniform(0.1, 0.6))
    return (src, tgt[:keep]) if keep else None


def _mojibake(i: int, texts: Texts, draw: random.Random) -> Pair | None:
    with suppress(UnicodeError):
        bad = [text.encode().decode("cp1252") for text in texts.pairs[i]]
        return None if bad == list(texts.pairs[i]) else (bad[0], bad[1])
    return None


def _repeated(i: int, texts: Texts, draw: random.Random) -> Pair | None:
    src, tgt = texts.pairs[i]
    words = tgt.split()
    start, length = draw.randrange(len(words)), draw.randint(1, 4)
    loop = words[start : start + length] * draw.randint(4, 12)
    return src, " ".join(words[:start] + loop)


def _markup(i: int, texts: Texts, draw: random.Random) -> Pair | None:
    page = f"http://www.site{draw.randrange(99)}.com/{draw.randrange(9999)}"
    return draw.choice([(page, page), (f"<a href='{page}'><br/>", f"<p>{page}</p>")])


def _other_number(i: int, texts: Texts, draw: random.Random) -> Pair | None:
    src, tgt = texts.pairs[i]
    if not re.search(r"\d", src) or not re.search(r"\d", tgt):
        return None
    changed = re.sub(r"\d+", lambda found: str(int(found[0]) + draw.randint(1, 9)), tgt)
    return src, changed


def _noise(i: int, texts: Texts, draw: random.Random) -> Pair | None:
    src, tgt = texts.pairs[i]
    return src, "".join(draw.choice("#@^~|<>=\\{}□�¤") if draw.random() < 0.4 else c for c in tgt)


def _boilerplate(_: int, texts: Texts, draw: random.Random) -> Pair | None:
    src, tgt = draw.choice(BOILERPLATE)
    return draw.choice([(src, tgt), (src.upper(), tgt), (src, f"{tgt} »")])


DAMAGE: dict[str, Callable[[int, Texts, random.Random], Pair | None]] = {
    "another language": _other_language,
    "sides swapped": lambda i, texts, _: texts.pairs[i][::-1],
    "source copied": lambda i, texts, _: (texts.pairs[i][0],) * 2,
    "other script": _other_script,
    "misaligned by one": _misaligned,
    "target truncated": _truncated,
    "wrongly decoded": _mojibake,
    "machine repeats": _repeated,
    "links and tags only": _markup,
    "noise": _noise,
    "numbers changed": _other_number,
    "target missing": lambda i, texts, _: (texts.pairs[i][0], " "),
    "boilerplate": _boilerplate,
}  # fmt: skip


# --- measuring ----------------------------------------------------------------------------------


@dataclass
class Row:
    """Of pairs, and those with a short source: how many are rejected or repaired, by rule."""

    corpus: str
    kind: str
    pairs: int
    found: int
    short: int
    short_found: int
    rules: dict[str, int]


def rejections(texts: Texts, pairs: Sequence[Pair]) -> list[str]:
    """The rule that rejects each pair, `duplicate`, or an empty string."""
    clean = Clean()
    scorer = PairScorer(clean, *texts.langs)
    fixed = [(scorer.fix(src), scorer.fix(tgt)) for src, tgt in pairs]
    rules = [RULES[i].name if i >= 0 else "" for i in decide(scorer.scores(fixed), clean).tolist()]
    seen: set[tuple[bytes, bytes]] = set()
    for number, (src, tgt) in enumerate(fixed):
        key = normalised(src), normalised(tgt)
        if not rules[number] and key in seen:
            rules[number] = "duplicate"
        seen.add(key)
    return rules


def measure(texts: Texts, kind: str, numbers: Sequence[int], pairs: Sequence[Pair]) -> Row:
    """Clean pairs that are, or were made of, those numbered `numbers`."""
    rules = rejections(texts, pairs)
    if kind == GOOD:
        rules = [rule.replace("duplicate", "") for rule in rules]
    if kind == "wrongly decoded":
        fix = PairScorer(Clean(), *texts.langs).fix
        for n, (i, pair) in enumerate(zip(numbers, pairs, strict=True)):
            if (fix(pair[0]), fix(pair[1])) == tuple(map(fix, texts.pairs[i])):
                rules[n] = "repaired"
    short = [len(src) < SHORT for src, _ in pairs]
    found = [bool(rule) for rule in rules]
    both = sum(map(min, short, found))
    reasons = dict(Counter(filter(None, rules)).most_common())
    return Row(texts.name, kind, len(pairs), sum(found), sum(short), both, reasons)


def plant(texts: Texts, kind: str, count: int, draw: random.Random) -> tuple[list[int], list[Pair]]:
    """Damage up to `count` random pairs in one way; return their numbers and what they became."""
    numbers: list[int] = []
    damaged: list[Pair] = []
    for i in draw.sample(range(len(texts.pairs)), len(texts.pairs)):
        pair = DAMAGE[kind](i, texts, draw)
        if pair is not None and len(damaged) < count:
            numbers.append(i)
            damaged.append(pair)
    return numbers, damaged


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    lines = ["| corpus | pairs | | share | short | share | by |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        reasons = ", ".join(f"{rule} {count:,}" for rule, count in list(row.rules.items())[:4])
        shares = [
            f"{100 * found / most:.2f} %" if most else "–"
            for found, most in ((row.found, row.pairs), (row.short_found, row.short))
        ]
        cells = [row.kind, f"{row.pairs:,}", shares[0], f"{row.short:,}", shares[1], reasons]
        lines.append(f"| {row.corpus} | {' | '.join(cells)} |")
    return "\n".join(lines)


# --- corpora ------------------------------------------------------------------------------------


def captions(folder: Path, langs: tuple[str, str]) -> Texts:
    """Multi30k in two languages."""
    files = {path.name.split(".")[1]: path for path in sorted(folder.glob("train.*.gz"))}
    lines = {
        lang: gzip.decompress(path.read_bytes()).decode().split("\n")[:-1]
        for lang, path in files.items()
    }
    third = next(lang for lang in lines if lang not in langs)
    pairs = list(zip(*(lines[lang] for lang in langs), strict=True))
    return Texts(f"Multi30k {'-'.join(langs)}", langs, pairs, lines[third])


def messages(folder: Path, lang: str, third: str) -> Texts:
    """The translated messages of this machine's programs that are one line, in two languages."""
    found: dict[str, dict[str, str]] = {lang: {}, third: {}}
    for code, translations in found.items():
        for path in sorted((folder / code / "LC_MESSAGES").glob("*.mo")):
            # The lists of countries and languages are names only.
            if not path.name.startswith("iso_"):
                with suppress(OSError, ValueError), path.open("rb") as file:
                    catalogue = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
                    translations.update((k, v) for k, v in catalogue.items() if isinstance(k, str))
    both = [
        (text.rpartition("\x04")[2].strip(), found[lang][text].strip(), found[third][text].strip())
        for text in sorted(found[lang].keys() & found[third].keys())
    ]
    rows = sorted({row for row in both if all(row) and "\n" not in "".join(row)})
    pairs = [(src, tgt) for src, tgt, _ in rows]
    name = f"messages en-{lang.split('_')[0]}"
    return Texts(name, ("en", lang.replace("_", "-")), pairs, [row[2] for row in rows])


def write(texts: Texts, folder: Path, share: float, draw: random.Random) -> None:
    """Write clean.*, dirty.* and cleaned.* of a corpus."""
    count = int(len(texts.pairs) * share / (1 - share) / len(DAMAGE))
    dirty = texts.pairs + [pair for kind in DAMAGE for pair in plant(texts, kind, count, draw)[1]]
    draw.shuffle(dirty)
    fix = PairScorer(Clean(), *texts.langs).fix
    rules = rejections(texts, dirty)
    kept = [(fix(p[0]), fix(p[1])) for p, rule in zip(dirty, rules, strict=True) if not rule]
    folder.mkdir(parents=True, exist_ok=True)
    for name, pairs in (("clean", texts.pairs), ("dirty", dirty), ("cleaned", kept)):
        for side, lang in enumerate(texts.langs):
            lines = "".join(f"{pair[side]}\n" for pair in pairs)
            (folder / f"{name}.{lang}").write_text(lines, encoding="utf-8", newline="\n")
        print(f"{name}: {len(pairs):,} pairs")


def main() -> None:
    """Print the tables, or write the three corpora."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of Multi30k")
    parser.add_argument("--langs", default="de-en", help="languages to damage, of Multi30k")
    parser.add_argument("--messages", type=Path, help="folder of translated messages")
    parser.add_argument("--count", type=int, default=1000, help="damaged pairs of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--write", type=Path, help="write clean, dirty and cleaned text here")
    parser.add_argument("--share", type=float, default=0.4, help="of damaged pairs, with --write")
    args = parser.parse_args()
    src, tgt = args.langs.split("-")
    damaged = [captions(args.data, (src, tgt))]
    if args.write:
        write(damaged[0], args.write, args.share, random.Random(args.seed))
        return
    langs = sorted(path.name.split(".")[1] for path in args.data.glob("train.*.gz"))
    good = [captions(args.data, (a, b)) for a, b in permutations(langs, 2) if a < b]
    if args.messages:
        found = [messages(args.messages, a, b) for a, b in (("de", "fr"), ("ru", "de"))]
        found += [messages(args.messages, a, b) for a, b in (("ja", "ru"), ("zh_CN", "ru"))]
        found = [texts for texts in found if texts.pairs]
        good += found
        damaged += found[::2]
    rows = [measure(one, GOOD, range(len(one.pairs)), one.pairs) for one in good]
    print(table(rows), "\n", sep="")
    for texts in damaged:
        draw = random.Random(args.seed)
        planted = [measure(texts, kind, *plant(texts, kind, args.count, draw)) for kind in DAMAGE]
        print(table(planted), "\n", sep="")
        rows += planted
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
