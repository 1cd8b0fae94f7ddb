"""Test sets as people write them: what capitals, typos or emoji cost a system."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random

from mt.data.tokens import noise
from mt.evaluation.significance import SEED
from mt.evaluation.systems import EvaluationSet

PLAIN = "plain"
# Percentages of the words that are changed: three, as a slope says more than a point.
RATES = (5, 15, 30)
# Changes a source and its references, given their languages.
Change = Callable[[Sequence[str], Sequence[str], Random], Sequence[str]]


def _each(
    function: Callable[[str, str], str], texts: Sequence[str], languages: Sequence[str], _: Random
) -> list[str]:
    return [function(*pair) for pair in zip(texts, languages, strict=True)]


def _typos(rate: int, texts: Sequence[str], languages: Sequence[str], random: Random) -> list[str]:
    return [noise.typos(texts[0], languages[0], rate / 100, random), *texts[1:]]


def _noise(rate: int, texts: Sequence[str], _: Sequence[str], random: Random) -> list[str]:
    return [noise.stray_characters(texts[0], rate / 100, random), *texts[1:]]


def _emoji(texts: Sequence[str], _: Sequence[str], random: Random) -> list[str]:
    marked = zip(texts, noise.add_mark(texts, random), strict=True)
    return [new if text.strip() else text for text, new in marked]  # a missing one stays missing


CHANGES: dict[str, Change] = {
    PLAIN: lambda texts, *_: texts,
    "caps": partial(_each, noise.upper_case),
    "title": partial(_each, noise.title_case),
    "lower": partial(_each, noise.lower_case),
    "no-final-stop": partial(_each, lambda text, _: noise.without_final_stop(text)),
    **{f"typos {rate} %": partial(_typos, rate) for rate in RATES},
    **{f"noise {rate} %": partial(_noise, rate) for rate in RATES},
    "emoji": _emoji,
}
KINDS = list(dict.fromkeys(name.split()[0] for name in CHANGES))[1:]


def perturb(
    data: EvaluationSet, change: str, languages: tuple[str, str], seed: int = SEED
) -> EvaluationSet:
    """Return the test set with one of `CHANGES`, a pure function of the seed.

    Case, final stops and emoji change sources and references, typos and noise the sources only.
    `languages`: of source and target.
    """
    codes = [languages[0], *[languages[1]] * len(data.refs)]
    rows = [
        CHANGES[change](texts, codes, Random(f"{seed} {change} {number}"))
        for number, texts in enumerate(zip(data.sources or [], *data.refs, strict=True))
    ]
    sources, *refs = ([row[column] for row in rows] for column in range(len(codes)))
    name = ", ".join(filter(None, [data.name, change]))
    return replace(data, name=name, sources=sources, refs=refs)


def perturbations(
    data: EvaluationSet, kinds: Sequence[str], languages: tuple[str, str], seed: int = SEED
) -> dict[str, EvaluationSet]:
    """The plain test set and its perturbations, which `evaluate_systems` compares line by line."""
    names = [name for kind in [PLAIN, *kinds] for name in CHANGES if name.split()[0] == kind]
    return {name: perturb(data, name, languages, seed) for name in names}
