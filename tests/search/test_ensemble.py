"""Ensembles: by hand over scripted distributions, and on models."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import Mt, refused
from messages import says
from model_files import changed_meta, copy_model
from token_stores import tokenizer_of
from torch import Tensor

from mt.config.schema import TokenizerConfig
from mt.data.tokens.tokenizer import EOS
from mt.search.inference import Ensemble, EnsembleDecoding
from mt.search.search import greedy_search

A, B, C = 4, 5, 6


class Member:
    """Gives the same probabilities of A, B, C and eos at every step."""

    def __init__(self, *probabilities: float) -> None:
        logits = torch.full((7,), -math.inf)
        logits[[A, B, C, EOS]] = torch.tensor(probabilities).log() + 3.0  # up to a constant
        self.logits, self.kept = logits, list[list[int]]()

    def step(self, tokens: Tensor, parents: Tensor) -> Tensor:
        return self.logits.expand(*tokens.shape, -1).clone()

    def keep(self, rows: Tensor) -> None:
        self.kept.append(rows.tolist())


def test_probabilities_are_averaged_and_every_member_drops_finished_sentences() -> None:
    """A: 0.6 and 0.02, B: 0.3 and 0.28. Arithmetic means .31 > .29, geometric .11 < .29."""
    pair: Any = [Member(0.6, 0.3, 0.05, 0.05), Member(0.02, 0.28, 0.35, 0.35)]
    both = EnsembleDecoding(pair)
    for (found,) in greedy_search(both, torch.tensor([1, 1])):
        assert found.tokens == (A,)
        assert math.exp(found.log_prob) == pytest.approx(0.31 * 0.2, rel=1e-3)
    both.keep(torch.tensor([0, 2]))
    assert [member.kept[-1] for member in pair] == [[0, 2], [0, 2]]


def test_max_tokens_is_that_of_the_shortest_member() -> None:
    members: Any = [SimpleNamespace(device=torch.device("cpu"), max_tokens=n) for n in (64, 32)]
    assert Ensemble(members).max_tokens == 32


def test_a_model_twice_is_that_model(mt: Mt, tiny_run: Path, tiny_corpus: Path) -> None:
    text = ["translate", tiny_corpus / "test.src", "--precision=fp32", "--scores", "-m", tiny_run]
    text += ["--engine", "torch"]
    alone = [line.split("\t") for line in mt(*text).lines]
    twice = [line.split("\t") for line in mt(*text, "-m", tiny_run).lines]
    assert [output for _, output in alone] == [output for _, output in twice]
    assert [float(score) for score, _ in twice] == pytest.approx(
        [float(score) for score, _ in alone], abs=2e-4
    )


def test_two_models_differ_from_each_alone(mt: Mt, tiny_run: Path, tiny_corpus: Path) -> None:
    """Checkpoints of one run, 100 updates apart."""
    source = tiny_corpus / "test.src"
    one, other = (tiny_run / "checkpoints" / f"step-00000{step}" for step in (100, 200))
    models = (["-m", one], ["-m", other], ["-m", one, "-m", other], ["-m", other, "-m", one])
    outputs = [mt("translate", source, "--scores", *options).lines for options in models]
    assert outputs[2] not in outputs[:2]
    both, swapped = ([line.split("\t")[1] for line in lines] for lines in outputs[2:])
    assert both == swapped


def test_models_that_cannot_be_combined_are_refused(
    mt: Mt, tiny_run: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    other = copy_model(tiny_run, tmp_path / "other")
    lines = (tiny_corpus / "train.tgt").read_text(encoding="utf-8").upper().splitlines()
    tokenizer = tokenizer_of(TokenizerConfig(vocab_size=320), zip(lines, lines, strict=True))
    tokenizer.save(other)
    with changed_meta(other) as meta:
        meta["tokenizer"] = tokenizer.fingerprint
    source = tiny_corpus / "test.src"
    said = refused(mt("translate", source, "-m", tiny_run, "-m", other))
    assert says(said, f"--model {other}", "another vocabulary", tiny_run, "the same tokenizer")
    back = copy_model(tiny_run, tmp_path / "back")
    with changed_meta(back) as meta:
        meta["config"]["data"].update(src_lang="en", tgt_lang="de")
    said = refused(mt("translate", source, "-m", tiny_run, "-m", back))
    assert says(said, f"--model {back}", "en to de", tiny_run, "de to en", "one direction")
    said = refused(mt("translate", source, "-m", tiny_run, "-m", tiny_run, "--alignments"))
    assert says(said, "--alignments", "a single model", "only one")
