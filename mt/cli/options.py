"""Options that several commands share, as types: `beam_size: BeamSize = None`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_type_hints

import typer

from mt.errors import ConfigError, MtError
from mt.search.options import EngineName, PrecisionName, Sampling, WhenToSplit

if TYPE_CHECKING:
    from mt.config.schema import DataConfig

T = TypeVar("T")
ErrorsName = Literal["strict", "replace"]
SideName = Literal["src", "tgt"]
PrecisionOfWeights = Literal["fp32", "fp16", "bf16", "int8"]


def options_in(panel: str | None) -> Callable[..., Any]:
    """Return `typer.Option` for one panel of --help."""
    return partial(typer.Option, rich_help_panel=panel)


def argument(text: str, metavar: str, panel: str | None = None) -> Any:
    """Make an argument."""
    return typer.Argument(metavar=metavar, help=text, rich_help_panel=panel)


def _config_names() -> list[str]:
    """Complete `--config` with the shipped configs; without a match a shell completes files."""
    from mt.config.load import shipped_configs

    return shipped_configs()


def metric_names(incomplete: str) -> list[str]:
    """Complete the last of several metrics, separated by commas."""
    from mt.evaluation.metrics import METRICS

    before, comma, _ = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in METRICS if name not in before.split(",")]


def _target_languages(ctx: typer.Context) -> list[str]:
    """Complete `--to` with the languages of the command's model."""
    from mt.config.plan import plan_data
    from mt.runs.model_folder import read_config

    model = ctx.params.get("models") or ctx.params.get("model") or ctx.params.get("trained")
    folder = model[0] if isinstance(model, list | tuple) and model else model
    if not folder:
        return []
    with suppress(MtError):
        directions = plan_data(read_config(Path(folder)).data).directions
        return list(dict.fromkeys(direction.tgt for direction in directions))
    return []


plain_option = options_in(None)
config_option = options_in("Config")
input_option = options_in("Input")
output_option = options_in("Output")
search_option = options_in("Search")
sampling_option = options_in("Sampling")
execution_option = options_in("Execution")

# fmt: off
_CONFIG = config_option("--config", "-c", metavar="NAME", autocompletion=_config_names, help=
    "config file, or the name of a shipped config")
ConfigName = Annotated[str, _CONFIG]
OptionalConfig = Annotated[str | None, _CONFIG]
Settings = Annotated[list[str] | None, config_option("--set", metavar="KEY=VALUE", help=
    "override one value, such as model.d_ff=1024; repeatable")]
Model = Annotated[Path, input_option("--model", "-m", metavar="FOLDER", help=
    "run directory, checkpoint, averaged or imported model")]
TokenizerPath = Annotated[Path, input_option("--model", "-m", metavar="PATH", help=
    "SentencePiece .model file, run directory, checkpoint, averaged or imported model")]
Models = Annotated[list[Path], input_option("--model", "-m", metavar="FOLDER", help=
    "run directory, checkpoint, averaged or imported model; several make an ensemble")]
OnErrors = Annotated[ErrorsName, input_option("--errors", metavar="HOW", help=
    "bytes that are not UTF-8: strict stops, replace puts U+FFFD")]
Source = Annotated[str, argument("text file, also compressed; - is stdin", "IN", "Input")]
_SENTENCE = argument("source sentence", "SENTENCE", "Input")
Sentence = Annotated[str, _SENTENCE]
OptionalSentence = Annotated[str | None, _SENTENCE]
ToLanguage = Annotated[str | None, input_option(
    "--to", autocompletion=_target_languages, metavar="CODE", help=
    "language to translate into, such as fr, of a model that knows several")]
FromLanguage = Annotated[str | None, input_option("--from", metavar="CODE", help=
    "language of the source, such as de, of a model that knows several: to write lines in capitals "
    "or without a final stop as its training text would, and to find sentences")]
RunDir = Annotated[Path | None, output_option("--run-dir", metavar="FOLDER", help=
    "run directory (default: runs/NAME, by the config's name)")]
AsJson = Annotated[bool, output_option("--json", help="print JSON")]
OutputFile = Annotated[str, output_option("--output", "-o", metavar="FILE", help=
    "output file, written completely or not at all; - is stdout")]
CorpusFile = Annotated[str, output_option("--output", "-o", metavar="FILE.tsv", help=
    "corpus of two columns, source and target; written completely or not at all")]
Alignments = Annotated[bool, output_option("--alignments", help=
    "add a word alignment to each output: i-j pairs, counted from 0; without spaces between words, "
    "characters start:end")]
AlignmentHeads = Annotated[str | None, output_option("--alignment-heads", metavar="L:H,...", help=
    "align by the mean of these cross-attention layers (L) or heads (L:H) (default: the last layer "
    "but one)")]
NewFolder = Annotated[Path, output_option("--output", "-o", metavar="FOLDER", help=
    "new folder to write")]
Resume = Annotated[bool, output_option("--resume", help=
    "continue the output file of an interrupted job")]
Overwrite = Annotated[bool, output_option("--overwrite", help=
    "replace a corpus that is at --output already")]
Picture = Annotated[Path | None, output_option("--output", "-o", metavar="FILE", help=
    "picture to write, .svg or .png")]
BeamSize = Annotated[int | None, search_option("--beam-size", metavar="N", min=1, help=
    "hypotheses kept per sentence; 1 is greedy search (default: the model's config)")]
LengthPenalty = Annotated[float | None, search_option(
    "--length-penalty", metavar="A", min=0, max=100, help=
    "divide log-probabilities by length^A; higher favours longer outputs (default: the model's "
    "config)")]
BatchTokens = Annotated[int | None, execution_option("--batch-tokens", metavar="N", min=1, help=
    "batch size: source tokens, padding included, times beam size (default: chosen for the "
    "device)")]
Precision = Annotated[PrecisionName, execution_option("--precision", metavar="NAME", help=
    "auto, fp32, bf16, fp16 (GPU only) or int8 (CTranslate2 only)")]
DeviceName = Annotated[str, execution_option("--device", metavar="NAME", help=
    "auto, cpu, cuda or cuda:N")]
# fmt: on


def make(kind: Callable[..., T], *groups: Any, **more: Any) -> T:
    """Make a value, such as `TextFiles`, from the options that bear the names of its fields.

    `more`: fields without an option, or with another value than the option's.
    """
    options = {name: value for group in groups for name, value in vars(group).items()}
    names = inspect.signature(kind).parameters
    return kind(**{name: options[name] for name in names if name in options} | more)


@dataclass(frozen=True)
class SearchGroup:
    """The options of the search that `mt translate` and `mt evaluate` share."""

    # fmt: off
    from_: FromLanguage = None
    beam_size: BeamSize = None
    length_penalty: LengthPenalty = None
    to: ToLanguage = None
    split_sentences: Annotated[WhenToSplit, search_option("--split-sentences", metavar="WHEN", help=
        "translate the sentences of a line one by one and join them: always, never, or auto: if "
        "the model learnt from lines of one sentence")] = "auto"
    as_written: Annotated[bool, search_option("--as-written", help=
        "give the model lines in capitals, Title Case or lower case, without a final stop or with "
        "emoji as they are, instead of as its training text would write them")] = False


@dataclass(frozen=True)
class SamplingGroup:
    """The options of sampling as given; None: not given."""

    # fmt: off
    sample: Annotated[bool, sampling_option("--sample", help=
        "draw outputs at random instead of searching for the best")] = False
    temperature: Annotated[float | None, sampling_option("--temperature", metavar="T", help=
        "divide logits by T: below 1 is less random, above 1 more; 1 is off")] = None
    top_k: Annotated[int | None, sampling_option("--top-k", metavar="K", help=
        "draw from the K most probable tokens; 0 is off")] = None
    top_p: Annotated[float | None, sampling_option("--top-p", metavar="P", help=
        "draw from the most probable tokens that together reach P; 1 is off")] = None
    seed: Annotated[int | None, sampling_option("--seed", metavar="N", help=
        "seed of the random draws; 1 if not given")] = None
    # fmt: on

    def value(self) -> Sampling | None:
        """Return the sampling asked for. Raises ConfigError for options without --sample."""
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


@dataclass(frozen=True)
class EngineGroup:
    """The options of the engine that translates."""

    # fmt: off
    engine: Annotated[EngineName, execution_option("--engine", metavar="NAME", help=
        "torch, ctranslate2 (CPU only, faster), or auto: ctranslate2 where it is installed and "
        "supports all options")] = "auto"
    workers: Annotated[int | None, execution_option("--workers", metavar="N", min=1, help=
        "processes that translate: on a CPU, or each on a GPU (default: one per core; a GPU, or "
        "all for a large file)")] = None
    batch_tokens: BatchTokens = None
    precision: Precision = "auto"
    device: DeviceName = "auto"


@dataclass(frozen=True)
class CorpusGroup:
    """The corpora of a command as given: names, or a config; options of these names."""

    # fmt: off
    names: Annotated[list[str] | None, argument(
        "corpora: two text files in a row are source and target; others are files of pairs, "
        "folders, what two text files have in common (corpus/train), hub names, or a source as in "
        "a config ({path: a.jsonl, src: translation.de, tgt: "
        "translation.en})", "IN", "Input")] = None
    langs: Annotated[str | None, input_option("--langs", metavar="SRC-TGT", help=
        "languages of the corpora, such as de-en (default: the endings of text files)")] = None
    config: OptionalConfig = None
    settings: Settings = None
    # fmt: on

    def value(self) -> DataConfig:
        """Return the `data` section: of the config, or made of the names, which are `train`.

        Its `train` is not empty. Raises ConfigError for what cannot be meant.
        """
        from mt.cli.corpora import data_of
        from mt.config.load import load_config, require_training_data

        if self.config is not None:
            if self.names or self.langs:
                given = self.names[0] if self.names else f"--langs {self.langs}"
                raise ConfigError(
                    f"--config {self.config}: names the corpora and their languages, found {given} "
                    "too; leave out one of them"
                )
            loaded = load_config(self.config, self.settings or []).config
            require_training_data(loaded)
            return loaded.data
        if not self.names:
            raise ConfigError("IN: no corpus to read; name files, or give --config")
        if self.settings:
            raise ConfigError("--set: changes a config; give --config, or leave it out")
        return data_of(self.names, self.langs)


def given(group: Any) -> list[str]:
    """The names of a group's options whose value is not the default, such as `--beam-size`."""
    names = [field.name for field in fields(group) if getattr(group, field.name) != field.default]
    return [f"--{name.strip('_').removeprefix('as_').replace('_', '-')}" for name in names]


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Show Typer the fields of a command's dataclasses as options in their place."""
    groups: dict[str, Any] = {}
    options: list[inspect.Parameter] = []
    for parameter in _parameters(command):
        if is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation
            options += _parameters(parameter.annotation)
        else:
            options.append(parameter)
    # Keywords may follow one another in any order, with defaults and without.
    options = [option.replace(kind=option.KEYWORD_ONLY) for option in options]

    @wraps(command)
    def called(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    called.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    called.__annotations__ = {option.name: option.annotation for option in options}
    return called


def _parameters(function: Any) -> list[inspect.Parameter]:
    """The parameters of a function, or of a group, which may inherit some from another file."""
    is_group = isinstance(function, type)
    hints = get_type_hints(function, include_extras=True) if is_group else {}
    parameters = inspect.signature(function, eval_str=not is_group).parameters
    return [
        parameter.replace(annotation=hints.get(name, parameter.annotation))
        for name, parameter in parameters.items()
    ]
