"""From a config to all that training needs: tokenizer, token store, model, plan, validation set."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING

import numpy as np

from mt.data.cleaning.languages import base_code
from mt.data.reading.corpus import data_root, read_pairs
from mt.data.reading.sentences import split_sentences
from mt.data.tokens.augmentation import Augmentation, augment_sample
from mt.data.tokens.directions import in_directions
from mt.data.tokens.mixing import (
    describe_mixture,
    require_counted_texts,
    sampling_weights,
    stages_of,
)
from mt.data.tokens.placeholders import (
    learn_translations,
    require_placeholders,
    uses_placeholders,
    with_placeholders,
)
from mt.data.tokens.plan import Plan
from mt.data.tokens.store import known_records, open_built, open_or_build, other_settings
from mt.data.tokens.tokenizer import PairSample, Tokenizer, own_tokenizer, train_on_sample
from mt.data.tokens.writing import Styles
from mt.errors import ConfigError
from mt.runs.model_folder import SEVERAL_SENTENCES
from mt.runs.run_dir import STORE
from mt.runtime.distributed import World
from mt.training.batch_size import settle_batch_size
from mt.training.clean_text import clean_training_text
from mt.training.update import Updater
from mt.training.validation import Scoring, Validation

if TYPE_CHECKING:
    from mt.config.schema import Config, DataConfig
    from mt.data.reading.text_files import FileRecords
    from mt.data.tokens.store import Store
    from mt.model.checkpoint import LoadedModel
    from mt.runtime.devices import Device
    from mt.training.runlog import RunLog


# The way in which `Plan` makes updates; it changes when they do.
PLAN = "equal updates of all lengths from 8192 tokens on, shuffled by length"
# Keys of each section that the fingerprint of a plan need not take as they stand. A key that is not
# here counts. All of `data` is in the fingerprint of the store, and in what the plan draws.
PLAN_KEYS = {
    "run": {"dir", "seed"},
    "batch": {"tokens_per_update", "tokens_per_batch"},  # the second does not change the plan
    "tokenizer": {
        # In the tokenizer, whose fingerprint is in that of the store.
        *("vocab_size", "type", "joint", "byte_fallback", "character_coverage"),
        *("user_defined_symbols", "split_digits", "sample_lines", "model", "tgt_model"),
    },
}


# Sources whose sentences are counted: the share is then known to 0.5 %.
SENTENCES_SAMPLE = 2_000


@dataclass(frozen=True)
class CorpusRead:
    """What the check of the data has read already."""

    records: FileRecords = field(default_factory=dict)
    sample: PairSample | None = None  # for a tokenizer that is to be trained
    n_pairs: int = 0  # of all training texts, where they were read whole


@dataclass(frozen=True)
class Prepared:
    """All that training needs."""

    config: Config  # tokens_per_batch is a number; max_steps is lowered to max_epochs
    recorded: Config  # of checkpoints: both as they were given, for students and other data
    tokenizer: Tokenizer
    store: Store  # of the training text
    updater: Updater
    plans: list[Plan]  # of each stage
    scoring: Scoring  # of validations and tests
    validation: Validation | None
    started: float  # time.perf_counter() when preparation began

    @property
    def plan_fingerprint(self) -> str:
        """Changes when the order of the data does, or the tokens of an epoch.

        A run whose fingerprint has changed continues with a new epoch and says so.
        """
        config = self.config
        parts: list[object] = [self.store.fingerprint, self.plans[0].drawn]
        parts += [config.batch.tokens_per_update, config.run.seed, PLAN]
        if (augment := config.data.augment) is not None:
            data = config.data
            parts += [augment.model_dump_json(), data.src_lang, data.tgt_lang]
            if any(one.src_lang or one.tgt_lang for one in data.train):
                parts.append([data.direction(one) for one in data.train])
        for section, known in PLAN_KEYS.items():
            if others := other_settings(getattr(config, section), known):
                parts.append(json.dumps({section: others}, sort_keys=True))
        if reversed_ := [n for n, one in enumerate(config.data.train) if one.reverse]:
            parts.append(f"reversed {reversed_}")
        if config.data.stages:
            changes = [one.augment and one.augment.model_dump() for one in stages_of(config.data)]
            drawn = [plan.drawn for plan in self.plans]
            parts.append(json.dumps([drawn, changes], sort_keys=True))
        return "/".join(map(str, parts))


def prepare(
    config: Config,
    device: Device,
    log: RunLog,
    world: World | None = None,
    base: LoadedModel | None = None,
    read: CorpusRead | None = None,
) -> Prepared:
    """Make what training needs, or open it if it is in the run directory already.

    `base` is the model that `train.init_from` names; `read` is what need not be read again. Raises
    MtError for what the user can mend.
    """
    started = time.perf_counter()
    world = world or World()
    read = read or CorpusRead()
    cleaned = clean_training_text(config, log, world)
    tokenizer = prepare_tokenizer(cleaned, log, world, base, read.sample)
    store = prepare_store(cleaned, tokenizer, log, world, read.records)
    updater = Updater(config, tokenizer, device, world, log.say)
    updater.choose_forward(store)
    directed = in_directions(store, config.data, tokenizer)
    sections = stages_of(config.data)
    translations = None
    if uses_placeholders(config.data):
        translations = learn_translations(directed, tokenizer)
        if not translations:
            log.say(
                "warning: data.augment.placeholders: no word of the text is found with its "
                "translation often enough; only numbers and names that both sides have are replaced"
            )
    resamples = [
        None
        if data.augment is None
        else Augmentation(
            directed, tokenizer, config.model_copy(update={"data": data}), translations
        )
        for data in sections
    ]
    longest = config.data.max_tokens + 1 if any(resamples) else store.longest
    config = settle_batch_size(config, updater, longest, log)
    require_counted_texts(config.data, directed.kept)
    plans = []
    for data, resample in zip(sections, resamples, strict=True):
        weights = sampling_weights(data, directed.kept)
        plans.append(
            Plan(directed, weights, config.batch, config.run.seed, resample, updater.packed)
        )
    recorded = config.model_copy(update={"batch": updater.config.batch})
    config = settle_length(config, plans, log)
    updater.config = updater.config.model_copy(update={"train": config.train})
    if len(directed.kept) > 1 and not config.data.stages:
        for line in describe_mixture(config.data, directed.kept, plans[0].drawn):
            log.say(line)
    # Rank 0 alone scores: a tokenizer may not be installed on the other machines.
    scoring = world.on_main(lambda: Scoring.of_run(config, log.run_dir, log.say, device.is_cuda))
    validation = None
    if config.data.valid is not None:
        validation = Validation(config, tokenizer, log, world, scoring)
    return Prepared(
        config, recorded, tokenizer, store, updater, plans, scoring, validation, started
    )


def settle_length(config: Config, plans: Sequence[Plan], log: RunLog) -> Config:
    """Lower `train.max_steps` to the updates of `train.max_epochs`, if that is set.

    Where stages end at a share of the training, that becomes epochs or updates. All epochs of a
    stage count as long as its first one, and a stall as if it came at once. Raises ConfigError if a
    cosine has no updates left after its warm-up.
    """
    epochs, most = config.train.epochs, config.train.max_steps
    config = config.model_copy(update={"data": with_ends_in_numbers(config)})
    if epochs is None:
        return config
    lengths = [len(plan.for_epoch(0, Event()).updates(0)) for plan in plans]
    updates, left = 0.0, epochs
    for number, (plan, length) in enumerate(zip(plans, lengths, strict=True)):
        until = config.data.stages[number].until if config.data.stages else None
        own = min(left, plan.epochs_until(until, length))
        updates += own * length
        left -= own
    wanted = max(1, round(min(updates, 1e15)))  # 1e308 epochs are infinitely many updates
    of = " and ".join(f"{length:,}" for length in lengths)
    log.say(
        f"train.max_epochs: {epochs:g} epoch{'s' * (epochs != 1)} of {of} updates are {wanted:,} "
        "updates" + (f"; train.max_steps ends training after {most:,}" if most < wanted else "")
    )
    log.total = min(most, wanted)
    warmup = config.optim.warmup_steps
    if config.optim.schedule == "cosine" and warmup >= log.total:
        raise ConfigError(
            f"optim.warmup_steps: must be below the {log.total:,} updates of train.max_epochs with "
            f"schedule cosine, found {warmup:,}; lower it, or raise train.max_epochs"
        )
    train = config.train.model_copy(update={"max_steps": log.total})
    return config.model_copy(update={"train": train})


def with_ends_in_numbers(config: Config) -> DataConfig:
    """The section `data` with `until.share` of stages in epochs, whole ones from one on.

    In updates, where the length of the training is given so.
    """
    data, epochs = config.data, config.train.epochs
    stages = []
    for stage in data.stages or []:
        if (until := stage.until) is not None and until.share is not None:
            end: dict[str, object] = (
                {"updates": max(1, round(until.share * config.train.max_steps))}
                if epochs is None
                else {"epochs": float(round(until.share * epochs)) or until.share * epochs}
            )
            until = until.model_copy(update={"share": None, **end})
        stages.append(stage.model_copy(update={"until": until}))
    return data.model_copy(update={"stages": stages}) if stages else data


def learns_vocabulary(config: Config, base: LoadedModel | None) -> bool:
    """Whether a new run needs a tokenizer that is trained on its data."""
    is_kept = base is not None and not config.train.new_vocabulary
    return config.tokenizer.model is None and not is_kept


def prepare_tokenizer(
    config: Config, log: RunLog, world: World, base: LoadedModel | None, sample: PairSample | None
) -> Tokenizer:
    """The tokenizer of the run: an existing one, that of `base`, or a new one trained on the data.

    The main process makes it, the others load it. `sample` is drawn from the data here if it is
    None.
    """
    run_dir = log.run_dir

    def find_or_make() -> Tokenizer:
        if Tokenizer.exists_in(run_dir):
            return Tokenizer.load(run_dir)
        if base is not None and not config.train.new_vocabulary:
            log.say(
                "tokenizer: taken from train.init_from (train.new_vocabulary: true trains one on "
                "this data)"
            )
            tokenizer = base.tokenizer
        elif config.tokenizer.model is not None:
            tokenizer = own_tokenizer(config.tokenizer)
            size = f"{tokenizer.src.size:,}"
            if not tokenizer.joint:
                size += f" and {tokenizer.tgt.size:,}"
            log.say(f"tokenizer: tokenizer.model, {size} tokens")
        else:
            log.say(f"tokenizer: training {config.tokenizer.size:,} tokens on data.train")
            drawn = sample or PairSample(config.tokenizer.sample_lines)
            for number, text in config.data.texts.items() if sample is None else ():
                pairs = read_pairs(text, data_root(config.data), f"data.train[{number}]")
                deque(drawn.watch(log.watch(pairs, "reading data.train")), maxlen=0)
            styles = Styles.learn(drawn.src, drawn.tgt, drawn.texts, config.data)
            augment_sample(drawn, config.data)
            languages = config.data.target_languages if config.data.language_tokens else []
            symbols = with_placeholders(config)
            tokenizer = train_on_sample(symbols, drawn, log.say, languages=languages)
            tokenizer.styles = styles
            drawn.clear()
        tokenizer.save(run_dir)
        return tokenizer

    tokenizer = world.main_first(find_or_make, lambda: Tokenizer.load(run_dir))
    require_placeholders(config.data, tokenizer)
    return tokenizer


def prepare_store(
    config: Config, tokenizer: Tokenizer, log: RunLog, world: World, read: FileRecords
) -> Store:
    """The token store of the training text; the main process builds it, the others open it.

    `read` are the records of files that are known. Raises DataError if the processes do not see the
    same files.
    """
    data = config.data
    folder = log.run_dir / STORE / "train"
    if not known_records(folder):
        log.say("data.train: encoding into the token store")

    texts = list(data.texts.values())
    arguments = (folder, texts, "data.train", data, tokenizer, log.say, log.watch, read)
    store = world.main_first(lambda: open_or_build(*arguments), lambda: open_built(folder))
    same = {"tokenizer": tokenizer.fingerprint, "token_store": store.fingerprint}
    world.require_same(log.run_dir, **same)
    return store


def several_sentences(prepared: Prepared) -> dict[str, float]:
    """Return for `meta.json` the share of training lines with several sentences.

    The lines are drawn from the store, whoever made the tokenizer; those that are joined in the
    last stage are added. Empty without the library that finds sentences.
    """
    store, data = prepared.store, prepared.config.data
    drawn = np.random.default_rng(0).integers(len(store), size=SENTENCES_SAMPLE)
    lines = prepared.tokenizer.src.decode([src.tolist() for src, _ in store.pairs(drawn)])
    with suppress(ConfigError):
        counts = [len(split_sentences(line, base_code(data.src_lang))) for line in lines]
        share = sum(count > 1 for count in counts) / len(counts)
        if (augment := stages_of(data)[-1].augment) is not None:  # three pairs a line, on average
            share += (1 - share) * (augment.join / 3) / (1 - augment.join * 2 / 3)
        return {SEVERAL_SENTENCES: share}
    return {}
