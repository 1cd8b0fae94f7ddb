"""The numbers of a run that its config leaves open, settled once, each with its reason.

A config never changes after it is loaded; a run directory and each checkpoint hold it and what is
settled: values that are `auto`, the shape of the model to start from, and what is measured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mt.config.load import config_from_mapping
from mt.config.schema import Config

# Off in a training that starts from a model: measured from random weights only.
OFF = {"optim.weight_decay": 0.0, "optim.fix_norm": False}
KEYS = ("tokenizer.vocab_size", "model.dropout", *OFF, "train.max_epochs")  # that can be `auto`
# Their values below so many pairs. The fewer there are, the fewer pieces are seen often enough to
# be learned, and the more dropout is needed (Sennrich and Zhang, 2019; Araabi and Monz, 2020).
# small.yaml compared decay and FixNorm on 2,500 pairs and, not together, 10,000, the others also on
# 16,000, 29,000, and with decay 161,323 (experiments.md). Estimates: decay 0.5, 0.1, two last rows.
SIZES: dict[float, tuple[int, float, float, bool, float]] = {
    5_000: (4_000, 0.3, 1.0, True, 60.0),
    10_000: (4_000, 0.3, 0.5, False, 60.0),
    20_000: (4_000, 0.3, 0.3, False, 38.0),
    40_000: (8_000, 0.3, 0.1, False, 36.0),
    100_000: (8_000, 0.2, 0.0, False, 19.0),
    200_000: (8_000, 0.1, 0.0, False, 10.0),
    500_000: (16_000, 0.1, 0.0, False, 10.0),
    math.inf: (32_000, 0.1, 0.0, False, 5.0),
}
# Pairs assumed by commands that read no data.
TYPICAL_PAIRS = 100_000


def sizes_for(n_pairs: int) -> tuple[int, float, float, bool, float]:
    return next(sizes for most, sizes in SIZES.items() if n_pairs < most)


def auto_keys(config: Config) -> list[str]:
    return [key for key in KEYS if config.value(key) == "auto"]


def told(values: Mapping[str, Any]) -> str:
    """Say by key what stands for `auto`, for a message."""
    texts = (f"{v:,.9g}" if type(v) in (int, float) else json.dumps(v) for v in values.values())
    return ", ".join(f"{key}: auto is {text}" for key, text in zip(values, texts, strict=True))


def replace_auto(config: Config, n_pairs: int, base: Config | None = None) -> tuple[Config, str]:
    """The config with numbers where it says `auto`, and the text that tells those for the pairs."""
    settled = Settled.at_start(config, n_pairs, base)
    by_pairs = [key for key, reason in settled.reasons.items() if reason.startswith("for ")]
    return settled.apply(config), told({key: settled.values[key] for key in by_pairs})


def with_shape_of(config: Config, there: Config) -> Config:
    """The config with the base's values where it leaves them to that. Raises ConfigError."""
    keys = config.left_to_base(there.model.learned_positions)
    shaped = config.with_values({key: there.value(key) for key in keys})
    return config_from_mapping(
        shaped.model_dump(mode="json"), f"with train.init_from {config.train.init_from}"
    )


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
    def at_start(cls, config: Config, n_pairs: int, base: Config | None) -> Settled:
        """Numbers for `auto`, and what `base`, the config of the model to start from, decides."""
        asked = {key: config.value(key) for key in KEYS}
        sizes = zip(KEYS, sizes_for(n_pairs), strict=True)
        auto = {key: size for key, size in sizes if asked[key] == "auto"}
        reasons = dict.fromkeys(auto, f"for {n_pairs:,} pairs")
        shape: dict[str, Any] = {}
        if base is not None:
            auto |= {key: off for key, off in OFF.items() if key in auto}
            reasons |= {key: "with train.init_from" for key in OFF if key in auto}
            shape = {k: base.value(k) for k in config.left_to_base(base.model.learned_positions)}
            if "tokenizer.vocab_size" in auto and not config.train.new_vocabulary:
                shape["tokenizer.vocab_size"] = base.tokenizer.size
        reasons |= dict.fromkeys(shape, f"as in {config.train.init_from}")
        return cls(asked | auto | shape, reasons=reasons)

    def because(self, reason: str, **numbers: Any) -> Settled:
        return replace(self, **numbers, reasons={**self.reasons, **dict.fromkeys(numbers, reason)})

    def apply(self, config: Config) -> Config:
        """The config with the numbers where it says `auto`, and the shape where it names none."""
        left = {*auto_keys(config), *config.left_to_base(has_learned_positions=True)}
        return config.with_values({key: self.values[key] for key in self.values if key in left})

    def of_training(self, config: Config) -> Config:
        """The config with all the numbers, also the size of batches and the length of training."""
        config = self.apply(config)
        measured = {
            "batch.tokens_per_batch": self.tokens_per_batch,
            "train.max_epochs": self.epochs and min(self.epochs, config.train.epochs or math.inf),
            "train.max_steps": self.updates,
        }
        return config.with_values({key: of for key, of in measured.items() if of is not None})
