"""Options that several commands share: their names, types and help texts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mt.cli.help import CONFIG, EXECUTION, INPUT, OUTPUT, SAMPLING, SEARCH, option

if TYPE_CHECKING:
    from mt.search.options import EngineOptions, Sampling


def config_names() -> list[str]:
    """Complete `--config` with the shipped configs; without a match a shell completes files."""
    from mt.config.load import shipped_configs

    return shipped_configs()


_CONFIG = option(
    CONFIG,
    "--config -c",
    "config file, or the name of a shipped config",
    "NAME",
    autocompletion=config_names,
)
ConfigName = Annotated[str, _CONFIG]
OptionalConfigName = Annotated[str | None, _CONFIG]
Settings = Annotated[
    list[str] | None,
    option(CONFIG, "--set", "override one value, such as model.d_ff=1024; repeatable", "KEY=VALUE"),
]
Model = Annotated[
    Path,
    option(INPUT, "--model -m", "run directory, checkpoint or exported model folder", "FOLDER"),
]
TokenizerModel = Annotated[
    Path,
    option(
        INPUT,
        "--model -m",
        "SentencePiece .model file, run directory, checkpoint or exported model folder",
        "PATH",
    ),
]
Models = Annotated[
    list[Path],
    option(
        INPUT,
        "--model -m",
        "run directory, checkpoint or exported model folder; several make an ensemble",
        "FOLDER",
    ),
]
Output = Annotated[
    str,
    option(
        OUTPUT, "--output -o", "output file, written completely or not at all; - is stdout", "FILE"
    ),
]
Corpus = Annotated[
    str,
    option(
        OUTPUT,
        "--output -o",
        "corpus of two columns, source and target; written completely or not at all",
        "FILE.tsv",
    ),
]
Alignments = Annotated[
    bool,
    option(
        OUTPUT, "--alignments", "add a word alignment to each output: i-j pairs, counted from 0"
    ),
]
AlignmentHeads = Annotated[
    str | None,
    option(
        OUTPUT,
        "--alignment-heads",
        "align by the mean of these cross-attention layers (L) or heads (L:H)",
        "L:H,...",
        show_default="the last layer but one",
    ),
]
BeamSize = Annotated[
    int | None,
    option(
        SEARCH,
        "--beam-size",
        "hypotheses kept per sentence; 1 is greedy search",
        "N",
        min=1,
        show_default="the model's config",
    ),
]
LengthPenalty = Annotated[
    float | None,
    option(
        SEARCH,
        "--length-penalty",
        "divide log-probabilities by length^A; higher favours longer outputs",
        "A",
        min=0,
        max=100,
        show_default="the model's config",
    ),
]
BatchTokens = Annotated[
    int | None,
    option(
        EXECUTION,
        "--batch-tokens",
        "batch size: source tokens, padding included, times beam size",
        "N",
        min=1,
        show_default="chosen for the device",
    ),
]
Precision = Annotated[
    str,
    option(
        EXECUTION, "--precision", "auto, fp32, bf16, fp16 (GPU only) or int8 (CPU only)", "NAME"
    ),
]
NewFolder = Annotated[Path, option(OUTPUT, "--output -o", "new folder to write", "FOLDER")]
EngineName = Annotated[
    str,
    option(
        EXECUTION,
        "--engine",
        (
            "torch, ctranslate2 (CPU only, faster), or auto: ctranslate2 where it is "
            "installed and supports all options"
        ),
        "NAME",
    ),
]
DeviceName = Annotated[str, option(EXECUTION, "--device", "auto, cpu, cuda or cuda:N", "NAME")]
Errors = Annotated[
    str,
    option(INPUT, "--errors", "bytes that are not UTF-8: strict stops, replace puts U+FFFD", "HOW"),
]
Resume = Annotated[
    bool, option(OUTPUT, "--resume", "continue the output file of an interrupted job")
]
Overwrite = Annotated[
    bool, option(OUTPUT, "--overwrite", "replace a corpus that is at --output already")
]
Workers = Annotated[
    int | None,
    option(
        EXECUTION,
        "--workers",
        "processes that translate: on a CPU, or each on a GPU",
        "N",
        min=1,
        show_default="one per core; a GPU, or all for a large file",
    ),
]


@dataclass(frozen=True)
class SamplingGroup:
    """The options of sampling as given; None: not given."""

    sample: Annotated[
        bool,
        option(SAMPLING, "--sample", "draw outputs at random instead of searching for the best"),
    ] = False
    temperature: Annotated[
        float | None,
        option(
            SAMPLING,
            "--temperature",
            "divide logits by T: below 1 is less random, above 1 more; 1 is off",
            "T",
        ),
    ] = None
    top_k: Annotated[
        int | None,
        option(SAMPLING, "--top-k", "draw from the K most probable tokens; 0 is off", "K"),
    ] = None
    top_p: Annotated[
        float | None,
        option(
            SAMPLING,
            "--top-p",
            "draw from the most probable tokens that together reach P; 1 is off",
            "P",
        ),
    ] = None
    seed: Annotated[
        int | None, option(SAMPLING, "--seed", "seed of the random draws; 1 if not given", "N")
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


@dataclass(frozen=True)
class EngineGroup:
    """The options of the engine that makes a corpus."""

    engine: EngineName = "auto"
    workers: Workers = None
    batch_tokens: BatchTokens = None
    precision: Precision = "auto"
    device: DeviceName = "auto"

    def value(self, models: list[Path]) -> EngineOptions:
        """Return the engine asked for, with these models."""
        from mt.search.options import EngineOptions

        return EngineOptions(models=models, **vars(self))


ANY_ENGINE = EngineGroup()


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
