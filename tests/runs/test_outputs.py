"""What a training leaves behind: files, figures, and scores that the commands reproduce."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import (
    Mt,
    metrics_of,
)

from mt.config.schema import Config
from mt.evaluation.metrics import score_corpus
from mt.model import checkpoint
from mt.training.launch import train
from mt.training.optim import learning_rate
from mt.translate.quality_flags import FLAGS


def test_the_figures_of_a_run(tiny_run: Path) -> None:
    trained, valid, test = (metrics_of(tiny_run, kind) for kind in ("train", "valid", "test"))
    assert [line["step"] for line in trained] == [50, 100, 150, 200]
    assert [line["step"] for line in valid] == [100, 200]
    assert [(line["step"], line["name"]) for line in test] == [(200, "test.src")]
    config = checkpoint.load_model(tiny_run).config
    for line in trained:
        assert line["lr"] == learning_rate(line["step"], config.optim, config.model.d_model, 200)
        assert line["perplexity"] == pytest.approx(math.exp(line["nll"]))
        assert 0 < line["padding"] < 0.2
        assert 0 <= line["waiting"] <= 1
        assert line["skipped"] == 0
        assert line["grad_norm"] > 0
        assert line["tokens_per_second"] > 0
        assert line["memory_mb"] > 100
    for line in valid:
        assert line["perplexity"] == pytest.approx(math.exp(line["nll"]))
        assert line["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a")
        assert line["valid_seconds"] > 0
    seconds = [line["seconds"] for line in trained]
    assert seconds == sorted(seconds)
    assert trained[-1]["nll"] < 0.5 * trained[0]["nll"]
    assert valid[-1]["bleu"] > 30


def test_the_files_of_a_run(tiny_run: Path) -> None:
    assert {path.name for path in tiny_run.iterdir()} == {
        ".lock", "checkpoints", "config.yaml", "manifest.json", "metrics.jsonl", "outputs",
        "samples", "store", "tokenizer.model", "train.log",
    }  # fmt: skip
    manifest = json.loads((tiny_run / "manifest.json").read_text(encoding="utf-8"))
    config = checkpoint.load_model(tiny_run).config
    assert manifest["seed"] == config.run.seed
    assert manifest["pairs"] == 2000
    assert manifest["cwd"] == str(Path.cwd())
    assert manifest["processes"] == 1
    assert [fact["lines"] for fact in manifest["test_data"].values()] == [40, 40]
    lines = {Path(name).name: fact["lines"] for name, fact in manifest["data"].items()}
    assert lines == {"train.src": 2000, "train.tgt": 2000, "valid.src": 40, "valid.tgt": 40}
    weights = checkpoint.load_weights(checkpoint.find_model(tiny_run))
    assert manifest["parameters"] == sum(tensor.numel() for tensor in weights.values())


def test_outputs_are_kept_with_what_their_scores_were_computed_from(tiny_run: Path) -> None:
    """The recorded BLEU is that of the file's outputs against its references, to the last digit."""
    (test,) = metrics_of(tiny_run, "test")
    best = max(metrics_of(tiny_run, "valid"), key=lambda line: line["bleu"])
    assert test["outputs"] == "outputs/step-00000200-test-1.jsonl"
    valid_name = f"step-{best['step']:08d}-valid.jsonl"
    names = {path.name for path in (tiny_run / "outputs").iterdir()}
    assert names == {valid_name, "step-00000200-test-1.jsonl"}
    for figures, name in ((test, test["outputs"]), (best, f"outputs/{valid_name}")):
        text = (tiny_run / name).read_text(encoding="utf-8")
        lines = [json.loads(line) for line in text.splitlines()]
        assert len(lines) == 40
        outputs, references = ([line[key] for line in lines] for key in ("output", "reference"))
        assert score_corpus(outputs, [references], ["bleu"])[0].value == figures["bleu"]
        assert all(line["score"] < 0 and set(line["flags"]) <= FLAGS.keys() for line in lines)


def test_bleu_in_training_is_what_translate_and_evaluate_find(
    tiny_run: Path,
    tiny_corpus: Path,
    tmp_path: Path,
    mt: Mt,
) -> None:
    """The same BLEU to the last digit, and the samples are lines of that output."""
    model, hyp = tiny_run / "checkpoints" / "step-00000200", tmp_path / "hyp"
    options = ["--device", "cpu", "--precision", "fp32"]
    assert (
        mt(
            "translate",
            "--model",
            model,
            *options,
            tiny_corpus / "valid.src",
            "-o",
            hyp,
        ).code
        == 0
    )
    evaluate = [
        "evaluate",
        "--hyp",
        hyp,
        "--ref",
        tiny_corpus / "valid.tgt",
        "--metrics",
        "bleu",
        "--json",
    ]
    ((score,),) = json.loads(mt(*evaluate).out).values()
    in_training = metrics_of(tiny_run, "valid")[-1]
    assert (score["value"], score["signature"]) == (in_training["bleu"], in_training["signature"])
    assert 30 < score["value"] < 100
    blocks = (tiny_run / "samples" / "step-00000200.txt").read_text(encoding="utf-8").split("\n\n")
    texts = (path.read_text(encoding="utf-8").splitlines() for path in (
        tiny_corpus / "valid.src", tiny_corpus / "valid.tgt", hyp,
    ))  # fmt: skip
    rows = list(zip(*texts, strict=True))[::5]
    assert [block.rstrip("\n") for block in blocks] == [
        f"source     {src}\nreference  {ref}\noutput     {out}" for src, ref, out in rows
    ]


def test_tests_are_scored_with_the_best_model_and_once(
    tiny_run: Path,
    tiny_corpus: Path,
    tmp_path: Path,
    mt: Mt,
) -> None:
    options = ["--device", "cpu", "--precision", "fp32", "--metrics", "bleu", "--json"]
    files = ["--src", tiny_corpus / "test.src", "--ref", tiny_corpus / "test.tgt"]
    ended = mt("evaluate", "--model", tiny_run, *files, *options)
    ((score,),) = json.loads(ended.out).values()
    (line,) = metrics_of(tiny_run, "test")
    assert (score["value"], score["signature"]) == (line["bleu"], line["signature"])
    run = tmp_path / "run"
    shutil.copytree(tiny_run, run, symlinks=True)
    before = (run / "metrics.jsonl").read_text()
    train(checkpoint.load_model(run).config, run, "cpu")
    assert (run / "metrics.jsonl").read_text() == before


def test_each_test_text_is_scored_once_and_under_a_name_of_its_own(
    quick_config: Callable[..., Config], scripted_bleu: Callable[..., None], tmp_path: Path
) -> None:
    """Two references of one source; a third text is asked for when training has ended."""
    scripted_bleu(1.0)
    tests = [{"src": "test.src", "tgt": "test.tgt"}, {"src": "test.src", "tgt": "test.src"}]
    settings = {"train": {"max_steps": 1, "valid_every": 1}}
    train(quick_config(settings, data={"test": tests}), tmp_path, "cpu")
    names = ["test.src test.tgt", "test.src test.src"]
    assert [line["name"] for line in metrics_of(tmp_path, "test")] == names
    train(
        quick_config(settings, data={"test": [*tests, {"src": "valid.src", "tgt": "valid.tgt"}]}),
        tmp_path,
        "cpu",
    )
    assert [line["name"] for line in metrics_of(tmp_path, "test")] == [*names, "valid.src"]
