"""From a config to all that training needs: tokenizer, token store, model, plan, validation set."""

from __future__ import annotations

import hashlib
import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from mt.config.plan import HELD_OUT, DataPlan, StageEnd, held_out_sets, plan_data
from mt.config.schema import keys_affecting
from mt.data.reading.corpus import local_files, read_pairs
from mt.data.reading.language_codes import base_code
from mt.data.reading.sentences import split_sentences
from mt.data.tokens.augmentation import Augmentation, augment_sample
from mt.data.tokens.directions import DirectedPairs, n_tokens_before, tokens_before
from mt.data.tokens.mixing import describe_mixture, sampling_weights
from mt.data.tokens.plan import Plan
from mt.data.tokens.store import corpus_records, known_records, meta_of, open_built, open_or_build
from mt.data.tokens.store_parts import StoreTexts
from mt.data.tokens.tokenizer import PairSample, Tokenizer, own_tokenizer, train_on_sample
from mt.data.tokens.writing import WRITING, Styles
from mt.errors import ConfigError
from mt.files import write_whole
from mt.runs.model_folder import SEVERAL_SENTENCES
from mt.runs.origin import Start, corpora_of_text, files_of
from mt.runs.run_dir import CLEANED, STORE, measured_before
from mt.runtime.distributed import World
from mt.training.batch_size import lengths_to_try, settle_batch_size
from mt.training.hold_out import ELSEWHERE, hold_out
from mt.training.timing import typical_update
from mt.training.update import Updater
from mt.training.validation import Scoring, Validation

if TYPE_CHECKING:
    from mt.config.schema import Config, TrainConfig
    from mt.data.reading.text_files import FileRecords
    from mt.data.tokens.store import Store
    from mt.model.checkpoint import LoadedModel
    from mt.runtime.devices import Device
    from mt.training.runlog import RunLog


# The way in which `Plan` makes updates; it changes when they do.
PLAN = "equal updates of all lengths from 8192 tokens on, shuffled by length"
# Sources whose sentences are counted: the share is then known to 0.5 %.
SENTENCES_SAMPLE = 2_000
# Share of `train.max_minutes` for preparation and updates; the rest is for validations and tests.
UPDATES_SHARE = 0.9

# Gives the plan of a run with its corpora cleaned, as `data.clean` says.
CleanText: TypeAlias = "Callable[[DataPlan, RunLog, World], DataPlan]"


@dataclass(frozen=True)
class CorpusRead:
    """Results of reading the data, from its check."""

    records: FileRecords = field(default_factory=dict)
    sample: PairSample | None = None  # for a tokenizer that is to be trained
    n_pairs: int = 0  # of all training texts, where `auto` goes by it


@dataclass(frozen=True)
class Prepared:
    """All that training needs."""

    config: Config  # tokens_per_batch is a number; max_steps is lowered to max_epochs
    recorded: Config  # of checkpoints: both as they were given, for students and other data
    data: DataPlan
    ends: list[StageEnd]  # of its stages
    tokenizer: Tokenizer
    store: Store  # of the training text
    updater: Updater
    plans: list[Plan]  # of each stage
    scoring: Scoring  # of validations and tests
    validations: list[Validation]  # the first one decides
    seconds_per_update: float | None  # where `train.max_minutes` has timed it

    @property
    def plan_fingerprint(self) -> str:
        """Changes when the order of the data does, or the tokens of an epoch.

        A run whose fingerprint has changed continues with a new epoch and says so.
        """
        config, pairs = self.config, self.plans[0].pairs
        content = {
            "version": PLAN,
            "store": self.store.fingerprint,
            # Those of the data are in what follows.
            "keys": {
                key: config.value(key)
                for section in ("run.", "batch.")
                for key in keys_affecting("plan", section)
            },
            "directions": [[flow.direction, flow.is_turned] for flow in self.data.flows],
            "before": pairs.before.tolist(),
            "drawn": [plan.drawn for plan in self.plans],
            "augment": [
                stage.augment and stage.augment.model_dump(mode="json")
                for stage in self.data.stages
            ],
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def not_cleaned(data: DataPlan, log: RunLog, world: World) -> DataPlan:
    """The plan of a run whose text nobody cleans. Raises ConfigError where `data.clean` asks."""
    if data.clean is not None:
        raise ConfigError("data.clean: is done by mt train or mt.train; train through them")
    return data


def prepare(
    config: Config,
    device: Device,
    log: RunLog,
    world: World | None = None,
    base: LoadedModel | None = None,
    read: CorpusRead | None = None,
    clean: CleanText = not_cleaned,
) -> Prepared:
    """Make what training needs, or open it if it is in the run directory already.

    `base` is the model that `train.init_from` names; `read` is what need not be read again. Raises
    MtError for what the user can mend.
    """
    world = world or World()
    read = read or CorpusRead()
    given, config = config, hold_out(config, log, world)
    data = plan_data(config.data)
    cleaned = clean(data, log, world)
    tokenizer = prepare_tokenizer(config, cleaned, log, world, base, read.sample)
    store = prepare_store(cleaned, tokenizer, log, world, read.records)
    updater = Updater(config, tokenizer, device, world, log.say)
    updater.choose_forward(store)
    plans, config = make_plans(config, data, store, tokenizer, updater, log)
    epochs = Epochs(data, plans, config.train)
    n_epochs, seconds = epochs_in_time(epochs, updater, log)
    config = config.with_value("train.max_epochs", n_epochs)
    ends = epochs.ends(n_epochs)
    config = settle_length(config, epochs, log)
    updater.config = updater.config.model_copy(update={"train": config.train})
    if len(data.flows) > 1 and len(data.stages) == 1:
        kept, drawn = plans[0].pairs.kept, plans[0].drawn
        for line in describe_mixture(data, data.stages[0], kept, drawn):
            log.say(line)
    # Rank 0 alone scores: a tokenizer may not be installed on the other machines.
    scoring = world.on_main(lambda: Scoring.of_run(config, log.run_dir, log.say))
    about = (config, tokenizer, log, world, scoring)
    validations = [Validation(*about, place) for place in range(len(data.valid_sets))]
    made = (config, given, data, ends, tokenizer, store, updater, plans, scoring, validations)
    return Prepared(*made, seconds)


def make_plans(
    config: Config,
    data: DataPlan,
    store: Store,
    tokenizer: Tokenizer,
    updater: Updater,
    log: RunLog,
) -> tuple[list[Plan], Config]:
    """The plan of each stage, and the config with a number of tokens per batch."""
    pairs = DirectedPairs.of(store, data.flows, tokens_before(data.flows, tokenizer))
    about = (tokenizer, config.run.seed, data.limits.max_tokens)
    resamples = [
        Augmentation(pairs, stage, *about) if stage.augment else None for stage in data.stages
    ]
    longest = data.limits.max_tokens + 1 if any(resamples) else pairs.longest
    lengths = lengths_to_try(pairs, longest, updater.packed)
    config = settle_batch_size(config, updater, lengths, log)
    plans = []
    for stage, resample in zip(data.stages, resamples, strict=True):
        weights = sampling_weights(data, stage, pairs.kept)
        plans.append(Plan(pairs, weights, config.batch, config.run.seed, resample, updater.packed))
    return plans, config


@dataclass(frozen=True)
class Epochs:
    """How many updates the epochs of a training have."""

    data: DataPlan
    plans: Sequence[Plan]  # of each stage
    train: TrainConfig

    @cached_property
    def lengths(self) -> list[int]:
        """The updates of the first epoch of each stage; its others count as many."""
        return [len(plan.for_epoch(0, Event()).updates(0)) for plan in self.plans]

    def updates(self, epochs: float) -> float:
        """The updates of so many epochs."""
        updates, left = 0.0, epochs
        for stage, length in zip(self.data.stages, self.lengths, strict=True):
            end = stage.end(self.train.max_steps, epochs)
            in_stage = left if end.epochs is None else min(left, end.epochs)
            if end.updates is not None:
                in_stage = min(left, end.updates / length)
            updates += in_stage * length
            left -= in_stage
        return updates

    def ends(self, epochs: float | None) -> list[StageEnd]:
        """Where each stage ends in a training of so many epochs, unless `max_steps` ends it."""
        if epochs is not None and self.updates(epochs) > self.train.max_steps:
            epochs = self.within(self.train.max_steps)
        return [stage.end(self.train.max_steps, epochs) for stage in self.data.stages]

    def within(self, updates: float) -> float:
        """The epochs that have about so many updates, by bisection."""
        # Where stages end at shares, which are whole epochs, the updates grow in steps.
        low, high = 0.0, updates / min(self.lengths)
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if self.updates(middle) <= updates else (low, middle)
        return low


def epochs_in_time(
    epochs: Epochs, updater: Updater, log: RunLog
) -> tuple[float | None, float | None]:
    """The epochs of a training, as many as fit into `train.max_minutes`, and the time of an update.

    A run with a checkpoint keeps the epochs that it began with, and is not timed. Raises
    ConfigError if no time is left.
    """
    world, minutes, n_epochs = updater.world, epochs.train.max_minutes, epochs.train.epochs
    if minutes is None:
        return n_epochs, None
    if (kept := world.on_main(lambda: measured_before(log.run_dir))) is not None:
        fitting: float | None = kept.get("train.max_epochs")
        said = "all its epochs" if fitting is None else f"{fitting:g} epochs"
        log.say(f"train.max_minutes: the run keeps {said}, as it was started")
        return fitting or n_epochs, None
    log.say("train.max_minutes: timing typical updates")
    seconds = typical_update(updater, epochs.plans[0].for_epoch(0, Event()), 0)
    gone = time.perf_counter() - log.started
    return world.on_main(lambda: _fitting(epochs, minutes, gone, seconds, log)), seconds


def _fitting(
    epochs: Epochs, minutes: float, gone: float, per_update: float, log: RunLog
) -> float | None:
    """The epochs of the config, or those that fit where `gone` seconds have passed, if fewer.

    An update takes `per_update` seconds.
    """
    left = UPDATES_SHARE * 60 * minutes - gone
    if left < per_update:
        raise ConfigError(
            f"train.max_minutes: leaves no time to train, found {minutes:g}: the data took "
            f"{gone / 60:.1f} minutes to prepare, an update takes {per_update:.1f} s; raise it"
        )
    n_epochs = epochs.train.epochs
    if left / per_update >= epochs.train.max_steps:
        return n_epochs
    fitting = epochs.within(left / per_update)
    if n_epochs is not None and fitting >= n_epochs:
        return n_epochs
    fitting = float(f"{fitting:.3g}")
    log.say(
        f"train.max_minutes: {fitting:g} epochs fit into {minutes:g} minutes, with "
        f"{per_update:.2f} s an update"
    )
    return fitting


def settle_length(config: Config, epochs: Epochs, log: RunLog) -> Config:
    """Lower `train.max_steps` to the updates of `train.max_epochs`, if that is set.

    Raises ConfigError if a cosine has no updates left after its warm-up.
    """
    n_epochs, most = config.train.epochs, config.train.max_steps
    if n_epochs is None:
        return config
    updates = epochs.updates(n_epochs)
    wanted = max(1, round(min(updates, 1e15)))  # 1e308 epochs are infinitely many updates
    of = " and ".join(f"{length:,}" for length in epochs.lengths)
    capped = f"; train.max_steps ends training after {most:,}" if most < wanted else ""
    log.say(
        f"train.max_epochs: {n_epochs:g} epoch{'s' * (n_epochs != 1)} of {of} updates are "
        f"{wanted:,} updates{capped}"
    )
    log.total = min(most, wanted)
    warmup = config.optim.warmup_steps
    if config.optim.schedule == "cosine" and warmup >= log.total:
        raise ConfigError(
            f"optim.warmup_steps: must be below the {log.total:,} updates of train.max_epochs with "
            f"schedule cosine, found {warmup:,}; lower it, or raise train.max_epochs or --time"
        )
    return config.with_value("train.max_steps", log.total)


def learns_vocabulary(config: Config, base: LoadedModel | None) -> bool:
    """Whether a new run needs a tokenizer that is trained on its data."""
    is_kept = base is not None and not config.train.new_vocabulary
    return config.tokenizer.model is None and not is_kept


def prepare_tokenizer(
    config: Config,
    data: DataPlan,
    log: RunLog,
    world: World,
    base: LoadedModel | None,
    sample: PairSample | None,
) -> Tokenizer:
    """The tokenizer of the run: an existing one, that of `base`, or a new one trained on the data.

    The main process makes it, the others load it. `sample` is drawn from the data here if it is
    None.
    """
    run_dir = log.run_dir

    def find_or_make() -> Tokenizer:
        if Tokenizer.exists_in(run_dir):
            return Tokenizer.load(run_dir)
        styles: Styles | None = None
        if base is not None and not config.train.new_vocabulary:
            log.say(
                "tokenizer: taken from train.init_from (train.new_vocabulary: true trains one on "
                "this data)"
            )
            tokenizer, styles = base.tokenizer, base.styles
        elif config.tokenizer.model is not None:
            tokenizer = own_tokenizer(config.tokenizer)
            size = f"{tokenizer.src.size:,}"
            if not tokenizer.joint:
                size += f" and {tokenizer.tgt.size:,}"
            log.say(f"tokenizer: tokenizer.model, {size} tokens")
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
            tokenizer = train_on_sample(
                config.tokenizer, drawn, log.say, languages=data.token_languages
            )
            drawn.clear()
        if styles is None:
            (run_dir / WRITING).unlink(missing_ok=True)
        else:
            write_whole(run_dir / WRITING, styles.to_json())
        tokenizer.save(run_dir)
        return tokenizer

    return world.main_first(find_or_make, lambda: Tokenizer.load(run_dir))


def training_texts(
    data: DataPlan, tokenizer: Tokenizer, folder: Path, read: FileRecords
) -> StoreTexts:
    """The training text, to be stored in `folder`; `read` are the records of known files."""
    before = tokens_before(data.flows, tokenizer)
    return StoreTexts(
        data.corpora,
        data.root,
        "data.train",
        data.limits,
        tokenizer,
        corpus_records(data.corpora, data.root, {**known_records(folder), **read}),
        n_tokens_before(len(data.corpora), data.flows, before),
        by_language=data.has_tokens,
    )


def prepare_store(
    data: DataPlan, tokenizer: Tokenizer, log: RunLog, world: World, read: FileRecords
) -> Store:
    """The token store of the training text; the main process builds it, the others open it.

    `read` are the records of files that are known. Raises DataError if the processes do not see the
    same files.
    """
    folder = log.run_dir / STORE / "train"
    if not known_records(folder):
        log.say("data.train: encoding into the token store")

    def build() -> Store:
        texts = training_texts(data, tokenizer, folder, read)
        return open_or_build(folder, texts, log.say, log.watch)

    store = world.main_first(build, lambda: open_built(folder))
    same = {"tokenizer": tokenizer.fingerprint, "token_store": store.fingerprint}
    world.require_same(log.run_dir, **same)
    return store


def start_on(prepared: Prepared, run_dir: Path) -> Start:
    """A start of the training in `run_dir`, before its first update."""
    data = prepared.data
    elsewhere = [text.file for text in data.corpora if not local_files(text.source, data.root)]
    made_of = run_dir / (CLEANED if data.clean is not None else f"{STORE}/train")
    if held_out_sets(prepared.recorded.data):
        made_of = run_dir / HELD_OUT
        elsewhere = meta_of(made_of).get(ELSEWHERE, [])
    files = known_records(made_of)
    corpora = corpora_of_text(files, elsewhere)
    name = run_dir.absolute().name
    return Start(model=name, began_from="new weights", files=files_of(files), corpora=corpora)


def several_sentences(prepared: Prepared) -> dict[str, float]:
    """Return for `meta.json` the share of training lines with several sentences.

    The lines are drawn from the store, whoever made the tokenizer; those that are joined in the
    last stage are added. Empty without the library that finds sentences.
    """
    pairs, data = DirectedPairs.of(prepared.store), prepared.data
    drawn = np.random.default_rng(0).integers(len(pairs), size=SENTENCES_SAMPLE)
    lines = prepared.tokenizer.src.decode([src.tolist() for src, _ in pairs.texts(drawn)])
    with suppress(ConfigError):
        counts = [len(split_sentences(line, base_code(data.usual.src))) for line in lines]
        share = sum(count > 1 for count in counts) / len(counts)
        if (augment := data.stages[-1].augment) is not None:  # three pairs a line, on average
            share += (1 - share) * (augment.join / 3) / (1 - augment.join * 2 / 3)
        return {SEVERAL_SENTENCES: share}
    return {}
