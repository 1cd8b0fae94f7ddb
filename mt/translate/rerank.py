"""Rerank hypotheses by how probable a reverse model finds the source, given each of them.

A noisy channel without a language model (Yee et al., 2019): score of the hypothesis + weight x
log p(source | hypothesis) / length of the source, which a forced decoding of the reverse model
gives. An output that leaves out a part of the source makes that part improbable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mt.config.plan import DataPlan, Direction, plan_data
from mt.data.reading.language_codes import base_code
from mt.data.tokens.tokenizer import Tokenizer
from mt.errors import ConfigError
from mt.runs.model_folder import WEIGHTS, find_model, read_config, read_folder, read_meta
from mt.search.options import EngineOptions, SearchOptions
from mt.search.scoring import ForcedDecoder
from mt.translate.lines import Line, Step
from mt.translate.score_lines import load_scorer

# Weight of the reverse model. On 1,014 lines of Multi30k, of 0.1 to 1, those from 0.1 to 0.35 were
# best, the lower ones with a length penalty of 1.4, which makes scores smaller, the higher with 1.
WEIGHT = 0.2


@dataclass(frozen=True)
class Reranker(Step):
    """A reverse model that sorts the outputs of segments."""

    forced: ForcedDecoder
    reverse: Tokenizer
    forward: Tokenizer
    weight: float
    tag: str  # before each source of the reverse model
    tags: frozenset[str]  # what a source of the forward model may begin with
    n_best: int  # outputs to keep
    weights_hash: str
    first_ids: Sequence[int] = ()  # before the tag, for the target language

    @property
    def settings(self) -> Mapping[str, str]:  # type: ignore[override]
        """Everything that an output depends on; the search keeps all hypotheses, not `n_best`."""
        value = f"{self.weights_hash} x {self.weight:g}, {self.n_best} best"
        return {"--rerank-with": value}

    def found(self, lines: Sequence[Line]) -> None:
        """Sort the outputs of each segment by the new score, best first; of ties the first.

        A segment with a pair that is too long for the reverse model keeps its order and scores.
        """
        segments = [segment for line in lines for segment in line.segments]
        texts = self.forward.src.decode([segment.source for segment in segments])
        targets = self.reverse.tgt.encode([self._untagged(text) for text in texts])
        before = f"{self.tag} " * bool(self.tag)
        outputs = [before + output.text for segment in segments for output in segment.outputs]
        sources = ([*self.first_ids, *ids] for ids in self.reverse.src.encode(outputs))
        pairs = [
            (next(sources), target)
            for segment, target in zip(segments, targets, strict=True)
            for _ in segment.outputs
        ]
        scored = iter(self.forced.score(pairs))
        for segment in segments:
            rows = [next(scored).log_probs for _ in segment.outputs]
            if all(rows):
                rescored = [
                    output._replace(score=output.score + self.weight * sum(row) / len(row))
                    for output, row in zip(segment.outputs, rows, strict=True)
                ]
                segment.outputs = sorted(rescored, key=lambda output: -output.score)
            segment.outputs = segment.outputs[: self.n_best]

    def _untagged(self, text: str) -> str:
        text = self.forward.split_language(text)[1]
        tag = max((tag for tag in self.tags if text.startswith(tag)), key=len, default="")
        return text.removeprefix(tag).lstrip()


def with_all_hypotheses(search: SearchOptions, model: Path) -> SearchOptions:
    """Return the search that gives all that there is to choose from: the beam, or all samples."""
    n_hypotheses = search.n_best
    if search.sample is None:
        n_hypotheses = max(n_hypotheses, search.decode_config(read_folder(model).config).beam_size)
    elif n_hypotheses == 1:
        raise ConfigError(
            "--rerank-with: sorts the samples of a line, and --n-best is 1; give --n-best 16, say"
        )
    if n_hypotheses == 1:
        raise ConfigError(
            "--rerank-with: sorts the hypotheses of a beam, and the beam size is 1; give "
            "--beam-size 5, say"
        )
    return replace(search, n_best=n_hypotheses, with_scores=True)


def load_reranker(
    search: SearchOptions, engine: EngineOptions, forward: Tokenizer, n_best: int
) -> Reranker:
    """Load the reverse model of `search`, to keep `n_best` outputs of each source.

    Raises MtError for what the user must correct; ConfigError for a model of another direction.
    """
    assert search.rerank_with is not None
    models = (engine.models[0], search.rerank_with)
    data, reverse = (plan_data(read_config(model).data) for model in models)
    if data.has_tokens:
        raise ConfigError(
            "--rerank-with: not where --model translates into several languages, as the reverse "
            "model must be told the source's, which may be any; leave it out"
        )
    options = EngineOptions(models=[search.rerank_with], device=engine.device)
    direction = data.direction(search.from_, search.to) or data.usual
    to = direction.src if reverse.has_tokens else None
    scorer = load_scorer(SearchOptions(to=to), options)
    return Reranker(
        scorer.forced,
        scorer.tokenizer,
        forward,
        WEIGHT if search.rerank_weight is None else search.rerank_weight,
        _tag_of(reverse, direction, search.rerank_with),
        frozenset(data.tags),
        n_best,
        read_meta(find_model(search.rerank_with), [])["sha256"][WEIGHTS],
        scorer.first_ids,
    )


def _tag_of(reverse: DataPlan, forward: Direction, model: Path) -> str:
    """Return what stands before a source of the reverse model, a line of the target language.

    `forward`: the direction that is translated.
    """
    wanted = [*map(base_code, forward.turned)]
    languages = [*map(base_code, reverse.usual)]
    flows = [flow for flow in reverse.flows if flow.direction in reverse.directions]
    directions = [([*map(base_code, flow.direction)], flow.tag) for flow in flows]
    for direction, tag in directions or [(languages, None)]:  # an imported model has no texts
        if direction == wanted:
            return tag or ""
    raise ConfigError(
        f"--rerank-with {model}: must translate from {wanted[0]} to {wanted[1]}, the reverse of "
        f"--model, found {languages[0]} to {languages[1]}; give a model of that direction, or of "
        "both"
    )
