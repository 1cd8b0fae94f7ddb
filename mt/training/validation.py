"""Validation during training and scores on test sets, by the code of translate and evaluate."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from mt.config.plan import HELD_OUT, Corpus, DataPlan, Direction, Flow, Limits
from mt.config.schema import Config
from mt.data.reading.corpus import read_pairs
from mt.data.reading.words import has_visible
from mt.data.tokens import store as token_store
from mt.data.tokens.batches import gather_batch
from mt.data.tokens.directions import DirectedPairs, n_tokens_before, tokens_before
from mt.data.tokens.plan import bucket
from mt.data.tokens.store import Store, StoreTexts
from mt.data.tokens.tokenizer import Tokenizer
from mt.errors import ConfigError, NonFiniteError
from mt.evaluation.bleu_tokenizer import choose_tokenizer, fitting_tokenizer, tokenizer_of
from mt.evaluation.metrics import METRICS, Metric, Score
from mt.model.checkpoint import LoadedModel, load_model
from mt.model.transformer import Transformer
from mt.runs import records
from mt.runs.model_folder import step_of
from mt.runs.records import Sentence
from mt.runs.run_dir import STORE
from mt.runtime.devices import Device
from mt.runtime.distributed import World
from mt.runtime.memory import peak_memory_mb, raise_unless_out_of_memory
from mt.search.engine import TorchEngine
from mt.search.inference import Inference
from mt.terminal import Say
from mt.training.loss import batch_loss
from mt.training.outcome import Signals, StopRequestedError, ValidationResult
from mt.training.runlog import RunLog
from mt.translate.lines import Translation
from mt.translate.loaded_engine import LoadedEngine
from mt.translate.translator import make_translator

T = TypeVar("T")

# Sentences written to `samples/` after each validation.
SAMPLES = 8


def read_text(text: Corpus, root: Path) -> tuple[list[str], list[str]]:
    pairs = [pair for pair in read_pairs(text.source, root, text.name) if has_visible(pair[1])]
    return [src for src, _ in pairs], [tgt for _, tgt in pairs]


def hash_of(src: list[str], ref: list[str]) -> str:
    return hashlib.sha256("\n".join([*src, *ref]).encode()).hexdigest()[:16]


def translate(
    model: LoadedModel, device: Device, lines: Sequence[str], directions: Sequence[Direction]
) -> list[Translation]:
    """Translate lines, each in its direction, as `mt translate` does by default, with torch."""
    translations: list[Translation] = []
    try:
        engine = TorchEngine(Inference(model.model, device), model.config.decode)  # a copy of it
        loaded = LoadedEngine.of_model(model, engine)
        for (source, to), group in groupby(zip(directions, lines, strict=True), key=itemgetter(0)):
            translator = make_translator(loaded, to if loaded.data.has_tokens else None, source)
            translations += translator.translate([line for _, line in group])
        return translations
    except (MemoryError, RuntimeError) as error:
        raise_unless_out_of_memory(error)
        raise ConfigError(
            "decode: translating data.valid or data.test does not fit into the memory of "
            f"{device}: {peak_memory_mb(device.device):,.0f} MB were in use. Lower "
            "decode.beam_size or decode.max_len_factor, or choose a smaller model"
        ) from error


@dataclass(frozen=True)
class Scoring:
    """How the translations of a run are scored: metrics and BLEU's tokenizer."""

    config: Config
    data: DataPlan
    tokenize: str  # for BLEU of validations

    @classmethod
    def of_run(cls, config: Config, data: DataPlan, run_dir: Path, say: Say) -> Scoring:
        """With the tokenizer of the validations that `run_dir` has, as far as possible."""
        lines = filter(None, records.metrics_lines(run_dir))
        signatures = [line.get("signature", "") for line in lines if line["kind"] == "valid"]
        recorded = tokenizer_of(str(signatures[-1])) if signatures else ""
        choice = config.train.bleu_tokenize
        for texts in data.valid_sets if choice == "auto" else ():
            languages = dict.fromkeys(text.direction.tgt for text in texts)
            tokenizers = {language: fitting_tokenizer(language) for language in languages}
            if len(set(tokenizers.values())) > 1:
                chosen = ", ".join(f"{name} for {code}" for code, name in tokenizers.items())
                raise ConfigError(
                    "train.bleu_tokenize: must be one tokenizer for all languages that data.valid "
                    f"joins, found auto: {chosen}; set it, or leave only one of them in data.valid"
                )
        tokenize = choose_tokenizer(valid_language(data), choice, say, recorded=recorded)
        return cls(config, data, tokenize)

    def tokenizer_into(self, language: str) -> str:
        """BLEU's tokenizer for texts in a language: that of validations, if it fits as well."""
        if fitting_tokenizer(language) == fitting_tokenizer(valid_language(self.data)):
            return self.tokenize
        return choose_tokenizer(language, self.config.train.bleu_tokenize)

    def metrics(self, src: list[str], ref: list[str], language: str) -> dict[str, Metric]:
        """The metrics of a text into a language by name; only rank 0 can make them."""
        tokenize = self.tokenizer_into(language)
        return {
            name: METRICS[name]([ref], src, tokenize, tgt_lang=language)
            for name in metric_names(self.config)
        }

    def scores(
        self, outputs: list[str], src: list[str], ref: list[str], language: str
    ) -> dict[str, Score]:
        metrics = self.metrics(src, ref, language)
        return {name: metric.score(outputs) for name, metric in metrics.items()}


def valid_language(data: DataPlan) -> str:
    return (data.valid[0].direction if data.valid else data.usual).tgt


def metric_names(config: Config) -> list[str]:
    """BLEU, and `train.metric` if it is another one."""
    chosen = config.train.metric if config.data.valid else None
    return [name for name in METRICS if name in ("bleu", chosen)]


def store_of_set(run_dir: Path, place: int) -> Path:
    return run_dir / STORE / (f"valid-{place}" if place else "valid")


class Validation:
    """A validation set of a config as text and as token ids; rank 0 reads it for all."""

    def __init__(
        self, tokenizer: Tokenizer, log: RunLog, world: World, scoring: Scoring, place: int = 0
    ) -> None:
        """Read the set at a place of `data.valid`."""
        self.config, data = scoring.config, scoring.data
        texts = data.valid_sets[place]
        self.name = names_of([texts[0] for texts in data.valid_sets])[place]
        self.label = "valid" if not place else f"valid {self.name}"  # of its lines in the log
        self.language = texts[0].direction.tgt
        self.run_dir = run_dir = log.run_dir
        self.log = log
        self.scoring = scoring
        self._notes: set[str] = set()  # on scores, reported once each
        read = world.on_main(lambda: [read_text(text, data.root) for text in texts])
        self.src, self.ref = ([line for sides in read for line in sides[n]] for n in (0, 1))
        of_texts = zip(texts, read, strict=True)
        self.directions = [text.direction for text, (src, _) in of_texts for _ in src]  # of lines
        # Every pair that fits the model counts; the limits for training do not apply.
        longest = self.config.model.max_positions - 1
        folder = store_of_set(run_dir, place)
        flows = [Flow.of(text, i, data.has_tokens) for i, text in enumerate(texts)]
        before = tokens_before(flows, tokenizer)

        def build() -> Store:
            files = token_store.corpus_records(texts, data.root, token_store.known_records(folder))
            n_before = n_tokens_before(len(texts), flows, before)
            limits = Limits(longest, math.inf, dedupe=False)
            about = (texts[0].name.partition(" ")[0], limits, tokenizer, files, n_before)
            return token_store.open_or_build(folder, StoreTexts(texts, data.root, *about), log.say)

        store = world.main_first(build, lambda: token_store.open_built(folder))
        self.pairs = DirectedPairs.of(store, flows, before)
        self.n_tgt = int((self.pairs.tgt_lengths + 1).sum())
        world.require_same(run_dir, **{f"validation_store_{place}": store.fingerprint})

    def evaluate(
        self, model: LoadedModel, device: Device, world: World, signals: Signals
    ) -> ValidationResult:
        """Compute nll and scores; StopRequestedError in all ranks if one receives a signal."""
        shard: tuple[list[float], list[Translation], str] | None = None
        with suppress(StopRequestedError), signals.interruptible():
            losses = self.losses(model.model, device, world)
            lines = self.src[world.rank :: world.size]
            directions = self.directions[world.rank :: world.size]
            try:
                shard = losses, translate(model, device, lines, directions), ""
            except NonFiniteError as error:  # training itself skips such updates, or ends
                shard = losses, [], str(error)
        shards = [part for part in world.all_gather(shard) if part is not None]
        if len(shards) < world.size:
            raise StopRequestedError
        # Summed in the order of the batches, so that the last bit does not depend on the ranks.
        nll = sum(interleaved([losses for losses, *_ in shards])) / self.n_tgt
        if problems := [problem for *_, problem in shards if problem]:
            self.log.say(f"{self.label} | not translated: an output is non-finite | {problems[0]}")
            translations = [Translation(("",), (math.nan,))] * len(self.src)
        else:
            translations = interleaved([found for _, found, _ in shards])
        outputs = [translation.texts[0] for translation in translations]
        scores, by_direction = world.on_main(partial(self._scores, outputs))
        for score in scores.values():
            if score.note and score.note not in self._notes:
                self._notes.add(score.note)
                self.log.say(f"{self.label} | {score.name} {score.value:.2f}: {score.note}")
        return ValidationResult(nll, scores, outputs, translations, by_direction)

    def _scores(self, outputs: list[str]) -> tuple[dict[str, Score], dict[str, float]]:
        """The scores by the name of the metric; of several directions, BLEU of each."""
        metrics = self.metrics.items()
        statistics = {name: metric.statistics(outputs) for name, metric in metrics}
        scores = {name: metric.score_from(statistics[name], outputs) for name, metric in metrics}
        names = np.array([*map(str, self.directions)])
        directions = dict.fromkeys(names.tolist()) if len({*self.directions}) > 1 else {}
        sums = {name: statistics["bleu"][names == name].sum(axis=0) for name in directions}
        bleu = self.metrics["bleu"]
        return scores, {name: bleu.value(row.tolist()) for name, row in sums.items()}

    @cached_property
    def metrics(self) -> dict[str, Metric]:
        return self.scoring.metrics(self.src, self.ref, self.language)

    @property
    def fingerprint(self) -> str:
        """Changes with the text and the metric: their scores cannot be compared with others."""
        metric = self.config.train.metric
        tokenize = f"/{self.scoring.tokenize}" * (metric == "bleu")
        return f"{hash_of(self.src, self.ref)}/{metric}{tokenize}"

    @torch.no_grad()
    def losses(self, model: Transformer, device: Device, world: World) -> list[float]:
        """The nll of each of this rank's batches in nats, without smoothing or dropout."""
        pairs = self.pairs
        model.eval()
        model.compute_dtype = device.dtype
        settings = self.config.batch
        budget = min(settings.budget, settings.tokens_per_update)
        batches = bucket(pairs.src_lengths, pairs.tgt_lengths, np.arange(len(pairs)), budget)
        losses = []
        for indices in batches[world.rank :: world.size]:
            batch = gather_batch(pairs, indices).to(device.device)
            losses.append(batch_loss(model, model.output, batch, 0.0).nll)
        return [float(loss) for loss in losses]  # waits for the device once

    def write(self, step: int, result: ValidationResult, is_best: bool) -> None:
        """Write some sentences with reference and output; of the best validation all outputs."""
        outputs = result.outputs
        chosen = range(0, len(outputs), max(1, len(outputs) // SAMPLES))[:SAMPLES]
        samples = [Sentence(self.src[i], self.ref[i], outputs[i]) for i in chosen]
        records.write_samples(self.run_dir, step, samples)
        if is_best and result.translations:
            sentences = as_sentences(self.src, self.ref, result.translations)
            records.write_sentences(records.valid_path(self.run_dir, step), sentences)


def names_of(tests: Sequence[Corpus]) -> list[str]:
    """A name for each text of `data.test`: its file, with directions and its key where needed."""
    several = len({test.direction for test in tests}) > 1
    files = [
        (test.name if HELD_OUT in test.file else test.file) + f" {test.direction}" * several
        for test in tests
    ]
    named = zip(files, tests, strict=True)
    return [file if files.count(file) == 1 else f"{file} ({test.name})" for file, test in named]


def score_tests(
    scoring: Scoring, best: Path, device: Device, world: World, log: RunLog, step: int
) -> None:
    """Score the best model on `data.test`, once: when no choice can be made by it any more."""
    data = scoring.data
    folder = world.on_main(best.resolve)
    model_step = step_of(folder.name)
    tests = dict(zip(names_of(data.test), data.test, strict=True))
    texts = world.on_main(lambda: {name: read_text(t, data.root) for name, t in tests.items()})
    hashes = {name: hash_of(*text) for name, text in texts.items()}
    done = world.on_main(lambda: _scored_before(scoring, tests, hashes, log, (step, model_step)))
    if done.issuperset(tests):
        return
    model = load_model(folder)
    model.model.to(device.device)
    for name, test in tests.items():
        if name in done:
            continue
        src, ref = texts[name]
        lines = src[world.rank :: world.size]
        shard = translate(model, device, lines, [test.direction] * len(lines))
        translations = interleaved(world.all_gather(shard))
        outputs = [translation.texts[0] for translation in translations]
        scores = world.on_main(partial(scoring.scores, outputs, src, ref, test.direction.tgt))
        sentences = as_sentences(src, ref, translations)
        file = world.on_main(partial(records.write_test_outputs, log.run_dir, step, sentences))
        values = {metric: score.value for metric, score in scores.items()}
        signature = scores["bleu"].signature
        said = {"name": name, **values, "signature": signature, "lines": len(src), "outputs": file}
        log.record("test", step, model_step=model_step, text_hash=hashes[name], **said)
        shown = [f"{score.name} {score.value:.2f}" for score in scores.values()]
        log.say(" | ".join(["test", name, *shown, signature]))
        for note in filter(None, (score.note for score in scores.values())):
            log.say(f"test | {name} | note: {note}")


def _scored_before(
    scoring: Scoring, tests: Mapping[str, Corpus], hashes: Mapping[str, str], log: RunLog,
    steps: tuple[int, int],
) -> set[str]:  # fmt: skip
    """The names of the texts whose scores are of this model, and can stand beside new ones."""
    last = {
        line["name"]: line
        for line in records.metrics_lines(log.run_dir)
        if line and line["kind"] == "test" and (line["step"], line["model_step"]) == steps
    }
    return {
        name
        for name, test in tests.items()
        if (line := last.get(name))
        and line.get("text_hash") in (None, hashes[name])  # earlier versions wrote none
        and all(metric in line for metric in metric_names(scoring.config))
        and tokenizer_of(line["signature"]) == scoring.tokenizer_into(test.direction.tgt)
    }


def as_sentences(
    src: Sequence[str], ref: Sequence[str], translations: Sequence[Translation]
) -> list[Sentence]:
    """Return each sentence with its best translation, as a run directory keeps them."""
    return [
        Sentence(source, reference, best.texts[0], best.scores[0], best.flags)
        for source, reference, best in zip(src, ref, translations, strict=True)
    ]


def interleaved(shards: list[list[T]]) -> list[T]:
    """Undo sharding: rank r had the items r, r + world size, and so on."""
    items: list[Any] = [None] * sum(map(len, shards))
    for rank, shard in enumerate(shards):
        items[rank :: len(shards)] = shard
    return items
