"""Averaging checkpoints: the arithmetic, and what is refused. `mt average` is in test_cli."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mt.errors import CheckpointError
from mt.model.checkpoint import DamagedError, average, save_model_folder, step_name


def test_an_average_by_hand(tmp_path: Path) -> None:
    rows = ([1.0, 2.0], [4.0, 0.0], [1.0, 1.0])
    folders = [tmp_path / step_name(i) for i in range(3)]
    for folder, row in zip(folders, rows, strict=True):
        save_model_folder(folder, {"w": torch.tensor(row)}, {})
    assert average(folders)["w"].tolist() == [2.0, 1.0]
    assert average(folders[:1])["w"].tolist() == [1.0, 2.0]
    assert average(folders)["w"].dtype == torch.float32


def test_an_average_is_summed_in_double_precision(tmp_path: Path) -> None:
    """float32 cannot represent 2^24 + 1: summed in it, the result would be 2^22 + 1/2."""
    folders = [tmp_path / step_name(i) for i in range(4)]
    for folder, value in zip(folders, (2.0**24, 1.0, 1.0, 2.0), strict=True):
        save_model_folder(folder, {"w": torch.tensor([value])}, {})
    assert average(folders)["w"].item() == 2**22 + 1


def test_damaged_or_different_models_are_refused(tmp_path: Path) -> None:
    one, other, broken = (tmp_path / step_name(i) for i in range(3))
    for folder, size in ((one, 2), (other, 3), (broken, 2)):
        save_model_folder(folder, {"w": torch.zeros(size)}, {})
    with pytest.raises(CheckpointError) as error:
        average([one, other])
    assert str(error.value) == (
        f"{other}: not the same model as {one}; average checkpoints of one run"
    )
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(DamagedError, match="damaged"):
        average([one, broken])
