"""Sets that `data.valid` and `data.test` hold out of the training text, as files of the run.

The text is read once and written anew, without them; from then on the config names these files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt.artefacts import make
from mt.config.data_schema import DataConfig, TextEntry
from mt.config.plan import corpora_and_flows, plan_data
from mt.data.reading.corpus import local_files, read_pairs
from mt.data.tokens.split import STAYS, split_pairs, write_parts
from mt.data.tokens.store import META, corpus_records, known_records
from mt.runs.run_dir import HELD_OUT

if TYPE_CHECKING:
    from mt.config.plan import Corpus
    from mt.config.schema import Config
    from mt.runtime.distributed import World
    from mt.training.runlog import RunLog

# Key of `meta.json`: the names of texts that are in no local file.
ELSEWHERE = "elsewhere"
# Keys of an entry that say where its text is, not how it is used.
PLACE = {
    *("src", "tgt", "path", "test_set", "format", "name", "split"),
    *("delimiter", "quoting", "tags", "errors"),
}


def held_out_sets(data: DataConfig) -> dict[str, int]:
    """The pairs of each set that is held out, by its path, such as `data.valid[0]`."""
    lists = {"valid": data.valid, "test": data.test}
    return {
        f"data.{key}[{i}]": entry.split
        for key in lists
        for i, entry in enumerate(lists[key])
        if isinstance(entry.split, int)
    }


def with_files(config: Config, run_dir: Path) -> Config:
    """The config with the files of `run_dir` in the place of texts that are, or lose, a part."""
    data = config.data
    sets = held_out_sets(data)
    if not sets:
        return config
    folder = (run_dir / HELD_OUT).absolute()
    flows = corpora_and_flows(data)[1]
    first = data.train[0]

    def at(name: str, entry: TextEntry) -> TextEntry:
        files = {"src": str(folder / f"{name}.src"), "tgt": str(folder / f"{name}.tgt")}
        return TextEntry.model_validate({**entry.model_dump(exclude=PLACE), **files})

    languages = TextEntry(src_lang=first.src_lang, tgt_lang=first.tgt_lang)
    changed: dict[str, Any] = {
        "train": [at(f"train-{flows[i].corpus}", entry) for i, entry in enumerate(data.train)]
    }
    for key, entries in (("valid", data.valid), ("test", data.test)):
        changed[key] = [
            at(f"{key}-{i}", languages) if f"data.{key}[{i}]" in sets else entry
            for i, entry in enumerate(entries)
        ]
    return config.model_copy(update={"data": data.model_copy(update=changed)})


def hold_out(config: Config, log: RunLog, world: World) -> Config:
    """Take the sets out of the training text; the main process does it, unless that is done.

    Returns the config that names the files. Raises DataError where a text cannot be read, or has
    too few pairs.
    """
    if held_out_sets(config.data):
        world.main_first(lambda: _make(config, log), lambda: None)
    return with_files(config, log.run_dir)


def _make(config: Config, log: RunLog) -> None:
    data = plan_data(config.data)
    sets = held_out_sets(config.data)
    folder = log.run_dir / HELD_OUT
    records = corpus_records(data.corpora, data.root, known_records(folder))
    sources = [corpus.source.model_dump(mode="json") for corpus in data.corpora]
    sizes, seed = list(sets.values()), config.run.seed
    content = [sources, {path: record["sha256"] for path, record in records.items()}, sizes, seed]

    def pairs(corpus: Corpus) -> Iterator[tuple[str, str]]:
        return log.watch(read_pairs(corpus.source, data.root, corpus.name), "reading data.train")

    def build(partial: Path) -> None:
        texts = [pairs(corpus) for corpus in data.corpora]
        parts = split_pairs(texts, sizes, seed, next(iter(sets)))
        names = [key.removeprefix("data.").replace("[", "-").rstrip("]") for key in sets]
        for number, (corpus, of_corpus) in enumerate(zip(data.corpora, parts, strict=True)):
            write_parts(pairs(corpus), of_corpus, partial, [f"train-{number}", *names])
            held = (of_corpus != STAYS).sum()
            log.say(f"{corpus.name}: {held:,} of {len(of_corpus):,} pairs are held out")
        others = [text.file for text in data.corpora if not local_files(text.source, data.root)]
        meta = {"records": records, ELSEWHERE: others}
        (partial / META).write_text(json.dumps(meta, indent=1), encoding="utf-8")

    make(folder, hashlib.sha256(json.dumps(content).encode()).hexdigest(), build)
