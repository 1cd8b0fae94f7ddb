"""Values that a config leaves open: `auto`, by the number of pairs; the shape of another model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

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
    return next(sizes for most, sizes in SIZES.items() if n_pairs < most)


def has_auto(config: Config) -> bool:
    return any(config.value(key) == "auto" for key in KEYS)


def replace_auto(config: Config, sizes: Sizes) -> tuple[Config, str]:
    """The config with `sizes` where it says `auto`, and the text that tells them."""
    auto = {key: size for key, size in zip(KEYS, sizes, strict=True) if config.value(key) == "auto"}
    return config.with_values(auto), told(auto)


def told(values: Mapping[str, Any]) -> str:
    """Say by key what stands for `auto`, for a message."""
    numbers = {key: "null" if size is None else f"{size:,.9g}" for key, size in values.items()}
    return ", ".join(f"{key}: auto is {number}" for key, number in numbers.items())


def keys_left_to(config: Config, base: Config | None) -> list[str]:
    """The keys whose values are those of the model of `train.init_from`, of this config.

    None: of any config. Sinusoidal positions are no weights, so their number is not one of them.
    """
    keys = config.left_to_base
    is_named = config.train.init_from is None or "max_positions" in config.model.model_fields_set
    has_learned = base is None or base.model.learned_positions
    return keys if is_named or not has_learned else [*keys, MAX_POSITIONS]


def with_shape_of(config: Config, there: Config) -> Config:
    """The config with the values of the base's config where it leaves them to that.

    Raises ConfigError if the two cannot be combined.
    """
    keys = keys_left_to(config, there)
    if not keys:
        return config
    shaped = config.with_values({key: there.value(key) for key in keys})
    return config_from_mapping(
        shaped.model_dump(mode="json"), f"with train.init_from {config.train.init_from}"
    )
