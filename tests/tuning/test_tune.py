"""`mt tune`: which settings are taken, where they are kept, and that everything uses them."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Mt, lines_of, refused, write_lines
from marian_models import SAVED
from messages import says

from mt.config.load import load_config
from mt.data.tokens.tokenizer import EOS
from mt.errors import CheckpointError
from mt.evaluation.systems import EvaluationSet
from mt.files import sha256_of
from mt.interop.huggingface_import import import_model
from mt.runs import model_folder
from mt.runs.model_folder import META, SHORTLIST, find_model, read_folder, read_meta
from mt.search.options import NO_SHORTLIST, EngineOptions
from mt.tuning import tune
from mt.tuning.tune import Setting, TimedOutputs, Tuner, scoring_settings, write_tuned

DRAW = random.Random(1)
REFS = [" ".join(DRAW.choices([f"w{number}" for number in range(50)], k=6)) for _ in range(60)]
OWN = Setting(4, 1.0, "fp32")
MAP = Path("vmap.txt")
SCORING = replace(scoring_settings("13a", "en"), n_samples={"bs": 200})


def tuner_of(table: Mapping[Setting, tuple[int, float]], max_loss: float = 0.3) -> Tuner:
    """A tuner for settings that give so many wrong lines in so many seconds; else 12 in 10.

    Each wrong line costs more than one BLEU.
    """

    def decode(setting: Setting) -> TimedOutputs:
        n_wrong, seconds = table.get(setting, (12, 10.0))
        wrong = [line.replace(line.split()[3], "wrong") for line in REFS[:n_wrong]]
        return TimedOutputs(wrong + REFS[n_wrong:], seconds, "ctranslate2")

    return Tuner(EvaluationSet("", [REFS], REFS), SCORING, decode, max_loss)


def on_cpu() -> Iterator[dict[str, Any]]:
    yield {"precision": "int8"}
    yield {"shortlist": MAP}


def test_a_faster_setting_is_taken_unless_something_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tune, "STEPS", ())
    int8, short = Setting(4, 1.0, "int8"), Setting(4, 1.0, "fp32", MAP)
    both, greedy, two, three = (Setting(beam, 1.0, "int8", MAP) for beam in (4, 1, 2, 3))
    table = {int8: (12, 6.0), both: (12, 4.0), greedy: (30, 1.0), two: (12, 2.0), three: (12, 3.0)}
    tuner = tuner_of(table, 100.0)
    assert tuner.choose(OWN, on_cpu()).setting == two
    tried = {trial.setting: trial.verdict for trial in tuner.trials}
    assert list(tried) == [OWN, int8, both, greedy, two]
    assert says(tried.pop(greedy), "worse in BLEU", "p = 0.0")
    assert set(tried.values()) == {""}
    # What is worse is left out, and the next is tried without it.
    assert tuner_of({int8: (30, 6.0), short: (12, 5.0)}).choose(OWN, on_cpu()).setting == short
    # Equal outputs differ by chance alone.
    assert tuner.trials[1].p_values == {"bleu": 1.0, "chrf": 1.0}
    # Nothing lost, but not faster either.
    assert tuner_of({int8: (12, 10.0), short: (12, 11.0)}).choose(OWN, on_cpu()).setting == OWN


def test_small_losses_do_not_add_up_and_chance_is_no_excuse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One line and two of 60 may be chance: only the limit tells them apart."""
    monkeypatch.setattr(tune, "STEPS", ())
    int8, both = Setting(4, 1.0, "int8"), Setting(4, 1.0, "int8", MAP)
    table = {int8: (13, 6.0), both: (14, 4.0)}
    tuner = tuner_of(table, 2.0)
    assert tuner.choose(OWN, on_cpu()).setting == int8
    verdict = next(trial.verdict for trial in tuner.trials if trial.setting == both)
    assert says(verdict, "loses 2.", "BLEU")
    assert tuner_of(table, 5.0).choose(OWN, on_cpu()).setting == both


def test_the_best_length_penalty_is_what_others_are_compared_with() -> None:
    best, int8 = Setting(4, 0.6, "fp32"), Setting(4, 0.6, "int8")
    table = {Setting(4, 0.8, "fp32"): (8, 10.0), best: (3, 10.0), int8: (12, 1.0)}
    tuner = tuner_of(table)
    assert tuner.choose(OWN, on_cpu()).setting == best  # int8 is only as good as before
    penalties = [trial.setting.length_penalty for trial in tuner.trials[:5]]
    assert penalties == [1.0, 1.2, 0.8, 0.6, 0.4]
    at_the_edge = tuner_of({Setting(4, 0.0, "fp32"): (3, 10.0)})
    assert at_the_edge.choose(Setting(4, 0.2, "fp32"), iter(())).setting.length_penalty == 0.0
    assert min(trial.setting.length_penalty for trial in at_the_edge.trials) == 0.0
    above = tuner_of({Setting(4, 2.8, "fp32"): (3, 10.0)})  # as a config may have it
    assert above.choose(Setting(4, 3.0, "fp32"), iter(())).setting.length_penalty == 2.8
    greedy = tuner_of({})
    assert greedy.choose(Setting(1, 1.0, "fp32"), iter(())).setting.beam_size == 1
    assert len(greedy.trials) == 1


@pytest.fixture
def run(copied_run: Path) -> Path:
    return copied_run


def test_what_is_chosen_is_used_everywhere(
    mt: Mt, run: Path, tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ctranslate2")
    monkeypatch.setattr(tune, "STEPS", (0.2,))
    monkeypatch.setattr(tune, "HIGHEST_PENALTY", 1.2)
    monkeypatch.setattr(tune, "RESAMPLES", 100)
    folder, text = find_model(run), tiny_corpus / "test.src"
    weights = sha256_of(folder / "model.safetensors")
    lines = ("--src", text, "--ref", tiny_corpus / "test.tgt")
    ended = mt("tune", "-m", run, "--device", "cpu", "--json", *lines)
    assert says(ended.err, "note: ", "lines", "200")
    rows = json.loads(ended.out)["settings"]
    assert {row["precision"] for row in rows} == {"fp32", "int8"}
    assert {row["length_penalty"] for row in rows} == {1.0, 1.2}
    assert any(row["shortlist"] for row in rows)
    (chosen,) = (row for row in rows if row["chosen"])
    tuned = read_folder(run).tuned
    assert tuned is not None
    assert vars(tuned).items() <= {**chosen, "to": None}.items()
    scored = mt("evaluate", "-m", run, "--device", "cpu", *lines, "--metrics", "bleu", "--json")
    assert json.loads(scored.out)[str(run)][0]["value"] == pytest.approx(chosen["bleu"])
    # Which is fastest is a matter of the clock; what follows is not.
    pieces = read_folder(run).tokenizer.tgt.all_pieces()[EOS + 1 : 200]
    content = f"\t{' '.join(pieces)}\n".encode()
    (map_file := tmp_path / "some.txt").write_bytes(content)
    values = {"beam_size": 1, "length_penalty": 0.8, "precision": "int8", "shortlist": True}
    write_tuned(folder, weights, values, content)
    assert sha256_of(folder / "model.safetensors") == weights
    assert read_folder(run).config.decode.beam_size == 1

    arguments = ("translate", "-m", run, text, "--device", "cpu", "--scores")
    given = ("--beam-size", 2, "--length-penalty", 0, "--precision", "fp32", "--shortlist", "none")
    plain = mt(*arguments, *given)
    assert "mt tune" not in plain.err
    fast = mt(*arguments)
    assert says(fast.err, f"{run}: beam 1, length penalty 0.8, int8, shortlist, as mt tune", "int8")
    explicit = ("--beam-size", 1, "--length-penalty", 0.8, "--precision", "int8")
    assert mt(*arguments, *explicit, "--shortlist", map_file).out == fast.out != plain.out
    some = mt(*arguments, "--beam-size", 2, "--engine", "torch").err
    assert says(some, f"{run}: length penalty 0.8, as mt tune")
    scored = mt("evaluate", "-m", run, *lines)
    assert "int8, shortlist, as mt tune" in scored.err
    exported = mt("export", "ctranslate2", "-m", run, "-o", tmp_path / "ct2").err
    assert says(exported, "int8", "the shortlist that mt tune has chosen")
    assert (tmp_path / "ct2" / SHORTLIST).read_bytes() == content
    student = tmp_path / "student.tsv"
    assert mt("distill", "-m", run, "--src", text, "-o", student).code == 0
    decode = load_config(str(student.with_suffix(".yaml"))).config.decode
    assert (decode.beam_size, decode.length_penalty) == (2, 1.0)  # the choice is the teacher's

    (folder / SHORTLIST).write_bytes(content + b"\n")
    for refuses in (arguments, ("export", "ctranslate2", "-m", run, "-o", tmp_path / "other")):
        message = refused(mt(*refuses))  # and does not decode with torch, in another precision
        assert says(message, SHORTLIST, "damaged", "checksum", "mt tune --reset")
    assert mt("tune", "-m", run, "--reset").code == 0
    assert mt(*arguments, *given).out == plain.out
    assert not (folder / SHORTLIST).exists()
    assert read_folder(run).config.decode.beam_size == 2


def test_killed_at_any_moment_the_defaults_are_whole_or_absent(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = find_model(run)
    weights = read_folder(run).weights_hash
    values = {"beam_size": 1, "length_penalty": 1.0, "precision": "int8", "shortlist": True}
    write_tuned(folder, weights, values, b"before\n")
    write = tune.write_whole
    left = 0

    def write_some(path: Path, content: bytes | str) -> None:
        nonlocal left
        if not left:
            raise KeyboardInterrupt
        left -= 1
        write(path, content)

    for module in (tune, model_folder):
        monkeypatch.setattr(module, "write_whole", write_some)
    for writes in range(4):
        left = writes
        try:
            write_tuned(folder, weights, values | {"beam_size": 2}, b"after\n")
        except KeyboardInterrupt:
            assert writes < 3
        if tuned := read_folder(run).tuned:
            read_meta(folder, [SHORTLIST])
            expected = (1, b"before\n") if writes == 0 else (2, b"after\n")
            assert (tuned.beam_size, (folder / SHORTLIST).read_bytes()) == expected
        if writes in (1, 2):
            assert tuned is None
            left = 4
            write_tuned(folder, weights, values, b"before\n")
    with pytest.raises(CheckpointError, match="was replaced meanwhile"):
        write_tuned(folder, "0" * 64, values, None)


def test_faults_are_said_before_anything_is_translated(
    mt: Mt, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = refused(mt("tune", "-m", run, "--src", tmp_path / "a"))
    assert says(message, "--src and --ref go together", "give both")
    message = refused(mt("tune", "-m", run, "--src", "-", "--ref", "-"))
    assert says(message, "--src and --ref", "both - (stdin)", "name a file for one")
    path = find_model(run) / META
    meta = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(meta | {"tuned": {"beam_size": "1"}}), encoding="utf-8")
    message = refused(mt("translate", "-m", run, path))
    assert says(message, META, "tuned", "beam_size", "missing", "mt tune --reset")
    assert mt("tune", "-m", run, "--reset").code == 0
    meta["config"]["data"]["valid"] = None
    path.write_text(json.dumps(meta), encoding="utf-8")
    message = refused(mt("tune", "-m", run))
    assert says(message, run, "no data.valid", "give --src FILE and --ref FILE")
    pieces = ("--src", path, "--ref", path, "--shortlist")
    message = refused(mt("tune", "-m", run, *pieces, path))
    assert says(message, f"--shortlist {path}, line 1", "must be a source piece")
    assert "BLEU" not in message
    monkeypatch.setattr(tune.os, "access", lambda _, mode: mode != os.W_OK)
    message = refused(mt("tune", "-m", run, *pieces, "none"))
    assert says(message, find_model(run), "cannot be written", "copy the model")
    assert "BLEU" not in message


def test_no_shortlist_is_tried_where_none_is_wanted(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "why_not_in_precision", lambda _: [])
    changes = tune.faster_on_cpu(read_folder(run), NO_SHORTLIST, tmp_path)
    assert list(changes) == [{"precision": "int8"}]


def test_a_file_that_mt_tune_did_not_write_stays(run: Path) -> None:
    """A `vmap.txt` that the user has put into the folder is not that of a choice."""
    folder, values = find_model(run), {"beam_size": 1, "length_penalty": 1.0, "precision": "fp32"}
    (folder / SHORTLIST).write_bytes(b"own\n")
    write_tuned(folder, read_folder(run).weights_hash, values | {"shortlist": False}, None)
    write_tuned(folder, read_folder(run).weights_hash, None, None)
    assert (folder / SHORTLIST).read_bytes() == b"own\n"


def test_no_target_language_is_recorded_where_none_is_told(
    mt: Mt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An imported model is told it by its lines, not by --from."""
    monkeypatch.setattr(tune, "STEPS", ())
    monkeypatch.setattr(tune, "RESAMPLES", 10)
    import_model(SAVED, model := tmp_path / "model")
    write_lines(tmp_path / "src", [">>fra<< eins", ">>fra<< zwei"])
    write_lines(tmp_path / "ref", ["un", "deux"])
    files = ["--src", tmp_path / "src", "--ref", tmp_path / "ref", "--device", "cpu"]
    ended = mt("tune", "--model", model, "--from", "de", *files)
    assert ended.code == 0
    assert "warning" not in ended.err
    assert "to" not in read_meta(model, [])["tuned"]


def test_speed_is_that_of_a_warm_process(
    run: Path, tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first lines of a process take longer, and are not counted."""
    lines = lines_of(tiny_corpus / "test.src")[:3]
    seen: list[list[str]] = []

    class Slow:
        tally, settings = SimpleNamespace(seconds=0.0), {"--engine": "torch"}

        def translate(self, sources: list[str]) -> list[Any]:
            seen.append(sources)
            self.tally.seconds += 1.0 if len(seen) % 2 == 0 else 100.0
            return [SimpleNamespace(texts=[one]) for one in sources]

    monkeypatch.setattr(tune, "load_engine", lambda *_: nullcontext())
    monkeypatch.setattr(tune, "make_translator", lambda *_: Slow())
    monkeypatch.setattr(tune, "WARM_UP", 2)
    data, engine = EvaluationSet("", [lines], lines), EngineOptions(models=[run], engine="torch")
    trials, _ = tune.tune(read_folder(run), data, SCORING, engine, 0.3)
    assert seen[:2] == [lines[:2], lines]
    assert {trial.outputs.seconds for trial in trials} == {1.0}
