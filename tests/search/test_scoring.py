"""Scores of given translations: against the plain model, against the search, and `mt score`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from conftest import Mt, lines_of, refused, write_lines
from messages import says
from torch import Tensor

from mt.data.tokens.batches import collate
from mt.errors import ConfigError
from mt.model.checkpoint import LoadedModel
from mt.model.transformer import Transformer
from mt.runtime.devices import Device
from mt.search.alignment import cross_attention
from mt.search.inference import Inference
from mt.search.scoring import ForcedDecoder

CPU = Device(torch.device("cpu"), "fp32")


def test_a_batch_that_does_not_fit_is_scored_in_halves(
    loaded: LoadedModel, pairs: list[tuple[list[int], list[int]]]
) -> None:
    decoder = ForcedDecoder(Inference(loaded.model, CPU))
    expected = decoder.log_probs(pairs[:7]), decoder.attention(pairs[:7])
    model, most = decoder.inference.model, 3
    encode = model.encode

    def limited(src: Tensor, *others: Any) -> Tensor:
        if len(src) > most:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 8 PB")
        return encode(src, *others)

    with mock.patch.object(model, "encode", limited):
        found = decoder.log_probs(pairs[:7]), decoder.attention(pairs[:7])
        for one, other in zip(found[0], expected[0], strict=True):
            assert one == pytest.approx(other, abs=1e-5)
        torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-5)
        most = 0
        with pytest.raises(ConfigError) as caught:
            decoder.log_probs([([9], [10]), ([9, 10], [10])])
    assert says(str(caught.value), "scoring: a pair of 2 and 1 tokens", "CPU", "MB", "Shorten")


# --- log-probabilities --------------------------------------------------------------------------


def test_each_log_probability_is_conditioned_on_the_tokens_before_it(
    loaded: LoadedModel, pairs: list[tuple[list[int], list[int]]]
) -> None:
    """One token at a time, each from a whole forward pass over the tokens before it."""
    src, tgt = pairs[3]
    (scores,) = ForcedDecoder(Inference(loaded.model, CPU)).log_probs([(src, tgt)])
    source = torch.tensor([[*src, 3]])
    expected = []
    for place, token in enumerate([*tgt, 3]):
        before = torch.tensor([[2, *tgt[:place]]])
        with torch.inference_mode():
            logits = loaded.model.output(loaded.model(source, before, source > 0))[0, -1]
        expected.append(float(logits.double().softmax(0)[token].log()))
    assert scores == pytest.approx(expected, abs=1e-5)


def test_scores_do_not_depend_on_the_batch(
    loaded: LoadedModel, pairs: list[tuple[list[int], list[int]]]
) -> None:
    inference = Inference(loaded.model, CPU)
    together, alone = ForcedDecoder(inference), ForcedDecoder(inference, batch_tokens=1)
    for one, other in zip(together.log_probs(pairs), alone.log_probs(pairs), strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    maps = together.attention(pairs)
    torch.testing.assert_close(maps, alone.attention(pairs), rtol=1e-4, atol=1e-5)
    for found, (src, tgt) in zip(maps, pairs, strict=True):
        assert found is not None
        assert found.shape == (len(tgt) + 1, len(src) + 1)
    assert together.attention([]) == together.log_probs([]) == []


@pytest.mark.parametrize(("n_layers", "aligns"), [(1, 0), (4, 2)])
def test_the_last_decoder_layer_but_one_aligns(
    n_layers: int, aligns: int, loaded: LoadedModel, pairs: list[tuple[list[int], list[int]]]
) -> None:
    torch.manual_seed(0)
    shape = loaded.config.model.model_copy(update={"n_decoder_layers": n_layers})
    inference = Inference(Transformer(shape, 320, 320, joint=True), CPU)
    (src, tgt) = pairs[0]
    (found,) = ForcedDecoder(inference).attention([(src, tgt)])
    batch = collate([(np.array(src), np.array(tgt))])
    layers = [weights[0] for weights in cross_attention(inference.model, batch)]
    torch.testing.assert_close(found, layers[aligns].mean(0))


def test_a_pair_too_long_for_the_model_has_no_score(loaded: LoadedModel) -> None:
    most = loaded.config.model.max_positions - 1
    decoder = ForcedDecoder(Inference(loaded.model, CPU))
    given = [([9] * most, [9]), ([9], [9] * (most + 1)), ([9], [9])]
    assert [len(scores) for scores in decoder.log_probs(given)] == [2, 0, 2]
    assert decoder.attention(given)[1] is None


# --- mt score -----------------------------------------------------------------------------------


def test_the_score_of_a_translation_is_that_of_the_search(
    mt: Mt, tiny_run: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    source = tiny_corpus / "test.src"
    for size in (1, 3):
        exact = ["--precision", "fp32", "--length-penalty", "0.7"]
        search = ["--beam-size", size, "--scores", "--engine", "torch"]
        searched = mt("translate", "-m", tiny_run, source, *search, *exact)
        scores, texts = zip(*(line.split("\t") for line in searched.lines), strict=True)
        write_lines(tmp_path / "out", list(texts))
        given = mt("score", "-m", tiny_run, "--src", source, "--tgt", tmp_path / "out", *exact)
        expected = pytest.approx([float(one) for one in scores], abs=2e-4)
        assert [float(line) for line in given.lines] == expected


def test_scores_as_json(mt: Mt, tiny_run: Path, tiny_corpus: Path, loaded: LoadedModel) -> None:
    files = ["--src", tiny_corpus / "test.src", "--tgt", tiny_corpus / "test.tgt"]
    options = ["--json", "--length-penalty", "1"]
    ended = mt("score", "-m", tiny_run, *files, *options)
    assert ended.code == 0
    rows: list[dict[str, Any]] = [json.loads(line) for line in ended.lines]
    targets = lines_of(tiny_corpus / "test.tgt")
    tokens = 0
    for row, target in zip(rows, targets, strict=True):
        assert row["tokens"] == [*loaded.tokenizer.tgt.pieces(target), "</s>"]
        assert row["log_prob"] == pytest.approx(sum(row["token_log_probs"]), abs=1e-4)
        assert row["score"] == pytest.approx(row["log_prob"] / len(row["tokens"]), abs=1e-4)
        tokens += len(row["tokens"])
    perplexity = math.exp(-sum(row["log_prob"] for row in rows) / tokens)
    assert "mt: 40 pairs in " in ended.err
    assert f"perplexity {perplexity:.2f} over {tokens:,} tokens" in ended.err


def test_pairs_that_have_no_score_are_counted(mt: Mt, tiny_run: Path, tmp_path: Path) -> None:
    """A blank side has a score: of ending at once, or of these words for no source."""
    write_lines(tmp_path / "src", ["eins", "", "zwei", " "])
    write_lines(tmp_path / "tgt", ["one", "one", "two " * 99, ""])
    score = ["score", "-m", tiny_run, "--src", tmp_path / "src", "--tgt", tmp_path / "tgt"]
    found = mt(*score)
    first, second, third, fourth = found.lines
    assert third == "nan"
    assert all(float(one) < 0 for one in (first, second, fourth))
    assert says(found.err, "mt: 4 pairs", "1 too long", "nan", "line 3")
    assert json.loads(mt(*score, "--json").lines[2])["score"] is None


def test_unequal_files_are_refused(mt: Mt, tiny_run: Path, tmp_path: Path) -> None:
    write_lines(tmp_path / "two", ["eins", "zwei"])
    write_lines(tmp_path / "three", ["one", "two", "three"])
    options = ["-m", tiny_run, "-o", tmp_path / "out"]
    for src, tgt, short, long in (
        ("two", "three", "--src", "--tgt"),
        ("three", "two", "--tgt", "--src"),
    ):
        said = refused(mt("score", *options, "--src", tmp_path / src, "--tgt", tmp_path / tgt))
        assert says(said, short, "before line 3", long, "more lines")
        assert not (tmp_path / "out").exists()
    said = refused(mt("score", *options, "--src", "-", "--tgt", "-"))
    assert says(said, "--src, --tgt", "only one", "stdin", "a file")
