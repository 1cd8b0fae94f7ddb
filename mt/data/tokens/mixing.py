"""How often an epoch sees each corpus: by weight and temperature; other by stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mt.errors import DataError

if TYPE_CHECKING:
    from mt.config.plan import DataPlan, Stage, StageEnd

# Of an epoch, whose order takes 4 bytes for each; an epoch of more is meant by nobody.
MOST_SENTENCES = 2**32


def sampling_weights(data: DataPlan, stage: Stage, kept: Sequence[int]) -> list[float]:
    """How often the pairs of each flow are drawn in a stage, relative to the other flows.

    `kept` counts their pairs after cleaning. A flow's part of the sentences is in proportion to
    (weight × pairs)^(1 / temperature), as in Arivazhagan et al. (2019), section 4. Raises DataError
    where no flow has a pair, and where an epoch would fill the memory.
    """
    weights = [flow.weight for flow in stage.flows]
    sizes = [weight * n_pairs for weight, n_pairs in zip(weights, kept, strict=True)]
    if data.temperature != 1:
        largest = max(sizes) or 1.0
        sizes = [(size / largest) ** (1 / data.temperature) for size in sizes]
        part = 1 / (sum(sizes) or 1)
        sizes = [part * size for size in sizes]
        weights = [size / max(1, n_pairs) for size, n_pairs in zip(sizes, kept, strict=True)]
    used = [(weights[i], i) for i, flow in enumerate(stage.flows) if kept[i] and flow.weight]
    if not used:
        raise DataError(
            "data.stages: must each have a text with pairs, but of the texts of one no pair is "
            "left (data.dedupe: all in others?); give another text of data.train a weight there"
        )
    lowest, number = min(used)
    if sum(sizes) > lowest * MOST_SENTENCES:
        raise DataError(
            f"{stage.flows[number].name}: comes whole once an epoch, which would have more than "
            f"{MOST_SENTENCES:,} sentences, as it is {sizes[number] / sum(sizes):.1g} of them; "
            "raise its weight or data.temperature, or remove the text"
        )
    return weights


def sentences_of_epoch(weights: Sequence[float], kept: Sequence[int]) -> list[int]:
    """Sentences of each flow in an epoch: the one with the lowest weight comes whole, once."""
    used = (weight for weight, n_pairs in zip(weights, kept, strict=True) if n_pairs and weight)
    lowest = min(used)
    return [round(n_pairs * weight / lowest) for weight, n_pairs in zip(weights, kept, strict=True)]


def describe_stage(
    data: DataPlan, number: int, end: StageEnd, kept: Sequence[int], drawn: Sequence[int]
) -> Iterator[str]:
    """Where a stage ends, and its mixture."""
    until = "to the end"
    if end.updates is not None:
        until = f"until {end.updates:,} update{'s' * (end.updates != 1)}"
    elif end.epochs is not None:
        until = f"until {round(end.epochs, 3):g} epoch{'s' * (end.epochs != 1)}"
    yield f"data.stages[{number}]: stage {number + 1} of {len(data.stages)}, {until}"
    yield from describe_mixture(data, data.stages[number], kept, drawn)


def describe_mixture(
    data: DataPlan, stage: Stage, kept: Sequence[int], drawn: Sequence[int]
) -> Iterator[str]:
    """Describe an epoch, and the part of each of several flows as declared and as drawn."""
    total = sum(drawn)
    yield f"an epoch: {total:,} sentences; the text that is drawn least comes whole, once"
    if len(stage.flows) == 1:
        return
    for flow, n_pairs, n_drawn in zip(stage.flows, kept, drawn, strict=True):
        declared = f"weight {flow.weight:g}"
        if data.temperature != 1:
            declared += f", temperature {data.temperature:g}"
        yield (
            f"{flow.name} ({data.corpora[flow.corpus].file}, {flow.direction}): {declared}; "
            f"delivered {n_drawn / total:.2%}, {n_drawn:,} sentences of {n_pairs:,} pairs"
        )
