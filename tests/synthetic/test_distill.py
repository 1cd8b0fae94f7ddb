"""`mt distill`: the corpus, the choice by references, the student's config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sacrebleu
from conftest import MonkeyPatch, Mt, lines_of, refused, write_lines
from messages import says
from model_files import changed_meta, copy_model

from mt.config import yaml_text
from mt.config.load import config_from_mapping, load_config
from mt.config.plan import plan_data
from mt.data.reading.corpus import read_pairs
from mt.synthetic.distill import _read, _sources, student_config
from mt.synthetic.make_corpus import most_similar

TEXT = {"src": "train.src", "tgt": "train.tgt"}
BOTH = [{"both_directions": True}]
FAST = ("--beam-size", 4, "--precision", "fp32")


def rows_of(config: Path) -> list[tuple[str, str]]:
    """The pairs that the student trains on."""
    data = plan_data(load_config(str(config)).config.data)
    return list(read_pairs(data.corpora[-1].source, data.root, "data.train"))


def as_trained_with(tiny_run: Path, folder: Path, **data: Any) -> Path:
    """The tiny model, as if it had been trained with this section `data`."""
    with changed_meta(copy_model(tiny_run, folder)) as meta:
        meta["config"]["data"] |= data
        meta["config"]["tokenizer"]["user_defined_symbols"] = ["<a>"]
    return folder


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
    assert config.data.root == str(Path(teacher.data.root or ".").absolute())
    assert (config.optim, config.batch) == (teacher.optim, teacher.batch)


@pytest.mark.parametrize(
    ("ways", "sides"),
    [([True], ["tgt", "src"]), ([True, False], ["src", "tgt"]), ([False, True], ["src", "tgt"])],
)
def test_a_text_is_translated_the_way_it_is_trained(
    ways: list[bool], sides: list[str], tiny_corpus: Path
) -> None:
    other_way = {"src": "test.tgt", "tgt": "test.src", "src_lang": "en", "tgt_lang": "de"}
    train = [TEXT | {"reverse": way} for way in ways] + [other_way] * (False in ways)
    train.append(TEXT | {"src_lang": "cs"})  # not into the corpus
    section = {"root": str(tiny_corpus), "train": train, "valid": TEXT}  # one of the usual way
    data = config_from_mapping({"data": section}, "test").data
    root, sources = _sources(plan_data(data), None)
    pairs = zip(*(lines_of(tiny_corpus / f"train.{side}") for side in sides), strict=True)
    assert [*_read(sources, root, True)] == ["\t".join(pair) for pair in pairs]


def test_of_n_outputs_the_one_most_like_the_reference(
    mt: Mt, tiny_run: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    sides = [lines_of(tiny_corpus / f"test.{side}") for side in ("src", "tgt")]
    for side, lines in zip(("src", "tgt"), sides, strict=True):
        write_lines(tmp_path / f"t.{side}", lines)
    files = {"src": str(tmp_path / "t.src"), "tgt": str(tmp_path / "t.tgt")}
    model = as_trained_with(tiny_run, tmp_path / "teacher", train=[files])
    assert mt(*("distill", "-m", model, "--n-best", 4, *FAST, "-o", tmp_path / "d.tsv")).code == 0
    references = dict(zip(*sides, strict=True))
    nbest = mt("translate", "-m", tiny_run, files["src"], "--n-best", 4, *FAST).lines
    candidates: dict[str, list[str]] = {}
    for line in nbest:
        number, text, _ = line.split(" ||| ")
        candidates.setdefault(list(references)[int(number)], []).append(text)
    bleu = sacrebleu.BLEU(effective_order=True)
    chosen = rows_of(tmp_path / "d.yaml")
    assert len(chosen) > 30
    for source, output in chosen:
        scores = [
            bleu.sentence_score(text, [references[source]]).score for text in candidates[source]
        ]
        assert output == candidates[source][scores.index(max(scores))]
    assert any(output != candidates[source][0] for source, output in chosen)


def test_ties_and_lines_without_reference_take_the_most_probable_output() -> None:
    assert most_similar(["a b", "a c", "a b c"], "a b c") == "a b c"
    assert most_similar(["x", "y"], "a b c") == "x"
    assert most_similar(["x", "a b c"], "") == "x"


def test_messages(mt: Mt, tiny_run: Path, tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("text", "text.tsv", "used.yaml"):
        write_lines(tmp_path / name, ["eins"])
    (tmp_path / "empty").touch()
    before = sorted(tmp_path.iterdir())
    for options, message in [
        (["--student", "6"], "--student: must be the layers of encoder and decoder, such as 6-2"),
        (["--student", "6-0"], "--student: must be the layers of encoder and decoder, such as"),
        (["--n-best", "2", "--src", "text"], "--n-best 2: the best output is chosen by the refe"),
        (["--src", "missing"], "--src: there is no file "),
        (
            ["--src", "empty"],
            "--output d.tsv: not written, as no pair is fit for training: 0 of 0 ",
        ),
        (["-o", "text.tsv", "--src", "text.tsv"], "--output text.tsv: is the same file as --src ("),
        (["-o", "used.tsv"], "--output used.tsv: the student's config would replace used.yaml; "),
    ]:
        output = [] if "-o" in options else ["-o", "d.tsv"]
        assert refused(mt("distill", "-m", tiny_run, *output, *options)).startswith(message)
        assert sorted(tmp_path.iterdir()) == before


def test_a_student_has_no_stages_of_its_teacher_s_texts() -> None:
    texts = [{"src": "a.de", "tgt": "a.en"}, {"src": "a.de", "tgt": "a.en", "reverse": True}]
    stages = [{"until": {"updates": 2}}, {"weights": [1, 0]}]
    teacher = config_from_mapping({"data": {"train": texts, "stages": stages}}, "test")
    data = yaml_text.parse(student_config(teacher, "made.tsv", (6, 2), "t"))["data"]
    assert len(data["train"]) == 1
    assert "stages" not in data


@pytest.mark.parametrize("stages", [BOTH, [{"until": {"updates": 1}, **BOTH[0]}, {}], None])
def test_a_student_is_of_the_direction_of_the_teacher_s_config(
    mt: Mt, tiny_run: Path, tmp_path: Path, stages: list[dict[str, Any]] | None
) -> None:
    model = as_trained_with(tiny_run, tmp_path / "teacher", train=[TEXT], stages=stages)
    options = ("-m", model, "--from", "en", "-o", tmp_path / "o.tsv")
    assert says(refused(mt("distill", *options)), "--from en", "from de into en", "leave them")
    assert sorted(tmp_path.iterdir()) == [model]


@pytest.mark.parametrize(
    ("data", "fault"),
    [({"language_tokens": True}, "several languages"), ({"valid": [{"split": 9}]}, "held out")],
)
def test_models_that_do_not_distil(
    mt: Mt, tiny_run: Path, tmp_path: Path, data: dict[str, Any], fault: str
) -> None:
    """A student would be scored on its teacher's translations of what is held out, else."""
    model = as_trained_with(tiny_run, tmp_path / "model", train=[TEXT], **data)
    remedy = "mt translate --to" if "language_tokens" in data else "name the run directory"
    message = refused(mt("distill", "-m", model, "-o", tmp_path / "o.tsv"))
    assert says(message, "--model", fault, remedy)
