"""Sets that `data.valid` and `data.test` hold out of the training text, as files of the run.

The text is read once and written anew, without them; from then on the config names these files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mt.artefacts import content_key, is_made, key_of, make
from mt.config.plan import HELD_OUT, held_out_sets, plan_data, with_held_out_files
from mt.data.reading.corpus import local_files, read_pairs
from mt.data.tokens.split import STAYS, split_pairs, write_parts
from mt.data.tokens.store import META, corpus_records, known_records, text_key
from mt.errors import CheckpointError
from mt.runs.model_folder import checkpoints

if TYPE_CHECKING:
    from mt.config.plan import Corpus
    from mt.config.schema import Config
    from mt.runtime.distributed import World
    from mt.training.runlog import RunLog

# Key of `meta.json`: the names of texts that are in no local file.
ELSEWHERE = "elsewhere"


def hold_out(config: Config, log: RunLog, world: World) -> Config:
    """Take the sets out of the training text; the main process does it, unless that is done.

    Returns the config that names the files. Raises DataError where a text cannot be read, or has
    too few pairs, CheckpointError where the run has been trained on what would be held out.
    """
    if not held_out_sets(config.data):
        return config
    world.main_first(lambda: _make(config, log), lambda: None)
    return with_held_out_files(config, log.run_dir / HELD_OUT)


def _make(config: Config, log: RunLog) -> None:
    data = plan_data(config.data)
    sets = held_out_sets(config.data)
    folder = log.run_dir / HELD_OUT
    records = corpus_records(data.corpora, data.root, known_records(folder))
    texts = [text_key(corpus, data.root, records) for corpus in data.corpora]
    sizes, seed = list(sets.values()), config.run.seed
    key = content_key([texts, sizes, seed])
    if checkpoints(log.run_dir) and not (is_made(folder, None) and key_of(folder) == key):
        raise CheckpointError(
            f"run directory {log.run_dir}: has been trained on text of which {', '.join(sets)} "
            "would now be held out, so their scores would say nothing about new text; set "
            "data.train, the numbers and run.seed back, name files of other text, or give --fresh "
            "to set the run aside"
        )

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

    make(folder, key, build)
