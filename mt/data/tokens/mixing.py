"""How often an epoch sees each corpus: by weight, by temperature, as a share; other by stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mt.errors import DataError

if TYPE_CHECKING:
    from mt.config.plan import DataPlan, Stage

# Of an epoch, whose order takes 4 bytes for each; an epoch of more is meant by nobody.
MOST_SENTENCES = 2**32


def sampling_weights(data: DataPlan, stage: Stage, kept: Sequence[int]) -> list[float]:
    """How often the pairs of each flow are drawn in a stage, relative to the other flows.

    `kept` counts their pairs after cleaning. A flow with a share gets that part of the sentences.
    The others get the rest, each in proportion to (weight × pairs)^(1 / temperature), as in
    Arivazhagan et al. (2019), section 4. Raises DataError where a flow with a share has no pair,
    and where an epoch would fill the memory.
    """
    for flow, n_pairs in zip(stage.flows, kept, strict=True):
        if flow.share and not n_pairs:
            raise DataError(
                f"{flow.name}.share: must be a part of the sentences, but no pair of "
                f"{data.file_of(flow)} is left; remove the text or its share"
            )
    shares = [flow.share for flow in stage.flows]
    weights = [flow.weight for flow in stage.flows]
    sizes = [
        0.0 if flow.share else flow.weight * n_pairs
        for flow, n_pairs in zip(stage.flows, kept, strict=True)
    ]
    if data.temperature != 1 or any(shares):
        largest = max(sizes) or 1.0
        sizes = [(size / largest) ** (1 / data.temperature) for size in sizes]
        rest = (1 - sum(filter(None, shares))) / (sum(sizes) or 1)
        sizes = [share or rest * size for share, size in zip(shares, sizes, strict=True)]
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
            "raise its share or weight, or data.temperature, or remove the text"
        )
    return weights


def require_counted_texts(data: DataPlan, kept: Sequence[int]) -> None:
    """Raise DataError where a stage ends after epochs of a text without pairs, thus never."""
    for number, stage in enumerate(data.stages):
        text = stage.until.text if stage.until else None
        if text is not None and not kept[text]:
            raise DataError(
                f"data.stages[{number}].until.text: must be the number of a text with pairs, found "
                f"{text}, of which none is left (data.dedupe: all in others?); name another one"
            )


def sentences_of_epoch(weights: Sequence[float], kept: Sequence[int]) -> list[int]:
    """Sentences of each flow in an epoch: the one with the lowest weight comes whole, once."""
    used = (weight for weight, n_pairs in zip(weights, kept, strict=True) if n_pairs and weight)
    lowest = min(used)
    return [round(n_pairs * weight / lowest) for weight, n_pairs in zip(weights, kept, strict=True)]


def describe_stage(
    data: DataPlan, number: int, kept: Sequence[int], drawn: Sequence[int]
) -> Iterator[str]:
    """Where a stage ends, and its mixture."""
    words = {"updates": "update{}", "tokens": "target token{}", "epochs": "epoch{}"}
    words["stall"] = "validation{} without a new best"
    stage = data.stages[number]
    until = stage.until
    given = {key: value for key in words if (value := getattr(until, key, None)) is not None}
    ends = {
        key: f"{round(value, 3):,} {words[key].format('s' * (value != 1))}".replace(".0 ", " ")
        for key, value in given.items()
    }
    if until is not None and until.text is not None:
        ends["epochs"] += f" of {data.flows[until.text].name}"
    end = f"until {' or '.join(ends.values())}" if ends else "to the end"
    yield f"data.stages[{number}]: stage {number + 1} of {len(data.stages)}, {end}"
    yield from describe_mixture(data, stage, kept, drawn)


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
        if flow.share:
            declared = f"share {flow.share:.2%}"
        elif data.temperature != 1:
            declared += f", temperature {data.temperature:g}"
        yield (
            f"{flow.name} ({data.file_of(flow)}, {flow.direction}): {declared}; delivered "
            f"{n_drawn / total:.2%}, {n_drawn:,} sentences of {n_pairs:,} pairs"
        )
