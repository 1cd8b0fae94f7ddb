"""Options that several commands share, as types: `beam_size: BeamSize = None`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_origin, get_type_hints

import typer

from mt.errors import ConfigError
from mt.search.options import Sampling
from mt.settings import Setting, declared

if TYPE_CHECKING:
    from mt.config.schema import DataConfig

ErrorsName = Literal["strict", "replace"]
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
OnErrors = Annotated[ErrorsName, input_option("--errors", metavar="HOW", help=
    "bytes that are not UTF-8: strict stops, replace puts U+FFFD")]
Source = Annotated[str, argument("text file, also compressed; - is stdin", "IN", "Input")]
_SENTENCE = argument("source sentence", "SENTENCE", "Input")
Sentence = Annotated[str, _SENTENCE]
OptionalSentence = Annotated[str | None, _SENTENCE]
RunDir = Annotated[Path | None, output_option("--run-dir", metavar="FOLDER", help=
    "run directory (default: runs/NAME, by the config's name)")]
AsJson = Annotated[bool, output_option("--json", help="print JSON")]
OutputFile = Annotated[str, output_option("--output", "-o", metavar="FILE", help=
    "output file, written completely or not at all; - is stdout")]
CorpusFile = Annotated[str, output_option("--output", "-o", metavar="FILE.tsv", help=
    "corpus of two columns, source and target; written completely or not at all")]
NewFolder = Annotated[Path, output_option("--output", "-o", metavar="FOLDER", help=
    "new folder to write")]
Resume = Annotated[bool, output_option("--resume", help=
    "continue the output file of an interrupted job")]
Overwrite = Annotated[bool, output_option("--overwrite", help=
    "replace a corpus that is at --output already")]
Picture = Annotated[Path | None, output_option("--output", "-o", metavar="FILE", help=
    "picture to write, .svg or .png")]
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


def sampling_of(sample: bool, sampling: Sampling) -> Sampling | None:
    """The sampling that `--sample` asks for. Raises ConfigError for options that need it."""
    if not sample and (named := ", ".join(given(sampling))):
        raise ConfigError(f"{named}: only with --sample; add --sample, or leave out {named}")
    return sampling if sample else None


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Show Typer the fields of a command's dataclasses as options in their place."""
    groups: dict[str, tuple[Any, list[str]]] = {}
    options: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        if is_dataclass(group := parameter.annotation):
            fields = _options_of(group)
            groups[name] = group, [field.name for field in fields]
            options += fields
        else:
            options.append(_as_option(parameter, group))
    # Keywords may follow one another in any order, with defaults and without.
    options = [option.replace(kind=option.KEYWORD_ONLY) for option in options]

    @wraps(command)
    def called(**values: Any) -> None:
        for name, (group, fields) in groups.items():
            values[name] = group(**{field: values.pop(field) for field in fields})
        command(**values)

    called.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    called.__annotations__ = {option.name: option.annotation for option in options}
    return called


def _options_of(group: Any) -> list[inspect.Parameter]:
    """The fields of a dataclass that are options: declared as a `Setting`, or for Typer alone."""
    hints = get_type_hints(group, include_extras=True)
    hidden = {name for name, (setting, _) in declared(group).items() if not setting.is_option}
    return [
        _as_option(parameter, hints[name])
        for name, parameter in inspect.signature(group).parameters.items()
        if get_origin(hints[name]) is Annotated and name not in hidden
    ]


def _as_option(parameter: inspect.Parameter, hint: Any) -> inspect.Parameter:
    """A parameter of the command; a declared setting becomes an option of Typer's."""
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
    return parameter.replace(annotation=hint)
