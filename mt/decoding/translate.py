"""Lines become lines: encode, sort, batch, search, restore the order.

The line contract: exactly one output line for each input line, in order, whatever is in it. White space alone
gives an empty line and never enters the model; a source too long for the model is translated in pieces.
"""

from __future__ import annotations

import itertools
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import torch

from mt.data.batches import cut, pad_rows
from mt.data.corpus import decode_lines, read_lines
from mt.data.tokenizer import EOS, PAD, Tokenizer
from mt.decoding.inference import Inference
from mt.decoding.search import Hypothesis, beam_search, greedy_search
from mt.errors import ConfigError, DataError
from mt.files import whole_file

if TYPE_CHECKING:
    from mt.config import DecodeConfig
    from mt.devices import Device
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
    ) -> None:
        """`max_source`: tokens of the longest source to translate whole, eos not counted.

        Raises ConfigError if n_best is above the beam size.
        """
        if n_best > decode.beam_size:
            raise ConfigError(
                f"--n-best: must be at most the beam size, {decode.beam_size}, found {n_best}; "
                f"lower it, or give --beam-size {n_best}"
            )
        self.inference = Inference(model, device)
        self.tokenizer, self.decode, self.n_best = tokenizer, decode, n_best
        self.max_source = min(max_source, self.inference.max_tokens - 1)
        budget = batch_tokens or BATCH_TOKENS[device.device.type]
        self.batch_tokens = max(1, budget // decode.beam_size)
        self.tally = Tally()

    def translate(self, lines: Iterable[str]) -> Iterator[Translation]:
        """One `Translation` for each line, in order. Lines are read a window at a time."""
        window: list[str] = []
        for line in lines:
            window.append(line)
            if len(window) == WINDOW:
                yield from self._window(window)
                window = []
        yield from self._window(window)

    def _window(self, lines: list[str]) -> list[Translation]:
        start = time.perf_counter()
        pieces: list[list[int]] = []  # ids of every piece of every line
        counts = []  # pieces of each line
        for number, (line, ids) in enumerate(
            zip(lines, self.tokenizer.encode_src(lines), strict=True), self.tally.lines + 1
        ):
            if not line.strip():
                ids = []
            parts = [ids] if 0 < len(ids) <= self.max_source else self._split(line) if ids else []
            if len(parts) > 1:
                self.tally.split.append(number)
            pieces += parts
            counts.append(len(parts))
        found = iter(self._search(pieces))
        results = [self._join([next(found) for _ in range(count)]) for count in counts]
        self.tally.lines += len(lines)
        self.tally.blank += counts.count(0)
        self.tally.seconds += time.perf_counter() - start
        return results

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

    def _search(self, sources: list[list[int]]) -> list[list[Hypothesis]]:
        """The hypotheses of each source, in order; the sources are translated longest first, in like lengths."""
        lengths = np.array([len(ids) for ids in sources], np.int64)
        order = np.argsort(-lengths, kind="stable")
        found: list[list[Hypothesis]] = [[] for _ in sources]
        if len(sources) == 0:
            return found
        # A short source costs as much as a longer one in logits: a row of V for each hypothesis.
        sizes = np.maximum(lengths[order] + 1, LEAST_SIZE)
        for batch in np.split(order, cut(sizes, self.batch_tokens)[:-1]):
            for index, hypotheses in zip(batch, self._batch([sources[i] for i in batch]), strict=True):
                found[index] = hypotheses
                self.tally.tokens += len(hypotheses[0].tokens) + 1
        return found

    def _batch(self, sources: list[list[int]]) -> list[list[Hypothesis]]:
        decode, device = self.decode, self.inference.device
        src = torch.from_numpy(pad_rows([np.asarray(ids) for ids in sources], None, EOS))  # (B, S)
        longest = self.inference.max_tokens - 1  # bos takes the first position
        limits = torch.tensor(
            [min(longest, max(1, int(decode.max_len_factor * len(ids) + decode.max_len_extra))) for ids in sources],
            device=device,
        )
        stepper = self.inference.start(src, src != PAD, decode.beam_size)
        if decode.beam_size == 1:
            return [[one] for one in greedy_search(stepper, limits, length_penalty=decode.length_penalty)]
        return beam_search(
            stepper,
            limits,
            beam_size=decode.beam_size,
            length_penalty=decode.length_penalty,
            n_best=self.n_best,
        )

    def _join(self, pieces: Sequence[list[Hypothesis]]) -> Translation:
        """The n-th best of a line is made of the n-th best of its pieces."""
        if not pieces:
            return Translation(("",), (0.0,), 0)
        count = min(len(hypotheses) for hypotheses in pieces)
        texts = []
        for rank in range(count):
            parts = self.tokenizer.decode_tgt([list(hypotheses[rank].tokens) for hypotheses in pieces])
            texts.append(" ".join(part for part in parts if part))
        scores = [sum(hypotheses[rank].score for hypotheses in pieces) for rank in range(count)]
        return Translation(tuple(texts), tuple(scores), len(pieces))


def format_lines(translations: Iterable[Translation], n_best: int, scores: bool) -> Iterator[str]:
    """Output lines: the text; with `scores`, score and tab before it; with n_best > 1, `n ||| text ||| score`.

    n counts input lines from 0, as other toolkits' n-best lists do.
    """
    for number, one in enumerate(translations):
        if n_best > 1:
            for text, score in zip(one.texts, one.scores, strict=True):
                yield f"{number} ||| {text} ||| {score:.4f}"
        else:
            yield f"{one.scores[0]:.4f}\t{one.texts[0]}" if scores else one.texts[0]


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
