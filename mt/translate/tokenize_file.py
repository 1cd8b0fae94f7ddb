"""The whole of `mt tokenizer`: learn a vocabulary; lines to pieces, and back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from pathlib import Path

from mt.config.plan import held_out_sets, plan_data
from mt.config.schema import Config
from mt.config.settled import replace_auto
from mt.data.reading.corpus import read_pairs, training_pairs
from mt.data.reading.text import Pairs
from mt.data.reading.text_files import normalize_line
from mt.data.tokens.augmentation import augment_sample
from mt.data.tokens.duplicates import STAYS, split_pairs
from mt.data.tokens.tokenizer import UNK, PairSample, train_on_sample
from mt.errors import ConfigError, DataError
from mt.files import write_whole
from mt.runs.model_folder import open_tokenizer
from mt.runtime.machine import usable_cores
from mt.terminal import say
from mt.translate import streaming
from mt.translate.streaming import TextFiles, open_output, read_input, refuse_overwrite

# Lines given to SentencePiece at a time.
LINES = 20_000


def train_file(config: Config, files: Sequence[str], output: Path) -> None:
    """Learn the vocabulary that `config.tokenizer` describes and write it to `output`.

    The text is that of `files`, or of `config.data.train` without any. Two vocabularies
    (`joint: false`) become NAME.src.model and NAME.tgt.model. An existing file is never replaced.
    """
    cfg = config.tokenizer
    if cfg.model is not None:
        raise ConfigError("tokenizer.model: names a finished model; set it to null to learn one")
    if files and not cfg.joint:
        raise ConfigError(
            "tokenizer.joint: must be true with text files, found false; for two vocabularies give "
            "--config without files, or run the command for each side"
        )
    stem = output.name.removesuffix(".model")
    by_side = [output.with_name(f"{stem}.{side}.model") for side in ("src", "tgt")]
    outputs = [output] if cfg.joint else by_side
    for path in outputs:
        if path.exists():
            raise ConfigError(f"--output {path}: exists; name another file, or remove this one")
        if not path.parent.is_dir():
            raise ConfigError(f"--output {path}: there is no folder {path.parent}; make it first")
    data = plan_data(config.data)
    if data.clean is not None and not files:
        say("data.clean: not applied here; mt train learns its vocabulary from the cleaned text")
    lines = chain.from_iterable(map(read_input, files))
    sample = PairSample(cfg.sample_lines)
    deque(sample.watch(zip(lines, repeat("")) if files else _training_pairs(config)), maxlen=0)
    n_pairs = sample.seen // 2
    if not files:
        augment_sample(sample, data)
        n_pairs = sample.seen + data.to_hold_out
    settled, told = replace_auto(config, n_pairs)
    if settled.tokenizer != cfg:
        say(f"{told}, for {n_pairs:,} pairs")
    unit = "lines" if files else "pairs"
    tokenizer = train_on_sample(settled.tokenizer, sample, say, unit, data.token_languages)
    sizes = tokenizer.src.size, tokenizer.tgt.size
    for path, model, size in zip(outputs, tokenizer.models, sizes, strict=False):
        try:
            write_whole(path, model)
        except OSError as error:
            raise DataError(f"--output {path}: {error.strerror}; give a place with room") from error
        say(f"{path}: {size:,} tokens")


def _training_pairs(config: Config) -> Pairs:
    """The pairs of `data.train`, without what training holds out of them."""
    data, sets = plan_data(config.data), held_out_sets(config.data)
    parts: Iterable[int] = repeat(STAYS)
    if sets:
        texts = [read_pairs(text.source, data.root, text.name) for text in data.corpora]
        where, sizes = next(iter(sets)), [*sets.values()]
        parts = chain.from_iterable(split_pairs(texts, sizes, config.run.seed, where))
    return (pair for pair, part in zip(training_pairs(data), parts, strict=False) if part == STAYS)


def tokenize_file(model: Path, files: TextFiles, side: str | None, decode: bool) -> None:
    """Write the pieces of each line, separated by spaces; with `decode` the text of such lines."""
    refuse_overwrite(files.output, [("the input", files.source), ("--model", model)], [model])
    tokenizer = open_tokenizer(model)
    if side is None and not (tokenizer.joint and tokenizer.has_own_ids):
        problem = "as source and target have SentencePiece models of their own"
        raise ConfigError(f"--side: must be src or tgt, {problem}")
    processor = (tokenizer.tgt if side == "tgt" else tokenizer.src).processor
    names = processor.id_to_piece(list(range(processor.piece_size())))

    def encoded(lines: list[str]) -> tuple[list[str], int]:
        lines = [normalize_line(line) for line in lines]
        rows = processor.encode(lines, num_threads=usable_cores())
        texts = [" ".join([names[i] for i in row]) for row in rows]
        for number, row in enumerate(rows):
            if UNK in row:  # what is unknown stands as it is in the text, so that it can come back
                texts[number] = " ".join(processor.encode(lines[number], out_type=str))
        return texts, sum(map(len, rows))

    def decoded(lines: list[str]) -> tuple[list[str], int]:
        rows = [line.split() for line in lines]
        texts = processor.decode(rows, num_threads=usable_cores())
        # Bytes can spell a line feed; a row must not give two lines.
        return [normalize_line(text) for text in texts], sum(map(len, rows))

    lines = files.read()
    n_lines = n_tokens = 0
    with open_output(files.output) as file:
        for window in streaming.windows(lines, lambda: LINES, files.wait):
            texts, tokens = decoded(window) if decode else encoded(window)
            streaming.write_lines(file, texts)
            file.flush()
            n_lines += len(texts)
            n_tokens += tokens
    say(f"{n_lines:,} lines, {n_tokens:,} tokens")
