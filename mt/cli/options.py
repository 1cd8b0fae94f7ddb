"""Options that several commands share: their names, types and help texts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mt.cli.help import CONFIG, EXECUTION, INPUT, OUTPUT, SAMPLING, SEARCH

if TYPE_CHECKING:
    from mt.search.options import Sampling


def config_names() -> list[str]:
    """Complete `--config` with the shipped configs; without a match a shell completes files."""
    from mt.config.shipped import shipped_configs

    return shipped_configs()


_CONFIG = typer.Option(
    "--config",
    "-c",
    metavar="NAME",
    help="config file, or the name of a shipped config",
    autocompletion=config_names,
    rich_help_panel=CONFIG,
)
ConfigName = Annotated[str, _CONFIG]
OptionalConfigName = Annotated[str | None, _CONFIG]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="override one value, such as model.d_ff=1024; repeatable",
        rich_help_panel=CONFIG,
    ),
]
Model = Annotated[
    Path,
    typer.Option(
        "--model",
        "-m",
        metavar="FOLDER",
        help="run directory, checkpoint or exported model folder",
        rich_help_panel=INPUT,
    ),
]
TokenizerModel = Annotated[
    Path,
    typer.Option(
        "--model",
        "-m",
        metavar="PATH",
        help="SentencePiece .model file, run directory, checkpoint or exported model folder",
        rich_help_panel=INPUT,
    ),
]
Models = Annotated[
    list[Path],
    typer.Option(
        "--model",
        "-m",
        metavar="FOLDER",
        help="run directory, checkpoint or exported model folder; several make an ensemble",
        rich_help_panel=INPUT,
    ),
]
Output = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="output file, written completely or not at all; - is stdout",
        rich_help_panel=OUTPUT,
    ),
]
Corpus = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE.tsv",
        help="corpus of two columns, source and target; written completely or not at all",
        rich_help_panel=OUTPUT,
    ),
]
Alignments = Annotated[
    bool,
    typer.Option(
        "--alignments",
        help="add a word alignment to each output: i-j pairs, counted from 0",
        rich_help_panel=OUTPUT,
    ),
]
AlignmentHeads = Annotated[
    str | None,
    typer.Option(
        "--alignment-heads",
        metavar="L:H,...",
        help="align by the mean of these cross-attention layers (L) or heads (L:H)",
        show_default="the last layer but one",
        rich_help_panel=OUTPUT,
    ),
]
BeamSize = Annotated[
    int | None,
    typer.Option(
        "--beam-size",
        min=1,
        metavar="N",
        help="hypotheses kept per sentence; 1 is greedy search",
        show_default="the model's config",
        rich_help_panel=SEARCH,
    ),
]
LengthPenalty = Annotated[
    float | None,
    typer.Option(
        "--length-penalty",
        min=0,
        max=100,
        metavar="A",
        help="divide log-probabilities by length^A; higher favours longer outputs",
        show_default="the model's config",
        rich_help_panel=SEARCH,
    ),
]
BatchTokens = Annotated[
    int | None,
    typer.Option(
        "--batch-tokens",
        min=1,
        metavar="N",
        help="batch size: source tokens, padding included, times beam size",
        show_default="chosen for the device",
        rich_help_panel=EXECUTION,
    ),
]
Precision = Annotated[
    str,
    typer.Option(
        "--precision",
        metavar="NAME",
        help="auto, fp32, bf16, fp16 (GPU only) or int8 (CPU only)",
        rich_help_panel=EXECUTION,
    ),
]
NewFolder = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        metavar="FOLDER",
        help="new folder to write",
        rich_help_panel=OUTPUT,
    ),
]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="NAME",
        help="torch, ctranslate2 (CPU only, faster), or auto: ctranslate2 where it is installed "
        "and supports all options",
        rich_help_panel=EXECUTION,
    ),
]
DeviceName = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="NAME",
        help="auto, cpu, cuda or cuda:N",
        rich_help_panel=EXECUTION,
    ),
]
Errors = Annotated[
    str,
    typer.Option(
        "--errors",
        metavar="HOW",
        help="bytes that are not UTF-8: strict stops, replace puts U+FFFD",
        rich_help_panel=INPUT,
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="continue the output file of an interrupted job",
        rich_help_panel=OUTPUT,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        metavar="N",
        help="processes that translate: on a CPU, or each on a GPU",
        show_default="one per core; a GPU, or all for a large file",
        rich_help_panel=EXECUTION,
    ),
]


@dataclass(frozen=True)
class SamplingGroup:
    """The options of sampling as given; None: not given."""

    sample: Annotated[
        bool,
        typer.Option(
            "--sample",
            help="draw outputs at random instead of searching for the best",
            rich_help_panel=SAMPLING,
        ),
    ] = False
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature",
            metavar="T",
            help="divide logits by T: below 1 is less random, above 1 more; 1 is off",
            rich_help_panel=SAMPLING,
        ),
    ] = None
    top_k: Annotated[
        int | None,
        typer.Option(
            "--top-k",
            metavar="K",
            help="draw from the K most probable tokens; 0 is off",
            rich_help_panel=SAMPLING,
        ),
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option(
            "--top-p",
            metavar="P",
            help="draw from the most probable tokens that together reach P; 1 is off",
            rich_help_panel=SAMPLING,
        ),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            metavar="N",
            help="seed of the random draws; 1 if not given",
            rich_help_panel=SAMPLING,
        ),
    ] = None

    def value(self) -> Sampling | None:
        """Return the sampling asked for. Raises ConfigError for options without --sample."""
        from mt.errors import ConfigError
        from mt.search.options import Sampling

        given = {name: value for name, value in vars(self).items() if value is not None}
        if given.pop("sample"):
            return Sampling(**given)
        if given:
            named = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise ConfigError(
                f"{named}: only with --sample, which draws outputs instead of searching for the "
                "best; add --sample"
            )
        return None


NO_SAMPLING = SamplingGroup()


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Show Typer the fields of a parameter that is a dataclass as parameters of the command."""
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if is_dataclass(parameter.annotation)
    }
    expanded: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        group = groups.get(name)
        options = [parameter]
        if group is not None:
            options = list(inspect.signature(group, eval_str=True).parameters.values())
        expanded += options

    @wraps(command)
    def called(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    called.__signature__ = signature.replace(parameters=expanded)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in expanded}
    return called
