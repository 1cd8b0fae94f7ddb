"""The metrics: what each computes, what it needs, and the one registry of them.

Hypotheses are detokenised and references raw. BLEU is cased, and smoothed only if an n-gram order
has no match (Post, 2018); chrF2 and chrF2++ (Popović, 2015, 2017); TER (Snover et al., 2006);
COMET, see `comet`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from unicodedata import is_normalized, normalize

import numpy as np
from numpy.typing import NDArray

from mt.data.reading.words import has_visible
from mt.errors import DataError
from mt.evaluation.bleu_tokenizer import DEFAULT, fitting_tokenizer, looks_like, splits_characters
from mt.evaluation.comet import Comet

# So many hypotheses that end in " ." must be tokenised; sacreBLEU warns at the same count.
TOKENISED_LINES = 100
# So many lines with other spaces beside marks than the reference are noted, or this share of them.
LINES_OF_MARKS = 100
SHARE_OF_MARKS = 0.2
# Characters between spaces, on average, from which on a text must be one that has no spaces.
UNSPACED = 15
SCRIPT_LINES = 1_000  # lines of a reference in which its script is looked for
# Marks that French sets off by a space and others do not: their names, and each with that space.
GUILLEMETS = ("« »", re.compile(r"\s?»(?!\w)|(?<!\w)«\s?"))
ALL_MARKS = ("? ! : ; « »", re.compile(rf"\s?[?!:;]+(?![\w/])|{GUILLEMETS[1].pattern}"))

Statistics = NDArray[np.float64]


@dataclass(frozen=True)
class Score:
    """The score of a text by a metric, with what makes it comparable."""

    name: str
    value: float
    signature: str
    detail: str = ""
    note: str = ""  # why the value may mislead


# --- what a metric is -------------------------------------------------------------------------


@dataclass(eq=False)
class Metric:
    """A metric computed from sums over lines, which give intervals and paired tests as well."""

    name: ClassVar[str]  # on the command line, in `train.metric` and in `metrics.jsonl`
    title: ClassVar[str]  # in tables and messages
    lower_is_better: ClassVar[bool] = False
    in_training: ClassVar[bool] = False  # whether it can be `train.metric`
    needs_sources: ClassVar[bool] = False
    needs_model: ClassVar[bool] = False  # that of --comet-model

    refs: Sequence[Sequence[str]]  # whole reference translations
    sources: Sequence[str] | None = None
    tokenize: str = DEFAULT  # sacreBLEU's tokenizer for BLEU
    comet: Comet | None = None
    tgt_lang: str = ""

    def statistics(self, hyps: Sequence[str]) -> Statistics:
        """A row of numbers for each translation: (lines, n)."""
        raise NotImplementedError

    def value(self, sums: Sequence[float]) -> float:
        """The value for the sum of some rows, (n,)."""
        raise NotImplementedError

    def score(self, hyps: Sequence[str]) -> Score:
        return self.score_from(self.statistics(hyps), hyps)

    def score_from(self, statistics: Statistics, hyps: Sequence[str]) -> Score:
        return Score(self.title, self.value(statistics.sum(axis=0).tolist()), self.signature())

    def signature(self) -> str:
        """The settings that the value depends on, as `key:value|key:value`."""
        return f"nrefs:{len(self.refs)}"

    def line_values(self, hyps: Sequence[str]) -> list[float]:
        return [float(self.value(row)) for row in self.statistics(hyps).tolist()] if hyps else []


# --- the metrics ------------------------------------------------------------------------------


class SacreBleuMetric(Metric):
    """A metric that sacreBLEU computes. A subclass makes its object, and may explain a score."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._metric = self.implementation()  # keeps the n-grams of the references

    def implementation(self) -> Any:
        raise NotImplementedError

    def present_refs(self) -> Any:  # sacreBLEU documents None, but its types lack it
        """The references; None for a blank one beside others, as its length of 0 would count."""
        if len(self.refs) == 1:
            return self.refs
        rows = [
            [ref if has_visible(ref) or not any(map(has_visible, row)) else None for ref in row]
            for row in zip(*self.refs, strict=True)
        ]
        return [list(refs) for refs in zip(*rows, strict=True)]

    def explain(self, result: Any, hyps: Sequence[str]) -> tuple[str, str]:
        """A detail of a score, and why its value may mislead; each may be empty."""
        return "", ""

    def note_on_spaces(self, is_split: Callable[[str], bool], otherwise: str) -> str:
        """Why splitting at spaces may mislead, or ""; `is_split`: languages it splits otherwise."""
        lines = [line for ref in self.refs for line in ref[:SCRIPT_LINES]]
        name, code = looks_like(lines)
        if is_split(code) and not is_split(self.tgt_lang):
            return (
                f"the references look {name}, and are split at spaces; give --tgt-lang {code} "
                "(in a config data.tgt_lang)"
            )
        words = " ".join(lines).split()
        if code not in ("", "ko") or sum(map(len, words)) > UNSPACED * len(words):
            return f"the references have hardly any spaces, and are split at spaces; {otherwise}"
        return ""

    def note_on_marks(self, hyps: Sequence[str], marks: tuple[str, re.Pattern[str]]) -> str:
        """That hypotheses have other spaces at `marks` than references, where these join words."""
        names, pattern = marks
        n_marked = n_other = 0
        for hyp, *refs in zip(hyps, *self.refs, strict=True):
            spaced, *others = (
                {any(map(str.isspace, mark)) for mark in pattern.findall(line)}
                for line in (hyp, *refs)
            )
            if spaced and (others := list(filter(None, others))):
                n_marked += 1
                n_other += all(map(spaced.isdisjoint, others))
        if not n_other or n_other < min(LINES_OF_MARKS, SHARE_OF_MARKS * n_marked):
            return ""
        return (
            f"{n_other:,} of {n_marked:,} lines with {names} do not have the spaces of the "
            "reference beside them, which counts as wrong words; write both alike before scoring"
        )

    def statistics(self, hyps: Sequence[str]) -> Statistics:
        return np.array(self._metric._extract_corpus_statistics(hyps, None), dtype=np.float64)

    def value(self, sums: Sequence[float]) -> float:
        return self._metric._compute_score_from_stats(sums).score

    def score_from(self, statistics: Statistics, hyps: Sequence[str]) -> Score:
        """With sacreBLEU's signature."""
        result = self._metric._compute_score_from_stats(statistics.sum(axis=0).tolist())
        # Rounding may leave 100.00000000000004; only an error rate can be higher.
        value = result.score if self.lower_is_better else min(result.score, 100.0)
        detail, note = self.explain(result, hyps)
        return Score(self.title, value, self.signature(), detail, self.note_on_nfc(hyps) or note)

    def note_on_nfc(self, hyps: Sequence[str]) -> str:
        """That equal letters count as different, because only one side spells them in NFC."""
        n = 0
        for row in zip(hyps, *self.refs, strict=True):
            known = set("".join(line for line in row if is_normalized("NFC", line)))
            n += any(known & set(normalize("NFC", line)) - set(line) for line in row)
        return bool(n) * (
            f"in {n / max(1, len(hyps)):.1%} of the lines only one side is in Unicode's NFC, so "
            "that equal letters differ; write both in it, or give mt evaluate --normalize nfc"
        )

    def signature(self) -> str:
        return str(self._metric.get_signature())


class Bleu(SacreBleuMetric):
    """Geometric mean of the 1- to 4-gram precisions times the brevity penalty."""

    name = "bleu"
    title = "BLEU"
    in_training = True

    def implementation(self) -> Any:
        """`force`: tokenised lines are reported in a note, instead of in sacreBLEU's log."""
        from sacrebleu.metrics.bleu import BLEU

        references = self.present_refs()
        return BLEU(tokenize=self.tokenize, smooth_method="exp", force=True, references=references)

    def explain(self, result: Any, hyps: Sequence[str]) -> tuple[str, str]:
        """Precisions and lengths, and why the value may mislead."""
        precisions = "/".join(f"{precision:.1f}" for precision in result.precisions)
        detail = (
            f"precisions {precisions}, brevity penalty {result.bp:.3f}, "
            f"length {result.sys_len:,} against {result.ref_len:,}"
        )
        return detail, self._note(hyps, has_4_grams=result.totals[3] > 0)

    def _note(self, hyps: Sequence[str], has_4_grams: bool) -> str:
        if self.tokenize in ("13a", "intl", "none"):
            remedy = "choose the tokenizer of the language, or char"
            if note := self.note_on_spaces(lambda code: fitting_tokenizer(code) != DEFAULT, remedy):
                return note
        if not has_4_grams:
            return "no hypothesis has four words, so BLEU is 0 whatever they are"
        n_tokenised = sum(line.endswith(" .") for line in hyps)
        if n_tokenised >= TOKENISED_LINES:
            return (
                f'{n_tokenised:,} of {len(hyps):,} hypotheses end in " .": they look tokenised; '
                "only scores over detokenised text can be compared"
            )
        marks = {"13a": GUILLEMETS, "none": ALL_MARKS}.get(self.tokenize)
        return self.note_on_marks(hyps, marks) if marks else ""


class Chrf(SacreBleuMetric):
    """F2 over character 1- to 6-grams."""

    name = "chrf"
    title = "chrF2"
    in_training = True
    word_order: ClassVar[int] = 0

    def implementation(self) -> Any:
        from sacrebleu.metrics.chrf import CHRF

        return CHRF(word_order=self.word_order, references=self.present_refs())


class ChrfPlusPlus(Chrf):
    """F2 over character 1- to 6-grams and word 1- and 2-grams."""

    name = "chrf++"
    title = "chrF2++"
    in_training = False
    word_order = 2

    def explain(self, result: Any, hyps: Sequence[str]) -> tuple[str, str]:
        return "", self.note_on_marks(hyps, GUILLEMETS)


class Ter(SacreBleuMetric):
    """Word edits, shifts included, per 100 reference words; characters in Japanese, Chinese."""

    name = "ter"
    title = "TER"
    lower_is_better = True

    def implementation(self) -> Any:
        """sacreBLEU's TER."""
        from sacrebleu.metrics.ter import TER

        asian = splits_characters(self.tgt_lang)
        return TER(normalized=asian, asian_support=asian, references=self.present_refs())

    def explain(self, result: Any, hyps: Sequence[str]) -> tuple[str, str]:
        """Edits and reference words, and why the value may mislead."""
        note = ""
        if not splits_characters(self.tgt_lang):
            note = self.note_on_spaces(splits_characters, "read chrf, which needs no words")
            note = note or self.note_on_marks(hyps, ALL_MARKS)
        return f"{result.num_edits:,.0f} edits, {result.ref_length:,.1f} reference words", note


class CometMetric(Metric):
    """COMET: the mean of what a neural model says of each sentence, times 100."""

    name = "comet"
    title = "COMET"
    needs_sources = True
    needs_model = True

    def statistics(self, hyps: Sequence[str]) -> Statistics:
        """The score of the sentence, and 1."""
        if self.comet is None or self.sources is None:
            raise DataError("metric comet: needs a COMET model and the sources; give both")
        refs = [next(filter(has_visible, row), "") for row in zip(*self.refs, strict=True)]
        scores = self.comet.sentence_scores(self.sources, hyps, refs)
        return np.stack([np.array(scores), np.ones(len(scores))], axis=1)

    def value(self, sums: Sequence[float]) -> float:
        return sums[0] / sums[1]

    def score_from(self, statistics: Statistics, hyps: Sequence[str]) -> Score:
        """With a note if there are references that are not read."""
        value = self.value(statistics.sum(axis=0).tolist())
        n_refs = len(self.refs)
        note = f"the first of {n_refs} references was read" if n_refs > 1 else ""
        return Score(self.title, value, self.signature(), "mean of the sentences", note)

    def signature(self) -> str:
        return self.comet.signature if self.comet else ""


# All that `mt evaluate --metrics` knows; `train.metric` knows those with `in_training`.
METRICS: dict[str, type[Metric]] = {
    metric.name: metric for metric in (Bleu, Chrf, ChrfPlusPlus, Ter, CometMetric)
}


# --- what they are given ----------------------------------------------------------------------


def check_metrics(metrics: Sequence[str]) -> None:
    """Raise DataError for unknown metrics, naming all of them."""
    unknown = [name for name in metrics if name not in METRICS]
    if unknown or not metrics:
        raise DataError(
            f"--metrics: choose among {', '.join(METRICS)}, found {', '.join(unknown) or 'none'}; "
            "correct the list"
        )


def check_lines(hyps: Sequence[str], refs: Sequence[Sequence[str]]) -> None:
    """Raise DataError if hypotheses and references do not match line for line."""
    if not refs:
        raise DataError("references: at least one is needed to score against, found none; give one")
    if not hyps:
        raise DataError("hypotheses: nothing to score, found 0 lines; give at least one line")
    numbered = {f"reference {number}": ref for number, ref in enumerate(refs, start=1)}
    check_counts({"the text of the hypotheses": hyps, **numbered})


def check_counts(texts: Mapping[str, Sequence[str]]) -> None:
    """Raise DataError if files do not match line for line; keys name them in the message."""
    (first, lines), *others = texts.items()
    for name, other in others:
        if len(other) != len(lines):
            raise DataError(
                f"{name} has {len(other):,} lines, {first} has {len(lines):,}; line n of one must "
                "belong to line n of the other: check that both belong together and that no line "
                "was added, dropped or split"
            )
