"""mt import huggingface: Marian models, against what transformers computes with them.

`tests/files/marian/` is a small Marian folder with expected values, which `marian_models.py` wrote
with transformers; the slow tests compare every kind of model with transformers itself.
"""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import MonkeyPatch, Mt, TempPathFactory, refused
from marian_models import EXPECTED, KINDS, LINES, SAVED, Theirs, write_marian
from messages import says
from safetensors.torch import load_file, save_file
from torch import Tensor

from mt.data.tokens.tokenizer import BOS, EOS
from mt.errors import MtError
from mt.interop import huggingface_folder, huggingface_import
from mt.interop.huggingface_folder import DEFAULTS, LISTED, read_config
from mt.interop.huggingface_import import import_model
from mt.interop.huggingface_tokenizer import read_tokenizer
from mt.model.checkpoint import LoadedModel, load_model
from mt.runtime.devices import choose_device
from mt.search.engine import TorchEngine
from mt.search.inference import Inference
from mt.translate.segments import split_source

TOLERANCE = 1e-6  # in float64; both have their position tables in float32


@pytest.fixture(scope="module")
def imported(tmp_path_factory: TempPathFactory) -> Path:
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


class Saved:
    """What transformers computed with `tests/files/marian/`, in the place of `Theirs`."""

    def __init__(self) -> None:
        self.content = json.loads((SAVED / EXPECTED[0]).read_text(encoding="utf-8"))
        self.tensors = load_file(SAVED / EXPECTED[1])
        self.ids = lambda _: self.content["ids"]
        self.states = lambda *_: (self.tensors["memory"], self.tensors["logits"])
        self.search = lambda ids, *_: self.content["found"][self.content["ids"].index(ids)]


def compare(
    loaded: LoadedModel, folder: Path, lines: list[str], batch: list[Tensor], theirs: Any
) -> list[list[int]]:
    """Compare token ids, states and beam search; `batch`: their sources, mask and targets.

    The beam search's outputs are returned, as our ids.
    """
    rows = read_tokenizer(folder, read_config(folder), [])
    assert rows is not None
    sources = loaded.tokenizer.src.encode(lines)
    their_ids = [[rows.source.rows[i] for i in [*row, EOS]] for row in sources]
    assert their_ids == theirs.ids(lines)

    src, mask, tgt_in = batch
    their_memory, their_logits = theirs.states(src, mask, tgt_in)
    for ids, side in ((src, rows.source), (tgt_in, rows.target)):
        ids.apply_({row: i for i, row in reversed(list(enumerate(side.rows)))}.__getitem__)
    tgt_in[:, 0] = BOS
    model = copy.deepcopy(loaded.model).double()
    with torch.no_grad():
        memory = model.encode(src, mask)
        logits = model.output(model(src, tgt_in, mask))
    memory = torch.cat([memory[..., 0::2], memory[..., 1::2]], dim=-1)
    torch.testing.assert_close(memory[mask], their_memory[mask], rtol=0, atol=TOLERANCE)
    kept = torch.tensor([i for i in range(len(rows.target.rows)) if i != BOS])
    their_rows = torch.tensor(rows.target.rows)[kept]
    log_probs, their_log_probs = logits.log_softmax(-1), their_logits.log_softmax(-1)
    for ours, other in ((logits, their_logits), (log_probs, their_log_probs)):
        torch.testing.assert_close(ours[..., kept], other[..., their_rows], rtol=0, atol=TOLERANCE)
    assert bool((log_probs[..., BOS] < -50).all())

    outputs: list[list[int]] = []
    for penalty in (0.6, 1.0) if isinstance(theirs, Theirs) else (1.0,):
        search = {"beam_size": 3, "length_penalty": penalty, "max_len_extra": 100}
        decode = loaded.config.decode.model_copy(update=search)
        engine = TorchEngine(Inference(loaded.model, choose_device("cpu", "fp32")), decode)
        outputs = [list(hypotheses[0].tokens) for hypotheses in engine.search(sources)]
        their_outputs = [theirs.search(ids, 3, penalty) for ids in their_ids]
        assert [[rows.target.rows[i] for i in row] for row in outputs] == their_outputs
    return outputs


def test_computes_what_transformers_computed(imported: Path) -> None:
    """Token ids, encoder states, logits and beam search of a saved folder."""
    loaded, saved = load_model(imported), Saved()
    src, tgt_in = saved.tensors["src"], saved.tensors["tgt_in"]
    batch = [src, src != read_config(SAVED)["pad_token_id"], tgt_in]
    outputs = compare(loaded, SAVED, saved.content["lines"], batch, saved)
    assert loaded.tokenizer.tgt.decode(outputs) == saved.content["texts"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, "published"], ids=str)
def test_every_kind_equals_transformers(kind: dict[str, Any] | str, tmp_path: Path) -> None:
    """Also the folder in MT_OPUS_MODEL: hf download Helsinki-NLP/... --local-dir FOLDER."""
    pytest.importorskip("transformers")
    folder = Path(os.environ.get("MT_OPUS_MODEL", ""))
    if isinstance(kind, dict):
        folder = tmp_path / "marian"
        write_marian(folder, **kind)
    elif "MT_OPUS_MODEL" not in os.environ:
        pytest.skip("MT_OPUS_MODEL names no folder of an OPUS-MT model")
    import_model(folder, tmp_path / "model")
    settings = read_config(folder)
    torch.manual_seed(3)
    src = torch.randint(2, settings["vocab_size"] - 1, (3, 9))
    tgt_in = torch.randint(2, settings["decoder_vocab_size"] - 1, (3, 7))
    tgt_in[:, 0] = settings["decoder_start_token_id"]
    mask = torch.arange(9) < torch.tensor([[9], [4], [7]])
    lines = [*LINES, "„Zitat“ … ½ ä", "x" * 50]
    compare(load_model(tmp_path / "model"), folder, lines, [src, mask, tgt_in], Theirs(folder))


# --- what one does with it ----------------------------------------------------------------------


def test_matrices_that_differ_stay_apart(marian: Path, tmp_path: Path) -> None:
    """Output and target embedding are equal, but a joint model has one matrix for all or three."""
    weights = load_file(marian / "model.safetensors")
    shared = weights["model.shared.weight"]
    weights |= {"model.encoder.embed_tokens.weight": shared + 1, "lm_head.weight": shared.clone()}
    save_file(weights, marian / "model.safetensors")
    change(marian / "config.json", tie_word_embeddings=False)
    import_model(marian, tmp_path / "model")
    model = load_model(tmp_path / "model").model
    difference = model.src_embedding.tokens.weight - model.tgt_embedding.tokens.weight
    torch.testing.assert_close(difference, torch.ones_like(difference))


@pytest.mark.parametrize(
    ("names", "differing"),
    [
        ([], ""),
        (["lm_head"], "the output differ"),
        (["model.encoder.embed_tokens"], "the source differ"),
        (["model.decoder.embed_tokens"], "the source and the output differ"),
        (["model.decoder.embed_tokens", "lm_head"], "the source and the output differ"),
    ],
)
def test_a_matrix_of_its_own_is_used_where_config_ties_it(
    names: list[str], differing: str, marian: Path, tmp_path: Path
) -> None:
    """As transformers does, with which the import compares probabilities."""
    pytest.importorskip("transformers", minversion="5")
    weights = load_file(marian / "model.safetensors")
    shared = weights["model.shared.weight"]
    weights |= {f"{name}.weight": shared + torch.randn_like(shared) for name in names}
    weights["model.odd"] = shared.clone()
    save_file(weights, marian / "model.safetensors", {"format": "pt"})
    report = import_model(marian, tmp_path / "model")
    assert says(report, f"those of {differing} from those of the target" if names else "\n")
    assert says(report, "weights left out, as transformers leaves them out: model.odd")
    assert says(report, "compared with transformers", "have the same log-probability")


def test_where_transformers_computes_otherwise_nothing_is_written(
    marian: Path, tmp_path: Path, mt: Mt, monkeypatch: MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    table = {"encoder": "lm_head.weight", "decoder": "lm_head.weight", "output": "lm_head.weight"}
    weights = load_file(marian / "model.safetensors")
    weights["lm_head.weight"] = weights["model.shared.weight"] + 1.0
    weights["lm_head.weight"][5] *= 3
    save_file(weights, marian / "model.safetensors", {"format": "pt"})

    def wrong(tensors: dict[str, Tensor], _: object) -> dict[str, Tensor]:
        return {side: tensors[name] for side, name in table.items()}

    monkeypatch.setattr(huggingface_folder, "embeddings", wrong)
    said = refused(mt("import", "huggingface", marian, "-o", tmp_path / "out"))
    assert says(said, marian, "transformers computes other probabilities", "nothing was written")
    assert not (tmp_path / "out").exists()


def test_the_search_of_the_folder_is_kept_and_rows_without_a_piece_are_never_chosen(
    marian: Path, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_import, "compare", lambda *_: "")
    vocabulary = json.loads((marian / "vocab.json").read_text(encoding="utf-8"))
    del vocabulary[sorted(vocabulary, key=vocabulary.__getitem__)[20]]
    (marian / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    change(marian / "generation_config.json", length_penalty=0.5)
    report = import_model(marian, tmp_path / "model")
    assert says(report, "rows of the embeddings without a piece, which are never chosen: 1")
    loaded = load_model(tmp_path / "model")
    never = [i for i, bias in enumerate(loaded.model.output.bias.tolist()) if bias < -50]
    assert [loaded.tokenizer.tgt.all_pieces()[i] for i in never if i > EOS] == ["<row 20>"]
    assert loaded.config.decode.length_penalty == 0.5


def test_an_imported_model_translates_and_scores(imported: Path, tmp_path: Path, mt: Mt) -> None:
    source, target = tmp_path / "src", tmp_path / "tgt"
    source.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    options = ["--model", imported, source, "--workers", 1, "--precision", "fp32"]
    ended = mt("translate", *options, "--beam-size", 3, "--scores")
    assert ended.code == 0, ended.err
    texts = [line.split("\t")[1] for line in ended.lines]
    target.write_text("\n".join(texts) + "\n", encoding="utf-8")
    scored = mt("score", "--model", imported, "--src", source, "--tgt", target)
    assert (scored.code, len(scored.lines)) == (0, len(LINES)), scored.err


def test_an_imported_model_is_exported_to_ctranslate2(imported: Path, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    from mt.interop.ctranslate2 import export

    assert export(load_model(imported), tmp_path / "out").max_difference < 1e-4


@pytest.mark.slow
def test_imports_are_fine_tuned(imported: Path, tiny_corpus: Path, tmp_path: Path, mt: Mt) -> None:
    values = [
        *(f"data.{kind}={{src: {kind}.src, tgt: {kind}.tgt}}" for kind in ("train", "valid")),
        f"data.root={tiny_corpus}",
        "batch.tokens_per_update=500", "batch.tokens_per_batch=500", "data.max_tokens=40",
        "train.max_steps=6", "train.valid_every=3", "optim.peak_lr=1e-3", "optim.warmup_steps=2",
        "decode.beam_size=1", "decode.max_len_factor=1",
    ]  # fmt: skip
    options = [word for value in values for word in ("--set", value)]
    command = ["train", "--config", imported / "config.yaml", "--run-dir", tmp_path / "run"]
    ended = mt(*command, "--device", "cpu", *options)
    assert ended.code == 0, ended.err
    assert f"initial weights from {imported}" in ended.err
    longer = mt(*command, "--device", "cpu", *options, "--set", "train.max_steps=8", "--dry-run")
    assert longer.code == 0, longer.err
    assert mt("average", tmp_path / "run", "--last", 2, "-o", tmp_path / "averaged").code == 0
    before, after = load_model(imported), load_model(tmp_path / "averaged")
    assert after.tokenizer.fingerprint == before.tokenizer.fingerprint
    assert not torch.equal(before.model.output.weight, after.model.output.weight)


# --- what cannot be imported ----------------------------------------------------------------------


@pytest.fixture
def refusal(marian: Path, tmp_path: Path, mt: Mt) -> Callable[..., str]:
    """`refusal(folder, output)`: the message against an import."""
    return lambda folder=marian, output=tmp_path / "out": refused(
        mt("import", "huggingface", folder, "-o", output)
    )


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
    assert says(message, "normalize_before", "false", "weight", "must be (15, 15), found (16, 16)")
    assert says(message, "more weights do not fit config.json")
    assert says(message, "vocab.json", "below 177", "target.spm: No such file")
    assert len(message.split("\n")) == 6 + LISTED + 1
    assert not (tmp_path / "out").exists()


def test_missing_weights_and_positions_are_named(marian: Path, refusal: Callable[..., str]) -> None:
    weights = load_file(marian / "model.safetensors")
    del weights["model.decoder.layers.0.fc1.weight"]
    positions = weights["model.encoder.embed_positions.weight"] = torch.zeros(64, 16)
    for wrong in (1.0, torch.nan):
        positions.fill_(wrong)
        save_file(weights, marian / "model.safetensors")
        missing, table = refusal().split("\n")
        assert says(missing, "model.decoder.layers.0.fc1.weight", "(24, 16)", "found None")
        assert says(table, "model.encoder.embed_positions.weight", "sinusoids")
    change(marian / "config.json", d_model=15)
    assert says(refusal(), "d_model", "even", "15", "embed_positions.weight", "sinusoids")


# None of them is a value of any key, or only where null is one.
ODD = ["64", None, True, -1, float("nan"), 10**400, [[1]], {"a": 1}, 2**31, float("-inf")]


@pytest.fixture
def no_writing(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_import, "save_model_folder", lambda *_, **__: None)
    monkeypatch.setattr(huggingface_import, "compare", lambda *_: "")  # takes half a second


def import_or_refuse(folder: Path) -> str:
    """The message against an import, if it is not taken; any other error fails the test."""
    try:
        return import_model(folder, folder / "out") and ""
    except MtError as error:
        return str(error)


@pytest.mark.parametrize("key", [*DEFAULTS, "model_type"])
def test_a_key_of_a_strangers_config_has_its_kind(key: str, marian: Path, no_writing: None) -> None:
    whole = json.loads((marian / "config.json").read_text(encoding="utf-8"))
    default = DEFAULTS.get(key)
    for odd in ODD:
        change(marian / "config.json", **whole | {key: odd})
        message = import_or_refuse(marian)
        right = (default is True or default is False) and odd is True
        if not right and (key != "decoder_vocab_size" or odd is not None):
            assert says(message, marian, "config.json", key, "must be", "found")


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("config.json", ["mt", "num_beams", "length_penalty", "normalize_before"]),
        ("generation_config.json", ["num_beams", "length_penalty"]),
        ("tokenizer_config.json", ["source_lang", "separate_vocabs", "unk_token"]),
        ("vocab.json", ["</s>", "<unk>", "<pad>", "▁x"]),
    ],
)
def test_a_strangers_values_are_taken_or_refused(
    name: str, keys: list[str], marian: Path, no_writing: None
) -> None:
    whole = json.loads((marian / name).read_text(encoding="utf-8"))
    for key in keys:
        for odd in [*ODD, "\ud800", {"data": {"max_tokens": "x"}, "decode": None}]:
            change(marian / name, **whole | {key: odd})
            import_or_refuse(marian)
    for content in (b"[" * 10**5, b"\xff", b"[]", b'{"a": "\\ud800"}', b"1" * 10**5):
        (marian / name).write_bytes(content)
        assert says(import_or_refuse(marian), name)


def test_a_million_layers_are_refused_at_once(marian: Path, no_writing: None) -> None:
    sizes = {"vocab_size": 10**9, "decoder_vocab_size": 10**9, "d_model": 10**6}
    change(marian / "config.json", encoder_layers=10**6, decoder_layers=10**6, **sizes)
    start = time.perf_counter()
    message = import_or_refuse(marian)
    assert time.perf_counter() - start < 1
    assert says(message, "encoder_layers must be 2", "found 1,000,000", "decoder_layers must be 1")


def test_damaged_bytes_of_any_file_are_taken_or_refused(marian: Path, no_writing: None) -> None:
    torch.save(load_file(marian / "model.safetensors"), marian / "pytorch_model.bin")
    draw = random.Random(1)
    for name in ("model.safetensors", "pytorch_model.bin", "source.spm"):
        whole = (marian / name).read_bytes()
        for _ in range(60):
            content = bytearray(whole)
            place = draw.randrange(draw.choice([64, 2000, len(whole)]))
            content[place : place + draw.randrange(4)] = draw.randbytes(draw.randrange(4))
            (marian / name).write_bytes(content)
            import_or_refuse(marian)
        (marian / name).unlink() if name != "source.spm" else None
    for odd in ([1], None, {1: torch.zeros(1), "model.shared.weight": torch.eye(3).to_sparse()}):
        torch.save(odd, marian / "pytorch_model.bin")
        assert says(import_or_refuse(marian), marian, "must be")


def test_file_messages(marian: Path, tmp_path: Path, refusal: Callable[..., str], mt: Mt) -> None:
    assert says(refusal(tmp_path / "none"), tmp_path / "none", "on the hub", "Helsinki-NLP/")
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


def test_every_segment_of_a_long_line_names_the_target_language(imported: Path) -> None:
    tokenizer = load_model(imported).tokenizer
    text = "Nein. Die kleine Katze schläft. " * 3
    ((code,),) = tokenizer.src.encode([">>deu<<"])
    rows = [part.source for part in split_source(f" >>deu<< {text}", tokenizer, 20)]
    assert len(rows) > 2
    assert all(row[0] == code and len(row) <= 20 for row in rows)
    assert [row[1:] for row in rows] == [part.source for part in split_source(text, tokenizer, 19)]
    assert tokenizer.src.pieces(">>deu<< Nein")[0] == ">>deu<<"
    assert ">>xyz<<" not in tokenizer.src.pieces(">>xyz<< Nein")
