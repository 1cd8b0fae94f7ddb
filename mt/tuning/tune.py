"""Choose decoding settings on a validation set: each is taken only if nothing is lost.

First the length penalty is raised or lowered as long as BLEU rises and chrF is not significantly
worse. What that gives is the reference that all faster settings are compared with, so that small
losses do not add up: int8, then a lexical shortlist, then the smallest beam that will do. A
faster setting is taken unless it is significantly worse by the paired bootstrap, in BLEU or chrF,
or loses more than `max_loss` BLEU: of few lines, a large loss may be chance as well.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from mt import __version__
from mt.config.plan import plan_data
from mt.config.schema import DecodeConfig
from mt.errors import CheckpointError, DataError
from mt.evaluation.metrics import METRICS
from mt.evaluation.significance import RESAMPLES
from mt.evaluation.systems import EvaluationSet, Settings, evaluate_systems
from mt.files import sha256_of, write_whole
from mt.runs.model_folder import (
    SHORTLIST,
    TUNED,
    WEIGHTS,
    ModelFolder,
    find_model,
    read_meta,
    write_meta,
)
from mt.search.options import NO_SHORTLIST, EngineOptions, SearchOptions
from mt.terminal import say
from mt.translate.assemble import make_translator
from mt.translate.load import load_engine, reasons_for_torch
from mt.translate.load_ctranslate2 import read_shortlist, why_not_in_precision
from mt.translate.shortlist import store_of, write_shortlist

# The length penalty is raised, and lowered, by so much as long as BLEU rises, up to the highest.
STEPS = (0.2, -0.2)
HIGHEST_PENALTY = 2.0
# BLEU that a faster setting may lose. Two trainings with other seeds differ as much.
MAX_LOSS = 0.3
SCORES = ("bleu", "chrf")
# With fewer lines than this, only large losses show.
FEW_LINES = 200
# Lines that are translated before the clock starts: the first ones of a process take longer.
WARM_UP = 16


@dataclass(frozen=True)
class Setting:
    """The settings of a search that are tried together."""

    beam_size: int
    length_penalty: float
    precision: str = "auto"
    shortlist: Path | None = None

    def __str__(self) -> str:
        """`beam 5, length penalty 1, int8, shortlist`"""
        parts = [f"beam {self.beam_size}", f"length penalty {self.length_penalty:g}"]
        parts += [] if self.precision == "auto" else [self.precision]
        return ", ".join(parts + ["shortlist"] * (self.shortlist is not None))


@dataclass(frozen=True)
class TimedOutputs:
    """The outputs of a setting for all lines, and what they took."""

    texts: Sequence[str]
    seconds: float
    engine: str = ""


@dataclass(frozen=True)
class Trial:
    """A setting with its scores, and their p-values against the reference."""

    setting: Setting
    outputs: TimedOutputs
    scores: Mapping[str, float]  # by metric
    p_values: Mapping[str, float]  # none of the first trial
    verdict: str = ""  # empty if the setting loses nothing

    @property
    def lines_per_second(self) -> float:
        """Speed of the search, the text's encoding and decoding included."""
        return len(self.outputs.texts) / max(self.outputs.seconds, 1e-9)

    def row(self) -> dict[str, Any]:
        """Return what `--json` shows of it."""
        return {
            **asdict(self.setting),
            "shortlist": self.setting.shortlist is not None,
            **self.scores,
            "lines_per_second": round(self.lines_per_second, 1),
            "p": dict(self.p_values),
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class Tuner:
    """Tries settings one after another."""

    data: EvaluationSet
    scoring: Settings
    decode: Callable[[Setting], TimedOutputs]  # translates the sources of `data`
    max_loss: float = MAX_LOSS
    report: Callable[[Trial], None] = lambda _: None  # called with each trial
    trials: list[Trial] = field(default_factory=list)

    def choose(self, start: Setting, faster: Iterator[Mapping[str, Any]]) -> Trial:
        """Return the chosen trial. `start`: the model's; `faster`: changes, in turn."""
        reference = self.best_length_penalty(start)
        chosen = reference
        for change in faster:
            trial = self.try_out(replace(chosen.setting, **change), reference)
            if not trial.verdict and trial.lines_per_second > chosen.lines_per_second:
                chosen = trial
        for beam_size in range(1, start.beam_size):
            setting = replace(chosen.setting, beam_size=beam_size)
            trial = self.try_out(setting, reference)
            if not trial.verdict and trial.lines_per_second > chosen.lines_per_second:
                return trial
        return chosen

    def best_length_penalty(self, start: Setting) -> Trial:
        """Return the trial from which no step raises BLEU."""
        first = best = self.try_out(start, None)
        # Greedy search has one hypothesis, whose score is compared with no other.
        for step in STEPS if start.beam_size > 1 else ():
            penalty = round(start.length_penalty + step, 2)
            while 0 <= penalty <= max(HIGHEST_PENALTY, start.length_penalty):
                trial = self.try_out(replace(start, length_penalty=penalty), first)
                if trial.verdict or trial.scores["bleu"] <= best.scores["bleu"]:
                    break
                best = trial
                penalty = round(penalty + step, 2)
            if best is not first:
                break
        return best

    def try_out(self, setting: Setting, reference: Trial | None) -> Trial:
        """Decode with a setting, and compare its outputs with those of the reference."""
        outputs = self.decode(setting)
        systems = {} if reference is None else {"reference": reference.outputs.texts}
        scored = evaluate_systems(self.data, {**systems, "": outputs.texts}, self.scoring)
        scores = {row.metric: row.score.value for row in scored.systems[""]}
        tests = {row.metric: row.comparisons["bs"] for row in scored.systems[""] if systems}
        # sacreBLEU gives equal systems the smallest p-value.
        p_values = {
            metric: test.p_value if test.difference else 1.0 for metric, test in tests.items()
        }
        verdict = ""
        for metric, test in tests.items():
            if test.significant and not test.better:
                verdict = verdict or f"worse in {METRICS[metric].title} (p = {test.p_value:.2g})"
        if reference is not None and (lost := reference.scores["bleu"] - scores["bleu"]) > (
            self.max_loss
        ):
            verdict = verdict or f"loses {lost:.2f} BLEU"
        trial = Trial(setting, outputs, scores, p_values, verdict)
        self.trials.append(trial)
        self.report(trial)
        return trial


def tune(
    described: ModelFolder,
    data: EvaluationSet,
    scoring: Settings,
    engine: EngineOptions,
    max_loss: float,
) -> tuple[list[Trial], Trial]:
    """Try settings on a validation set; write the chosen ones into the model folder.

    `engine.shortlist`: the shortlist to try; without it, one is learned from the token store of the
    run. Returns all trials, and the chosen one. Raises MtError for what the user must correct.
    """
    require_writable(described.folder)
    if engine.shortlist_file is not None:
        read_shortlist(engine.shortlist_file, described.tokenizer)
    if (n_lines := len(data.refs[0])) < FEW_LINES:
        say(
            f"note: {n_lines:,} lines show large losses only; from {FEW_LINES} lines on it is safer"
        )
    usual = DecodeConfig(**described.meta["config"].get("decode", {}))
    reasons = reasons_for_torch(SearchOptions(), engine)
    to = data.direction.to

    def decode(setting: Setting) -> TimedOutputs:
        search = SearchOptions(
            beam_size=setting.beam_size,
            length_penalty=setting.length_penalty,
            with_scores=False,
            to=to,
        )
        shortlist = setting.shortlist or NO_SHORTLIST
        options = replace(engine, precision=setting.precision, shortlist=shortlist)
        with load_engine(search, options) as loaded:
            translator = make_translator(loaded, to, data.direction.source)
            sources = data.sources or []
            list(translator.translate(sources[:WARM_UP]))
            before = translator.tally.seconds
            texts = [translation.texts[0] for translation in translator.translate(sources)]
            seconds = translator.tally.seconds - before
            return TimedOutputs(texts, seconds, translator.settings["--engine"])

    def report(trial: Trial) -> None:
        bleu, speed = trial.scores["bleu"], trial.lines_per_second
        say(f"{trial.setting}: BLEU {bleu:.2f}, {speed:,.0f} lines/s")

    tuner = Tuner(data, scoring, decode, max_loss, report)
    with tempfile.TemporaryDirectory() as folder:

        def faster() -> Iterator[Mapping[str, Any]]:
            if tuner.trials[0].outputs.engine == "ctranslate2":
                yield from faster_on_cpu(described, engine.shortlist, Path(folder))
            else:
                say(f"int8 and a shortlist are for CTranslate2: not tried ({'; '.join(reasons)})")

        first = Setting(usual.beam_size, usual.length_penalty, "auto" if reasons else "fp32")
        chosen = tuner.choose(first, faster())
        shortlist = chosen.setting.shortlist
        values = record(tuner.trials[0], chosen, max_loss)
        if to and len(described.tokenizer.languages_of(plan_data(described.config.data))) > 1:
            values["to"] = to
            say(
                f"warning: tried on text into {to} only, but used for every language; "
                "mt evaluate --to CODE shows what another one loses, mt tune --reset removes them"
            )
        content = None if shortlist is None else shortlist.read_bytes()
        write_tuned(described.folder, described.weights_hash, values, content)
    return tuner.trials, chosen


def faster_on_cpu(
    described: ModelFolder, shortlist: Path | None, folder: Path
) -> Iterator[Mapping[str, Any]]:
    """Yield the changes of a setting that make CTranslate2 faster, but for the beam.

    Without a `shortlist`, one is learned and written into `folder`.
    """
    if why := why_not_in_precision("int8"):
        say(f"int8 is not tried: {'; '.join(why)}")
    else:
        yield {"precision": "int8"}
    if shortlist == NO_SHORTLIST:
        return
    if shortlist is None:
        try:
            store = store_of(described.folder)
        except DataError:
            say(
                f"no shortlist is tried: {described.folder} is not in a run with its token store; "
                "give --shortlist FILE, which mt export ctranslate2 --shortlist writes there"
            )
            return
        shortlist = folder / SHORTLIST
        write_shortlist(store, described.tokenizer, shortlist)
    yield {"shortlist": shortlist}


def record(before: Trial, chosen: Trial, max_loss: float) -> dict[str, Any]:
    """Return what `meta.json` keeps: the chosen settings, and what they were chosen on."""
    setting = chosen.setting
    return {
        "beam_size": setting.beam_size,
        "length_penalty": float(setting.length_penalty),
        "precision": "fp32" if setting.precision == "auto" else setting.precision,
        "shortlist": setting.shortlist is not None,
        "lines": len(chosen.outputs.texts),
        "max_loss": max_loss,
        "before": before.row(),
        "after": chosen.row(),
        "mt": __version__,
    }


def format_trials(trials: Sequence[Trial], chosen: Trial) -> str:
    """Format all trials as a table, and the chosen one in a line below it."""
    width = max(len(str(trial.setting)) for trial in trials)
    lines = [f"{'setting':{width}}   BLEU   chrF  lines/s  p (BLEU)  p (chrF)"]
    for trial in trials:
        scores = "  ".join(f"{trial.scores[metric]:5.2f}" for metric in SCORES)
        shown = (f"{trial.p_values[metric]:8.3f}" for metric in SCORES if trial.p_values)
        p_values = "  ".join(shown) or f"{'':8}  {'':8}"
        verdict = "chosen" if trial is chosen else trial.verdict
        line = f"{trial.setting!s:{width}}  {scores}  {trial.lines_per_second:7,.0f}  {p_values}"
        lines.append(f"{line}  {verdict}".rstrip())
    before = trials[0]
    gain = chosen.scores["bleu"] - before.scores["bleu"]
    times = chosen.lines_per_second / max(before.lines_per_second, 1e-9)
    lines.append(
        f"chosen: {chosen.setting}: {times:.2f} times as fast as the model's own settings, "
        f"{gain:+.2f} BLEU"
    )
    return "\n".join(lines)


def scoring_settings(tokenize: str, tgt_lang: str) -> Settings:
    """Return the settings by which trials are scored: BLEU and chrF, with the paired bootstrap."""
    return Settings(SCORES, tokenize, n_samples={"bs": RESAMPLES}, tgt_lang=tgt_lang)


# --- the choice in the model folder ----------------------------------------------------------


def require_writable(folder: Path) -> None:
    """Raise CheckpointError where decoding defaults cannot be written."""
    if not os.access(folder, os.W_OK):
        raise _cannot_be_written(folder, "no permission")


def forget_tuned(model: Path) -> Path:
    """Remove decoding defaults from a model; returns its folder."""
    folder = find_model(model)
    write_tuned(folder, read_meta(folder, [])["sha256"].get(WEIGHTS), None, None)
    return folder


def write_tuned(
    folder: Path, weights_hash: str, tuned: Mapping[str, Any] | None, shortlist: bytes | None
) -> None:
    """Write decoding defaults and their shortlist into a model folder; None removes them.

    Killed at any moment, it leaves the folder without defaults or with whole ones: `meta.json`
    names a shortlist only while that is there. Raises CheckpointError.
    """
    try:
        meta = read_meta(folder, [])
        if meta["sha256"].get(WEIGHTS) != weights_hash:
            raise CheckpointError(f"{folder}: was replaced meanwhile; run the command again")
        if meta.pop(TUNED, None) is not None:
            had_shortlist = meta["sha256"].pop(SHORTLIST, None) is not None
            write_meta(folder, meta)
            if had_shortlist:  # another file of this name is the user's
                (folder / SHORTLIST).unlink(missing_ok=True)
        if shortlist is not None:
            write_whole(folder / SHORTLIST, shortlist)
            meta["sha256"][SHORTLIST] = sha256_of(folder / SHORTLIST)
        if tuned is not None:
            write_meta(folder, meta | {TUNED: dict(tuned)})
    except OSError as error:
        raise _cannot_be_written(folder, str(error.strerror)) from error


def _cannot_be_written(folder: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{folder}: decoding defaults cannot be written there ({reason}); make it writable, or "
        "copy the model to a place of yours"
    )
