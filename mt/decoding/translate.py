"""Lines become lines: encode, sort, batch, search, restore the order.

The line contract: exactly one output line for each input line, in order, whatever is in it. White space alone
gives an empty line and never enters the model; a source too long for the model is translated in pieces.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mt.config.load import config_from_mapping
from mt.config.schema import DecodeConfig
from mt.data.batches import batch_ends
from mt.data.tokenizer import Tokenizer
from mt.decoding import mbr
from mt.decoding.engine import Engine, Searcher
from mt.decoding.ensemble import Ensemble
from mt.decoding.inference import Inference
from mt.decoding.options import SearchOptions, encode_prefixes
from mt.decoding.quality_flags import FLAGS, Numbers, flags
from mt.decoding.scoring import ForcedDecoder, joined_links
from mt.decoding.search import Hypothesis
from mt.decoding.workers import Pool
from mt.errors import ConfigError, DataError
from mt.model.checkpoint import load_model
from mt.runtime.devices import choose_device
from mt.runtime.memory import keep_freed_memory

# Padded source tokens x beam of a batch. On two CPU cores more gains nothing; a GPU wants to be filled. For each of two
# workers half as many: 0.63 GB in all instead of 0.81 with a small model, and as fast within 5 %.
BATCH_TOKENS = {"cpu": 8192, "worker": 4096, "cuda": 131072}
# What the shortest source counts as, in tokens.
LEAST_SIZE = 8
# Lines read before they are sorted by length and translated: what is in memory at one time.
WINDOW = 20_000
# A source too long for the model is cut after these, best first: the end of a sentence, a clause, a word.
CUTS = (
    re.compile(r"(?<=[.!?…])[\"'”“’‘»«)\]]*\s+|(?<=[。！？])[”’」』）]*"),
    re.compile(r"(?<=[,;:–—])\s+|(?<=[，；：、])"),
    re.compile(r"\s+"),
)


@dataclass(frozen=True)
class Translation:
    """What became of one line: the best `n_best` outputs, best first. A blank line has one, empty."""

    texts: tuple[str, ...]
    scores: tuple[float, ...]  # log-probability / length^penalty, eos counted; a sum over pieces
    pieces: int = 1  # 0 for a blank line
    alignments: tuple[str, ...] = ()  # of each output, where asked for; see `links`
    flags: tuple[str, ...] = ()  # what makes the best output suspect; see `checks`


@dataclass
class Tally:
    """What the closing line of a translation reports."""

    lines: int = 0
    before: int = 0  # lines that an earlier start of the job has done; numbers go on after them
    blank: int = 0
    split: Numbers = field(default_factory=Numbers)
    flagged: dict[str, Numbers] = field(default_factory=dict)  # flag -> lines
    tokens: int = 0  # of output, eos counted
    seconds: float = 0.0

    def summary(self) -> str:
        """One line, such as `1,000 lines (2 blank) in 1.6 s: 625 lines/s, 8,200 tokens/s`; one more for each flag."""
        rate = max(self.seconds, 1e-9)
        notes = [f"{self.blank:,} blank"] if self.blank else []
        if self.split.count:
            notes.append(
                f"{self.split.count:,} too long for the model, translated in pieces: {self.split}"
            )
        said = f" ({'; '.join(notes)})" if notes else ""
        speed = f"{self.lines / rate:,.0f} lines/s, {self.tokens / rate:,.0f} tokens/s"
        first = (
            f"{self.lines:,} line{'s' * (self.lines != 1)}{said} in {self.seconds:.1f} s: {speed}"
        )
        suspect = [
            f"{flag}: {lines.count:,} ({meaning}): {lines}"
            for flag, meaning in FLAGS.items()
            if (lines := self.flagged.get(flag))
        ]
        return "\n".join([first, *suspect])


class Translator:
    """An engine, its tokenizer and a way to search, ready to translate lines.

    A context manager: leaving it ends its worker processes, if it has any.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        decode: DecodeConfig,
        *,
        max_source: int,
        n_best: int = 1,
        batch_tokens: int | None = None,
        options: SearchOptions | None = None,
        max_ratio: float = 3.0,
        workers: int = 1,
        origin: Mapping[str, str] | None = None,
    ) -> None:
        """`max_source`: tokens of the longest source to translate whole, eos not counted. `max_ratio`: of lengths,
        beyond which an output is flagged. `origin`: what else an output depends on, for `settings`.

        Raises ConfigError for what does not go together or is not in the vocabulary.
        """
        self.options = options or SearchOptions()
        sampling = self.options.sampling
        if n_best > decode.beam_size and sampling is None:
            raise ConfigError(
                f"--n-best: must be at most the beam size, {decode.beam_size}, found {n_best}; "
                f"lower it, or give --beam-size {n_best}"
            )
        if self.options.mbr is not None and n_best == 1:
            raise ConfigError(
                "--mbr: chooses among several outputs of a line; give --n-best 16, say, with --sample"
            )
        self.utility = None if self.options.mbr is None else mbr.metric(self.options.mbr)
        self.tokenizer, self.max_ratio, self.origin = tokenizer, max_ratio, dict(origin or {})
        self.searcher = Searcher(
            engine,
            decode,
            n_best,
            sampling,
            self.options.constraints(tokenizer),
            self.options.exact,
        )
        self.max_source = min(max_source, engine.max_tokens - 1)
        budget = batch_tokens or BATCH_TOKENS["worker" if workers > 1 else engine.device.type]
        self.batch_tokens = max(1, budget // self.searcher.width)
        self.forced = self._forced()
        self.tally = Tally()
        self.pool = Pool(self.searcher, workers) if workers > 1 else None

    def __enter__(self) -> Translator:
        return self

    def __exit__(self, *_: object) -> None:
        if self.pool is not None:
            self.pool.close()

    def settings(self) -> dict[str, str]:
        """What an output depends on besides the models, by the name of the option."""
        decode = self.searcher.decode
        return {
            "--beam-size": str(decode.beam_size),
            "--length-penalty": str(decode.length_penalty),
            "--n-best": str(self.searcher.n_best),
            "search option": repr(self.options),
            **self.origin,
        }

    def _forced(self) -> ForcedDecoder | None:
        if self.options.alignment is None:
            return None
        if not isinstance(self.searcher.engine, Inference):
            raise ConfigError(
                "--alignments: are those of one model; leave them out, or give one --model"
            )
        return ForcedDecoder(self.searcher.engine, self.options.alignment)

    def translate(
        self, lines: Iterable[str], prefixes: Iterable[str] | None = None
    ) -> Iterator[Translation]:
        """One `Translation` for each line, in order. Lines are read a window at a time.

        `prefixes`: what each output is to begin with, one for each line; DataError if there are more or fewer.
        """
        lines = iter(lines)
        for results in self.translate_windows(
            iter(lambda: list(itertools.islice(lines, WINDOW)), []), prefixes
        ):
            yield from results

    def translate_windows(
        self, windows: Iterable[list[str]], prefixes: Iterable[str] | None = None
    ) -> Iterator[list[Translation]]:
        """As `translate`, of windows of lines that the caller has cut."""
        begins = None if prefixes is None else iter(prefixes)
        mismatch = "--prefix: must have one line for each line to translate, but line"
        for window in windows:
            begin = (
                [""] * len(window)
                if begins is None
                else list(itertools.islice(begins, len(window)))
            )
            first = self.tally.before + self.tally.lines + 1
            if len(begin) < len(window):
                raise DataError(f"{mismatch} {first + len(begin):,} of the text has no prefix")
            yield self._window(window, begin, first)
        if begins is not None and next(begins, None) is not None:
            raise DataError(
                f"{mismatch} {self.tally.before + self.tally.lines + 1:,} of the prefixes has no text"
            )

    def _window(self, lines: list[str], prefixes: list[str], first_line: int) -> list[Translation]:
        start, tally = time.perf_counter(), self.tally
        begins = encode_prefixes(
            prefixes, first_line, self.searcher.engine.max_tokens - 1, self.tokenizer
        )
        pieces: list[list[int]] = []  # ids of every piece of every line
        first: list[list[int]] = []  # ids that the output of each piece is to begin with
        ends: list[int] = []  # where each line's pieces end
        for number, (line, ids) in enumerate(
            zip(lines, self.tokenizer.encode_src(lines), strict=True), first_line
        ):
            parts = [ids] if 0 < len(ids) <= self.max_source else self._split(line) if ids else []
            if len(parts) > 1:
                tally.split.add(number)
            pieces += parts
            first += [begins[len(ends)], *([] for _ in parts[1:])][: len(parts)]
            ends.append(len(pieces))
        found = self._search(pieces, first)
        texts = self._texts(found)
        results: list[Translation] = []
        kept: list[
            list[list[Hypothesis]]
        ] = []  # of each line, for each output, the hypotheses it is made of
        for line, (begin, end) in zip(lines, itertools.pairwise([0, *ends]), strict=True):
            place = slice(begin, end)
            one, ranks = self._join(line, pieces[place], first[place], found[place], texts[place])
            results.append(one)
            kept.append(ranks)
        if self.forced is not None:
            results = self._aligned(self.forced, results, kept, iter(pieces))
        for number, one in enumerate(results, first_line):
            for flag in one.flags:
                tally.flagged.setdefault(flag, Numbers()).add(number)
            tally.blank += one.pieces == 0
        tally.lines += len(lines)
        tally.seconds += time.perf_counter() - start
        return results

    def _aligned(
        self,
        forced: ForcedDecoder,
        results: list[Translation],
        kept: list[list[list[Hypothesis]]],
        pieces: Iterator[list[int]],
    ) -> list[Translation]:
        """The results with their alignments; `pieces` are the ids of all pieces of all lines."""
        tokenizer = self.tokenizer
        sources = [list(itertools.islice(pieces, one.pieces)) for one in results]
        pairs = [
            [(src, list(one.tokens)) for best in ranks for src, one in zip(line, best, strict=True)]
            for line, ranks in zip(sources, kept, strict=True)
        ]
        readings = iter(forced.read([pair for line in pairs for pair in line], scored=False))
        aligned = []
        for one, line in zip(results, pairs, strict=True):
            parts = [
                (reading.attention, tokenizer.src_pieces_of(src), tokenizer.tgt_pieces_of(tgt))
                for (src, tgt), reading in zip(
                    line, itertools.islice(readings, len(line)), strict=True
                )
                if reading.attention is not None
            ]
            rows = [
                joined_links(parts[i : i + one.pieces])
                for i in range(0, len(parts), max(1, one.pieces))
            ]
            aligned.append(replace(one, alignments=tuple(rows) or ("",)))
        return aligned

    def _split(self, line: str) -> list[list[int]]:
        """Ids of the pieces of a line that is too long: at sentence ends, else clauses, else words, else anywhere."""
        pieces = [line]
        for separator in CUTS:
            pieces = [small for piece in pieces for small in self._pack(separator, piece)]
        ids = [one for one in self.tokenizer.encode_src(pieces) if one]
        step = self.max_source
        return [one[i : i + step] for one in ids for i in range(0, len(one), step)]

    def _pack(self, separator: re.Pattern[str], text: str) -> list[str]:
        """Cut `text` after separators into as few pieces as fit the model; those that cannot be cut stay long."""
        ends = [0, *(match.end() for match in separator.finditer(text)), len(text)]
        parts = [
            text[start:end] for start, end in itertools.pairwise(ends) if text[start:end].strip()
        ]
        sizes = [len(ids) for ids in self.tokenizer.encode_src([text, *parts])]
        if sizes[0] <= self.max_source:
            return [text]
        packed: list[str] = []
        room = 0
        for part, size in zip(parts, sizes[1:], strict=True):
            if packed and size <= room:
                packed[-1] += part
                room -= size
            else:
                packed.append(part)
                room = self.max_source - size
        return packed

    def _search(
        self, sources: list[list[int]], prefixes: list[list[int]]
    ) -> list[list[Hypothesis]]:
        """The hypotheses of each source, in order; the sources are translated longest first, in like lengths."""
        lengths = np.array([len(ids) for ids in sources], np.int64)
        order = np.argsort(-lengths, kind="stable")
        found: list[list[Hypothesis]] = [[] for _ in sources]
        if len(sources) == 0:
            return found
        # A short source costs as much as a longer one in logits: a row of V for each hypothesis.
        sizes = np.maximum(lengths[order] + 1, LEAST_SIZE)
        budget = self.batch_tokens
        if self.pool is not None:  # something for each
            budget = min(budget, max(int(sizes[0]), int(sizes.sum()) // len(self.pool.workers)))
        batches = np.split(order, self._cuts(sizes, budget))
        jobs = [([sources[i] for i in batch], [prefixes[i] for i in batch]) for batch in batches]
        answers = (
            enumerate(itertools.starmap(self.searcher, jobs))
            if self.pool is None
            else self.pool.run(jobs)
        )
        for number, answer in answers:
            for index, hypotheses in zip(batches[number], answer, strict=True):
                found[index] = hypotheses
                self.tally.tokens += len(hypotheses[0].tokens) + 1
        return found

    def _cuts(self, sizes: np.ndarray, budget: int) -> list[int]:
        """Where batches of at most `budget` padded tokens begin, the first one apart; `sizes` descending."""
        if self.pool is None or sizes.sum() < 4 * budget * len(self.pool.workers):
            return batch_ends(sizes, budget)[:-1]
        # The last work comes in quarters, so that all workers are done at about the same time: 5,000 sentences make 16
        # batches, so that one of them is 6 % of the work.
        left = sizes[::-1].cumsum()[::-1]  # from here on
        quarters = len(left) - int(
            np.searchsorted(left[::-1], budget * len(self.pool.workers), side="right")
        )
        return [
            *batch_ends(sizes[:quarters], budget),
            *(quarters + end for end in batch_ends(sizes[quarters:], budget // 4)),
        ][:-1]

    def _texts(self, found: list[list[Hypothesis]]) -> list[list[str]]:
        """The text of every hypothesis; all at once, for a call of the tokenizer costs more than ten rows."""
        texts = iter(self.tokenizer.decode_tgt([list(one.tokens) for row in found for one in row]))
        return [list(itertools.islice(texts, len(row))) for row in found]

    def _join(
        self,
        line: str,
        sources: list[list[int]],
        prefixes: list[list[int]],
        parts: list[list[Hypothesis]],
        spoken: list[list[str]],
    ) -> tuple[Translation, list[list[Hypothesis]]]:
        """The n-th best of a line is made of the n-th best of its parts, whose texts are `spoken`.

        Beside it, what each output is made of.
        """
        if not parts:
            return Translation(("",), (0.0,), 0), []
        ranks = [[hypotheses[rank] for hypotheses in parts] for rank in range(min(map(len, parts)))]
        texts = [
            " ".join(filter(None, (row[rank] for row in spoken))) for rank in range(len(ranks))
        ]
        if self.utility is not None:
            place = mbr.choose(texts, self.utility).place
            ranks, texts = [ranks[place]], [texts[place]]
        limit = self.searcher.limit
        suspect = flags(
            line,
            texts[0],
            sum(map(len, sources)),
            sum(len(one.tokens) for one in ranks[0]),
            truncated=any(
                len(one.tokens) >= limit(*of)
                for one, *of in zip(ranks[0], sources, prefixes, strict=True)
            ),
            max_ratio=self.max_ratio,
        )
        scores = tuple(sum(one.score for one in best) for best in ranks)
        return Translation(tuple(texts), scores, len(parts), flags=suspect), ranks


def load_translator(
    models: Sequence[Path],
    decode: Mapping[str, Any],
    *,
    batch_tokens: int | None = None,
    precision: str = "auto",
    device: str = "auto",
    n_best: int = 1,
    options: SearchOptions | None = None,
    ensemble: str | None = None,
    workers: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Translator:
    """The models at these paths ready to translate, as an ensemble if they are several.

    What `decode` gives, if not None, is used instead of the first model's own settings. `workers`: processes on a
    CPU, None for as many as it has cores. `say` is told what is not as asked for.

    Raises MtError for what the user must mend.
    """
    chosen = choose_device(device, precision, say)
    if chosen.is_cuda and (workers or 1) > 1:
        raise ConfigError(
            f"--workers: processes share the cores of a CPU, a GPU takes 1, found {workers}"
        )
    if ensemble is not None and len(models) == 1:
        raise ConfigError(
            "--ensemble: takes several models, found one; give --model again, or leave it out"
        )
    if not chosen.is_cuda:
        keep_freed_memory()
    loaded = [load_model(path) for path in models]
    first = loaded[0]
    for path, other in zip(models[1:], loaded[1:], strict=True):
        if other.tokenizer.fingerprint != first.tokenizer.fingerprint:
            raise ConfigError(
                f"--model {path}: has another vocabulary than {models[0]}; an ensemble takes models that were trained "
                "with the same tokenizer"
            )
    values = {
        **first.config.decode.model_dump(),
        **{key: one for key, one in decode.items() if one is not None},
    }
    members = [Inference(one.model, chosen) for one in loaded]
    return Translator(
        members[0] if len(members) == 1 else Ensemble(members, ensemble or "probability"),
        first.tokenizer,
        config_from_mapping({"decode": values}, "command line").decode,
        max_source=min(one.config.data.max_tokens for one in loaded),
        n_best=n_best,
        batch_tokens=batch_tokens,
        options=options,
        max_ratio=first.config.data.max_length_ratio,
        workers=1 if chosen.is_cuda else workers or torch.get_num_threads(),
        origin={
            "--model": " ".join(str(one.meta["sha256"]["model.safetensors"]) for one in loaded),
            "--ensemble": ensemble or "probability",
            "--precision": chosen.precision,
        },
    )
