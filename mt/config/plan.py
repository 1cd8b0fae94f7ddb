"""The section `data` as training means it: corpora, and for each stage the flows of their pairs.

A corpus is read and stored once; each direction in which training translates one is a flow. After
this nothing asks for `reverse`, `directions`, `both_directions` or `language_tokens`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from mt.config import data_schema
from mt.config.data_schema import Augment, Clean, DataConfig, Source, TextEntry, Until
from mt.config.schema import Config

# Where a run directory has sets that are held out of the training text, and that text without them.
HELD_OUT = "store/held-out"
# Keys of an entry that say where its text is, not how it is used.
PLACE = {*("src", "tgt", "path", "format", "name", "split"), *("delimiter", "quoting", "errors")}


class Direction(NamedTuple):
    """The languages that a text is translated from and into."""

    src: str
    tgt: str

    @property
    def turned(self) -> Direction:
        return Direction(self.tgt, self.src)

    def __str__(self) -> str:
        return "-".join(self)


class Limits(NamedTuple):
    """Which pairs are dropped; lengths in tokens, with what stands before a source."""

    max_tokens: int
    max_length_ratio: float
    dedupe: bool


@dataclass(frozen=True)
class Corpus:
    """A parallel text, read and stored once."""

    name: str  # in messages, such as data.train[0]
    source: Source  # where it is; its sides have names
    direction: Direction  # from its first side into its second
    weight: float = 1.0  # a duplicate stays in the corpus of the highest weight

    @property
    def file(self) -> str:
        return self.source.path or self.source.src

    @property
    def shown(self) -> str:
        """The file, for messages; those in `HELD_OUT` are none of the user's."""
        return "without what is held out" if HELD_OUT in self.file else self.file


@dataclass(frozen=True)
class Flow:
    """The pairs of a corpus as a stage trains on them: one way round, and how often."""

    name: str  # in messages
    corpus: int  # its place among the corpora
    is_turned: bool  # the corpus's second side is the source
    direction: Direction
    tag: str | None  # word before each source
    token: str | None  # language whose token stands before each source
    weight: float  # 0: not in this stage

    @classmethod
    def of(cls, corpus: Corpus, place: int, has_token: bool) -> Flow:
        """The pairs of a text as they are, such as for validation."""
        token = corpus.direction.tgt if has_token else None
        return cls(corpus.name, place, False, corpus.direction, None, token, weight=1.0)


class StageEnd(NamedTuple):
    """Where a stage ends, in numbers."""

    updates: int | None = None
    epochs: float | None = None


@dataclass(frozen=True)
class Stage:
    """A part of training; all stages have the same flows, with weights of their own."""

    flows: tuple[Flow, ...]
    augment: Augment | None = None
    until: Until | None = None

    def end(self, max_steps: int, epochs: float | None) -> StageEnd:
        """Its end in a training of so many updates, or epochs, of which it has whole ones."""
        if self.until is None:  # the last stage
            return StageEnd()
        share = self.until.share
        if share is None:
            return StageEnd(self.until.updates)
        if epochs is None:
            return StageEnd(updates=max(1, round(share * max_steps)))
        return StageEnd(epochs=float(round(share * epochs)) or share * epochs)


@dataclass(frozen=True)
class DataPlan:
    """All that training makes of the section `data`."""

    root: Path  # relative paths start here
    corpora: tuple[Corpus, ...]
    stages: tuple[Stage, ...]
    valid_sets: tuple[tuple[Corpus, ...], ...]  # a text for each direction; the first set decides
    test: tuple[Corpus, ...]
    limits: Limits
    clean: Clean | None
    temperature: float
    has_tokens: bool  # a token of the target language stands before each source
    usual: Direction  # of texts without languages of their own
    to_hold_out: int = 0  # pairs that training takes out of the first corpus for other sets

    @property
    def flows(self) -> tuple[Flow, ...]:
        return self.stages[0].flows

    @property
    def valid(self) -> tuple[Corpus, ...]:
        """The texts of the first validation set, which decides; none without one."""
        return self.valid_sets[0] if self.valid_sets else ()

    @property
    def held_out(self) -> list[Corpus]:
        return [*chain.from_iterable(self.valid_sets), *self.test]

    @property
    def named(self) -> list[Corpus]:
        return [*self.corpora, *self.held_out]

    @property
    def tags(self) -> set[str]:
        return {flow.tag for flow in self.flows if flow.tag is not None}

    @property
    def target_languages(self) -> list[str]:
        return list(dict.fromkeys([flow.direction.tgt for flow in self.flows] or [self.usual.tgt]))

    @property
    def token_languages(self) -> list[str]:
        return self.target_languages if self.has_tokens else []

    @cached_property
    def directions(self) -> list[Direction]:
        """Directions that the model knows: not if only the reverse is trained to the end."""
        last = {flow.direction for flow in self.stages[-1].flows if flow.weight}
        every = dict.fromkeys(flow.direction for flow in self.flows)
        return [way for way in every if way in last or way.turned not in last]

    def direction(self, source: str | None, to: str | None) -> Direction | None:
        """The direction of a translation, given one of its languages, both or none; None: unknown.

        It need not be learnt. Other languages than those of the texts count as not given.
        """
        known = {code for flow in self.flows for code in flow.direction}
        source, to = (code if code in known else None for code in (source, to))
        ways = self.directions
        fitting = [way for way in ways if source in (None, way.src) and to in (None, way.tgt)]
        if len(fitting) == 1:
            return fitting[0]
        return Direction(source, to) if source and to else None


def plan_data(data: DataConfig) -> DataPlan:
    """Make the plan of a valid section `data`."""
    corpora, flows = corpora_and_flows(data)
    # A set that is held out has no text of its own before training has taken it out.
    named = [each for each in named_entries(data) if not isinstance(each[1].split, int)]
    valid, test = (
        [texts_of(data, entry, path) for path, entry in named if path.startswith(key)]
        for key in ("data.valid", "data.test")
    )
    return DataPlan(
        root=Path(data.root or ".").expanduser(),
        corpora=tuple(corpora),
        stages=tuple(_stages(data, flows)),
        valid_sets=tuple(map(tuple, valid)),
        test=tuple(chain.from_iterable(test)),
        limits=Limits(data.max_tokens, data.max_length_ratio or math.inf, data.dedupe),
        clean=data.clean,
        temperature=data.temperature,
        has_tokens=data.language_tokens,
        usual=Direction(data.src_lang, data.tgt_lang),
        to_hold_out=sum(held_out_sets(data).values()),
    )


def texts_of(data: DataConfig, entry: TextEntry, name: str) -> list[Corpus]:
    """The texts of an entry: one, or one for each of its `directions`."""
    ways = {name: Direction(entry.src_lang or data.src_lang, entry.tgt_lang or data.tgt_lang)}
    if entry.directions:
        ways = {f"{name} ({code})": Direction(*code.split("-")) for code in entry.directions}
    return [Corpus(name, _source(entry, way), way, entry.weight) for name, way in ways.items()]


def _source(entry: TextEntry, direction: Direction) -> Source:
    """The text of an entry: sides without names are called by their languages."""
    names = direction if entry.path else ("", "")  # a check of the config refuses the second
    sides = {"src": entry.src or names[0], "tgt": entry.tgt or names[1]}
    return Source.model_construct(**entry.model_dump(include=PLACE) | sides)


def corpora_and_flows(data: DataConfig) -> tuple[list[Corpus], list[Flow]]:
    """The corpora of `data.train`, and a flow for each entry; a text both ways is one corpus."""
    corpora: list[Corpus] = []
    flows: list[Flow] = []
    for number, entry in enumerate(data.train):
        texts = texts_of(data, entry, f"data.train[{number}]")
        for n, text in enumerate(texts):
            direction = text.direction.turned if entry.reverse else text.direction
            # Of de-en and en-de of one entry the second is the first one turned.
            twins = (other for other in texts[:n] if other.direction == text.direction.turned)
            corpus = next(twins, text)
            is_turned = entry.reverse or corpus is not text
            same = (
                place
                for place, stored in enumerate(corpora)
                if (stored.source, stored.direction) == (corpus.source, corpus.direction)
                and [flow.is_turned for flow in flows if flow.corpus == place] == [not is_turned]
            )
            place = next(same, len(corpora))
            corpora += [corpus] * (place == len(corpora))
            token = direction.tgt if data.language_tokens else None
            flows += [Flow(text.name, place, is_turned, direction, entry.tag, token, entry.weight)]
    return corpora, flows


def _stages(data: DataConfig, flows: Sequence[Flow]) -> Iterator[Stage]:
    """The stages, or one without a change; with reverses where a stage has both directions."""
    stages = data.stages or [data_schema.TrainingStage()]
    corpora = [flow.corpus for flow in flows]
    alone = [place for place, corpus in enumerate(corpora) if corpora.count(corpus) == 1]
    has_reverses = any(stage.both_directions for stage in stages)
    for stage in stages:
        weights = stage.weights or [flow.weight for flow in flows]
        changed = [replace(each, weight=w) for each, w in zip(flows, weights, strict=True)]
        for flow in [changed[place] for place in alone] if has_reverses else ():
            direction = flow.direction.turned
            token = flow.token and direction.tgt
            name, weight = f"{flow.name}, reversed", flow.weight * stage.both_directions
            place, turned = flow.corpus, not flow.is_turned
            changed.append(Flow(name, place, turned, direction, flow.tag, token, weight))
        augment = data.augment if stage.augment is None else stage.augment
        yield Stage(tuple(changed), augment, stage.until)


def named_entries(data: DataConfig) -> list[tuple[str, TextEntry]]:
    """The texts of the section with their paths, such as `data.valid[0]`."""
    lists = {"train": data.train, "valid": data.valid, "test": data.test}
    return [(f"data.{key}[{i}]", each) for key in lists for i, each in enumerate(lists[key])]


def held_out_sets(data: DataConfig) -> dict[str, int]:
    """The pairs of each set that is held out, by its path, such as `data.valid[0]`."""
    named = named_entries(data)[len(data.train) :]
    return {path: entry.split for path, entry in named if isinstance(entry.split, int)}


def with_held_out_files(config: Config, folder: Path) -> Config:
    """The config with files of `folder` in the place of texts that are held out, or lose a part."""
    data, sets = config.data, held_out_sets(config.data)
    if not sets:
        return config
    folder = folder.absolute()
    flows = corpora_and_flows(data)[1]
    first = data.train[0]

    def at(name: str, entry: TextEntry) -> TextEntry:
        files = {"src": str(folder / f"{name}.src"), "tgt": str(folder / f"{name}.tgt")}
        return TextEntry.model_validate({**entry.model_dump(exclude=PLACE), **files})

    languages = TextEntry(src_lang=first.src_lang, tgt_lang=first.tgt_lang)
    train = [at(f"train-{flows[i].corpus}", entry) for i, entry in enumerate(data.train)]
    changed: dict[str, list[TextEntry]] = {"data.train": train, "data.valid": [], "data.test": []}
    for path, entry in named_entries(data)[len(train) :]:
        key, _, number = path.removesuffix("]").partition("[")
        name = f"{key.removeprefix('data.')}-{number}"
        changed[key].append(at(name, languages) if path in sets else entry)
    return config.with_values(changed)
