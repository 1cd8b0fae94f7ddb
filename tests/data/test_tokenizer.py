"""Lines to token ids and back: nothing of a line is lost, whatever it contains."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, MonkeyPatch
from faults import raising
from hypothesis import given, settings
from hypothesis import strategies as st
from messages import raises_saying, says
from token_stores import tokenizer_of

from mt.config.schema import TokenizerConfig
from mt.data.reading.text_files import normalize_line
from mt.data.tokens.tokenizer import BOS, EOS, MAX_LINE_LENGTH, PAD, UNK, PairSample, Tokenizer
from mt.errors import CheckpointError, DataError

SRC_WORDS = "der die das Hund Katze Häuser läuft schläft groß 12 1987 nicht , . ?"
TGT_WORDS = "the a dog cat houses runs sleeps big 12 1987 not , . ?"


def made_pairs(n: int = 300) -> list[tuple[str, str]]:
    rng = random.Random(5)
    return [
        (
            " ".join(rng.choices(SRC_WORDS.split(), k=8)),
            " ".join(rng.choices(TGT_WORDS.split(), k=8)),
        )
        for _ in range(n)
    ]


def silent(message: str) -> None:
    raise AssertionError(f"unexpected message: {message}")


def trained(
    pairs: list[tuple[str, str]] | None = None, log: Callable[[str], None] = silent, seed: int = 1,
    **keys: Any,
) -> Tokenizer:  # fmt: skip
    """A tokenizer of 300 tokens, unless `keys` say otherwise, trained on `pairs`."""
    cfg = TokenizerConfig(**{"vocab_size": 300, **keys})
    return tokenizer_of(cfg, made_pairs() if pairs is None else pairs, log, seed)


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def joint(request: pytest.FixtureRequest) -> Tokenizer:
    return trained(type=request.param)


@pytest.fixture(scope="module")
def separate() -> Tokenizer:
    return trained(joint=False)


# --- the form of a line ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "form"),
    [
        ("", ""),
        (" \t\u3000", ""),
        ("  a \t b\r", "a b"),
        ("a\u00a0b\u2028c\x85d\x0be\x1cf\u200ag", "a b c d e f g"),
        ("a▁b", "a b"),
        ("u\u0308ber", "\u00fcber"),
        ("a\u200db\u200cc\ufeff\xad\0", "a\u200db\u200cc\ufeff\xad\0"),
        ("…²½，ﬁ™Ａ", "…²½，ﬁ™Ａ"),
    ],
)
def test_white_space_and_composition_are_unified_and_nothing_else(line: str, form: str) -> None:
    assert normalize_line(line) == form
    assert normalize_line(form) == form


# --- there and back --------------------------------------------------------------------------


@settings(max_examples=300)
@given(line=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_any_line_comes_back(joint: Tokenizer, line: str) -> None:
    (ids,) = joint.tgt.encode([line])
    assert joint.tgt.decode([ids]) == [normalize_line(line)]
    assert all(EOS < i < joint.tgt.size for i in ids)
    assert bool(ids) == bool(normalize_line(line))
    assert joint.src.encode([line]) == [ids]  # one vocabulary


@given(ids=st.lists(st.integers(0, 299), max_size=40))
def test_any_ids_decode_to_one_line(joint: Tokenizer, ids: list[int]) -> None:
    (text,) = joint.tgt.decode([ids])
    assert len((text + "|").splitlines()) == 1
    assert normalize_line(text) == text
    assert joint.tgt.decode([[BOS, *(i for i in ids if i > EOS), EOS, PAD]]) == [text]


@pytest.mark.parametrize(
    "line",
    ["<s> a </s>", "<unk>", "<pad>", "a</s>b", "<0x41> <0x0A>", "⁇", "▅ x", "a\0b", "👨\u200d👩"],
)
def test_text_that_looks_special_is_text(joint: Tokenizer, separate: Tokenizer, line: str) -> None:
    for tokenizer in (joint, separate):
        (ids,) = tokenizer.tgt.encode([line])
        assert not {PAD, UNK, BOS, EOS} & set(ids)
        assert tokenizer.tgt.decode([ids]) == [line]


def test_numbers_are_split_into_digits(joint: Tokenizer) -> None:
    assert joint.src.pieces("1987") == ["▁", "1", "9", "8", "7"]
    # 3, 4, 5 and 6 were never seen and are bytes.
    pieces = ["▁", "7", "1", "▁", "<0x33>", "<0x34>", "<0x35>", "<0x36>"]
    assert joint.tgt.pieces("71 3456") == pieces


def test_a_line_of_any_length_is_encoded(joint: Tokenizer) -> None:
    line = " ".join(["Häuser"] * 3000)
    unbroken = "ä" * 100_000
    assert joint.tgt.decode(joint.tgt.encode([line, unbroken])) == [line, unbroken]


def test_threads_do_not_change_the_ids(joint: Tokenizer) -> None:
    lines = [src for src, _ in made_pairs()]
    assert joint.src.encode(lines, threads=3) == joint.src.encode(lines)
    assert joint.src.encode(lines) == [joint.src.encode([line])[0] for line in lines]


# --- vocabularies ----------------------------------------------------------------------------


def test_separate_vocabularies_learn_from_their_own_side(separate: Tokenizer) -> None:
    assert "ß" in separate.src.pieces("groß")[-1]
    assert separate.tgt.pieces("ß") == ["▁", "<0xC3>", "<0x9F>"]
    assert separate.tgt.decode(separate.tgt.encode(["groß"])) == ["groß"]


def test_without_byte_fallback_every_seen_character_keeps_a_piece_and_others_are_unknown() -> None:
    pairs = [("a" * 50 + " b", "a b")] * 400 + [("ñ", "ø")]
    tokenizer = trained(pairs, byte_fallback=False, vocab_size=12)
    assert UNK not in tokenizer.src.encode(["ñ ø a b"])[0]
    (ids,) = tokenizer.tgt.encode(["a ß b"])
    assert UNK in ids
    assert tokenizer.tgt.decode([ids]) == ["a b"]


def test_a_large_alphabet_of_rare_characters_leaves_room_by_spelling_them_in_bytes() -> None:
    rare = "".join(chr(0x4E00 + i) for i in range(40))
    tokenizer = trained([("ab " * 60, "ba " * 60)] * 500 + [(rare, rare)], vocab_size=265)
    assert tokenizer.src.size == 265
    assert tokenizer.tgt.decode(tokenizer.tgt.encode([rare])) == [rare]


def test_a_vocabulary_larger_than_the_text_supports_shrinks_and_says_so() -> None:
    for kind in ("bpe", "unigram"):
        said: list[str] = []
        size = trained(log=said.append, type=kind, vocab_size=9000).src.size
        assert 290 < size < 9000
        (line,) = said
        assert says(line, "the training data supports", f"{size:,}", "tokenizer.vocab_size 9,000")
        trained(type=kind, vocab_size=size)  # supported, so nothing is said


def test_a_vocabulary_too_small_for_the_alphabet_names_the_least_that_works() -> None:
    letters = [("abcdefgh", "abc xy")]  # 8 + x, y + the space
    parts = ["271 tokens", "260 symbols", "11 characters of ", "found 265", "several times 271"]
    with raises_saying(DataError, "tokenizer.vocab_size: the vocabulary", *parts):
        trained(letters, vocab_size=265)
    assert trained(letters, vocab_size=271).src.size == 271
    parts = ["the source", "13 tokens (4 symbols, 9 char", "found 7. Set it to several times 13"]
    with raises_saying(DataError, "tokenizer.vocab_size: ", *parts, "room for words."):
        trained(letters, vocab_size=7, joint=False, byte_fallback=False)
    many = [("".join(chr(0x4E00 + i) for i in range(500)), "a")]
    with pytest.raises(DataError, match=r"room for words, or set tokenizer\.byte_fallback to true"):
        trained(many, vocab_size=400, byte_fallback=False)


@pytest.mark.parametrize("pairs", [[], [("", " \t")], [("a" * (MAX_LINE_LENGTH + 1), "")]])
def test_no_text_is_an_error(pairs: list[tuple[str, str]]) -> None:
    with raises_saying(DataError, "tokenizer: ", "no line of text", "10,000", "data.train names"):
        trained(pairs, log=lambda _: None)


def test_a_line_too_long_to_learn_from_is_counted() -> None:
    said: list[str] = []
    long = "ø" * (MAX_LINE_LENGTH + 1)
    tokenizer = trained([*made_pairs(), (long, "a"), ("a", long)], log=said.append)
    assert said == ["tokenizer: 2 lines of over 10,000 characters left out"]
    assert tokenizer.src.pieces("ø") == ["▁", "<0xC3>", "<0xB8>"]
    assert trained([*made_pairs(), ("ø" * MAX_LINE_LENGTH, "a")]).src.pieces("ø") == ["▁", "ø"]


# --- sampling and repeatability --------------------------------------------------------------


def test_a_sample_is_even_aligned_and_seeded() -> None:
    pairs = [(f"s{i}", f"t{i}") for i in range(1000)]
    tenths = [0] * 10

    def sampled(seed: int) -> tuple[list[str], list[str], int]:
        sample = PairSample(100, seed)
        assert list(sample.watch(pairs)) == pairs
        return sample.src, sample.tgt, sample.seen

    for seed in range(200):
        src, tgt, seen = sampled(seed)
        assert seen == 1000
        assert len(set(src)) == 100
        assert [f"t{line[1:]}" for line in src] == tgt
        for line in src:
            tenths[int(line[1:]) // 100] += 1
    # 2000 each on average, standard deviation below 45.
    assert all(abs(count - 2000) < 225 for count in tenths)
    assert sampled(3) == sampled(3) != sampled(4)


def test_sampling_is_said_and_bounds_what_is_learned_from() -> None:
    said: list[str] = []
    pairs = [("ab ab", "ba ba")] * 20 + [("ñ ñ", "ñ ñ")]
    sampled = trained(pairs, log=said.append, seed=2, sample_lines=2, vocab_size=264)
    assert said[0] == "tokenizer: trained on 2 of 21 pairs, drawn at random"
    assert sampled.src.pieces("ñ") == ["▁", "<0xC3>", "<0xB1>"]


def test_same_data_and_seed_give_the_same_bytes_in_another_process() -> None:
    code = (
        "import sys; sys.path[:0] = ['tests', 'tests/support', 'tests/data']; "
        "from test_tokenizer import fingerprints; print(*fingerprints())"
    )
    there = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": "."}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert there.stdout.split() == fingerprints()
    assert len({*fingerprints(), *fingerprints(seed=2)}) == 4


def fingerprints(seed: int = 1) -> list[str]:
    kinds = ("bpe", "unigram")
    return [
        trained(type=kind, sample_lines=100, seed=seed, log=lambda _: None).fingerprint
        for kind in kinds
    ]


# --- on disk ---------------------------------------------------------------------------------


def test_saved_and_loaded_tokenizers_are_the_same(
    tmp_path: Path, joint: Tokenizer, separate: Tokenizer
) -> None:
    for name, tokenizer, files in (
        ("joint", joint, ["tokenizer.model"]),
        ("separate", separate, ["tokenizer.src.model", "tokenizer.tgt.model"]),
    ):
        folder = tmp_path / "runs" / name
        tokenizer.save(folder)
        assert sorted(path.name for path in folder.iterdir()) == files
        loaded = Tokenizer.load(folder)
        assert loaded.joint == tokenizer.joint
        assert loaded.src.encode(["das Häuser?"]) == tokenizer.src.encode(["das Häuser?"])
        assert loaded.tgt.encode(["the houses?"]) == tokenizer.tgt.encode(["the houses?"])
        content = b"".join((folder / file).read_bytes() for file in files)
        assert loaded.fingerprint == tokenizer.fingerprint == hashlib.sha256(content).hexdigest()


def test_saving_replaces_a_tokenizer_of_the_other_kind(
    tmp_path: Path, joint: Tokenizer, separate: Tokenizer
) -> None:
    joint.save(tmp_path)
    separate.save(tmp_path)
    assert not Tokenizer.load(tmp_path).joint
    joint.save(tmp_path)
    assert Tokenizer.load(tmp_path).fingerprint == joint.fingerprint


def test_a_failed_save_leaves_the_old_tokenizer_and_no_litter(
    tmp_path: Path, joint: Tokenizer, monkeypatch: MonkeyPatch
) -> None:
    joint.save(tmp_path)
    monkeypatch.setattr("mt.files.os.fsync", raising(OSError(28, "No space left on device")))
    with raises_saying(CheckpointError, tmp_path, "No space left on device", "has space"):
        trained(vocab_size=310).save(tmp_path)
    assert Tokenizer.load(tmp_path).fingerprint == joint.fingerprint
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.model"]


def test_a_missing_tokenizer_is_an_error_with_a_remedy(tmp_path: Path, separate: Tokenizer) -> None:
    said = ("no tokenizer", "tokenizer.model", "tokenizer.src.model", "Give the run directory")
    with raises_saying(CheckpointError, f"{tmp_path}/none", *said):
        Tokenizer.load(tmp_path / "none")
    separate.save(tmp_path)
    (tmp_path / "tokenizer.tgt.model").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.tgt\.model: No such file"):
        Tokenizer.load(tmp_path)


def test_a_damaged_tokenizer_is_an_error_with_a_remedy(tmp_path: Path, joint: Tokenizer) -> None:
    path = tmp_path / "tokenizer.model"
    for damage, said in [
        (lambda model: b"", "the file is empty"),
        (lambda model: b"no model at all", "SentencePiece cannot read it"),
        (lambda model: model[:-1], "SentencePiece cannot read it"),
        (lambda model: model[: len(model) // 2], "SentencePiece cannot read it"),
    ]:
        joint.save(tmp_path)
        path.write_bytes(damage(path.read_bytes()))
        with raises_saying(CheckpointError, tmp_path, "tokenizer.model is damaged", said, "Copy"):
            Tokenizer.load(tmp_path)


def test_a_model_with_other_special_ids_is_refused(tmp_path: Path) -> None:
    import sentencepiece

    with open(tmp_path / "tokenizer.model", "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["a b c"] * 9), model_writer=file, vocab_size=8,
            hard_vocab_limit=False, minloglevel=2,
        )  # fmt: skip
    with pytest.raises(CheckpointError) as caught:
        Tokenizer.load(tmp_path)
    assert "pad, unk, bos, eos must have ids 0, 1, 2, 3; here: [-1, 0, 1, 2]" in str(caught.value)
