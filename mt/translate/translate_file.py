"""The whole of `mt translate`: its options in, an output file and a summary out."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mt.data.reading.text_files import count_lines
from mt.errors import ConfigError, DataError
from mt.files import sha256_of
from mt.search.options import Sampling, SearchOptions, sampling_of
from mt.translate.converted import Convert
from mt.translate.formats import LineFormat
from mt.translate.progress import Progress
from mt.translate.resume import ResumableOutput
from mt.translate.streaming import (
    open_output,
    read_file,
    read_input,
    refuse_overwrite,
    translate_lines,
    with_note_about_returns,
)
from mt.translate.translator import Translator, load_translator

# Seconds after which lines from stdin are translated if no more arrive.
STDIN_WAIT = 0.2
# Bytes of a file that is worth a process for each GPU, and compiling: both take seconds.
LARGE_INPUT = 10_000_000
# New objects after which Python looks for cyclic garbage. A window of lines is some 500,000, none
# of them garbage, and by default all are looked through again and again: 1.5 s against 0.9 s for
# all that is not decoding, 20,000 lines on Zen 4.
GARBAGE_THRESHOLD = 100_000


@dataclass(frozen=True, kw_only=True)
class TranslateOptions:
    """The options of `mt translate` as given on the command line; None: not given."""

    models: Sequence[Path]
    source: str = "-"
    output: str = "-"
    beam_size: int | None = None
    length_penalty: float | None = None
    n_best: int = 1
    scores: bool = False
    line_format: str = "text"
    column: int | None = None
    field: str | None = None
    errors: str = "strict"
    resume: bool = False
    max_wait: float | None = None
    alignments: bool = False
    alignment_heads: str | None = None
    prefix: Path | None = None
    min_length: int = 0
    no_repeat_ngram: int = 0
    repetition_penalty: float = 1.0
    forbid: Sequence[str] = ()
    exact: bool = False
    sample: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    mbr: str | None = None
    ensemble: str | None = None
    workers: int | None = None
    batch_tokens: int | None = None
    engine: str = "auto"
    shortlist: Path | None = None  # a vocabulary map
    convert: Convert | None = None  # what converts a model for CTranslate2
    precision: str = "auto"
    device: str = "auto"

    def search_options(self) -> SearchOptions:
        """Return what is asked of the search. Raises ConfigError for what does not go together."""
        return SearchOptions(
            min_length=self.min_length,
            no_repeat_ngram=self.no_repeat_ngram,
            repetition_penalty=self.repetition_penalty,
            forbidden=tuple(self.forbid),
            sampling=self._sampling(),
            alignment=self.alignment_heads or ("auto" if self.alignments else None),
            exact=self.exact,
            mbr=self.mbr,
        )

    def _sampling(self) -> Sampling | None:
        values = {
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "seed": self.seed,
        }
        given = {name: value for name, value in values.items() if value is not None}
        return sampling_of(self.sample, self.beam_size, given)

    def format_of_lines(self) -> LineFormat:
        """Return the format of input and output lines. Raises ConfigError as `LineFormat` does."""
        outputs = 1 if self.mbr else self.n_best
        return LineFormat(self.line_format, self.column, self.field, outputs, self.scores)

    def on_terminal(self) -> bool:
        """Whether a progress bar can be shown: not between lines that appear on the terminal."""
        to_stdout = self.output == "-" and sys.stdout is not None
        return sys.stderr.isatty() and not (to_stdout and sys.stdout.isatty())

    def _is_large(self) -> bool:
        """Whether the input is worth starting a process for each GPU."""
        source = Path(self.source)
        return source.is_file() and source.stat().st_size >= LARGE_INPUT

    def load_translator(self, search: SearchOptions, say: Callable[[str], None]) -> Translator:
        """Load the models, ready to translate."""
        gc.set_threshold(GARBAGE_THRESHOLD)
        return load_translator(
            self.models,
            {"beam_size": self.beam_size, "length_penalty": self.length_penalty},
            batch_tokens=self.batch_tokens,
            precision=self.precision,
            device=self.device,
            n_best=self.n_best,
            options=search,
            ensemble=self.ensemble,
            workers=self.workers,
            large=self._is_large(),
            engine=self.engine,
            prefixes=self.prefix is not None,
            shortlist=self.shortlist,
            with_scores=self.scores or self.n_best > 1,
            convert=self.convert,
            say=say,
        )


def translate_file(options: TranslateOptions, say: Callable[[str], None]) -> None:
    """Translate `options.source` into `options.output` and `say` a summary.

    Options, input and output are checked before a model is loaded. Raises MtError for what the
    user must correct.
    """
    if options.resume and options.output == "-":
        raise ConfigError("--resume: continues an output file; name it with -o")
    search = options.search_options()
    line_format = options.format_of_lines()
    prefix = options.prefix
    refuse_overwrite(options.output, {"the input": options.source, "--prefix": prefix})
    lines = read_input(options.source, options.errors)
    prefixes = None if prefix is None else read_file(prefix, "--prefix")
    output = ResumableOutput(options.resume)
    output.made_with["--prefix"] = (
        sha256_of(prefix) if prefix is not None and prefix.is_file() else str(prefix)
    )
    max_wait = options.max_wait
    if max_wait is None and options.source == "-":
        max_wait = STDIN_WAIT
    name = "stdin" if options.source == "-" else options.source
    lines = with_note_about_returns(lines, name, say)
    with open_output(options.output, output.open) as file:
        translator = options.load_translator(search, say)
        before = output.lines
        progress = Progress(number_of_lines(options.source), before, say, options.on_terminal())
        with translator, progress:
            translator.on_progress = progress.update
            translate_lines(translator, lines, name, prefixes, line_format, file, output, max_wait)
    say(translator.tally.summary())


def number_of_lines(source: str) -> int | None:
    """The lines of a regular file; None of a stream, and of a file that cannot be read."""
    if source != "-" and Path(source).is_file():
        with suppress(DataError):  # reported when it is translated
            return count_lines(Path(source), "")
    return None
