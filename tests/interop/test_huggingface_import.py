"""mt import huggingface: Marian models, against what transformers computes with them.

`tests/files/marian/` is a small Marian folder with expected values, which `marian_models.py` wrote
with transformers; the slow tests compare every kind of model with transformers itself.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Mt, refused
from marian_models import EXPECTED, KINDS, LINES, SAVED, Theirs, write_marian
from messages import says
from safetensors.torch import load_file, save_file
from torch import Tensor

from mt.data.tokens.tokenizer import BOS, EOS, PAD
from mt.interop.huggingface_folder import LISTED, read_config
from mt.interop.huggingface_import import import_model
from mt.interop.huggingface_tokenizer import MarianTokenizer, read_tokenizer
from mt.model.checkpoint import LoadedModel, load_model
from mt.runtime.devices import choose_device
from mt.search.engine import TorchEngine
from mt.search.inference import Inference
from mt.translate.lines import split_source

TOLERANCE = 1e-6  # in float64; both have their position tables in float32


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of `tests/files/marian/`, imported."""
    output = tmp_path_factory.mktemp("imported") / "model"
    import_model(SAVED, output)
    return output


@pytest.fixture
def marian(tmp_path: Path) -> Path:
    """A copy of `tests/files/marian/` to be changed."""
    folder = tmp_path / "marian"
    shutil.copytree(SAVED, folder)
    return folder


def change(path: Path, **values: Any) -> None:
    content = json.loads(path.read_text(encoding="utf-8")) | values
    path.write_text(json.dumps(content), encoding="utf-8")


def marian_rows(folder: Path) -> MarianTokenizer:
    found = read_tokenizer(folder, read_config(folder), [])
    assert found is not None
    return found


def assert_same_states(
    loaded: LoadedModel, rows: MarianTokenizer, batch: list[Tensor], expected: list[Tensor]
) -> None:
    """batch: our ids of sources, mask, ids of targets; expected: encoder states and logits."""
    src, mask, tgt_in = batch
    model = copy.deepcopy(loaded.model).double()
    with torch.no_grad():
        memory = model.encode(src, mask)
        logits = model.output(model(src, tgt_in, mask))
    their_memory, their_logits = expected
    memory = torch.cat([memory[..., 0::2], memory[..., 1::2]], dim=-1)
    torch.testing.assert_close(memory[mask], their_memory[mask], rtol=0, atol=TOLERANCE)
    ours = logits.log_softmax(-1)
    theirs = their_logits.log_softmax(-1)
    kept = torch.tensor([i for i in range(len(rows.target.rows)) if i != BOS])
    their_rows = torch.tensor(rows.target.rows)[kept]
    torch.testing.assert_close(
        logits[..., kept], their_logits[..., their_rows], rtol=0, atol=TOLERANCE
    )
    torch.testing.assert_close(ours[..., kept], theirs[..., their_rows], rtol=0, atol=TOLERANCE)
    assert bool((ours[..., BOS] < -50).all())


def our_search(loaded: LoadedModel, sources: list[list[int]], penalty: float) -> list[list[int]]:
    decode = loaded.config.decode.model_copy(
        update={"beam_size": 3, "length_penalty": penalty, "max_len_extra": 100}
    )
    model = Inference(loaded.model, choose_device("cpu", "fp32"))
    return [list(found[0].tokens) for found in TorchEngine(model, decode).search(sources)]


def test_computes_what_transformers_computed(imported: Path) -> None:
    """Token ids, encoder states, logits and beam search of a saved folder."""
    loaded = load_model(imported)
    rows = marian_rows(SAVED)
    content = json.loads((SAVED / EXPECTED[0]).read_text(encoding="utf-8"))
    tensors = load_file(SAVED / EXPECTED[1])
    sources = loaded.tokenizer.encode_src(content["lines"])
    assert [[rows.source.rows[i] for i in [*row, EOS]] for row in sources] == content["ids"]

    src_ids, tgt_ids = (
        {row: i for i, row in reversed(list(enumerate(side.rows)))}
        for side in (rows.source, rows.target)
    )
    mask = tensors["src"] != rows.source.rows[PAD]
    src = tensors["src"].apply_(lambda row: src_ids[row])
    tgt_in = tensors["tgt_in"].apply_(lambda row: tgt_ids[row])
    tgt_in[:, 0] = BOS
    expected = [tensors["memory"], tensors["logits"]]
    assert_same_states(loaded, rows, [src, mask, tgt_in], expected)

    found = our_search(loaded, sources, 1.0)
    assert [[rows.target.rows[i] for i in row] for row in found] == content["found"]
    assert loaded.tokenizer.decode_tgt(found) == content["texts"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, "published"], ids=str)
def test_every_kind_equals_transformers(kind: dict[str, Any] | str, tmp_path: Path) -> None:
    """Token ids, states of random ids, and beam search, also of the folder in MT_OPUS_MODEL.

    To fetch one: hf download Helsinki-NLP/opus-mt-de-en --local-dir FOLDER.
    """
    pytest.importorskip("transformers")
    lines = [*LINES, "„Zitat“ … ½ ä", "x" * 50]
    folder = tmp_path / "marian"
    if isinstance(kind, dict):
        write_marian(folder, **kind)
    elif "MT_OPUS_MODEL" in os.environ:
        folder = Path(os.environ["MT_OPUS_MODEL"])
    else:
        pytest.skip("MT_OPUS_MODEL names no folder of an OPUS-MT model")
    import_model(folder, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    rows, theirs = marian_rows(folder), Theirs(folder)
    sources = loaded.tokenizer.encode_src(lines)
    assert [[rows.source.rows[i] for i in [*row, EOS]] for row in sources] == theirs.ids(lines)

    torch.manual_seed(3)
    src = torch.randint(4, len(rows.source.rows), (3, 9))
    tgt_in = torch.randint(4, len(rows.target.rows), (3, 7))
    tgt_in[:, 0] = BOS
    mask = torch.arange(9) < torch.tensor([[9], [4], [7]])
    their_src, their_tgt = torch.tensor(rows.source.rows)[src], torch.tensor(rows.target.rows)
    expected = list(theirs.states(their_src, mask, their_tgt[tgt_in]))
    assert_same_states(loaded, rows, [src, mask, tgt_in], expected)
    for penalty in (1.0, 0.6):
        outputs = our_search(loaded, sources, penalty)
        their_outputs = [theirs.search(ids, 3, penalty) for ids in theirs.ids(lines)]
        assert [[rows.target.rows[i] for i in row] for row in outputs] == their_outputs


# --- what one does with it ----------------------------------------------------------------------


def test_an_imported_model_translates_and_scores(imported: Path, tmp_path: Path, mt: Mt) -> None:
    options = ["--model", imported, "--workers", 1, "--precision", "fp32"]
    ended = mt("translate", *options, "--beam-size", 3, "--scores", stdin="\n".join(LINES).encode())
    assert ended.code == 0, ended.err
    source, target = tmp_path / "src", tmp_path / "tgt"
    source.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    texts = [line.split("\t")[1] for line in ended.lines]
    target.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    scored = mt("score", "--model", imported, "--src", source, "--tgt", target)
    assert (scored.code, len(scored.lines)) == (0, len(LINES)), scored.err


def test_an_imported_model_is_exported_to_ctranslate2(imported: Path, tmp_path: Path) -> None:
    """The export proves that both give the same probabilities."""
    pytest.importorskip("ctranslate2")
    from mt.interop.ctranslate2 import export

    assert export(load_model(imported), tmp_path / "out").max_difference < 1e-4


@pytest.mark.slow
def test_an_imported_model_is_fine_tuned(
    imported: Path, tiny_corpus: Path, tmp_path: Path, mt: Mt
) -> None:
    """Its config.yaml starts the training; unigram sampling splits each side by its model."""
    data = {
        "train": "{src: train.src, tgt: train.tgt}",
        "valid": "{src: valid.src, tgt: valid.tgt}",
        "root": str(tiny_corpus),
    }
    values = [
        *(f"data.{key}={value}" for key, value in data.items()),
        "batch.tokens_per_update=500", "batch.tokens_per_batch=500", "data.max_tokens=40",
        "train.max_steps=6", "train.valid_every=3", "optim.peak_lr=1e-3", "optim.warmup_steps=2",
        "tokenizer.sampling_alpha=0.5", "decode.beam_size=1", "decode.max_len_factor=1",
    ]  # fmt: skip
    options = [word for value in values for word in ("--set", value)]
    command = ["train", "--config", imported / "config.yaml", "--run-dir", tmp_path / "run"]
    ended = mt(*command, "--device", "cpu", *options)
    assert ended.code == 0, ended.err
    assert f"initial weights from {imported}" in ended.err
    assert mt("average", tmp_path / "run", "--last", 2, "-o", tmp_path / "averaged").code == 0
    before, after = load_model(imported), load_model(tmp_path / "averaged")
    assert after.tokenizer.fingerprint == before.tokenizer.fingerprint
    assert not torch.equal(before.model.output.weight, after.model.output.weight)


# --- what cannot be imported ----------------------------------------------------------------------


@pytest.fixture
def refusal(marian: Path, tmp_path: Path, mt: Mt) -> Callable[..., str]:
    """`refusal(folder, output)`: the message against an import."""

    def message(folder: Path = marian, output: Path = tmp_path / "out") -> str:
        return refused(mt("import", "huggingface", folder, "-o", output))

    return message


def test_all_reasons_against_an_import_are_told_at_once(
    marian: Path, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    settings = {"decoder_ffn_dim": 99, "activation_function": "gelu_new", "d_model": 15}
    change(marian / "config.json", normalize_before=True, **settings)
    change(marian / "vocab.json", **{"▁neu": 3, "<unk>": 10_000})
    (marian / "target.spm").unlink()
    message = refusal()
    assert says(message, "encoder_ffn_dim and decoder_ffn_dim", "equal", "24 and 99", "d_model")
    assert says(message, "d_model", "even", "15", "activation_function", "silu", "gelu_new")
    assert says(message, "normalize_before", "false", "vocab.json", "below 177", "target.spm")
    assert says(message, "target.spm: No such file", "weight", "must be (15, 15), found (16, 16)")
    assert says(message, "more weights do not fit config.json")
    assert len(message.split("\n")) == 6 + LISTED + 1
    assert not (tmp_path / "out").exists()


def test_a_missing_weight_and_other_positions_are_named(
    marian: Path, refusal: Callable[..., str]
) -> None:
    weights = load_file(marian / "model.safetensors")
    del weights["model.decoder.layers.0.fc1.weight"]
    positions = weights["model.encoder.embed_positions.weight"] = torch.zeros(64, 16)
    for wrong in (1.0, torch.nan):
        positions.fill_(wrong)
        save_file(weights, marian / "model.safetensors")
        missing, table = refusal().split("\n")
        assert says(missing, "model.decoder.layers.0.fc1.weight", "(24, 16)", "found None")
        assert says(table, "model.encoder.embed_positions.weight", "sinusoids")


def test_messages_about_files(
    marian: Path, tmp_path: Path, refusal: Callable[..., str], mt: Mt
) -> None:
    assert says(refusal(tmp_path / "none"), tmp_path / "none", "hf download")
    assert says(refusal(output=marian), marian, "already exists")
    (marian / "model.safetensors").write_bytes(b"damaged")
    assert says(refusal(), "model.safetensors: damaged")
    (marian / "model.safetensors").unlink()
    assert says(refusal(), "model.safetensors or pytorch_model.bin, found neither")
    torch.save({"code": Path}, marian / "pytorch_model.bin")
    assert says(refusal(), "pytorch_model.bin", "which could run code")
    change(marian / "config.json", model_type="m2m_100")
    assert says(refusal(), "model_type must be marian, found m2m_100")
    (marian / "config.json").write_text("{", encoding="utf-8")
    assert says(refusal(), "config.json: is not JSON")
    (marian / "config.json").unlink()
    assert says(refusal(), "config.json: No such file")
    (marian / "model.npz").touch()
    assert says(refusal(), "convert_marian_to_pytorch")
    message = refused(mt("import", "marian", marian, "-o", "out"))
    assert says(message, "convert_marian_to_pytorch", "mt import huggingface OUTPUT -o out")


def test_every_segment_of_a_long_line_names_the_target_language(imported: Path) -> None:
    tokenizer = load_model(imported).tokenizer
    text = "Nein. Die kleine Katze schläft. " * 3
    ((code,),) = tokenizer.encode_src([">>deu<<"])
    rows = split_source(f" >>deu<< {text}", tokenizer, 20)
    assert len(rows) > 2
    assert all(row[0] == code and len(row) <= 20 for row in rows)
    without = split_source(text, tokenizer, 19)
    assert [row[1:] for row in rows] == without
    assert tokenizer.src_pieces(">>deu<< Nein")[0] == ">>deu<<"
    assert ">>xyz<<" not in tokenizer.src_pieces(">>xyz<< Nein")
