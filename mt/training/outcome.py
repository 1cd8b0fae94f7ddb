"""Which validation is the better one, whether they stand still, and how a training ends."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from mt.config.schema import Config
from mt.evaluation.metrics import METRICS, Score
from mt.runs.model_folder import Scored, sort_key, step_name
from mt.runs.records import number
from mt.runtime.machine import received
from mt.training.checkpoints import TrainState
from mt.training.runlog import perplexity
from mt.translate.lines import Translation

# Below this BLEU, output is mostly chance matches of frequent words, and the nll tells more.
LEAST_BLEU = 1.0
# Validation stands still if the last part of the updates, with as many validations, gains at most
# so many points, less than seeds differ by, while the training nll falls by this share. Of the nll,
# 0.015 are 1.5 % in perplexity. With 2,048 tokens multi30k.yaml stood still from 3,000 of 5,000 on.
STILL_PART = 0.3
STILL_VALIDATIONS = 4
STILL_POINTS, STILL_NLL = 0.3, 0.015
FALLEN = 0.05


@dataclass(frozen=True)
class ValidationResult:
    """The scores of a model on the validation set."""

    nll: float  # nats per target token, without smoothing or dropout
    scores: Mapping[str, Score]  # BLEU, and `train.metric` if it is another one
    outputs: list[str]
    # Of the outputs, with scores, whose last bit depends on the batch.
    translations: list[Translation] = field(default_factory=list)
    # BLEU of the lines of each direction, such as de-en, where `data.valid` has several
    by_direction: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        """`nll 1.852 | ppl 6.37 | BLEU 26.91 (cs-de 20.14, de-en 31.50)`."""
        scores = [f"{score.name} {score.value:.2f}" for score in self.scores.values()]
        if each := ", ".join(f"{name} {bleu:.2f}" for name, bleu in self.by_direction.items()):
            scores[0] += f" ({each})"
        ppl = perplexity(self.nll)  # of a run that diverges, a million or more
        shown = f"ppl {ppl:.2f}" if ppl < 1e6 else f"ppl {ppl:.2e}"
        return " | ".join([f"nll {self.nll:.3f}", shown, *scores])

    def figures(self) -> dict[str, Any]:
        """Its keys in `metrics.jsonl`."""
        values = {name: score.value for name, score in self.scores.items()}
        each = {"bleu_by_direction": dict(self.by_direction)} if self.by_direction else {}
        loss = {"nll": self.nll, "perplexity": perplexity(self.nll)}
        about = {"signature": self.scores["bleu"].signature, "lines": len(self.outputs)}
        return {**loss, **values, **each, **about}


# --- how validations are scored and described by `train.metric`: nll, or one of METRICS ----------


def sign_of(metric: str) -> float:
    return -1.0 if metric == "nll" or METRICS[metric].lower_is_better else 1.0


def scored_by(metric: str, figures: Mapping[str, Any]) -> Scored:
    """The metric's value, negated for errors, worst if NaN; decides if nll or of enough BLEU."""
    value, nll, bleu = (number(figures, name) for name in (metric, "nll", "bleu"))
    score = -math.inf if math.isnan(value) else sign_of(metric) * value
    return score, math.inf if math.isnan(nll) else nll, metric == "nll" or bleu >= LEAST_BLEU


def describe_score(metric: str, score: float) -> str:
    """`BLEU 31.20` or `nll 1.234`, for messages."""
    value = sign_of(metric) * score
    return f"nll {value:.3f}" if metric == "nll" else f"{METRICS[metric].title} {value:.2f}"


def verdict(metric: str, scored: Scored, best: Scored | None) -> str:
    """`new best: BLEU 31.20 against BLEU 30.90`: a validation, and the best one before it."""
    if best is None:
        return "new best"
    text = "new best" if sort_key(scored) > sort_key(best) else "no new best"
    (score, nll, decides), (best_score, best_nll, best_decides) = scored, best
    if score == best_score or not (decides or best_decides):
        return f"{text} by nll, {nll:.3f} against {best_nll:.3f}"
    return f"{text}: {describe_score(metric, score)} against {describe_score(metric, best_score)}"


def standstill_note(lines: Iterable[Mapping[str, Any] | None], config: Config) -> str:
    """Say whether validation stood still while the training nll fell; `lines` of metrics.jsonl."""
    metric, sign = config.train.metric, sign_of(config.train.metric)
    scores: dict[int, float] = {}
    losses: dict[int, float] = {}
    name = None  # of the validation set
    for line in filter(None, lines):
        if line["kind"] == "train":
            losses[line["step"]] = number(line, "nll")
        elif line["kind"] == "valid":
            if line.get("name") != name:  # another set, whose scores do not compare
                name, scores = line.get("name"), {}
            scores[line["step"]] = sign * number(line, metric)
    last = max(losses, default=0)
    start = max((step for step in losses if step <= (1 - STILL_PART) * last), default=last)
    before = max((score for step, score in scores.items() if step <= start), default=-math.inf)
    later = [score for step, score in scores.items() if step > start]
    still = STILL_NLL if metric == "nll" else STILL_POINTS
    has_learned = metric != "bleu" or before >= LEAST_BLEU
    is_still = len(later) >= STILL_VALIDATIONS and max(later) <= before + still and has_learned
    then, now = losses.get(start, math.nan), losses.get(last, math.nan)
    if not (is_still and now < (1 - FALLEN) * then):
        return ""
    return (
        f"note: validation has not improved since update {start:,} of {last:,} by more than "
        f"{describe_score(metric, sign * still)}, while the training nll fell from {then:.2f} "
        f"to {now:.2f}: try more dropout or fewer updates"
    )


def rise_note(lines: Iterable[Mapping[str, Any] | None], vocab_size: int) -> str:
    """Say whether training ended with a higher nll than at its beginning, or than a guess has."""
    nll = [number(line, "nll") for line in lines if line and line["kind"] == "train"]
    if not nll or not nll[-1] > (1 + FALLEN) * min(math.log(vocab_size), nll[0]):
        return ""
    first, of = min((math.log(vocab_size), "a guess"), (nll[0], "its beginning"))
    return (
        f"note: training ended with an nll of {nll[-1]:.2f}, worse than the {first:.2f} of "
        f"{of}: lower optim.peak_lr, or raise optim.warmup_steps"
    )


@dataclass(frozen=True)
class Outcome:
    """How a training ended."""

    reason: str
    exit_code: int
    best: Path | None


def finished(
    config: Config, state: TrainState, best: Path | None, is_out_of_patience: bool
) -> Outcome:
    """The outcome after the last update, or where patience has run out."""
    max_steps = config.train.max_steps
    if is_out_of_patience:
        tried = state.bad_validations
        reason = f"no better validation in the last {tried}, at update {state.step:,}"
    elif state.step > max_steps:
        reason = f"{state.step:,} updates were done already, and this config has {max_steps:,}"
    else:
        reason = f"all {max_steps:,} updates are done"
    if (n_stages := len(config.data.stages or [0])) > state.stage + 1:
        reason += f", in data.stages[{state.stage}], {n_stages - state.stage - 1} before the last"
    if best is not None and state.best is not None and config.data.valid:
        score = describe_score(config.train.metric, state.best[0])
        reason += f"; best model ({score} on the validation set): {best}"
        if state.best_name == step_name(0):
            reason += ", which is the model that training started from: nothing was better"
    elif best is not None:
        reason += f"; model: {best}"
    return Outcome(reason, 0, best)


class StopRequestedError(Exception):
    """A signal arrived inside `Signals.interruptible`."""


class Signals:
    """Signals, which `signals_to(signals.record)` records instead of ending the process."""

    def __init__(self) -> None:
        self.number = received[-1] if received else 0  # of the last signal, 0 for none
        self._interruptible = False

    def record(self, number: int, _: FrameType | None) -> None:
        """Record a signal; Ctrl-C after another one ends the process after all."""
        if self.number and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = number
        if self._interruptible:
            self._interruptible = False
            raise StopRequestedError

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Inside, a signal raises StopRequestedError: for long work that can be done again."""
        try:
            self._interruptible = True
            if self.number:
                raise StopRequestedError
            yield
        finally:
            self._interruptible = False
