"""`mt tokenizer`: SentencePiece alone: learn a vocabulary, encode and decode text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from mt.cli import options as opt
from mt.cli.help import command_group

app = command_group("tokenizer", "Learn a vocabulary; encode and decode text.")


@app.command("train")
def train(
    output: Annotated[Path, opt.output_option("--output", "-o", metavar="FILE", help=
        "new .model file to write")],
    files: Annotated[list[str] | None, opt.argument(
        "text files, also compressed; - is stdin; data.train of --config if not given",
        "FILE", "Input")] = None,
    config: opt.OptionalConfig = None,
    settings: opt.Settings = None,
    vocab_size: Annotated[int | None, opt.config_option("--vocab-size", metavar="N", help=
        "tokens, 4 special ones included (default: the config's, or 32000)")] = None,
    kind: Annotated[Literal["bpe", "unigram"] | None, opt.config_option(
        "--type", metavar="NAME", help=
        "algorithm: bpe or unigram (default: the config's, or bpe)")] = None,
) -> None:  # fmt: skip
    """Learn a SentencePiece vocabulary, as mt train does.

    The text is that of the files, or the training text of --config. With two vocabularies
    (tokenizer.joint: false), NAME.src.model and NAME.tgt.model are written for -o NAME.model.

    \b
    mt tokenizer train train.de train.en --vocab-size 8000 -o mine.model
    mt tokenizer train text --set tokenizer.split_digits=false -o mine.model
    mt tokenizer train --config tiny.yaml -o tiny.model
    mt train --config tiny.yaml --set tokenizer.model=mine.model
    """
    from mt.config.load import load_config, require_training_data
    from mt.errors import ConfigError
    from mt.translate.tokenize_file import train_file

    if config is None and not files:
        raise ConfigError("tokenizer: no text to learn from; name text files, or give --config")
    given = {"vocab_size": vocab_size, "type": kind}
    sets = [f"tokenizer.{key}={value}" for key, value in given.items() if value is not None]
    values = load_config(config or "base.yaml", [*(settings or []), *sets]).config
    if not files:
        require_training_data(values)
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
    output: opt.OutputFile = "-"
    # fmt: on

    def run(self, decode: bool) -> None:
        """Encode or decode the source line by line."""
        from mt.translate.streaming import TextFiles
        from mt.translate.tokenize_file import tokenize_file

        files = TextFiles(source=self.source, output=self.output, errors=self.errors)
        tokenize_file(self.tokenizer, files, self.side, decode)


@app.command("encode")
def encode(options: TokenizeGroup) -> None:
    """Split lines into pieces, separated by spaces.

    As many lines come out as go in. A piece that begins a word starts with U+2581 (▁); <0xC3> is a
    byte.

    \b
    mt tokenizer encode --model runs/base input.de -o pieces.de
    echo 'Guten Morgen!' | mt tokenizer encode --model mine.model
    """
    options.run(decode=False)


@app.command("decode")
def decode(options: TokenizeGroup) -> None:
    """Join pieces to text, line for line.

    \b
    mt tokenizer decode --model runs/base pieces.de -o text.de
    """
    options.run(decode=True)
