"""`mt tokenizer`: SentencePiece alone: learn a vocabulary, encode and decode text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from mt.cli import options as opt
from mt.cli.help import command_group
from mt.errors import ConfigError

vocabulary_option = opt.options_in("Vocabulary (of the config if not given)")

app = command_group("tokenizer", "Learn a vocabulary; encode and decode text.")


@dataclass(frozen=True)
class VocabularyGroup:
    """The options of a vocabulary, as the keys of the section `tokenizer`; None: not given."""

    # fmt: off
    vocab_size: Annotated[int | None, vocabulary_option("--vocab-size", metavar="N", help=
        "tokens, 4 special ones included (default: 32000)")] = None
    type: Annotated[Literal["bpe", "unigram"] | None, vocabulary_option(
        "--type", metavar="NAME", help="algorithm: bpe or unigram (default: bpe)")] = None
    character_coverage: Annotated[float | None, vocabulary_option(
        "--character-coverage", metavar="SHARE", help=
        "share of the text whose characters get a token, 0.98 to 1 (default: 0.99999, or 1 without "
        "byte fallback)")] = None
    user_defined_symbols: Annotated[list[str] | None, vocabulary_option(
        "--user-defined-symbols", metavar="TEXT,...", help=
        "texts that are always one token; repeatable")] = None
    split_digits: Annotated[bool | None, vocabulary_option("--split-digits/--no-split-digits", help=
        "make each digit a token (default: on)")] = None
    byte_fallback: Annotated[bool | None, vocabulary_option(
        "--byte-fallback/--no-byte-fallback", help=
        "encode unknown characters as bytes (default: on)")] = None
    sample_lines: Annotated[int | None, vocabulary_option("--sample-lines", metavar="N", help=
        "learn from N lines drawn at random (default: 2000000)")] = None


@app.command("train")
def train(
    output: Annotated[Path, opt.output_option("--output", "-o", metavar="FILE", help=
        "new .model file to write")],
    files: Annotated[list[str] | None, opt.argument(
        "text files, also compressed; - is stdin; data.train of --config if not given",
        "FILE", "Input")] = None,
    *,
    vocabulary: VocabularyGroup,
    config: opt.OptionalConfig = None,
    settings: opt.Settings = None,
) -> None:  # fmt: skip
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
    given = {key: value for key, value in vars(vocabulary).items() if value is not None}
    texts = ",".join(given.pop("user_defined_symbols", ())).split(",")
    if symbols := [*filter(None, texts)]:
        given["user_defined_symbols"] = symbols
    if config is None:
        values = config_from_mapping({"tokenizer": given}, "mt tokenizer train")
    else:
        sets = as_settings({f"tokenizer.{key}": value for key, value in given.items()})
        values = load_config(config, [*(settings or []), *sets]).config
    train_file(values, files or [], output)


@dataclass(frozen=True)
class TokenizeGroup:
    """The options of `encode` and `decode`."""

    # fmt: off
    tokenizer: opt.TokenizerPath
    source: opt.Source = "-"
    side: Annotated[opt.SideName | None, opt.input_option("--side", metavar="NAME", help=
        "src or tgt: which vocabulary, where source and target have their own")] = None
    errors: opt.OnErrors = "strict"
    ids: Annotated[bool, opt.output_option("--ids", help="ids, not pieces")] = False
    output: opt.OutputFile = "-"
    # fmt: on

    def run(self, decode: bool = False) -> None:
        """Encode or decode the source line by line."""
        from mt.translate.streaming import TextFiles
        from mt.translate.tokenize_file import tokenize_file

        files = TextFiles(source=self.source, output=self.output, errors=self.errors)
        tokenize_file(self.tokenizer, files, side=self.side, ids=self.ids, decode=decode)


@app.command("encode")
def encode(options: TokenizeGroup) -> None:
    """Split lines into pieces or ids, separated by spaces.

    As many lines come out as go in. A piece that begins a word starts with U+2581 (▁); <0xC3> is a
    byte.

    \b
    mt tokenizer encode --model runs/base input.de -o pieces.de
    echo 'Guten Morgen!' | mt tokenizer encode --model mine.model --ids
    """
    options.run()


@app.command("decode")
def decode(options: TokenizeGroup) -> None:
    """Join pieces or ids to text, line for line.

    \b
    mt tokenizer decode --model runs/base pieces.de -o text.de
    mt tokenizer decode --model mine.model --ids ids.txt
    """
    options.run(decode=True)
