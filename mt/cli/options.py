"""Options that several commands share, as types: `beam_size: BeamSize = None`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_origin

import typer

from mt.errors import ConfigError
from mt.search.options import Sample, Sampling, SearchOptions
from mt.settings import Setting, declared

if TYPE_CHECKING:
    from mt.config.schema import DataConfig

SideName = Literal["src", "tgt"]


def options_in(panel: str | None) -> Callable[..., Any]:
    return partial(typer.Option, rich_help_panel=panel)


def argument(text: str, metavar: str, panel: str | None = None) -> Any:
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


plain_option = options_in(None)
config_option = options_in("Config")
input_option = options_in("Input")
output_option = options_in("Output")
search_option = options_in("Search")
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
OnErrors = Annotated[Literal["strict", "replace"], input_option("--errors", metavar="HOW", help=
    "bytes that are not UTF-8: strict stops, replace puts U+FFFD")]
Source = Annotated[str, argument("text file, also compressed; - is stdin", "IN", "Input")]
_SENTENCE = argument("source sentence", "SENTENCE", "Input")
Sentence = Annotated[str, _SENTENCE]
OptionalSentence = Annotated[str | None, _SENTENCE]
RunDir = Annotated[str | None, output_option("--run-dir", metavar="FOLDER", help=
    "run directory (default: runs/NAME, by the config's name)")]
AsJson = Annotated[bool, output_option("--json", help="print JSON")]
OutputFile = Annotated[str, output_option("--output", "-o", metavar="FILE", help=
    "output file, replaced as a whole or not at all; - is stdout")]
CorpusFile = Annotated[str, output_option("--output", "-o", metavar="FILE.tsv", help=
    "corpus of two columns, source and target; written completely or not at all")]
NewFolder = Annotated[Path, output_option("--output", "-o", metavar="FOLDER", help=
    "new folder to write")]
Resume = Annotated[bool, output_option("--resume", help=
    "continue the output file of an interrupted job")]
Overwrite = Annotated[bool, output_option("--overwrite", help=
    "replace a corpus that is at --output already")]
# fmt: on


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
        """The `data` section, of the config or with the names as `train`, which is not empty."""
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
    """The options of a group whose value is not the default, such as `--beam-size`."""
    return [
        option.annotation.__metadata__[0].default  # Typer has the first name there
        for option in _options_of(type(group))
        if getattr(group, option.name) != option.default
    ]


@dataclass(frozen=True, kw_only=True)
class SampledSearchGroup:
    """The options of a search, and those of random draws in its place."""

    search: SearchOptions
    sample: Sample = False
    sampling: Sampling

    def value(self, **others: Any) -> SearchOptions:
        """The search, with `others` of its fields. ConfigError for options that need --sample."""
        if not self.sample and (named := ", ".join(given(self.sampling))):
            raise ConfigError(f"{named}: only with --sample; add --sample, or leave out {named}")
        return replace(self.search, sample=self.sampling if self.sample else None, **others)


@dataclass(frozen=True)
class CorpusJobGroup:
    """Options for a corpus that is at --output already, whole or in part."""

    resume: Resume = False
    overwrite: Overwrite = False


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Show Typer the fields of a command's dataclasses as options in their place."""
    options = _options_of(command)

    @wraps(command)
    def called(**values: Any) -> None:
        _call(command, values)

    called.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    called.__annotations__ = {option.name: option.annotation for option in options}
    return called


def _parameters_of(group: Any) -> list[inspect.Parameter]:
    """The parameters of a command; of a dataclass those that are options or groups of options."""
    parameters = inspect.signature(group, eval_str=True).parameters
    if not isinstance(group, type):
        return [*parameters.values()]
    hidden = {name for name, (setting, _) in declared(group).items() if not setting.is_option}
    return [
        parameter
        for name, parameter in parameters.items()
        if name not in hidden
        and (is_dataclass(kind := parameter.annotation) or get_origin(kind) is Annotated)
    ]


def _options_of(group: Any) -> list[inspect.Parameter]:
    """The options of a command or dataclass, those of the dataclasses in it in their place."""
    options: list[inspect.Parameter] = []
    for parameter in _parameters_of(group):
        kind = parameter.annotation
        options += _options_of(kind) if is_dataclass(kind) else [_as_option(parameter)]
    return options


def _call(group: Any, values: dict[str, Any]) -> Any:
    """Call a command, or make a dataclass, with those of the options' values that it has."""
    kinds = {parameter.name: parameter.annotation for parameter in _parameters_of(group)}
    made = {name: _call(kind, values) for name, kind in kinds.items() if is_dataclass(kind)}
    return group(**{name: made[name] if name in made else values[name] for name in kinds})


def _as_option(parameter: inspect.Parameter) -> inspect.Parameter:
    """A parameter of the command; a declared setting becomes an option of Typer's."""
    hint = parameter.annotation
    settings = [each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Setting)]
    for setting in settings:
        option = typer.Option(
            setting.option(parameter.name),
            help=setting.help,
            metavar=setting.metavar,
            # Where a message says how to switch it off, `mt.settings.check` has it.
            min=None if setting.off else setting.min,
            max=None if setting.off else setting.max,
            rich_help_panel=setting.panel,
        )
        hint = Annotated[hint.__origin__, option]
    # Keywords may follow one another in any order, with defaults and without.
    return parameter.replace(annotation=hint, kind=parameter.KEYWORD_ONLY)
