"""`mt distill`: the teacher's corpus, the choice by references, and the student's config."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Mt, lines_of, refused, write_lines

from mt.config import yaml_text
from mt.config.load import config_from_mapping, load_config
from mt.data.reading.corpus import data_root, read_pairs
from mt.translate.distill import student_config
from mt.translate.mbr import metric
from mt.translate.synthetic import most_similar

FAST = ("--beam-size", 4, "--precision", "fp32")


def rows_of(config: Path) -> list[tuple[str, str]]:
    """The pairs that the student trains on."""
    data = load_config(str(config)).config.data
    return list(read_pairs(data.train[0], data_root(data), "data.train[0]"))


def test_the_teacher_translates_its_training_data(
    mt: Mt, tiny_run: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    out, student = tmp_path / "d.tsv", tmp_path / "d.yaml"
    greedy = ("--beam-size", 1, "--precision", "fp32")
    ended = mt("distill", "-m", tiny_run, "--student", "3-1", "-o", out, *greedy)
    assert ended.code == 0
    assert ended.out == b""
    assert ended.err.endswith(f"student's config: {student}; run: mt train --config {student}\n")
    lines = lines_of(tiny_corpus / "train.src")
    translations = mt("translate", "-m", tiny_run, tiny_corpus / "train.src", *greedy).lines
    pairs = rows_of(student)
    assert set(pairs) <= set(zip(lines, translations, strict=True))
    assert len(pairs) > 1800

    teacher = load_config(str(tiny_run / "config.yaml")).config
    config = load_config(str(student)).config
    shape = {"n_encoder_layers": 3, "n_decoder_layers": 1}
    assert config.model == teacher.model.model_copy(update=shape)
    assert "n_encoder_layers: 3" in student.read_text(encoding="utf-8")
    assert "n_decoder_layers: 1" in student.read_text(encoding="utf-8")
    assert config.data.valid == teacher.data.valid
    assert config.data.root == teacher.data.root
    assert (config.optim, config.batch) == (teacher.optim, teacher.batch)


def test_of_n_outputs_the_one_most_like_the_reference(
    mt: Mt, tiny_run: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    texts = ("--src", tiny_corpus / "test.src", "--ref", tiny_corpus / "test.tgt")
    best = ("--n-best", 4, "--metric", "chrf")
    assert mt("distill", "-m", tiny_run, *texts, *best, *FAST, "-o", tmp_path / "d.tsv").code == 0
    references = dict(zip(*(lines_of(path) for path in texts[1::2]), strict=True))
    nbest = mt("translate", "-m", tiny_run, texts[1], "--n-best", 4, *FAST).lines
    candidates: dict[str, list[str]] = {}
    for line in nbest:
        number, text, _ = line.split(" ||| ")
        candidates.setdefault(list(references)[int(number)], []).append(text)
    chrf = metric("chrf")
    chosen = rows_of(tmp_path / "d.yaml")
    assert len(chosen) > 30
    for source, output in chosen:
        scores = [
            chrf.sentence_score(text, [references[source]]).score for text in candidates[source]
        ]
        assert output == candidates[source][scores.index(max(scores))]
    assert any(output != candidates[source][0] for source, output in chosen)


def test_ties_and_lines_without_reference_take_the_most_probable_output() -> None:
    bleu = metric("bleu")
    assert most_similar(["a b", "a c", "a b c"], "a b c", bleu) == "a b c"
    assert most_similar(["x", "y"], "a b c", bleu) == "x"
    assert most_similar(["x", "a b c"], "", bleu) == "x"
    assert most_similar(["x", "a b c"], "a b c", None) == "x"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--student", "6"], "--student: must be the layers of encoder and decoder, such as 6-2"),
        (["--student", "6-0"], "--student: must be the layers of encoder and decoder, such as"),
        (["--metric", "chrf"], "--metric: chooses among several outputs; give --n-best 8, say"),
        (["--n-best", "2", "--metric", "ter"], "--metric: must be chrf or bleu, found 'ter'"),
        (["--n-best", "2", "--src", "text"], "--n-best 2: the best output is chosen by a refere"),
        (["--ref", "text"], "--ref: translates nothing without --src; give both, or neither"),
        (["--src", "text", "--ref", "text"], "--ref: chooses among several outputs; give --n-b"),
        (["--src", "missing"], "--src: there is no file "),
        (
            ["--src", "empty"],
            "--output d.tsv: not written, as no pair is fit for training: 0 of 0 ",
        ),
        (["-o", "text.tsv", "--src", "text.tsv"], "--output text.tsv: is the same file as --src ("),
        (["-o", "used.tsv"], "--output used.tsv: the student's config would replace used.yaml; "),
    ],
    ids=str,
)
def test_messages(
    options: list[str],
    message: str,
    mt: Mt,
    tiny_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("text", "text.tsv", "used.yaml"):
        write_lines(tmp_path / name, ["eins"])
    (tmp_path / "empty").touch()
    before = sorted(tmp_path.iterdir())
    output = [] if "-o" in options else ["-o", "d.tsv"]
    assert refused(mt("distill", "-m", tiny_run, *output, *options)).startswith(message)
    assert sorted(tmp_path.iterdir()) == before


def test_a_student_has_no_stages_of_its_teacher_s_texts() -> None:
    texts = [{"src": "a.de", "tgt": "a.en"}, {"src": "a.de", "tgt": "a.en", "reverse": True}]
    stages = [{"until": {"epochs": 2}}, {"weights": [1, 0]}]
    teacher = config_from_mapping({"data": {"train": texts, "stages": stages}}, "test")
    data = yaml_text.parse(student_config(teacher, "made.tsv", (6, 2), "t"))["data"]
    assert len(data["train"]) == 1
    assert "stages" not in data
