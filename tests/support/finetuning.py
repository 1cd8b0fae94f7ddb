"""Helpers for tests of fine-tuning: short runs to start from, trainers before any update."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from conftest import log_of
from torch import Tensor

from mt.config.schema import Config
from mt.runtime.devices import choose_device
from mt.training.finetune import load_base
from mt.training.prepare import prepare
from mt.training.runlog import RunLog
from mt.training.trainer import Trainer

SPLIT = {"joint": False, "vocab_size": 290}


class Started:
    """A trainer just before its first update, and the log so far."""

    def __init__(self, config: Config, run_dir: Path) -> None:
        (run_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
        self.base = load_base(config)
        self.config = config
        self.run_dir = run_dir
        device = choose_device("cpu", "fp32")
        with RunLog(run_dir, 1) as log:
            prepared = prepare(self.config, device, log, base=self.base)
            self.trainer = Trainer(prepared, log)
            self.trainer.resume(self.base)
        self.log = [line[20:] for line in log_of(run_dir).splitlines()]

    def weights(self) -> dict[str, Tensor]:
        """A copy of every parameter, tied ones under each of their names."""
        named = self.trainer.updater.model.named_parameters(remove_duplicate=False)
        return {name: tensor.detach().clone() for name, tensor in named}


BaseOf = Callable[..., Path]
StartFrom = Callable[..., Started]


def on(corpus: Path, **tokenizer: Any) -> dict[str, Any]:
    """Config changes: train on another corpus with its own vocabulary; validation stays."""
    source = {"src": str(corpus / "train.src"), "tgt": str(corpus / "train.tgt")}
    return {"data": {"train": [source]}, "tokenizer": tokenizer, "train": {"new_vocabulary": True}}
