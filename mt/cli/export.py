"""`mt export`: write a model in the format of another program."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mt.cli.console import say
from mt.cli.help import OUTPUT, PanelCommand
from mt.cli.options import Model, NewFolder

app = typer.Typer(
    no_args_is_help=True, help="Convert a model for another program.", rich_markup_mode=None
)
Quantization = Annotated[
    str,
    typer.Option(
        "--quantization",
        metavar="NAME",
        help="precision of the weights: fp32, fp16, bf16 or int8",
        rich_help_panel=OUTPUT,
    ),
]


@app.command("ctranslate2", cls=PanelCommand)
def ctranslate2(
    model: Model,
    output: NewFolder,
    quantization: Quantization = "fp32",
    shortlist: Annotated[
        bool,
        typer.Option(
            "--shortlist",
            help="also write vmap.txt: likely target pieces of each source piece, learned from the "
            "run's training data, for mt translate --shortlist",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
) -> None:
    """Convert a model for CTranslate2.

    It is written only if both programs give the same probabilities. The first lines of the
    validation text, if it can be read, are translated with both.

    \b
    mt export ctranslate2 --model runs/base -o base.ct2
    mt export ctranslate2 --model runs/base --quantization int8 -o base-int8.ct2
    """
    from mt.interop.ctranslate2 import export
    from mt.interop.shortlist import store_of
    from mt.model.checkpoint import load_model

    loaded = load_model(model)
    store = store_of(loaded.folder) if shortlist else None
    export(loaded, output, quantization, say, store)


@app.command("argos", cls=PanelCommand)
def argos(
    model: Model,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE.argosmodel",
            help="new package to write",
            rich_help_panel=OUTPUT,
        ),
    ],
    quantization: Quantization = "int8",
    from_code: Annotated[
        str | None,
        typer.Option(
            "--from-code",
            metavar="CODE",
            help="language to translate from, such as de",
            show_default="data.src_lang",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    to_code: Annotated[
        str | None,
        typer.Option(
            "--to-code",
            metavar="CODE",
            help="language to translate to",
            show_default="data.tgt_lang",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    package_version: Annotated[
        str,
        typer.Option(
            "--package-version",
            metavar="N.N",
            help="version of the package; a higher one replaces a lower one",
            rich_help_panel=OUTPUT,
        ),
    ] = "1.0",
) -> None:
    """Make a package for Argos Translate and LibreTranslate. The vocabulary must be joint.

    Needs the package ctranslate2. It is written only if both programs give the same probabilities.

    \b
    mt export argos --model runs/base -o de_en.argosmodel
    """
    from mt.interop.argos import Names, export_package
    from mt.model.checkpoint import load_model

    names = Names(from_code, to_code, package_version)
    export_package(load_model(model), output, names, quantization, say)


@app.command("huggingface", cls=PanelCommand)
def huggingface(
    model: Model,
    output: NewFolder,
    license_name: Annotated[
        str | None,
        typer.Option(
            "--license",
            metavar="NAME",
            help="licence for the model card, such as apache-2.0; none is stated if not given",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
) -> None:
    """Convert a model for Hugging Face transformers.

    transformers opens it without custom code. It is written only if both programs give the same
    probabilities; translations of data.valid are compared. The folder's README.md is a model card.

    \b
    mt export huggingface --model runs/base -o base.hf --license apache-2.0
    """
    from mt.interop.huggingface_export import export
    from mt.model.checkpoint import load_model

    export(load_model(model), output, license_name, say)
