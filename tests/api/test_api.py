"""The Python API: what it gives, what it says, what it does not print."""

from __future__ import annotations

import inspect
import math
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pytest
import yaml
from conftest import QUICK, ROOT, Mapped, MonkeyPatch, Mt, lines_of, merged, weights_of
from messages import raises_saying

import mt as typed
from mt.config.load import as_settings

package: Any = typed  # some tests give it what its types forbid
PAGE = (ROOT / "mt" / "api.md").read_text(encoding="utf-8")
RECIPES = re.findall(r"^#+ (.+?)\n\n```python\n(.+?)```", PAGE, re.MULTILINE | re.DOTALL)


SHORT = {"train.max_steps": 2, "optim.warmup_steps": 1}


@pytest.fixture
def here(tiny_run: Path, tiny_mapping: Mapped, tmp_path: Path, monkeypatch: MonkeyPatch) -> Path:
    """A folder with `runs/tiny` and a `tiny.yaml` of its own, in which the test runs."""
    shutil.copytree(tiny_run, tmp_path / "runs" / "tiny")
    long = {"train": {"max_steps": 100_000, "valid_every": 20}}
    config = merged(merged(tiny_mapping, QUICK), long)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_recipe(title: str) -> dict[str, Any]:
    """Execute a recipe of the page; returns its variables."""
    names: dict[str, Any] = {}
    exec(compile(dict(RECIPES)[title], title, "exec"), names)
    return names


def test_the_page_translates_and_scores(here: Path) -> None:
    assert len(run_recipe("Use mt from Python")["line"].hypotheses) == 2
    table = run_recipe("Translate a column of a data frame")["table"]
    assert [bool(text) for text in table["en"]] == [True, False, True]
    assert len(lines_of(here / "translated.csv")) == 4
    names = run_recipe("Filter a corpus by score")
    order = sorted(range(3), key=lambda number: -names["per_token"][number])
    assert names["kept"] == [names["pairs"][number] for number in sorted(order[:2])]
    assert run_recipe("Evaluate a checkpoint")["scores"]["chrf"].value > 0


def test_the_page_trains(here: Path) -> None:
    outcomes = run_recipe("Compare three learning rates")["outcomes"]
    assert all(outcome.exit_code == 0 and outcome.best.is_dir() for outcome in outcomes.values())
    weights = {(outcome.best / "model.safetensors").read_bytes() for outcome in outcomes.values()}
    assert len(weights) == 3


def test_the_page_serves(here: Path) -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("httpx")
    from fastapi.testclient import TestClient

    client = TestClient(run_recipe("Serve a model with FastAPI")["app"])
    asked = {"source": "de", "target": "en", "format": "text", "api_key": ""}
    one = client.post("/translate", json={**asked, "q": "drei zwei"}).json()["translatedText"]
    answer = client.post("/translate", json={**asked, "q": ["drei zwei", ""]})
    assert (answer.status_code, answer.json()) == (200, {"translatedText": [one, ""]})
    assert one
    refused = client.post("/translate", json={**asked, "q": "a", "target": "fr"})
    assert (refused.status_code, "de to en" in refused.json()["error"]) == (400, True)
    assert client.get("/languages").json()[0]["targets"] == ["en"]


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_it_equals_the_command(engine: Any, tiny_run: Path, tiny_corpus: Path, mt: Mt) -> None:
    if engine == "ctranslate2":
        pytest.importorskip("ctranslate2")
    source = tiny_corpus / "test.src"
    command = ["translate", "-m", tiny_run, source, "--beam-size", 3, "--engine", engine]
    with package.load(tiny_run, beam_size=3, engine=engine, workers=1) as translator:
        lines = list(translator.translate(lines_of(source), n_best=2))
        best = [line.text for line in translator.translate(lines_of(source))]
    rows = [
        f"{number} ||| {hypothesis.text} ||| {hypothesis.score:.4f}"
        for number, line in enumerate(lines)
        for hypothesis in line.hypotheses
    ]
    assert rows == mt(*command, "--n-best", 2).lines
    assert best == mt(*command).lines


def test_a_translator_gives_as_many_outputs_as_are_asked_for(tiny_run: Path) -> None:
    with package.load(tiny_run, beam_size=3, engine="torch") as translator:
        for n_best in (3, 1):
            [line] = translator.translate(["drei zwei"], n_best=n_best)
            assert len(line.hypotheses) == n_best


def test_scores_are_log_probabilities(tiny_run: Path, tiny_corpus: Path, mt: Mt) -> None:
    sources, targets = (lines_of(tiny_corpus / f"test.{side}") for side in ("src", "tgt"))
    with package.load(tiny_run, beam_size=1, engine="torch", length_penalty=0) as translator:
        scores = translator.score(sources, targets)
        [line] = translator.translate(sources[:1])
        assert translator.score(sources[:1], [line.text]) == pytest.approx([line.score], abs=1e-4)
        assert math.isnan(translator.score(["drei " * 5000], ["three"])[0])
    printed = mt(
        *("score", "-m", tiny_run, "--src", tiny_corpus / "test.src"),
        *("--tgt", tiny_corpus / "test.tgt", "--length-penalty", 0),
    )
    assert [float(line) for line in printed.lines] == pytest.approx(scores, abs=1e-4)


def test_options_of_python_reach_the_search(tiny_run: Path) -> None:
    """Paths as text, True for alignments, samples, numbers of NumPy."""
    sources = numpy.array(["drei zwei", "eins"])
    options = {"n_best": 4, "sample": package.Sampling(seed=3), "workers": 1}
    with package.load(str(tiny_run), **options) as translator:
        assert [len(line.hypotheses) for line in translator.translate(sources)] == [4, 4]
    with package.load(tiny_run, alignments=True, workers=1, n_best=2) as translator:
        lines = list(translator.translate(sources))
        assert all(len(line.hypotheses) == 2 and "-" in line.alignment for line in lines)
    with package.load(tiny_run, precision="auto") as translator:
        assert translator.score(sources, sources) == translator.score(list(sources), list(sources))
    assert as_settings({"train.max_steps": numpy.int64(3)}) == ["train.max_steps=3"]
    assert package.evaluate(sources, sources, language=None)["bleu"].value >= 0


def test_threads_share_a_translator(tiny_run: Path, tiny_corpus: Path) -> None:
    lines = lines_of(tiny_corpus / "test.src")
    with package.load(tiny_run, workers=1) as translator, ThreadPoolExecutor(4) as pool:
        expected = [line.text for line in translator.translate(lines)]

        def work(number: int) -> list[str]:
            return [line.text for line in translator.translate(lines[number:])]

        outputs = [*pool.map(work, range(4))]
    assert outputs == [expected[number:] for number in range(4)]


def test_training_in_a_thread_and_two_models_at_a_time(here: Path) -> None:
    settings = {**SHORT, "data.test": None}
    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(package.train, "tiny.yaml", run_dir="runs/two", settings=settings)
    assert training.result().exit_code == 0
    with package.load("runs/tiny") as first, package.load("runs/two", workers=1) as second:
        texts = [next(each.translate(["drei zwei"])).text for each in (first, second, first)]
    assert texts[0] == texts[2] != texts[1]


def test_scores_of_several_references_and_metrics() -> None:
    outputs = ["The cat sat on the mat.", "Hello there."]
    refs = [["The cat sat on a mat.", "Hello there."], ["The cat sat on the mat.", "Hi there."]]
    scores = package.evaluate(outputs, refs, metrics=("bleu", "ter"), language="en")
    assert scores["bleu"].value == pytest.approx(100)
    assert scores["ter"].value == 0
    assert "nrefs:2" in scores["bleu"].signature
    blank = package.evaluate(["x", *outputs], [["\u3164", *ref] for ref in refs], metrics=["bleu"])
    assert blank["bleu"] == scores["bleu"]  # a line without a reference is not scored
    assert package.evaluate(["木のうえ"], ["木のうえ"], language="zh")["bleu"].signature.count("zh")


def test_a_tokenizer_of_a_run_and_of_a_file(tiny_run: Path) -> None:
    tokenizer = package.Tokenizer.load(tiny_run)
    ids = tokenizer.encode(["drei zwei", ""])
    assert tokenizer.decode(ids, side="src") == ["drei zwei", ""]
    assert len(tokenizer.pieces("drei zwei")) == len(ids[0])
    assert tokenizer.size() > max(ids[0])


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_a_forked_process_is_told_to_load_by_itself(tiny_run: Path, engine: str) -> None:
    """Without a word at the end of the parent, too."""
    pytest.importorskip(engine)
    program = f"""
import os, sys, mt
translator = mt.load({str(tiny_run)!r}, engine={engine!r})
assert [*translator.translate(["drei"])]
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
try:
    translator.translate(["drei"])
except mt.Error as error:
    assert "forked" in str(error) and "load the model here alone" in str(error)
    sys.exit(7)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (7, "", "")


def test_help_lists_every_option() -> None:
    for function, names in (
        (package.load, {"beam_size", "engine", "sample", "from_"}),
        (package.export, {"quantization", "license_name", "to"}),
    ):
        parameters = inspect.signature(function).parameters
        assert names < parameters.keys()
        options = [name for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY]
        assert [name for name in options if f"`{name}`: " not in function.__doc__] == []
    assert not {"models", "prefixes", "kind"} & inspect.signature(package.load).parameters.keys()


def test_a_model_is_exported_once(tiny_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    package.export(tiny_run, tmp_path / "ct2", to="ctranslate2", quantization="int8")
    assert (tmp_path / "ct2" / "model.bin").is_file()
    with raises_saying(package.Error, "exists"):
        package.export(tiny_run, tmp_path / "ct2", to="ctranslate2")


def test_errors_are_exceptions_that_say_what_is_wrong(tiny_run: Path) -> None:
    for call, parts in [
        (lambda run: package.load("nowhere"), "nowhere"),
        (lambda run: package.load([]), "no model"),
        (lambda run: package.load(5), "model|a path|5"),
        (lambda run: package.load(run, shortlist=5), "shortlist|a path|5"),
        (lambda run: list(package.load(run).translate(5)), "lines|list|5"),
        (lambda run: list(package.load(run).translate(["a"], n_best="2")), "n_best|number|'2'"),
        (lambda run: package.export(5, "x", to="argos"), "model|a path|5"),
        (lambda run: package.export(run, "x", to="argos", package_version=1.0), "text|1.0"),
        (lambda run: package.export(run, "x", to="argos", beams=1), "export|beams|quantization"),
        (lambda run: package.Tokenizer.load(5), "path|5"),
        (lambda run: package.Tokenizer.load(run).decode([5]), "ids|list|5"),
        (lambda run: package.Tokenizer.load(run).decode([["a"]]), "ids|'a'"),
        (lambda run: package.Tokenizer.load(run).pieces(5), "line|text|5"),
        (lambda run: package.evaluate(["a"], 5), "references|list|5"),
        (lambda run: package.evaluate(["a"], ["a"], language=5), "language|text|5"),
        (lambda run: package.train(5), "config|a path|5"),
        (lambda run: package.train("tiny.yaml", fresh="no"), "fresh|true or false|'no'"),
        (lambda run: package.train("tiny.yaml", settings=5), "settings|KEY=VALUE|5"),
        (lambda run: package.load(run, workers=0), "workers|1|0"),
        (lambda run: package.load(run, with_scores=False), "with_scores"),
        (lambda run: package.load(run, sample=True), "sample|mt.Sampling"),
        (lambda run: package.load(run, as_written="no"), "as-written|true or false|'no'"),
        (lambda run: package.load(run, length_penalty="1"), "length-penalty|a number|'1'"),
        (lambda run: package.load(run, length_penalty=math.nan), "length-penalty|nan"),
        (lambda run: list(package.load(run).translate("drei")), "lines|list"),
        (lambda run: list(package.load(run).translate(["a", None])), "line 2|None"),
        (lambda run: list(package.load(run).translate(["\ud800"])), "line 1|half"),
        (lambda run: list(package.load(run).translate(["a"], n_best=0)), "n_best|0"),
        (lambda run: package.load([run, run], engine="torch").score(["a"], ["b"]), "one model|2"),
        (
            lambda run: package.evaluate(["a"], ["a"], sources=["a", "b"]),
            "sources has 2|outputs has 1",
        ),
        (lambda run: package.evaluate(["a"], ["a"], metrics="bleu"), "metrics|'bleu'"),
        (lambda run: package.evaluate([None], ["a"]), "outputs|None"),
        (lambda run: package.Tokenizer.load(run).encode(["a"], side="source"), "src or tgt"),
        (lambda run: package.Tokenizer.load(run).decode([[10**6]]), "ids|1000000"),
        (lambda run: package.load(run, beams=3), "beams|beam_size"),
        (lambda run: package.load(run, min_length=3), "min_length|removed in 0.4.0|--glossary"),
        (lambda run: package.load(run, engine="marian"), "auto, torch or ctranslate2|marian"),
        (lambda run: list(package.load(run, beam_size=2).translate(["a"], n_best=3)), "2|3"),
        (lambda run: package.load(run, workers=1).score(["a"], []), "targets has 0|sources has 1"),
        (lambda run: package.train("tiny.yaml", settings={"optim.peak": 1}), "optim.peak|peak_lr"),
        (lambda run: package.evaluate(["a"], ["a", "b"]), "1|2"),
        (lambda run: package.evaluate(["a"], ["a"], metrics=["blue"]), "bleu|blue"),
        (lambda run: package.evaluate(["a"], "a"), "references|list"),
        (lambda run: package.evaluate(["a"], [" "]), "references: all 1 lines are blank"),
        (lambda run: package.export(run, "x", to="onnx"), "ctranslate2, argos, huggingface|onnx"),
        (lambda run: package.export(run, "x", to="argos", shortlist=True), "argos|shortlist"),
        (lambda run: package.Tokenizer.load("nowhere"), "nowhere"),
    ]:
        with raises_saying(package.Error, *parts.split("|")):
            call(tiny_run)


def test_it_is_silent_unless_asked_and_importing_it_is_cheap(here: Path) -> None:
    program = """
import sys
import mt
heavy = {"torch", "numpy", "pydantic", "sentencepiece", "typer", "ctranslate2"} & sys.modules.keys()
assert not heavy, heavy
settings = {"train.max_steps": 2, "optim.warmup_steps": 1}
assert mt.train("tiny.yaml", run_dir="runs/quiet", settings=settings).exit_code == 0
with mt.load("runs/tiny", split_sentences="auto") as translator:
    list(translator.translate(["drei"]))
import logging
logging.basicConfig(level=logging.INFO)
assert mt.train("tiny.yaml", run_dir="runs/heard", settings=settings).exit_code == 0
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=here
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == ""
    assert "runs/heard" in ended.stderr
    assert "runs/quiet" not in ended.stderr.partition("runs/heard")[0]
    assert all(line.startswith("INFO:mt:") for line in ended.stderr.splitlines() if line.strip())


@pytest.mark.slow
def test_a_notebook_trains_translates_and_is_interrupted(here: Path) -> None:
    """The stop button of a notebook is SIGINT to its kernel."""
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    cells = [
        f"import mt\nshort = {SHORT}",
        'outcome = mt.train("tiny.yaml", run_dir="runs/note", settings=short)',
        "outcome.exit_code",
        """with mt.load(outcome.best) as translator:
    text = next(translator.translate(["drei zwei"])).text
isinstance(text, str)""",
        """import os, pathlib, signal, threading, time
def stop():
    while not pathlib.Path("runs/stopped/metrics.jsonl").exists():
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=stop).start()
mt.train("tiny.yaml", run_dir="runs/stopped", settings={"train.log_every": 5}).exit_code""",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": here}}).execute()
    results = [
        output["data"]["text/plain"] for cell in notebook.cells for output in cell.outputs
        if output.output_type == "execute_result"
    ]  # fmt: skip
    assert results == ["0", "True", "130"]
    printed = [each for cell in notebook.cells for each in cell.outputs]
    assert not [each for each in printed if each.output_type == "stream"]


def test_trainings_in_threads_have_the_weights_of_others(tiny_config: Path, tmp_path: Path) -> None:
    """Dropout draws from the generator of the process, so one waits for the other."""
    settings = {"data.test": None, "data.valid": None, "train.max_steps": 3}

    def trained(name: str) -> bytes:
        typed.train(tiny_config, tmp_path / name, settings, device="cpu")
        return weights_of(tmp_path / name)

    alone = trained("alone")
    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(trained, ("one", "other"))] == [alone, alone]
