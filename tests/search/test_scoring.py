"""Scores and word alignments of given translations: against the plain model, and by hand."""

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
from messages import raises_saying, says
from torch import Tensor

from mt.data.tokens.batches import collate
from mt.errors import ConfigError
from mt.model.checkpoint import LoadedModel
from mt.model.transformer import Transformer
from mt.runtime.devices import Device
from mt.search.alignment import (
    begin_no_word,
    character_units,
    cross_attention,
    joined_word_links,
    links_within,
    word_links,
    word_numbers,
)
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
        parts = "scoring: a pair of 2 and 1 tokens", "CPU", "MB", "Shorten"
        with raises_saying(ConfigError, *parts):
            decoder.log_probs([([9], [10]), ([9, 10], [10])])


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
    ended = mt("score", "-m", tiny_run, *files, "--json", "--length-penalty", "1")
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


# --- from pieces to words -----------------------------------------------------------------------


def test_words_begin_at_spaces() -> None:
    assert word_numbers(["▁Hau", "s", "▁ist", "▁", "1", "9", "."]) == [0, 0, 1, 2, 2, 2, 2]
    assert word_numbers(["▁", "▁a", "▁b"]) == [0, 0, 1]  # two spaces are one
    assert word_numbers(["s", "▁a"]) == [0, 1]
    assert word_numbers(["▁a", "▁"]) == [0, 0]  # one at the end is none
    assert word_numbers(["▁"]) == [0]
    assert word_numbers([]) == []


def test_a_word_is_linked_to_the_word_it_attends_to_most() -> None:
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
    pieces = ["▁X", "▁Y", "Z", "▁W"], ["▁a", "▁b", "c"]
    assert word_links(attention, *pieces, "X YZ W", "a bc") == "1-0 2-1"
    assert word_links(attention, ["▁X"], [], "X", "") == ""


def test_without_spaces_pieces_are_named_by_their_characters() -> None:
    """By hand: 私は 学生 🐈 in four pieces and four bytes, to `I am a ...`; and back."""
    bytes_of_cat = ["<0xF0>", "<0x9F>", "<0x90>", "<0x88>"]
    japanese = ["▁", "私は", "▁学生", *bytes_of_cat]
    attention = torch.zeros(3, 8)
    attention[0, :2] = torch.tensor([0.2, 0.3])
    attention[0, 2] = 0.4  # less than ▁ and 私は, which are one unit
    attention[1, 2] = 1.0
    attention[2, 3:7] = 0.2  # the character that four bytes spell
    attention[2, 1] = 0.5
    english = ["▁I", "▁student", "▁cat"], "I student cat"
    line = "私は\u3000学生🐈"  # a wide space
    assert word_links(attention, japanese, english[0], line, english[1]) == "0:2-0 3:5-1 5:6-2"
    back = attention.T.contiguous()
    assert word_links(back, english[0], japanese, english[1], line) == "0-0:2 1-3:5 2-5:6"
    spaced = ["私は", "▁", *bytes_of_cat, "▁"]  # a space belongs to what follows, as with words
    assert character_units(spaced) == ([0, 1, 1, 1, 1, 1, 1], ["私は", "🐈"])
    assert character_units(["▁"]) == ([0], [""])
    thai = "ฉันรักแมว"
    unknown = ["▁ฉ", "ัน", "<unk>", "แมว"]  # a vowel sign; and what ends where the next begins
    attention = torch.eye(4)[1:]
    assert word_links(attention, unknown, ["▁I", "▁love", "▁cats"], thai, "I love cats") == (
        "0:3-0 3:6-1 6:9-2"
    )


def test_links_of_parts_are_numbered_through() -> None:
    """The second part begins inside a source word, but its output begins a new word."""
    first = torch.tensor([[0.9, 0.1, 0.0], [0.1, 0.9, 0.0], [0.0, 0.0, 1.0]])
    second = torch.tensor([[0.1, 0.6, 0.3], [0.0, 0.0, 1.0]])
    parts = [(first, ["▁A", "▁B"], ["▁a", "▁b"]), (second, ["b", "▁C"], ["c"])]
    assert joined_word_links(parts, "A Bb C", "a b c") == "0-0 1-1 2-2"
    parts = [(first, ["▁私は", "▁猫"], ["▁a", "▁b"]), (second, ["▁。", "犬"], ["c"])]
    assert joined_word_links(parts, "私は猫。犬", "a b c") == "0:2-0 2:3-1 4:5-2"


def test_a_part_without_a_space_before_it_begins_no_word() -> None:
    """As in `A!B C`; a tag that each part begins with is not in the line."""
    second = ["", "▁", "▁B", "▁C"]
    begin_no_word(second)
    assert second == ["", "", "B", "▁C"]
    tagged = ["<bt>", "▁B", "▁C"]
    begin_no_word(tagged, {"<bt>"})
    assert tagged == ["<bt>", "B", "▁C"]
    parts = [(torch.eye(2), ["▁A", "!"], ["▁a", "!"]), (torch.eye(4)[2:], second, ["▁b", "▁c"])]
    assert joined_word_links(parts, "A!B C", "a! b c") == "0-0 0-1 1-2"


def test_links_beyond_what_a_line_has_left_are_dropped() -> None:
    """A final stop of its own is taken off again, of the source and of the translation."""
    assert links_within("0-0 2-1 1-2 3-3", "a b c", "d e f") == "0-0 2-1 1-2"
    assert links_within("0:1-0:1 4:5-1:2 2:3-2:3", "か\u3099" * 4, "犬。") == "0:1-0:1"
    assert links_within("0:1-0:1 1:2-1:4", "犬だ", "犬です") == "0:1-0:1 1:2-1:3"


def test_a_trained_model_aligns_digit_to_digit(
    mt: Mt, tiny_run: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    """It translates word for word: where it is right, nearly all links lie on the diagonal."""
    source = tiny_corpus / "test.src"
    ended = mt("translate", "-m", tiny_run, source, "--precision", "fp32", "--alignments")
    references = lines_of(tiny_corpus / "test.tgt")
    sources = lines_of(source)
    good = total = 0
    for line, words, reference in zip(ended.lines, sources, references, strict=True):
        text, aligned = line.split("\t")
        found = [tuple(map(int, link.split("-"))) for link in aligned.split()]
        assert [target for _, target in found] == list(range(len(text.split())))
        assert all(0 <= number < len(words.split()) for number, _ in found)
        if text == reference:
            total += len(found)
            good += sum(number == target for number, target in found)
    assert total > 20
    assert good / total > 0.8


def test_a_line_in_pieces_is_aligned_as_one(mt: Mt, tiny_run: Path, tmp_path: Path) -> None:
    """Every output word has a link, and the source words advance from piece to piece."""
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
