"""The numbers of a run that its config leaves open, settled once, each with its reason.

A config never changes after it is loaded: what is asked and what is settled are two values. A run
directory and each checkpoint hold both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from mt.config.auto import KEYS, Sizes, keys_left_to
from mt.config.schema import Config


@dataclass(frozen=True)
class Settled:
    """The numbers of a run, and the reason of each by its name here or its key in the config."""

    # By key: what stands for `auto`, and the shape of the model that `train.init_from` names.
    values: Mapping[str, Any] = field(default_factory=dict)
    tokens_per_batch: int | None = None
    epochs: float | None = None  # where `train.max_minutes` has measured them
    updates: int | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def at_start(cls, config: Config, sizes: Sizes, reason: str, base: Config | None) -> Settled:
        """Before anything is measured: with `sizes` for `auto`, and what `base` decides.

        `base`: the config of the model to start from, which decides a vocabulary that is kept.
        """
        asked = {key: config.value(key) for key in KEYS}
        auto = {key: size for key, size in zip(KEYS, sizes, strict=True) if asked[key] == "auto"}
        shape: dict[str, Any] = {}
        if base is not None:
            shape = {key: base.value(key) for key in keys_left_to(config, base)}
            if "tokenizer.vocab_size" in auto and not config.train.new_vocabulary:
                shape["tokenizer.vocab_size"] = base.tokenizer.size
        reasons = dict.fromkeys(auto, reason)
        reasons |= dict.fromkeys(shape, f"as in {config.train.init_from}")
        return cls(asked | auto | shape, reasons=reasons)

    @classmethod
    def read(cls, values: Any) -> Settled:
        """Read the output of `as_json`. Raises TypeError or ValueError for anything else."""
        return cls(**values)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def because(self, reason: str, **numbers: Any) -> Settled:
        return replace(self, **numbers, reasons={**self.reasons, **dict.fromkeys(numbers, reason)})

    @property
    def at_its_start(self) -> Settled:
        return replace(self, tokens_per_batch=None, epochs=None, updates=None)

    def apply(self, config: Config) -> Config:
        """The config with the numbers where it says `auto`, and the shape where it names none."""
        left = {key for key in KEYS if config.value(key) == "auto"} | {*keys_left_to(config, None)}
        return config.with_values({key: self.values[key] for key in self.values if key in left})

    def of_training(self, config: Config) -> Config:
        """The config with all the numbers, also the size of batches and the length of training."""
        measured = {
            "batch.tokens_per_batch": self.tokens_per_batch,
            "train.max_epochs": self.epochs,
            "train.max_steps": self.updates,
        }
        known = {key: value for key, value in measured.items() if value is not None}
        return self.apply(config).with_values(known)
