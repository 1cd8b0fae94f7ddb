"""Search over any stepper: greedy, sampling, and beam with length penalty and n-best lists.

The search holds the hypotheses and the stepper holds the model. Three things pass between them: the
last token of every hypothesis, the hypothesis that each one continues, and logits.

Shapes: B sentences in the batch, N hypotheses of each, V tokens of the vocabulary, t tokens so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from mt.data.tokens.tokenizer import BOS, EOS, PAD, UNK
from mt.errors import ConfigError, NonFiniteError
from mt.search.candidates import (
    Candidates,
    best_candidates,
    draw_tokens,
    log_normaliser,
    top_indices,
)
from mt.search.constraints import Constraint, Past, apply
from mt.search.engine_contract import Hypothesis
from mt.search.fused_candidates import FusedCandidates

# Finished sentences leave the batch once the share of unfinished ones is below this. Leaving copies
# every cache once, staying costs an idle row in every step. With 3/4, the copies of a whole search
# add up to less than four times the first cache, and at most a quarter of a step is wasted.
LIVE_SHARE = 0.75
# On an accelerator, asking which sentences are done waits for all the work queued so far.
STEPS_BETWEEN_CHECKS = 8


class Stepper(Protocol):
    """A batch in the middle of decoding: B sentences, N hypotheses each, and the model's caches."""

    def step(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Extend every hypothesis by one token and return logits for the token after it.

        `tokens` (B, N): last token of each hypothesis, bos in the first step. `parents` (B, N):
        the previous step's hypothesis of the sentence that each one continues, 0 in the first step.
        N is 1 in the first step, as all hypotheses begin alike, and the same number in all others.
        Returns logits (B, N, V): log-probabilities up to a constant per hypothesis. The search
        writes into them.
        """
        ...

    def keep(self, rows: Tensor) -> None:
        """Drop all sentences but these: `rows` (B',) are ascending indices into the batch."""
        ...


@dataclass
class GreedyState:
    """State of greedy search and sampling: the sentences still in the batch."""

    rows: Tensor  # (B,) index of the sentence in the whole search
    limits: Tensor  # (B,) maximum number of tokens, eos not counted
    tokens: Tensor  # (B, 1, 1 + t) bos, then the chosen tokens; padded with eos once finished
    log_probs: Tensor  # (B, 1) fp32
    done: Tensor  # (B,) bool


@dataclass
class BeamState:
    """State of beam search: the sentences still in the batch, their live and finished hypotheses.

    Live hypotheses are sorted by log-probability, finished ones by score. N is 1 in the first step.
    """

    rows: Tensor  # (B,) index of the sentence in the whole search
    limits: Tensor  # (B,) maximum number of tokens, eos not counted
    tokens: Tensor  # (B, N, 1 + t) live hypotheses, bos included
    parents: Tensor  # (B, N) the previous step's hypothesis each one continues
    log_probs: Tensor  # (B, N) fp32, descending; -inf: an empty place
    kept_tokens: Tensor  # (B, N, 1 + t) the best finished hypotheses, padded with eos
    kept_log_probs: Tensor  # (B, N) fp32
    kept_scores: Tensor  # (B, N) fp32, descending; -inf: an empty place
    n_finished: Tensor  # (B,) how many have finished, kept or not
    done: Tensor  # (B,) bool: the kept ones are final, whatever the live ones still do


State = TypeVar("State", GreedyState, BeamState)


def greedy_search(
    stepper: Stepper,
    limits: Tensor,
    *,
    length_penalty: float = 0.0,
    constraints: Sequence[Constraint] = (),
    fused: FusedCandidates | None = None,
) -> list[Hypothesis]:
    """Take the most probable token at every step; one hypothesis for each sentence.

    `limits` (B,) int, at least 1, on the stepper's device: the maximum number of tokens, eos not
    counted. The length penalty only affects the score. `fused`: see `next_candidates`. Raises
    NonFiniteError if the logits of a sentence are non-finite.
    """

    def most_probable(logits: Tensor, state: GreedyState, at_limit: bool) -> Candidates:
        return next_candidates(logits, state, at_limit, constraints, 1, fused)

    return _one_path(stepper, limits, most_probable, length_penalty)


def sampling_search(
    stepper: Stepper,
    limits: Tensor,
    seeds: Sequence[int],
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    length_penalty: float = 0.0,
    constraints: Sequence[Constraint] = (),
) -> list[Hypothesis]:
    """Sample token by token from p^(1 / temperature); one hypothesis for each sentence.

    Each token is drawn from the `top_k` most probable ones (0: all), and of those from the fewest
    that hold the share `top_p` of their probability (Holtzman et al., 2020, section 3.1). `seeds`:
    one per sentence; it alone determines the draws, so that a sentence gives the same sample in any
    batch. Log-probabilities are those of the model, before temperature and cuts.
    """
    longest = int(limits.max()) + 1 if len(limits) else 0
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    draws = [torch.rand(longest, generator=each, dtype=torch.float64) for each in generators]
    uniform = torch.stack(draws).to(limits.device) if draws else torch.empty(0, 0)  # (B, longest)

    def drawn(logits: Tensor, state: GreedyState, at_limit: bool) -> Candidates:
        logits, offsets = mask_logits(logits, state, at_limit, constraints)
        step = state.tokens.shape[2] - 1
        numbers = uniform[state.rows, step]
        tokens = draw_tokens(logits.squeeze(1), numbers, temperature, top_k, top_p).unsqueeze(1)
        log_probs = logits.squeeze(1).gather(1, tokens).float() + offsets
        return Candidates(log_probs, torch.zeros_like(tokens), tokens)

    return _one_path(stepper, limits, drawn, length_penalty)


@torch.inference_mode()
def _one_path(
    stepper: Stepper,
    limits: Tensor,
    choose: Callable[[Tensor, GreedyState, bool], Candidates],
    length_penalty: float,
) -> list[Hypothesis]:
    """Follow one hypothesis for each sentence.

    `choose` takes its next token, given logits (B, 1, V), the state, and whether a sentence has
    reached its limit.
    """
    check_request(limits, beam_size=1, n_best=1)
    found: dict[int, list[Hypothesis]] = {}
    if len(limits) == 0:
        return []
    state = start_greedy(limits)
    first = torch.zeros_like(state.rows).unsqueeze(1)  # (B, 1) one hypothesis: its own parent
    last_step = int(limits.max())
    first_limit = int(limits.min())
    for step in range(last_step + 1):
        # 1. logits of what may follow
        logits = stepper.step(state.tokens[..., -1], first[: len(state.rows)])  # (B, 1, V)
        # 2. choose one token; a finished sentence does not change
        best = choose(logits, state, step >= first_limit)
        chosen = best.tokens.masked_fill(state.done.unsqueeze(1), EOS)
        state.log_probs = torch.where(state.done.unsqueeze(1), state.log_probs, best.log_probs)
        state.tokens = torch.cat([state.tokens, chosen.unsqueeze(2)], dim=2)
        state.done = ((chosen == EOS) | ~(state.log_probs > -torch.inf)).squeeze(1)
        # 3. finished sentences leave
        live = rows_to_keep(state.done, step, last_step)
        if live is not None:
            leaving = select(state, state.done.nonzero().squeeze(1))
            collect(found, leaving.rows, leaving.tokens, leaving.log_probs, length_penalty)
            if len(live) == 0:
                break
            stepper.keep(live)
            state = select(state, live)
            first_limit = int(state.limits.min())
    return [found[row][0] for row in range(len(limits))]


@torch.inference_mode()
def beam_search(
    stepper: Stepper,
    limits: Tensor,
    *,
    beam_size: int,
    length_penalty: float,
    n_best: int = 1,
    exact: bool = False,
    constraints: Sequence[Constraint] = (),
    fused: FusedCandidates | None = None,
) -> list[list[Hypothesis]]:
    """Return the `n_best` finished hypotheses of highest score for each sentence, best first.

    `limits` as for `greedy_search`. Each step continues the `beam_size` most probable hypotheses.
    One of them that ends is finished, and its place goes to the next best that does not end. A
    sentence is done when `beam_size` hypotheses have finished, or when `cannot_improve` holds. The
    first rule may miss a hypothesis that would have finished later with a higher score; the second
    never does, and with `exact` it is the only one. Ties: first finished first, then by rank of the
    parent, then by token id. Fewer than `n_best` come back if vocabulary and limit allow no more.
    `fused`: see `next_candidates`.

    Raises ConfigError if n_best > beam_size, NonFiniteError if the logits of a sentence are
    non-finite.
    """
    check_request(limits, beam_size, n_best)
    found: dict[int, list[Hypothesis]] = {}
    if len(limits) == 0:
        return []
    state = start_beams(limits, beam_size)
    last_step = int(limits.max())
    first_limit = int(limits.min())
    for step in range(last_step + 1):
        # 1. logits of what may follow each live hypothesis
        logits = stepper.step(state.tokens[..., -1], state.parents)  # (B, N, V)
        # 2. the best 2N continuations hold N that do not end: each hypothesis has one with eos
        at_limit = step >= first_limit
        best = next_candidates(logits, state, at_limit, constraints, 2 * beam_size, fused)
        # 3. those that end are finished, the others stay live
        extend(state, best, step, length_penalty)
        if not exact:
            state.done |= state.n_finished >= beam_size
        state.done |= cannot_improve(state, step, length_penalty, n_best)
        # 4. sentences that are done leave
        live = rows_to_keep(state.done, step, last_step)
        if live is not None:
            leaving = select(state, state.done.nonzero().squeeze(1))
            tokens, log_probs = leaving.kept_tokens[:, :n_best], leaving.kept_log_probs[:, :n_best]
            collect(found, leaving.rows, tokens, log_probs, length_penalty)
            if len(live) == 0:
                break
            stepper.keep(live)
            state = select(state, live)
            first_limit = int(state.limits.min())
    return [found[row] for row in range(len(limits))]


def check_request(limits: Tensor, beam_size: int, n_best: int) -> None:
    """Refuse numbers of hypotheses and limits that no search can satisfy."""
    if not 1 <= n_best <= beam_size:
        raise ConfigError(
            f"n-best: must be at least 1 and at most the beam size ({beam_size}), found {n_best}; "
            "ask for fewer or set decode.beam_size higher"
        )
    if len(limits) and int(limits.min()) < 1:
        raise ValueError(f"limits: every sentence needs room for a token, found {limits.tolist()}")


def start_greedy(limits: Tensor) -> GreedyState:
    """Return the state before the first step: every hypothesis is its bos."""
    n_rows = len(limits)
    device = limits.device
    return GreedyState(
        rows=torch.arange(n_rows, device=device),
        limits=limits,
        tokens=torch.full((n_rows, 1, 1), BOS, device=device),
        log_probs=torch.zeros(n_rows, 1, device=device),
        done=torch.zeros(n_rows, dtype=torch.bool, device=device),
    )


def start_beams(limits: Tensor, beam_size: int) -> BeamState:
    """Return the state before the first step: one live hypothesis, its bos, and none finished."""
    shape = (len(limits), beam_size)
    device = limits.device
    nothing = torch.full(shape, -torch.inf, device=device)
    return BeamState(
        rows=torch.arange(shape[0], device=device),
        limits=limits,
        tokens=torch.full((shape[0], 1, 1), BOS, device=device),
        parents=torch.zeros(shape[0], 1, dtype=torch.long, device=device),
        log_probs=torch.zeros(shape[0], 1, device=device),
        kept_tokens=torch.full((*shape, 1), BOS, device=device),
        kept_log_probs=nothing,
        kept_scores=nothing,
        n_finished=torch.zeros(shape[0], dtype=torch.long, device=device),
        done=torch.zeros(shape[0], dtype=torch.bool, device=device),
    )


def select(state: State, rows: Tensor) -> State:
    """Return the state of these sentences only."""
    return type(state)(**{field.name: getattr(state, field.name)[rows] for field in fields(state)})


def next_candidates(
    logits: Tensor,
    state: GreedyState | BeamState,
    at_limit: bool,
    constraints: Sequence[Constraint],
    count: int,
    fused: FusedCandidates | None,
) -> Candidates:
    """Return the `count` best continuations of each sentence that may follow: logits (B, N, V).

    `at_limit`: see `mask_logits`. `fused` does all of it at once, wherever there are no constraints
    and eos may follow.
    """
    step = state.tokens.shape[2] - 1
    if fused is not None and step > 0 and not constraints:
        return fused(logits, state.log_probs, state.limits <= step, count)
    logits, offsets = mask_logits(logits, state, at_limit, constraints)
    return best_candidates(logits, offsets, count)


def mask_logits(
    logits: Tensor,
    state: GreedyState | BeamState,
    at_limit: bool,
    constraints: Sequence[Constraint],
) -> tuple[Tensor, Tensor]:
    """Mask what must not follow: logits (B, N, V), -inf where forbidden, and offsets (B, N) fp32.

    Their sum is the log-probability of the hypothesis so continued, as the model gives it: the
    probability of forbidden tokens is not redistributed. With `at_limit`, sentences that have
    reached their limit can only end.
    """
    normaliser = log_normaliser(logits)
    step = state.tokens.shape[2] - 1
    if constraints:  # they need log-probabilities; without them this pass is saved
        logits = logits.float() - normaliser.unsqueeze(-1)
        normaliser = torch.zeros_like(normaliser)
    forbid_specials(logits, step)
    eos = logits[..., EOS].clone()
    apply(constraints, logits, Past(state.rows, state.tokens[:, :, 1:]))
    if at_limit:
        force_eos(logits, state.limits <= step, eos)
    return logits, state.log_probs - normaliser


def forbid_specials(logits: Tensor, step: int) -> None:
    """Forbid pad, bos and unk everywhere, and eos as the first token."""
    for special in (PAD, UNK, BOS):
        logits[..., special] = -torch.inf
    if step == 0:
        logits[..., EOS] = -torch.inf


def force_eos(logits: Tensor, full: Tensor, eos: Tensor) -> None:
    """Allow only eos, with logits `eos` (B, N), in the sentences at their limit, `full` (B,)."""
    logits.masked_fill_(full[:, None, None], -torch.inf)
    logits[..., EOS] = torch.where(full[:, None], eos, logits[..., EOS])


def extend(state: BeamState, best: Candidates, step: int, length_penalty: float) -> None:
    """Move the hypotheses that end to the kept ones, and continue the N best others.

    An end counts only among the best N, as any other token would have to be to stay in the beam. So
    a beam of one is greedy search.
    """
    n_hyps = state.kept_scores.shape[1]
    parents = best.parents.unsqueeze(-1)
    eos = best.tokens == EOS
    tokens = torch.cat([torch.take_along_dim(state.tokens, parents, 1), best.tokens[..., None]], 2)

    # A sentence that is done does not change: the result must not depend on the rest of the batch.
    ended = eos & (best.log_probs > -torch.inf) & ~state.done.unsqueeze(1)
    ended = ended[:, :n_hyps]
    log_probs = best.log_probs[:, :n_hyps].masked_fill(~ended, -torch.inf)
    scores = torch.cat([state.kept_scores, log_probs / (step + 1) ** length_penalty], dim=1)
    order = top_indices(scores, n_hyps)
    state.kept_scores = scores.gather(1, order)
    state.kept_log_probs = torch.cat([state.kept_log_probs, log_probs], dim=1).gather(1, order)
    kept_tokens = torch.cat([pad(state.kept_tokens, (0, 1), value=EOS), tokens[:, :n_hyps]], 1)
    state.kept_tokens = torch.take_along_dim(kept_tokens, order.unsqueeze(-1), 1)
    state.n_finished = state.n_finished + ended.sum(dim=1)

    # Distinct keys: first the candidates that do not end, in their order, then those that do.
    keys = torch.arange(2 * n_hyps, device=eos.device) + 2 * n_hyps * eos
    order = keys.sort(dim=1).indices[:, :n_hyps]
    dead = eos | ~(best.log_probs > -torch.inf)  # so is NaN
    state.log_probs = best.log_probs.masked_fill(dead, -torch.inf).gather(1, order)
    # An empty place repeats the best hypothesis, so that the stepper only sees real ones.
    order = torch.where(dead.gather(1, order), order[:, :1], order)
    state.parents = best.parents.gather(1, order)
    state.tokens = torch.take_along_dim(tokens, order.unsqueeze(-1), 1)


def cannot_improve(state: BeamState, step: int, length_penalty: float, n_best: int) -> Tensor:
    """Return (B,) bool: no live hypothesis can end with a higher score than the n-th kept one.

    The log-probability of a live hypothesis can only fall, and is at most 0. The lengths it may
    still end with, eos counted, are step + 2 to limit + 1. The score is highest at the longest of
    them if the penalty is positive, and at the shortest if it is negative (cf. Huang, Zhao and Ma,
    2017).
    """
    if length_penalty >= 0:
        divisor = (state.limits + 1).float() ** length_penalty
    else:
        divisor = torch.full_like(state.log_probs[:, 0], (step + 2) ** length_penalty)
    highest = state.log_probs[:, 0] / divisor
    return highest <= state.kept_scores[:, n_best - 1]


def rows_to_keep(done: Tensor, step: int, last_step: int) -> Tensor | None:
    """Return the rows of the unfinished sentences if the others are to leave now, else None."""
    if not is_time_to_check(done.device.type, step, last_step):
        return None
    live = (~done).nonzero().squeeze(1)
    return live if len(live) == 0 or len(live) < LIVE_SHARE * len(done) else None


def is_time_to_check(device_type: str, step: int, last_step: int) -> bool:
    """Whether to ask the device which sentences are done: on a CPU always, as it costs nothing."""
    return device_type == "cpu" or step == last_step or (step + 1) % STEPS_BETWEEN_CHECKS == 0


def collect(
    found: dict[int, list[Hypothesis]],
    rows: Tensor,
    tokens: Tensor,
    log_probs: Tensor,
    length_penalty: float,
) -> None:
    """Copy finished hypotheses from the device: rows (B,), tokens (B, n, 1 + t), log_probs (B, n).

    Raises NonFiniteError for a sentence that has none.
    """
    for row, ids, sums in zip(rows.tolist(), tokens.tolist(), log_probs.tolist(), strict=True):
        hypotheses = [
            hypothesis(sequence, log_prob, length_penalty)
            for sequence, log_prob in zip(ids, sums, strict=True)
            if log_prob > -torch.inf
        ]
        if not hypotheses:
            raise NonFiniteError(
                f"decoding: sentence {row} of the batch has no translation with a probability "
                "above 0; logits must be finite, the model gives NaN or infinities; "
                "decode with precision fp32, or use another checkpoint"
            )
        found[row] = sorted(hypotheses, key=lambda hyp: hyp.score, reverse=True)


def hypothesis(sequence: Iterable[int], log_prob: float, length_penalty: float) -> Hypothesis:
    """Make a `Hypothesis` of a row of a state: bos, tokens, eos and padding."""
    ids = tuple(sequence)
    tokens = ids[1 : ids.index(EOS)]
    return Hypothesis(tokens, log_prob, log_prob / (len(tokens) + 1) ** length_penalty)
