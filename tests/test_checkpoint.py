"""Model folders: whole or not there, read back as written, and refused when they are not what was written."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mt.config.load import config_from_mapping
from mt.config.schema import Config, TokenizerConfig
from mt.data.tokenizer import Tokenizer, train_tokenizer
from mt.errors import CheckpointError
from mt.model import checkpoint
from mt.model.checkpoint import (
    DamagedError,
    average,
    build_model,
    checkpoints,
    find_model,
    load_model,
    load_state,
    load_weights,
    point,
    prune,
    put_weights,
    read_meta,
    save_model_folder,
    step_name,
    tidy,
    weights_of,
    whole_checkpoints,
)
from mt.model.transformer import Transformer

CONFIG = {
    "model": {"d_model": 8, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 1, "d_ff": 16},
    "data": {"max_tokens": 30},
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    words = [("eins zwei drei vier fünf", "one two three four five")] * 50
    return train_tokenizer(TokenizerConfig(vocab_size=290), words, 1, lambda _: None)


@pytest.fixture
def config() -> Config:
    return config_from_mapping(CONFIG, "test")


@pytest.fixture
def model(config: Config, tokenizer: Tokenizer) -> Transformer:
    torch.manual_seed(5)
    return build_model(config, tokenizer)


@pytest.fixture
def run(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    folder = tmp_path / "run"
    tokenizer.save(folder)
    (folder / "checkpoints").mkdir()
    return folder


Save = Callable[..., Path]


@pytest.fixture
def save(run: Path, model: Transformer, config: Config, tokenizer: Tokenizer) -> Save:
    """`save(4)`: the checkpoint of update 4, whose weights are 4 times those of the model."""

    def saved(step: int, **meta: Any) -> Path:
        folder = run / "checkpoints" / step_name(step)
        weights = {name: step * tensor for name, tensor in weights_of(model).items()}
        facts = {
            "config": config.model_dump(mode="json"),
            "tokenizer": tokenizer.fingerprint,
            "step": step,
        }
        save_model_folder(folder, weights, facts | meta, {"moments": torch.arange(5.0) * step})
        return folder

    return saved


def flip(path: Path) -> None:
    """Turn one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def content_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# --- save and load ----------------------------------------------------------------------------


def test_what_is_loaded_is_what_was_saved(
    save: Save, model: Transformer, tokenizer: Tokenizer
) -> None:
    folder = save(1, score=12.5)
    assert sorted(path.name for path in folder.iterdir()) == [
        "meta.json",
        "model.safetensors",
        "state.pt",
    ]
    assert same(load_weights(folder), weights_of(model))
    assert load_state(folder)["moments"].tolist() == [0, 1, 2, 3, 4]
    meta = read_meta(folder, ["model.safetensors", "state.pt"])
    assert (meta["step"], meta["score"]) == (1, 12.5)
    loaded = load_model(folder)
    assert same(weights_of(loaded.model), weights_of(model))
    assert not loaded.model.training
    assert loaded.tokenizer.fingerprint == tokenizer.fingerprint
    assert loaded.config.model.d_ff == 16
    src, src_mask = torch.tensor([[5, 6, 3]]), torch.ones(1, 3, dtype=torch.bool)
    tgt = torch.tensor([[2, 7]])
    assert torch.equal(loaded.model(src, tgt, src_mask), model.eval()(src, tgt, src_mask))


def test_a_matrix_that_is_shared_is_stored_once_and_shared_again(save: Save) -> None:
    folder = save(1)
    shapes = [tuple(tensor.shape) for tensor in load_weights(folder).values()]
    assert sum(shape == (290, 8) for shape in shapes) == 1
    loaded = load_model(folder).model
    assert loaded.output.weight is loaded.src_embedding.tokens.weight


def test_a_folder_with_its_tokenizer_stands_alone(
    tmp_path: Path, model: Transformer, config: Config, tokenizer: Tokenizer
) -> None:
    meta = {"config": config.model_dump(mode="json"), "tokenizer": tokenizer.fingerprint}
    save_model_folder(tmp_path / "a" / "b", weights_of(model), meta, tokenizer=tokenizer)
    assert sorted(os.listdir(tmp_path / "a" / "b")) == [
        "meta.json",
        "model.safetensors",
        "tokenizer.model",
    ]
    assert same(weights_of(load_model(tmp_path / "a" / "b").model), weights_of(model))


def test_saving_again_at_the_same_place_replaces_it(
    save: Save, run: Path, model: Transformer
) -> None:
    folder = save(2, note="before")
    save(2, note="after")
    assert read_meta(folder, [])["note"] == "after"
    assert os.listdir(run / "checkpoints") == [step_name(2)]


def test_state_runs_no_code(save: Save, tmp_path: Path) -> None:
    folder, witness = save(1), tmp_path / "ran"

    class Bomb:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(witness),)

    (folder / "state.pt").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(CheckpointError, match=r"state\.pt: cannot be read"):
        load_state(folder)
    torch.save({"x": Bomb()}, folder / "state.pt")
    with pytest.raises(CheckpointError, match=r"state\.pt: cannot be read"):
        load_state(folder)
    assert not witness.exists()


# --- last, best, and which model is meant -----------------------------------------------------


def test_last_and_best_are_links_that_move_with_the_run(save: Save, run: Path) -> None:
    for step in (1, 2, 3):
        point(run, "last", save(step))
    point(run, "best", run / "checkpoints" / step_name(2))
    moved = run.rename(run.with_name("moved"))
    assert (moved / "checkpoints" / "last").resolve() == (
        moved / "checkpoints" / step_name(3)
    ).resolve()
    assert (moved / "checkpoints" / "best").resolve() == (
        moved / "checkpoints" / step_name(2)
    ).resolve()
    assert sorted(os.listdir(moved / "checkpoints")) == ["best", "last", *map(step_name, (1, 2, 3))]


def test_the_best_model_of_a_run_is_meant_else_the_last(save: Save, run: Path) -> None:
    first, second = save(1), save(2)
    point(run, "last", second)
    assert find_model(run) == second.resolve()
    point(run, "best", first)
    assert find_model(run) == first.resolve()
    assert find_model(second) == second.resolve()
    assert find_model(run / "checkpoints" / "last") == second.resolve()
    assert load_model(run).meta["step"] == 1


def test_a_place_without_a_model_says_what_is_wrong(run: Path, tmp_path: Path) -> None:
    def problem(path: Path) -> str:
        with pytest.raises(CheckpointError) as error:
            find_model(path)
        start = f"--model {path}: must be a run directory, a checkpoint or an exported folder; "
        assert str(error.value).startswith(start)
        return str(error.value).removeprefix(start)

    assert problem(tmp_path / "nowhere") == "there is nothing at this path"
    assert problem(run) == "this run has saved no checkpoint yet; wait for its first validation"
    assert problem(tmp_path) == "neither meta.json nor checkpoints/best is in it"


# --- damage -----------------------------------------------------------------------------------


def drop(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [truncate, flip, drop, empty])
@pytest.mark.parametrize("name", ["model.safetensors", "state.pt", "meta.json"])
def test_the_checkpoint_before_a_damaged_one_is_used_and_that_is_said(
    damage: Callable[[Path], None], name: str, save: Save, run: Path
) -> None:
    if (damage, name) == (flip, "meta.json"):
        pytest.skip("a bit in JSON may be anything")
    first, second = save(1), save(2)
    damage(second / name)
    said: list[str] = []
    found = next(whole_checkpoints(run, said.append), None)
    assert found is not None
    assert (found[0], found[1]["step"]) == (first, 1)
    (line,) = said
    assert line.startswith(str(second))
    assert "damaged, its checksum differs" in line or "is no whole model folder (" in line
    assert line.endswith(
        "use another checkpoint, or copy this one again. Passed over for the checkpoint before it"
    )


def test_the_newest_checkpoint_is_used_silently_when_it_is_whole(save: Save, run: Path) -> None:
    for step in (9, 10, 100):  # as numbers, not as text
        save(step)
    said: list[str] = []
    found = next(whole_checkpoints(run, said.append), None)
    assert found is not None
    assert found[1]["step"] == 100
    assert said == []


def test_what_somebody_has_put_beside_the_checkpoints_is_left_alone(save: Save, run: Path) -> None:
    kept = save(4)
    copy = kept.with_name("step-00000004-good")
    shutil.copytree(kept, copy)
    newest = save(5)
    assert checkpoints(run) == [kept, newest]
    prune(run, {newest.name})
    assert sorted(path.name for path in newest.parent.iterdir()) == [copy.name, newest.name]


def test_where_all_are_damaged_there_is_none(save: Save, run: Path) -> None:
    for step in (1, 2):
        truncate(save(step) / "state.pt")
    said: list[str] = []
    assert next(whole_checkpoints(run, said.append), None) is None
    assert len(said) == 2


def test_a_model_that_is_damaged_is_not_translated_with(save: Save) -> None:
    folder = save(1)
    flip(folder / "model.safetensors")
    with pytest.raises(DamagedError) as error:
        load_model(folder)
    assert str(error.value) == (
        f"{folder / 'model.safetensors'}: damaged, its checksum differs from the one in meta.json; "
        "use another checkpoint, or copy this one again"
    )


def test_a_missing_file_is_named(save: Save) -> None:
    folder = save(1)
    (folder / "model.safetensors").unlink()
    with pytest.raises(DamagedError) as error:
        load_model(folder)
    assert str(error.value) == (
        f"{folder}: is no whole model folder ({folder / 'model.safetensors'}: No such file or directory); "
        "use another checkpoint, or copy this one again"
    )


def test_a_newer_format_is_no_damage(save: Save, run: Path) -> None:
    """It must not be passed over for an older checkpoint: that would throw work away."""
    save(1)
    folder = save(2)
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps(meta | {"format": 2}))
    with pytest.raises(CheckpointError) as error:
        next(whole_checkpoints(run, lambda _: None), None)
    assert str(error.value) == (
        f"{folder}: was written by a newer mt (format 2, this one reads up to 1); install that version"
    )


# --- weights that do not fit ------------------------------------------------------------------


def test_weights_of_another_shape_are_named(model: Transformer) -> None:
    weights = dict(weights_of(model))
    weights["decoder_norm.weight"] = torch.zeros(9)
    weights["extra"] = weights.pop("encoder_norm.bias")
    before = {name: tensor.clone() for name, tensor in weights_of(model).items()}
    with pytest.raises(CheckpointError) as error:
        put_weights(model, weights, "some/model.safetensors")
    assert str(error.value) == (
        "some/model.safetensors: the weights do not fit the config: decoder_norm.weight must be (8,), found (9,); "
        "encoder_norm.bias is missing; extra is not of this model; weights and config must come from one run: "
        "copy them again"
    )
    assert same(before, weights_of(model))


def test_a_config_of_another_model_is_refused(save: Save, config: Config) -> None:
    wider = config.model_dump(mode="json")
    wider["model"]["d_ff"] = 32
    folder = save(1, config=wider)
    with pytest.raises(
        CheckpointError, match=r"feed_forward\.inner\.weight must be \(32, 8\), found \(16, 8\)"
    ):
        load_model(folder)


def test_another_tokenizer_is_refused(save: Save, run: Path) -> None:
    folder = save(1)
    words = [("sechs sieben acht", "six seven eight")] * 50
    train_tokenizer(TokenizerConfig(vocab_size=290), words, 1, lambda _: None).save(run)
    with pytest.raises(CheckpointError) as error:
        load_model(folder)
    assert str(error.value) == (
        f"{folder.resolve()}: its tokenizer is not the one it was trained with; put the run's tokenizer files there"
    )


# --- saving fails -----------------------------------------------------------------------------


def full_disk() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def half(error: Exception) -> Callable[..., None]:
    """A writer that fails in the middle of the file."""

    def write(_: Any, path: Path, *__: Any, **___: Any) -> None:
        Path(path).write_bytes(b"half of it")
        raise error

    return write


def fail(_: Path) -> None:
    raise full_disk()


FAILURES = {
    "save_file": half(full_disk()),
    "torch.save": half(
        RuntimeError("[enforce fail] unexpected pos 64 vs 0")
    ),  # torch's way to say it
    "sha256_of": fail,
    "sync_files": fail,
}


@pytest.mark.parametrize("where", FAILURES)
@pytest.mark.parametrize("again", [True, False])
def test_out_of_disk_leaves_what_was_saved_before(
    where: str, again: bool, save: Save, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what lies at the very place that was to be written."""
    folder = save(1)
    before = content_of(folder)
    monkeypatch.setattr(f"mt.model.checkpoint.{where}", FAILURES[where])
    seen: list[list[str]] = []  # what lies there when the room that is free is looked at
    usage = shutil.disk_usage
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: seen.append(os.listdir(path)) or usage(path)
    )
    with pytest.raises(CheckpointError) as error:
        save(1 if again else 2)
    monkeypatch.undo()
    message = str(error.value)
    assert message.startswith(
        f"{folder if again else run / 'checkpoints' / step_name(2)}: cannot be saved ("
    )
    assert " MB or more, " in message
    assert message.endswith(
        "MB are free there. What was saved before is whole: make room or give another place, then run the same "
        "command again"
    )
    assert content_of(folder) == before
    assert os.listdir(run / "checkpoints") == [folder.name]
    assert seen == [[folder.name]]


def test_a_save_that_is_broken_off_leaves_nothing(
    tmp_path: Path, model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mt.model.checkpoint.save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_model_folder(tmp_path / "a", weights_of(model), {})
    assert os.listdir(tmp_path) == []


def test_a_killed_save_is_tidied_away(
    save: Save, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while writing: half a folder. Killed between the two renames: the old one has to come back."""
    folder = save(1)
    before = content_of(folder)
    half_written = folder.with_name(f".{step_name(2)}.partial")
    half_written.mkdir()
    (half_written / "model.safetensors").write_bytes(b"half")
    (run / "checkpoints" / ".last.partial").symlink_to("nowhere")
    renames = 0

    def killed(self: Path, target: Path) -> Path:
        nonlocal renames
        renames += 1
        if renames == 2:
            raise KeyboardInterrupt
        os.rename(self, target)
        return target

    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        save(1, note="after")
    monkeypatch.undo()
    assert not folder.exists()
    tidy(run)
    assert os.listdir(run / "checkpoints") == [folder.name]
    assert content_of(folder) == before


def test_tidying_prefers_the_new_one_where_both_are_there(save: Save, run: Path) -> None:
    folder = save(1, note="before")
    shutil.copytree(folder, run / "copy")
    save(1, note="after")
    (run / "copy").rename(run / "checkpoints" / f".{folder.name}.before")
    tidy(run)
    assert os.listdir(run / "checkpoints") == [step_name(1)]
    assert read_meta(run / "checkpoints" / step_name(1), [])["note"] == "after"


@pytest.mark.slow
def test_a_disk_that_is_really_full(
    small_disk: Path, model: Transformer, config: Config, tokenizer: Tokenizer
) -> None:
    meta = {"config": config.model_dump(mode="json"), "tokenizer": tokenizer.fingerprint}
    disk = small_disk(256)
    for step, state in ((1, None), (2, {"x": torch.zeros(100_000)})):  # 0.4 MB of state
        run = disk / f"run-{step}"
        save_model_folder(run / "checkpoints" / step_name(1), weights_of(model), meta)

        def fill(run: Path = run, state: Any = state) -> None:
            for n in range(2, 40):
                save_model_folder(
                    run / "checkpoints" / step_name(n), weights_of(model), meta, state
                )

        with pytest.raises(CheckpointError, match="cannot be saved") as error:
            fill()
        assert "MB or more, 0" in str(error.value)
        for folder in checkpoint.checkpoints(run):
            assert same(load_weights(folder), weights_of(model))
            read_meta(folder, ["model.safetensors"])
        assert not list(run.glob("checkpoints/.*"))
        shutil.rmtree(run)


# --- the mean of several, and what is kept ----------------------------------------------------


def test_the_mean_of_weights_by_hand(tmp_path: Path) -> None:
    rows = ([1.0, 2.0], [4.0, 0.0], [1.0, 1.0])
    folders = [tmp_path / step_name(i) for i in range(3)]
    for folder, row in zip(folders, rows, strict=True):
        save_model_folder(folder, {"w": torch.tensor(row)}, {})
    assert average(folders)["w"].tolist() == [2.0, 1.0]
    assert average(folders[:1])["w"].tolist() == [1.0, 2.0]
    assert average(folders)["w"].dtype == torch.float32


def test_a_mean_is_summed_in_double_precision(tmp_path: Path) -> None:
    """2^24 + 1 is no float32: summed in that, the ones would be lost and the mean be 2^22 + 1/2."""
    folders = [tmp_path / step_name(i) for i in range(4)]
    for folder, value in zip(folders, (2.0**24, 1.0, 1.0, 2.0), strict=True):
        save_model_folder(folder, {"w": torch.tensor([value])}, {})
    assert average(folders)["w"].item() == 2**22 + 1


def test_only_whole_checkpoints_of_one_model_are_averaged(tmp_path: Path) -> None:
    one, other, broken = (tmp_path / step_name(i) for i in range(3))
    for folder, size in ((one, 2), (other, 3), (broken, 2)):
        save_model_folder(folder, {"w": torch.zeros(size)}, {})
    with pytest.raises(CheckpointError) as error:
        average([one, other])
    assert (
        str(error.value)
        == f"{other}: is not of the same model as {one}; average one run's checkpoints"
    )
    flip(broken / "model.safetensors")
    with pytest.raises(DamagedError, match="damaged"):
        average([one, broken])


def test_pruning_keeps_what_is_named(save: Save, run: Path) -> None:
    for step in (1, 2, 3, 4):
        save(step)
    point(run, "last", run / "checkpoints" / step_name(4))
    prune(run, {step_name(2), step_name(4)})
    assert sorted(os.listdir(run / "checkpoints")) == ["last", step_name(2), step_name(4)]


def test_half_a_deleted_checkpoint_is_not_seen(
    save: Save, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a kill in the middle of deleting."""
    save(1)
    save(2)

    def killed(folder: Path, **_: Any) -> None:
        for path in list(Path(folder).glob("*"))[:1]:
            path.unlink()

    monkeypatch.setattr(shutil, "rmtree", killed)
    prune(run, {step_name(2)})
    monkeypatch.undo()
    assert [folder.name for folder in checkpoint.checkpoints(run)] == [step_name(2)]
    tidy(run)
    assert os.listdir(run / "checkpoints") == [step_name(2)]
