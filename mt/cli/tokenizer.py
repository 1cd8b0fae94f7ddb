"""`mt tokenizer`: SentencePiece alone: learn a vocabulary, encode and decode text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mt.cli.console import say
from mt.cli.help import INPUT, OUTPUT, PanelCommand, argument, option
from mt.cli.options import Errors, OptionalConfigName, Output, Settings, TokenizerModel

app = typer.Typer(
    no_args_is_help=True, help="Learn a vocabulary; encode and decode text.", rich_markup_mode=None
)

Source = Annotated[str, argument(INPUT, "IN", "text file, plain or .gz; - is stdin")]
Side = Annotated[
    str | None,
    option(
        INPUT,
        "--side",
        "src or tgt: which vocabulary, where source and target have their own",
        "NAME",
    ),
]
LEARNING = "Vocabulary (of the config if not given)"


@app.command("train", cls=PanelCommand)
def train(
    output: Annotated[Path, option(OUTPUT, "--output -o", "new .model file to write", "FILE")],
    files: Annotated[
        list[str] | None,
        argument(
            INPUT,
            "FILE",
            "text files, plain or .gz; - is stdin; data.train of --config if not given",
        ),
    ] = None,
    vocab_size: Annotated[
        int | None,
        option(
            LEARNING, "--vocab-size", "tokens, 4 special ones included", "N", show_default="32000"
        ),
    ] = None,
    kind: Annotated[
        str | None,
        option(LEARNING, "--type", "algorithm: bpe or unigram", "NAME", show_default="bpe"),
    ] = None,
    character_coverage: Annotated[
        float | None,
        option(
            LEARNING,
            "--character-coverage",
            "share of the text whose characters get a token, 0.98 to 1",
            "SHARE",
            show_default="0.99999, or 1 without byte fallback",
        ),
    ] = None,
    user_defined_symbols: Annotated[
        list[str] | None,
        option(
            LEARNING,
            "--user-defined-symbols",
            "texts that are always one token; repeatable",
            "TEXT,...",
        ),
    ] = None,
    split_digits: Annotated[
        bool | None,
        option(
            LEARNING,
            "--split-digits/--no-split-digits",
            "make each digit a token",
            show_default="on",
        ),
    ] = None,
    byte_fallback: Annotated[
        bool | None,
        option(
            LEARNING,
            "--byte-fallback/--no-byte-fallback",
            "encode unknown characters as bytes",
            show_default="on",
        ),
    ] = None,
    sample_lines: Annotated[
        int | None,
        option(
            LEARNING,
            "--sample-lines",
            "learn from N lines drawn at random",
            "N",
            show_default="2000000",
        ),
    ] = None,
    config: OptionalConfigName = None,
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
    import json

    from mt.config.load import config_from_mapping, load_config
    from mt.errors import ConfigError
    from mt.translate.tokenize_file import train_file

    if config is None and not files:
        raise ConfigError("tokenizer: no text to learn from; name text files, or give --config")
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
    else:  # JSON is YAML, and keeps texts texts
        sets = [f"tokenizer.{key}={json.dumps(value)}" for key, value in given.items()]
        values = load_config(config, [*(settings or []), *sets]).config
    train_file(values, files or [], output, say)


@app.command("encode", cls=PanelCommand)
def encode(
    model: TokenizerModel,
    source: Source = "-",
    side: Side = None,
    errors: Errors = "strict",
    ids: Annotated[bool, option(OUTPUT, "--ids", "write ids, not pieces")] = False,
    output: Output = "-",
) -> None:
    """Split lines into pieces or ids, separated by spaces.

    As many lines come out as go in. A piece that begins a word starts with U+2581 (▁); <0xC3> is a
    byte.

    \b
    mt tokenizer encode --model runs/base input.de -o pieces.de
    echo 'Guten Morgen!' | mt tokenizer encode --model mine.model --ids
    """
    from mt.translate.streaming import TextFiles
    from mt.translate.tokenize_file import tokenize_file

    files = TextFiles(source=source, output=output, errors=errors)
    tokenize_file(model, files, say, side=side, ids=ids)


@app.command("decode", cls=PanelCommand)
def decode(
    model: TokenizerModel,
    source: Source = "-",
    side: Side = None,
    errors: Errors = "strict",
    ids: Annotated[bool, option(INPUT, "--ids", "read ids, not pieces")] = False,
    output: Output = "-",
) -> None:
    """Join pieces or ids to text, line for line.

    \b
    mt tokenizer decode --model runs/base pieces.de -o text.de
    mt tokenizer decode --model mine.model --ids ids.txt
    """
    from mt.translate.streaming import TextFiles
    from mt.translate.tokenize_file import tokenize_file

    files = TextFiles(source=source, output=output, errors=errors)
    tokenize_file(model, files, say, side=side, ids=ids, decode=True)
