"""`mt inspect`: look inside a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mt.cli.console import print_result, say
from mt.cli.help import INPUT, OUTPUT, PanelCommand
from mt.cli.options import Model, OptionalConfigName, Settings

app = typer.Typer(no_args_is_help=True, help="Look inside a model.", rich_markup_mode=None)


@app.command("model", cls=PanelCommand)
def model(
    config: OptionalConfigName = None,
    model: Annotated[
        Path | None,
        typer.Option(
            "--model",
            "-m",
            metavar="FOLDER",
            help="trained model: run directory, checkpoint or exported model folder",
            rich_help_panel=INPUT,
        ),
    ] = None,
    settings: Settings = None,
) -> None:
    """Print the shape of every parameter matrix. Totals and formulas follow.

    Of a trained model, the sizes of the vocabularies are those of its tokenizer; of a config,
    tokenizer.vocab_size.

    \b
    mt inspect model --model runs/base
    mt inspect model --config base.yaml
    mt inspect model --config vaswani2017.yaml
    """
    from mt.config.load import load_config
    from mt.errors import ConfigError
    from mt.model.summary import format_summary, summarise, summarise_folder

    if (config is None) == (model is None):
        found = "neither" if config is None else "both"
        raise ConfigError(f"--config, --model: give one of the two, found {found}")
    if model is not None:
        if settings:
            raise ConfigError("--set: changes a config; give --config, or leave it out")
        print_result(format_summary(summarise_folder(model)))
        return
    assert config is not None
    values = load_config(config, settings or []).config
    size, joint = values.tokenizer.vocab_size, values.tokenizer.joint
    print_result(format_summary(summarise(values.model, size, size, joint)))


@app.command("attention", cls=PanelCommand)
def attention(
    model: Model,
    sentence: Annotated[
        str,
        typer.Argument(metavar="SENTENCE", help="source sentence", rich_help_panel=INPUT),
    ],
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="TEXT",
            help="its translation",
            show_default="the model's own",
            rich_help_panel=INPUT,
        ),
    ] = None,
    kind: Annotated[
        str,
        typer.Option(
            "--kind",
            metavar="NAME",
            help="attention to show: cross, encoder or decoder",
            rich_help_panel=OUTPUT,
        ),
    ] = "cross",
    layer: Annotated[
        int | None,
        typer.Option(
            "--layer",
            metavar="L",
            help="layer to show, counted from 1",
            show_default="the last but one",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    head: Annotated[
        int | None,
        typer.Option(
            "--head",
            metavar="H",
            help="head to show, counted from 1",
            show_default="the mean of all",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    pieces: Annotated[
        bool,
        typer.Option("--pieces", help="show subword pieces, not words", rich_help_panel=OUTPUT),
    ] = False,
    view: Annotated[
        str,
        typer.Option(
            "--view",
            metavar="NAME",
            help="picture to draw: map, lines, or grid of all layers and heads",
            rich_help_panel=OUTPUT,
        ),
    ] = "map",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="picture to write, .svg or .png; text if not given",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
) -> None:
    """Show which words each word attends to. As text, the three strongest, in percent.

    \b
    mt inspect attention --model runs/base "Das Haus ist alt."
    mt inspect attention --model runs/base "Guten Morgen!" -o map.svg
    mt inspect attention --model runs/base "Ja!" --view grid -o grid.png
    """
    from mt.decoding.attention import read_attention
    from mt.errors import ConfigError
    from mt.evaluation.attention_map import as_text, check_picture, chosen, save_picture
    from mt.model.checkpoint import load_model
    from mt.runtime.devices import choose_device

    if output is not None:
        check_picture(view, output)
    elif view != "map":
        raise ConfigError(f"--view {view}: is a picture; name its file with -o")
    device = choose_device("cpu", "fp32")
    found = read_attention(load_model(model), device, sentence, target, kind, pieces)
    if output is None:
        weights, title = chosen(found.weights, layer, head)
        print_result(as_text(weights, found.rows, found.columns))
        say(f"{kind} attention, {title}")
        return
    note = save_picture(output, view, found.weights, found.rows, found.columns, layer, head)
    say(f"{output}: {note or 'written'}")
