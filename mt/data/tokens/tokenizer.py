"""Split lines into token ids and join them again: SentencePiece, trained on the training data."""

from __future__ import annotations

import hashlib
import io
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt.data.reading.text_files import normalize_line
from mt.data.tokens import sentencepiece_model
from mt.data.tokens.sentencepiece_model import SPECIAL_IDS, SPECIAL_PIECES, PieceVocabulary
from mt.errors import CheckpointError, ConfigError, DataError
from mt.files import write_whole

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

    from mt.config.plan import DataPlan
    from mt.config.schema import TokenizerConfig

    Processor = SentencePieceProcessor | PieceVocabulary

PAD, UNK, BOS, EOS = SPECIAL_IDS

# Characters of a line for training. SentencePiece's BPE keeps positions inside a word in 16 bits,
# and would abort the whole process.
MAX_LINE_LENGTH = 10_000
# SentencePiece's default, nmt_nfkc, would teach the model to write "..." for an ellipsis sign, 1/2
# for ½ and half-width commas in Chinese, and would split Persian words at the zero-width
# non-joiner. `normalize_line` does what normalisation there is.
NORMALIZATION = "identity"
# Share of the text that the characters in the vocabulary cover; rarer ones are spelled in bytes, as
# too rare to learn an embedding for. The second, usual for Chinese, where the first does not fit.
COVERAGE_WITH_BYTES: tuple[float, ...] = (0.99999, 0.9995)
# So many lines take no longer one by one: for a list SentencePiece starts threads (75 us, Zen 4).
FEW_LINES = 50
# A piece that is a byte of a character.
BYTE = re.compile("<0x([0-9A-F]{2})>")
# A piece before a source that names its target language: ours, and that of imported models.
LANGUAGE = re.compile(r"<2(\S+)>|>>(\S+)<<")
# Fixed, because unigram training sums floats by thread: the result depends on their number.
TRAINING_THREADS = 4


class Side:
    """One language of a tokenizer: its own vocabulary, or that of both languages."""

    def __init__(self, processor: Processor, model: bytes) -> None:
        """`model`: of SentencePiece; one that `mt` has trained does not normalise lines."""
        self.processor = processor
        self._model = model

    @property
    def size(self) -> int:
        return int(self.processor.piece_size())

    def encode(self, lines: list[str], threads: int = 1) -> list[list[int]]:
        """Ids of each line, without bos and eos; an empty list for a blank line."""
        lines = [normalize_line(line) for line in lines]
        if len(lines) < FEW_LINES:
            return [self.processor.encode(line) for line in lines]
        rows: list[list[int]] = self.processor.encode(lines, num_threads=threads)
        return rows

    def decode(self, ids: list[list[int]]) -> list[str]:
        """One line of normalised text per row of ids, also where byte pieces spell a line feed.

        Special ids are left out; bytes that are not UTF-8 become U+FFFD.
        """
        top = self.size - 1
        for row in ids:
            if row and not (min(row) >= 0 and max(row) <= top):
                raise AssertionError(f"ids must be in 0..{top}, found a row {row}")
        rows = [[i for i in row if i > EOS] for row in ids]
        if len(rows) < FEW_LINES and not isinstance(self.processor, PieceVocabulary):
            return [normalize_line(self.processor.decode(row)) for row in rows]
        return [normalize_line(text) for text in self.processor.decode(rows)]

    def pieces(self, line: str) -> list[str]:
        """The pieces of a line as text, `▁` for a space, `<0xC3>` for a byte."""
        return list(self.processor.encode(normalize_line(line), out_type=str))

    def pieces_of(self, ids: Sequence[int]) -> list[str]:
        return list(self.processor.id_to_piece(list(ids)))

    def all_pieces(self) -> list[str]:
        """The vocabulary as text, in the order of its ids, special pieces by their usual names."""
        return [*SPECIAL_PIECES, *self.pieces_of(range(len(SPECIAL_PIECES), self.size))]

    def symbol_ids(self) -> set[int]:
        """The ids of user-defined symbols and target languages, which no text is split into."""
        own = self.processor if isinstance(self.processor, PieceVocabulary) else None
        ids = own.symbol_ids() if own else sentencepiece_model.user_defined_symbols(self._model)
        return ids | {i for i, piece in enumerate(self.all_pieces()) if LANGUAGE.fullmatch(piece)}


class Tokenizer:
    """A SentencePiece model for each side, or one for both where the vocabulary is joint.

    Ids are those of the side's own vocabulary; 0 to 3 are pad, unk, bos and eos. Text that looks
    like a special token ("</s>") stays text. An imported model has two SentencePiece models and a
    vocabulary beside them, joint or not; see `PieceVocabulary`.
    """

    def __init__(
        self, src_model: bytes, tgt_model: bytes | None = None, vocabulary: bytes | None = None
    ) -> None:
        """`tgt_model` None: a joint vocabulary; `vocabulary` None: the ids are the models' own.

        Raises ValueError where special ids are others than `SPECIAL_IDS`.
        """
        self._files = [file for file in [src_model, tgt_model, vocabulary] if file is not None]
        processors: list[Processor]
        if vocabulary is None:
            from sentencepiece import SentencePieceProcessor

            self.joint = tgt_model is None
            processors = [SentencePieceProcessor(model_proto=model) for model in self._files]
        else:
            src_pieces, tgt_pieces = sentencepiece_model.read_vocabularies(vocabulary)
            self.joint = tgt_pieces is None
            target = PieceVocabulary(tgt_model or src_model, tgt_pieces or src_pieces)
            processors = [PieceVocabulary(src_model, src_pieces), target]
        for processor in processors:
            if (ids := sentencepiece_model.special_ids(processor)) != SPECIAL_IDS:
                raise ValueError(f"pad, unk, bos, eos must have ids 0, 1, 2, 3; here: {ids}")
        self.src = Side(processors[0], self.models[0])
        self.tgt = Side(processors[-1], self.models[-1])

    @property
    def models(self) -> list[bytes]:
        """The SentencePiece models: one for both sides, or that of the source, then the target."""
        return self._files[:2]

    @property
    def has_own_ids(self) -> bool:
        """Whether ids are those of the SentencePiece models, not of a vocabulary beside them."""
        return len(self._files) < 3

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(b"".join(self._files)).hexdigest()

    def split_language(self, line: str) -> tuple[str, str]:
        """Split a source line of an imported model into `>>deu<<`, or "", and text."""
        if isinstance(self.src.processor, PieceVocabulary):
            return self.src.processor.split_language(normalize_line(line))
        return "", line

    @cached_property
    def languages(self) -> dict[str, int]:
        """The ids of the source's pieces of the form of a language token, by the code in it.

        In a model without `data.language_tokens` they may be tags of a user: `languages_of`.
        """
        matches = ((LANGUAGE.fullmatch(piece), i) for i, piece in enumerate(self.src.all_pieces()))
        return {match[1] or match[2]: i for match, i in matches if match}

    def languages_of(self, data: DataPlan) -> dict[str, int]:
        """The ids of the tokens of target languages, by code, in a model of this `data`."""
        return self.languages if data.has_tokens or not self.has_own_ids else {}

    def before_source(self, to: str | None, data: DataPlan, option: str = "--to") -> list[int]:
        """The ids before a source to be translated into `to`, by a model of this `data`.

        None: its one language, or that which a line names. ConfigError for an unknown language.
        """
        known = self.languages_of(data)
        learnt = list(dict.fromkeys(way.tgt for way in data.directions)) or data.target_languages
        if data.has_tokens and to is None and len(learnt) == 1:
            to = learnt[0]
        if to in known:
            return [known[to]]
        if to is None and not data.has_tokens:
            return []
        languages = sorted(known) or learnt
        if not known and (to in languages or languages == ["tgt"]):  # the config names none
            return []
        given = "nothing" if to is None else to
        reason = "" if known else "; it has no tokens that name another one: leave the option out"
        raise ConfigError(
            f"{option}: must be a language that this model translates into "
            f"({', '.join(languages)}), found {given}{reason}"
        )

    def save(self, folder: Path) -> None:
        """Write the model files, each whole or not at all."""
        names = {1: _JOINT, 2: _SEPARATE, 3: _IMPORTED}[len(self._files)]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, content in zip(names, self._files, strict=True):
                write_whole(folder / name, content)
            for stale in {*_JOINT, *_IMPORTED} - set(names):
                (folder / stale).unlink(missing_ok=True)
        except OSError as error:
            raise CheckpointError(
                f"the tokenizer cannot be saved in {folder}: {error.strerror}. "
                "Give a folder that is writable and has space, then run again."
            ) from error

    @staticmethod
    def exists_in(folder: Path) -> bool:
        return any(all((folder / name).exists() for name in names) for names in (_JOINT, _SEPARATE))

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """The tokenizer that `save` wrote; `CheckpointError` where it is missing or damaged."""
        kinds = (names for names in (_JOINT, _IMPORTED) if (folder / names[-1]).exists())
        names = next(kinds, _SEPARATE)
        try:
            models = [(folder / name).read_bytes() for name in names]
        except OSError as error:
            raise CheckpointError(
                f"{folder} contains no tokenizer: required is {_JOINT[0]}, or {_SEPARATE[0]} and "
                f"{_SEPARATE[1]} ({error.filename}: {error.strerror}). Give the run directory of a "
                "training that has started, or copy the file(s) there."
            ) from error
        try:
            if not all(models):
                raise ValueError("the file is empty")
            return cls(*models)
        except (RuntimeError, ValueError) as error:
            reason = error if isinstance(error, ValueError) else "SentencePiece cannot read it"
            raise CheckpointError(
                f"{folder}: {' or '.join(names)} is damaged or not a tokenizer of mt ({reason}). "
                "Copy it again from the run directory where it was trained."
            ) from error


def own_tokenizer(cfg: TokenizerConfig) -> Tokenizer:
    files = {"tokenizer.model": cfg.model, "tokenizer.tgt_model": cfg.tgt_model}
    named = [(Path(name).expanduser(), key) for key, name in files.items() if name is not None]
    return Tokenizer(*starmap(sentencepiece_model.read_model, named))


# Not run.seed: models of several seeds have one vocabulary, and so make an ensemble.
SAMPLE_SEED = 1


class PairSample:
    """At most `size` pairs, normalised, drawn uniformly from all watched (Vitter, 1985, R)."""

    def __init__(self, size: int, seed: int = SAMPLE_SEED) -> None:
        self.src: list[str] = []
        self.tgt: list[str] = []
        self.texts: list[int] = []  # of each pair: how many texts were watched before its own
        self.seen = 0  # pairs watched
        self._n_texts = 0
        self._size = size
        self.seed = seed
        self._draw = random.Random(seed).random

    def watch(self, pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        """Pass the pairs of a text on, and draw from them."""
        text = self._n_texts
        self._n_texts += 1
        for src, tgt in pairs:
            place, self.seen = self.seen, self.seen + 1
            if self.seen > self._size:
                place = int(self._draw() * self.seen)
            if place < self._size:  # the first ones are appended so
                self.src[place : place + 1] = [normalize_line(src)]
                self.tgt[place : place + 1] = [normalize_line(tgt)]
                self.texts[place : place + 1] = [text]
            yield src, tgt

    def clear(self) -> None:
        self.src.clear()
        self.tgt.clear()
        self.texts.clear()


def train_on_sample(
    cfg: TokenizerConfig, sample: PairSample, log: Callable[[str], None], unit: str = "pairs",
    languages: Sequence[str] = (),
) -> Tokenizer:  # fmt: skip
    """Learn the vocabulary or vocabularies, as large as the text supports; same sample, same bytes.

    `unit`: what messages call a pair. `languages`: those that get a piece `<2fr>` each, which no
    text is split into. DataError without text, or for a vocabulary smaller than the alphabet.
    """
    tokens = [f"<2{code}>" for code in languages]
    src, tgt = sample.src, sample.tgt
    if sample.seen > len(src):
        log(f"tokenizer: trained on {len(src):,} of {sample.seen:,} {unit}, drawn at random")
    if cfg.joint:
        return Tokenizer(_train(cfg, src + tgt, "", tokens, log))
    return Tokenizer(_train(cfg, src, "source ", tokens, log), _train(cfg, tgt, "target ", [], log))


_JOINT = ["tokenizer.model"]
_SEPARATE = ["tokenizer.src.model", "tokenizer.tgt.model"]
_IMPORTED = [*_SEPARATE, "tokenizer.vocab.json"]


def _train(
    cfg: TokenizerConfig, lines: list[str], side: str, tokens: list[str], log: Callable[[str], None]
) -> bytes:
    text = [line for line in lines if 0 < len(line) <= MAX_LINE_LENGTH]
    if not text:
        raise DataError(
            f"tokenizer: the {side}training data has no line of text of 1 to {MAX_LINE_LENGTH:,} "
            "characters, so no vocabulary can be learned. Check the files that data.train names."
        )
    if too_long := sum(len(line) > MAX_LINE_LENGTH for line in lines):
        log(f"tokenizer: {too_long:,} {side}lines of over {MAX_LINE_LENGTH:,} characters left out")
    needed = 0
    # Without byte fallback every character gets a token.
    usual = COVERAGE_WITH_BYTES if cfg.byte_fallback else (1.0,)
    for coverage in usual if cfg.character_coverage is None else (cfg.character_coverage,):
        try:
            model = _run_trainer(cfg, text, coverage, tokens)
        except RuntimeError as error:
            match = re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error))
            if not match:
                raise DataError(
                    f"tokenizer: SentencePiece cannot learn from the {side}training data: {error}"
                ) from error
            needed = int(match[1])
            continue
        size = Tokenizer(model).src.size
        if size < cfg.size:
            log(
                f"tokenizer: the {side}training data supports {size:,} tokens, fewer than "
                f"tokenizer.vocab_size {cfg.size:,}; the {side}vocabulary has {size:,}"
            )
        return model
    bytes_fit = not cfg.byte_fallback and cfg.size > 4 + 256
    remedy = ", or set tokenizer.byte_fallback to true" if bytes_fit else ""
    raise DataError(
        f"tokenizer.vocab_size: the {side}vocabulary needs at least {needed:,} tokens "
        f"({cfg.symbols:,} symbols, {needed - cfg.symbols:,} characters of the training data), "
        f"found {cfg.size:,}. Set it to several times {needed:,}, so that there is room for "
        f"words{remedy}."
    )


def _run_trainer(
    cfg: TokenizerConfig, text: list[str], coverage: float, tokens: list[str]
) -> bytes:
    import sentencepiece

    model = io.BytesIO()
    # An empty list would stand in the model file, and change the bytes of every vocabulary.
    symbols: dict[str, Any]
    symbols = {"user_defined_symbols": cfg.user_defined_symbols, "control_symbols": tokens}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text),
        model_writer=model,
        model_type=cfg.type,
        vocab_size=cfg.size,
        # With a hard limit training fails where the text does not support the size.
        hard_vocab_limit=False,
        character_coverage=coverage,
        byte_fallback=cfg.byte_fallback,
        split_digits=cfg.split_digits,
        normalization_rule_name=NORMALIZATION,
        # In bytes; SentencePiece silently skips longer lines.
        max_sentence_length=4 * MAX_LINE_LENGTH,
        num_threads=TRAINING_THREADS,
        pad_id=PAD,
        unk_id=UNK,
        bos_id=BOS,
        eos_id=EOS,
        minloglevel=2,
        **{key: value for key, value in symbols.items() if value},
    )
    return model.getvalue()
