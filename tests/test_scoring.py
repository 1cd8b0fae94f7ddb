"""Given translations: their scores by other roads, the attention they come from, and `mt score`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Mt, refused, write_lines
from torch import Tensor

from mt.data.batches import collate
from mt.decoding.alignment import (
    cross_attention,
    joined_word_links,
    parse_heads,
    word_links,
    word_numbers,
)
from mt.decoding.inference import Inference
from mt.decoding.scoring import ForcedDecoder
from mt.errors import ConfigError
from mt.model import transformer
from mt.model.checkpoint import LoadedModel, load_model
from mt.runtime.devices import Device

CPU = Device(torch.device("cpu"), "fp32")


@pytest.fixture(scope="module")
def loaded(tiny_run: Path) -> LoadedModel:
    return load_model(tiny_run)


@pytest.fixture(scope="module")
def pairs(loaded: LoadedModel, tiny_corpus: Path) -> list[tuple[list[int], list[int]]]:
    sides = [
        (tiny_corpus / f"test.{side}").read_text(encoding="utf-8").splitlines()
        for side in ("src", "tgt")
    ]
    return list(
        zip(
            loaded.tokenizer.encode_src(sides[0]),
            loaded.tokenizer.encode_tgt(sides[1]),
            strict=True,
        )
    )


# --- log-probabilities --------------------------------------------------------------------------


def test_each_log_probability_is_that_of_the_token_after_those_before_it(
    loaded: LoadedModel, pairs: list[tuple[list[int], list[int]]]
) -> None:
    """One token at a time, each from a whole forward pass over what stands before it."""
    src, tgt = pairs[3]
    (reading,) = ForcedDecoder(Inference(loaded.model, CPU)).score([(src, tgt)])
    source = torch.tensor([[*src, 3]])
    expected = []
    for place, token in enumerate([*tgt, 3]):
        before = torch.tensor([[2, *tgt[:place]]])
        with torch.inference_mode():
            logits = loaded.model.output(loaded.model(source, before, source > 0))[0, -1]
        expected.append(float(logits.double().softmax(0)[token].log()))
    assert reading.log_probs == pytest.approx(expected, abs=1e-5)
    assert reading.attention is None


def test_what_shares_the_batch_does_not_matter(
    loaded: LoadedModel, pairs: list[tuple[list[int], list[int]]]
) -> None:
    inference = Inference(loaded.model, CPU)
    together = ForcedDecoder(inference, "auto").score(pairs)
    alone = ForcedDecoder(inference, "auto", batch_tokens=1).score(pairs)
    for one, other, (src, tgt) in zip(together, alone, pairs, strict=True):
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-5)
        assert one.attention is not None
        assert other.attention is not None
        assert one.attention.shape == (len(tgt) + 1, len(src) + 1)
        torch.testing.assert_close(one.attention, other.attention, rtol=1e-4, atol=1e-5)


def test_a_pair_the_model_cannot_reach_has_no_score(loaded: LoadedModel) -> None:
    most = loaded.config.model.max_positions - 1
    readings = ForcedDecoder(Inference(loaded.model, CPU)).score(
        [([9] * most, [9]), ([9], [9] * (most + 1)), ([9], [9])]
    )
    assert [len(reading.log_probs) for reading in readings] == [2, 0, 2]


# --- attention ----------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_maps_are_those_of_the_forward_pass(
    norm: str,
    loaded: LoadedModel,
    pairs: list[tuple[list[int], list[int]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same as what the model itself multiplies its values with; rows sum to 1, padding has exactly 0."""
    config = loaded.config.model.model_copy(
        update={"norm": norm, "n_decoder_layers": 3, "n_encoder_layers": 2}
    )
    torch.manual_seed(0)
    model = transformer.Transformer(config, 320, 320, joint=True).eval()
    batch = collate([(np.array(src), np.array(tgt)) for src, tgt in pairs[:6]])
    maps = cross_attention(model, batch)  # (B, L, H, T, S)

    seen: list[Tensor] = []
    attend = transformer.attend

    def spy(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: float) -> Tensor:
        assert bias is not None
        seen.append(((q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1]) + bias).softmax(-1))
        return attend(q, k, v, bias, dropout)

    monkeypatch.setattr(transformer, "attend", spy)
    with torch.inference_mode():
        model(batch.src, batch.tgt_in, batch.src_mask)
    crossed = seen[2:][1::2]  # after the encoder's 2: own, cross, own, cross, ...
    torch.testing.assert_close(maps, torch.stack(crossed, dim=1), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(maps.sum(-1), torch.ones(maps.shape[:-1]))
    hidden = ~batch.src_mask[:, None, None, None, :].expand_as(maps)
    assert hidden.any()
    assert not maps[hidden].any()


def test_heads_by_name() -> None:
    assert parse_heads("auto", 6, 2) == [(4, 0), (4, 1)]
    assert parse_heads("auto", 1, 2) == [(0, 0), (0, 1)]
    assert parse_heads("2", 6, 2) == [(1, 0), (1, 1)]
    assert parse_heads("1:2, 3:1", 6, 2) == [(0, 1), (2, 0)]
    shape = "--alignment-heads: must be LAYER or LAYER:HEAD, separated by commas, found"
    for text in ("", "1:", "a", "1:2:3", "-1"):
        with pytest.raises(ConfigError) as error:
            parse_heads(text, 6, 2)
        assert str(error.value) == f"{shape} {text!r}"
    for text in ("7", "0", "1:3", "1:0"):
        with pytest.raises(ConfigError) as error:
            parse_heads(text, 6, 2)
        assert str(error.value) == (
            f"--alignment-heads: the decoder has layers 1 to 6 with heads 1 to 2, found {text!r}"
        )


# --- from pieces to words -----------------------------------------------------------------------


def test_words_begin_at_spaces() -> None:
    assert word_numbers(["▁Hau", "s", "▁ist", "▁", "1", "9", "."]) == [0, 0, 1, 2, 2, 2, 2]
    assert word_numbers(["▁", "▁a", "▁b"]) == [0, 0, 1]  # two spaces are one
    assert word_numbers(["s", "▁a"]) == [0, 1]
    assert word_numbers(["▁a", "▁"]) == [0, 0]  # one at the end is none
    assert word_numbers(["▁"]) == [0]
    assert word_numbers([]) == []


def test_a_word_is_linked_to_the_word_its_pieces_look_at_most() -> None:
    """By hand: `a b` from `X YZ W`, Y and Z being pieces of one word."""
    attention = torch.tensor(
        [
            # ▁X  ▁Y   Z   ▁W  eos
            [0.4, 0.3, 0.3, 0.0, 0.0],  # ▁a: Y and Z together beat X
            [0.5, 0.0, 0.0, 0.2, 0.3],  # ▁b
            [0.0, 0.0, 0.0, 0.6, 0.4],  # c, of the same word as ▁b: 0.8 for W against 0.5 for X
            [0.9, 0.1, 0.0, 0.0, 0.0],  # eos
        ]
    )
    assert word_links(attention, ["▁X", "▁Y", "Z", "▁W"], ["▁a", "▁b", "c"]) == "1-0 2-1"
    assert word_links(attention, ["▁X"], []) == ""


def test_links_of_parts_are_counted_through() -> None:
    """The second part begins within a source word that was cut, and its output begins a new word all the same."""
    first = torch.tensor([[0.9, 0.1, 0.0], [0.1, 0.9, 0.0], [0.0, 0.0, 1.0]])
    second = torch.tensor([[0.1, 0.6, 0.3], [0.0, 0.0, 1.0]])
    parts = [(first, ["▁A", "▁B"], ["▁a", "▁b"]), (second, ["b", "▁C"], ["c"])]
    assert joined_word_links(parts) == "0-0 1-1 2-2"


def test_a_trained_model_reads_digit_for_digit(
    mt: Mt, tiny_run: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    """It translates word for word in order: where its output is right, nearly all links must lie on the diagonal."""
    ended = mt(
        "translate", "-m", tiny_run, tiny_corpus / "test.src", "--precision", "fp32", "--alignments"
    )
    references = (tiny_corpus / "test.tgt").read_text(encoding="utf-8").splitlines()
    sources = (tiny_corpus / "test.src").read_text(encoding="utf-8").splitlines()
    good = total = 0
    for line, source, reference in zip(ended.lines, sources, references, strict=True):
        text, aligned = line.split("\t")
        found = [tuple(map(int, link.split("-"))) for link in aligned.split()]
        assert [target for _, target in found] == list(range(len(text.split())))
        assert all(0 <= number < len(source.split()) for number, _ in found)
        if text == reference:
            total += len(found)
            good += sum(number == target for number, target in found)
    assert total > 20
    assert good / total > 0.8


def test_a_line_in_pieces_is_aligned_as_one(mt: Mt, tiny_run: Path, tmp_path: Path) -> None:
    """Every word of the output has its link, and the words that it comes from move on from piece to piece."""
    words = [word for _ in range(60) for word in ("eins", "zwei", "drei,")]
    write_lines(tmp_path / "in", [" ".join(words), "", "eins"])
    ended = mt("translate", "-m", tiny_run, tmp_path / "in", "--precision", "fp32", "--alignments")
    assert "translated in pieces: line 1)" in ended.err
    text, aligned = ended.lines[0].split("\t")
    found = [tuple(map(int, link.split("-"))) for link in aligned.split()]
    assert [target for _, target in found] == list(range(len(text.split())))
    places = [number for number, _ in found]
    assert min(places) < 10
    assert len(words) - 10 < max(places) < len(words)
    assert ended.lines[1] == "\t"


# --- mt score -----------------------------------------------------------------------------------


def test_the_score_of_a_translation_is_the_one_that_the_search_gave_it(
    mt: Mt, tiny_run: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    source = tiny_corpus / "test.src"
    for size in (1, 3):
        exact = ["--precision", "fp32", "--length-penalty", "0.7"]
        found = mt(
            "translate", "-m", tiny_run, source, "--beam-size", size, "--scores", *exact
        ).lines
        scores, texts = zip(*(line.split("\t") for line in found), strict=True)
        write_lines(tmp_path / "out", list(texts))
        given = mt("score", "-m", tiny_run, "--src", source, "--tgt", tmp_path / "out", *exact)
        assert [float(line) for line in given.lines] == pytest.approx(
            [float(one) for one in scores], abs=2e-4
        )


def test_scores_as_json(mt: Mt, tiny_run: Path, tiny_corpus: Path, loaded: LoadedModel) -> None:
    ended = mt(
        "score", "-m", tiny_run, "--src", tiny_corpus / "test.src", "--tgt", tiny_corpus / "test.tgt", "--json",
        "--alignments", "--length-penalty", "1",
    )  # fmt: skip
    assert ended.code == 0
    rows: list[dict[str, Any]] = [json.loads(line) for line in ended.lines]
    targets = (tiny_corpus / "test.tgt").read_text(encoding="utf-8").splitlines()
    tokens = 0
    for row, target in zip(rows, targets, strict=True):
        assert row["tokens"] == [*loaded.tokenizer.tgt_pieces(target), "</s>"]
        assert row["log_prob"] == pytest.approx(sum(row["token_log_probs"]), abs=1e-4)
        assert row["score"] == pytest.approx(row["log_prob"] / len(row["tokens"]), abs=1e-4)
        assert len(row["alignment"].split()) == len(target.split())
        tokens += len(row["tokens"])
    perplexity = math.exp(-sum(row["log_prob"] for row in rows) / tokens)
    assert "mt: 40 pairs in " in ended.err
    assert f"perplexity {perplexity:.2f} over {tokens:,} tokens" in ended.err


def test_pairs_that_have_no_score_are_counted(mt: Mt, tiny_run: Path, tmp_path: Path) -> None:
    """A blank side is a pair like any other: the probability that the model ends at once, or goes on."""
    write_lines(tmp_path / "src", ["eins", "", "zwei", " "])
    write_lines(tmp_path / "tgt", ["one", "one", "two " * 99, ""])
    found = mt(
        "score",
        "-m",
        tiny_run,
        "--src",
        tmp_path / "src",
        "--tgt",
        tmp_path / "tgt",
        "--alignments",
    )
    first, second, third, fourth = (line.split("\t") for line in found.lines)
    assert (first[1], second[1], third, fourth[1]) == ("0-0", "", ["nan", ""], "")
    assert all(float(one[0]) < 0 for one in (first, second, fourth))
    assert "mt: 4 pairs (1 too long for the model, scored nan: line 3) in " in found.err
    as_json = mt(
        "score", "-m", tiny_run, "--src", tmp_path / "src", "--tgt", tmp_path / "tgt", "--json"
    )
    assert json.loads(as_json.lines[2])["score"] is None


def test_what_cannot_be_scored(mt: Mt, tiny_run: Path, tmp_path: Path) -> None:
    write_lines(tmp_path / "two", ["eins", "zwei"])
    write_lines(tmp_path / "three", ["one", "two", "three"])
    options = ["-m", tiny_run, "-o", tmp_path / "out"]
    for src, tgt, short, long in (
        ("two", "three", "--src", "--tgt"),
        ("three", "two", "--tgt", "--src"),
    ):
        said = refused(mt("score", *options, "--src", tmp_path / src, "--tgt", tmp_path / tgt))
        assert said.startswith(
            f"{short}: ends before line 3, {long} has more lines; line n of one must belong to line n of"
        )
        assert not (tmp_path / "out").exists()
    assert refused(mt("score", *options, "--src", "-", "--tgt", "-")) == (
        "--src, --tgt: only one of them can be stdin; name a file for the other"
    )
    said = refused(
        mt(
            "score",
            *options,
            "--src",
            tmp_path / "two",
            "--tgt",
            tmp_path / "two",
            "--alignment-heads",
            "2",
        )
    )
    assert said == "--alignment-heads: the decoder has layers 1 to 1 with heads 1 to 2, found '2'"
