"""`mt inspect`: look inside a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mt.cli.console import print_result, say
from mt.cli.options import ConfigName, Model, Sets

app = typer.Typer(no_args_is_help=True, help="Look inside a model.", rich_markup_mode=None)


@app.command("model")
def model(config: ConfigName, sets: Sets = None) -> None:
    """Print every parameter matrix with its shape. Below are totals per block and the closed forms.

    \b
    mt inspect model --config base.yaml
    mt inspect model --config vaswani2017.yaml
    """
    from mt.config.load import load_config
    from mt.model.summary import format_summary, summarise

    values = load_config(config, sets or []).config
    size, joint = values.tokenizer.vocab_size, values.tokenizer.joint
    print_result(format_summary(summarise(values.model, size, size, joint)))


@app.command("attention")
def attention(
    model: Model,
    sentence: Annotated[str, typer.Argument(metavar="SENTENCE", help="a source sentence")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="picture to write: .svg or .png"),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="TEXT", help="its translation; default: the model's own"),
    ] = None,
    kind: Annotated[
        str, typer.Option("--kind", metavar="NAME", help="cross, encoder or decoder attention")
    ] = "cross",
    layer: Annotated[
        int | None, typer.Option("--layer", metavar="L", help="from 1; default: the last but one")
    ] = None,
    head: Annotated[
        int | None, typer.Option("--head", metavar="H", help="from 1; default: the mean of all")
    ] = None,
    view: Annotated[
        str,
        typer.Option("--view", metavar="NAME", help="map, lines, or grid of all layers and heads"),
    ] = "map",
    pieces: Annotated[bool, typer.Option("--pieces", help="subword pieces, not words")] = False,
) -> None:
    """Show which words each word looks at. Without -o, the three strongest of each, in percent.

    \b
    mt inspect attention --model runs/base "Am Montag kauft die Frau einen alten Tisch."
    mt inspect attention --model runs/base "Guten Morgen!" -o map.svg
    mt inspect attention --model runs/base "Guten Morgen!" --kind encoder --view grid -o heads.png
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
