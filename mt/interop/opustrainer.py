"""A curriculum of OpusTrainer as a config of mt: texts, stages, changes of the text, seed.

The format is that of its README, version 1: `datasets` by name, the names of `stages`, and under
each of these `NAME SHARE` for its data sets and `until NAME EPOCHS`. Program and format: Burchell
et al. (2023), arXiv 2311.14838.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from mt.config import yaml_text
from mt.config.load import config_from_mapping
from mt.config.schema import Augment
from mt.errors import ConfigError

# Modifiers that change a share of the pairs here, too; `Merge` and `Tags` are converted.
MODIFIERS = {
    "UpperCase": "caps",
    "TitleCase": "title",
    "Typos": "typos",
    "RemoveEndPunct": "no_final_stop",
}
# What options of these decide there, and what it is here.
FIXED = {"Typos": "5 to 30 % of the longer words", "Merge": "two to four pairs"}
# Options that are read as numbers.
NUMBERS = {"min_lines", "max_lines", "augment"}
KEYS = {"datasets", "stages", "modifiers", "seed", "num_fields", "trainer", "version"}


def read_curriculum(path: Path) -> tuple[str, list[str]]:
    """Return the YAML of a config of mt, and what it could not take over.

    Raises ConfigError, with the place, for what cannot be read.
    """
    curriculum = Curriculum(path)
    tree = curriculum.config()
    config_from_mapping(tree, str(path))
    header = (
        f"# From {path.name} of OpusTrainer. Whatever is not listed has its default. To be added:\n"
        "# data.valid, data.src_lang, data.tgt_lang, the model and its training.\n"
    )
    return header + yaml_text.dump(tree), curriculum.lost


class Curriculum:
    """A file of OpusTrainer; `lost` names what a config of mt cannot have."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost: list[str] = []
        self.tree: Any = yaml_text.read(path)
        if not isinstance(self.tree, dict) or not {"datasets", "stages"} <= self.tree.keys():
            raise ConfigError(
                f"{path}: must be a config of OpusTrainer, with datasets and stages, found neither "
                "or one of them; name the YAML file that opustrainer-train --config takes"
            )
        for key, kind in (("datasets", dict), ("stages", list)):
            if not self.tree[key] or not isinstance(self.tree[key], kind):
                self._refuse(key, f"must name {key}, found {self.tree[key]!r}")
        self.names = list(self.tree["datasets"])
        self.order = [str(name) for name in self.tree["stages"]]

    def config(self) -> dict[str, Any]:
        """The config as a tree; `lost` is complete then."""
        texts = []
        for name, path in self.tree["datasets"].items():
            if not isinstance(path, str):
                self._refuse(f"datasets.{name}", f"must be a path, found {path!r}")
            texts.append({"path": path, "format": "tsv", "src": 1, "tgt": 2})
        common = self._augment(self.tree.get("modifiers") or [], "modifiers")
        stages = list(self._stages(common))
        root = str(self.path.parent.absolute())
        # OpusTrainer drops no duplicates; a clean part of a text may be a text of a later stage.
        data: dict[str, Any] = {"root": root, "train": texts, "dedupe": False, "stages": stages}
        if all(stage["augment"] == common for stage in stages):
            data["augment"] = common
        for stage in stages:
            if data.get("augment", {}) == stage["augment"]:
                del stage["augment"]
        run = {"run": {"seed": self.tree["seed"]}} if "seed" in self.tree else {}
        if "trainer" in self.tree:
            self.lost.append("trainer: the model and its training are set in the config of mt")
        known = {*KEYS, *self.order}
        self.lost += [f"{key}: is no stage and no known key" for key in self.tree.keys() - known]
        return {**run, "data": {key: value for key, value in data.items() if value != {}}}

    def _stages(self, common: dict[str, float]) -> Iterator[dict[str, Any]]:
        for number, name in enumerate(self.order):
            entry = self.tree.get(name)
            mix = entry.get("mix") if isinstance(entry, dict) else entry
            if not isinstance(mix, list) or not mix:
                self._refuse(name, "must list data sets, then until, found no list")
            given = dict(self._words(name, line, ["NAME", "SHARE"]) for line in mix[:-1])
            text, epochs = self._words(name, mix[-1], ["until", "NAME", "EPOCHS"])
            total = round(sum(given.values()), 6) or 1.0
            shares = [given.get(text, 0.0) / total for text in self.names]
            stage: dict[str, Any] = {"shares": shares, "augment": common}
            if isinstance(entry, dict) and "modifiers" in entry:
                stage["augment"] = self._augment(entry["modifiers"] or [], f"{name}.modifiers")
            following = self.order[number + 1 :]
            if following and epochs < float("inf"):
                stage = {"until": {"epochs": epochs, "text": self.names.index(text)}} | stage
            elif epochs < float("inf"):
                self.lost.append(f"{name}: {mix[-1]}: the last stage ends at train.max_steps")
            yield stage
            if following and epochs == float("inf"):
                self.lost.append(f"{', '.join(following)}: after {name}, which has no end")
                return

    def _words(self, stage: str, line: Any, form: list[str]) -> tuple[str, float]:
        """The data set and the number of `NAME SHARE`, or of `until NAME EPOCHS`."""
        words = str(line).split()
        if len(words) == len(form) and words[-2] in self.names and words[:-2] == form[:-2]:
            with suppress(ValueError):
                return words[-2], float(words[-1])
        self._refuse(stage, f"must be {' '.join(form)}, NAME one of datasets, found {line!r}")

    def _augment(self, modifiers: Any, place: str) -> dict[str, float]:
        """The shares of `augment`, 0 for what has no modifier; {} where none is taken over."""
        shares = dict.fromkeys(Augment.model_fields, 0.0)
        for entry in _flat(modifiers):
            share = next(iter(entry.values()), None) if isinstance(entry, dict) else None
            if not isinstance(share, int | float) or not 0 <= share <= 1:
                self._refuse(place, f"must be NAME: PROBABILITY, found {entry!r}")
            name, *options = entry
            for option in NUMBERS & entry.keys():
                least = 1 if option.endswith("_lines") else 0
                if not isinstance(entry[option], int | float) or entry[option] < least:
                    fault = f"must be a number from {least} on, found {entry[option]!r}"
                    self._refuse(f"{place}.{name}.{option}", fault)
            if name in MODIFIERS:
                shares[MODIFIERS[name]] = share
            elif name == "Merge":  # a share of the lines, each of which takes the next ones
                lines = (entry.get("min_lines", 2) + entry.get("max_lines", 4)) / 2
                shares["join"] = round(share * lines / (1 + share * (lines - 1)), 4)
            elif name == "Tags" and entry.get("augment"):
                shares["emoji"] = round(share * entry["augment"], 4)
                self.lost.append(f"{place}: Tags, but for augment, which is emoji anywhere")
            else:
                self.lost.append(f"{place}: {name}")
            if options and name in FIXED:
                self.lost.append(f"{place}: {name}: {', '.join(options)}: are {FIXED[name]}")
        return shares if any(shares.values()) else {}

    def _refuse(self, place: str, fault: str) -> NoReturn:
        raise ConfigError(f"{self.path}: {place}: {fault}")


def _flat(modifiers: Any) -> Iterator[Any]:
    """Modifiers of nested lists, as aliases in YAML make them."""
    for one in modifiers if isinstance(modifiers, list) else [modifiers]:
        yield from _flat(one) if isinstance(one, list) else [one]
