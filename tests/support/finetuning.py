"""Helpers for tests of fine-tuning: short runs to start from, trainers before any update."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import DIGITS, config_of, log_of, merged, write_lines
from torch import Tensor

from mt.config.schema import Config
from mt.runtime.devices import choose_device
from mt.training.finetune import resolve_init_from
from mt.training.launch import train
from mt.training.prepare import prepare
from mt.training.runlog import RunLog
from mt.training.trainer import Trainer

QUICK = {
    "decode": {"beam_size": 1, "max_len_factor": 1.0, "max_len_extra": 1},
    "data": {"test": []},
}
SPLIT = {"joint": False, "vocab_size": 290}
EMBEDDINGS = ["source_embedding", "target_embedding", "output"]


def base_runs(
    settings: Mapping[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """`base_of(model={...})`: a run of four updates with these changes, trained once for each."""
    trained: dict[str, Path] = {}

    def base_of(**changes: Any) -> Path:
        key = json.dumps(changes, sort_keys=True)
        if key not in trained:
            trained[key] = tmp_path_factory.mktemp("base") / "run"
            short = merged(settings, {"train": {"max_steps": 4}})
            train(config_of(short, changes), trained[key], "cpu")
        return trained[key]

    return base_of


class Started:
    """A trainer just before its first update, and the log so far."""

    def __init__(self, config: Config, run_dir: Path) -> None:
        (run_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
        self.config = config
        self.run_dir = run_dir
        self.base = resolve_init_from(config)
        device = choose_device("cpu", "fp32")
        with RunLog(run_dir, 1) as log:
            prepared = prepare(config, run_dir, device, log, base=self.base)
            self.trainer = Trainer(prepared, run_dir, log)
            self.trainer.resume(self.base)
        self.log = [line[20:] for line in log_of(run_dir).splitlines()]

    def weights(self) -> dict[str, Tensor]:
        """A copy of every parameter, tied ones under each of their names."""
        named = self.trainer.updater.model.named_parameters(remove_duplicate=False)
        return {name: tensor.detach().clone() for name, tensor in named}


BaseOf = Callable[..., Path]
StartFrom = Callable[..., Started]


def write_other_corpus(folder: Path) -> None:
    """train.src, train.tgt: digits without 0 and 1, but with 11, 12 and a rare letter."""
    words = dict(list(DIGITS.items())[2:]) | {"elf": "eleven", "zwölf": "twelve", "ω": "omega"}
    lines = [[first, second, third] for first in words for second in words for third in words]
    write_lines(folder / "train.src", [" ".join(line) for line in lines])
    write_lines(folder / "train.tgt", [" ".join(words[word] for word in line) for line in lines])


def on(corpus: Path, **tokenizer: Any) -> dict[str, Any]:
    """Config changes: train on another corpus with its own vocabulary; validation stays."""
    source = {"src": str(corpus / "train.src"), "tgt": str(corpus / "train.tgt")}
    return {"data": {"train": [source]}, "tokenizer": tokenizer, "train": {"new_vocabulary": True}}
