"""`mt distill` and `mt diversify`: the corpora, the choice by references, the next config."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import Mt, lines_of, refused, write_lines
from messages import says
from model_files import changed_meta, copy_model

from mt.config import yaml_text
from mt.config.load import config_from_mapping, load_config
from mt.config.schema import Config
from mt.data.reading.corpus import data_root, read_pairs
from mt.errors import DataError
from mt.runs.model_folder import find_model
from mt.translate import streaming, synthetic
from mt.translate.distill import (
    DistillText,
    _read,
    _sources,
    _sources_of_last_stage,
    _texts_of_both_directions,
    diversified_config,
    refined_config,
    student_config,
)
from mt.translate.mbr import metric
from mt.translate.synthetic import most_similar

TEXT = {"src": "train.src", "tgt": "train.tgt"}
BOTH = [{"both_directions": True}]
FAST = ("--beam-size", 4, "--precision", "fp32")


def rows_of(config: Path) -> list[tuple[str, str]]:
    """The pairs that the student trains on."""
    data = load_config(str(config)).config.data
    return list(read_pairs(data.train[-1], data_root(data), "data.train"))


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
    assert config.data.root == teacher.data.root
    assert (config.optim, config.batch) == (teacher.optim, teacher.batch)


def test_a_model_is_trained_further_on_its_text_and_an_ensemble_s_translations(
    mt: Mt, tiny_run: Path, tmp_path: Path
) -> None:
    out, following = tmp_path / "d.tsv", tmp_path / "d.yaml"
    ensemble = ("-m", tiny_run, "-m", find_model(tiny_run))
    options = ("--student", "same", "--beam-size", 1, "--precision", "fp32")
    assert mt("distill", *ensemble, *options, "-o", out).code == 0
    teacher = load_config(str(tiny_run / "config.yaml")).config
    config = load_config(str(following)).config
    assert config.data.train[:-1] == teacher.data.train
    assert len(rows_of(following)) > 1800
    assert config.data.train[-1].path == str(out)
    assert config.model == teacher.model
    assert config.optim.peak_lr == pytest.approx(teacher.optim.peak_lr / 3, rel=0.05)
    assert config.train.max_steps == teacher.train.max_steps * 3 // 10
    trained = mt(
        "train", "-c", following, "--run-dir", tmp_path / "run",
        "--set", "train.max_steps=2", "--set", "optim.warmup_steps=1",
    )  # fmt: skip
    assert trained.code == 0
    assert f"initial weights from {tiny_run}" in trained.err


def refined(updates: int = 0, **values: Any) -> Config:
    """The config of the further training of a model with this one."""
    config = config_from_mapping({"data": {"train": [TEXT]}} | values, "test")
    made = yaml_text.parse(refined_config(config, "o.tsv", Path("runs/a"), "a", updates))
    return config_from_mapping(made, "made")


def test_the_further_training_is_shorter_at_a_lower_rate() -> None:
    cosine = {"warmup_steps": 500, "peak_lr": 2.1e-3, "schedule": "cosine", "cycles": 3}
    config = refined(5000, optim=cosine, train={"max_epochs": 19, "max_steps": 5000})
    assert (config.train.max_epochs, config.train.max_steps) == (3.8, 1500)
    assert config.train.valid_every == 375
    assert (config.optim.warmup_steps, config.optim.peak_lr) == (100, 7e-4)
    assert (config.optim.schedule, config.optim.cycles) == ("cosine", 1)
    short = refined(optim=cosine | {"warmup_steps": 100}, train={"max_steps": 104})
    assert short.optim.warmup_steps == 20
    # The peak of noam depends on its warm-up: with a fifth of that it would be twice as high.
    noam = refined(optim={"schedule": "noam", "peak_lr": None, "warmup_steps": 4000})
    assert noam.optim.schedule == "inverse_sqrt"
    assert noam.optim.peak_lr == pytest.approx((512 * 4000) ** -0.5 / 3, rel=0.02)


def test_the_further_training_has_the_texts_of_the_last_stage() -> None:
    other = {"src": "b.src", "tgt": "b.tgt"}
    known = {**TEXT, "src_lang": "de", "tgt_lang": "en", "tag": "<a>"}
    tokenizer = {"model": "own.model"}
    stages = [{"until": {"epochs": 1}}, {"weights": [0, 9]}]
    data: dict[str, Any] = {"train": [other, known], "stages": stages}
    config = config_from_mapping({"data": data, "tokenizer": tokenizer}, "test")
    assert [*_sources_of_last_stage(config.data)] == ["data.train[1]"]
    following = refined(data=data | {"clean": {"max_targets": 1}}, tokenizer=tokenizer).data
    assert [(one.src, one.src_lang) for one in following.train] == [
        ("train.src", "de"),
        ("1", "de"),
    ]
    assert following.clean is not None
    assert following.clean.max_targets is None  # each source has a translation besides

    shares = [TEXT | {"share": 0.4}, other | {"share": 0.6}]
    assert [one.share for one in refined(data={"train": shares}).data.train] == [0.2, 0.3, None]


def test_a_model_without_a_text_of_its_own_is_not_trained_further(
    mt: Mt, tiny_run: Path, tmp_path: Path
) -> None:
    model = as_trained_with(tiny_run, tmp_path / "model", train=[], stages=None)
    write_lines(tmp_path / "text", ["eins"])
    ended = mt("distill", "-m", model, "--student", "same", "--src", tmp_path / "text", "-o", "o")
    assert says(refused(ended), "--student same", "own text", "train.init_from")


@pytest.mark.parametrize(
    ("ways", "sides"),
    [([True], ["tgt", "src"]), ([True, False], ["src", "tgt"]), ([False, True], ["src", "tgt"])],
)
def test_a_text_is_translated_the_way_it_is_trained(
    ways: list[bool], sides: list[str], tiny_corpus: Path
) -> None:
    train = [TEXT | {"reverse": way} for way in ways]
    data = config_from_mapping({"data": {"root": str(tiny_corpus), "train": train}}, "test").data
    root, sources = _sources(data, DistillText())
    pairs = zip(*(lines_of(tiny_corpus / f"train.{side}") for side in sides), strict=True)
    assert [*_read(DistillText(), sources, root, True)] == ["\t".join(pair) for pair in pairs]


def test_a_large_training_text_is_worth_a_process_for_each_gpu(
    mt: Mt, tiny_run: Path, tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def load(*arguments: Any, **_: Any) -> None:
        seen.append(arguments[-1])
        raise DataError("enough")

    monkeypatch.setattr(synthetic, "load_translator", load)
    size = (tiny_corpus / "train.src").stat().st_size
    for least in (size, size + 1):
        monkeypatch.setattr(streaming, "LARGE_INPUT", least)
        assert refused(mt("distill", "-m", tiny_run, "-o", tmp_path / "o.tsv")) == "enough"
    assert seen == [True, False]


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
        (
            ["-o", "used.tsv"],
            "--output used.tsv: the config of the next training would replace used.yaml; ",
        ),
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


def test_both_sides_of_the_training_data_are_translated_and_trained_on(
    mt: Mt, tiny_run: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for side in ("src", "tgt"):
        lines = [*lines_of(tiny_corpus / f"train.{side}")[:200], "", "x\ty"]
        write_lines(corpus / f"train.{side}", lines)
        shutil.copy(tiny_corpus / f"valid.{side}", corpus)
    data = {"root": str(corpus), "train": [TEXT], "test": [], "stages": BOTH}
    model = as_trained_with(tiny_run, tmp_path / "both", **data)
    greedy = ("--beam-size", 1, "--precision", "fp32")
    ended = mt("diversify", "-m", model, "-o", tmp_path / "own.tsv", *greedy)
    assert ended.code == 0
    assert f"run: mt train --config {tmp_path / 'own.yaml'}\n" in ended.err
    of_lines = {
        side: dict(
            zip(
                (lines := [one.replace("\t", " ") for one in lines_of(corpus / f"train.{side}")]),
                mt("translate", "-m", model, "-", *greedy, stdin="\n".join(lines).encode()).lines,
                strict=True,
            )
        )
        for side in ("src", "tgt")
    }
    pairs = rows_of(tmp_path / "own.yaml")
    forward = [(src, tgt) for src, tgt in pairs if of_lines["src"].get(src) == tgt]
    backward = [(src, tgt) for src, tgt in pairs if of_lines["tgt"].get(tgt) == src]
    assert sorted({*forward, *backward}) == sorted(pairs)
    assert len(forward) > 180
    assert len(backward) > 20  # of a model that has not learnt the direction

    config = load_config(str(tmp_path / "own.yaml")).config
    assert [one.src for one in config.data.train] == ["train.src", "1"]
    assert config.data.stages is None
    trained = mt(
        "train", "--config", tmp_path / "own.yaml", "--run-dir", tmp_path / "run",
        "--set", "train.max_steps=2", "--set", "train.valid_every=2",
    )  # fmt: skip
    assert trained.code == 0
    assert "(train.src): 201 of 202 pairs kept" in trained.err
    assert f"initial weights from {model}" in trained.err


def test_no_language_need_be_told_to_diversify(mt: Mt, tiny_run: Path, tmp_path: Path) -> None:
    """Lines in capitals stay, in both languages."""
    write_lines(tmp_path / "train.src", ["EINS ZWEI", "drei"])
    write_lines(tmp_path / "train.tgt", ["ONE TWO", "three"])
    data = {"root": str(tmp_path), "train": [TEXT], "stages": BOTH}
    model = as_trained_with(tiny_run, tmp_path / "both", **data)
    shutil.copy(tiny_run / "writing.json", model)
    ended = mt("diversify", "-m", model, "-o", tmp_path / "own.tsv")
    assert ended.code == 0
    assert "--from" not in ended.err


@pytest.mark.parametrize("stages", [BOTH, [{"until": {"epochs": 1}, **BOTH[0]}, {}], None])
def test_a_student_is_of_the_direction_of_the_teacher_s_config(
    mt: Mt, tiny_run: Path, tmp_path: Path, stages: list[dict[str, Any]] | None
) -> None:
    model = as_trained_with(tiny_run, tmp_path / "teacher", train=[TEXT], stages=stages)
    options = ("-m", model, "--from", "en", "-o", tmp_path / "o.tsv")
    assert says(refused(mt("distill", *options)), "--from en", "from de into en", "leave --from")
    assert sorted(tmp_path.iterdir()) == [model]


def test_the_next_training_has_the_texts_of_the_last_stage(tiny_run: Path) -> None:
    other = {"src": "b.src", "tgt": "b.tgt"}
    known = {**TEXT, "src_lang": "de", "tgt_lang": "en"}
    stages = [{"until": {"epochs": 1}}, {"weights": [0, 9], "augment": {"caps": 0.1}, **BOTH[0]}]
    tokenizer = {"model": str(tiny_run / "tokenizer.model")}
    data = {"train": [other, known], "stages": stages}
    config = config_from_mapping({"data": data, "tokenizer": tokenizer}, "test")
    texts = _texts_of_both_directions(config.data)
    assert [*texts] == [1]
    made = yaml_text.parse(
        diversified_config(config, [*texts.values()], "o.tsv", Path("runs/a"), "a")
    )
    following = config_from_mapping(made, "made")
    assert [(one.weight, one.src_lang) for one in following.data.train] == [(9, "de"), (1, "de")]
    assert following.data.augment is not None
    assert following.data.augment.caps == 0.1


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"train": [TEXT], "stages": None}, ["both directions", "data.train[0]", "data.stages"]),
        (
            {"train": [TEXT], "stages": [{"until": {"epochs": 1}, **BOTH[0]}, {}]},
            ["both directions", "data.train[0]", "data.stages"],
        ),
        (
            {"train": [{**TEXT, "tag": "<a>"}, {**TEXT, "reverse": True}]},
            ["tags", "mt distill", "mt backtranslate"],
        ),
        ({"train": [TEXT], "language_tokens": True}, ["several languages", "--to"]),
    ],
    ids=str,
)
def test_models_that_cannot_diversify(
    mt: Mt, tiny_run: Path, tmp_path: Path, data: dict[str, Any], words: list[str]
) -> None:
    model = as_trained_with(tiny_run, tmp_path / "model", **data)
    assert says(refused(mt("diversify", "-m", model, "-o", tmp_path / "o.tsv")), "--model", *words)
    assert sorted(tmp_path.iterdir()) == [model]
