"""The parts of the page of `mt report`: status, command, chosen sentences, sets that differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conftest import MonkeyPatch, config_of
from messages import says
from run_folders import train_line, write_run

from mt.config.plan import plan_data
from mt.report import scores
from mt.report.page import differing_keys, duration, large_number
from mt.report.run_summary import RecordedScore, RunSummary, labels_of, read_run
from mt.report.scores import compare, score_run, tokenizer_of
from mt.report.sentences import choose_sentences, excerpt, marked


def run_of(folder: Path, **content: Any) -> RunSummary:
    return read_run(write_run(folder, **content), folder.name)


def outputs_of(*triples: tuple[str, str, str]) -> list[dict[str, Any]]:
    return [
        {"source": src, "reference": ref, "output": out, "score": -0.5, "flags": []}
        for src, ref, out in triples
    ]


def test_sets_of_another_text_are_not_compared_and_equal_outputs_not_tested(
    tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    """Whatever the model scores of the same outputs."""
    text = [(f"das ist {i}", f"that is {i} now", f"that is {i} now") for i in range(6)]
    other = [(src, f"{ref} .", out) for src, ref, out in text]
    runs = [
        run_of(tmp_path / "a", outputs=outputs_of(*text)),
        run_of(tmp_path / "b", outputs=outputs_of(*other)),
        run_of(tmp_path / "c", outputs=[line | {"score": -0.25} for line in outputs_of(*text)]),
    ]
    (compared,) = compare(runs, [score_run(run) for run in runs])
    assert [(row["label"], row["same"]) for row in compared["rows"]] == [("a", False), ("c", True)]
    assert compared["rows"][1]["p_value"] is None
    monkeypatch.setattr(scores, "MAX_RESAMPLED", 5)
    (compared,) = compare(runs, [score_run(run) for run in runs])
    assert says(compared["test"], "no test", "more than 5 lines")


def test_a_report_has_one_tokenizer_or_says_so(tmp_path: Path) -> None:
    """Of a run that was resumed with another one, and of two runs."""
    text = [("a", "that is now", "that is so"), ("b", "it was then", "it was then")]
    run, other = (run_of(tmp_path / name, outputs=outputs_of(*text)) for name in "ab")
    sentences = run.scored[0].sentences
    run.scored = [
        RecordedScore("kept", 10, 50.0, "nrefs:1|tok:char|x:y", sentences),
        RecordedScore("gone", 10, 51.0, "nrefs:1|tok:char|x:y"),
        RecordedScore("validation", 10, 40.0, "nrefs:1|tok:13a|x:y", sentences),
    ]
    kept, gone, valid = score_run(run)
    assert [one.bleu.score.value for one in (kept, gone)] == [valid.bleu.score.value, 51.0]
    assert "|tok:13a|" in kept.bleu.score.signature
    assert says(kept.note, "recorded BLEU 50.00 by char")
    assert says(gone.note, "not comparable", "char", "13a")
    # A text into another language has one of its own.
    run.config = config_of({"data": {"test": [{"src": "kept", "tgt": "b", "tgt_lang": "zh"}]}})
    assert "|tok:char|" in score_run(run)[0].bleu.score.signature

    run.scored = run.scored[:1]
    other.scored = [RecordedScore("kept", 10, 99.0, "nrefs:1|tok:13a|x:y", sentences)]
    (compared,) = compare([run, other], [score_run(run), score_run(other)])
    baseline, row = compared["rows"]
    assert row["bleu"].score == baseline["bleu"].score  # of the same outputs
    assert row["difference"] == 0
    assert says(compared["test"], "b was scored by the tokenizer 13a, this is char")
    other.scored[0].sentences = []
    (compared,) = compare([run, other], [score_run(run), score_run(other)])
    assert compared["rows"][1]["difference"] is None


def test_best_worst_and_flagged_sentences(tmp_path: Path) -> None:
    outputs = outputs_of(
        ("eins zwei drei vier fünf", "one two three four five", "one two three four five"),
        ("ja", "yes", "yes"),
        ("eins zwei drei vier sechs", "one two three four six", "zzz"),
        ("eins zwei drei vier null", "one two three four zero", "one two three four zeros"),
        ("  ", "", ""),
    )
    outputs[3]["flags"] = ["looping"]
    chosen = choose_sentences(run_of(tmp_path / "run", outputs=outputs), 1)
    found = {
        title: [" ".join(text for text, _ in one["output"].parts) for one in shown]
        for title, shown in chosen["groups"].items()
    }
    assert found == {
        "Worst": ["zzz"],
        "Flagged as suspicious": ["one two three four zeros"],
        "Best": ["one two three four five"],
    }
    assert chosen["flagged"] == 1
    assert says(chosen["note"], "; best only from 5 words on.", "underlined. The model score is")


def test_a_note_on_sentences_says_what_holds(tmp_path: Path) -> None:
    """Short sentences alone, without scores; none asked for; none kept."""
    short = [
        line | {"score": None} for line in outputs_of(("ja", "yes", "yes"), ("du", "you", "I"))
    ]
    run = run_of(tmp_path / "run", outputs=short)
    chosen = choose_sentences(run, 1)
    assert chosen["groups"].keys() == {"Worst", "Best"}
    assert says(chosen["note"], "By chrF2 of the single sentence. What differs")
    assert chosen["note"].endswith("is underlined.")
    assert says(choose_sentences(run, 0)["note"], "None were asked for")
    assert says(choose_sentences(run_of(tmp_path / "none"), 1)["note"], "No outputs are kept")


def test_words_that_differ_are_marked_and_long_texts_cut() -> None:
    japanese = marked("猫は好き", "猫が好き")  # by character, where the script has no spaces
    assert (japanese.parts, japanese.space) == ([("猫", False), ("は", True), ("好き", False)], "")
    assert marked("the old house", "the new house").parts == [
        ("the", False), ("old", True), ("house", False),
    ]  # fmt: skip
    assert excerpt("short").cut == ""
    cut = excerpt(" ".join(["w"] * 3000))
    assert cut.parts == [(" ".join(["w"] * 80), False)]
    assert cut.cut == "cut: 3,000 words, 5,999 characters in all"


def test_lines_of_metrics_that_are_no_lines_are_counted(tmp_path: Path) -> None:
    end = (
        '{"kind": "valid"}\n[1]\n\xff\n{"kind": "train", "step": "x"}\n{"kind": "new", "step": 1}\n'
    )
    run = run_of(tmp_path / "run", train=[train_line(10), train_line(20)], end=end)
    assert any("4 lines of metrics.jsonl cannot be read" in remark for remark in run.remarks)
    assert run.metrics.last_step == 20


def test_small_things() -> None:
    assert tokenizer_of("nrefs:1|tok:13a|smooth:exp") == "13a"
    assert tokenizer_of("nrefs:1|tok:ja-mecab-0.996-IPA|smooth:exp") == "ja-mecab"
    assert tokenizer_of("") == "13a"
    texts = [{"train": [{"path": "a.tsv", "weight": weight}]} for weight in (1, 2)]
    shown = differing_keys([config_of({"data": text}) for text in texts], with_data=True)
    assert len(set(shown["data.train"])) == 2
    valid = {"valid": {"path": "v", "directions": ["fr-en"]}}
    (text,) = plan_data(config_of({"data": valid}).data).valid
    assert text.direction == ("fr", "en")
    assert [large_number(n) for n in (999, 999_499, 999_999)] == ["999", "999 k", "1 M"]
    assert labels_of([Path("a/x"), Path("b/x"), Path("b/y")]) == ["a/x", "b/x", "y"]
    assert [duration(s) for s in (48, 3000, 6720, 10_000, 300_000)] == [
        "48 s", "50 min", "112 min", "2 h 47 min", "3.5 days",
    ]  # fmt: skip
