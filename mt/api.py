"""The Python API, which `mt` re-exports: train, translate, score and judge from a program.

The commands call the same functions. Errors are exceptions (`Error`); messages go to the logger
`mt` (level INFO), so nothing is printed unless the program sets up logging. Covered by the
compatibility promise in CHANGELOG.md; other modules are not.
"""

from __future__ import annotations

import ctypes
import inspect
import math
import os
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from mt.errors import ConfigError, DataError, leaf_for
from mt.errors import MtError as Error
from mt.search.options import EngineOptions, PrecisionName, Sampling, SearchOptions
from mt.settings import Setting, called_with, check, declared

if TYPE_CHECKING:
    from mt.config.schema import Config
    from mt.data.tokens import tokenizer
    from mt.evaluation.metrics import Score
    from mt.training.outcome import Outcome
    from mt.training.prepare import CleanText
    from mt.translate.lines import Translation
    from mt.translate.score_lines import Scorer

__all__ = ["Error", "Sampling", "Tokenizer", "Translator", "evaluate", "export", "load", "train"]

StrPath = str | Path
_TRAINING = threading.Lock()  # dropout draws from the one generator of torch


# --- translate and score ----------------------------------------------------------------------


class Hypothesis(NamedTuple):
    """One translation of a line."""

    text: str
    score: float  # log-probability / length^penalty; rounded to float32 by CTranslate2
    alignment: str  # `i-j` pairs; empty unless `alignments` was given to `load`


@dataclass(frozen=True)
class Translated:
    """A line's translations, best first. A blank line has one, empty."""

    hypotheses: tuple[Hypothesis, ...]
    flags: tuple[str, ...]  # why the best is suspect, such as `copied` or `looping`

    @property
    def text(self) -> str:
        return self.hypotheses[0].text

    @property
    def score(self) -> float:
        """Its log-probability / length^penalty."""
        return self.hypotheses[0].score

    @property
    def alignment(self) -> str:
        """Its word alignment; empty unless `alignments` was given to `load`."""
        return self.hypotheses[0].alignment


class Translator:
    """One model, or an ensemble, ready to translate and score. `load` makes it.

    Threads may share one: each window of lines has the engine for itself. A context manager, which
    ends worker processes at its end; torch then translates no more.
    """

    def __init__(self, search: SearchOptions, engine: EngineOptions) -> None:
        """Load the models. Raises Error for what the user must correct."""
        from mt.runs.model_folder import open_model
        from mt.translate.load import load_engine, opened

        self._search = search
        self._engine = engine = opened(engine)
        first = open_model(engine.models[0])
        first.tokenizer.before_source(search.to, first.data)  # refuses what it does not know
        self._loaded = load_engine(search, engine)
        self._process = os.getpid()
        # Not __del__: at the end of a program modules are gone before it.
        self._close = weakref.finalize(self, self._loaded.__exit__)
        in_child = weakref.WeakMethod(self._was_forked)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=lambda: (in_child() or int)())

    def __enter__(self) -> Translator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._close()

    def _was_forked(self) -> None:
        """Never end the engine: it would wait for threads that are in the parent alone."""
        self._close.detach()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._loaded))

    def _require_own_process(self) -> None:
        if self._process != os.getpid():
            raise ConfigError(
                "this process was forked from one that had loaded the model, without its threads; "
                "load the model here alone, or use multiprocessing.get_context('spawn')"
            )

    def translate(self, lines: Iterable[str], n_best: int | None = None) -> Iterator[Translated]:
        """Yield the translations of each line, in order; lines are read a window at a time.

        `n_best`: hypotheses of each line, at most the beam size; None: as given to `load`, or one.
        Raises Error for a line that is no text.
        """
        from mt.translate.translator import make_translator

        self._require_own_process()
        if n_best is not None and not (isinstance(n_best, int) and n_best > 0):
            raise ConfigError(f"n_best: must be a whole number from 1 on, found {n_best!r}")
        search = self._search
        loaded = self._loaded.with_n_best(n_best or search.n_best)
        translator = make_translator(loaded, search.to, search.from_)
        return map(_translated, translator.translate(_texts("lines", lines)))

    def score(self, sources: Iterable[str], targets: Iterable[str]) -> list[float]:
        """Return the log-probability of each target given its source, eos included.

        nan for a pair that is too long for the model. Raises Error for an ensemble, and where one
        side has more lines.
        """
        if len(self._engine.models) > 1:
            raise ConfigError(f"score: takes one model, found {len(self._engine.models)}")
        from mt.evaluation.metrics import check_counts

        self._require_own_process()
        srcs, tgts = [*_texts("sources", sources)], [*_texts("targets", targets)]
        check_counts({"sources": srcs, "targets": tgts})
        with self._loaded.lock:
            pairs = list(replace(self._scorer).score(srcs, tgts))
        return [sum(pair.log_probs) if pair.log_probs else math.nan for pair in pairs]

    @cached_property
    def _scorer(self) -> Scorer:
        """Scores with torch, whichever engine translates."""
        from mt.translate.score_lines import load_scorer

        precision: PrecisionName = self._engine.precision
        if precision == "int8":  # of CTranslate2
            precision = "auto"
        return load_scorer(self._search, replace(self._engine, precision=precision))


@dataclass(frozen=True)
class LoadOptions(SearchOptions, EngineOptions):
    """The parameters of `load`: the models, and the options of the search and of the engine."""

    model: StrPath | Sequence[StrPath]
    # Of commands alone.
    models: Sequence[Any] = field(init=False, default=())
    with_scores: bool = field(init=False, default=True)
    prefixes: bool = field(init=False, default=False)


@called_with(LoadOptions, "mt translate")
def load(options: LoadOptions) -> Translator:
    """Load a run directory, checkpoint, averaged or imported model; several make an ensemble.

    Raises Error for a folder that is no model, and for options that do not go together. Options are
    those of `mt translate`:
    """
    models: Any = options.model
    if isinstance(models, str | Path) or not isinstance(models, Iterable):
        models = [models]
    if not (paths := [_path("model", model) for model in models]):
        raise ConfigError("load: no model; name a run directory, checkpoint or model folder")
    search, engine = (
        {name: getattr(options, name) for name in declared(kind)}
        for kind in (SearchOptions, EngineOptions)
    )
    return Translator(SearchOptions(**search), EngineOptions(models=paths, **engine))


def _path(name: str, value: object) -> Path:
    if not isinstance(value, str | Path) or value == "":
        raise ConfigError(f"{name}: must be a path, found {value!r}")
    return Path(value)


def _items(name: str, values: Any) -> Iterator[Any]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise DataError(f"{name}: must be a list, found {values!r}; write [{values!r}]")
    return iter(values)


def _texts(name: str, values: Iterable[str]) -> Iterator[str]:
    """Texts one by one; DataError for one alone, what is none, and a lone surrogate (no UTF-8)."""
    return (_text(name, *numbered) for numbered in enumerate(_items(name, values), start=1))


def _text(name: str, number: int, value: Any) -> str:
    is_text = isinstance(value, str)
    if not is_text or any("\ud800" <= char <= "\udfff" for char in value):
        fault = "has half a character" if is_text else "must be text"
        raise DataError(f"{name}, line {number:,}: {fault}, found {value!r}")
    return value


def _translated(line: Translation) -> Translated:
    alignments = line.alignments or ("",) * len(line.texts)
    rows = zip(line.texts, line.scores, alignments, strict=True)
    return Translated(tuple(Hypothesis(*row) for row in rows), line.flags)


# --- train and judge --------------------------------------------------------------------------


def train(
    config: StrPath,
    run_dir: StrPath | None = None,
    settings: Mapping[str, Any] | Sequence[str] | None = None,
    *,
    device: str = "auto",
    fresh: bool = False,
    dry_run: bool = False,
) -> Outcome:
    """Train a model, or resume the training in `run_dir`.

    `config`: a file, or the name of a shipped one. `settings`: values that replace the config's,
    by key, such as `{"model.d_model": 256}`, or as `--set` takes them. `run_dir`: default
    `runs/NAME`. `fresh`, `dry_run`: as for `mt train`. The outcome has the reason of the end, the
    exit code of `mt train`, and the folder of the best model. Ctrl-C ends training after a
    checkpoint; before the first update it raises KeyboardInterrupt. Raises Error for what the user
    must correct.
    """
    started = time.perf_counter()
    for name, value in {"fresh": fresh, "dry_run": dry_run}.items():
        if not isinstance(value, bool):
            raise ConfigError(f"{name}: must be true or false, found {value!r}")
    loaded = load_for_training(config, run_dir, settings)  # before torch, which takes seconds
    from mt.training import launch

    with _TRAINING:
        return launch.train(*loaded, device, fresh, dry_run, cleaner(loaded[0]), started)


def cleaner(config: Config) -> CleanText:
    """Return the function that cleans the text of a training, if its config asks for that."""
    from mt.training.prepare import not_cleaned

    if config.data.clean is None:
        return not_cleaned
    with leaf_for("data.clean"):
        from mt.cleaning.clean import clean_training_text

        return clean_training_text


def load_for_training(
    name: StrPath, run_dir: StrPath | None, settings: Mapping[str, Any] | Sequence[str] | None
) -> tuple[Config, Path]:
    """Load a config that names training data; return it with the run directory.

    Raises Error. Of several processes of a training, only one reports what is wrong.
    """
    from mt.config.load import as_settings, load_config, require_training_data

    try:
        loaded = load_config(str(_path("--config", name)), as_settings(settings))
        require_training_data(loaded.config)
        return loaded.config, loaded.run_dir if run_dir is None else _path("--run-dir", run_dir)
    except ConfigError as error:
        if "LOCAL_RANK" not in os.environ:
            raise
        from mt.runtime.distributed import report_once

        report_once(error)


def evaluate(
    outputs: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]],
    sources: Sequence[str] | None = None, metrics: Sequence[str] = ("bleu", "chrf"),
    language: str = "", *, tokenize: str = "auto", comet_model: StrPath | None = None,
) -> dict[str, Score]:  # fmt: skip
    """Score translations; returns a score by the name of its metric, with value and signature.

    `references`: a text for each output, or several such lists; lines without one do not count.
    `language`: of the outputs, decides BLEU's tokenizer unless `tokenize` names one. `sources`,
    `comet_model`: for `comet`. Raises Error for an unknown metric and for counts that differ.
    """
    from mt.evaluation.bleu_tokenizer import choose_tokenizer
    from mt.evaluation.comet import Comet
    from mt.evaluation.metrics import METRICS, check_counts, check_lines, check_metrics
    from mt.evaluation.systems import EvaluationSet, Settings, evaluate_systems
    from mt.terminal import say

    metrics = [*_texts("metrics", metrics)]
    check_metrics(metrics)
    [language] = _texts("language", [language or ""])
    if not (given := [*_items("references", references)]):
        raise DataError("references: must be a list of texts, or several such lists")
    lists = [given] if isinstance(given[0], str | None) else given
    refs = [[*_texts("references", texts)] for texts in lists]
    hyps = [*_texts("outputs", outputs)]
    srcs = None if sources is None else [*_texts("sources", sources)]
    check_counts({"outputs": hyps} | ({} if srcs is None else {"sources": srcs}))
    needs_model = any(METRICS[name].needs_model for name in metrics)
    comet = Comet(comet_model or None, "comet_model") if needs_model else None
    tokenizer = choose_tokenizer(language, tokenize, say, "tokenize")
    settings = Settings(metrics, tokenizer, comet=comet, tgt_lang=language)
    check_lines(hyps, refs)
    test_set = EvaluationSet("", refs, srcs, hyps={"": hyps}).with_references("references")
    [scores] = evaluate_systems(test_set, test_set.hyps, settings).systems.values()
    return {score.metric: score.score for score in scores}


# --- tokenizers and models of other programs --------------------------------------------------


class Tokenizer:
    """The vocabulary of a model: one of both languages, or one of each."""

    def __init__(self, sides: tokenizer.Tokenizer) -> None:
        self._sides = sides

    @classmethod
    def load(cls, path: StrPath) -> Tokenizer:
        """Open a SentencePiece `.model` file, or the tokenizer of a run directory or model."""
        from mt.runs.model_folder import open_tokenizer

        return cls(open_tokenizer(_path("path", path), "path"))

    def _side(self, side: Literal["src", "tgt"]) -> tokenizer.Side:
        if side not in ("src", "tgt"):
            raise ConfigError(f"side: must be src or tgt, found {side!r}")
        return self._sides.src if side == "src" else self._sides.tgt

    def encode(self, lines: Iterable[str], side: Literal["src", "tgt"] = "src") -> list[list[int]]:
        """Return the token ids of each line, without bos and eos."""
        return self._side(side).encode([*_texts("lines", lines)])

    def decode(
        self, ids: Iterable[Sequence[int]], side: Literal["src", "tgt"] = "tgt"
    ) -> list[str]:
        """Return the text of each list of ids."""
        rows = [[*_items("ids", row)] for row in _items("ids", ids)]
        known = range(self.size(side))  # a text or 1.5 is in none
        if wrong := [number for row in rows for number in row if number not in known]:
            raise DataError(f"ids: must be from 0 to {known[-1]:,}, found {wrong[0]!r}")
        return self._side(side).decode(rows)

    def pieces(self, line: str, side: Literal["src", "tgt"] = "src") -> list[str]:
        [text] = _texts("line", [line])
        return self._side(side).pieces(text)

    def size(self, side: Literal["src", "tgt"] = "src") -> int:
        return self._side(side).size


OUTPUT = "Output"
Quantization = Annotated[Literal["fp32", "fp16", "bf16", "int8"] | None, Setting(
    "precision of the weights: fp32, fp16, bf16 or int8 (default: fp32; of argos int8)",
    OUTPUT, "NAME",
)]  # fmt: skip
Shortlist = Annotated[bool, Setting(
    "also write vmap.txt: likely target pieces of each source piece, learned from the run's "
    "training data, for mt translate --shortlist", OUTPUT,
)]  # fmt: skip
FromCode = Annotated[str | None, Setting(
    "language to translate from, such as de (default: data.src_lang)", OUTPUT, "CODE"
)]  # fmt: skip
ToCode = Annotated[str | None, Setting(
    "language to translate to (default: data.tgt_lang)", OUTPUT, "CODE"
)]  # fmt: skip
PackageVersion = Annotated[str | None, Setting(
    "version of the package, a higher one replaces a lower one (default: 1.0)", OUTPUT, "N.N"
)]  # fmt: skip


@dataclass(frozen=True)
class ExportOptions:
    """The parameters of `export`."""

    model: StrPath
    folder: StrPath
    to: Literal["ctranslate2", "argos", "huggingface"]
    _: KW_ONLY
    quantization: Quantization = None
    shortlist: Shortlist = False
    language: Annotated[str | None, Setting("ctranslate2: as mt export ctranslate2 --to")] = None
    from_code: FromCode = None
    to_code: ToCode = None
    package_version: PackageVersion = None
    license_name: Annotated[str | None, Setting("huggingface: licence for the card")] = None

    def __post_init__(self) -> None:
        check(self)


# By program: the module of `mt.interop` that exports for it.
EXPORTS = {"ctranslate2": "ctranslate2", "argos": "argos", "huggingface": "huggingface_export"}


@called_with(ExportOptions, "mt export")
def export(options: ExportOptions) -> None:
    """Convert a model for another program, as `mt export` does; `folder` must be new.

    Raises Error for an option that the exporter does not take, and if the other program would give
    other probabilities. Options:
    """
    from mt.model.checkpoint import load_model

    to = str(options.to)
    if to not in EXPORTS:
        raise ConfigError(f"export: `to` must be one of {', '.join(EXPORTS)}, found {to!r}")
    given = {name: value for name in declared(ExportOptions) if (value := getattr(options, name))}
    folder = _path("folder", options.folder)
    loaded = load_model(_path("model", options.model))
    with leaf_for(f"export to {to}"):
        exporter = import_module(f"mt.interop.{EXPORTS[to]}")
        _, _, *known = inspect.signature(exporter.export).parameters
        if unknown := ", ".join(given.keys() - {*known}):
            raise ConfigError(f"export to {to}: takes {', '.join(known)}, found {unknown}")
        exporter.export(loaded, folder, **given)
