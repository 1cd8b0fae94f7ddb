"""`mt import` and `mt export`: models from and for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from mt import api
from mt.cli import options as opt
from mt.cli.console import say
from mt.cli.help import command_group

import_app = command_group("import", "Import a model from another program.")
export_app = command_group("export", "Convert a model for another program.")


@import_app.command("huggingface")
def import_huggingface(
    model: Annotated[str, opt.argument(
        "name on the Hugging Face hub, OWNER/NAME, or a folder with config.json, weights, "
        "source.spm, target.spm", "MODEL")],
    new_folder: opt.NewFolder,
    revision: Annotated[str | None, opt.input_option("--revision", metavar="NAME", help=
        "branch, tag or commit on the hub (default: the newest commit)")] = None,
) -> None:  # fmt: skip
    """Import a Marian model (OPUS-MT) of transformers.

    MODEL is on the Hugging Face hub, or a folder of a Marian model as transformers writes it. The
    new folder's config.yaml is a config to fine-tune it; see mt/interop/README.md.

    \b
    mt import huggingface Helsinki-NLP/opus-mt-de-en -o opus
    mt translate --model opus input.de -o output.en
    mt train --config opus/config.yaml --run-dir runs/tuned \\
        --set "data.train={src: train.de, tgt: train.en}"
    """
    from mt.interop.huggingface_import import import_named

    say(f"{new_folder}: {import_named(model, revision, new_folder)}")


@export_app.command("ctranslate2")
def ctranslate2(
    model: opt.Model,
    new_folder: opt.NewFolder,
    quantization: api.Quantization = None,
    shortlist: api.Shortlist = False,
    to: Annotated[str | None, opt.output_option("--to", metavar="CODE", help=
        "the one language to translate into, such as fr, of a model that knows several (default: "
        "any; the first token of a source names it)")] = None,
) -> None:  # fmt: skip
    """Convert a model for CTranslate2.

    It is written only if both programs give the same probabilities.

    \b
    mt export ctranslate2 --model runs/base -o base.ct2
    mt export ctranslate2 --model runs/base --quantization int8 -o base-int8.ct2
    """
    api.export(
        model, new_folder, "ctranslate2",
        quantization=quantization, shortlist=shortlist, language=to,
    )  # fmt: skip


@export_app.command("argos")
def argos(
    model: opt.Model,
    output: Annotated[Path, opt.output_option("--output", "-o", metavar="FILE.argosmodel", help=
        "new package to write")],
    quantization: api.Quantization = None,
    from_code: api.FromCode = None,
    to_code: api.ToCode = None,
    package_version: api.PackageVersion = None,
) -> None:  # fmt: skip
    """Make a package for Argos Translate and LibreTranslate. The vocabulary must be joint.

    Needs the package ctranslate2. It is written only if both programs give the same probabilities.

    \b
    mt export argos --model runs/base -o de_en.argosmodel
    """
    api.export(
        model, output, "argos", quantization=quantization, from_code=from_code, to_code=to_code,
        package_version=package_version,
    )  # fmt: skip


@export_app.command("huggingface")
def export_huggingface(
    model: opt.Model,
    new_folder: opt.NewFolder,
    license_name: Annotated[str | None, opt.output_option("--license", metavar="ID", help=
        "licence for the model card, such as apache-2.0; none is stated if not given")] = None,
) -> None:  # fmt: skip
    """Convert a model for Hugging Face transformers.

    transformers opens it without custom code. It is written only if both programs give the same
    probabilities. The folder's README.md is a model card.

    \b
    mt export huggingface --model runs/base -o base.hf --license apache-2.0
    """
    api.export(model, new_folder, "huggingface", license_name=license_name)
