"""Each recipe "Add …" of `.github/CONTRIBUTING.md`, followed by a stranger to the code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
import pytest
import typer
from conftest import ROOT, Mt, config_of, lines_of, log_of, metrics_of, refused, write_lines
from messages import raises_saying, says
from pydantic import Field
from typer.testing import CliRunner

from mt.cli import main
from mt.cli.console import print_result
from mt.cli.options import argument, given, output_option, with_groups
from mt.config import load, schema
from mt.config.plan import plan_data
from mt.data.reading import corpus, text
from mt.data.reading.text import RowFiles
from mt.data.reading.text_files import read_lines
from mt.errors import ConfigError, DataError
from mt.evaluation.metrics import METRICS, Metric, Statistics
from mt.report.curves import draw_curves
from mt.report.run_summary import read_run
from mt.search.options import BatchTokens, EngineOptions, Sampling, SearchOptions
from mt.settings import Setting, changed, check, declared
from mt.training.launch import train
from mt.translate.lines import Line, Step
from mt.translate.load import load_engine
from mt.translate.translator import make_translator

PAGE = (ROOT / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8")
RECIPES = re.findall(r"^\*\*(.+?)\.\*\* ", PAGE, re.MULTILINE)


def test_every_recipe_is_followed_below() -> None:
    assert RECIPES == [
        "a metric", "a corpus format", "an exporter", "a command or an option",
        "an option of the search", "a step of translation", "a config key",
    ]  # fmt: skip


# --- a metric ---------------------------------------------------------------------------------


class WrongWords(Metric):
    """Words that are not in the reference, per 100; from counts of each line."""

    name = "wrong"
    title = "WRONG"
    lower_is_better = True
    in_training = True

    def statistics(self, hyps: Sequence[str]) -> Statistics:
        rows = zip(
            (hyp.split() for hyp in hyps), (ref.split() for ref in self.refs[0]), strict=True
        )
        return np.array([[sum(w not in ref for w in hyp), len(hyp)] for hyp, ref in rows], float)

    def value(self, sums: Sequence[float]) -> float:
        return 100 * sums[0] / max(1, sums[1])


@pytest.fixture
def another_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METRICS, "wrong", WrongWords)


@pytest.mark.usefixtures("another_metric")
def test_a_metric_is_in_the_table_and_the_json(mt: Mt, tmp_path: Path) -> None:
    ref = [f"a b c d{i}" for i in range(40)]
    for name, lines in (
        ("ref", ref), ("src", ["x"] * 20 + ["x y"] * 20),
        ("bad", ["a b x y" if i % 2 else line for i, line in enumerate(ref)]),
        ("good", ["a b c y" if i % 4 == 0 else line for i, line in enumerate(ref)]),
    ):  # fmt: skip
        write_lines(tmp_path / name, lines)
    options = [
        "evaluate", "--hyp", f"bad={tmp_path / 'bad'}", "--hyp", f"good={tmp_path / 'good'}",
        "--ref", tmp_path / "ref", "--src", tmp_path / "src", "--metrics", "wrong,bleu",
        "--confidence",
    ]  # fmt: skip
    ended = mt(*options)
    assert ended.code == 0, ended.err
    rows = [re.split(r"  +", line.strip()) for line in ended.lines[:3]]
    assert rows[1][:3] == ["WRONG", "bad", "25.00"]
    assert (rows[2][1], rows[2][3], rows[2][-1]) == ("6.25", "-18.75", "better")
    assert "WRONG|nrefs:1" in ended.lines
    wrong, _ = json.loads(mt(*options, "--json").out)["good"]
    assert list(wrong) == [
        "name", "value", "signature", "detail", "note",
        "confidence", "paired_bs", "verdict",
    ]  # fmt: skip
    assert wrong["paired_bs"]["better"] is True
    assert wrong["value"] == 6.25


def test_a_metric_chooses_the_best_is_scored_after_training_and_has_a_curve(
    tiny_mapping: Mapping[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the place of chrF, so that the schema need not change."""
    monkeypatch.setitem(METRICS, "chrf", WrongWords)
    config = config_of(tiny_mapping, train={"metric": "chrf", "max_steps": 30, "valid_every": 10})
    outcome = train(config, tmp_path / "run", "cpu")
    values = [line["chrf"] for line in metrics_of(tmp_path / "run", "valid")]
    assert len(values) == 3
    (best,) = re.findall(r"best model \(WRONG ([\d.]+) on the validation set\)", outcome.reason)
    assert float(best) < values[0] - 1  # fewer are better; the two lower ones may be tied
    pictures, _ = draw_curves([read_run(tmp_path / "run", "run")])
    assert [picture["title"] for picture in pictures][1:3] == ["BLEU", "WRONG"]
    (test,) = metrics_of(tmp_path / "run", "test")
    assert f" | BLEU {test['bleu']:.2f} | WRONG {test['chrf']:.2f} | " in log_of(tmp_path / "run")


def test_what_the_config_and_the_help_name_is_in_the_registry(mt: Mt) -> None:
    usable = {name for name, metric in METRICS.items() if metric.in_training}
    assert set(get_args(schema.Metric)) == {"nll", *usable}
    assert all(metric.name == name for name, metric in METRICS.items())
    text = " ".join(mt("evaluate", "--help").out.decode().split())
    *names, last = METRICS
    assert f"any of {', '.join(names)} and {last}, separated" in text


# --- a corpus format --------------------------------------------------------------------------


class EquationsText(RowFiles):
    """Files of lines such as `eins = one`."""

    def rows_of(self, file: Path, *_: object) -> Iterator[tuple[str, dict[str, Any]]]:
        for number, line in enumerate(read_lines(file, f"{self.where}.path"), start=1):
            place = f"{file}, line {number}"
            src, equals, tgt = line.partition(" = ")
            if not equals:
                raise DataError(f"{self.where}.path: {place}: has no equals sign; correct the line")
            yield place, {"de": src, "en": tgt}


def test_a_corpus_format_is_read_checked_and_trained_on(
    tiny_mapping: Mapping[str, Any], tiny_corpus: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Rows by a suffix: in `SUFFIXES`, and a class in `KINDS`."""
    monkeypatch.setitem(corpus.KINDS, "json", EquationsText)
    monkeypatch.setitem(text.SUFFIXES, ".equations", "json")
    sides = [lines_of(tiny_corpus / f"train.{side}") for side in ("src", "tgt")]
    pairs = list(zip(*sides, strict=True))
    write_lines(tmp_path / "train.equations", [f"{src} = {tgt}" for src, tgt in pairs])
    source = {"path": "train.equations", "src": "de", "tgt": "en"}
    data = {"root": str(tmp_path), "train": [source], "valid": None, "test": []}
    config = config_of(tiny_mapping, data=data, train={"max_steps": 1})
    assert list(corpus.training_pairs(plan_data(config.data))) == pairs
    assert train(config, tmp_path / "run", "cpu").exit_code == 0
    write_lines(tmp_path / "train.equations", ["eins = one", "zwei"])
    with raises_saying(DataError, "data.train[0].path", "train.equations, line 2", "correct"):
        train(config, tmp_path / "other", "cpu")


# --- an exporter: see tests/interop/test_exporter.py --------------------------------------------


def test_the_recipe_of_an_exporter_has_its_own_test() -> None:
    assert "`tests/interop/test_exporter.py` follows this recipe" in " ".join(PAGE.split())
    assert (ROOT / "tests" / "interop" / "test_exporter.py").is_file()


# --- a command or an option -------------------------------------------------------------------


def test_a_command_parses_its_options_and_calls_one_function(
    mt: Mt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count(
        file: Annotated[Path, argument("text", "FILE")],
        repeat: Annotated[
            int, output_option("--repeat", metavar="N", min=1, help="times to print the count")
        ] = 1,
        batch_tokens: BatchTokens = None,
    ) -> None:
        """Count the lines of a text."""
        from mt.data.reading.text_files import count_lines

        print_result("\n".join([str(count_lines(file, "FILE"))] * repeat))

    monkeypatch.setattr(main, "count", count, raising=False)
    monkeypatch.setitem(main.COMMANDS, "count", "mt.cli.main:count")
    write_lines(tmp_path / "text", ["a", "b"])
    assert mt("count", tmp_path / "text", "--repeat", 2).lines == ["2", "2"]
    wrong = mt("count", tmp_path / "text", "--repeat", 0)
    assert (wrong.code, wrong.out) == (2, b"")
    assert says(wrong.err, "--repeat", "1")
    assert says(refused(mt("count", tmp_path / "no")), "FILE", "there is no file")
    page = mt("count", "--help").out.decode()
    assert says(page, "Count the lines", "Output:", "--repeat", "--batch-tokens")
    assert "count" in mt("--help").out.decode()


# --- a step of translation ----------------------------------------------------------------------


class Spelled(Step):
    """Writes the best output letter by letter; counts lines."""

    def __init__(self) -> None:
        self.settings = {"--spelled": "yes"}
        self.seen: list[str] = []

    def before(self, lines: Sequence[Line]) -> None:
        self.seen += [line.text for line in lines]

    def after(self, lines: Sequence[Line]) -> None:
        for line in lines:
            spelled = " ".join(line.translation.texts[0])
            line.translation = line.translation._replace(texts=(spelled,))

    def notes(self) -> list[str]:
        return [f"{len(self.seen)} spelled"]


def test_a_step_works_before_and_after_the_search(tiny_run: Path) -> None:
    engine = EngineOptions(models=[tiny_run], engine="torch", workers=1)
    with load_engine(SearchOptions(), engine) as loaded:
        plain = [found.texts[0] for found in make_translator(loaded).translate(["eins", "EINS"])]
        step = Spelled()
        translator = make_translator(loaded, protection=step)
        assert [found.texts for found in translator.translate(["eins", "EINS"])] == [
            (" ".join(text),) for text in plain
        ]
    assert step.seen == ["eins", "EINS"]  # outermost: as they were given
    assert translator.settings["--spelled"] == "yes"
    assert says(translator.summary(), "2 lines (2 spelled; 1 translated as the training text")


# --- a config key -----------------------------------------------------------------------------


def test_a_config_key_has_its_default_in_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of the pages and of base.yaml ask for the other places."""

    class OwnRun(schema.RunConfig):
        greeting: str = Field(default="hello", description="the first line of the log")

    class OwnConfig(schema.Config):
        run: OwnRun = Field(OwnRun(), description="the run")

    monkeypatch.setattr(schema, "Config", OwnConfig)
    monkeypatch.setattr(load, "Config", OwnConfig)
    given = load.load_config("base.yaml", ["run.greeting=hi"]).config.run
    assert given.greeting == "hi"  # type: ignore[attr-defined]
    with raises_saying(ConfigError, "--set", "run.greetings", "greeting"):
        load.load_config("base.yaml", ["run.greetings=hi"])


# --- an option of the search --------------------------------------------------------------------


def test_a_setting_is_an_option_of_every_command_that_has_it(mt: Mt) -> None:
    for kind, commands in (
        (Sampling, ("translate", "backtranslate")),
        (SearchOptions, ("translate", "evaluate", "backtranslate", "distill")),
        (EngineOptions, ("translate", "evaluate", "backtranslate", "distill")),
    ):
        options = [
            setting.option(name)
            for name, (setting, _) in declared(kind).items()
            if setting.is_option
        ]
        assert len(options) >= 4
        for command in commands:
            text = mt(command, "--help").out.decode()
            assert [option for option in options if f"  {option} " not in text] == []


@dataclass(frozen=True)
class Beams:
    """A part of the search, as its file would declare it."""

    diverse: Annotated[
        float, Setting("groups of beams differ by D", "Search", "D", min=0, torch_only=True)
    ] = 0.0
    form: Annotated[Literal["a", "b"] | None, Setting("a or b")] = None


def test_a_declared_setting_has_its_range_its_message_and_its_reason_for_torch() -> None:
    def command(beams: Beams) -> None:
        """Show what was given."""
        print_result(f"{beams} {given(beams)}")

    app = typer.Typer()
    app.command()(with_groups(command))
    shown = CliRunner().invoke(app, ["--diverse", "0.5"])
    assert says(shown.output, "diverse=0.5, form=None", "['--diverse']")
    assert says(CliRunner().invoke(app, ["--help"]).output, "--diverse", "groups of beams")
    assert [option for option, setting, _ in changed(Beams(0.5)) if setting.torch_only] == [
        "--diverse"
    ]
    for wrong, parts in ((Beams(-1), "--diverse|at least 0|-1"), (Beams(form="c"), "a or b|'c'")):  # type: ignore[arg-type]
        with raises_saying(ConfigError, *parts.split("|")):
            check(wrong)
