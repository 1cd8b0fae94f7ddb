"""From a config to all that training needs: tokenizer, token store, model, plan, validation set."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np

from mt.artefacts import content_key, is_made, key_of, make
from mt.config import plan as config_plan
from mt.config.plan import HELD_OUT, DataPlan, held_out_sets, plan_data
from mt.config.schema import Config, keys_affecting
from mt.config.settled import Settled, auto_keys, told
from mt.data.reading.corpus import local_files, read_pairs
from mt.data.reading.languages import base_code
from mt.data.reading.text_files import FileRecords
from mt.data.reading.words import split_sentences
from mt.data.tokens import store as token_store
from mt.data.tokens.augmentation import Augmentation, augment_sample
from mt.data.tokens.directions import DirectedPairs, n_tokens_before, tokens_before
from mt.data.tokens.duplicates import STAYS, split_pairs, write_parts
from mt.data.tokens.plan import Plan, describe_mixture, sampling_weights
from mt.data.tokens.store import Store, StoreTexts, corpus_records, known_records, text_key
from mt.data.tokens.tokenizer import PairSample, Tokenizer, own_tokenizer, train_on_sample
from mt.data.tokens.writing import WRITING, Styles
from mt.errors import CheckpointError, ConfigError, DataError
from mt.files import write_whole
from mt.model.checkpoint import LoadedModel
from mt.runs.model_folder import SEVERAL_SENTENCES, checkpoints, open_model
from mt.runs.origin import Start, corpora_of_text, files_of
from mt.runs.run_dir import CLEANED, STORE, read_settled
from mt.runtime.devices import Device
from mt.runtime.distributed import World
from mt.training.checkpoints import TrainState, progress_of
from mt.training.runlog import RunLog
from mt.training.settle import Epochs, lengths_to_try, settle_batch_size, settle_length
from mt.training.update import Updater
from mt.training.validation import Scoring, Validation

# The way in which `Plan` makes updates; it changes when they do.
PLAN = "equal updates of all lengths from 8192 tokens on, shuffled by length"
# Sources whose sentences are counted: the share is then known to 0.5 %.
SENTENCES_SAMPLE = 2_000

# Gives the plan of a run with its corpora cleaned, as `data.clean` says.
CleanText = Callable[[DataPlan, RunLog, World], DataPlan]


@dataclass(frozen=True)
class CorpusRead:
    """Results of the check of the data, which has read all of it."""

    records: FileRecords = field(default_factory=dict)
    sample: PairSample | None = None  # for a tokenizer that is to be trained
    n_pairs: int = 0  # of all training texts, where `auto` goes by it
    settled: Settled = field(default_factory=Settled)


@dataclass(frozen=True)
class Prepared:
    """All that training needs."""

    asked: Config
    settled: Settled
    config: Config  # as asked, with all that is settled
    data: DataPlan
    epochs: Epochs
    ends: list[config_plan.StageEnd]  # of its stages
    tokenizer: Tokenizer
    store: Store  # of the training text
    updater: Updater
    plans: list[Plan]  # of each stage
    scoring: Scoring  # of validations and tests
    validations: list[Validation]  # the first one decides
    seconds_per_update: float | None  # where `train.max_minutes` has timed it

    @property
    def plan_fingerprint(self) -> str:
        """Changes with the data of an epoch or its order; a run then begins a new epoch."""
        config, pairs = self.config, self.plans[0].pairs
        keys = [*keys_affecting("plan", "run."), *keys_affecting("plan", "batch.")]
        augments = (stage.augment for stage in self.data.stages)
        content = {
            "version": PLAN,
            "store": self.store.fingerprint,
            "keys": {key: config.value(key) for key in keys},  # those of the data follow
            "directions": [[flow.direction, flow.is_turned] for flow in self.data.flows],
            "before": pairs.before.tolist(),
            "drawn": [plan.drawn for plan in self.plans],
            "augment": [augment and augment.model_dump(mode="json") for augment in augments],
        }
        return content_key(content)


def not_cleaned(data: DataPlan, log: RunLog, world: World) -> DataPlan:
    """The plan of a run whose text nobody cleans. Raises ConfigError where `data.clean` asks."""
    if data.clean is not None:
        raise ConfigError("data.clean: is done by mt train or mt.train; train through them")
    return data


def prepare(
    asked: Config, device: Device, log: RunLog, world: World | None = None,
    base: LoadedModel | None = None, read: CorpusRead | None = None,
    clean: CleanText = not_cleaned,
) -> Prepared:  # fmt: skip
    """Make what training needs, or open it; `base` is the model that `train.init_from` names."""
    world = world or World()
    read = read or CorpusRead(settled=settle_start(asked, log, 0, base))
    config = hold_out(read.settled.apply(asked), log, world)
    data = plan_data(config.data)
    text = clean(data, log, world)
    tokenizer = prepare_tokenizer(config, text, log, world, base, read.sample)
    store = prepare_store(text, tokenizer, log, world, read.records)
    updater = Updater(config, tokenizer, device, world, log.say)
    updater.choose_forward(store)
    plans, settled = make_plans(read.settled, data, store, tokenizer, updater)
    epochs = Epochs(data, plans, config.train, *progress_of(log.run_dir))
    warmup = config.optim.warmup_steps * (config.optim.schedule == "cosine")
    settled, seconds = settle_length(settled, epochs, updater, warmup, log)
    config = settled.of_training(config)
    log.total = updater.max_steps = config.train.max_steps
    ends = epochs.ends(config.train.epochs)
    for number, updates in epochs.by_stage(TrainState(), ends, config.train.max_steps):
        if updates < 1:
            log.say(f"warning: data.stages[{number}]: has no update; lower until of those before")
    if len(data.flows) > 1 and len(data.stages) == 1:
        for line in describe_mixture(data, data.stages[0], plans[0].pairs.kept, plans[0].drawn):
            log.say(line)
    # Rank 0 alone scores: a tokenizer may not be installed on the other machines.
    scoring = world.on_main(lambda: Scoring.of_run(config, data, log.run_dir, log.say))
    about = (tokenizer, log, world, scoring)
    validations = [Validation(*about, place) for place in range(len(data.valid_sets))]
    numbers = (asked, settled, config, data, epochs, ends)
    return Prepared(*numbers, tokenizer, store, updater, plans, scoring, validations, seconds)


def settle_start(config: Config, log: RunLog, n_pairs: int, base: LoadedModel | None) -> Settled:
    """The numbers of a run before anything is measured; those of an existing run."""
    earlier = read_settled(log.run_dir)
    settled = earlier or Settled.at_start(config, n_pairs, None if base is None else base.config)
    reasons = dict.fromkeys(auto_keys(config), "since this run was started")
    reasons |= {} if earlier else {key: settled.reasons[key] for key in reasons}
    for reason, keys in groupby(reasons, reasons.get):
        log.say(f"{told({key: settled.values[key] for key in keys})}, {reason}")
    return settled


def make_plans(
    settled: Settled, data: DataPlan, store: Store, tokenizer: Tokenizer, updater: Updater
) -> tuple[list[Plan], Settled]:
    """The plan of each stage, with the tokens per batch that are settled."""
    pairs = DirectedPairs.of(store, data.flows, tokens_before(data.flows, tokenizer))
    config = updater.config
    about = (tokenizer, config.run.seed, data.limits.max_tokens)
    resamples = [
        Augmentation(pairs, stage, *about) if stage.augment else None for stage in data.stages
    ]
    longest = data.limits.max_tokens + 1 if any(resamples) else pairs.longest
    settled = settle_batch_size(settled, updater, lengths_to_try(pairs, longest, updater.packed))
    batch = settled.of_training(config).batch
    plans = []
    for stage, resample in zip(data.stages, resamples, strict=True):
        weights = sampling_weights(data, stage, pairs.kept)
        plans.append(Plan(pairs, weights, batch, config.run.seed, resample, updater.packed))
    return plans, settled


def prepare_tokenizer(
    config: Config, data: DataPlan, log: RunLog, world: World, base: LoadedModel | None,
    sample: PairSample | None,
) -> Tokenizer:  # fmt: skip
    """The run's tokenizer: one that is there, that of `base`, or learned from data or `sample`."""
    run_dir = log.run_dir

    def find_or_make() -> Tokenizer:
        if Tokenizer.exists_in(run_dir):
            return Tokenizer.load(run_dir)
        styles: Styles | None = None
        if base is not None and not config.train.new_vocabulary:
            remedy = "train.new_vocabulary: true trains one on this data"
            log.say(f"tokenizer: taken from train.init_from ({remedy})")
            tokenizer, styles = base.tokenizer, base.styles
        elif config.tokenizer.model is not None:
            tokenizer = own_tokenizer(config.tokenizer)
            log.say(f"tokenizer: tokenizer.model, {sizes_of(tokenizer)} tokens")
        else:
            log.say(f"tokenizer: training {config.tokenizer.size:,} tokens on data.train")
            drawn = sample or PairSample(config.tokenizer.sample_lines)
            for corpus in data.corpora if sample is None else ():
                pairs = read_pairs(corpus.source, data.root, corpus.name)
                deque(drawn.watch(log.watch(pairs, "reading data.train")), maxlen=0)
            languages = [corpus.direction for corpus in data.corpora]
            each_once = len(data.directions) > 1
            styles = Styles.learn(drawn.src, drawn.tgt, drawn.texts, languages, each_once)
            augment_sample(drawn, data)
            tokens_of = data.token_languages
            tokenizer = train_on_sample(config.tokenizer, drawn, log.say, languages=tokens_of)
            drawn.clear()
        if styles is None:
            (run_dir / WRITING).unlink(missing_ok=True)
        else:
            write_whole(run_dir / WRITING, styles.to_json())
        tokenizer.save(run_dir)
        return tokenizer

    return world.main_first(find_or_make, lambda: Tokenizer.load(run_dir))


def sizes_of(tokenizer: Tokenizer) -> str:
    sizes = (f"{side.size:,}" for side in (tokenizer.src, tokenizer.tgt))
    return next(sizes) if tokenizer.joint else " and ".join(sizes)


def training_texts(
    data: DataPlan, tokenizer: Tokenizer, folder: Path, read: FileRecords
) -> StoreTexts:
    """The training text, to be stored in `folder`; `read` are the records of known files."""
    before = tokens_before(data.flows, tokenizer)
    records = corpus_records(data.corpora, data.root, {**known_records(folder), **read})
    n_before = n_tokens_before(len(data.corpora), data.flows, before)
    about = ("data.train", data.limits, tokenizer, records, n_before)
    return StoreTexts(data.corpora, data.root, *about, by_language=data.has_tokens)


def prepare_store(
    data: DataPlan, tokenizer: Tokenizer, log: RunLog, world: World, read: FileRecords
) -> Store:
    """The token store of the training text; `read` are the records of known files."""
    folder = log.run_dir / STORE / "train"
    if not known_records(folder):
        log.say("data.train: encoding into the token store")

    def build() -> Store:
        texts = training_texts(data, tokenizer, folder, read)
        return token_store.open_or_build(folder, texts, log.say, log.watch)

    store = world.main_first(build, lambda: token_store.open_built(folder))
    world.require_same(log.run_dir, tokenizer=tokenizer.fingerprint, token_store=store.fingerprint)
    return store


def start_on(prepared: Prepared, run_dir: Path) -> Start:
    """A start of the training in `run_dir`, before its first update."""
    data = prepared.data
    elsewhere = [text.file for text in data.corpora if not local_files(text.source, data.root)]
    made_of = run_dir / (CLEANED if data.clean is not None else f"{STORE}/train")
    if held_out_sets(prepared.asked.data):
        made_of = run_dir / HELD_OUT
        elsewhere = token_store.meta_of(made_of).get(ELSEWHERE, [])
    files = known_records(made_of)
    name, corpora = run_dir.absolute().name, corpora_of_text(files, elsewhere)
    return Start(model=name, began_from="new weights", files=files_of(files), corpora=corpora)


def several_sentences(prepared: Prepared) -> dict[str, float]:
    """For `meta.json`, the share of lines with several sentences, if there is what finds them."""
    pairs, data = DirectedPairs.of(prepared.store), prepared.data
    drawn = np.random.default_rng(0).integers(len(pairs), size=SENTENCES_SAMPLE)
    lines = prepared.tokenizer.src.decode([src.tolist() for src, _ in pairs.texts(drawn)])
    with suppress(ConfigError):
        counts = [len(split_sentences(line, base_code(data.usual.src))) for line in lines]
        return {SEVERAL_SENTENCES: sum(count > 1 for count in counts) / len(counts)}
    return {}


# Key of `meta.json`: the names of texts that are in no local file.
ELSEWHERE = "elsewhere"


def hold_out(config: Config, log: RunLog, world: World) -> Config:
    """Take the sets out of the training text once; return the config that names their files."""
    if not held_out_sets(config.data):
        return config
    world.main_first(lambda: _make(config, log), lambda: None)
    return config_plan.with_held_out_files(config, log.run_dir / HELD_OUT)


def _make(config: Config, log: RunLog) -> None:
    data, sets = plan_data(config.data), held_out_sets(config.data)
    folder = log.run_dir / HELD_OUT
    records = corpus_records(data.corpora, data.root, known_records(folder))
    texts = [text_key(corpus, data.root, records) for corpus in data.corpora]
    sizes, seed = list(sets.values()), config.run.seed
    key = content_key([texts, sizes, seed])
    is_new = not is_made(folder, None) or not key_of(folder).startswith(key)
    with suppress(IndexError, CheckpointError, DataError):  # no checkpoint, a damaged one, no file
        before = open_model(checkpoints(log.run_dir)[-1]).data  # without what was held out
        known = records | known_records(log.run_dir / STORE / "train")
        known = corpus_records(before.corpora, before.root, known)
        whole = [text for text in before.corpora if HELD_OUT not in str(text.source.src)]
        is_new |= any(text_key(text, before.root, known) in texts for text in whole)
    if is_new and checkpoints(log.run_dir):
        raise CheckpointError(
            f"run directory {log.run_dir}: has been trained on text of which {', '.join(sets)} "
            "would now be held out: scores would say nothing about new text; go on with data and "
            "run.seed of its last start or with files of other text, or set it aside by --fresh"
        )
    for path in log.run_dir.glob("tokenizer.*") if is_new else ():
        path.unlink()  # it may be of what is held out now
    names = [path.removeprefix("data.").replace("[", "-").rstrip("]") for path in sets]

    def build(partial: Path) -> None:
        def pairs(number: int) -> Iterator[tuple[str, str]]:
            text = data.corpora[number]
            return log.watch(read_pairs(text.source, data.root, text.name), "reading data.train")

        parts = split_pairs([*map(pairs, range(len(texts)))], sizes, seed, next(iter(sets)))
        for number, (corpus, of_corpus) in enumerate(zip(data.corpora, parts, strict=True)):
            write_parts(pairs(number), of_corpus, partial, [f"train-{number}", *names])
            held = (of_corpus != STAYS).sum()
            log.say(f"{corpus.name}: {held:,} of {len(of_corpus):,} pairs are held out")
        others = [text.file for text in data.corpora if not local_files(text.source, data.root)]
        meta = {"records": records, ELSEWHERE: others}
        (partial / token_store.META).write_text(json.dumps(meta, indent=1), encoding="utf-8")

    make(folder, f"{key} {' '.join(names)}", build)  # the same pairs, as sets of these names
