"""Attention weights of a sentence, and their text, pictures and page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from browser import Browser, find_browser
from conftest import Mt, refused
from messages import says

from mt.data.tokens.batches import collate
from mt.errors import ConfigError
from mt.inspect.attention import KINDS, AttentionOfSentence, attention_maps, merged, read_attentions
from mt.inspect.attention_map import as_text, chosen, read_heads, save_page, save_picture
from mt.inspect.pictures import save_figure
from mt.model.checkpoint import LoadedModel
from mt.runtime.devices import choose_device
from mt.search.engine import TorchEngine

SENTENCE = "eins zwei drei acht"


def read_attention(
    loaded: LoadedModel, target: str | None, kind: str, pieces: bool = False
) -> AttentionOfSentence:
    device = choose_device("cpu")
    return read_attentions(loaded, device, SENTENCE, target, [kind], pieces)[kind]


# --- the weights ------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_sum_to_one(loaded: LoadedModel, kind: str, pieces: bool) -> None:
    found = read_attention(loaded, None, kind, pieces)
    model = loaded.config.model
    layers = model.n_encoder_layers if kind == "encoder" else model.n_decoder_layers
    assert found.weights.shape == (layers, model.n_heads, len(found.rows), len(found.columns))
    assert found.weights.min() >= 0
    np.testing.assert_allclose(found.weights.sum(-1), 1, atol=1e-5)
    if pieces and kind == "decoder":
        assert np.triu(found.weights, k=1).max() == 0, "it looks only at what is written"


def test_words_or_pieces_are_on_the_axes(loaded: LoadedModel) -> None:
    source, words = (*SENTENCE.split(), "</s>"), ("one", "two", "three", "</s>")
    for target, kind, rows, columns in (
        ("one two three", "cross", words, source),
        (None, "encoder", source, source),
    ):
        shown = read_attention(loaded, target, kind)
        assert (shown.rows, shown.columns) == (rows, columns)
    # The decoder's are pieces: the mean of a word's would seem to see the pieces that follow.
    shown = read_attention(loaded, "one two three", "decoder")
    assert "".join(shown.rows) == "▁one▁two▁three</s>"
    assert shown.columns == ("<s>", *shown.rows[:-1])
    assert not np.triu(shown.weights, 1).any()
    apart = read_attention(loaded, "seventeen", "cross", pieces=True)
    assert len(apart.rows) > 2
    assert "".join(apart.rows) == "▁seventeen</s>"


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


def test_heads_of_a_trained_model(loaded: LoadedModel) -> None:
    """They look at different things, and some head of cross-attention at the word it translates.

    Mean total variation of two heads: 0 if they are alike, 1 if they share nothing.
    """
    for kind in KINDS:
        shown = read_attention(loaded, "one two three eight", kind)
        one, other = shown.weights[0]
        assert np.abs(one - other).sum(-1).mean() / 2 > 0.1, kind
        if kind == "cross":  # digits are translated one by one
            aligned = [np.mean(np.argmax(head[:4], 1) == np.arange(4)) for head in (one, other)]
            assert max(aligned) >= 0.75


def test_words_have_the_mean_of_rows_and_the_sum_of_columns() -> None:
    weights = np.array([[[[0.5, 0.25, 0.25], [0.0, 1.0, 0.0], [0.25, 0.25, 0.5]]]], np.float32)
    found = merged(weights, [0, 0, 1], [0, 1, 1])
    np.testing.assert_allclose(found, [[[[0.25, 0.75], [0.25, 0.75]]]])


def test_all_kinds_are_of_one_translation(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = []
    search = TorchEngine.search

    def counted(self: TorchEngine, *job: Any) -> Any:
        searched.append(job)
        return search(self, *job)

    monkeypatch.setattr(TorchEngine, "search", counted)
    together = read_attentions(loaded, choose_device("cpu"), SENTENCE, None, KINDS)
    assert len(searched) == 1
    for kind in KINDS:
        alone = read_attention(loaded, None, kind)
        assert (together[kind].rows, together[kind].columns) == (alone.rows, alone.columns)
        assert np.array_equal(together[kind].weights, alone.weights)


# --- text and pictures ------------------------------------------------------------------------


WEIGHTS = np.array(
    [
        [[[0.9, 0.1], [0.2, 0.8]], [[0.5, 0.5], [0.5, 0.5]]],
        [[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]],
    ],
    np.float32,
)  # 2 layers, 2 heads


def test_a_layer_and_a_head_are_chosen_and_written_as_text() -> None:
    for layer, heads, first, title in (
        (None, None, [0.7, 0.3], "layer 1, mean of 2 heads"),
        (2, None, [0.5, 0.5], "layer 2, mean of 2 heads"),
        (2, "2", [0.0, 1.0], "layer 2, head 2"),
        (None, "1", [0.9, 0.1], "layer 1, head 1"),
        (2, "2,1,2", [0.5, 0.5], "layer 2, mean of heads 2, 1"),
    ):
        weights, said = chosen(WEIGHTS, layer, read_heads(heads))
        np.testing.assert_allclose(weights[0], first, atol=1e-6)
        assert said == title
    text = as_text(WEIGHTS[0, 0], ["一", "three"], ["eins", "drei"])  # as wide as two letters
    assert text == "一     eins 90 %, drei 10 %\nthree  drei 80 %, eins 20 %"
    text = as_text(WEIGHTS[0, 0], ["one", "three"], ["eins", "drei"])
    assert text == "one    eins 90 %, drei 10 %\nthree  drei 80 %, eins 20 %"


def test_lines_of_several_heads_have_a_colour_each(mt: Mt, tiny_run: Path, tmp_path: Path) -> None:
    """Of the second head as many as the weights say, and none of them upon the first head's."""
    path = tmp_path / "a.svg"
    attention = AttentionOfSentence(WEIGHTS, ("one", "two"), ("eins", "zwei"), "decoder")
    save_picture(path, "lines", attention, 1, [2, 1])
    svg = path.read_text(encoding="utf-8")
    for words in (">head 1</text>", ">head 2</text>", "layer 1, heads 2, 1", "target (looked at)"):
        assert words in svg
    drawn = re.findall(r'd="(M [^"]*)"[^>]*stroke: (#\w{6})', svg)
    assert len(drawn) == len(set(drawn)) == 4 + 4 + 2  # and two in the legend
    assert len({colour for _, colour in drawn}) == 2
    options = ("--model", tiny_run, SENTENCE, "--head", "1,2", "-o", path)
    assert mt("inspect", "attention", *options).code == 0
    assert ">head 2</text>" in path.read_text(encoding="utf-8")  # without --view lines


def test_control_characters_leave_the_picture_and_the_page_valid(
    mt: Mt, tiny_run: Path, tmp_path: Path
) -> None:
    options = ("--model", tiny_run, "eins \x1b[31mzwei\x9b \x00", "--target", "one\x07 two")
    for name in ("a.svg", "a.html"):
        assert mt("inspect", "attention", *options, "-o", tmp_path / name).code == 0
        content = (tmp_path / name).read_text(encoding="utf-8")
        assert "␛[31mzwei" in content
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", content)
    ElementTree.parse(tmp_path / "a.svg")


@pytest.mark.parametrize("view", ["map", "lines", "grid"])
def test_an_svg_holds_the_words_as_text(tmp_path: Path, view: str) -> None:
    path, again = tmp_path / "map.svg", tmp_path / "again.svg"
    attention = AttentionOfSentence(WEIGHTS, ("one", "<&$5"), ("eins", "zwei $"))
    assert save_picture(path, view, attention, 1, [1]) == ""
    svg = path.read_text(encoding="utf-8")
    for word in ("one", "&lt;&amp;$5", "eins", "zwei $"):
        assert f">{word}</text>" in svg
    assert "cross attention" in svg
    assert "target (looks) → source (looked at)" in svg
    save_picture(again, view, attention, 1, [1])
    assert again.read_bytes() == path.read_bytes()
    if view == "grid":
        assert len(re.findall(r">layer \d, head \d</text>", svg)) == 4
    if view == "lines":  # as thick as the weights
        widths = np.array(sorted(map(float, re.findall(r"stroke-width: ([\d.]+)", svg))))
        np.testing.assert_allclose(widths / max(widths), [1 / 9, 2 / 9, 8 / 9, 1], atol=1e-3)


def test_what_a_png_cannot_show(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    path = tmp_path / "map.png"
    assert save_picture(path, "map", AttentionOfSentence(WEIGHTS, ("a", "b"), ("c", "d"))) == ""
    assert path.read_bytes().startswith(b"\x89PNG")
    foreign = AttentionOfSentence(WEIGHTS, ("a", "b"), ("一", "二"))
    assert "font lacks" in save_picture(path, "map", foreign)
    with pytest.raises(ConfigError, match=r"would be 75,000 pixels wide or high, a \.png has"):
        save_figure(tmp_path / "large.png", lambda: Figure(figsize=(500, 1)))
    assert list(tmp_path.iterdir()) == [path]
    assert save_figure(tmp_path / "large.svg", lambda: Figure(figsize=(500, 1))) == ""


# --- the page ---------------------------------------------------------------------------------


def data_of(page: str) -> Any:
    """The JSON that a page holds, up to the first end of a script."""
    text = page.partition('<script type="application/json" id="data">')[2]
    return json.loads(text.partition("</script>")[0])


def test_a_page_holds_all_weights_and_loads_nothing(tmp_path: Path) -> None:
    weights = np.array([[[[0.25, 0.75], [1, 0]], [[0.5, 0.5], [0.1234, 0.8766]]]], np.float32)
    attention = AttentionOfSentence(weights, ("</script>", "{{ title }}"), ("&", "d"))
    first = {"kind": "cross", "layer": None, "head": 2, "view": "lines"}
    path = tmp_path / "map.html"
    save_page(path, {"cross": attention}, "<b> & {{ data }}", first)
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"\b(src|href)=", text)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert "<h1>&lt;b&gt; &amp; {{ data }}</h1>" in text
    data = data_of(text)
    shown = data["kinds"]["cross"]
    assert (shown["rows"], data["first"]) == (["</script>", "{{ title }}"], first)
    np.testing.assert_allclose(np.array(shown["weights"]) / data["scale"], weights, atol=0.0005)


@pytest.mark.slow
@pytest.mark.skipif(find_browser() is None, reason="no Chromium on PATH")
def test_the_page_works_in_a_browser(mt: Mt, tiny_run: Path, tmp_path: Path) -> None:
    output = tmp_path / "map.html"
    sentence = "eins zwei drei vier fünf sechs sieben acht neun " * 2
    with Browser() as browser:
        for view in ("map", "lines", "grid"):
            attention = ("inspect", "attention", "--model", tiny_run, sentence)
            assert mt(*attention, "--view", view, "-o", output).code == 0
            for width in (1280, 390):
                for scheme in ("light", "dark"):
                    seen = browser.look(output, width, scheme=scheme)
                    assert (seen.errors, seen.requests, seen.too_wide) == ([], [], [])
            weight = browser.evaluate("""
                document.querySelector("[data-weight]").dispatchEvent(
                    new MouseEvent("mouseover", {bubbles: true}));
                document.getElementById("weight").textContent""")
            assert re.fullmatch(r"\S+ looks at \S+: [\d.]+ %", weight)
        browser.evaluate("document.querySelector('figure:nth-child(2)').click()")
        assert browser.evaluate("document.getElementById('head').value") == "2"
        for kind in ("encoder", "decoder", "cross"):
            browser.evaluate(f"""kind.value = "{kind}"; kind.dispatchEvent(new Event("change"))""")
            rows = browser.evaluate("document.querySelectorAll('tbody tr').length")
            assert rows == browser.evaluate(f"data.kinds.{kind}.rows.length") > 3


# --- the command ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "name"), [("attention", "a.html"), ("lr", "a.svg"), ("positions", "a.png")]
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


def test_the_command_prints_draws_and_writes_a_page(mt: Mt, tiny_run: Path, tmp_path: Path) -> None:
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
    for name in ("map.svg", "map.html"):
        ended = mt(*attention, "--kind", "decoder", "--view", "grid", "-o", tmp_path / name)
        assert (ended.code, ended.out) == (0, b"")
        assert ended.err == f"mt: {tmp_path / name}: written\n"
    assert "&lt;s&gt;</text>" in (tmp_path / "map.svg").read_text(encoding="utf-8")
    data = data_of((tmp_path / "map.html").read_text(encoding="utf-8"))
    assert list(data["kinds"]) == ["cross", "encoder", "decoder"]
    assert data["kinds"]["encoder"]["rows"] == [*SENTENCE.split(), "</s>"]
    assert data["first"]["kind"] == "decoder"


def test_bad_input_gets_one_message(
    mt: Mt, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for options, parts in [
        (["  "], ["the sentence", "blank", "give"]),
        ([SENTENCE, "--target", ""], ["--target", "blank", "give"]),
        (["eins " * 80], ["the sentence", "240", "63", "shorter"]),
        ([SENTENCE, "--kind", "a"], ["--kind", "cross, encoder or decoder", "'a'"]),
        ([SENTENCE, "--layer", "2"], ["--layer", "1 to 1", "2"]),
        ([SENTENCE, "--head", "0"], ["--head", "1 to 2", "0"]),
        ([SENTENCE, "--head", "3", "-o", "a.html"], ["--head", "1 to 2", "3"]),
        ([SENTENCE, "--head", "1,"], ["--head", "1,3,4", "'1,'"]),
        ([SENTENCE, "--head", "1,2", "-o", "a.html"], ["--head", "one head at a time"]),
        ([SENTENCE, "--view", "grid"], ["--view grid", "-o"]),
        ([SENTENCE, "--view", "grid", "--head", "1", "-o", "a.svg"],
         ["--layer, --head", "--view grid", "leave them out"]),
        ([SENTENCE, "--view", "heat"], ["--view", "map, lines or grid", "'heat'"]),
        ([SENTENCE, "--view", "heat", "-o", "a.svg"], ["--view", "map, lines or grid", "'heat'"]),
        ([SENTENCE, "-o", "a.jpg"], ["-o a.jpg", ".svg, .png or .html"]),
        ([SENTENCE, "-o", "nowhere/a.svg"], ["-o nowhere/a.svg", "nowhere", "create it"]),
    ]:  # fmt: skip
        ended = mt("inspect", "attention", "--model", tiny_run, *options)
        assert says(refused(ended), *parts)
        assert list(tmp_path.iterdir()) == []
