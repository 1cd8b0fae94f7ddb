"""`mt evaluate`: scores of files, of a model and of several systems; tables and messages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Ended, MonkeyPatch, Mt, lines_of, mt_command, refused, write_lines
from corpora import damaged
from messages import says
from model_files import changed_meta, copy_model

from mt.evaluation.differences import differing_words, largest_differences

METRICS = ("bleu", "chrf", "ter")
SRC, REF = (lines_of(ROOT / "data" / "demo" / f"test.{side}")[:120] for side in ("de", "en"))


def test_scores_of_translations(mt: Mt, tiny_corpus: Path) -> None:
    target, other = tiny_corpus / "test.tgt", tiny_corpus / "test.src"
    ended = mt("evaluate", "--hyp", target, "--ref", target)
    assert (ended.code, ended.err) == (0, "")
    found = [line.split()[:2] for line in ended.lines]
    assert found == [["BLEU", "100.00"], ["chrF2", "100.00"], ["TER", "0.00"]]
    assert "tok:13a" in ended.lines[0]
    systems = ["evaluate", "--hyp", target, "--hyp", other, "--ref", target]
    two = mt(*systems, "--metrics", "chrF, bleu").lines
    assert [line.split()[:3] for line in two[1:5]] == [
        ["chrF2", str(target), "100.00"],
        [str(other), two[2].split()[1], two[2].split()[2]],
        ["BLEU", str(target), "100.00"],
        [str(other), two[4].split()[1], two[4].split()[2]],
    ]
    assert two[4].endswith("  worse")
    refs = ["--ref", target, "--ref", other]
    (line,) = mt("evaluate", "--hyp", other, *refs, "--metrics", "bleu").lines
    assert line.startswith("BLEU 100.00  nrefs:2|")
    ter = ["evaluate", "--hyp", "-", "--ref", target, "--metrics", "ter"]
    assert mt(*ter, stdin=target.read_bytes()).lines[0].startswith("TER 0.00 ")


def test_scores_of_a_model(mt: Mt, tiny_run: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    source, target, out = tiny_corpus / "test.src", tiny_corpus / "test.tgt", tmp_path / "out"
    for options in (
        [],
        ["--beam-size", 1],
        ["--length-penalty", 0, "--precision", "fp32", "--device", "cpu"],
    ):
        assert mt("translate", "-m", tiny_run, source, "-o", out, *options).code == 0
        by_hand = json.loads(mt("evaluate", "--hyp", out, "--ref", target, "--json").out)
        ended = mt("evaluate", "-m", tiny_run, "--src", source, "--ref", target, "--json", *options)
        assert json.loads(ended.out) == {str(tiny_run): by_hand[str(out)]}
        assert re.fullmatch(r"mt: 40 lines in .* tokens/s\n(mt: .*\n)*", ended.err)
    scores = {score["name"]: score for score in by_hand[str(out)]}
    assert scores.keys() == {"BLEU", "chrF2", "TER"}
    assert scores["BLEU"].keys() >= {"name", "value", "signature"}


def test_message_about_options(mt: Mt, tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    contents = {"a": b"x\ny\n", "b": b"x\ny\n", "c": b"x\n", "none": b"", "latin": b"\xff\n"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    for options, parts in [
        ("", "evaluate: nothing to score … --hyp … --model … --src"),
        ("--hyp a", "evaluate: no reference … --ref"),
        ("--model m --src a", "evaluate: no reference … --ref"),
        ("--src a --ref b", "evaluate: … --model … --src … give --model"),
        ("--model m --ref b", "evaluate: … --model … --src … give --src"),
        ("--hyp a --model m --ref b", "evaluate: … give --src"),
        ("--hyp a --ref b --beam-size 2 --device cpu", "--beam-size, --device … --model … --hyp"),
        ("--hyp a --ref b --length-penalty 2", "evaluate: … --length-penalty … --model"),
        ("--hyp a --ref b --batch-tokens 2", "evaluate: … --batch-tokens … --model"),
        ("--hyp a --ref b --precision fp32", "evaluate: … --precision … --model"),
        ("--hyp - --ref -", "evaluate: … only one … - (stdin)"),
        ("--hyp a --ref -  --ref -", "evaluate: … only one … - (stdin)"),
        ("--hyp . --ref b", "--hyp: . … folder … text file"),
        ("--hyp a --ref nowhere", "--ref: … no file"),
        ("--hyp nowhere --ref b", "--hyp: … no file"),
        ("--hyp a --src nowhere --ref b", "--src: … no file"),
        ("--hyp a --ref b --metrics bleu,meteor", "--metrics: … bleu, … meteor … correct"),
        (
            "--hyp a --ref b --metrics ,",
            "--metrics: … bleu, chrf, chrf++, ter, comet … none … correct",
        ),
        ("--hyp a --ref b --metrics chrf --tokenize char", "--tokenize: … bleu … --metrics"),
        ("--hyp none --ref none", "--ref … none: has no lines"),
        ("--hyp latin --ref b", "--hyp: latin, line 1, byte 0 … ff is not UTF-8"),
        ("--hyp a --ref b --ref c", "--ref c … 1 lines, --hyp a … 2; … line n"),
        ("--hyp a --hyp c --ref b", "--hyp c … 1 lines, --hyp a … 2;"),
        ("--hyp a --src a --ref c", "--ref c … 1 lines, --hyp a … 2;"),
        ("score -m no --src - --tgt -", "--src, --tgt: … stdin"),
        ("score -m no --src nowhere --tgt a", "--src: … no file"),
        ("score -m no --src a --tgt nowhere", "--tgt: … no file"),
        ("score -m no --src a --tgt .", "--tgt: . … folder … text file"),
        ("score -m no --src a --tgt a -o a", "--output a: … --src (a)"),
    ]:
        command = options if options.startswith("score") else f"evaluate {options}"
        assert says(refused(mt(*command.split())), *parts.split(" … "))


def test_file_names_that_the_terminal_cannot_encode(tmp_path: Path) -> None:
    for name in ("größe", "plain"):
        (tmp_path / name).write_bytes(b"x\n")
    names = [tmp_path / "größe", tmp_path / "plain"]
    command, environment = mt_command(
        "evaluate", "--metrics", "chrf", "--hyp", names[0], "--hyp", names[1], "--ref", names[0]
    )
    environment |= {"PYTHONIOENCODING": "ascii"}
    ended = subprocess.run(command, env=environment, capture_output=True, check=True)
    assert rb"gr\xf6\xdfe" in ended.stdout


# --- several systems and test sets --------------------------------------------------------------


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: MonkeyPatch) -> Path:
    """In the current folder: a and c are alike, b has 30 more wrong words; two references."""
    monkeypatch.chdir(tmp_path)
    for name, lines in (
        ("a", damaged(REF, range(0, 40))), ("b", damaged(REF, range(0, 70))),
        ("c", damaged(REF, range(1, 41))), ("ref", REF),
        ("ref2", damaged(REF, range(0, 120, 3), word="other")), ("src", SRC),
    ):  # fmt: skip
        write_lines(tmp_path / name, lines)
    return tmp_path


def sacrebleu(*arguments: str) -> str:
    command = [sys.executable, "-m", "sacrebleu", "ref", "ref2", *arguments, "-m", *METRICS]
    environment = os.environ | {"NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(command, env=environment, capture_output=True, check=True).stdout.decode()


def test_figures_are_those_of_sacrebleu(mt: Mt, texts: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", "77")  # of the other command
    refs, seed = ["--ref", "ref", "--ref", "ref2"], ["--seed", "77"]
    hyps = ["--hyp", "a", "--hyp", "b", "--hyp", "c"]
    three = json.loads(mt("evaluate", *hyps, *refs, *seed, "--resamples", "60", "--json").out)
    # Its JSON ends in a TypeError with chrF.
    paired = ["--paired-bs", "--paired-bs-n", "60"]
    table = sacrebleu("-i", "a", "b", "c", *paired, "-w", "9", "-f", "latex")
    for system in "bc":
        (row,) = re.findall(rf"^ *{system} +& (.*) \\\\$", table, re.MULTILINE)
        for ours, cell in zip(three[system], row.split("&"), strict=True):
            found = ours["paired_bs"]
            interval = f"({found['mean']:.9f} ± {found['half_width']:.9f})"
            p_value = f"(p = {found['p_value']:.4f})"
            assert cell.strip().rstrip("*") == f"{ours['value']:.9f} {interval} {p_value}"
            assert "|bs:60|seed:77|" in found["signature"]
            assert found["signature"] in table
    # The interval of one system, as text; and the whole signature.
    one = ["evaluate", "--hyp", "b", *refs, *seed, "--confidence", "--resamples", "50"]
    lines = mt(*one).lines
    options = ["--confidence", "--confidence-n", "50", "-w", "2", "-f", "json"]
    theirs = {row["name"]: row for row in json.loads(sacrebleu("-i", "b", *options))}
    for line in lines:
        row = theirs[line.split()[0]]
        assert line.split(maxsplit=1)[1] == (
            f"{row['score']:.2f} (μ = {row['confidence_mean']:.2f} ± {row['confidence_var']:.2f})"
            f"  {row['signature']}"
        )
    assert len(lines) == len(theirs) == 3


def test_the_table_says_which_differences_are_real(mt: Mt, texts: Path) -> None:
    systems = ["--hyp", "base=a", "--hyp", "b", "--hyp", "c", "--hyp", "copy=a"]
    options = ["--metrics", "bleu,ter", "--confidence", "--resamples", 200]
    ended = mt("evaluate", *systems, "--ref", "ref", *options)
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
    assert "\nbetter, worse: than base, p < 0.05, 6 lines or more differ; may be" in text
    assert "\n95 % interval: bootstrap, 200 resamples, seed 12345\n" in text
    assert "\np (bootstrap): paired bootstrap, 200 resamples, seed 12345\n" in text
    assert "\nTER|nrefs:1|case:lc|tok:tercom|" in text
    # The other way round what is worse becomes better.
    ended = mt("evaluate", "--hyp", "b", "--hyp", "a", "--ref", "ref", "--metrics", "bleu")
    assert re.search(r"^BLEU +b +[\d.]+\n +a .* better\n", ended.out.decode(), re.MULTILINE)


def test_the_json_of_two_systems_and_the_line_of_one(mt: Mt, texts: Path) -> None:
    plain = ["evaluate", "--hyp", "a", "--hyp", "b", "--ref", "ref", "--resamples", 20, "--json"]
    tree = json.loads(mt(*plain).out)
    keys = ["name", "value", "signature", "detail", "note"]
    for system, more in (("a", []), ("b", ["paired_bs", "verdict"])):
        assert [list(score) for score in tree[system]] == [keys + more] * 3
    # A metric named twice is computed once.
    one = mt("evaluate", "--hyp", "a", "--ref", "ref", "--metrics", "bleu,BLEU").lines
    assert one == [f"BLEU {tree['a'][0]['value']:.2f}  {tree['a'][0]['signature']}"]
    normal = ["--metrics", "bleu", "--normalize", "nfc"]
    assert mt("evaluate", "--hyp", "a", "--ref", "ref", *normal).lines == [f"{one[0]}|unicode:nfc"]


def test_differences_as_text_and_json(mt: Mt, texts: Path) -> None:
    options = ["evaluate", "--hyp", "a", "--hyp", "b", "--ref", "ref", "--src", "src"]
    options += ["--metrics", "chrf"]
    shown = json.loads(mt(*options, "--differences", 3, "--json").out)["differences"]
    same = ["evaluate", "--hyp", "a", "--hyp", "a2=a", "--ref", "ref", "--differences", 3, "--json"]
    assert json.loads(mt(*same).out)["differences"] == []
    assert [line["systems"][1]["chrf"] < line["systems"][0]["chrf"] for line in shown] == [True] * 3
    for line in shown:
        assert line["source"] == SRC[line["line"] - 1]
        for system in line["systems"]:
            assert [system["text"][a:b] for a, b in system["differs"]].count("else") <= 1
    table = mt(*options, "--differences", 1).out.decode()
    assert re.search(r"\n  a {10}\S.*\[-.*-\].*\n  b .*\{\+else\+\}", table)


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
    assert [one.line for one in largest_differences(base, system, [ref], 3)] == [4, 1, 2]


def test_models_that_score_differently_are_refused(mt: Mt, tiny_run: Path, tmp_path: Path) -> None:
    other = copy_model(tiny_run, tmp_path / "other")
    with changed_meta(other) as meta:
        meta["config"]["data"]["tgt_lang"] = "ja"
    test = ["--src", tiny_run / "config.yaml", "--ref", tiny_run / "config.yaml"]
    message = refused(mt("evaluate", "-m", tiny_run, "-m", other, *test))
    assert says(message, f"{tiny_run} en, auto; {other} ja, auto", "--tgt-lang", "--tokenize")


def test_models_beside_files_and_on_the_test_sets_of_their_config(
    mt: Mt, tiny_run: Path, tiny_corpus: Path
) -> None:
    files = ["--src", tiny_corpus / "test.src", "--ref", tiny_corpus / "test.tgt"]
    model = ["--model", f"M={tiny_run}", "--beam-size", 1, "--metrics", "chrf", "--json"]
    ended = mt("evaluate", *model, "--hyp", f"copy={tiny_corpus}/test.tgt", *files)
    assert re.search(r"^mt: M: 40 lines in .* tokens/s$", ended.err, re.MULTILINE)
    tree = json.loads(ended.out)
    assert [score["value"] for score in tree["copy"]] == [100]
    assert [score["verdict"] for score in tree["M"]] == ["worse"]
    # Without texts on the command line those of the config: here test.src and test.tgt.
    (score,) = json.loads(mt("evaluate", *model).out)["M"]
    assert score["test_set"] == "test.src"
    assert score["value"] == tree["M"][0]["value"]
    assert mt("evaluate", *model[:-1]).lines[0] == "test.src: 40 lines"


def test_messages(mt: Mt, texts: Path) -> None:
    for options, parts in [
        ("--hyp a --hyp a --ref ref", "evaluate: … two … called a … NAME=a"),
        ("--hyp a --ref ref --differences 2", "--differences: … another --hyp or --model"),
        (
            "--hyp differences=a --hyp b --ref ref --differences 2 --json",
            "--differences: … `differences` … --json … rename … NAME=differences",
        ),
        ("--hyp a --ref ref --seed 3", "--seed: … --confidence … several systems"),
        ("--hyp a --ref ref --resamples 20", "--resamples: … --confidence … several systems"),
        ("--model m", "--model m: … run directory"),
        ("--hyp - --ref -", "only one … - (stdin)"),
    ]:
        assert says(refused(mt("evaluate", *options.split())), *parts.split(" … "))


def test_lines_without_a_reference_are_not_scored(mt: Mt, tiny_run: Path, tmp_path: Path) -> None:
    """Sources and all systems lose them too; of two references one is enough."""
    texts = {
        "hyp": ["a b c d", "x", "a b c d e"], "other": ["a b c d", "y", "e"],
        "ref": ["a b c d", "\u3164", "a b c d e"], "src": ["ein", "zwei", "drei"],
        "second": ["a b c", "x", "a b"],
    }  # fmt: skip
    for name, lines in texts.items():
        write_lines(tmp_path / name, lines)
        write_lines(tmp_path / f"{name}2", [lines[0], lines[2]])

    def evaluated(suffix: str, *more: object) -> Ended:
        names = {f"--{name}": tmp_path / f"{name}{suffix}" for name in ("ref", "src")}
        files = [f"h={tmp_path}/hyp{suffix}", "--hyp", f"o={tmp_path}/other{suffix}"]
        options = [word for pair in names.items() for word in pair]
        return mt("evaluate", "--hyp", *files, *options, "--json", *more)

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
    named = {"src_lang": "de", "tgt_lang": "zh"}
    model = of_both_directions(tiny_run, tmp_path / "named", named, src_lang="src", tgt_lang="tgt")
    assert b"tok:zh" in mt("evaluate", "-m", model, "--metrics", "bleu", *files).out


def test_a_model_of_other_source_languages_is_refused(
    tiny_run: Path, mt: Mt, tmp_path: Path
) -> None:
    texts = [{"src": "test.src", "tgt": "test.tgt", "src_lang": code} for code in ("de", "fr")]
    with changed_meta(copy_model(tiny_run, tmp_path / "model")) as meta:
        meta["config"]["data"] |= {"train": texts, "test": texts}
    ended = mt("evaluate", "-m", tmp_path / "model", "-m", tiny_run, "--metrics", "chrf")
    assert says(refused(ended), "--from", "translates from (de)", "found fr")


def test_an_unknown_target_language_is_refused(tiny_run: Path, tiny_corpus: Path, mt: Mt) -> None:
    files = ["--src", tiny_corpus / "test.src", "--ref", tiny_corpus / "test.tgt", "--to", "fr"]
    assert says(refused(mt("evaluate", "-m", tiny_run, *files)), "--to", "en", "found fr")


def test_texts_of_a_config_need_no_languages(tiny_run: Path, mt: Mt, tmp_path: Path) -> None:
    own = {"src_lang": "de", "tgt_lang": "en"}
    unnamed = {"src_lang": "src", "tgt_lang": "tgt"}
    model = of_both_directions(tiny_run, tmp_path / "model", own, **unnamed)
    assert mt("evaluate", "-m", model, "--metrics", "chrf").code == 0
