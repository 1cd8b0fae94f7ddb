"""A training corpus made by a model: lines are translated, filtered, and written as TSV.

Back-translation: Sennrich et al., 2016; sampled instead of searched, Edunov et al., 2018; tagged,
Caswell et al., 2019.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mt.config.plan import Limits
from mt.config.yaml_text import dump
from mt.data.reading.corpus_record import CleanedRecord, read_record, record_path
from mt.data.reading.languages import require_language
from mt.data.reading.text_files import normalize_line
from mt.data.tokens.duplicates import pair_keys
from mt.data.tokens.store import LENGTH_FAULTS, Counts, length_fault
from mt.data.tokens.tokenizer import Tokenizer
from mt.errors import ConfigError, DataError
from mt.files import sha256_of
from mt.runs.model_folder import find_model, open_model
from mt.runs.origin import corpora_of_output, corpora_of_text
from mt.search.options import EngineOptions, SearchOptions
from mt.terminal import Progress, can_show_bar, say
from mt.translate.lines import Translation
from mt.translate.load import load_translator
from mt.translate.quality_flags import FLAGS, flags
from mt.translate.resume import ResumableOutput
from mt.translate.streaming import TextFiles, open_output, refuse_overwrite, write_lines
from mt.translate.translate_file import number_of_lines

# Quality flags that drop a pair. The others are implied by `length_fault`.
FATAL_FLAGS = ("copied", "looping", "truncated")
# The columns of the corpus, as an entry of `data.train` names them.
TSV_COLUMNS = {"src": 1, "tgt": 2}


class PairFilter:
    """Drops blank and repeated lines, and pairs by their lengths or `FATAL_FLAGS`; counts them."""

    def __init__(self, tokenizer: Tokenizer, limits: Limits) -> None:
        """`limits`: the limits of lengths, in tokens of `tokenizer`."""
        self.tokenizer, self.limits = tokenizer, limits
        self.line_counts = Counts()
        # Pairs dropped by reason, which an interrupted job must remember.
        self.counts: Counter[str] = Counter()

    def keep_lines(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the lines, with an empty one for each that is not to be translated."""
        seen: set[bytes] = set()  # 110 bytes a line
        for line in lines:
            self.line_counts.read += 1
            text, _, rest = line.partition("\t")
            key = pair_keys([(text, rest)]).tobytes()
            self.line_counts.empty += not text
            self.line_counts.duplicate += bool(text) and key in seen
            yield line if text and key not in seen else ""
            seen.add(key)

    def keep_pairs(
        self, texts: Sequence[str], outputs: Sequence[str], truncated: Sequence[bool]
    ) -> list[bool]:
        """Whether each pair is kept, no empty text is; `truncated`: stopped at the length limit."""
        n_texts = [len(ids) for ids in self.tokenizer.src.encode(list(texts))]
        n_outputs = [len(ids) for ids in self.tokenizer.tgt.encode(list(outputs))]
        rows = zip(texts, outputs, n_texts, n_outputs, truncated, strict=True)
        faults = [self._fault(*row) if row[0] else None for row in rows]
        self.counts.update(filter(None, faults))
        return [fault == "" for fault in faults]

    def _fault(self, text: str, output: str, n_text: int, n_output: int, truncated: bool) -> str:
        """Return why a pair is dropped, one of `LENGTH_FAULTS` or `FATAL_FLAGS`; "": it is kept."""
        if fault := length_fault(n_text, n_output, self.limits):
            return fault
        max_ratio = self.limits.max_length_ratio
        raised = flags(text, output, n_text, n_output, truncated=truncated, max_ratio=max_ratio)
        return next((flag for flag in FATAL_FLAGS if flag in raised), "")

    @property
    def kept(self) -> int:
        return self.line_counts.kept - self.counts.total()

    def summary(self) -> str:
        """One line, such as `9 of 10 pairs kept; dropped: 1 looping (repeats itself ...)`."""
        lengths = {fault: self.counts[fault] for fault in LENGTH_FAULTS if fault}
        both = self.line_counts + Counts(**lengths)
        counts, reasons = self.counts, both.reasons(self.limits)
        reasons += [f"{n:,} {flag} ({FLAGS[flag]})" for flag in FATAL_FLAGS if (n := counts[flag])]
        dropped = f"; dropped: {', '.join(reasons)}" if reasons else ""
        return f"{self.kept:,} of {both.read:,} pairs kept{dropped}"


@dataclass(frozen=True)
class CorpusSpec:
    """Describes a corpus: where `mt backtranslate` and `mt distill` differ."""

    lines: Iterable[str]  # a text to translate; or that, a tab and its reference
    total: int | None  # lines, if known
    row: Callable[[str, str], tuple[str, str]]  # a text and its translation → source, target
    settings: Mapping[str, str]  # what else the corpus depends on, by the name of its option
    is_large: bool  # worth starting a process for each GPU
    sources: Sequence[str]  # files that the lines are from, or names of other text
    command: str


def backtranslate(
    files: TextFiles, tag: str | None, search: SearchOptions, engine: EngineOptions
) -> str:
    """Translate `files.source` into sources of a TSV corpus; the entry of a config for it."""
    if tag is not None and (not tag or tag.split() != [tag]):
        raise ConfigError(f"--tag: must be a word without white space, such as <BT>, found {tag!r}")
    check_output(files, [("the input", files.source)], engine.folders)
    data = open_model(engine.models[0]).data
    src, tgt = data.direction(search.from_, search.to) or (None, None)
    if not search.from_ and [way.tgt for way in data.directions].count(search.to or "") > 1:
        raise ConfigError(f"--to {search.to}: from which language? Give that of the text by --from")
    if src and tgt:
        remedy = f"give a model that translates from {tgt} into {src}"
        require_language(files.source, src, tgt, remedy)
        say(f"{files.name} must be text in {src}, the model translates it into {tgt}")
    spec = CorpusSpec(
        (line.replace("\t", " ") for line in files.read()),  # a tab would begin a reference
        number_of_lines(files.source),
        lambda target, source: (f"{tag} {source}" if tag else source, target),
        {"--tag": tag or ""},
        files.is_large,
        [files.name],
        "mt backtranslate",
    )
    make_corpus(spec, files, search, engine)
    entry = {"path": str(Path(files.output).absolute()), **TSV_COLUMNS}
    if search.from_ or search.to:  # of several: those of the config may be others
        named = [("src_lang", search.to or tgt), ("tgt_lang", search.from_ or src)]
        entry |= {key: code for key, code in named if code not in (None, "src", "tgt")}
    text = dump([entry])
    if tag:  # a piece of the vocabulary, instead of the letters it is written with
        text += dump({"tokenizer": {"user_defined_symbols": [tag]}})
    return text.rstrip("\n")


def check_output(
    files: TextFiles, inputs: Iterable[tuple[str, str | Path]], models: Sequence[Path]
) -> None:
    """Raise ConfigError if the output is no TSV file, or would replace what must be kept."""
    output = files.output
    if not output.endswith(".tsv"):
        raise ConfigError(
            f"--output {output}: must be a file whose name ends in .tsv, as training takes it for "
            "two columns then; name it so"
        )
    read_record(record_path(output), CleanedRecord)  # that of another program is not replaced
    refuse_overwrite(output, inputs, models)  # a data set of the hub has no files here
    if Path(output).is_file() and not files.overwrite:
        raise ConfigError(
            f"--output {output}: exists, and may be the only copy of a corpus; give another "
            "name, or --overwrite to replace it"
        )


def make_corpus(
    spec: CorpusSpec, files: TextFiles, search: SearchOptions, engine: EngineOptions
) -> None:
    """Translate the lines of `spec`; write the pairs that pass the filters to `files.output`."""
    output = ResumableOutput(files.resume)
    output.settings |= spec.settings
    with open_output(files.output, output.open) as file:
        progress = Progress(spec.total, output.lines, can_show_bar(files.output))
        translator = load_translator(search, engine, spec.is_large, on_progress=progress.update)
        loaded = translator.loaded
        limits = Limits(loaded.max_tokens, loaded.data.limits.max_length_ratio, dedupe=True)
        pair_filter = PairFilter(loaded.tokenizer, limits)
        pair_filter.counts.update(output.counts)
        # What tokens do not see, as tabs, would not fit into TSV.
        normalized = (
            "\t".join(normalize_line(cell) for cell in line.split("\t", 1)) for line in spec.lines
        )
        with translator, progress:
            left = output.remaining(pair_filter.keep_lines(normalized), translator.settings)
            stream = translator.translate_stream(
                left, lambda line, _: line.partition("\t")[0], n_before=output.lines
            )
            for window, translations in stream:
                pairs = _pairs(spec, pair_filter, window, translations)
                write_lines(file, ("\t".join(pair) for pair in pairs))
                output.counts = dict(pair_filter.counts)
                output.finished(file, window)
        if not pair_filter.kept:
            raise DataError(
                f"--output {files.output}: not written, as no pair is fit for training: "
                f"{pair_filter.summary()}; check the text and the model's direction"
            )
    paths = [name for name in spec.sources if Path(name).is_file()]
    known = {name: {"sha256": sha256_of(Path(name))} for name in paths}
    text = corpora_of_text(known, [name for name in spec.sources if name not in known])
    path = Path(files.output)
    corpora = corpora_of_output(path.name, text, map(find_model, engine.folders))
    CleanedRecord.replace(record_path(path), [path], corpora, spec.command)
    # The filter counts blank lines, and repeated ones.
    say(translator.summary(counts_blank=False).partition("\n")[0])
    say(f"{files.output}: {pair_filter.summary()}")


def _pairs(
    spec: CorpusSpec, pair_filter: PairFilter, window: Sequence[str], found: Sequence[Translation]
) -> list[tuple[str, str]]:
    """Return the pairs of a window that are kept, as (source, target)."""
    texts, _, references = zip(*(line.partition("\t") for line in window), strict=True)
    outputs = [*map(most_similar, [translation.texts for translation in found], references)]
    # Whether the search stopped at the length limit is known of the best output only.
    truncated = [
        "truncated" in translation.flags and output == translation.texts[0]
        for output, translation in zip(outputs, found, strict=True)
    ]
    kept = pair_filter.keep_pairs(texts, outputs, truncated)
    return [spec.row(*row) for row in itertools.compress(zip(texts, outputs, strict=True), kept)]


def most_similar(outputs: Sequence[str], reference: str) -> str:
    """The output with the highest sentence BLEU; of ties, and without a reference, the first."""
    if len(outputs) == 1 or not reference:
        return outputs[0]
    from sacrebleu.metrics.bleu import BLEU

    score = BLEU(effective_order=True).sentence_score  # averages the orders that a short line has
    return max(outputs, key=lambda text: score(text, [reference]).score)
