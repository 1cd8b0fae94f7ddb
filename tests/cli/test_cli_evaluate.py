"""`mt evaluate`: scores of files and of a model, and the message for each mistake."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from unittest import mock

import pytest
from conftest import Mt, mt_command, refused
from messages import says

from mt.errors import MtError
from mt.runs.model_folder import open_model
from mt.search.options import EngineOptions, SearchOptions


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


def test_decoding_options_reach_the_translator(mt: Mt, tiny_run: Path, tiny_corpus: Path) -> None:
    files = ["--src", tiny_corpus / "test.src", "--ref", tiny_corpus / "test.tgt"]
    search = ["--beam-size", 3, "--length-penalty", 0.5]
    execution = ["--batch-tokens", 7, "--precision", "bf16", "--device", "cuda:3"]
    with mock.patch("mt.translate.load.load_engine", side_effect=MtError("enough")) as made:
        ended = mt("evaluate", "-m", tiny_run, *files, *search, *execution)
    assert refused(ended) == "enough"
    search, engine = made.call_args.args
    assert search == SearchOptions(beam_size=3, length_penalty=0.5, with_scores=False)
    assert engine == EngineOptions(
        models=engine.models, batch_tokens=7, precision="bf16", device="cuda:3"
    )
    assert engine.folders == [open_model(tiny_run).folder]


def test_message_about_options(mt: Mt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_closed_stdin(mt: Mt, tiny_corpus: Path, tiny_run: Path) -> None:
    hyp = ["evaluate", "--hyp", "-", "--ref", tiny_corpus / "test.tgt"]
    for words in (hyp, ["translate", "-m", tiny_run]):
        assert says(refused(mt(*words, stdin=None)), "stdin", "is closed", "name an input file")


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
