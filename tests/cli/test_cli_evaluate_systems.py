"""`mt evaluate` with several systems and test sets: sacreBLEU's figures, tables, messages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from conftest import ROOT, Ended, Mt, lines_of, refused, write_lines
from corpora import damaged
from messages import says
from model_files import changed_meta, copy_model

from mt.evaluation.differences import differing_words, largest_differences
from mt.evaluation.systems import EvaluationSet, Settings, evaluate_systems
from mt.evaluation.table import Style, format_evaluation

METRICS = ("bleu", "chrf", "ter")
SRC, REF = (lines_of(ROOT / "data" / "demo" / f"test.{side}")[:120] for side in ("de", "en"))


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the current folder: a and c are alike, b has 30 more wrong words; two references."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    for name, lines in (
        ("a", damaged(REF, range(0, 40))),
        ("b", damaged(REF, range(0, 70))),
        ("c", damaged(REF, range(1, 41))),
        ("ref", REF),
        ("ref2", damaged(REF, range(0, 120, 3), word="other")),
        ("src", SRC),
        ("domains", ["news", "law"] * 60),
    ):
        write_lines(tmp_path / name, lines)
    return tmp_path


def sacrebleu(*arguments: str) -> str:
    command = [sys.executable, "-m", "sacrebleu", "ref", "ref2", *arguments, "-m", *METRICS]
    environment = os.environ | {"NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(command, env=environment, capture_output=True, check=True).stdout.decode()


def test_figures_are_those_of_the_sacrebleu_command(
    mt: Mt, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", "77")
    refs = ["--ref", "ref", "--ref", "ref2"]
    tests = ["--paired-bs-n", "60", "--paired-ar-n", "80"]
    hyps = ["--hyp", "a", "--hyp", "b", "--hyp", "c"]
    three = json.loads(mt("evaluate", *hyps, *refs, *tests, "--json").out)
    for test, n in (("bs", 60), ("ar", 80)):
        paired = [f"--paired-{test}", f"--paired-{test}-n", str(n)]
        # Its JSON ends in a TypeError with chrF.
        table = sacrebleu("-i", "a", "b", "c", *paired, "-w", "9", "-f", "latex")
        for system in "bc":
            (row,) = re.findall(rf"^ *{system} +& (.*) \\\\$", table, re.MULTILINE)
            for ours, cell in zip(three[system], row.split("&"), strict=True):
                found = ours[f"paired_{test}"]
                interval = (
                    f" ({found['mean']:.9f} ± {found['half_width']:.9f})" if test == "bs" else ""
                )
                p_value = f"(p = {found['p_value']:.4f})"
                assert cell.strip().rstrip("*") == f"{ours['value']:.9f}{interval} {p_value}"
                assert f"|{test}:{n}|seed:77|" in found["signature"]
                assert found["signature"] in table
    # The interval of one system, as text, with as many digits; and the whole signature.
    one = ["--confidence", "--confidence-n", "50"]
    lines = mt("evaluate", "--hyp", "b", *refs, *one, "-w", "5").lines
    rows = json.loads(sacrebleu("-i", "b", *one, "-w", "5", "-f", "json"))
    theirs = {row["name"]: row for row in rows}
    for line in lines:
        row = theirs[line.split()[0]]
        assert line.split(maxsplit=1)[1] == (
            f"{row['score']:.5f} (μ = {row['confidence_mean']:.5f} ± {row['confidence_var']:.5f})"
            f"  {row['signature']}"
        )
    assert len(lines) == len(theirs) == 3


def test_the_table_says_which_differences_are_real(mt: Mt, texts: Path) -> None:
    systems = ["--hyp", "base=a", "--hyp", "b", "--hyp", "c", "--hyp", "copy=a"]
    ended = mt("evaluate", *systems, "--ref", "ref", "--metrics", "bleu,ter", "--confidence-n", 200)
    assert (ended.code, ended.err) == (0, "")
    text = ended.out.decode()
    bleu = [re.split(r"  +", line.strip()) for line in ended.lines[:5]]
    assert bleu[0] == [
        "metric", "system", "score", "95 % interval", "difference", "p (bootstrap)", "verdict",
    ]  # fmt: skip
    assert bleu[1][:2] == ["BLEU", "base"]
    assert [(row[0], row[-1]) for row in bleu[2:]] == [
        ("b", "worse"), ("c", "may be chance"), ("copy", "same score"),
    ]  # fmt: skip
    assert bleu[2][3].startswith("-")
    assert float(bleu[2][4]) < 0.05 < float(bleu[3][4])
    ter = re.split(r"  +", ended.lines[6].strip())
    assert (ter[3][0], ter[-1]) == ("+", "worse")
    assert (
        "\nbetter, worse: than base, p < 0.05 by each test, 6 lines or more differ; may be" in text
    )
    assert "\n95 % interval: bootstrap, 200 resamples, seed 12345\n" in text
    assert "\np (bootstrap): paired bootstrap, 1,000 resamples, seed 12345\n" in text
    assert "\nTER|nrefs:1|case:lc|tok:tercom|" in text
    # The other way round what is worse becomes better.
    ended = mt("evaluate", *systems, "--ref", "ref", "--baseline", "b", "--metrics", "bleu")
    assert re.search(r"^BLEU +b +[\d.]+\n +base .* better\n", ended.out.decode(), re.MULTILINE)


def test_without_tests_the_json_has_its_keys_and_one_system_its_lines(mt: Mt, texts: Path) -> None:
    plain = ["evaluate", "--hyp", "a", "--hyp", "b", "--ref", "ref", "--no-paired-bs", "--json"]
    tree = json.loads(mt(*plain).out)
    assert list(tree) == ["a", "b"]
    keys = ["name", "value", "signature", "detail", "note"]
    assert [list(score) for score in tree["a"]] == [keys] * 3
    tested = json.loads(mt(*plain[:-2], "--paired-bs-n", 20, "--json").out)
    for system, more in (("a", []), ("b", ["paired_bs", "verdict"])):
        assert [list(score) for score in tested[system]] == [keys + more] * 3
    # A metric named twice is computed once.
    one = mt("evaluate", "--hyp", "a", "--ref", "ref", "--metrics", "bleu,BLEU").lines
    assert one == [f"BLEU {tree['a'][0]['value']:.2f}  {tree['a'][0]['signature']}"]


def test_slices_and_differences_as_text_json_and_tsv(mt: Mt, texts: Path) -> None:
    options = ["evaluate", "--hyp", "a", "--hyp", "b", "--ref", "ref", "--src", "src"]
    options += ["--metrics", "chrf", "--no-paired-bs"]
    sliced = ["--slices", "length,rare", "--train-src", "src", "--domain", "domains"]
    tree = json.loads(mt(*options, *sliced, "--differences", 3, "--json").out)
    slices = tree["a"][0]["slices"]
    assert list(slices) == ["length", "rare", "domain"]
    for parts in slices.values():
        assert sum(part["lines"] for part in parts) == 120
    assert [part["slice"] for part in slices["domain"]] == ["news", "law"]
    assert "never" not in [part["slice"] for part in slices["rare"]]
    shown = tree["differences"]
    same = ["evaluate", "--hyp", "a", "--hyp", "a2=a", "--ref", "ref", "--differences", 3, "--json"]
    assert json.loads(mt(*same).out)["differences"] == []
    assert [one["systems"][1]["chrf"] < one["systems"][0]["chrf"] for one in shown] == [True] * 3
    for one in shown:
        assert one["source"] == SRC[one["line"] - 1]
        for system in one["systems"]:
            assert [system["text"][a:b] for a, b in system["differs"]].count("else") <= 1
    table = mt(*options, *sliced, "--differences", 1).out.decode()
    (law,) = re.findall(r"^chrF2 by domain\n +lines +a +b\nnews .*\n(law .*)$", table, re.MULTILINE)
    assert law.split() == ["law", "60"] + [
        f"{tree[s][0]['slices']['domain'][1]['value']:.2f}" for s in "ab"
    ]
    assert re.search(r"\n  a {10}\S.*\[-.*-\].*\n  b .*\{\+else\+\}", table)
    rows = [line.split("\t") for line in mt(*options, *sliced, "--tsv").lines]
    assert {len(row) for row in rows} == {len(rows[0])}
    cells = [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
    assert [cell["slice"] for cell in cells if cell["slice_by"] == "domain"] == ["news", "law"] * 2
    assert float(cells[0]["value"]) == tree["a"][0]["value"]


def test_differing_words_are_in_colour_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from mt.cli.evaluate import use_colour

    monkeypatch.setenv("TERM", "xterm")
    for no_colour, terminal in (("", True), ("1", True), ("", False), ("1", False)):
        monkeypatch.setenv("NO_COLOR", no_colour)
        with mock.patch.object(sys, "stdout", mock.Mock(isatty=lambda at=terminal: at)):
            assert use_colour() is (terminal and not no_colour)


def test_each_system_s_own_words_have_a_colour(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mt.cli.evaluate import _print

    found = largest_differences(["a b c d", "same"], ["a x c e", "same"], [["a b c d", "same"]], 5)
    (difference,) = found
    assert difference.spans == (((2, 3), (6, 7)), ((2, 3), (6, 7)))
    data = EvaluationSet("", [["a b c d", "same"]])
    outputs = {"p": ["a b c d", "same"], "q": ["a x c e", "same"]}
    judged = evaluate_systems(data, outputs, Settings(["chrf"], n_samples={}))
    evaluation = replace(judged, differences={"q": found})
    coloured = format_evaluation(evaluation, Style(colour=True))
    assert "p          a \033[31mb\033[0m c \033[31md\033[0m" in coloured
    assert "q          a \033[32mx\033[0m c \033[32me\033[0m" in coloured
    assert "\n1 line whose chrF differs most from p, worst for q first\n" in coloured
    _print([evaluation], Style(2, colour=True), False, False)
    assert capsys.readouterr().out == f"{coloured}\n"
    plain = format_evaluation(evaluation, Style())
    assert "p          a [-b-] c [-d-]\n  q          a {+x+} c {+e+}" in plain


def test_frequent_words_of_a_long_line_do_not_differ() -> None:
    line = "the " * 300
    assert differing_words(line, "one " + line) == ((), ((0, 3),))
    assert differing_words(line + "end", line + "stop") == (((1200, 1203),), ((1200, 1204),))


def test_a_word_with_combining_marks_differs_as_a_whole() -> None:
    assert differing_words("वह बोली।", "वह बोला।") == (((3, 7),), ((3, 7),))


def test_the_worst_loss_comes_first_and_the_largest_gain_last() -> None:
    ref = ["one two three four"] * 4
    base = ["one two three four", "x", "one two three x", "one two three four"]
    system = ["one two three x", "one two three four", "one two three four", "x"]
    lines = [one.line for one in largest_differences(base, system, [ref], 3)]
    assert lines == [4, 1, 2]


def test_models_that_score_differently_are_refused(mt: Mt, tiny_run: Path, tmp_path: Path) -> None:
    other = copy_model(tiny_run, tmp_path / "other")
    with changed_meta(other) as meta:
        meta["config"]["data"]["tgt_lang"] = "ja"
    test = ["--src", tiny_run / "config.yaml", "--ref", tiny_run / "config.yaml"]
    message = refused(mt("evaluate", "-m", tiny_run, "-m", other, *test))
    assert says(message, f"{tiny_run} en, auto; {other} ja, auto", "--tgt-lang", "--tokenize")


def test_models_and_files_on_several_test_sets(
    mt: Mt, tiny_run: Path, tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for side in ("src", "tgt"):
        lines = lines_of(tiny_corpus / f"valid.{side}")[:25]
        write_lines(Path(f"short.{side}"), lines)
    test = f"all={tiny_corpus}/test.src,{tiny_corpus}/test.tgt"
    sets = ["--test-set", test, "--test-set", "short=short.src,short.tgt"]
    sliced = ["--slices", "length,rare,unknown", "--metrics", "chrf"]
    model = ["--model", f"M={tiny_run}", "--beam-size", 1]
    copies = ["--hyp", f"copy={tiny_corpus}/test.tgt,short.tgt"]
    ended = mt("evaluate", *model, *copies, *sets, *sliced, "--json")
    for head in ("M, all: 40 lines", "M, short: 25 lines"):
        assert re.search(rf"^mt: {head} in .* tokens/s$", ended.err, re.MULTILINE)
    tree = json.loads(ended.out)
    copied = [(score["test_set"], score["value"]) for score in tree["copy"]]
    assert copied == [("all", 100), ("short", 100)]
    assert [score["verdict"] for score in tree["M"]] == ["worse"] * 2
    assert list(tree["M"][0]["slices"]) == ["length", "rare", "unknown"]
    # Without test sets on the command line those of the config: here test.src and test.tgt.
    by_config = json.loads(mt("evaluate", *model, "--metrics", "chrf", "--json").out)
    (score,) = by_config["M"]
    assert score["test_set"] == "test.src"
    assert score["value"] == tree["M"][0]["value"]
    heading = mt("evaluate", *model, "--metrics", "chrf").lines
    assert heading[0] == "test.src: 40 lines"


def test_messages(mt: Mt, texts: Path) -> None:
    (texts / "short").write_text("x\ny\n", encoding="utf-8")
    for options, parts in [
        ("--hyp a --hyp a --ref ref", "evaluate: … two … called a … NAME=a"),
        ("--hyp a --ref ref --baseline x", "--baseline: … a … x … correct"),
        ("--hyp a --ref ref --paired-ar", "--paired-ar: … another --hyp or --model"),
        ("--hyp a --ref ref --paired-bs-n 20", "--paired-bs: … another --hyp or --model"),
        ("--hyp a --ref ref --differences 2", "--differences: … another --hyp or --model"),
        ("--hyp a --hyp b --ref ref --differences 2 --tsv", "--differences: … --tsv … --json"),
        ("--hyp a --ref ref --no-paired-bs --paired-bs-n 9", "--paired-bs-n: … --paired-bs"),
        (
            "--hyp differences=a --hyp b --ref ref --differences 2 --json",
            "--differences: … `differences` … --json … rename … NAME=differences",
        ),
        ("--hyp a --ref ref --seed 3", "--seed: … --confidence … test"),
        ("--hyp a --ref ref --train-src ref", "--train-src: … --slices rare"),
        ("--hyp a --ref ref --tokenizer-of .", "--tokenizer-of: … --slices unknown"),
        ("--hyp a --ref ref --json --tsv", "--json … --tsv … one or the other"),
        ("--hyp a --ref ref --slices long,rare", "--slices: … length, rare, unknown … long"),
        ("--hyp a --ref ref --slices length", "--slices length: … --src"),
        ("--hyp a --ref ref --src src --slices rare", "--slices rare: … --train-src"),
        ("--hyp a --ref ref --src src --slices unknown", "--slices unknown: … --tokenizer-of"),
        (
            "--hyp a --ref ref --src src --slices unknown --tokenizer-of .",
            "--tokenizer-of .: … run directory",
        ),
        ("--model m --src src --ref ref --slices unknown", "--model m: … run directory"),
        ("--hyp a --ref ref --domain short", "--domain short … 2 lines, --hyp a … 120; … line n"),
        ("--hyp a --ref ref --test-set x=src,ref", "--test-set … --src … one or the other"),
        ("--hyp a --test-set x=src", "--test-set: … NAME=SRC,REF … found x=src"),
        ("--hyp a --test-set src,ref", "--test-set: … NAME=SRC,REF … found src,ref"),
        ("--hyp a --test-set x=src,nowhere", "--test-set x: … no file"),
        ("--hyp a --test-set x=src,ref --test-set x=,ref", "--test-set: … two … x … rename"),
        ("--hyp a --test-set x=src,ref --test-set y=,ref", "--hyp a: … 1 files … 2 … (x, y)"),
        (
            "--hyp a,short --test-set x=src,ref --test-set y=,ref",
            "--test-set y: ref … 120 lines, --hyp short … 2;",
        ),
        ("--model m --test-set x=,ref", "--test-set x: … source … --model … x=SRC,REF"),
        ("--model m", "--model m: … run directory"),
        ("--hyp - --test-set x=-,ref", "only one … - (stdin)"),
    ]:
        assert says(refused(mt("evaluate", *options.split())), *parts.split(" … "))


def test_messages_about_memory_and_seed(
    mt: Mt, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mock.patch("mt.evaluation.systems.resample", side_effect=MemoryError):
        ended = mt("evaluate", "--hyp", "a", "--hyp", "b", "--ref", "ref")
    assert says(refused(ended), "120 lines", "memory", "--confidence-n, --paired-bs-n", "fewer")
    monkeypatch.setenv("SACREBLEU_SEED", "dice")
    plain = ["evaluate", "--hyp", "a", "--ref", "ref", "--metrics", "chrf"]
    assert mt(*plain).code == 0  # nothing is drawn
    assert refused(mt(*plain, "--confidence")).startswith("SACREBLEU_SEED: must be a whole number")
    assert mt(*plain, "--confidence", "--confidence-n", 9, "--seed", 3).code == 0


def test_lines_without_a_reference_are_said_and_not_scored(
    mt: Mt, tiny_run: Path, tmp_path: Path
) -> None:
    """Sources, labels and all systems lose them too; of two references one is enough."""
    texts = {
        "hyp": ["a b c d", "x", "a b c d e"], "other": ["a b c d", "y", "e"],
        "ref": ["a b c d", " ", "a b c d e"], "src": ["ein", "zwei", "drei"],
        "second": ["a b c", "x", "a b"], "labels": ["law", "law", "news"],
    }  # fmt: skip
    for name, lines in texts.items():
        write_lines(tmp_path / name, lines)
        write_lines(tmp_path / f"{name}2", [lines[0], lines[2]])

    def evaluated(suffix: str, *more: object) -> Ended:
        names = {f"--{name}": tmp_path / f"{name}{suffix}" for name in ("ref", "src")}
        files = [f"h={tmp_path}/hyp{suffix}", "--hyp", f"o={tmp_path}/other{suffix}"]
        options = [word for pair in names.items() for word in pair]
        slices = ["--slices", "length", "--domain", tmp_path / f"labels{suffix}"]
        return mt("evaluate", "--hyp", *files, *options, *slices, "--json", *more)

    found, expected = evaluated(""), evaluated("2")
    assert found.out == expected.out
    assert says(found.err, "references: 1 of 3 lines have no reference", "line 2", "not scored")
    assert expected.err == ""
    line = json.loads(evaluated("", "--differences", "1").out)["differences"][0]
    assert (line["line"], line["source"]) == (3, "drei")
    assert "line 3: " in mt(
        "evaluate", "--hyp", tmp_path / "hyp", "--hyp", tmp_path / "other",
        "--ref", tmp_path / "ref", "--differences", "1",
    ).out.decode()  # fmt: skip
    assert evaluated("", "--ref", tmp_path / "second").err == ""
    write_lines(tmp_path / "blank", ["", " "])
    ended = mt("evaluate", "--hyp", tmp_path / "ref2", "--ref", tmp_path / "blank")
    assert says(refused(ended), "--ref", "blank", "2 lines", "references")
    write_lines(tmp_path / "none", [])
    ended = mt("evaluate", "-m", tiny_run, "--src", tmp_path / "none", "--ref", tmp_path / "none")
    assert says(refused(ended), "--ref", "none", "no lines", "references")
    write_lines(tmp_path / "long", ["eins", "zwei drei " * 60])
    write_lines(tmp_path / "late", ["", "two"])
    files = ["--src", tmp_path / "long", "--ref", tmp_path / "late"]
    assert says(mt("evaluate", "--model", tiny_run, *files).err, "in pieces: line 2")


# --- languages --------------------------------------------------------------------------------


def of_both_directions(tiny_run: Path, folder: Path, text: dict[str, Any], **data: Any) -> Path:
    """The tiny model, as if it had been trained on `text` both ways."""
    text |= {"src": "train.src", "tgt": "train.tgt"}
    with changed_meta(copy_model(tiny_run, folder)) as meta:
        meta["config"]["data"] |= data | {"train": [text, text | {"reverse": True}]}
    return folder


def test_scores_are_of_the_language_that_from_tells(
    tiny_run: Path, tiny_corpus: Path, mt: Mt, tmp_path: Path
) -> None:
    """BLEU of Chinese has a tokenizer of its own."""
    model = of_both_directions(tiny_run, tmp_path / "model", {}, tgt_lang="zh")
    files = ["--src", tiny_corpus / "test.src", "--ref", tiny_corpus / "test.tgt"]
    for source, tokenizer in (("de", "tok:zh"), ("zh", "tok:13a")):
        command = ["evaluate", "-m", model, "--metrics", "bleu", *files, "--from", source]
        assert tokenizer in mt(*command).out.decode()
    # Rare are words of the side that the model reads.
    files = ["--src", tiny_corpus / "test.tgt", "--ref", tiny_corpus / "test.src"]
    for source, label in (("zh", "100 or more"), ("de", "never")):
        command = ["evaluate", "-m", model, *files, "--from", source, "--slices", "rare", "--json"]
        slices = json.loads(mt(*command).out)[str(model)][0]["slices"]["rare"]
        assert [part["slice"] for part in slices] == [label]


def test_an_unknown_target_language_is_refused(tiny_run: Path, tiny_corpus: Path, mt: Mt) -> None:
    files = ["--src", tiny_corpus / "test.src", "--ref", tiny_corpus / "test.tgt", "--to", "fr"]
    assert says(refused(mt("evaluate", "-m", tiny_run, *files)), "--to", "en", "found fr")


def test_texts_of_a_config_need_no_languages(tiny_run: Path, mt: Mt, tmp_path: Path) -> None:
    own = {"src_lang": "de", "tgt_lang": "en"}
    unnamed = {"src_lang": "src", "tgt_lang": "tgt"}
    model = of_both_directions(tiny_run, tmp_path / "model", own, **unnamed)
    assert mt("evaluate", "-m", model, "--metrics", "chrf").code == 0
