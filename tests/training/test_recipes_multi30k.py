"""The recipe, `mt backtranslate` and `mt distill` on the real corpus, with few updates.

What they gain takes longer to show; configs/experiments.md has what was measured.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from conftest import Mt, metrics_of, write_lines
from corpora import MULTI30K, multi30k
from scores import score_corpus

from mt.config.load import load_config
from mt.data.reading.text_files import normalize_line, read_lines
from mt.training.launch import train

# Pairs to train on, and lines of further text, of which only one side is used.
PAIRS = 2000
MORE = 600
SMALL = {
    "tokenizer": {"vocab_size": 2000},
    "batch": {"tokens_per_update": 1024, "tokens_per_batch": 1024},
    "model": {"d_model": 64, "n_heads": 4, "n_encoder_layers": 2, "n_decoder_layers": 1},
    "optim": {"peak_lr": 5e-3, "warmup_steps": 50, "schedule": "cosine"},
    "train": {"max_steps": 250, "valid_every": 250, "log_every": 50},
    "decode": {"beam_size": 2},
}
FAST = ("--beam-size", 2, "--precision", "fp32")

pytestmark = [pytest.mark.multi30k, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module", autouse=True)
def corpus_is_there() -> None:
    multi30k()


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """{train,more,valid}.{de,en} of Multi30k."""
    folder = tmp_path_factory.mktemp("texts")
    for language in ("de", "en"):
        lines = list(read_lines(MULTI30K / f"train.{language}.gz"))
        lines = [normalize_line(line) for line in lines]  # as the corpus will have them
        write_lines(folder / f"train.{language}", lines[:PAIRS])
        write_lines(folder / f"more.{language}", lines[PAIRS : PAIRS + MORE])
        valid = list(read_lines(MULTI30K / f"val.{language}.gz"))
        write_lines(folder / f"valid.{language}", valid[:200])
    return folder


def config_file(folder: Path, src: str, tgt: str, *more: dict[str, object]) -> Path:
    """A config in `folder` for src → tgt, with `more` training data."""

    def pair(split: str) -> dict[str, object]:
        return {"src": f"{split}.{src}", "tgt": f"{split}.{tgt}"}

    data = {
        "root": str(folder),
        "src_lang": src,
        "tgt_lang": tgt,
        "train": [pair("train"), *more],
        "valid": pair("valid"),
    }
    path = folder / f"{src}-{tgt}-{len(more)}.yaml"
    path.write_text(yaml.safe_dump({"data": data, **SMALL}), encoding="utf-8")
    return path


def test_back_translated_text_trains_the_other_direction(
    mt: Mt, texts: Path, tmp_path: Path
) -> None:
    reverse = tmp_path / "reverse"
    trained = mt("train", "-c", config_file(texts, "en", "de"), "--run-dir", reverse)
    assert trained.code == 0
    corpus = tmp_path / "more.tsv"
    command = ("backtranslate", "-m", reverse, texts / "more.en", "-o", corpus)
    made = mt(*command, "--tag", "<BT>", *FAST)
    assert made.code == 0
    rows = [line.split("\t") for line in read_lines(corpus)]
    assert 0.5 * MORE < len(rows) <= MORE
    # German words, and more of those in the real translation than in that of the next line.
    german = dict(zip(read_lines(texts / "more.en"), read_lines(texts / "more.de"), strict=True))
    known = {word for line in read_lines(texts / "train.de") for word in line.split()}
    words = [word for source, _ in rows for word in source.split()[1:]]
    assert sum(word in known for word in words) > 0.8 * len(words)
    right = [len(set(src.split()) & set(german[tgt].split())) for src, tgt in rows]
    wrong = [
        len(set(src.split()) & set(german[tgt].split()))
        for (src, _), (_, tgt) in itertools.pairwise(rows)
    ]
    assert sum(right) > 1.05 * sum(wrong)

    pasted = yaml.safe_load(made.out.decode().split("tokenizer:")[0])
    config = config_file(texts, "de", "en", *pasted)
    symbol = "tokenizer.user_defined_symbols=[<BT>]"
    run = tmp_path / "run"
    trained = mt("train", "-c", config, "--run-dir", run, "--set", symbol)
    assert trained.code == 0
    assert f"data.train[1] ({corpus}): " in trained.err
    (validation,) = metrics_of(run, "valid")
    assert validation["bleu"] > 1


def test_a_student_of_a_teacher(mt: Mt, texts: Path, tmp_path: Path) -> None:
    teacher = tmp_path / "teacher"
    assert mt("train", "-c", config_file(texts, "de", "en"), "--run-dir", teacher).code == 0
    corpus = tmp_path / "distilled.tsv"
    references = ("--src", texts / "more.de", "--ref", texts / "more.en")
    command = ("distill", "-m", teacher, *references, "--n-best", 4, "--metric", "chrf")
    options = ("--student", "2-1", "--beam-size", 4, "--precision", "fp32")
    assert mt(*command, *options, "-o", corpus).code == 0
    best = mt("distill", "-m", teacher, *references[:2], *options, "-o", tmp_path / "best.tsv")
    assert best.code == 0

    def likeness(path: Path) -> float:
        """The chrF of the teacher's outputs against the references of the same lines."""
        german = list(read_lines(texts / "more.de"))
        reference = dict(zip(german, read_lines(texts / "more.en"), strict=True))
        rows = [line.split("\t") for line in read_lines(path)]
        hyps, refs = [tgt for _, tgt in rows], [[reference[src] for src, _ in rows]]
        return score_corpus(hyps, refs, ["chrf"])[0].value

    assert likeness(corpus) > likeness(tmp_path / "best.tsv") + 1  # the choice by references
    run = tmp_path / "student"
    student = mt("train", "-c", corpus.with_suffix(".yaml"), "--run-dir", run)
    assert student.code == 0
    first, *_, last = metrics_of(run, "train")
    assert last["nll"] < first["nll"] - 1  # it learns what the teacher wrote


@pytest.fixture
def all_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The other tests run on one thread."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("all_cores")
def test_300_updates_of_the_recipe_learn_as_much_as_ever(tmp_path: Path) -> None:
    """In fp32 they gave an nll of 3.574, and BLEU 10.5 and 7.7 on the tests."""
    sets = [
        f"data.root={MULTI30K}",
        "data.stages=null",  # one direction: too few updates for two
        "train.max_steps=300",
        "optim.warmup_steps=100",
        "model.dropout=0.2",  # the same
        "train.valid_every=300",
        "train.precision=auto",
    ]
    config = load_config("multi30k.yaml", sets).config
    assert train(config, tmp_path / "run", "cpu").exit_code == 0
    (validation,) = metrics_of(tmp_path / "run", "valid")
    assert validation["nll"] < 3.8
    records = metrics_of(tmp_path / "run", "test")
    tests = {record["name"]: record["bleu"] for record in records}
    assert tests["test_2016_flickr.de.gz"] > 7
    assert tests["test_2017_flickr.de.gz"] > 5
    assert all("tok:13a" in record["signature"] for record in records)
