"""mt export huggingface: what transformers opens computes the same, whatever the shape."""

from __future__ import annotations

import io
import sys
import unicodedata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sentencepiece
from conftest import Mapped, MonkeyPatch, Mt, merged, refused
from marian_models import SAVED
from messages import says
from sentencepiece import SentencePieceProcessor
from untrained_models import untrained_model

from mt.config.schema import DecodeConfig
from mt.data.reading.text_files import normalize_line
from mt.data.tokens.tokenizer import Tokenizer
from mt.errors import ConfigError
from mt.interop.huggingface_export import ExportedFolder, export
from mt.interop.huggingface_import import import_model
from mt.interop.huggingface_layout import to_halves, to_interleaved
from mt.interop.huggingface_tokenizer import write_tokenizer
from mt.interop.normalization import with_normalization
from mt.model.checkpoint import LoadedModel, load_model, weights_of
from mt.runtime.devices import choose_device
from mt.search.engine import TorchEngine
from mt.search.inference import Inference
from mt.search.scoring import ForcedDecoder, LogProbs, prove

SHAPES: list[tuple[dict[str, Any], bool]] = [
    ({}, True), ({"norm": "post"}, True),
    ({"norm": "post", "activation": "silu", "output_bias": True}, False),
    ({"norm": "post", "tie_embeddings": False, "attention_bias": False}, True),
    ({"norm": "post", "tie_embeddings": False, "n_encoder_layers": 2, "n_heads": 4}, False),
    ({"activation": "gelu", "positions": "learned", "output_bias": True}, True),
    ({"tie_embeddings": False, "attention_bias": False}, True), ({}, False),
    ({"tie_embeddings": False, "activation": "silu"}, False),
]  # fmt: skip


# What a model that was exported and imported has in any case.
ALWAYS = {"attention_bias": True, "output_bias": True, "activation_dropout": 0.1}
LITERAL = ["</s>", "drei </s> acht", "<unk> acht", "<pad><s>", "eins</s>"]
CHANGES = {
    "tokenizer": {"byte_fallback": False, "vocab_size": 60},  # separate ones differ in size
    # Outputs of random weights reach their limit, where transformers takes 1 for the probability of
    # the end: that makes no difference to greedy search.
    "decode": {"beam_size": 1},
}


def translations(loaded: LoadedModel, lines: list[str]) -> list[str]:
    """Translate lines with the model's own settings."""
    device = choose_device("cpu", "fp32")
    engine = TorchEngine(Inference(loaded.model, device), loaded.config.decode)
    sources = loaded.tokenizer.src.encode(lines)
    rows = [list(hypotheses[0].tokens) for hypotheses in engine.search(sources)]
    return loaded.tokenizer.tgt.decode(rows)


def generated(opened: ExportedFolder, lines: list[str], search: DecodeConfig) -> list[str]:
    """Their translations, with the settings of the folder but for the longest output."""
    texts = []
    for line in lines:
        inputs = opened.tokenizer(line, return_tensors="pt")
        length = inputs.input_ids.shape[1] - 1  # without eos
        longest = int(search.max_len_factor * length + search.max_len_extra) + 1
        outputs = opened.model.generate(**inputs, max_new_tokens=longest, max_length=None)
        texts.append(opened.tokenizer.decode(outputs[0], skip_special_tokens=True))
    return texts


def log_probs_of(loaded: LoadedModel) -> LogProbs:
    decoder = ForcedDecoder(Inference(loaded.model, choose_device("cpu", "fp32")))
    return lambda pairs: decoder.log_probs(list(pairs))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize(("shape", "joint"), SHAPES, ids=str)
def test_every_shape_gives_the_same_probabilities_and_translations(
    shape: dict[str, Any], joint: bool, tiny_mapping: Mapped, tiny_corpus: Path, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    mapping = merged(tiny_mapping, {**CHANGES, "model": shape})
    loaded = untrained_model(mapping, tiny_corpus, joint)
    assert export(loaded, tmp_path / "out").max_difference < 1e-4

    # What its users change and save again is still the same model.
    again = ExportedFolder(transformers, tmp_path / "out")
    again.model.save_pretrained(tmp_path / "again")
    again.model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "again").eval()
    prove(loaded, "again", again.log_probs, 1e-4)
    lines = [*(tiny_corpus / "test.src").read_text("utf-8").splitlines(), *LITERAL]
    assert generated(again, lines, loaded.config.decode) == translations(loaded, lines)
    if shape.get("norm") == "post":
        comes_back(loaded, tmp_path / "out")


def comes_back(loaded: LoadedModel, folder: Path) -> None:
    """Import a folder and compare it with the model that was exported to it."""
    import_model(folder, folder.with_name("back"))
    back = load_model(folder.with_name("back"))
    assert weights_of(back.model).keys() >= weights_of(loaded.model).keys()
    sizes = [(each.src.size, each.tgt.size) for each in (back.tokenizer, loaded.tokenizer)]
    assert sizes[0] == sizes[1]
    assert back.config.model == loaded.config.model.model_copy(update=ALWAYS)
    assert back.config.decode == loaded.config.decode
    prove(loaded, "back", log_probs_of(back), 1e-4)


@pytest.mark.slow
def test_a_run_and_an_imported_model_are_exported(tiny_run: Path, tmp_path: Path, mt: Mt) -> None:
    pytest.importorskip("transformers")
    ended = mt("export", "huggingface", "--model", tiny_run, "-o", tmp_path / "out")
    assert ended.code == 0, ended.err
    assert says(ended.err, "PegasusForConditionalGeneration; ", "same log-probability")
    assert "## Data" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert len({path.stat().st_mode for path in (tmp_path / "out").iterdir()}) == 1
    import_model(SAVED, tmp_path / "imported")
    ended = mt("export", "huggingface", "--model", tmp_path / "imported", "-o", tmp_path / "back")
    assert ended.code == 0, ended.err
    assert "MarianMTModel; " in ended.err


def test_their_dimensions_are_all_sines_then_all_cosines() -> None:
    assert to_halves(6).tolist() == [0, 2, 4, 1, 3, 5]
    assert to_halves(6)[to_interleaved(6)].tolist() == list(range(6))


def test_messages_about_exports(
    tiny_run: Path, tiny_mapping: Mapped, tiny_corpus: Path, tmp_path: Path, mt: Mt,
    monkeypatch: MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace())
    shape = {"norm": "post", "positions": "learned"}
    loaded = untrained_model(merged(tiny_mapping, {"model": shape}), tiny_corpus, True)
    with pytest.raises(ConfigError, match=r"model\.positions learned with model\.norm post"):
        export(loaded, tmp_path / "out")
    monkeypatch.setitem(sys.modules, "transformers", None)
    message = refused(mt("export", "huggingface", "--model", tiny_run, "-o", tmp_path / "out"))
    assert says(message, "needs the package transformers", "pip install transformers")


# --- a SentencePiece model normalises text as mt does before it splits it -------------------------


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
