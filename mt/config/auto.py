"""Values that a config leaves open: `auto`, by the number of pairs; the shape of another model."""

from __future__ import annotations

import math
from typing import NamedTuple

from mt.config.load import config_from_mapping
from mt.config.schema import MAX_POSITIONS, Config

# The keys that can be `auto`, in the order of `Sizes`.
KEYS = ("tokenizer.vocab_size", "model.dropout", "train.max_epochs")


class Sizes(NamedTuple):
    """The values that stand for `auto`."""

    vocab_size: int
    dropout: float
    max_epochs: float | None


# Below so many pairs. The fewer there are, the fewer pieces are seen often enough to be learned,
# and the more dropout is needed (Sennrich and Zhang, 2019, "Revisiting low-resource neural machine
# translation"; Araabi and Monz, 2020, "Optimizing Transformer for low-resource neural machine
# translation"). They were compared with others for 16,000, 29,000 and 161,323 pairs
# (configs/experiments.md); the last two are estimates.
SIZES = {
    10_000: Sizes(4_000, 0.3, 60.0),
    20_000: Sizes(4_000, 0.3, 38.0),
    40_000: Sizes(8_000, 0.3, 36.0),
    100_000: Sizes(8_000, 0.2, 19.0),
    200_000: Sizes(8_000, 0.1, 10.0),
    500_000: Sizes(16_000, 0.1, 10.0),
    math.inf: Sizes(32_000, 0.1, 5.0),
}
# Pairs assumed by commands that read no data.
TYPICAL_PAIRS = 100_000


def sizes_for(n_pairs: int) -> Sizes:
    """The row of `SIZES` for a number of pairs."""
    return next(sizes for most, sizes in SIZES.items() if n_pairs < most)


def has_auto(config: Config) -> bool:
    """Whether `replace_auto` has anything to replace."""
    return any(config.value(key) == "auto" for key in KEYS)


def replace_auto(config: Config, sizes: Sizes) -> tuple[Config, str]:
    """The config with `sizes` where it says `auto`, and the text that tells them."""
    told = []
    for key, size in zip(KEYS, sizes, strict=True):
        if config.value(key) == "auto":
            config = config.with_value(key, size)
            told.append(f"{key}: auto is {'null' if size is None else f'{size:,.9g}'}")
    return config, ", ".join(told)


def with_shape_of(config: Config, there: Config) -> Config:
    """The config with the values of the base's config where `Config.left_to_base` says so.

    Raises ConfigError if the two cannot be combined.
    """
    if config.train.init_from is None:
        return config
    keys = config.left_to_base
    if there.model.learned_positions and "max_positions" not in config.model.model_fields_set:
        keys.append(MAX_POSITIONS)
    if not keys:
        return config
    for key in keys:
        config = config.with_value(key, there.value(key))
    return config_from_mapping(
        config.model_dump(mode="json"), f"with train.init_from {config.train.init_from}"
    )
