"""`mt inspect tokens`, `lr` and `positions`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import MonkeyPatch, Mt, refused
from messages import says
from subwords import made_lines
from token_stores import tokenizer_of

from mt.config.load import load_config
from mt.config.schema import TokenizerConfig
from mt.data.tokens.tokenizer import Tokenizer
from mt.inspect.position_map import as_text, similarity
from mt.inspect.schedule import schedule_table
from mt.inspect.token_listing import list_tokens
from mt.model.transformer import sinusoids

# --- tokens -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def joint() -> Tokenizer:
    return tokenizer_of(TokenizerConfig(vocab_size=340), ((line, line) for line in made_lines()))


def test_tokens_stand_above_their_ids(joint: Tokenizer) -> None:
    shown = list(list_tokens(joint, {"source": ["Hunde ☃😀"]}, 1))
    assert shown[0] == "source 1: Hunde ☃😀"
    assert shown[1].split() == joint.src.pieces("Hunde ☃😀")
    assert [int(i) for i in shown[2].split()] == joint.src.encode(["Hunde ☃😀"])[0]
    for piece, number in zip(shown[1].split(), shown[2].split(), strict=True):
        assert shown[1].index(f" {piece}") == shown[2].index(f" {number}") or piece == "▁"
    assert shown[3] == "  in bytes: ☃ (U+2603), 😀 (U+1F600)"


def test_counts_are_of_all_lines(joint: Tokenizer) -> None:
    """Two words of 1 and of 8 tokens (▁ and seven bytes), and a blank line."""
    texts: Any = {"source": ["Hunde", "", "☃😀"], "target": ["x"]}
    (words,) = [
        line for line in list_tokens(joint, {"source": ["猫が好き。"]}, 0) if "words" in line
    ]
    assert words.split() == ["words", "4"], "characters, where the script has no spaces"
    lines = list(list_tokens(joint, texts, 0))
    found = {line[:27].strip(): re.split(r"\s{2,}", line[27:].strip()) for line in lines}
    tokens = len(joint.src.encode(["Hunde"])[0]) + 8
    of_x = len(joint.src.encode(["x"])[0])
    assert [found[name] for name in ("", "lines", "words", "tokens")] == [
        ["source", "target"], ["3", "1"], ["2", "1"], [str(tokens), str(of_x)],
    ]  # fmt: skip
    names = ("tokens per word", "tokens of the longest line", "byte tokens", "unknown tokens")
    expected = [f"{tokens / 2:.2f}", "8", f"7 ({700 / tokens:.2f} %)", "0 (0.00 %)"]
    assert [found[name][0] for name in names] == expected


def test_what_is_unknown_is_named() -> None:
    cfg = TokenizerConfig(vocab_size=90, byte_fallback=False)
    tokenizer = tokenizer_of(cfg, ((line, line) for line in made_lines()))
    shown = list(list_tokens(tokenizer, {"target": ["Hund ☃☃"]}, 5))
    assert "  unknown: ☃☃ (U+2603 U+2603)" in shown
    assert any(re.fullmatch(r"unknown tokens +1 \(\d+\.\d\d %\)", line) for line in shown)


def test_the_command_wraps_long_lines_and_reads_files(
    mt: Mt, tiny_run: Path, tiny_corpus: Path, monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    ended = mt("inspect", "tokens", "--model", tiny_run, "drei " * 900)
    assert ended.code == 0, ended.err
    assert 60 < max(len(line) for line in ended.lines[1:]) <= 72
    rows = ended.lines[1 : ended.lines.index("")]
    assert "".join("".join(rows[::2]).split()) == "▁drei" * 900
    model = ("--model", tiny_run / "tokenizer.model", "--lines", 1)
    ended = mt("inspect", "tokens", *model, "--src", tiny_corpus / "test.src", "--target", "one")
    assert ended.code == 0, ended.err
    firsts = [line for line in ended.lines if re.match(r"(source|target) \d", line)]
    assert [line.split(":")[0] for line in firsts] == ["source 1", "target 1"]


def test_tokens_of_nothing_get_one_message(mt: Mt, tiny_run: Path) -> None:
    for options, parts in [
        ([], ["no text", "--target, --src or --tgt"]),
        (["a", "--src", "b"], ["source sentence", "source file", "one of the two"]),
        (["--src", "/none"], ["--src", "/none"]),
        (["a", "--tgt", "/none"], ["--tgt", "/none"]),
        (["--src", "-", "--tgt", "-"], ["--src, --tgt", "stdin", "file"]),
    ]:
        assert says(refused(mt("inspect", "tokens", "--model", tiny_run, *options)), *parts)


# --- learning rate ----------------------------------------------------------------------------


def test_rates_are_those_of_training() -> None:
    """tiny.yaml by hand: 0.004 at update 100, half of it half-way from there to 780, 0 at 780."""
    rows = [line.split()[:2] for line in schedule_table({"tiny": load_config("tiny.yaml").config})
            .splitlines()[1:]]  # fmt: skip
    rates = {int(step.replace(",", "")): float(rate) for step, rate in rows}
    assert rates[50] == 0.002
    assert rates[100] == max(rates.values()) == 0.004
    assert rates[440] == pytest.approx(0.002, rel=1e-3)
    assert rates[780] == 0


def test_epochs_are_refused(mt: Mt) -> None:
    epochs = mt("inspect", "lr", "--config", "tiny.yaml", "--set", "train.max_epochs=3")
    assert says(refused(epochs), "tiny.yaml", "train.max_epochs", "--dry-run", "train.max_steps=")


def test_several_configs_are_compared(mt: Mt, tmp_path: Path) -> None:
    options = ("--config", "base.yaml", "--config", "tiny.yaml", "-o", tmp_path / "lr.svg")
    ended = mt("inspect", "lr", *options)
    assert ended.code == 0, ended.err
    assert ended.lines[0].split() == ["update", "base.yaml", "tiny.yaml"]
    last = next(line for line in ended.lines if line.startswith("   100,000"))
    assert len(last.split()) == 2  # tiny.yaml has ended
    svg = (tmp_path / "lr.svg").read_text(encoding="utf-8")
    assert all(f">{word}</text>" in svg for word in ("base.yaml", "tiny.yaml", "learning rate"))
    assert "stroke-dasharray" in svg  # the same curve twice would show both colours
    twice = mt("inspect", "lr", "--config", "tiny.yaml", "--config", "tiny.yaml")
    assert says(refused(twice), "--config", "twice", "once")


# --- positions --------------------------------------------------------------------------------


def test_sinusoids_are_as_alike_as_their_distance_says() -> None:
    """cos(p - q) summed over the frequencies, divided by their number, whatever p is."""
    found = similarity(sinusoids(60, 16).numpy())
    rates = 10000 ** (-np.arange(0, 16, 2) / 16)
    for distance in (0, 1, 7, 50):
        expected = np.cos(distance * rates).mean()
        np.testing.assert_allclose(np.diagonal(found, distance), expected, atol=1e-12)
        row = f"{distance:>8}{expected:>14.3f}{expected:>8.3f}{expected:>10.3f}"
        assert row in as_text(sinusoids(60, 16).numpy()) or distance == 7


def test_positions_are_drawn(mt: Mt, tiny_run: Path, tmp_path: Path) -> None:
    output = tmp_path / "positions.svg"
    ended = mt("inspect", "positions", "--model", tiny_run, "--positions", 30, "-o", output)
    assert (ended.code, ended.err) == (0, f"mt: {output}: written\n")
    svg = output.read_text(encoding="utf-8")
    assert ">sinusoidal positions, d_model 32</text>" in svg
    assert ">cosine of every two positions</text>" in svg
    learned = ("--config", "base.yaml", "--set", "model.positions=learned")
    message = refused(mt("inspect", "positions", *learned))
    assert says(message, "model.positions", "random", "--model")
