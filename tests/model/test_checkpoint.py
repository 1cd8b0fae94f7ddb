"""Model folders: written atomically, read back as written, averaged; refused when foreign.

Messages about damaged folders are in test_cli_models.
"""

from __future__ import annotations

import errno
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import torch
from conftest import MonkeyPatch, equal_weights
from faults import raising
from messages import raises_saying, says
from model_files import content_of, drop, empty, fill, truncate
from safetensors import SafetensorError
from token_stores import trained

from mt.config.load import config_from_mapping
from mt.config.schema import Config
from mt.data.tokens.tokenizer import Tokenizer
from mt.errors import CheckpointError, ConfigError
from mt.model.checkpoint import (
    average,
    build_model,
    load_model,
    load_state,
    load_weights,
    put_weights,
    save_model_folder,
    weights_of,
)
from mt.model.transformer import Transformer
from mt.runs.model_folder import checkpoints, find_model, open_model, read_meta, step_name

CONFIG = {
    "model": {"d_model": 8, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 1, "d_ff": 16},
    "data": {"max_tokens": 30},
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return trained(290)


@pytest.fixture
def config() -> Config:
    return config_from_mapping(CONFIG, "test")


@pytest.fixture
def model(config: Config, tokenizer: Tokenizer) -> Transformer:
    torch.manual_seed(5)
    return build_model(config, tokenizer)


@pytest.fixture
def run_dir(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    """A run directory without checkpoints."""
    folder = tmp_path / "run"
    tokenizer.save(folder)
    (folder / "checkpoints").mkdir()
    return folder


Save = Callable[..., Path]


@pytest.fixture
def save(run_dir: Path, model: Transformer, config: Config, tokenizer: Tokenizer) -> Save:
    """`save(4)`: the checkpoint of update 4, whose weights are 4 times those of the model."""

    def saved(step: int, **meta: Any) -> Path:
        folder = run_dir / "checkpoints" / step_name(step)
        weights = {name: step * tensor for name, tensor in weights_of(model).items()}
        described = {
            "config": config.model_dump(mode="json"),
            "tokenizer": tokenizer.fingerprint,
            "step": step,
        }
        state = {"moments": torch.arange(5.0) * step}
        save_model_folder(folder, weights, described | meta, state, replace=True)
        return folder

    return saved


# --- save and load ----------------------------------------------------------------------------


def test_load_returns_what_was_saved(save: Save, model: Transformer, tokenizer: Tokenizer) -> None:
    folder = save(1, score=12.5)
    assert sorted(os.listdir(folder)) == ["meta.json", "model.safetensors", "state.pt"]
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1
    assert equal_weights(load_weights(folder), weights_of(model))
    assert load_state(folder)["moments"].tolist() == [0, 1, 2, 3, 4]
    meta = read_meta(folder, ["model.safetensors", "state.pt"])
    assert (meta["step"], meta["score"]) == (1, 12.5)
    loaded = load_model(folder)
    assert equal_weights(weights_of(loaded.model), weights_of(model))
    assert not loaded.model.training
    assert loaded.tokenizer.fingerprint == tokenizer.fingerprint
    assert loaded.config.model.d_ff == 16
    src, src_mask = torch.tensor([[5, 6, 3]]), torch.ones(1, 3, dtype=torch.bool)
    tgt = torch.tensor([[2, 7]])
    assert torch.equal(loaded.model(src, tgt, src_mask), model.eval()(src, tgt, src_mask))


def test_a_model_of_a_removed_key_of_training_is_read_as_ever(save: Save, config: Config) -> None:
    """Muon does not matter to the model that it trained; another key that is gone would."""
    values = config.model_dump(mode="json")
    optim = values["optim"] | {"optimizer": "muon", "rdrop": 5.0}
    train = values["train"] | {"metric": "comet", "freeze": ["encoder"]}
    folder = save(1, config=values | {"optim": optim, "train": train})
    assert load_model(folder).config == open_model(folder).config == config
    stages = [{"until": {"epochs": 1.5, "updates": None}}, {"until": {"share": 0.5, "updates": 9}}]
    data = values["data"] | {"stages": [*stages, {}]}
    read = open_model(save(3, config=values | {"data": data})).config.data.stages or []
    ends = [stage.until and (stage.until.updates, stage.until.share) for stage in read]
    assert ends == [(None, 1.0), (9, None), None]
    folder = save(2, config=values | {"model": values["model"] | {"source_word_dropout": 0.1}})
    with raises_saying(ConfigError, "model.source_word_dropout", "removed"):
        load_model(folder)


def test_a_tied_matrix_is_stored_once_and_tied_again(save: Save) -> None:
    folder = save(1)
    shapes = [tuple(tensor.shape) for tensor in load_weights(folder).values()]
    assert sum(shape == (290, 8) for shape in shapes) == 1
    loaded = load_model(folder).model
    assert loaded.output.weight is loaded.src_embedding.tokens.weight


def test_saving_to_a_folder_replaces_it(save: Save, run_dir: Path, model: Transformer) -> None:
    folder = save(2, note="before")
    save(2, note="after")
    assert read_meta(folder, [])["note"] == "after"
    assert os.listdir(run_dir / "checkpoints") == [step_name(2)]


def test_a_pickle_in_place_of_the_state_is_refused(save: Save, tmp_path: Path) -> None:
    """It is not executed, and the message does not pass on torch's advice to load it unsafely."""
    folder, witness = save(1), tmp_path / "ran"

    class Bomb:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(witness),)

    def plain_pickle(path: Path) -> None:
        path.write_bytes(pickle.dumps(Bomb()))

    def torch_archive(path: Path) -> None:
        torch.save({"x": Bomb()}, path)

    def array(path: Path) -> None:
        torch.save({"x": np.zeros(3)}, path)

    for write in (plain_pickle, torch_archive, array):
        write(folder / "state.pt")
        with pytest.raises(CheckpointError) as error:
            load_state(folder)
        assert says(str(error.value), folder / "state.pt", "refused", "use the state.pt")
        assert "weights_only" not in str(error.value)
    assert not witness.exists()


@pytest.mark.parametrize("damage", [drop, empty, truncate, fill], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", ["model.safetensors", "state.pt"])
def test_an_unreadable_file_is_named(damage: Callable[[Path], None], name: str, save: Save) -> None:
    folder = save(1)
    damage(folder / name)
    with pytest.raises(CheckpointError) as error:
        load_weights(folder) if name == "model.safetensors" else load_state(folder)
    message = str(error.value)
    assert message.startswith(f"{folder / name}: ")
    assert "weights_only" not in message
    assert "None" not in message
    assert "; use " in message


# --- what --model names -----------------------------------------------------------------------


def test_a_run_stands_for_its_best_checkpoint_else_its_last(save: Save, run_dir: Path) -> None:
    first, second = save(1), save(2)
    (run_dir / "checkpoints" / "last").symlink_to(second.name)
    assert find_model(run_dir) == second.resolve()
    (run_dir / "checkpoints" / "best").symlink_to(first.name)
    assert find_model(run_dir) == first.resolve()
    assert find_model(second) == second.resolve()
    assert find_model(run_dir / "checkpoints" / "last") == second.resolve()
    assert load_model(run_dir).meta["step"] == 1


# --- weights that do not fit the config -------------------------------------------------------


def test_weights_of_another_shape_are_named(model: Transformer) -> None:
    weights = dict(weights_of(model))
    weights["decoder_norm.weight"] = torch.zeros(9)
    weights["extra"] = weights.pop("encoder_norm.bias")
    before = {name: tensor.clone() for name, tensor in weights_of(model).items()}
    faults = "decoder_norm.weight", "(8,)", "(9,)", "encoder_norm.bias is missing", "extra"
    with raises_saying(CheckpointError, "some/model.safetensors", *faults, "copy both"):
        put_weights(model, weights, "some/model.safetensors")
    assert equal_weights(before, weights_of(model))


# --- averages ---------------------------------------------------------------------------------


def test_an_average_by_hand(tmp_path: Path) -> None:
    rows = ([1.0, 2.0], [4.0, 0.0], [1.0, 1.0])
    folders = [tmp_path / step_name(i) for i in range(3)]
    for folder, row in zip(folders, rows, strict=True):
        save_model_folder(folder, {"w": torch.tensor(row)}, {})
    assert average(folders)["w"].tolist() == [2.0, 1.0]
    assert average(folders[:1])["w"].tolist() == [1.0, 2.0]
    assert average(folders[:2], [3, 1])["w"].tolist() == [1.75, 1.5]
    assert average(folders)["w"].dtype == torch.float32


def test_an_average_is_summed_in_double_precision(tmp_path: Path) -> None:
    """float32 cannot represent 2^24 + 1: summed in it, the result would be 2^22 + 1/2."""
    folders = [tmp_path / step_name(i) for i in range(4)]
    for folder, value in zip(folders, (2.0**24, 1.0, 1.0, 2.0), strict=True):
        save_model_folder(folder, {"w": torch.tensor([value])}, {})
    assert average(folders)["w"].item() == 2**22 + 1


# --- saving fails -----------------------------------------------------------------------------


def full_disk() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def half(error: Exception) -> Callable[..., None]:
    """A writer that fails in the middle of the file."""

    def write(_: Any, file: Path | BinaryIO, *__: Any, **___: Any) -> None:
        if isinstance(file, Path):
            file.write_bytes(b"half of it")
        else:
            file.write(b"half of it")
        raise error

    return write


fail = raising(full_disk())


FAILURES = {
    "safetensors.torch.save_file": half(
        SafetensorError("I/O error: No space left on device (os error 28)")
    ),
    "mt.model.checkpoint.torch.save": half(full_disk()),
    "mt.model.checkpoint.sha256_of": fail,
    "mt.artefacts.sync_files": fail,
}


@pytest.mark.parametrize("where", FAILURES)
@pytest.mark.parametrize("again", [True, False])
def test_a_full_disk_leaves_everything_saved_before(
    where: str, again: bool, save: Save, run_dir: Path, monkeypatch: MonkeyPatch
) -> None:
    folder = save(1)
    before = content_of(folder)
    monkeypatch.setattr(where, FAILURES[where])
    seen: list[list[str]] = []  # what the folder holds when its free space is measured
    usage = shutil.disk_usage

    def measured(path: Path) -> Any:
        seen.append(os.listdir(path))
        return usage(path)._replace(free=12_345_678)

    monkeypatch.setattr(shutil, "disk_usage", measured)
    with pytest.raises(CheckpointError) as error:
        save(1 if again else 2)
    monkeypatch.undo()
    target = folder if again else run_dir / "checkpoints" / step_name(2)
    parts = target, "No space left on device", "MB", "12.3 MB are free", "intact", "free some space"
    assert says(str(error.value), *parts)
    assert content_of(folder) == before
    assert os.listdir(run_dir / "checkpoints") == [folder.name]
    assert seen == [[folder.name]]


@pytest.mark.parametrize("state", [None, {"x": torch.zeros(100_000)}], ids=["weights", "state"])
def test_a_disk_that_is_really_full(
    state: dict[str, Any] | None, small_disk: Callable[[int], Path], model: Transformer,
    config: Config, tokenizer: Tokenizer,
) -> None:  # fmt: skip
    meta = {"config": config.model_dump(mode="json"), "tokenizer": tokenizer.fingerprint}
    run_dir = small_disk(256) / "run"
    save_model_folder(run_dir / "checkpoints" / step_name(1), weights_of(model), meta)

    def save_forty() -> None:
        for step in range(2, 42):
            folder = run_dir / "checkpoints" / step_name(step)
            save_model_folder(folder, weights_of(model), meta, state, replace=True)

    with raises_saying(CheckpointError, run_dir, "No space left on device", "0.", "MB", "0.", "MB"):
        save_forty()
    for folder in checkpoints(run_dir):
        read_meta(folder, ["model.safetensors"])
        assert equal_weights(load_weights(folder), weights_of(model))
    assert not list(run_dir.glob("checkpoints/.*"))
