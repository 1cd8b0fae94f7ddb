"""`mt tokenizer`: a vocabulary learned as `mt train` does; lines to pieces or ids and back."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from conftest import MonkeyPatch, Mt, refused
from messages import says
from model_files import content_of
from odd_lines import odd_lines
from subwords import made_lines

from mt.data.reading.text_files import normalize_line
from mt.data.tokens.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def model(tiny_run: Path) -> Path:
    return tiny_run / "tokenizer.model"


def learn(mt: Mt, folder: Path, *options: object, name: str = "own.model") -> Path:
    """The model that the command learns from `made_lines`."""
    (folder / "text").write_text("\n".join(made_lines()) + "\n", encoding="utf-8")
    ended = mt("tokenizer", "train", folder / "text", *options, "-o", folder / name)
    assert ended.code == 0, ended.err
    return folder / name


# --- train ------------------------------------------------------------------------------------


def test_the_command_and_training_learn_the_same_bytes(
    mt: Mt, tiny_run: Path, tiny_config: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    expected = (tiny_run / "tokenizer.model").read_bytes()
    files = [tiny_corpus / "train.src", tiny_corpus / "train.tgt"]
    of_files = tmp_path / "files.model"
    assert mt("tokenizer", "train", *files, "--vocab-size", 320, "-o", of_files).code == 0
    assert of_files.read_bytes() == expected
    of_config = tmp_path / "config.model"
    ended = mt("tokenizer", "train", "--config", tiny_config, "-o", of_config)
    assert of_config.read_bytes() == expected
    assert ended.err.split("\n")[-2] == f"mt: {of_config}: {Tokenizer(expected).src.size} tokens"


def test_the_options_are_those_of_the_config(mt: Mt, tmp_path: Path) -> None:
    settings = ["byte_fallback=false", "split_digits=false", "user_defined_symbols=[<br>, '{x}']"]
    sets = [word for setting in settings for word in ("--set", f"tokenizer.{setting}")]
    path = learn(mt, tmp_path, "--vocab-size", 90, "--type", "unigram", *sets)
    tokenizer = Tokenizer(path.read_bytes())
    assert {"<br>", "{x}"} < set(tokenizer.src.pieces("a<br>b {x}"))
    assert tokenizer.src.size <= 90
    by_set = ("--set", "tokenizer.user_defined_symbols=[a]", "--config", "tiny.yaml")
    by_config = learn(mt, tmp_path, *by_set, "--vocab-size", 340, name="other.model")
    assert Tokenizer(by_config.read_bytes()).src.pieces("Bad")[-2:] == ["a", "d"]


# --- encode and decode ------------------------------------------------------------------------


def test_lines_come_back(mt: Mt, tiny_run: Path, tmp_path: Path) -> None:
    lines = odd_lines(300)
    text = tmp_path / "text.gz"
    text.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    encode = ("tokenizer", "encode", "--model", tiny_run)
    ended = mt(*encode, text, "-o", tmp_path / "tokens")
    assert (ended.code, ended.out) == (0, b"")
    tokens = (tmp_path / "tokens").read_text(encoding="utf-8").split("\n")[:-1]
    assert [bool(line) for line in tokens] == [bool(normalize_line(line)) for line in lines]
    from_pipe = mt(*encode, stdin=gzip.decompress(text.read_bytes()))
    assert from_pipe.lines == tokens
    back = mt("tokenizer", "decode", "--model", tiny_run, tmp_path / "tokens")
    assert back.out.decode().split("\n")[:-1] == [normalize_line(line) for line in lines]


def test_what_is_unknown_comes_back(mt: Mt, tmp_path: Path) -> None:
    path = learn(mt, tmp_path, "--vocab-size", 90, "--set", "tokenizer.byte_fallback=false")
    pieces = mt("tokenizer", "encode", "-m", path, stdin="Hund☃Haus\n".encode()).out
    assert mt("tokenizer", "decode", "-m", path, stdin=pieces).lines == ["Hund☃Haus"]


def test_with_two_vocabularies_a_side_is_needed(mt: Mt, tiny_config: Path, tmp_path: Path) -> None:
    settings = ("--set", "tokenizer.joint=false", "--vocab-size", 300)
    mt("tokenizer", "train", "-c", tiny_config, *settings, "-o", tmp_path / "tokenizer.model")
    encode = ("tokenizer", "encode", "--model", tmp_path)
    assert refused(mt(*encode, stdin=b"eins\n")) == (
        "--side: must be src or tgt, as source and target have SentencePiece models of their own"
    )
    source, target = (mt(*encode, "--side", side, stdin=b"eins\n").lines for side in ("src", "tgt"))
    assert source != target
    assert ["".join(line.split()) for line in (*source, *target)] == ["▁eins", "▁eins"]


def test_bad_input_gets_one_message(mt: Mt, tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    learn(mt, tmp_path, "--vocab-size", 340)
    (tmp_path / "text").write_text("5 6\neins\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    before = content_of(tmp_path)
    for command, parts in [
        ("train -o a.model", "no text|--config"),
        ("train text -o own.model", "--output own.model|exists|another"),
        ("train text -o none/a.model", "--output none/a.model|no folder none|make it"),
        ("train text --vocab-size 100 -o a.model", "tokenizer.vocab_size|above 260|found 100"),
        (
            "train text -c tiny.yaml --set tokenizer.joint=false -o a.model",
            "tokenizer.joint|true|found false|each side",
        ),
        ("encode -m own.model text -o text", "--output text|same file|another"),
        ("encode -m text text", "--model|text|SentencePiece|.vocab"),
        ("encode -m own.model --side de text", "--side|src or tgt|'de'"),
    ]:
        assert says(refused(mt("tokenizer", *command.split())), *parts.split("|"))
        assert content_of(tmp_path) == before
