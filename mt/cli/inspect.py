"""`mt inspect`: look inside a model, a vocabulary or a config."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from mt.cli.console import print_result, say
from mt.cli.help import CONFIG, INPUT, OUTPUT, PanelCommand
from mt.cli.options import Model, OptionalConfigName, Settings, TokenizerModel, config_names

_for_input = partial(typer.Option, rich_help_panel=INPUT)
_for_output = partial(typer.Option, rich_help_panel=OUTPUT)
_for_cost = partial(typer.Option, rich_help_panel="FLOPs and memory", metavar="N", min=1)
_SENTENCE = typer.Argument(metavar="SENTENCE", help="source sentence", rich_help_panel=INPUT)
_TRAINED = "trained model: run directory, checkpoint or exported model folder"
OptionalModel = Annotated[Path | None, _for_input("--model", "-m", metavar="FOLDER", help=_TRAINED)]
PictureOutput = Annotated[
    Path | None,
    _for_output("--output", "-o", metavar="FILE", help="picture to write, .svg or .png"),
]

app = typer.Typer(
    no_args_is_help=True,
    help="Look inside a model, a vocabulary or a config.",
    rich_markup_mode=None,
)


@app.command("model", cls=PanelCommand)
def model(
    config: OptionalConfigName = None,
    model: OptionalModel = None,
    settings: Settings = None,
    length: Annotated[
        int,
        _for_cost(
            "--length",
            help="tokens of a sentence on both sides, eos included, for FLOPs and memory",
        ),
    ] = 30,
    batch_tokens: Annotated[
        int | None,
        _for_cost(
            "--batch-tokens",
            help="tokens of a batch for the memory; in decoding, source tokens times beam size",
            show_default="batch.tokens_per_batch if a number, else 8192",
        ),
    ] = None,
    beam_size: Annotated[
        int | None,
        _for_cost(
            "--beam-size", help="hypotheses kept per sentence", show_default="decode.beam_size"
        ),
    ] = None,
    precision: Annotated[
        str,
        typer.Option(
            "--precision",
            metavar="NAME",
            help="precision for the memory: fp32, bf16 or fp16",
            rich_help_panel="FLOPs and memory",
        ),
    ] = "fp32",
    as_json: Annotated[bool, _for_output("--json", help="print JSON, memory in bytes")] = False,
) -> None:
    """Print the shape of every parameter, FLOPs and memory.

    Of a trained model, the sizes of the vocabularies are those of its tokenizer; of a config,
    tokenizer.vocab_size, or those of tokenizer.model. Memory is an estimate; mt train --dry-run
    measures it.

    \b
    mt inspect model --model runs/base
    mt inspect model --config base.yaml --batch-tokens 4096 --precision bf16
    mt inspect model --config vaswani2017.yaml --json
    """
    import json

    from mt.config.load import load_config
    from mt.data.tokens.tokenizer import own_tokenizer
    from mt.errors import ConfigError
    from mt.inspect.cost import BYTES, cost_of, format_cost
    from mt.inspect.summary import format_summary, summarise, summary_as_json
    from mt.runs.model_folder import read_folder

    _one_of(config, model, settings)
    if precision not in BYTES:
        raise ConfigError(f"--precision: must be one of {', '.join(BYTES)}, found {precision!r}")
    if model is not None:
        folder = read_folder(model)
        values = folder.config
        src_size = folder.tokenizer.src_vocab_size
        tgt_size = folder.tokenizer.tgt_vocab_size
        joint = folder.tokenizer.joint
    else:
        assert config is not None
        values = load_config(config, settings or []).config
        src_size = tgt_size = values.tokenizer.vocab_size
        joint = values.tokenizer.joint
        if values.tokenizer.model is not None:
            own = own_tokenizer(values.tokenizer)
            src_size, tgt_size = own.src_vocab_size, own.tgt_vocab_size
    if length > values.model.max_positions:
        raise ConfigError(
            f"--length: at most model.max_positions ({values.model.max_positions:,}), found "
            f"{length:,}; the model reads no longer sentence"
        )
    summary = summarise(values.model, src_size, tgt_size, joint)
    of_config = values.batch.tokens_per_batch
    cost = cost_of(
        summary,
        values,
        length=length,
        batch_tokens=batch_tokens or (of_config if isinstance(of_config, int) else 8192),
        beam_size=beam_size or values.decode.beam_size,
        precision=precision,
    )
    if as_json:
        print_result(json.dumps({**summary_as_json(summary), **cost}, indent=2))
    else:
        print_result(f"{format_summary(summary)}\n{format_cost(cost)}")


@app.command("attention", cls=PanelCommand)
def attention(
    model: Model,
    sentence: Annotated[str, _SENTENCE],
    target: Annotated[
        str | None,
        _for_input(
            "--target", metavar="TEXT", help="its translation", show_default="the model's own"
        ),
    ] = None,
    kind: Annotated[
        str,
        _for_output("--kind", metavar="NAME", help="attention to show: cross, encoder or decoder"),
    ] = "cross",
    layer: Annotated[
        int | None,
        _for_output(
            "--layer",
            metavar="L",
            help="layer to show, counted from 1",
            show_default="the last but one",
        ),
    ] = None,
    head: Annotated[
        int | None,
        _for_output(
            "--head",
            metavar="H",
            help="head to show, counted from 1",
            show_default="the mean of all",
        ),
    ] = None,
    pieces: Annotated[bool, _for_output("--pieces", help="show subword pieces, not words")] = False,
    view: Annotated[
        str,
        _for_output(
            "--view",
            metavar="NAME",
            help="picture to draw: map, lines, or grid of all layers and heads",
        ),
    ] = "map",
    output: Annotated[
        Path | None,
        _for_output(
            "--output",
            "-o",
            metavar="FILE",
            help="picture to write: .svg, .png, or .html to explore; text if not given",
        ),
    ] = None,
) -> None:
    """Show which words each word attends to. As text, the three strongest, in percent.

    \b
    mt inspect attention --model runs/base "Das Haus ist alt."
    mt inspect attention --model runs/base "Guten Morgen!" -o map.svg
    mt inspect attention --model runs/base "Ja!" --view grid -o grid.png
    mt inspect attention --model runs/base "Wer hat das gesagt?" -o attention.html
    """
    from mt.inspect import attention_map
    from mt.inspect.attention import KINDS, read_attentions
    from mt.model.checkpoint import load_model
    from mt.runtime.devices import choose_device

    attention_map.check_picture(view, output, layer, head)
    is_page = attention_map.is_page(output)
    kinds = list(dict.fromkeys([kind, *KINDS])) if is_page else [kind]
    device = choose_device("cpu", "fp32")
    attentions = read_attentions(load_model(model), device, sentence, target, kinds, pieces)
    shown = attentions[kind]
    # Also checks that the model has the layer and the head.
    weights, title = attention_map.chosen(shown.weights, layer, head)
    if output is None:
        print_result(attention_map.as_text(weights, shown.rows, shown.columns))
        say(f"{kind} attention, {title}")
    elif is_page:
        first = {"kind": kind, "layer": layer, "head": head, "view": view}
        ordered = {name: attentions[name] for name in KINDS}
        attention_map.save_page(output, ordered, sentence, first)
        say(f"{output}: written")
    else:
        warning = attention_map.save_picture(output, view, shown, layer, head)
        say(f"{output}: {warning or 'written'}")


@app.command("positions", cls=PanelCommand)
def positions(
    config: OptionalConfigName = None,
    model: OptionalModel = None,
    settings: Settings = None,
    side: Annotated[
        str,
        _for_input("--side", metavar="NAME", help="src or tgt, where the positions are learned"),
    ] = "src",
    count: Annotated[
        int,
        _for_output(
            "--positions", min=2, metavar="N", help="how many positions to show, from the first on"
        ),
    ] = 100,
    output: PictureOutput = None,
) -> None:
    """Show position embeddings and how similar they are.

    As text, the cosine of positions at some distances. The picture has the matrix, a row for each
    position, and the cosine of every two positions.

    \b
    mt inspect positions --config base.yaml
    mt inspect positions --config base.yaml -o positions.svg
    mt inspect positions --model runs/base --side tgt -o positions.png
    """
    from mt.errors import ConfigError
    from mt.inspect.pictures import check_format
    from mt.inspect.position_map import as_text, position_table, save_picture

    _one_of(config, model, settings)
    if side not in ("src", "tgt"):
        raise ConfigError(f"--side: must be src or tgt, found {side!r}")
    if output is not None:
        check_format(output)
    if model is not None:
        from mt.model.checkpoint import load_model

        loaded = load_model(model)
        table, title = position_table(loaded.config.model, count, loaded.model, side)
    else:
        from mt.config.load import load_config

        assert config is not None
        table, title = position_table(load_config(config, settings or []).config.model, count)
    if output is None:
        print_result(as_text(table))
        say(title)
        return
    say(f"{output}: {save_picture(output, table, title) or 'written'}")


@app.command("tokens", cls=PanelCommand)
def tokens(
    model: TokenizerModel,
    sentence: Annotated[str | None, _SENTENCE] = None,
    target: Annotated[
        str | None, _for_input("--target", metavar="TEXT", help="target sentence")
    ] = None,
    src: Annotated[
        str | None,
        _for_input("--src", metavar="FILE", help="source lines, plain or .gz; - is stdin"),
    ] = None,
    tgt: Annotated[str | None, _for_input("--tgt", metavar="FILE", help="target lines")] = None,
    lines: Annotated[
        int,
        _for_output(
            "--lines", min=0, metavar="N", help="lines to show token by token; counts are of all"
        ),
    ] = 5,
) -> None:
    """Show how lines are split: tokens with ids, then counts.

    Characters that are spelled in bytes, and what is unknown, are named below a line.

    \b
    mt inspect tokens --model runs/base "Guten Morgen!" --target "Good morning!"
    mt inspect tokens --model runs/base --src train.de --tgt train.en --lines 0
    mt inspect tokens --model mine.model --src train.de
    """
    from mt.errors import ConfigError
    from mt.inspect.token_listing import list_tokens
    from mt.translate.streaming import read_input
    from mt.translate.tokenize_file import open_tokenizer

    given = {"source": (sentence, "--src", src), "target": (target, "--tgt", tgt)}
    if all(text is None and file is None for text, _, file in given.values()):
        raise ConfigError("tokens: no text to split; give a sentence, --target, --src or --tgt")
    texts: dict[str, Iterable[str]] = {}
    for side, (text, option, file) in given.items():
        if text is not None and file is not None:
            raise ConfigError(f"tokens: a {side} sentence and a {side} file; give one of the two")
        if text is not None:
            texts[side] = [text]
        elif file is not None:
            texts[side] = read_input(file, option=option)
    if src == tgt == "-":
        raise ConfigError("--src, --tgt: only one can be - (stdin); name a file for the other")
    for line in list_tokens(open_tokenizer(model), texts, lines):
        print_result(line)


@app.command("lr", cls=PanelCommand)
def lr(
    config: Annotated[
        list[str],
        typer.Option(
            "--config",
            "-c",
            metavar="NAME",
            help="config file, or the name of a shipped config; several are compared",
            autocompletion=config_names,
            rich_help_panel=CONFIG,
        ),
    ],
    settings: Settings = None,
    output: PictureOutput = None,
) -> None:
    """Show the learning rate over a training.

    As a table of chosen updates; with -o as a picture too. Several configs are compared.

    \b
    mt inspect lr --config base.yaml
    mt inspect lr --config base.yaml --config vaswani2017.yaml -o lr.svg
    mt inspect lr --config tiny.yaml --set optim.schedule=constant
    """
    from mt.config.load import load_config
    from mt.errors import ConfigError
    from mt.inspect.pictures import check_format
    from mt.inspect.schedule import save_schedule, schedule_table

    if output is not None:
        check_format(output)
    if len(set(config)) < len(config):
        raise ConfigError("--config: names the same config twice; give each one once")
    configs = {name: load_config(name, settings or []).config for name in config}
    print_result(schedule_table(configs))
    if output is not None:
        say(f"{output}: {save_schedule(output, configs) or 'written'}")


def _one_of(config: str | None, model: Path | None, settings: list[str] | None) -> None:
    """Refuse both or neither of --config and --model, and --set with --model."""
    from mt.errors import ConfigError

    if (config is None) == (model is None):
        found = "neither" if config is None else "both"
        raise ConfigError(f"--config, --model: give one of the two, found {found}")
    if model is not None and settings:
        raise ConfigError("--set: changes a config; give --config, or leave it out")
