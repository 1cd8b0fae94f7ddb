"""`mt tokenizer`: SentencePiece alone: learn a vocabulary, encode and decode text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from mt.cli.help import PanelCommand, command_group
from mt.cli.options import (
    OnErrors,
    OptionalConfig,
    OutputFile,
    Settings,
    Side,
    Source,
    TokenizerPath,
    argument,
    options_in,
    output_option,
    with_groups,
)
from mt.errors import ConfigError

vocabulary_option = options_in("Vocabulary (of the config if not given)")

app = command_group("tokenizer", "Learn a vocabulary; encode and decode text.")


# fmt: off
Output = Annotated[Path, output_option("--output", "-o", metavar="FILE", help=
    "new .model file to write")]
Files = Annotated[list[str] | None, argument(
    "text files, also compressed; - is stdin; data.train of --config if not given",
    "FILE", "Input")]
VocabSize = Annotated[int | None, vocabulary_option("--vocab-size", metavar="N", help=
    "tokens, 4 special ones included (default: 32000)")]
Kind = Annotated[Literal["bpe", "unigram"] | None, vocabulary_option("--type", metavar="NAME", help=
    "algorithm: bpe or unigram (default: bpe)")]
CharacterCoverage = Annotated[float | None, vocabulary_option(
    "--character-coverage", metavar="SHARE", help=
    "share of the text whose characters get a token, 0.98 to 1 (default: 0.99999, or 1 without "
    "byte fallback)")]
UserDefinedSymbols = Annotated[list[str] | None, vocabulary_option(
    "--user-defined-symbols", metavar="TEXT,...", help=
    "texts that are always one token; repeatable")]
SplitDigits = Annotated[bool | None, vocabulary_option("--split-digits/--no-split-digits", help=
    "make each digit a token (default: on)")]
ByteFallback = Annotated[bool | None, vocabulary_option("--byte-fallback/--no-byte-fallback", help=
    "encode unknown characters as bytes (default: on)")]
SampleLines = Annotated[int | None, vocabulary_option("--sample-lines", metavar="N", help=
    "learn from N lines drawn at random (default: 2000000)")]
# fmt: on


@app.command("train", cls=PanelCommand)
def train(
    output: Output,
    files: Files = None,
    vocab_size: VocabSize = None,
    kind: Kind = None,
    character_coverage: CharacterCoverage = None,
    user_defined_symbols: UserDefinedSymbols = None,
    split_digits: SplitDigits = None,
    byte_fallback: ByteFallback = None,
    sample_lines: SampleLines = None,
    config: OptionalConfig = None,
    settings: Settings = None,
) -> None:
    """Learn a SentencePiece vocabulary, as mt train does.

    The text is that of the files, or the training text of --config. With two vocabularies
    (tokenizer.joint: false), NAME.src.model and NAME.tgt.model are written for -o NAME.model.

    \b
    mt tokenizer train train.de train.en --vocab-size 8000 -o mine.model
    mt tokenizer train --config tiny.yaml -o tiny.model
    mt train --config tiny.yaml --set tokenizer.model=mine.model
    """
    from mt.config.load import as_settings, config_from_mapping, load_config
    from mt.translate.tokenize_file import train_file

    if config is None and settings:
        raise ConfigError("--set: changes a config; give --config, or leave it out")
    symbols = [text for group in user_defined_symbols or [] for text in group.split(",") if text]
    options = {
        "vocab_size": vocab_size,
        "type": kind,
        "character_coverage": character_coverage,
        "user_defined_symbols": symbols or None,
        "split_digits": split_digits,
        "byte_fallback": byte_fallback,
        "sample_lines": sample_lines,
    }
    given = {key: value for key, value in options.items() if value is not None}
    if config is None:
        values = config_from_mapping({"tokenizer": given}, "mt tokenizer train")
    else:
        sets = as_settings({f"tokenizer.{key}": value for key, value in given.items()})
        values = load_config(config, [*(settings or []), *sets]).config
    train_file(values, files or [], output)


Ids = Annotated[bool, output_option("--ids", help="ids, not pieces")]


@dataclass(frozen=True)
class TokenizeGroup:
    """The options of `encode` and `decode`."""

    tokenizer: TokenizerPath
    source: Source = "-"
    side: Side = None
    errors: OnErrors = "strict"
    ids: Ids = False
    output: OutputFile = "-"

    def run(self, decode: bool = False) -> None:
        """Encode or decode the source line by line."""
        from mt.translate.streaming import TextFiles
        from mt.translate.tokenize_file import tokenize_file

        files = TextFiles(source=self.source, output=self.output, errors=self.errors)
        tokenize_file(self.tokenizer, files, side=self.side, ids=self.ids, decode=decode)


@app.command("encode", cls=PanelCommand)
@with_groups
def encode(options: TokenizeGroup) -> None:
    """Split lines into pieces or ids, separated by spaces.

    As many lines come out as go in. A piece that begins a word starts with U+2581 (▁); <0xC3> is a
    byte.

    \b
    mt tokenizer encode --model runs/base input.de -o pieces.de
    echo 'Guten Morgen!' | mt tokenizer encode --model mine.model --ids
    """
    options.run()


@app.command("decode", cls=PanelCommand)
@with_groups
def decode(options: TokenizeGroup) -> None:
    """Join pieces or ids to text, line for line.

    \b
    mt tokenizer decode --model runs/base pieces.de -o text.de
    mt tokenizer decode --model mine.model --ids ids.txt
    """
    options.run(decode=True)
