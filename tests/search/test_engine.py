"""The engine at its limits: batches beyond the memory, very wide beams; and ensembles."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from conftest import Mt, refused
from messages import says
from model_files import changed_meta, copy_model
from token_stores import tokenizer_of
from torch import Tensor

from mt.config.schema import TokenizerConfig
from mt.data.tokens.plan import batch_ends, bucket, micro_batches
from mt.data.tokens.tokenizer import EOS
from mt.errors import ConfigError
from mt.model.checkpoint import LoadedModel
from mt.runtime.devices import Device
from mt.search.engine import TorchEngine
from mt.search.engine_contract import memory_error
from mt.search.inference import EnsembleDecoding, Inference
from mt.search.search import Stepper, greedy_search
from mt.translate.loaded_engine import LoadedEngine, batch_cuts
from mt.translate.translator import Translator, make_translator

CPU = Device(torch.device("cpu"), "fp32")


def translator(loaded: LoadedModel, engine: TorchEngine, **values: Any) -> Translator:
    return make_translator(
        LoadedEngine(engine=engine, tokenizer=loaded.tokenizer, max_source=32, **values)
    )


def test_a_batch_beyond_the_memory_is_one_message(loaded: LoadedModel) -> None:
    """8 PB are more than any process can address."""
    decode = loaded.config.decode.model_copy(update={"beam_size": 10**15})
    engine = TorchEngine(Inference(loaded.model, CPU), decode)
    with translator(loaded, engine) as one, pytest.raises(ConfigError) as caught:
        list(one.translate(["eins"]))
    assert re.fullmatch(
        r"decoding: a batch of 1 sentence with 1,000,000,000,000,000 hypotheses each does "
        r"not fit into the memory of CPU: [\d,]+ MB were in use\. Lower --beam-size "
        r"\(decode\.beam_size\), decode\.max_len_factor or .*",
        str(caught.value),
    )
    several = str(memory_error(2, 5, "CPU"))
    assert says(several, "2 sentences with 5 hypotheses", "--beam-size", "--batch-tokens")


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_a_batch_that_does_not_fit_is_searched_in_halves(
    loaded: LoadedModel, tiny_corpus: Path, error: type[Exception]
) -> None:
    """The summary says so once."""
    lines = (tiny_corpus / "test.src").read_text(encoding="utf-8").split("\n")[:7]

    def start(src: Tensor, src_mask: Tensor, n_hypotheses: int) -> Stepper:
        if len(src) > 3:
            raise error
        return real(src, src_mask, n_hypotheses)

    def outputs(engine: TorchEngine) -> tuple[list[tuple[str, ...]], str]:
        with translator(loaded, engine) as halving:
            return [one.texts for one in halving.translate(lines)], halving.summary()

    engine = TorchEngine(Inference(loaded.model, CPU), loaded.config.decode)
    expected, summary = outputs(engine)
    assert "halves" not in summary
    real = engine.model.start
    with mock.patch.object(engine.model, "start", start):
        found, summary = outputs(engine)
    assert found == expected
    said = re.findall(r"(\d+) batch(?:es)? too large for the memory, translated in halves", summary)
    assert said == ["2"]  # 7 = 3 + 4, 4 = 2 + 2


def test_no_batch_has_more_rows_than_the_grid_of_a_cuda_kernel() -> None:
    """Of translation, scoring, validation and training: 70,000 sentences of one token."""
    ones = np.ones(70_000, np.int64)
    for ends in (
        batch_ends(ones, 100_000),  # also of scoring
        [*batch_cuts(ones, 100_000), 70_000],
        [*batch_cuts(ones, 100_000, workers=2), 70_000],
        np.cumsum([len(each) for each in bucket(ones, ones, np.arange(70_000), 200_000)]),
        micro_batches([ones], 100_000),
    ):
        sizes = np.diff(ends, prepend=0)
        assert (sizes.sum(), sizes.max() <= 65_535) == (70_000, True)


# --- ensembles ------------------------------------------------------------------------------------


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


def test_a_model_twice_is_that_model(mt: Mt, tiny_run: Path, tiny_corpus: Path) -> None:
    text = ["translate", tiny_corpus / "test.src", "--precision=fp32", "--scores", "-m", tiny_run]
    text += ["--engine", "torch"]
    alone = [line.split("\t") for line in mt(*text).lines]
    twice = [line.split("\t") for line in mt(*text, "-m", tiny_run).lines]
    assert [output for _, output in alone] == [output for _, output in twice]
    assert [float(score) for score, _ in twice] == pytest.approx(
        [float(score) for score, _ in alone], abs=2e-4
    )


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
