"""Attention weights of a sentence, as numbers, as text and as a picture."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from conftest import MonkeyPatch, Mt, refused
from messages import says

from mt.data.tokens.batches import collate
from mt.errors import ConfigError
from mt.inspect.attention import (
    SIDES,
    AttentionOfSentence,
    Kind,
    attention_maps,
    merged,
    read_attention,
)
from mt.inspect.pictures import saved_figure
from mt.model.checkpoint import LoadedModel

SENTENCE = "eins zwei drei acht"


def attention_of(loaded: LoadedModel, target: str | None, kind: Any) -> AttentionOfSentence:
    return read_attention(loaded, SENTENCE, target, kind)


# --- the weights ------------------------------------------------------------------------------


def test_words_are_on_the_axes(loaded: LoadedModel) -> None:
    source, words = (*SENTENCE.split(), "</s>"), ("one", "two", "three", "</s>")
    for target, kind, rows, columns in (
        ("one two three", "cross", words, source),
        (None, "encoder", source, source),
    ):
        shown = attention_of(loaded, target, kind)
        assert (shown.rows, shown.columns) == (rows, columns)
    # The decoder's are pieces: the mean of a word's would seem to see the pieces that follow.
    shown = attention_of(loaded, "one two three", "decoder")
    assert "".join(shown.rows) == "▁one▁two▁three</s>"
    assert shown.columns == ("<s>", *shown.rows[:-1])
    assert not np.triu(shown.weights, 1).any()


def test_weights_are_those_of_the_formula(loaded: LoadedModel) -> None:
    """softmax(Q K^T / sqrt(K)) in NumPy, from the model's matrices and its first layers' input."""
    model: Any = loaded.model.eval()
    batch = collate([(np.array([5, 9, 17, 8]), np.array([7, 6, 30]))])
    heads = loaded.config.model.n_heads
    with torch.no_grad():
        sides: dict[Kind, Any] = {
            "encoder": (
                model.src_embedding(batch.src, torch.float32),
                model.encoder[0].around_attention,
                model.encoder[0].attention,
            ),
            "decoder": (
                model.tgt_embedding(batch.tgt_in, torch.float32),
                model.decoder[0].around_self_attention,
                model.decoder[0].self_attention,
            ),
        }
        for kind, (x, around, attention) in sides.items():
            inner = around.norm(x)[0].double().numpy()  # the tiny model is pre-norm
            weight = attention.query_key_value.weight.double().numpy()
            bias = attention.query_key_value.bias.double().numpy()
            q, k, _ = np.split(inner @ weight.T + bias, 3, axis=1)
            width = q.shape[1] // heads
            found = attention_maps(model, batch, kind)[0, 0].numpy()
            for head in range(heads):
                columns = slice(head * width, (head + 1) * width)
                scores = q[:, columns] @ k[:, columns].T / np.sqrt(width)
                if kind == "decoder":
                    scores[np.triu_indices(len(scores), k=1)] = -np.inf
                expected = np.exp(scores - scores.max(1, keepdims=True))
                expected /= expected.sum(1, keepdims=True)
                np.testing.assert_allclose(found[head], expected, atol=1e-5)


def test_heads_of_a_trained_model(loaded: LoadedModel) -> None:
    """They look at different things, and some head of cross-attention at the word it translates.

    Mean total variation of two heads: 0 if they are alike, 1 if they share nothing.
    """
    for kind in SIDES:
        one, other = attention_of(loaded, "one two three eight", kind).weights[0]
        assert np.abs(one - other).sum(-1).mean() / 2 > 0.1, kind
        if kind == "cross":  # digits are translated one by one
            aligned = [np.mean(np.argmax(head[:4], 1) == np.arange(4)) for head in (one, other)]
            assert max(aligned) >= 0.75


def test_words_have_the_mean_of_rows_and_the_sum_of_columns() -> None:
    weights = np.array([[[[0.5, 0.25, 0.25], [0.0, 1.0, 0.0], [0.25, 0.25, 0.5]]]], np.float32)
    found = merged(weights, [0, 0, 1], [0, 1, 1])
    np.testing.assert_allclose(found, [[[[0.25, 0.75], [0.25, 0.75]]]])


# --- text and pictures ------------------------------------------------------------------------


WEIGHTS = np.array(
    [
        [[[0.9, 0.1], [0.2, 0.8]], [[0.5, 0.5], [0.5, 0.5]]],
        [[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]],
    ],
    np.float32,
)  # 2 layers, 2 heads


def test_a_layer_and_a_head_are_chosen_and_written_as_text() -> None:
    attention = AttentionOfSentence(WEIGHTS, ("one", "three"), ("eins", "drei"))
    for layer, head, first, title in (
        (None, None, [0.7, 0.3], "layer 1, mean of 2 heads"),
        (2, None, [0.5, 0.5], "layer 2, mean of 2 heads"),
        (2, 2, [0.0, 1.0], "layer 2, head 2"),
        (None, 1, [0.9, 0.1], "layer 1, head 1"),
    ):
        weights, said = attention.chosen(layer, head)
        np.testing.assert_allclose(weights[0], first, atol=1e-6)
        assert said == title
    text, _ = attention.as_text(1, 1)
    assert text == "one    eins 90 %, drei 10 %\nthree  drei 80 %, eins 20 %"
    wide = replace(attention, rows=("一", "three"))  # as wide as two letters
    assert wide.as_text(1, 1)[0] == "一     eins 90 %, drei 10 %\nthree  drei 80 %, eins 20 %"


def test_control_characters_leave_the_picture_valid(mt: Mt, tiny_run: Path, tmp_path: Path) -> None:
    options = ("--model", tiny_run, "eins \x1b[31mzwei\x9b \x00", "--target", "one\x07 two")
    assert mt("inspect", "attention", *options, "-o", tmp_path / "a.svg").code == 0
    content = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "␛[31mzwei" in content
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", content)
    ElementTree.parse(tmp_path / "a.svg")


def test_an_svg_holds_the_words_as_text(tmp_path: Path) -> None:
    path, again = tmp_path / "map.svg", tmp_path / "again.svg"
    attention = AttentionOfSentence(WEIGHTS, ("one", "<&$5"), ("eins", "zwei $"))
    attention.save_picture(path, 1, 1)
    svg = path.read_text(encoding="utf-8")
    for word in ("one", "&lt;&amp;$5", "eins", "zwei $"):
        assert f">{word}</text>" in svg
    assert "cross attention" in svg
    assert "target (looks) → source (looked at)" in svg
    attention.save_picture(again, 1, 1)
    assert again.read_bytes() == path.read_bytes()


def test_what_a_png_cannot_show(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "map.png"
    attention = AttentionOfSentence(WEIGHTS, ("a", "b"), ("c", "d"))
    caplog.set_level("INFO", "mt")
    attention.save_picture(path, 1, None)
    assert path.read_bytes().startswith(b"\x89PNG")
    replace(attention, columns=("一", "二")).save_picture(path, 1, None)
    too_large = r"would be 75,000 pixels wide or high, a \.png has"
    with pytest.raises(ConfigError, match=too_large), saved_figure(tmp_path / "large.png", 500, 1):
        pass
    assert list(tmp_path.iterdir()) == [path]
    with saved_figure(tmp_path / "large.svg", 500, 1):
        pass
    said = [message.split(": ", 1)[1][:14] for message in caplog.messages]
    assert said == ["written", "the font lacks", "written"]


# --- the command ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "name"), [("attention", "a.svg"), ("lr", "a.svg"), ("positions", "a.png")]
)
def test_only_what_mt_has_drawn_is_replaced(
    command: str, name: str, mt: Mt, tiny_run: Path, tmp_path: Path
) -> None:
    config = ("--config", "tiny.yaml")
    options = {"attention": ("--model", tiny_run, SENTENCE), "lr": config, "positions": config}
    output = tmp_path / name
    draw = ("inspect", command, *options[command], "-o", output)
    output.write_bytes(b"mine: mt inspect")
    assert says(refused(mt(*draw)), f"-o {output}", "not written by mt inspect", "another file")
    assert output.read_bytes() == b"mine: mt inspect"
    output.unlink()
    for _ in range(2):
        ended = mt(*draw)
        assert (ended.code, ended.err) == (0, f"mt: {output}: written\n")


def test_the_command_prints_and_draws(mt: Mt, tiny_run: Path, tmp_path: Path) -> None:
    target = ("--target", "one two three eight")
    attention = ("inspect", "attention", "--model", tiny_run, SENTENCE, *target)
    ended = mt(*attention)
    assert ended.code == 0, ended.err
    assert [line.split()[0] for line in ended.lines] == ["one", "two", "three", "eight", "</s>"]
    assert all(re.search(r"(eins|zwei|drei|acht|</s>) \d+ %", line) for line in ended.lines)
    assert ended.err == "mt: cross attention, layer 1, mean of 2 heads\n"
    own = mt("inspect", "attention", "--model", tiny_run, SENTENCE)  # the model's translation
    capitals = mt("inspect", "attention", "--model", tiny_run, SENTENCE.upper())
    assert capitals.out == own.out
    assert says(capitals.err, "mt translate", f": {SENTENCE}\n")
    marked = mt("inspect", "attention", "--model", tiny_run, f"• {SENTENCE.upper()}\u200b 😀")
    assert (marked.out, marked.err) == (own.out, capitals.err)
    path = tmp_path / "map.svg"
    ended = mt(*attention, "--kind", "decoder", "-o", path)
    assert (ended.code, ended.out, ended.err) == (0, b"", f"mt: {path}: written\n")
    assert "&lt;s&gt;</text>" in path.read_text(encoding="utf-8")


def test_messages(mt: Mt, tiny_run: Path, tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for options, parts in [
        (["  "], ["the sentence", "blank", "give"]),
        ([SENTENCE, "--target", ""], ["--target", "blank", "give"]),
        (["eins " * 80], ["the sentence", "240", "63", "shorter"]),
        ([SENTENCE, "--kind", "a"], ["--kind", "cross, encoder or decoder", "'a'"]),
        ([SENTENCE, "--layer", "2"], ["--layer", "1 to 1", "2"]),
        ([SENTENCE, "--head", "0"], ["--head", "1 to 2", "0"]),
        ([SENTENCE, "--head", "3", "-o", "a.svg"], ["--head", "1 to 2", "3"]),
        ([SENTENCE, "-o", "a.jpg"], ["-o a.jpg", ".svg or .png"]),
        ([SENTENCE, "-o", "nowhere/a.svg"], ["-o nowhere/a.svg", "cannot be written", "elsewhere"]),
    ]:  # fmt: skip
        assert says(refused(mt("inspect", "attention", "--model", tiny_run, *options)), *parts)
        assert list(tmp_path.iterdir()) == []
