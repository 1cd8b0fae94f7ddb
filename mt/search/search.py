"""Greedy search, sampling, and beam search with length penalty and n-best lists, over any model.

The search holds the hypotheses; a `Stepper` holds the model. Each step passes the stepper the last
token of every hypothesis and the hypothesis that each one continues, and gets logits back.

Shapes: B sentences in the batch, N hypotheses of each, V tokens of the vocabulary, t tokens so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from mt.data.tokens.tokenizer import BOS, EOS
from mt.errors import NonFiniteError
from mt.search import candidates
from mt.search.candidates import Candidates, Constraint, FusedCandidates, Past, top_indices
from mt.search.engine_contract import FORBIDDEN, Hypotheses
from mt.search.options import Sampling

# Finished sentences leave the batch once the share of unfinished ones is below this. Dropping them
# copies every cache once; keeping them costs an idle row in every step. With 3/4, the copies of a
# whole search add up to less than four times the first cache, and at most a quarter of a step is
# wasted.
LIVE_SHARE = 0.75
# On an accelerator, reading which sentences are done waits for all the work queued so far.
STEPS_BETWEEN_CHECKS = 8


class Stepper(Protocol):
    """A batch in the middle of decoding: B sentences, N hypotheses each, and the model's caches."""

    def step(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Extend every hypothesis by one token and return logits for the token after it.

        `tokens` (B, N): last token of each hypothesis, bos in the first step. `parents` (B, N):
        the previous step's hypothesis of the sentence that each one continues, 0 in the first step.
        N is 1 in the first step, as all hypotheses begin alike, and the same number in all others.
        The search writes into the logits (B, N, V), log-probabilities up to a constant.
        """
        ...

    def keep(self, rows: Tensor) -> None:
        """Drop all sentences but these: `rows` (B',) are ascending indices into the batch."""
        ...


@dataclass
class State:
    """Sentences in the batch and their live hypotheses, best first. At first, N is 1."""

    rows: Tensor  # (B,) index of the sentence in the whole search
    limits: Tensor  # (B,) maximum number of tokens, eos not counted
    tokens: Tensor  # (B, N, 1 + t) bos, then the chosen tokens; after an eos only eos
    parents: Tensor  # (B, N) the previous step's hypothesis each one continues
    log_probs: Tensor  # (B, N) fp32, descending; -inf: an empty place
    done: Tensor  # (B,) bool: the result is final, whatever the other sentences still do

    @property
    def step(self) -> int:
        return self.tokens.shape[2] - 1

    def found(self) -> tuple[Tensor, Tensor]:
        return self.tokens, self.log_probs


@dataclass
class BeamState(State):
    """State of beam search, whose finished hypotheses are kept beside the live ones, by score."""

    kept_tokens: Tensor  # (B, N, 1 + t) the best finished hypotheses, padded with eos
    kept_log_probs: Tensor  # (B, N) fp32
    kept_scores: Tensor  # (B, N) fp32, descending; -inf: an empty place
    n_finished: Tensor  # (B,) number of hypotheses that have finished, kept or not

    def found(self) -> tuple[Tensor, Tensor]:
        return self.kept_tokens, self.kept_log_probs


AnyState = TypeVar("AnyState", bound=State)


def greedy_search(
    stepper: Stepper, limits: Tensor, *, length_penalty: float = 0.0,
    constraints: Sequence[Constraint] = (), fused: FusedCandidates | None = None,
) -> Hypotheses:  # fmt: skip
    """Take the most probable token at every step; one hypothesis for each sentence.

    `limits` (B,) int, at least 1, on the stepper's device: the maximum number of tokens, eos not
    counted. The length penalty only affects the score. `fused`: see `next_candidates`.
    """

    def advance(state: State, logits: Tensor, at_limit: bool) -> None:
        extend_path(state, next_candidates(logits, state, at_limit, constraints, 1, fused))

    return _search(stepper, start(limits), advance, length_penalty)


def sampling_search(
    stepper: Stepper, limits: Tensor, seeds: Sequence[int], sampling: Sampling, *,
    length_penalty: float = 0.0, constraints: Sequence[Constraint] = (),
) -> Hypotheses:  # fmt: skip
    """Sample token by token as `draw_tokens` does; one hypothesis for each sentence.

    A sentence's seed, of `seeds`, alone determines its draws, so its sample is the same in any
    batch, in fp32. Log-probabilities are those of the model, before temperature and cuts.
    """
    longest = int(limits.max()) + 1
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    rows = [torch.rand(longest, generator=each, dtype=torch.float64) for each in generators]
    uniform = torch.stack(rows).to(limits.device)  # (B, longest)

    def advance(state: State, logits: Tensor, at_limit: bool) -> None:
        logits, offsets = mask_logits(logits, state, at_limit, constraints)  # (B, 1, V), (B, 1)
        numbers = uniform[state.rows, state.step]  # (B,)
        tokens = candidates.draw_tokens(logits.squeeze(1), numbers, sampling).unsqueeze(1)
        log_probs = logits.squeeze(1).gather(1, tokens).float() + offsets  # (B, 1)
        extend_path(state, Candidates(log_probs, torch.zeros_like(tokens), tokens))

    return _search(stepper, start(limits), advance, length_penalty)


def beam_search(
    stepper: Stepper, limits: Tensor, *, beam_size: int, length_penalty: float, n_best: int = 1,
    constraints: Sequence[Constraint] = (), fused: FusedCandidates | None = None,
) -> Hypotheses:  # fmt: skip
    """Return the `n_best` finished hypotheses of highest score for each sentence, best first.

    `limits` as for `greedy_search`, `fused` as for `next_candidates`. Each step continues the
    `beam_size` most probable hypotheses. A hypothesis that ends is finished, and its place goes to
    the next best one that does not end. A sentence is done when `beam_size` hypotheses have
    finished, which may miss one that would have finished later with a higher score; or when no live
    one can end with a higher score than the `n_best`-th finished one. Ties go to the hypothesis
    that finished first, then by rank of the parent, then by token id. Fewer than `n_best` are
    returned if vocabulary and limit allow no more.
    """

    def advance(state: BeamState, logits: Tensor, at_limit: bool) -> None:
        # The best 2N continuations: at most N of them end, so N are left to continue.
        best = next_candidates(logits, state, at_limit, constraints, 2 * beam_size, fused)
        extend_beam(state, best, length_penalty)
        state.done |= state.n_finished >= beam_size
        # The log-probability of a live hypothesis can only fall, and is at most 0. So its score
        # would be highest at the longest that it may become, limit + 1 tokens with its eos (cf.
        # Huang, Zhao and Ma, 2017); `length_penalty` is at least 0.
        highest = state.log_probs[:, 0] / (state.limits + 1).float() ** length_penalty
        state.done |= highest <= state.kept_scores[:, n_best - 1]

    return _search(stepper, start_beams(limits, beam_size), advance, length_penalty, n_best)


@torch.inference_mode()
def _search(
    stepper: Stepper, state: AnyState, advance: Callable[[AnyState, Tensor, bool], None],
    length_penalty: float, n_best: int = 1,
) -> Hypotheses:  # fmt: skip
    """Extend the hypotheses step by step until all sentences are done; return the `n_best` of each.

    `advance` does it, given the state, logits (B, N, V) of the next token, and whether any sentence
    has reached its limit. Raises NonFiniteError if the logits of a sentence are non-finite.
    """
    # Of those that have left: rows (B,) in the whole search, tokens (B, n, 1 + t), scores (B, n).
    finished: list[tuple[Tensor, Tensor, Tensor]] = []
    last_step = int(state.limits.max())
    first_limit = int(state.limits.min())
    for step in range(last_step + 1):
        logits = stepper.step(state.tokens[..., -1], state.parents)  # (B, N, V)
        advance(state, logits, step >= first_limit)
        if not is_time_to_check(state.done.device.type, step, last_step):
            continue
        live = (~state.done).nonzero().squeeze(1)
        if len(live) == 0 or len(live) < LIVE_SHARE * len(state.done):
            leaving = select(state, state.done.nonzero().squeeze(1))
            tokens, log_probs = leaving.found()
            finished.append((leaving.rows, tokens[:, :n_best], log_probs[:, :n_best]))
            if len(live) == 0:
                break
            stepper.keep(live)
            state = select(state, live)
            first_limit = int(state.limits.min())
    return collect(finished, length_penalty)


def start(limits: Tensor) -> State:
    """Return the state before the first step: one live hypothesis, its bos."""
    rows = torch.arange(len(limits), device=limits.device)
    zeros = torch.zeros_like(rows)[:, None]  # (B, 1)
    bos = torch.full_like(rows, BOS)[:, None, None]  # (B, 1, 1)
    return State(rows, limits, bos, zeros, zeros.float(), torch.zeros_like(rows, dtype=torch.bool))


def start_beams(limits: Tensor, beam_size: int) -> BeamState:
    """Return the state of a beam search before its first step: no hypothesis has finished."""
    first = start(limits)
    empty = torch.full((len(limits), beam_size), -torch.inf, device=limits.device)
    return BeamState(
        **vars(first),
        kept_tokens=first.tokens.repeat(1, beam_size, 1),
        kept_log_probs=empty,
        kept_scores=empty,
        n_finished=torch.zeros_like(first.rows),
    )


def select(state: AnyState, rows: Tensor) -> AnyState:
    return type(state)(**{field.name: getattr(state, field.name)[rows] for field in fields(state)})


def next_candidates(
    logits: Tensor, state: State, at_limit: bool, constraints: Sequence[Constraint], count: int,
    fused: FusedCandidates | None,
) -> Candidates:  # fmt: skip
    """Return the `count` best allowed continuations of each sentence: logits (B, N, V).

    `at_limit`: see `mask_logits`. `fused` (see `fused_candidates`) does the same in one pass; it is
    used after the first step, which forbids eos, where there are no constraints.
    """
    if fused is not None and state.step > 0 and not constraints:
        return fused(logits, state.log_probs, state.limits <= state.step, count)
    logits, offsets = mask_logits(logits, state, at_limit, constraints)
    return candidates.best_candidates(logits, offsets, count)


def mask_logits(
    logits: Tensor, state: State, at_limit: bool, constraints: Sequence[Constraint]
) -> tuple[Tensor, Tensor]:
    """Mask forbidden tokens: return logits (B, N, V), -inf there, and offsets (B, N) fp32.

    Pad, bos and unk are forbidden, eos as the first token, and what the constraints forbid. With
    `at_limit`, sentences that have reached their limit can only end. Logit plus offset is the
    log-probability of the continued hypothesis under the model: the probability of forbidden tokens
    is not redistributed.
    """
    normaliser = candidates.log_normaliser(logits)
    if constraints:  # they need log-probabilities; without constraints this pass is saved
        logits = logits.float() - normaliser.unsqueeze(-1)
        normaliser = torch.zeros_like(normaliser)
    for special in FORBIDDEN:
        logits[..., special] = -torch.inf
    if state.step == 0:
        logits[..., EOS] = -torch.inf
    eos = logits[..., EOS].clone()  # (B, N)
    candidates.apply(constraints, logits, Past(state.rows, state.tokens[:, :, 1:]))
    if at_limit:
        full = (state.limits <= state.step)[:, None]  # (B, 1)
        logits.masked_fill_(full[..., None], -torch.inf)
        logits[..., EOS] = torch.where(full, eos, logits[..., EOS])
    return logits, state.log_probs - normaliser


def extend_path(state: State, best: Candidates) -> None:
    """Extend the only hypothesis of each sentence by its token; a finished one does not change."""
    finished = state.done.unsqueeze(1)  # (B, 1)
    tokens = best.tokens.masked_fill(finished, EOS)  # (B, 1)
    state.log_probs = torch.where(finished, state.log_probs, best.log_probs)
    state.tokens = torch.cat([state.tokens, tokens.unsqueeze(2)], dim=2)
    state.done = ((tokens == EOS) | ~(state.log_probs > -torch.inf)).squeeze(1)


def extend_beam(state: BeamState, best: Candidates, length_penalty: float) -> None:
    """Move the hypotheses that end to the kept ones, and continue the N best others.

    An end counts only among the best N candidates, as any other token must be among them to stay in
    the beam. So a beam of one is greedy search.
    """
    n_hyps = state.kept_scores.shape[1]
    past = torch.take_along_dim(state.tokens, best.parents.unsqueeze(-1), 1)  # (B, 2N, 1 + t)
    tokens = torch.cat([past, best.tokens.unsqueeze(-1)], dim=2)  # (B, 2N, 2 + t)
    eos = best.tokens == EOS  # (B, 2N)

    # A sentence that is done does not change: the result must not depend on the rest of the batch.
    ended = eos & (best.log_probs > -torch.inf) & ~state.done.unsqueeze(1)
    ended = ended[:, :n_hyps]
    log_probs = best.log_probs[:, :n_hyps].masked_fill(~ended, -torch.inf)
    # The kept and the new ones, 2N of each sentence.
    scores = torch.cat([state.kept_scores, log_probs / (state.step + 1) ** length_penalty], dim=1)
    order = top_indices(scores, n_hyps)  # (B, N)
    state.kept_scores = scores.gather(1, order)
    state.kept_log_probs = torch.cat([state.kept_log_probs, log_probs], dim=1).gather(1, order)
    kept_tokens = torch.cat([pad(state.kept_tokens, (0, 1), value=EOS), tokens[:, :n_hyps]], 1)
    state.kept_tokens = torch.take_along_dim(kept_tokens, order.unsqueeze(-1), 1)
    state.n_finished = state.n_finished + ended.sum(dim=1)

    # Candidates that do not end come first, in their order, then those that end; no keys are equal.
    keys = torch.arange(2 * n_hyps, device=eos.device) + 2 * n_hyps * eos  # (B, 2N)
    order = keys.sort(dim=1).indices[:, :n_hyps]  # (B, N)
    dead = eos | ~(best.log_probs > -torch.inf)  # NaN counts as dead
    state.log_probs = best.log_probs.masked_fill(dead, -torch.inf).gather(1, order)
    # An empty place repeats the best hypothesis, so that the stepper sees only real ones.
    order = torch.where(dead.gather(1, order), order[:, :1], order)
    state.parents = best.parents.gather(1, order)
    state.tokens = torch.take_along_dim(tokens, order.unsqueeze(-1), 1)


def is_time_to_check(device_type: str, step: int, last_step: int) -> bool:
    """Whether to read from the device which sentences are done; on a CPU that is free."""
    return device_type == "cpu" or step == last_step or (step + 1) % STEPS_BETWEEN_CHECKS == 0


def collect(finished: Sequence[tuple[Tensor, Tensor, Tensor]], length_penalty: float) -> Hypotheses:
    """Put the hypotheses of all sentences into their order, and those of each by score."""
    all_rows, all_tokens, all_log_probs = zip(*finished, strict=True)
    longest = max(part.shape[2] for part in all_tokens)
    padded = [pad(part, (0, longest - part.shape[2]), value=EOS) for part in all_tokens]
    order = torch.cat(all_rows).argsort()
    tokens = torch.cat(padded)[order, :, 1:].int().cpu().numpy()  # (B, n, T)
    log_probs = torch.cat(all_log_probs)[order].double().cpu().numpy()
    real = log_probs > -np.inf  # (B, n); an empty place is not
    if not real.any(1).all():
        raise NonFiniteError(
            f"decoding: sentence {real.any(1).argmin()} of the batch has no translation with a "
            "probability above 0; logits must be finite, the model gives NaN or infinities; "
            "decode with precision fp32, or use another checkpoint"
        )
    lengths = (tokens == EOS).argmax(2)  # (B, n)
    divisors = np.array([(length + 1) ** length_penalty for length in range(longest)])
    scores = np.where(real, log_probs, -np.inf) / divisors[lengths]
    best = np.argsort(-scores, axis=1, kind="stable")  # (B, n), empty places last
    real = np.take_along_axis(real, best, 1)
    places = (np.arange(len(best))[:, None], best)
    tokens, lengths, log_probs, scores = (
        values[places][real] for values in (tokens, lengths, log_probs, scores)
    )
    return Hypotheses(real.sum(1), tokens, lengths, log_probs, scores)
