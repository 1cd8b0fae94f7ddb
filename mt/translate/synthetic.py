"""A training corpus made by a model: lines are translated, filtered, and written as TSV.

`mt backtranslate` and `mt distill` do this; they differ in which side of a pair the model writes.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, BinaryIO

from mt.config.schema import DataConfig
from mt.data.cleaning.filters import Counts, DuplicateFilter, keeps_length
from mt.data.tokens.tokenizer import Tokenizer, normalize_line
from mt.errors import ConfigError, DataError
from mt.translate.lines import Translation
from mt.translate.progress import Progress
from mt.translate.quality_flags import FLAGS, flags
from mt.translate.resume import ResumableOutput
from mt.translate.streaming import open_output, window_size, windows, write_lines
from mt.translate.translate_file import TranslateOptions
from mt.translate.translator import Translator

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

# Quality flags that drop a pair. The others are implied by `keeps_length`.
FATAL_FLAGS = ("copied", "looping", "truncated")
# The columns of the corpus, as an entry of `data.train` names them.
TSV_COLUMNS = {"src": 1, "tgt": 2}


class PairFilter:
    """Drops lines and pairs that are unfit for training, and counts them by reason.

    A line is blank or repeated, or the pair made of it is too long or too unequal in length, or the
    output has one of `FATAL_FLAGS`.
    """

    def __init__(self, tokenizer: Tokenizer, data: DataConfig) -> None:
        """`data`: the limits of lengths, in tokens of `tokenizer`."""
        self.tokenizer = tokenizer
        self.data = data
        self.of_lines = Counts()
        self.of_pairs = Counts()
        self.flagged: Counter[str] = Counter()

    def keep_lines(self, lines: Iterable[str], whole: bool) -> Iterator[str]:
        """Yield the lines, with an empty one for each that is not to be translated.

        `whole`: lines are duplicates if equal as a whole, otherwise if equal up to the first tab.
        """
        duplicates = DuplicateFilter()
        for line in lines:
            self.of_lines.read += 1
            text, _, rest = line.partition("\t")
            if not text:
                self.of_lines.empty += 1
                yield ""
            elif duplicates.is_duplicate(text, rest if whole else "", 1.0):
                self.of_lines.duplicate += 1
                yield ""
            else:
                yield line

    def keep_pairs(
        self, texts: Sequence[str], outputs: Sequence[str], truncated: Sequence[bool]
    ) -> list[bool]:
        """Whether each pair of a text and its translation is kept. Empty texts are not counted.

        `truncated`: whether the search has stopped at the length limit.
        """
        n_texts = [len(ids) for ids in self.tokenizer.encode_src(list(texts))]
        n_outputs = [len(ids) for ids in self.tokenizer.encode_tgt(list(outputs))]
        rows = zip(texts, outputs, n_texts, n_outputs, truncated, strict=True)
        return [bool(row[0]) and self._keeps(*row) for row in rows]

    def _keeps(self, text: str, output: str, n_text: int, n_output: int, truncated: bool) -> bool:
        if not keeps_length(n_text, n_output, self.data, self.of_pairs):
            return False
        max_ratio = self.data.max_length_ratio
        found = flags(text, output, n_text, n_output, truncated=truncated, max_ratio=max_ratio)
        for flag in FATAL_FLAGS:
            if flag in found:
                self.flagged[flag] += 1
                return False
        return True

    @property
    def counts(self) -> dict[str, int]:
        """Dropped pairs by reason: what an interrupted job must remember."""
        return {**asdict(self.of_pairs), **self.flagged}

    @counts.setter
    def counts(self, counts: dict[str, int]) -> None:
        known = asdict(Counts())
        self.of_pairs = Counts(**{name: counts[name] for name in counts if name in known})
        self.flagged = Counter({name: counts[name] for name in counts if name in FATAL_FLAGS})

    @property
    def kept(self) -> int:
        """Pairs that were not dropped."""
        return (self.of_lines + self.of_pairs).kept - self.flagged.total()

    def summary(self) -> str:
        """One line, such as `9 of 10 pairs kept; dropped: 1 looping (repeats itself ...)`."""
        both = self.of_lines + self.of_pairs
        reasons = both.reasons(self.data) + [
            f"{count:,} {flag} ({FLAGS[flag]})" for flag, count in sorted(self.flagged.items())
        ]
        dropped = f"; dropped: {', '.join(reasons)}" if reasons else ""
        return f"{self.kept:,} of {both.read:,} pairs kept{dropped}"


def check_output(options: TranslateOptions) -> None:
    """Raise ConfigError if the output is not a TSV file."""
    if not options.output.endswith(".tsv"):
        raise ConfigError(
            f"--output {options.output}: must be a file whose name ends in .tsv, as training takes "
            "it for two columns then; name it so"
        )


def make_corpus(
    options: TranslateOptions,
    lines: Iterable[str],
    total: int | None,
    row: Callable[[str, str], tuple[str, str]],
    say: Callable[[str], None],
    utility: BLEU | CHRF | None = None,
    made_with: Mapping[str, str] | None = None,
) -> PairFilter:
    r"""Translate lines and write the pairs that pass the filters to `options.output`.

    A line is a text to translate, or a text, a tab and its reference. `total`: the lines, if known.
    `row` makes (source, target) of a text and its translation. `utility` chooses that of the n-best
    translations that is most like the reference; None takes the best one. `made_with`: what else
    the output depends on, by the name of its option.

    Returns the filter with its counts. Raises MtError for what the user must correct.
    """
    search = options.search_options()
    output = ResumableOutput(options.resume)
    output.made_with |= made_with or {}
    with open_output(options.output, output.open) as file:
        translator = options.load_translator(search, say)
        data = DataConfig(max_tokens=translator.max_source, max_length_ratio=translator.max_ratio)
        pair_filter = PairFilter(translator.tokenizer, data)
        pair_filter.counts = output.counts
        fresh = pair_filter.keep_lines(map(_normalized, lines), whole=utility is not None)
        progress = Progress(total, output.lines, say, options.on_terminal())
        with translator, progress:
            translator.on_progress = progress.update
            left = output.remaining(fresh, translator.settings)
            _write_pairs(translator, left, row, utility, pair_filter, file, output)
        if not pair_filter.kept:
            raise DataError(
                f"--output {options.output}: not written, as no pair is fit for training: "
                f"{pair_filter.summary()}; check the text and the model's direction"
            )
    translator.tally.blank = 0  # the filter tells blank lines from repeated ones
    say(translator.tally.summary().partition("\n")[0])
    say(f"{options.output}: {pair_filter.summary()}")
    return pair_filter


def _normalized(line: str) -> str:
    """Normalise both cells of a line; what tokens do not see, as tabs, would not fit into TSV."""
    return "\t".join(normalize_line(cell) for cell in line.split("\t", 1))


def _write_pairs(
    translator: Translator,
    lines: Iterator[str],
    row: Callable[[str, str], tuple[str, str]],
    utility: BLEU | CHRF | None,
    pair_filter: PairFilter,
    file: BinaryIO,
    output: ResumableOutput,
) -> None:
    tally = translator.tally
    tally.before = output.lines
    read: deque[list[str]] = deque()  # windows that are not written yet

    def texts() -> Iterator[list[str]]:
        for window in windows(lines, lambda: window_size(tally, translator.engine.window)):
            read.append(window)
            yield [line.partition("\t")[0] for line in window]

    for translations in translator.translate_windows(texts()):
        window = read.popleft()
        sources = [line.partition("\t")[0] for line in window]
        outputs = [
            most_similar(translation.texts, line.partition("\t")[2], utility)
            for line, translation in zip(window, translations, strict=True)
        ]
        kept = pair_filter.keep_pairs(
            sources,
            outputs,
            [
                _stopped_early(text, translation)
                for text, translation in zip(outputs, translations, strict=True)
            ],
        )
        rows = zip(sources, outputs, kept, strict=True)
        write_lines(file, ("\t".join(row(text, made)) for text, made, keep in rows if keep))
        output.counts = pair_filter.counts
        output.finished(file, window)


def most_similar(outputs: Sequence[str], reference: str, utility: BLEU | CHRF | None) -> str:
    """Return the output with the highest sentence score against the reference; of ties the first.

    The first output without a utility, or without a reference.
    """
    if utility is None or not reference:
        return outputs[0]
    return max(outputs, key=lambda text: utility.sentence_score(text, [reference]).score)


def _stopped_early(output: str, translation: Translation) -> bool:
    """Whether the search stopped this output at the length limit, which is known of the best."""
    return "truncated" in translation.flags and output == translation.texts[0]
