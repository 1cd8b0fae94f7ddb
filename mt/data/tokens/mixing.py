"""How often an epoch sees each corpus: by weight, by temperature, as a share; other by stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mt.errors import DataError

if TYPE_CHECKING:
    from mt.config.schema import DataConfig

# Of an epoch, whose order takes 4 bytes for each; an epoch of more is meant by nobody.
MOST_SENTENCES = 2**32


def stages_of(data: DataConfig) -> list[DataConfig]:
    """The section `data` as each stage has it, in its texts' weights and shares and in `augment`.

    A text that is not in a stage has the weight 0.
    """
    if not data.stages:
        return [data]
    sections = []
    for stage in data.stages:
        changes: dict[str, object] = {"stages": None}
        if stage.augment is not None:
            changes["augment"] = stage.augment
        if (numbers := stage.shares or stage.weights) is not None:
            own = [
                {"weight": number, "share": (number or None) if stage.shares else None}
                for number in numbers
            ]
            changes["train"] = [
                text.model_copy(update=values) for text, values in zip(data.train, own, strict=True)
            ]
        sections.append(data.model_copy(update=changes))
    return sections


def sampling_weights(data: DataConfig, kept: Sequence[int]) -> list[float]:
    """How often the pairs of each text of `data.train` are drawn, relative to the other texts.

    `kept` counts their pairs after cleaning. A text with `share` gets that part of the sentences.
    The others get the rest, each in proportion to (weight × pairs)^(1 / temperature), as in
    Arivazhagan et al. (2019), section 4. Raises DataError where a text with a share has no pair,
    and where an epoch would fill the memory.
    """
    for number, (source, n_pairs) in enumerate(zip(data.train, kept, strict=True)):
        if source.share and not n_pairs:
            raise DataError(
                f"data.train[{number}].share: must be a part of the sentences, but no pair of "
                f"{source.path or source.src} is left; remove the text or its share"
            )
    shares = [source.share for source in data.train]
    weights = [source.weight for source in data.train]
    sizes = [
        0.0 if source.share else source.weight * n_pairs
        for source, n_pairs in zip(data.train, kept, strict=True)
    ]
    if data.temperature != 1 or any(shares):
        largest = max(sizes) or 1.0
        sizes = [(size / largest) ** (1 / data.temperature) for size in sizes]
        rest = (1 - sum(filter(None, shares))) / (sum(sizes) or 1)
        sizes = [share or rest * size for share, size in zip(shares, sizes, strict=True)]
        weights = [size / max(1, n_pairs) for size, n_pairs in zip(sizes, kept, strict=True)]
    used = [
        (weights[i], i)
        for i, text in enumerate(data.train)
        if kept[i] and (text.share or text.weight)
    ]
    if not used:
        raise DataError(
            "data.stages: must each have a text with pairs, but of the texts of one no pair is "
            "left (data.dedupe: all in others?); give another text of data.train a weight there"
        )
    lowest, number = min(used)
    if sum(sizes) > lowest * MOST_SENTENCES:
        raise DataError(
            f"data.train[{number}]: comes whole once an epoch, which would have more than "
            f"{MOST_SENTENCES:,} sentences, as it is {sizes[number] / sum(sizes):.1g} of them; "
            "raise its share or weight, or data.temperature, or remove the text"
        )
    return weights


def require_counted_texts(data: DataConfig, kept: Sequence[int]) -> None:
    """Raise DataError where a stage ends after epochs of a text without pairs, thus never."""
    for number, stage in enumerate(data.stages or []):
        text = stage.until.text if stage.until else None
        if text is not None and not kept[text]:
            raise DataError(
                f"data.stages[{number}].until.text: must be the number of a text with pairs, found "
                f"{text}, of which none is left (data.dedupe: all in others?); name another one"
            )


def sentences_of_epoch(weights: Sequence[float], kept: Sequence[int]) -> list[int]:
    """Sentences of each corpus in an epoch: that with the lowest weight comes whole, once."""
    used = (weight for weight, n_pairs in zip(weights, kept, strict=True) if n_pairs and weight)
    lowest = min(used)
    return [round(n_pairs * weight / lowest) for weight, n_pairs in zip(weights, kept, strict=True)]


def describe_stage(
    data: DataConfig, number: int, kept: Sequence[int], drawn: Sequence[int]
) -> Iterator[str]:
    """Where a stage ends, and its mixture."""
    stages = data.stages or []
    words = {"updates": "update{}", "tokens": "target token{}", "epochs": "epoch{}"}
    words["stall"] = "validation{} without a new best"
    until = stages[number].until
    given = {key: value for key in words if (value := getattr(until, key, None)) is not None}
    ends = {
        key: f"{value:,} {words[key].format('s' * (value != 1))}".replace(".0 ", " ")
        for key, value in given.items()
    }
    if until is not None and until.text is not None:
        ends["epochs"] += f" of data.train[{until.text}]"
    end = f"until {' or '.join(ends.values())}" if ends else "to the end"
    yield f"data.stages[{number}]: stage {number + 1} of {len(stages)}, {end}"
    yield from describe_mixture(stages_of(data)[number], kept, drawn)


def describe_mixture(data: DataConfig, kept: Sequence[int], drawn: Sequence[int]) -> Iterator[str]:
    """What an epoch is, and what each of several texts was to be of it and is."""
    total = sum(drawn)
    yield f"an epoch: {total:,} sentences; the text that is drawn least comes whole, once"
    if len(data.train) == 1:
        return
    for number, source in enumerate(data.train):
        name = f"{source.path or source.src}{', reversed' * source.reverse}"
        if source.src_lang and source.tgt_lang:
            name = f"{source.path or source.src}, {'-'.join(data.direction(source))}"
        declared = f"weight {source.weight:g}"
        if source.share:
            declared = f"share {source.share:.2%}"
        elif data.temperature != 1:
            declared += f", temperature {data.temperature:g}"
        yield (
            f"data.train[{number}] ({name}): {declared}; delivered "
            f"{drawn[number] / total:.2%}, {drawn[number]:,} sentences of {kept[number]:,} pairs"
        )
