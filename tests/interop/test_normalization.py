"""A SentencePiece model normalises text as mt does before it splits it."""

from __future__ import annotations

import io
import unicodedata
from pathlib import Path

import pytest
import sentencepiece
from sentencepiece import SentencePieceProcessor

from mt.data.reading.text_files import normalize_line
from mt.data.tokens.tokenizer import Tokenizer
from mt.interop.huggingface_tokenizer import write_tokenizer
from mt.interop.normalization import with_normalization
from mt.model.checkpoint import load_model

ODD = [
    "zwei\u00a0drei\tvier\u2003fünf \u3000 sechs\u2028",
    "  am Anfang und am Ende ",
    "\u2581eins\u2581\u2581zwei",
    "",
    " \u00a0\t",
    "👩\u200d👩\u200d👧 ja 🇩🇪 👍🏽",
    "می\u200cخواهم",  # the zero-width non-joiner stays
    "½ … ﬁ １２",  # NFC leaves them, unlike NFKC
    "Å\u0301 \u212b\u0301 \u2126",
    "q\u0307\u0323",  # no character has both marks: they change places
    "\u0628\u0651\u064e \u05d1\u05bc\u05b8",  # Arabic and Hebrew vowels in the usual order
    *(unicodedata.normalize("NFD", line) for line in ("Café übel", "Tiếng Việt ệ", "한국어 각")),
    "e\u0323\u0302 e\u0302\u0323 ê\u0323 ẹ\u0302",
    "o\u0301\u0323 ó\u0323 e\u0300\u0323 è\u0323",  # Yoruba: no character has both marks
    "a\u0327\u0308 c\u0323\u0327",  # the letter takes its second mark
    "\u03b1\u0345\u0313\u0300 \u1f00\u0345\u0300 \u1fb3\u0313\u0300",  # three marks in any order
]


@pytest.fixture(scope="module")
def model(tiny_run: Path) -> bytes:
    return with_normalization(Tokenizer.load(tiny_run).models[0])


@pytest.mark.parametrize("line", ODD, ids=ascii)
def test_odd_text_is_split_as_mt_splits_it(line: str, model: bytes, tiny_run: Path) -> None:
    processor = SentencePieceProcessor(model_proto=model)
    assert processor.encode(line, out_type=str) == Tokenizer.load(tiny_run).src.pieces(line)


def test_every_character_is_normalised(model: bytes) -> None:
    """Each one after and before a letter, whole and decomposed."""
    processor = SentencePieceProcessor(model_proto=model)
    codes = [code for code in range(1, 0x30000) if not 0xD800 <= code < 0xE000]
    lines = [f"x {chr(code)} y" for code in codes]
    lines += [unicodedata.normalize("NFD", line) for line in lines if not line.isascii()]
    normal = [text.replace("\u2581", " ").strip() for text in processor.normalize(lines)]
    assert normal == [normalize_line(line) for line in lines]


def test_a_model_that_normalises_keeps_its_own_map() -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["eins zwei"]), model_writer=model, model_type="char",
        vocab_size=20, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    assert with_normalization(model.getvalue()) == model.getvalue()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_the_tokenizer_of_transformers_normalises(tiny_run: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    loaded = load_model(tiny_run)
    write_tokenizer(loaded, tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    theirs.punc_normalizer = lambda text: text
    ours = loaded.tokenizer.src.encode(ODD)
    assert [row[:-1] for row in theirs(ODD).input_ids] == ours  # without eos
    assert [row[:-1] for row in theirs(text_target=ODD).input_ids] == ours  # one vocabulary
