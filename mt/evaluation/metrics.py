"""Corpus scores from sacreBLEU, with the signatures that make them comparable.

Hypotheses are detokenised and references raw. BLEU is cased, and smoothed only if an n-gram order
has no match (Post, 2018); chrF2 (Popović, 2015); TER (Snover et al., 2006).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mt.errors import DataError
from mt.evaluation.bleu_tokenizer import DEFAULT

# So many hypotheses that end in " ." must be tokenised; sacreBLEU warns at the same count.
TOKENISED_LINES = 100
# Characters between spaces, on average, from which on a text must be one that has no spaces.
UNSPACED = 15


@dataclass(frozen=True)
class Score:
    """A metric over a corpus. BLEU and chrF: 0 to 100, higher is better; TER: lower is better."""

    name: str
    value: float
    signature: str
    detail: str = ""
    note: str = ""  # why the value may mislead


def score_corpus(
    hyps: Sequence[str],
    refs: Sequence[Sequence[str]],
    metrics: Sequence[str] = ("bleu", "chrf", "ter"),
    tokenize: str = DEFAULT,
) -> list[Score]:
    """One score per metric, in their order.

    `refs`: one or more whole reference translations, each with one line per hypothesis. `tokenize`:
    sacreBLEU's tokenizer for BLEU (`bleu_tokenizer.choose_tokenizer`). Raises DataError for an
    unknown metric, for no lines, and for line counts that differ.
    """
    check_metrics(metrics)
    check_lines(hyps, refs)
    return [
        bleu(hyps, refs, tokenize) if name == "bleu" else METRICS[name](hyps, refs)
        for name in metrics
    ]


def check_metrics(metrics: Sequence[str]) -> None:
    """Raise DataError for unknown metrics, naming all of them."""
    unknown = [name for name in metrics if name not in NAMES]
    if unknown or not metrics:
        raise DataError(
            f"--metrics: choose among {', '.join(NAMES)}, found {', '.join(unknown) or 'none'}; "
            "correct the list"
        )


def check_lines(hyps: Sequence[str], refs: Sequence[Sequence[str]]) -> None:
    """Raise DataError if hypotheses and references do not match line for line."""
    if not refs:
        raise DataError("references: at least one is needed to score against, found none; give one")
    if not hyps:
        raise DataError("hypotheses: nothing to score, found 0 lines; give at least one line")
    for number, ref in enumerate(refs, start=1):
        if len(ref) != len(hyps):
            raise DataError(
                f"reference {number} has {len(ref):,} lines, the hypotheses have {len(hyps):,}; "
                "each hypothesis needs the reference of the same line: check that both belong "
                "together and that no line was added, dropped or split"
            )


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


def sacrebleu_metric(
    name: str, tokenize: str = DEFAULT, refs: Sequence[Sequence[str]] | None = None
) -> Any:
    """A metric object of sacreBLEU: `name` is bleu, chrf or ter; `tokenize` is for BLEU.

    With `refs` it keeps their n-grams, and scores hypotheses against None.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    if name == "bleu":
        # `force`: tokenised lines are reported in a note, instead of in sacreBLEU's log.
        return BLEU(tokenize=tokenize, smooth_method="exp", force=True, references=refs)
    return CHRF(references=refs) if name == "chrf" else TER(references=refs)


def bleu(hyps: Sequence[str], refs: Sequence[Sequence[str]], tokenize: str = DEFAULT) -> Score:
    """Geometric mean of the 1- to 4-gram precisions times the brevity penalty."""
    metric = sacrebleu_metric("bleu", tokenize)
    result = metric.corpus_score(hyps, refs)
    precisions = "/".join(f"{precision:.1f}" for precision in result.precisions)
    detail = (
        f"precisions {precisions}, brevity penalty {result.bp:.3f}, "
        f"length {result.sys_len:,} against {result.ref_len:,}"
    )
    note = _bleu_note(hyps, refs, tokenize, has_4_grams=result.totals[3] > 0)
    value = min(result.score, 100.0)  # rounding may leave 100.00000000000004
    return Score(result.name, value, str(metric.get_signature()), detail, note)


def _bleu_note(
    hyps: Sequence[str], refs: Sequence[Sequence[str]], tokenize: str, has_4_grams: bool
) -> str:
    """Why a BLEU over these texts may mislead; empty if there is no reason."""
    words = [word for ref in refs for line in ref for word in line.split()]
    if tokenize in ("13a", "intl", "none") and sum(map(len, words)) > UNSPACED * len(words):
        return (
            f"the references have hardly any spaces, and the tokenizer {tokenize} splits at "
            "spaces; choose the language's own, or char"
        )
    if not has_4_grams:
        return "no hypothesis has four words, so BLEU is 0 whatever they are"
    n_tokenised = sum(line.endswith(" .") for line in hyps)
    if n_tokenised >= TOKENISED_LINES:
        return (
            f'{n_tokenised:,} of {len(hyps):,} hypotheses end in " .": they look tokenised; '
            "only scores over detokenised text can be compared"
        )
    return ""


def chrf(hyps: Sequence[str], refs: Sequence[Sequence[str]]) -> Score:
    """F2 over character 1- to 6-grams."""
    metric = sacrebleu_metric("chrf")
    result = metric.corpus_score(hyps, refs)
    return Score(result.name, min(result.score, 100.0), str(metric.get_signature()))


def ter(hyps: Sequence[str], refs: Sequence[Sequence[str]]) -> Score:
    """Word edits, a shift of a phrase being one, per 100 reference words."""
    metric = sacrebleu_metric("ter")
    result = metric.corpus_score(hyps, refs)
    detail = f"{result.num_edits:,} edits, {result.ref_length:,.1f} reference words"
    return Score(result.name, result.score, str(metric.get_signature()), detail)


# Of them, those of sacreBLEU have an object with statistics of each line, see `significance`.
SACREBLEU = ("bleu", "chrf", "ter")

METRICS: dict[str, Callable[[Sequence[str], Sequence[Sequence[str]]], Score]] = {
    "bleu": bleu,
    "chrf": chrf,
    "ter": ter,
}

# All that `mt evaluate --metrics` knows; COMET also reads the source, see `comet`.
NAMES = (*METRICS, "comet")
