"""The harness of all exporters: an exporter written by the recipe, and one that computes wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from conftest import Mt, refused
from messages import raises_saying, says

from mt.errors import CheckpointError
from mt.interop.exporter import new_folder
from mt.model.checkpoint import LoadedModel, load_model, save_model_folder, weights_of
from mt.runtime.devices import Device, choose_device
from mt.search.inference import Inference
from mt.search.scoring import ForcedDecoder, LogProbs, Pair, prove


def scorer(folder: Path) -> LogProbs:
    """Another program, which opens the folder and scores pairs of ids."""
    device: Device = choose_device("cpu", "fp32")

    def log_probs(pairs: Sequence[Pair]) -> Iterator[Sequence[float]]:
        decoder = ForcedDecoder(Inference(load_model(folder).model, device))
        return iter(decoder.log_probs(list(pairs)))

    return log_probs


def export(loaded: LoadedModel, output: Path, factor: float = 1.0) -> str:
    """As .github/CONTRIBUTING.md says; `factor`: a defect of the conversion."""
    with new_folder(output, loaded.model) as partial:
        weights = {name: weight * factor for name, weight in weights_of(loaded.model).items()}
        config = loaded.config.model_dump(mode="json")
        meta = {"config": config, "tokenizer": loaded.tokenizer.fingerprint}
        save_model_folder(partial / "model", weights, meta, tokenizer=loaded.tokenizer)
        return str(prove(loaded, "other", scorer(partial / "model")))


def test_the_recipe_refuses_a_wrong_conversion(loaded: LoadedModel, tmp_path: Path) -> None:
    parts = "export other", "other probabilities", "nats", "nothing was"
    with raises_saying(CheckpointError, *parts):
        export(loaded, tmp_path / "out", factor=1.01)
    assert list(tmp_path.iterdir()) == []
    parity = export(loaded, tmp_path / "out")
    assert says(parity, "tokens of 64 pairs have the same log-probability, within 0.0e+00")
    assert (tmp_path / "out" / "model" / "meta.json").exists()


def test_of_two_exports_to_a_folder_one_is_refused(loaded: LoadedModel, tmp_path: Path) -> None:
    def write_late() -> None:
        with new_folder(tmp_path / "out", loaded.model):
            (tmp_path / "out").mkdir()
            (tmp_path / "out" / "whole").touch()

    with pytest.raises(CheckpointError, match="was made meanwhile"):
        write_late()
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "whole"]


@pytest.mark.slow
@pytest.mark.parametrize("program", ["huggingface", "ctranslate2", "argos"])
def test_every_export_onto_a_full_disk(
    program: str, tiny_run: Path, small_disk: Callable[[int], Path], mt: Mt
) -> None:
    pytest.importorskip("transformers" if program == "huggingface" else "ctranslate2")
    for kilobytes in (8, 40, 100):
        disk = small_disk(kilobytes)
        output = disk / "de_en.argosmodel"
        message = refused(mt("export", program, "--model", tiny_run, "-o", output))
        assert says(message, "No space left on device")
        assert list(disk.iterdir()) == []


def test_one_nan_among_all_scores_and_missing_scores_are_refused(loaded: LoadedModel) -> None:
    right = scorer(loaded.folder)

    def last_is_nan(pairs: Sequence[Pair]) -> list[Sequence[float]]:
        *rows, last = right(pairs)
        return [*rows, [*last[:-1], float("nan")]]

    with pytest.raises(CheckpointError, match="nan nats"):
        prove(loaded, "other", last_is_nan)
    with pytest.raises(ValueError, match="shorter"):
        prove(loaded, "other", lambda pairs: [[0.0]] * len(pairs))
