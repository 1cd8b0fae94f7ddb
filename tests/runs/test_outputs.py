"""What a training leaves behind: files, figures, and scores that the commands reproduce."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Mt, QuickConfig, config_of, lines_of, metrics_of, write_lines
from scores import score_corpus

from mt.interop.exporter import model_card
from mt.model import checkpoint
from mt.report.run_summary import read_run
from mt.report.scores import score_run
from mt.runs import model_folder
from mt.runs.records import Sentence, read_test_sentences, write_test_outputs
from mt.training.launch import train
from mt.training.update import learning_rate
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
        "samples", "settled.json", "store", "tokenizer.model", "train.log", "writing.json",
    }  # fmt: skip
    manifest = json.loads((tiny_run / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["seed"] == checkpoint.load_model(tiny_run).config.run.seed
    assert manifest["pairs"] == 2000
    assert manifest["cwd"] == str(Path.cwd())
    assert manifest["processes"] == 1
    assert [record["lines"] for record in manifest["test_data"].values()] == [40, 40]
    lines = {Path(name).name: record["lines"] for name, record in manifest["data"].items()}
    assert lines == {"train.src": 2000, "train.tgt": 2000, "valid.src": 40, "valid.tgt": 40}
    weights = checkpoint.load_weights(model_folder.find_model(tiny_run))
    assert manifest["parameters"] == sum(tensor.numel() for tensor in weights.values())


def test_outputs_are_kept_with_what_their_scores_were_computed_from(tiny_run: Path) -> None:
    """The recorded BLEU is that of the file's outputs against its references, to the last digit."""
    (test,) = metrics_of(tiny_run, "test")
    best = max(metrics_of(tiny_run, "valid"), key=lambda line: line["bleu"])
    assert test["outputs"] == "outputs/step-00000200-test-1.jsonl"
    valid_name = f"step-{best['step']:08d}-valid.jsonl"
    names = {path.name for path in (tiny_run / "outputs").iterdir()}
    earlier = "step-00000100-valid.jsonl"  # the best one until the first checkpoint
    assert names == {earlier, valid_name, "step-00000200-test-1.jsonl"}
    for figures, name in ((test, test["outputs"]), (best, f"outputs/{valid_name}")):
        text = (tiny_run / name).read_text(encoding="utf-8")
        lines = [json.loads(line) for line in text.splitlines()]
        assert len(lines) == 40
        outputs, references = ([line[key] for line in lines] for key in ("output", "reference"))
        assert score_corpus(outputs, [references], ["bleu"])[0].value == figures["bleu"]
        assert all(line["score"] < 0 and set(line["flags"]) <= FLAGS.keys() for line in lines)


def test_scores_of_training_are_what_the_commands_find(
    tiny_run: Path, tiny_corpus: Path, tmp_path: Path, mt: Mt
) -> None:
    model, hyp = tiny_run / "checkpoints" / "step-00000200", tmp_path / "hyp"
    options = ("--device", "cpu", "--precision", "fp32")
    bleu = ("--metrics", "bleu", "--json")
    src, ref = tiny_corpus / "valid.src", tiny_corpus / "valid.tgt"
    assert mt("translate", "--model", model, *options, src, "-o", hyp).code == 0
    ((valid,),) = json.loads(mt("evaluate", "--hyp", hyp, "--ref", ref, *bleu).out).values()
    assert 30 < valid["value"] < 100
    files = ("--src", tiny_corpus / "test.src", "--ref", tiny_corpus / "test.tgt")
    ended = mt("evaluate", "--model", tiny_run, *files, *options, *bleu)
    ((test,),) = json.loads(ended.out).values()
    for score, kind in ((valid, "valid"), (test, "test")):
        recorded = metrics_of(tiny_run, kind)[-1]
        assert (score["value"], score["signature"]) == (recorded["bleu"], recorded["signature"])
    samples = [*zip(*(lines_of(path) for path in (src, ref, hyp)), strict=True)][::5]
    blocks = [f"source     {s}\nreference  {r}\noutput     {o}\n" for s, r, o in samples]
    path = tiny_run / "samples" / "step-00000200.txt"
    assert path.read_text(encoding="utf-8") == "\n".join(blocks)


def test_a_test_text_is_scored_as_users_translate_it_and_so_in_report_and_card(
    copied_run: Path, tiny_corpus: Path, tmp_path: Path, mt: Mt
) -> None:
    """Lines in capitals, which the training text does not have; a file that was cut short."""
    capitals = {side: tmp_path / f"capitals.{side}" for side in ("src", "tgt")}
    for side, path in capitals.items():
        write_lines(path, [line.upper() for line in lines_of(tiny_corpus / f"test.{side}")])
    test = [{side: str(path) for side, path in capitals.items()}]
    config = config_of(model_folder.open_model(copied_run).config.model_dump(), data={"test": test})
    train(config, copied_run, "cpu")
    recorded = metrics_of(copied_run, "test")[-1]
    options = ("--device", "cpu", "--precision", "fp32", "--metrics", "bleu", "--json")
    files = ("--src", capitals["src"], "--ref", capitals["tgt"])
    scores = {}
    for how in ((), ("--as-written",)):
        ended = mt("evaluate", "--model", copied_run, *files, *options, *how)
        scores[how] = json.loads(ended.out).popitem()[1][0]["value"]
    assert scores["--as-written",] < 5 < 30 < scores[()] == recorded["bleu"]
    assert f"{scores[()]:.2f}" in model_card(checkpoint.load_model(copied_run), "")
    outputs = copied_run / recorded["outputs"]
    for cut in (False, True):
        if cut:
            write_lines(outputs, lines_of(outputs)[:-3])
        run = read_run(copied_run, "")
        assert score_run(run)[-2].bleu.score.value == scores[()]
        assert any("37 of 40 outputs can be read" in text for text in run.remarks) == cut


def test_each_test_text_is_scored_once_and_under_a_name_of_its_own(
    quick_config: QuickConfig, scripted_validations: Callable[..., None], tmp_path: Path
) -> None:
    scripted_validations(1.0)
    settings = {"train": {"max_steps": 1, "valid_every": 1}}
    tests = [{"src": "test.src", "tgt": tgt} for tgt in ("test.tgt", "test.src")]
    names = ["test.src (data.test[0])", "test.src (data.test[1])"]
    more = {"src": "valid.src", "tgt": "valid.tgt"}
    asked = [(tests, names), (tests, names), ([*tests, more], [*names, "valid.src"])]
    asked.append(([more, tests[0]], [*names, "valid.src", "test.src"]))
    for texts, scored in asked:
        train(quick_config(settings, data={"test": texts}), tmp_path, "cpu")
        lines = metrics_of(tmp_path, "test")
        assert [line["name"] for line in lines] == scored
        assert len({line["outputs"] for line in lines}) == len(lines), "each has its own file"


def test_tests_are_scored_again_for_another_best_model_a_new_metric_or_other_references(
    quick_config: QuickConfig, scripted_validations: Callable[..., None], tmp_path: Path
) -> None:
    """By BLEU update 1 is the best; scores of a metric that comes later begin with update 2."""
    scripted_validations(5.0, 1.0, 1.0, 1.0)
    for metric, best in (("bleu", 1), ("nll", 2), ("chrf", 2)):
        settings = {"max_steps": 2, "valid_every": 1, "metric": metric}
        train(quick_config(train=settings), tmp_path, "cpu")
        assert read_run(tmp_path, "").scored[0].step == best
        assert f"| test.src | {best} | bleu |" in model_card(checkpoint.load_model(tmp_path), "")
    for refs in ("test.src", "test.tgt", "test.tgt"):  # the last score is that of a report
        other = {"test": {"src": "test.src", "tgt": refs}}
        train(quick_config(train=settings, data=other), tmp_path, "cpu")
    lines = [(line["model_step"], "chrf" in line) for line in metrics_of(tmp_path, "test")]
    assert lines == [(1, False), (2, False), (2, True), (2, True), (2, True)]


def test_outputs_are_read_from_their_own_folder_only(tmp_path: Path) -> None:
    """The metrics of a stranger may name any file."""
    name = write_test_outputs(tmp_path, 7, [Sentence("s", "r", "o")])
    assert read_test_sentences(tmp_path, name, 5) == [Sentence("s", "r", "o")]
    for other in ("outputs/../" + name, str(tmp_path / name), None, 3):
        assert read_test_sentences(tmp_path, other, 5) == []
