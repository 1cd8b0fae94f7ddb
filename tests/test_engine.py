"""The engine at its limits: batches beyond the memory, very wide beams, absurd penalties."""

from __future__ import annotations

import re
from pathlib import Path
from unittest import mock

import pytest
import torch
from conftest import Mt

from mt.decoding.engine import TorchEngine
from mt.decoding.inference import Inference
from mt.decoding.translate import Translator
from mt.errors import ConfigError
from mt.model.checkpoint import LoadedModel
from mt.runtime.devices import Device

CPU = Device(torch.device("cpu"), "fp32")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_batch_beyond_the_memory_is_one_message(loaded: LoadedModel, workers: int) -> None:
    """8 PB are more than any process can address."""
    decode = loaded.config.decode.model_copy(update={"beam_size": 10**15})
    engine = TorchEngine(Inference(loaded.model, CPU), decode)
    with (
        Translator(engine, loaded.tokenizer, max_source=32, workers=workers) as one,
        pytest.raises(ConfigError) as caught,
    ):
        list(one.translate(["eins"]))
    assert re.fullmatch(
        r"decoding: a batch of 1 sentence with 1,000,000,000,000,000 hypotheses each does "
        r"not fit into the memory of CPU: [\d,]+ MB were in use\. Lower --beam-size "
        r"\(decode\.beam_size\), --batch-tokens, .*",
        str(caught.value),
    )


def test_a_very_wide_beam_is_asked_about(mt: Mt, tiny_run: Path) -> None:
    options = ["translate", "-m", tiny_run, "--workers", 1, "--beam-size"]
    said = mt(*options, 1001, stdin=b"eins\n").err
    assert said.startswith("mt: --beam-size 1,001: time and memory grow with the beam")
    assert "--beam-size" not in mt(*options, 50, stdin=b"eins\n").err


@pytest.mark.parametrize(
    "error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory"), ZeroDivisionError()]
)
def test_other_errors_of_memory_and_none(loaded: LoadedModel, error: Exception) -> None:
    engine = TorchEngine(Inference(loaded.model, CPU), loaded.config.decode)
    expected = type(error) if isinstance(error, ZeroDivisionError) else ConfigError
    with (
        mock.patch.object(engine.model, "start", side_effect=error),
        pytest.raises(expected) as caught,
    ):
        engine.search([[9], [10]])
    if expected is ConfigError:
        assert str(caught.value).startswith("decoding: a batch of 2 sentences with 2 hypotheses")


@pytest.mark.parametrize("command", ["translate", "score --src a --tgt b"])
def test_a_length_penalty_beyond_floats_is_refused(mt: Mt, tiny_run: Path, command: str) -> None:
    ended = mt(*command.split(), "-m", tiny_run, "--length-penalty", 200)
    assert ended.code == 2
    assert "Invalid value for '--length-penalty': " in ended.err
