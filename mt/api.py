"""The Python API, which `mt` re-exports: train, translate, score and judge from a program.

The commands call the same functions. Errors are exceptions (`Error`); messages go to the logger
`mt` (level INFO), so nothing is printed unless the program sets up logging. Covered by the
compatibility promise in CHANGELOG.md; other modules are not.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

from typing_extensions import Unpack

from mt.errors import ConfigError, DataError, leaf_for
from mt.errors import MtError as Error
from mt.removed import why_option_left
from mt.search.options import EngineOptions, PrecisionName, Sampling, SearchOptions
from mt.settings import declared, with_keywords

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

    def __enter__(self) -> Translator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._loaded.__exit__()

    def __del__(self) -> None:
        with suppress(Exception):  # also where loading failed
            self.close()

    def translate(self, lines: Iterable[str], n_best: int | None = None) -> Iterator[Translated]:
        """Yield the translations of each line, in order; lines are read a window at a time.

        `n_best`: hypotheses of each line, at most the beam size; None: as given to `load`, or one.
        Raises Error for a line that is no text.
        """
        from mt.translate.translator import make_translator

        if n_best is not None and n_best < 1:
            raise ConfigError(f"n_best: must be at least 1, found {n_best}")
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


@with_keywords(SearchOptions, EngineOptions)
def load(model: StrPath | Sequence[StrPath], **options: Any) -> Translator:
    """Load a run directory, checkpoint, averaged or imported model; several make an ensemble.

    `options`: those of `mt translate`, by their names.
    Raises Error for a folder that is no model, and for options that do not go together.
    """
    models = [model] if isinstance(model, str | Path) else [*model]
    if not models:
        raise ConfigError("load: no model; name a run directory, checkpoint or model folder")
    known = [*declared(SearchOptions), *declared(EngineOptions)]
    if unknown := options.keys() - {*known}:
        for name in sorted(unknown):
            if reason := why_option_left("mt translate", name.replace("_", "-")):
                raise ConfigError(f"load: {name} was removed in {reason}")
        raise ConfigError(
            f"load: has no option {', '.join(sorted(unknown))}; known are {', '.join(known)}"
        )
    given = {name: value for name, value in options.items() if value is not None}
    if isinstance(given.get("shortlist"), str):
        given["shortlist"] = Path(given["shortlist"])
    engine = {name: given.pop(name) for name in declared(EngineOptions) if name in given}
    engine["models"] = [*map(Path, models)]
    return Translator(SearchOptions(**given), EngineOptions(**engine))


def _texts(name: str, values: Iterable[str]) -> Iterator[str]:
    """Texts one by one; DataError for one alone, what is none, and a lone surrogate (no UTF-8)."""
    if isinstance(values, str):
        raise DataError(f"{name}: must be a list of texts, found one text; write [{name}]")

    def checked() -> Iterator[str]:
        for number, value in enumerate(values, start=1):
            if not isinstance(value, str):
                raise DataError(f"{name}, line {number:,}: must be text, found {value!r}")
            if any("\ud800" <= char <= "\udfff" for char in value):
                raise DataError(f"{name}, line {number:,}: has half a character, found {value!r}")
            yield value

    return checked()


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
        loaded = load_config(str(name), as_settings(settings))
        require_training_data(loaded.config)
        return loaded.config, Path(run_dir or loaded.run_dir)
    except ConfigError as error:
        if "LOCAL_RANK" not in os.environ:
            raise
        from mt.runtime.distributed import report_once

        report_once(error)


def evaluate(
    outputs: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    sources: Sequence[str] | None = None,
    metrics: Sequence[str] = ("bleu", "chrf"),
    language: str = "",
    *,
    tokenize: str = "auto",
    comet_model: StrPath | None = None,
) -> dict[str, Score]:
    """Score translations; returns a score by the name of its metric, with value and signature.

    `references`: a text for each output, or several such lists. `language`: of the outputs, which
    decides BLEU's tokenizer, unless `tokenize` names one. `sources`, `comet_model`: for `comet`.
    Raises Error for an unknown metric and for counts that differ.
    """
    from mt.evaluation.bleu_tokenizer import choose_tokenizer
    from mt.evaluation.comet import Comet
    from mt.evaluation.metrics import METRICS, check_counts, check_metrics
    from mt.evaluation.systems import EvaluationSet, Settings, evaluate_systems
    from mt.terminal import say

    if isinstance(metrics, str):
        raise DataError(f"metrics: must be a list of names, found {metrics!r}; write [{metrics!r}]")
    check_metrics(metrics)
    given: list[Any] = [] if isinstance(references, str) else list(references)
    if not given:
        raise DataError("references: must be a list of texts, or several such lists")
    lists = [given] if isinstance(given[0], str | None) else given
    refs = [[*_texts("references", texts)] for texts in lists]
    hyps = [*_texts("outputs", outputs)]
    srcs = None if sources is None else [*_texts("sources", sources)]
    check_counts({"outputs": hyps} | ({} if srcs is None else {"sources": srcs}))
    needs_model = any(METRICS[name].needs_model for name in metrics)
    comet = Comet(comet_model or None, "comet_model") if needs_model else None
    tokenizer = choose_tokenizer(language or "", tokenize, say, "tokenize")
    settings = Settings(metrics, tokenizer, comet=comet, tgt_lang=language or "")
    test_set = EvaluationSet("", refs, srcs)
    [scores] = evaluate_systems(test_set, {"": hyps}, settings).systems.values()
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

        return cls(open_tokenizer(Path(path), "path"))

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
        rows = [list(row) for row in ids]
        size = self.size(side)
        if wrong := [number for row in rows for number in row if not 0 <= number < size]:
            raise DataError(f"ids: must be from 0 to {size - 1:,}, found {wrong[0]}")
        return self._side(side).decode(rows)

    def pieces(self, line: str, side: Literal["src", "tgt"] = "src") -> list[str]:
        return self._side(side).pieces(line)

    def size(self, side: Literal["src", "tgt"] = "src") -> int:
        return self._side(side).size


class ExportOptions(TypedDict, total=False):
    """Options of the exporters; `EXPORTS` says which takes which."""

    quantization: Literal["fp32", "fp16", "bf16", "int8"] | None
    shortlist: bool  # also write the likely target pieces of each source piece
    language: str | None  # the one to translate into, of a model that knows several
    from_code: str | None  # languages and version that a package states
    to_code: str | None
    package_version: str
    license_name: str | None  # on the model card


# By program: the module of `mt.interop` that exports for it, and the options that it takes.
EXPORTS = {
    "ctranslate2": ("ctranslate2", ("quantization", "shortlist", "language")),
    "argos": ("argos", ("quantization", "from_code", "to_code", "package_version")),
    "huggingface": ("huggingface_export", ("license_name",)),
}


def export(
    model: StrPath,
    folder: StrPath,
    to: Literal["ctranslate2", "argos", "huggingface"],
    **options: Unpack[ExportOptions],
) -> None:
    """Convert a model for another program, as `mt export` does; `folder` must be new.

    Raises Error for an option that the exporter does not take, and if the other program would give
    other probabilities.
    """
    from mt.model.checkpoint import load_model

    if to not in EXPORTS:
        raise ConfigError(f"export: `to` must be one of {', '.join(EXPORTS)}, found {to!r}")
    module, known = EXPORTS[to]
    if unknown := options.keys() - {*known}:
        raise ConfigError(
            f"export to {to}: takes {', '.join(known)}, found {', '.join(sorted(unknown))}"
        )
    loaded = load_model(Path(model))
    with leaf_for(f"export to {to}"):
        exporter = import_module(f"mt.interop.{module}")
        exporter.export(loaded, Path(folder), **options)
