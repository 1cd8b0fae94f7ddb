"""Attention weights of a sentence, and their pictures."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Mt, refused

from mt.data.tokens.batches import collate
from mt.errors import ConfigError
from mt.inspect.attention import KINDS, attention_maps, merged, read_attention, read_attentions
from mt.inspect.attention_map import as_text, chosen, save_picture
from mt.inspect.pictures import save_figure
from mt.model.checkpoint import LoadedModel
from mt.runtime.devices import choose_device
from mt.search.engine import TorchEngine

SENTENCE = "eins zwei drei acht"


# --- the weights ------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_sum_to_one(loaded: LoadedModel, kind: str, pieces: bool) -> None:
    found = read_attention(loaded, choose_device("cpu"), SENTENCE, kind=kind, pieces=pieces)
    model = loaded.config.model
    layers = model.n_encoder_layers if kind == "encoder" else model.n_decoder_layers
    assert found.weights.shape == (layers, model.n_heads, len(found.rows), len(found.columns))
    assert found.weights.min() >= 0
    np.testing.assert_allclose(found.weights.sum(-1), 1, atol=1e-5)


def test_words_are_on_the_axes(loaded: LoadedModel) -> None:
    device = choose_device("cpu")
    source = (*SENTENCE.split(), "</s>")
    cross = read_attention(loaded, device, SENTENCE, "one two three")
    assert (cross.rows, cross.columns) == (("one", "two", "three", "</s>"), source)
    encoder = read_attention(loaded, device, SENTENCE, kind="encoder")
    assert (encoder.rows, encoder.columns) == (source, source)
    decoder = read_attention(loaded, device, SENTENCE, "one two", kind="decoder")
    assert (decoder.rows, decoder.columns) == (("one", "two", "</s>"), ("<s>", "one", "two"))


def test_pieces_are_on_the_axes_where_asked_for(loaded: LoadedModel) -> None:
    found = read_attention(loaded, choose_device("cpu"), "eins", "seventeen", pieces=True)
    assert len(found.rows) > 2
    assert "".join(found.rows) == "▁seventeen</s>"


def test_the_decoder_looks_only_at_what_is_written(loaded: LoadedModel) -> None:
    found = read_attention(loaded, choose_device("cpu"), SENTENCE, kind="decoder", pieces=True)
    assert np.triu(found.weights, k=1).max() == 0


def test_weights_are_those_of_the_formula(loaded: LoadedModel) -> None:
    """softmax(Q K^T / sqrt(K)) in NumPy, from the model's matrices and its first layers' input."""
    model: Any = loaded.model.eval()
    batch = collate([(np.array([5, 9, 17, 8]), np.array([7, 6, 30]))])
    heads = loaded.config.model.n_heads
    with torch.no_grad():
        sides = {
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
            projected = inner @ weight.T + bias
            q, k, _ = np.split(projected, 3, axis=1)
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


def test_heads_of_a_trained_model_look_at_different_things(loaded: LoadedModel) -> None:
    """Mean total variation of two heads: 0 if they are alike, 1 if they share nothing."""
    for kind in KINDS:
        found = read_attention(loaded, choose_device("cpu"), SENTENCE, kind=kind)
        one, other = found.weights[0]
        assert np.abs(one - other).sum(-1).mean() / 2 > 0.1, kind


def test_cross_attention_of_a_trained_model_follows_the_source(loaded: LoadedModel) -> None:
    """Digits are translated one by one, so that some head looks at the word being translated."""
    found = read_attention(loaded, choose_device("cpu"), SENTENCE, "one two three eight")
    aligned = [np.mean(np.argmax(head[:4], 1) == np.arange(4)) for head in found.weights[0]]
    assert max(aligned) >= 0.75


def test_words_have_the_mean_of_rows_and_the_sum_of_columns() -> None:
    weights = np.array([[[[0.5, 0.25, 0.25], [0.0, 1.0, 0.0], [0.25, 0.25, 0.5]]]], np.float32)
    found = merged(weights, [0, 0, 1], [0, 1, 1])
    np.testing.assert_allclose(found, [[[[0.25, 0.75], [0.25, 0.75]]]])


# --- pictures ---------------------------------------------------------------------------------

WEIGHTS = np.array(
    [
        [[[0.9, 0.1], [0.2, 0.8]], [[0.5, 0.5], [0.5, 0.5]]],
        [[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]],
    ],
    np.float32,
)  # 2 layers, 2 heads


@pytest.mark.parametrize(
    ("layer", "head", "first", "title"),
    [
        (None, None, [0.7, 0.3], "layer 1, mean of 2 heads"),
        (2, None, [0.5, 0.5], "layer 2, mean of 2 heads"),
        (2, 2, [0.0, 1.0], "layer 2, head 2"),
        (None, 1, [0.9, 0.1], "layer 1, head 1"),
    ],
)
def test_a_layer_and_a_head_are_chosen(
    layer: int | None, head: int | None, first: list[float], title: str
) -> None:
    weights, said = chosen(WEIGHTS, layer, head)
    np.testing.assert_allclose(weights[0], first, atol=1e-6)
    assert said == title


def test_text_names_what_each_word_looks_at_most() -> None:
    text = as_text(WEIGHTS[0, 0], ["one", "three"], ["eins", "drei"])
    assert text == "one    eins 90 %, drei 10 %\nthree  drei 80 %, eins 20 %"


@pytest.mark.parametrize("view", ["map", "lines", "grid"])
def test_an_svg_holds_the_words_as_text(tmp_path: Path, view: str) -> None:
    path = tmp_path / "map.svg"
    assert save_picture(path, view, WEIGHTS, ["one", "<&$5"], ["eins", "zwei $"]) == ""
    svg = path.read_text(encoding="utf-8")
    for word in ("one", "&lt;&amp;$5", "eins", "zwei $"):
        assert f">{word}</text>" in svg
    if view == "grid":
        assert len(re.findall(r">layer \d, head \d</text>", svg)) == 4
    again = tmp_path / "again.svg"
    save_picture(again, view, WEIGHTS, ["one", "<&$5"], ["eins", "zwei $"])
    assert again.read_bytes() == path.read_bytes()


def test_lines_are_as_thick_as_weights(tmp_path: Path) -> None:
    path = tmp_path / "lines.svg"
    save_picture(path, "lines", WEIGHTS, ["one", "two"], ["eins", "zwei"], layer=1, head=1)
    widths = sorted(map(float, re.findall(r"stroke-width: ([\d.]+)", path.read_text())))
    np.testing.assert_allclose(np.array(widths) / max(widths), [1 / 9, 2 / 9, 8 / 9, 1], atol=1e-3)


def test_a_png_says_where_the_font_lacks_a_character(tmp_path: Path) -> None:
    path = tmp_path / "map.png"
    assert save_picture(path, "map", WEIGHTS, ["one", "two"], ["eins", "zwei"]) == ""
    assert path.read_bytes().startswith(b"\x89PNG")
    assert "font lacks" in save_picture(path, "map", WEIGHTS, ["one", "two"], ["一", "二"])


# --- the command ------------------------------------------------------------------------------


def test_the_command_prints_a_line_for_each_word(mt: Mt, tiny_run: Path) -> None:
    ended = mt(
        "inspect", "attention", "--model", tiny_run, SENTENCE, "--target", "one two three eight"
    )
    assert ended.code == 0, ended.err
    assert [line.split()[0] for line in ended.lines] == ["one", "two", "three", "eight", "</s>"]
    assert all(re.search(r"(eins|zwei|drei|acht|</s>) \d+ %", line) for line in ended.lines)
    assert ended.err == "mt: cross attention, layer 1, mean of 2 heads\n"


def test_the_command_draws(mt: Mt, tiny_run: Path, tmp_path: Path) -> None:
    output = tmp_path / "map.svg"
    ended = mt(
        "inspect", "attention", "--model", tiny_run, SENTENCE, "--view", "grid", "-o", output
    )
    assert (ended.code, ended.out) == (0, b"")
    assert ended.err == f"mt: {output}: written\n"
    assert "acht</text>" in output.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["  "], "the sentence: is blank; give a sentence, in quotes"),
        ([SENTENCE, "--target", ""], "--target: is blank; give a sentence, in quotes"),
        (["eins " * 80], "the sentence: has 240 tokens, the model takes 63; give a shorter one"),
        ([SENTENCE, "--kind", "a"], "--kind: must be one of cross, encoder, decoder, found 'a'"),
        ([SENTENCE, "--layer", "2"], "--layer: the model has 1 to 1, found 2"),
        ([SENTENCE, "--head", "0"], "--head: the model has 1 to 2, found 0"),
        ([SENTENCE, "--view", "grid"], "--view grid: is a picture; name its file with -o"),
        (
            [SENTENCE, "--view", "grid", "--head", "1", "-o", "a.svg"],
            "--layer, --head: not with --view grid, which shows all of them; leave them out",
        ),
        (
            [SENTENCE, "--view", "heat", "-o", "a.svg"],
            "--view: must be one of map, lines, grid, found 'heat'",
        ),
        ([SENTENCE, "-o", "a.jpg"], "-o a.jpg: must end in .svg, .png or .html"),
        (
            [SENTENCE, "-o", "nowhere/a.svg"],
            "-o nowhere/a.svg: cannot be written: No such file or directory",
        ),
    ],
)  # fmt: skip
def test_bad_input_gets_one_message(
    mt: Mt,
    tiny_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    message: str,
) -> None:
    shutil.copytree(tiny_run, tmp_path / "run", symlinks=True)
    monkeypatch.chdir(tmp_path)
    ended = mt("inspect", "attention", "--model", "run", *options)
    assert refused(ended) == message
    assert not list(tmp_path.glob("*.*g"))


def test_a_png_that_is_too_large_is_refused(tmp_path: Path) -> None:
    """At 150 dots per inch; an SVG has no such limit."""
    from matplotlib.figure import Figure

    with pytest.raises(ConfigError, match=r"would be 75,000 pixels wide or high, a \.png has"):
        save_figure(tmp_path / "map.png", lambda: Figure(figsize=(500, 1)))
    assert list(tmp_path.iterdir()) == []
    assert save_figure(tmp_path / "map.svg", lambda: Figure(figsize=(500, 1))) == ""


def test_all_kinds_are_of_one_translation(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = []
    search = TorchEngine.search

    def counted(self: TorchEngine, *job: Any) -> Any:
        searched.append(job)
        return search(self, *job)

    monkeypatch.setattr(TorchEngine, "search", counted)
    found = read_attentions(loaded, choose_device("cpu"), SENTENCE, None, KINDS)
    assert len(searched) == 1
    for kind in KINDS:
        alone = read_attention(loaded, choose_device("cpu"), SENTENCE, kind=kind)
        assert (found[kind].rows, found[kind].columns) == (alone.rows, alone.columns)
        assert np.array_equal(found[kind].weights, alone.weights)
