"""Lines become lines: encode, sort, batch, search, restore the order.

The line contract: exactly one output line for each input line, in order, whatever is in it. White space alone
gives an empty line and never enters the model; a source too long for the model is translated in pieces.
"""

from __future__ import annotations

import itertools
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from mt.config import DecodeConfig, config_from_mapping
from mt.data.batches import cut, pad_rows
from mt.data.corpus import decode_lines, read_lines
from mt.data.tokenizer import EOS, PAD, Tokenizer
from mt.decoding.forced import Forced, joined_links
from mt.decoding.inference import Inference
from mt.decoding.options import SearchOptions, encode_prefixes, with_prefixes
from mt.decoding.search import Hypothesis, beam_search, greedy_search, sampling_search
from mt.devices import Device, choose_device
from mt.errors import ConfigError, DataError
from mt.files import whole_file
from mt.model.checkpoint import load_model

if TYPE_CHECKING:
    from mt.model.transformer import Transformer

# Padded source tokens x beam of a batch. On two CPU cores more gains nothing; a GPU wants to be filled.
BATCH_TOKENS = {"cpu": 8192, "cuda": 131072}
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
# What may become of bytes that are no UTF-8.
ERRORS = ("strict", "replace")


@dataclass(frozen=True)
class Translation:
    """What became of one line: the best `n_best` outputs, best first. A blank line has one, empty."""

    texts: tuple[str, ...]
    scores: tuple[float, ...]  # log-probability / length^penalty, eos counted; a sum over pieces
    pieces: int = 1  # 0 for a blank line
    alignments: tuple[str, ...] = ()  # of each output, where asked for; see `links`


@dataclass
class Tally:
    """What the closing line of a translation reports."""

    lines: int = 0
    blank: int = 0
    split: list[int] = field(default_factory=list)  # line numbers, from 1
    tokens: int = 0  # of output, eos counted
    seconds: float = 0.0

    def summary(self) -> str:
        """One line, such as `1,000 lines (2 blank) in 1.6 s: 625 lines/s, 8,200 tokens/s`."""
        rate = max(self.seconds, 1e-9)
        notes = [f"{self.blank:,} blank"] if self.blank else []
        if self.split:
            shown = ", ".join(f"{number:,}" for number in self.split[:5])
            more = ", ..." if len(self.split) > 5 else ""
            notes.append(f"{len(self.split):,} too long for the model, translated in pieces: line {shown}{more}")
        said = f" ({'; '.join(notes)})" if notes else ""
        speed = f"{self.lines / rate:,.0f} lines/s, {self.tokens / rate:,.0f} tokens/s"
        return f"{self.lines:,} line{'s' * (self.lines != 1)}{said} in {self.seconds:.1f} s: {speed}"


class Translator:
    """A model, its tokenizer and a way to search, ready to translate lines."""

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        decode: DecodeConfig,
        device: Device,
        *,
        max_source: int,
        n_best: int = 1,
        batch_tokens: int | None = None,
        options: SearchOptions | None = None,
    ) -> None:
        """`max_source`: tokens of the longest source to translate whole, eos not counted.

        Raises ConfigError if n_best is above the beam size, or for an option that the vocabulary does not allow.
        """
        self.options = options or SearchOptions()
        if n_best > decode.beam_size and self.options.sampling is None:
            raise ConfigError(
                f"--n-best: must be at most the beam size, {decode.beam_size}, found {n_best}; "
                f"lower it, or give --beam-size {n_best}"
            )
        self.inference = Inference(model, device)
        self.tokenizer, self.decode, self.n_best = tokenizer, decode, n_best
        self.max_source = min(max_source, self.inference.max_tokens - 1)
        budget = batch_tokens or BATCH_TOKENS[device.device.type]
        self.width = decode.beam_size if self.options.sampling is None else n_best  # hypotheses of a source
        self.batch_tokens = max(1, budget // self.width)
        self.constraints = self.options.constraints(tokenizer)
        self.forced = None if self.options.alignment is None else Forced(self.inference, self.options.alignment)
        self.tally = Tally()

    def translate(self, lines: Iterable[str], prefixes: Iterable[str] | None = None) -> Iterator[Translation]:
        """One `Translation` for each line, in order. Lines are read a window at a time.

        `prefixes`: what each output is to begin with, one for each line; DataError if there are more or fewer.
        """
        lines, begins = iter(lines), None if prefixes is None else iter(prefixes)
        mismatch = "--prefix: must have one line for each line to translate, but line"
        while window := list(itertools.islice(lines, WINDOW)):
            begin = [""] * len(window) if begins is None else list(itertools.islice(begins, len(window)))
            if len(begin) < len(window):
                raise DataError(f"{mismatch} {self.tally.lines + len(begin) + 1:,} of the text has no prefix")
            yield from self._window(window, begin)
        if begins is not None and next(begins, None) is not None:
            raise DataError(f"{mismatch} {self.tally.lines + 1:,} of the prefixes has no text")

    def _window(self, lines: list[str], prefixes: list[str]) -> list[Translation]:
        start = time.perf_counter()
        begins = encode_prefixes(prefixes, self.tally.lines + 1, self.inference.max_tokens - 1, self.tokenizer)
        pieces: list[list[int]] = []  # ids of every piece of every line
        first: list[list[int]] = []  # ids that the output of each piece is to begin with
        counts: list[int] = []  # pieces of each line
        for number, (line, ids) in enumerate(
            zip(lines, self.tokenizer.encode_src(lines), strict=True), self.tally.lines + 1
        ):
            if not line.strip():
                ids = []
            parts = [ids] if 0 < len(ids) <= self.max_source else self._split(line) if ids else []
            if len(parts) > 1:
                self.tally.split.append(number)
            pieces += parts
            first += [begins[len(counts)], *([] for _ in parts[1:])][: len(parts)]
            counts.append(len(parts))
        found = self._search(pieces, first)
        seen = self._attention(pieces, found)
        ends = list(itertools.accumulate(counts))
        results = [
            self._join(pieces[end - count : end], found[end - count : end], seen[end - count : end])
            for count, end in zip(counts, ends, strict=True)
        ]
        self.tally.lines += len(lines)
        self.tally.blank += counts.count(0)
        self.tally.seconds += time.perf_counter() - start
        return results

    def _attention(self, sources: list[list[int]], found: list[list[Hypothesis]]) -> list[list[Tensor]]:
        """Where the model looked for each hypothesis of each source; nothing where no alignment is asked for."""
        if self.forced is None:
            return []
        pairs = [(src, one.tokens) for src, hypotheses in zip(sources, found, strict=True) for one in hypotheses]
        maps = (reading.attention for reading in self.forced.read(pairs))
        return [[one for one in itertools.islice(maps, len(hypotheses)) if one is not None] for hypotheses in found]

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
        parts = [text[start:end] for start, end in itertools.pairwise(ends) if text[start:end].strip()]
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

    def _search(self, sources: list[list[int]], prefixes: list[list[int]] | None = None) -> list[list[Hypothesis]]:
        """The hypotheses of each source, in order; the sources are translated longest first, in like lengths."""
        lengths = np.array([len(ids) for ids in sources], np.int64)
        order = np.argsort(-lengths, kind="stable")
        found: list[list[Hypothesis]] = [[] for _ in sources]
        prefixes = prefixes or [[] for _ in sources]
        if len(sources) == 0:
            return found
        # A short source costs as much as a longer one in logits: a row of V for each hypothesis.
        sizes = np.maximum(lengths[order] + 1, LEAST_SIZE)
        for batch in np.split(order, cut(sizes, self.batch_tokens)[:-1]):
            results = self._batch([sources[i] for i in batch], [prefixes[i] for i in batch])
            for index, hypotheses in zip(batch, results, strict=True):
                found[index] = hypotheses
                self.tally.tokens += len(hypotheses[0].tokens) + 1
        return found

    def _batch(self, sources: list[list[int]], prefixes: list[list[int]]) -> list[list[Hypothesis]]:
        decode, device, sampling = self.decode, self.inference.device, self.options.sampling
        if sampling is not None:  # samples of a source are drawn side by side, each as if alone
            seeds = [sampling.seed_of(ids, number) for ids in sources for number in range(self.width)]
            sources, prefixes = ([ids for ids in rows for _ in range(self.width)] for rows in (sources, prefixes))
        src = torch.from_numpy(pad_rows([np.asarray(ids) for ids in sources], None, EOS))  # (B, S)
        longest = self.inference.max_tokens - 1  # bos takes the first position
        limits = torch.tensor(
            [
                min(longest, len(prefix) + max(1, int(decode.max_len_factor * len(ids) + decode.max_len_extra)))
                for ids, prefix in zip(sources, prefixes, strict=True)
            ],
            device=device,
        )
        rules, penalty = with_prefixes(prefixes, self.constraints), decode.length_penalty
        if sampling is not None:
            stepper = self.inference.start(src, src != PAD, 1)
            drawn = sampling_search(
                stepper,
                limits,
                seeds,
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
                length_penalty=penalty,
                constraints=rules,
            )
            return [drawn[i : i + self.width] for i in range(0, len(drawn), self.width)]
        stepper = self.inference.start(src, src != PAD, decode.beam_size)
        if decode.beam_size == 1:
            return [[one] for one in greedy_search(stepper, limits, length_penalty=penalty, constraints=rules)]
        return beam_search(
            stepper,
            limits,
            beam_size=decode.beam_size,
            length_penalty=penalty,
            n_best=self.n_best,
            constraints=rules,
        )

    def _join(self, sources: list[list[int]], parts: list[list[Hypothesis]], seen: list[list[Tensor]]) -> Translation:
        """The n-th best of a line is made of the n-th best of its parts; `seen` is empty without alignments."""
        if not parts:
            return Translation(("",), (0.0,), 0, ("",) if self.forced else ())
        tokenizer, texts, scores, alignments = self.tokenizer, [], [], []
        for rank in range(min(len(hypotheses) for hypotheses in parts)):
            best = [hypotheses[rank] for hypotheses in parts]
            texts.append(" ".join(filter(None, tokenizer.decode_tgt([list(one.tokens) for one in best]))))
            scores.append(sum(one.score for one in best))
            if seen:
                pieces = [
                    (attentions[rank], tokenizer.src_pieces_of(src), tokenizer.tgt_pieces_of(list(one.tokens)))
                    for attentions, src, one in zip(seen, sources, best, strict=True)
                ]
                alignments.append(joined_links(pieces))
        return Translation(tuple(texts), tuple(scores), len(parts), tuple(alignments))


def load_translator(
    model: Path,
    decode: Mapping[str, Any],
    batch_tokens: int | None = None,
    precision: str = "auto",
    device: str = "auto",
    n_best: int = 1,
    options: SearchOptions | None = None,
) -> Translator:
    """The model at a path ready to translate, with what `decode` gives, if not None, instead of its own settings.

    Raises MtError for what the user must mend.
    """
    chosen = choose_device(device, precision)
    loaded = load_model(model)
    values = {**loaded.config.decode.model_dump(), **{key: one for key, one in decode.items() if one is not None}}
    return Translator(
        loaded.model,
        loaded.tokenizer,
        config_from_mapping({"decode": values}, "command line").decode,
        chosen,
        max_source=loaded.config.data.max_tokens,
        n_best=n_best,
        batch_tokens=batch_tokens,
        options=options,
    )


def format_lines(translations: Iterable[Translation], n_best: int, scores: bool) -> Iterator[str]:
    """Output lines: the text; with `scores`, score and tab before it; with n_best > 1, `n ||| text ||| score`.

    An alignment comes last, after a tab or `|||`. n counts input lines from 0, as other toolkits' n-best lists do.
    """
    for number, one in enumerate(translations):
        rows = itertools.zip_longest(one.texts, one.scores, one.alignments)
        for text, score, aligned in itertools.islice(rows, n_best):
            if n_best > 1:
                last = [] if aligned is None else [aligned]
                yield " ||| ".join([str(number), text, f"{score:.4f}", *last])
            else:
                yield "\t".join(([f"{score:.4f}"] if scores else []) + [text] + ([] if aligned is None else [aligned]))


def read_input(source: str, errors: str = "strict") -> Iterator[str]:
    """Lines of a file (plain or .gz) or of stdin (`-`); bytes that are no UTF-8 are an error, or become U+FFFD.

    Raises ConfigError at once for another value of `errors`, and DataError for a file that cannot be opened.
    """
    if errors not in ERRORS:
        raise ConfigError(f"--errors: must be {' or '.join(ERRORS)}, found {errors!r}")
    if source == "-":
        if not sys.stdin:
            raise DataError("stdin: is closed; name an input file, or send text to it")
        return _with_remedy(decode_lines(sys.stdin.buffer, "stdin", errors))
    lines = _with_remedy(read_lines(Path(source), "", errors))
    # Reading one line opens the file: what is wrong with it is said before a model is loaded.
    return itertools.chain(list(itertools.islice(lines, 1)), lines)


def _with_remedy(lines: Iterator[str]) -> Iterator[str]:
    """The lines; bytes that are no UTF-8 can not only be mended in the file but also be passed over."""
    try:
        yield from lines
    except OSError as error:  # of stdin; a file's is a DataError already
        raise DataError(f"stdin: cannot be read: {error.strerror}; name an input file") from error
    except DataError as error:
        if not isinstance(error.__context__, UnicodeDecodeError):
            raise
        raise DataError(f"{error}. Or go on with --errors replace: they become U+FFFD") from None


@contextmanager
def open_output(output: str) -> Iterator[BinaryIO]:
    """Where output goes: stdout (`-`), or a file that appears whole, when the block ends well, or not at all.

    Devices and pipes (/dev/null, >(...)) are written to directly. Raises DataError where it cannot be
    written: most often on entering, so that nothing is translated in vain.
    """
    path, to_stdout = Path(output), output in ("-", "/dev/stdout")
    try:
        if to_stdout and not sys.stdout:
            raise DataError("stdout: is closed; give an output file with -o")
        if to_stdout:
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        elif path.is_dir():
            raise DataError(f"--output {output}: is a folder, a file is required; name a file in it")
        elif path.is_relative_to("/dev"):
            with path.open("ab") as file:  # /dev/fd/N may be a file that others have written to
                yield file
        else:
            with whole_file(path) as file:
                yield file
    except BrokenPipeError:  # the reader has read enough; no fault
        raise
    except OSError as error:
        if to_stdout:
            raise DataError(f"stdout: cannot be written: {error.strerror}; give an output file with -o") from error
        raise DataError(
            f"--output {output}: cannot be written in the folder {path.parent.absolute()}: {error.strerror}; nothing "
            "was left or changed there. Give a place that can be written and has room"
        ) from error


def write_lines(file: BinaryIO, lines: Iterable[str]) -> None:
    """Write each line as UTF-8 with its end."""
    file.writelines(line.encode("utf-8") + b"\n" for line in lines)
