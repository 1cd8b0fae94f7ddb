"""Search over any stepper: greedy, sampling, and beam with length penalty and n-best lists.

The search holds the hypotheses and the stepper holds the model: all that passes between them is the
last token of every hypothesis, the hypothesis each one continues, and logits.

Shapes: B sentences in the batch, N hypotheses of each, V tokens of the vocabulary, t tokens so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from mt.data.tokenizer import BOS, EOS, PAD, UNK
from mt.decoding.constraints import Constraint, Past, apply
from mt.errors import ConfigError, NonFiniteError

# Finished sentences leave the batch when fewer than this share of it still runs. Leaving copies
# every cache once, staying costs a dead row in every step; with 3/4 the copies of a whole search
# add up to less than four times the first cache, and at most a quarter of a step is wasted.
LIVE_SHARE = 0.75
# On an accelerator, asking how many sentences are done waits for all the work queued so far.
STEPS_BETWEEN_LOOKS = 8
# Width of the blocks of the vocabulary in the two-stage choice of `best_candidates`.
BLOCK = 64
# Logits per slice of `log_normaliser`: 1 MB in fp32, so that the intermediate stays in the cache.
SLICE = 1 << 18


class Stepper(Protocol):
    """One batch being decoded: B sentences, N hypotheses each, and whatever caches that takes."""

    def step(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Extend every hypothesis by one token and say what may follow it.

        `tokens` (B, N): last token of each hypothesis, bos at first. `parents` (B, N): which of the
        previous step's hypotheses of its sentence each one continues, 0 at first. N is 1 in the first
        step, for there is one way to begin, and the same number in all others.
        Returns logits (B, N, V): log-probabilities up to a constant per hypothesis. The search
        writes into them.
        """
        ...

    def keep(self, rows: Tensor) -> None:
        """Go on with only these sentences: `rows` (B',) are ascending indices into the batch."""
        ...


@dataclass(frozen=True)
class Hypothesis:
    """A finished translation: token ids without bos and eos; `log_prob` counts the eos."""

    tokens: tuple[int, ...]
    log_prob: float
    score: float  # log_prob / (len(tokens) + 1) ** length_penalty


@dataclass
class GreedyState:
    """The sentences still in the batch."""

    rows: Tensor  # (B,) place of the sentence in the call
    limits: Tensor  # (B,) most tokens, eos not counted
    tokens: Tensor  # (B, 1, 1 + t) bos, then what was chosen; eos again and again once finished
    log_probs: Tensor  # (B, 1) fp32
    done: Tensor  # (B,) bool


@dataclass
class BeamState:
    """The sentences still in the batch, with the hypotheses that go on and those that finished."""

    rows: Tensor  # (B,) place of the sentence in the call
    limits: Tensor  # (B,) most tokens, eos not counted
    tokens: (
        Tensor  # (B, N, 1 + t) live hypotheses with their bos, most probable first; N is 1 at first
    )
    parents: Tensor  # (B, N) the previous step's hypothesis each one continues
    log_probs: Tensor  # (B, N) fp32, descending; -inf: nothing lives here
    kept_tokens: Tensor  # (B, N, 1 + t) finished ones, best score first, filled up with eos
    kept_log_probs: Tensor  # (B, N) fp32
    kept_scores: Tensor  # (B, N) fp32, descending; -inf: a free place
    n_finished: Tensor  # (B,) how many have finished, kept or not
    done: Tensor  # (B,) bool: the kept ones are the answer, whatever the live ones still do


class Candidates(NamedTuple):
    """The best continuations of each sentence, best first."""

    log_probs: Tensor  # (B, K) fp32, of the whole hypothesis
    parents: Tensor  # (B, K) the hypothesis continued
    tokens: Tensor  # (B, K) the token it is continued with


State = TypeVar("State", GreedyState, BeamState)


def greedy_search(
    stepper: Stepper,
    limits: Tensor,
    *,
    length_penalty: float = 0.0,
    constraints: Sequence[Constraint] = (),
) -> list[Hypothesis]:
    """The hypothesis whose every token is the most probable one, for each sentence.

    `limits` (B,) int, at least 1, on the stepper's device: at most so many tokens, eos not counted.
    The length penalty only enters the score. Raises CheckpointError if the logits are not numbers.
    """

    def most_probable(logits: Tensor, offsets: Tensor, _: GreedyState) -> Candidates:
        return best_candidates(logits, offsets, 1)

    return _follow(stepper, limits, most_probable, length_penalty, constraints)


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
    """A hypothesis drawn token by token from p^(1 / temperature), for each sentence.

    Drawn from are the `top_k` most probable tokens (0: all), and of those the fewest that hold the share `top_p`
    of their probability (Holtzman et al., 2020, section 3.1). One of `seeds` belongs to each sentence: it alone
    decides the draws, so a sentence gives the same sample in any batch. Log-probabilities are the model's own.
    """
    longest = int(limits.max()) + 1 if len(limits) else 0
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    draws = [torch.rand(longest, generator=one, dtype=torch.float64) for one in generators]
    uniform = torch.stack(draws).to(limits.device) if draws else torch.empty(0, 0)  # (B, longest)

    def drawn(logits: Tensor, offsets: Tensor, state: GreedyState) -> Candidates:
        step = state.tokens.shape[2] - 1
        tokens = draw(
            logits.squeeze(1), uniform[state.rows, step], temperature, top_k, top_p
        )  # (B,)
        tokens = tokens.unsqueeze(1)
        log_probs = logits.squeeze(1).gather(1, tokens).float() + offsets
        return Candidates(log_probs, torch.zeros_like(tokens), tokens)

    return _follow(stepper, limits, drawn, length_penalty, constraints)


def draw(logits: Tensor, uniform: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """The tokens that numbers `uniform` (B,) of [0, 1) pick by the distributions of `logits` (B, V): (B,)."""
    logits = logits.double() / temperature
    if top_k:
        logits, tokens = logits.topk(min(top_k, logits.shape[1]), dim=1)
    elif top_p < 1:
        logits, tokens = logits.sort(dim=1, descending=True, stable=True)
    else:  # any order will do
        tokens = torch.arange(logits.shape[1], device=logits.device).expand_as(logits)
    probs = logits.softmax(1)  # (B, K)
    if top_p < 1:
        probs = probs.masked_fill(probs.cumsum(1) - probs >= top_p, 0.0)
    sums = probs.cumsum(1)
    total = sums[:, -1:].contiguous()
    # right: a number on the border belongs to the next token, so that probability 0 is never drawn.
    places = torch.searchsorted(sums, uniform.unsqueeze(1) * total, right=True)
    last = torch.searchsorted(sums, total)  # the last one above 0, where rounding would go beyond
    places = torch.minimum(places, last).clamp(
        max=sums.shape[1] - 1
    )  # beyond all of them: logits are nan
    return tokens.gather(1, places).squeeze(1)


@torch.inference_mode()
def _follow(
    stepper: Stepper,
    limits: Tensor,
    choose: Callable[[Tensor, Tensor, GreedyState], Candidates],
    length_penalty: float,
    constraints: Sequence[Constraint],
) -> list[Hypothesis]:
    """One hypothesis for each sentence, its tokens chosen one after the other."""
    check_request(limits, beam_size=1, n_best=1)
    found: dict[int, list[Hypothesis]] = {}
    if len(limits) == 0:
        return []
    state = start_greedy(limits)
    first = torch.zeros_like(state.rows).unsqueeze(1)  # (B, 1) one hypothesis: its own parent
    last_step, first_limit = int(limits.max()), int(limits.min())
    for step in range(last_step + 1):
        # 1. what may follow
        logits = stepper.step(state.tokens[..., -1], first[: len(state.rows)])  # (B, 1, V)
        logits, offsets = permitted(logits, state, step >= first_limit, constraints)
        # 2. one token; a finished sentence stays as it is
        best = choose(logits, offsets, state)
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
) -> list[list[Hypothesis]]:
    """The `n_best` finished hypotheses of highest score for each sentence, best first.

    `limits` as for `greedy_search`. Each step continues the `beam_size` most probable hypotheses;
    one of them that ends is finished, and its place goes to the next best that does not end.
    A sentence is done when `beam_size` hypotheses have finished, or when `cannot_improve` says so.
    The first rule may miss a hypothesis that would have finished later with a higher score; the
    second never does, and with `exact` it is the only one. Equal ones: first finished first, then by
    rank of the parent, then token id.
    Fewer than `n_best` come back where the vocabulary and the limit allow no more.
    Raises ConfigError if n_best > beam_size, CheckpointError if the logits are not numbers.
    """
    check_request(limits, beam_size, n_best)
    found: dict[int, list[Hypothesis]] = {}
    if len(limits) == 0:
        return []
    state = start_beams(limits, beam_size)
    last_step, first_limit = int(limits.max()), int(limits.min())
    for step in range(last_step + 1):
        # 1. what may follow each live hypothesis
        logits = stepper.step(state.tokens[..., -1], state.parents)  # (B, N, V)
        logits, offsets = permitted(logits, state, step >= first_limit, constraints)
        # 2. the best 2N continuations hold N that do not end, for each hypothesis ends in one way
        best = best_candidates(logits, offsets, 2 * beam_size)
        # 3. those that end are finished, the others go on
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
    """Refuse what no search can answer."""
    if not 1 <= n_best <= beam_size:
        raise ConfigError(
            f"n-best: at least 1 and at most the beam size ({beam_size}) hypotheses can be listed, "
            f"found {n_best}; ask for fewer or set decode.beam_size higher"
        )
    if len(limits) and int(limits.min()) < 1:
        raise ValueError(f"limits: every sentence needs room for a token, found {limits.tolist()}")


def start_greedy(limits: Tensor) -> GreedyState:
    """Every sentence at its bos."""
    n_rows, device = len(limits), limits.device
    return GreedyState(
        rows=torch.arange(n_rows, device=device),
        limits=limits,
        tokens=torch.full((n_rows, 1, 1), BOS, device=device),
        log_probs=torch.zeros(n_rows, 1, device=device),
        done=torch.zeros(n_rows, dtype=torch.bool, device=device),
    )


def start_beams(limits: Tensor, beam_size: int) -> BeamState:
    """Every sentence with one live hypothesis, its bos, room for `beam_size` finished ones, and nothing finished."""
    shape, device = (len(limits), beam_size), limits.device
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
    """The same state with only these sentences."""
    return type(state)(**{field.name: getattr(state, field.name)[rows] for field in fields(state)})


def log_normaliser(logits: Tensor) -> Tensor:
    """log of the sum of exp over the whole vocabulary: (B, N, V) -> (B, N) fp32."""
    flat = logits.flatten(0, 1)
    if logits.device.type != "cpu":
        return flat.float().logsumexp(dim=-1).view(logits.shape[:2])
    # torch's CPU log_softmax has a faster exp than its logsumexp, and x - log_softmax(x) is what we
    # want at any finite x: among the first tokens one is found. One Zen 5 thread, rows x V, ms:
    # 64 x 8,000: 0.26 against 0.43; 320 x 8,000: 1.4 against 2.8; 320 x 32,000: 5.7 against 29.
    slices = map(Tensor.float, torch.split(flat, max(1, SLICE // flat.shape[-1])))
    pieces = [x[:, :BLOCK].amax(-1) - x.log_softmax(-1)[:, :BLOCK].amax(-1) for x in slices]
    return torch.cat(pieces).view(logits.shape[:2])


def permitted(
    logits: Tensor,
    state: GreedyState | BeamState,
    at_limit: bool,
    constraints: Sequence[Constraint],
) -> tuple[Tensor, Tensor]:
    """What may follow the live hypotheses: logits (B, N, V), -inf where forbidden, and offsets (B, N) fp32.

    Their sum is the log-probability of a hypothesis so continued. It stays the model's: what is forbidden is not
    shared out to the rest. With `at_limit`, sentences that have reached their limit can only end.
    """
    normaliser, step = log_normaliser(logits), state.tokens.shape[2] - 1
    if (
        constraints
    ):  # they work on log-probabilities; a pass over all logits that is saved otherwise
        logits = logits.float() - normaliser.unsqueeze(-1)
        normaliser = torch.zeros_like(normaliser)
    forbid_specials(logits, step)
    eos = logits[..., EOS].clone()
    apply(constraints, logits, Past(state.rows, state.tokens[:, :, 1:]))
    if at_limit:
        force_eos(logits, state.limits <= step, eos)
    return logits, state.log_probs - normaliser


def forbid_specials(logits: Tensor, step: int) -> None:
    """Pad, bos and unk never, eos not as the first token."""
    for special in (PAD, UNK, BOS):
        logits[..., special] = -torch.inf
    if step == 0:
        logits[..., EOS] = -torch.inf


def force_eos(logits: Tensor, full: Tensor, eos: Tensor) -> None:
    """Only eos, with its logits `eos` (B, N), for the sentences that have reached their limit, `full` (B,) bool."""
    logits.masked_fill_(full[:, None, None], -torch.inf)
    logits[..., EOS] = torch.where(full[:, None], eos, logits[..., EOS])


def best_candidates(logits: Tensor, offsets: Tensor, count: int) -> Candidates:
    """The `count` continuations of each sentence with the highest logits + offsets.

    `logits` (B, N, V), `offsets` (B, N) fp32; equal ones come by rank of the parent, then token id.
    """
    # First the blocks of the vocabulary with the highest peaks, then the best inside those: no
    # candidate is lost, for each of `count` better blocks holds a better candidate. One Zen 5
    # thread, V = 8,000, against topk over all N x V, ms: N = 1, 64 sentences (argmax) 0.2 against
    # 0.6; N = 5: 12 sentences 0.2 against 0.4, 64: 1.1 against 4.2, 120: 1.9 against 6.7.
    n_hyps, vocab = logits.shape[1:]
    whole = vocab // BLOCK * BLOCK
    peaks = logits[..., :whole].reshape(*logits.shape[:2], whole // BLOCK, BLOCK).amax(-1)
    if whole < vocab:
        peaks = torch.cat([peaks, logits[..., whole:].amax(-1, keepdim=True)], dim=-1)
    n_blocks = peaks.shape[-1]
    peak_log_probs = (peaks.float() + offsets.unsqueeze(-1)).clamp(max=0).flatten(1)
    # Ascending again, so that the place among all the block's members orders equal candidates.
    blocks = top(peak_log_probs, min(count, n_hyps * n_blocks)).sort(dim=-1).values  # (B, K)

    hyps, first = blocks // n_blocks, blocks % n_blocks * BLOCK
    columns = first.unsqueeze(-1) + torch.arange(BLOCK, device=logits.device)  # (B, K, BLOCK)
    places = (hyps.unsqueeze(-1) * vocab + columns.clamp(max=vocab - 1)).flatten(1)  # in N x V
    members = logits.flatten(1).gather(1, places).float()
    # Rounding must not lift a log-probability above 0: `top` and `cannot_improve` rest on that.
    log_probs = (members.view_as(columns) + offsets.gather(1, hyps).unsqueeze(-1)).clamp(max=0)
    if whole < vocab:
        log_probs = log_probs.masked_fill(columns >= vocab, -torch.inf)
    log_probs = log_probs.flatten(1)
    missing = count - log_probs.shape[1]
    if missing > 0:  # the first step of a wide beam over a small vocabulary
        log_probs, places = (
            pad(log_probs, (0, missing), value=-torch.inf),
            pad(places, (0, missing)),
        )
    best = top(log_probs, count)
    places = places.gather(1, best)
    return Candidates(log_probs.gather(1, best), places // vocab, places % vocab)


def top(log_probs: Tensor, count: int) -> Tensor:
    """Places of the `count` highest of each row, best first, the lowest place first among equals.

    `log_probs` (B, M) fp32, none above 0; nan counts as lower than -inf.
    """
    # topk leaves the order of equals open, and bf16 logits are full of equals. Without their sign,
    # the bits of fp32 numbers order as the numbers do; the place in the low half makes all differ.
    size = log_probs.abs().view(torch.int32).long()
    key = (size << 32) + torch.arange(log_probs.shape[1], device=log_probs.device)
    return key.topk(count, dim=1, largest=False).indices


def extend(state: BeamState, best: Candidates, step: int, length_penalty: float) -> None:
    """Move the hypotheses that end to the kept ones, and go on with the N best others.

    Only an end among the best N counts: a word in its place would not have gone on either. So a
    beam of one is greedy search.
    """
    n_hyps = state.kept_scores.shape[1]
    parents, eos = best.parents.unsqueeze(-1), best.tokens == EOS
    tokens = torch.cat([torch.take_along_dim(state.tokens, parents, 1), best.tokens[..., None]], 2)

    # What is done stays as it is: the answer must not depend on how long others take.
    ended = eos & (best.log_probs > -torch.inf) & ~state.done.unsqueeze(1)
    ended = ended[:, :n_hyps]
    log_probs = best.log_probs[:, :n_hyps].masked_fill(~ended, -torch.inf)
    scores = torch.cat([state.kept_scores, log_probs / (step + 1) ** length_penalty], dim=1)
    order = top(scores, n_hyps)
    state.kept_scores = scores.gather(1, order)
    state.kept_log_probs = torch.cat([state.kept_log_probs, log_probs], dim=1).gather(1, order)
    kept_tokens = torch.cat([pad(state.kept_tokens, (0, 1), value=EOS), tokens[:, :n_hyps]], 1)
    state.kept_tokens = torch.take_along_dim(kept_tokens, order.unsqueeze(-1), 1)
    state.n_finished = state.n_finished + ended.sum(dim=1)

    # Distinct keys: first the candidates that go on, in their order, then those that end.
    keys = torch.arange(2 * n_hyps, device=eos.device) + 2 * n_hyps * eos
    order = keys.sort(dim=1).indices[:, :n_hyps]
    dead = eos | ~(best.log_probs > -torch.inf)  # nan is dead, too
    state.log_probs = best.log_probs.masked_fill(dead, -torch.inf).gather(1, order)
    # A dead place repeats the best hypothesis, so that the stepper is only asked for real ones.
    order = torch.where(dead.gather(1, order), order[:, :1], order)
    state.parents = best.parents.gather(1, order)
    state.tokens = torch.take_along_dim(tokens, order.unsqueeze(-1), 1)


def cannot_improve(state: BeamState, step: int, length_penalty: float, n_best: int) -> Tensor:
    """(B,) bool: no live hypothesis can end with a higher score than the n-th best kept one.

    The log-probability of a live hypothesis can only fall. It is at most 0, so of all lengths it
    may still end with (eos counted: from step + 2 to limit + 1) the longest divides it best where
    the penalty is positive, and the shortest where it is negative (cf. Huang, Zhao and Ma 2017).
    """
    if length_penalty >= 0:
        divisor = (state.limits + 1).float() ** length_penalty
    else:
        divisor = torch.full_like(state.log_probs[:, 0], (step + 2) ** length_penalty)
    highest = state.log_probs[:, 0] / divisor
    return highest <= state.kept_scores[:, n_best - 1]


def rows_to_keep(done: Tensor, step: int, last_step: int) -> Tensor | None:
    """Rows of the unfinished sentences where it is time for the others to leave, else None."""
    if not is_time_to_look(done.device.type, step, last_step):
        return None
    live = (~done).nonzero().squeeze(1)
    return live if len(live) == 0 or len(live) < LIVE_SHARE * len(done) else None


def is_time_to_look(device_type: str, step: int, last_step: int) -> bool:
    """Whether to ask the device who is done: always where asking is free."""
    return device_type == "cpu" or step == last_step or (step + 1) % STEPS_BETWEEN_LOOKS == 0


def collect(
    found: dict[int, list[Hypothesis]],
    rows: Tensor,
    tokens: Tensor,
    log_probs: Tensor,
    length_penalty: float,
) -> None:
    """Read the finished off the device: rows (B,), tokens (B, n, 1 + t), log_probs (B, n)."""
    for row, ids, sums in zip(rows.tolist(), tokens.tolist(), log_probs.tolist(), strict=True):
        hypotheses = [
            hypothesis(sequence, log_prob, length_penalty)
            for sequence, log_prob in zip(ids, sums, strict=True)
            if log_prob > -torch.inf
        ]
        if not hypotheses:
            raise NonFiniteError(
                f"decoding: sentence {row} of the batch has no translation with a probability "
                "above 0; logits must be finite numbers, the model gives nan or infinities; "
                "decode with precision fp32, or use another checkpoint"
            )
        found[row] = sorted(hypotheses, key=lambda one: one.score, reverse=True)


def hypothesis(sequence: Iterable[int], log_prob: float, length_penalty: float) -> Hypothesis:
    """A row of a state: bos, tokens, eos and whatever follows it."""
    ids = tuple(sequence)
    tokens = ids[1 : ids.index(EOS)]
    return Hypothesis(tokens, log_prob, log_prob / (len(tokens) + 1) ** length_penalty)
