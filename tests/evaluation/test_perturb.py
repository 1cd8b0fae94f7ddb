"""Perturbed test sets, and what they cost: by hand, by the paired test, and by `mt evaluate`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from conftest import Mt, lines_of, refused, write_lines
from messages import says
from scores import score_corpus

from mt.evaluation.perturb import perturb, perturbations
from mt.evaluation.systems import EvaluationSet, Settings, evaluate_systems
from mt.evaluation.table import format_evaluation
from mt.search.options import EngineOptions, SearchOptions
from mt.translate.load import load_translator

SOURCES = ["Ein großer Mann geht schnell heim.", "Zwei kleine Hunde!", "Wer läuft dort drüben?"]
REFS = [["A tall man walks home.", "Two dogs!", "Who?"], ["A man goes.", "", "Who is it?"]]
DE_EN = ("de", "en")


@pytest.mark.parametrize(
    ("kind", "source", "ref"),
    [
        ("caps", "EIN GROSSER MANN GEHT SCHNELL HEIM.", "A TALL MAN WALKS HOME."),
        ("title", "Ein Großer Mann Geht Schnell Heim.", "A Tall Man Walks Home."),
        ("lower", "ein großer mann geht schnell heim.", "a tall man walks home."),
        ("no-final-stop", "Ein großer Mann geht schnell heim", "A tall man walks home"),
        ("emoji", "Ein großer Mann geht schnell heim.", "A tall man walks home."),
    ],
)
def test_both_sides_are_changed(kind: str, source: str, ref: str) -> None:
    found = perturb(EvaluationSet("news", REFS, SOURCES), kind, DE_EN)
    assert found.name == f"news, {kind}"
    assert found.sources is not None
    first = found.sources[0], found.refs[0][0]
    if kind == "emoji":
        (mark,) = {*first[0].split()} - {*source.split()}
        first = first[0].replace(f" {mark}", ""), first[1].replace(f" {mark}", "")
    assert first == (source, ref)
    # A missing reference stays missing.
    assert found.refs[1][1] == ""


def test_typos_and_noise_are_in_the_source_only_and_depend_on_the_seed() -> None:
    data = EvaluationSet("", [[REFS[0][0]] * 40], [SOURCES[0]] * 40)
    for kind in ("typos", "noise"):
        changed = []
        for rate in (5, 15, 30):
            change = f"{kind} {rate} %"
            one, same, other = (perturb(data, change, DE_EN, seed) for seed in (1, 1, 2))
            assert one.refs == data.refs
            assert one == same != other
            assert len({*(one.sources or [])}) > 5  # each line is drawn by itself
            changed.append(sum(line != SOURCES[0] for line in one.sources or []))
        assert 0 < changed[0] < changed[1] < changed[2]


def test_drops_are_those_of_the_paired_bootstrap() -> None:
    refs = [f"the {word} number {number} stands here" for number, word in enumerate("abcdefgh" * 5)]
    plain = [ref.replace("stands", "sits") if n % 5 == 0 else ref for n, ref in enumerate(refs)]
    worse = [ref.replace("number", "one") if n % 3 == 0 else ref for n, ref in enumerate(plain)]
    data = EvaluationSet("", [refs], refs)
    settings = Settings(["bleu", "ter"], n_resamples=200)
    by_set = {"typos 15 %": worse, "caps": [line.upper() for line in plain]}

    sets = perturbations(data, ["typos", "caps"], DE_EN)
    outputs = {name: by_set.get(one.name, plain) for name, one in sets.items()}
    both = evaluate_systems(data, outputs, settings, sets)
    paired = evaluate_systems(data, {"plain": plain, "worse": worse}, settings).systems["worse"]
    for own, other in zip(both.systems["typos 15 %"], paired, strict=True):
        assert own.comparison is not None
        assert own.comparison == other.comparison
        assert own.comparison.verdict == "worse"
        assert 0 < own.comparison.margin < abs(own.comparison.difference)
    # The same outputs, in capitals with their references: nothing is lost.
    for nothing in both.systems["caps"]:
        assert nothing.comparison is not None
        assert nothing.comparison.difference == 0
    (row,) = re.findall("typos 15 %.*", format_evaluation(both, with_margins=True))[:1]
    assert says(row, "typos 15 %", "-", "±", "worse")


def test_evaluate_perturbs_what_a_model_translates(
    mt: Mt, tiny_run: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    src, ref = (lines_of(tiny_corpus / f"test.{side}") for side in ("src", "tgt"))
    write_lines(tmp_path / "src", src[:11])
    write_lines(tmp_path / "ref", ref[:11])
    files = ["--src", tmp_path / "src", "--ref", tmp_path / "ref", "--split-sentences", "never"]
    files.append("--as-written")
    command = ["evaluate", "--model", tiny_run, *files, "--metrics", "bleu", "--json"]
    command += ["--precision", "fp32", "--beam-size", 1, "--perturb"]
    ended = mt(*command, "caps,typos", "--resamples", 50)
    found = json.loads(ended.out)
    assert list(found) == ["plain", "caps", "typos 5 %", "typos 15 %", "typos 30 %"]
    options = EngineOptions(models=[tiny_run], precision="fp32", workers=1)
    search = SearchOptions(split_sentences="never", as_written=True, beam_size=1)
    with load_translator(search, options) as translator:
        data = perturb(EvaluationSet("", [ref[:11]], src[:11]), "caps", DE_EN)
        outputs = [one.texts[0] for one in translator.translate(data.sources or [])]
        (score,) = score_corpus(outputs, data.refs, ["bleu"])
        assert found["caps"][0]["value"] == pytest.approx(score.value)
        assert found["caps"][0]["paired_bs"]["margin"] > 0
    for seed in ([], ["--seed", 12345]):  # without a test the same is drawn
        drawn = json.loads(mt(*command, "typos", *seed).out)
        assert all(drawn[kind][0]["value"] == found[kind][0]["value"] for kind in drawn)
    assert says(ended.err, "caps: 11 lines", "typos 30 %: 11 lines")
    wrongs: list[tuple[str, list[str | int], str]] = [
        ("odd", [], "odd"),
        (",", [], "one of caps"),
        ("caps", ["--differences", 3], "not with --differences"),
    ]
    for wrong, added, part in wrongs:
        more = ["--perturb", wrong, *added]
        assert says(refused(mt("evaluate", "-m", tiny_run, *files, *more)), "--perturb", part)
