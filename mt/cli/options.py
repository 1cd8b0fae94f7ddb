"""Options that several commands share, as types: `beam_size: BeamSize = None`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from mt.errors import ConfigError, MtError
from mt.settings import Setting, declared

if TYPE_CHECKING:
    from mt.config.schema import DataConfig

ErrorsName = Literal["strict", "replace"]
SideName = Literal["src", "tgt"]
PrecisionOfWeights = Literal["fp32", "fp16", "bf16", "int8"]


def options_in(panel: str | None) -> Callable[..., Any]:
    """Return `typer.Option` for one panel of --help."""
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


def _target_languages(ctx: typer.Context) -> list[str]:
    """Complete `--to` with the languages of the command's model."""
    from mt.runs.model_folder import open_model

    model = ctx.params.get("models") or ctx.params.get("model") or ctx.params.get("trained")
    folder = model[0] if isinstance(model, list | tuple) and model else model
    if not folder:
        return []
    with suppress(MtError):
        directions = open_model(Path(folder)).data.directions
        return list(dict.fromkeys(direction.tgt for direction in directions))
    return []


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
    """The options of a group whose value is not the default, such as `--beam-size`."""
    return [
        option.annotation.__metadata__[0].default  # Typer has the first name there
        for option in _options_of(type(group))
        if getattr(group, option.name) != option.default
    ]


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Show Typer the fields of a command's dataclasses as options in their place.

    A parameter `sample: Annotated[Sampling | None, Setting(...)]` is a switch, and the options of
    its dataclass are only for that.
    """
    groups: dict[str, Any] = {}
    switched: dict[str, Any] = {}
    options: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        group = parameter.annotation
        if is_dataclass(group):
            groups[parameter.name] = group
            options += _options_of(group)
        elif is_dataclass(kind := _of_optional(group)):
            switched[parameter.name] = kind
            switch = _as_typer(_setting_of(group), parameter.name)
            options.append(parameter.replace(annotation=Annotated[bool, switch], default=False))
            for option in _options_of(kind):
                kind_of_value, typer_option = get_args(option.annotation)
                hint: Any = Annotated[kind_of_value | None, typer_option]
                options.append(option.replace(annotation=hint, default=None))
        else:
            options.append(_as_option(parameter, group))
    # Keywords may follow one another in any order, with defaults and without.
    options = [option.replace(kind=option.KEYWORD_ONLY) for option in options]

    @wraps(command)
    def called(**values: Any) -> None:
        for name, group in groups.items():
            names = [option.name for option in _options_of(group)]
            values[name] = group(**{name: values.pop(name) for name in names})
        for name, kind in switched.items():
            fields = {option.name: values.pop(option.name) for option in _options_of(kind)}
            chosen = {field: value for field, value in fields.items() if value is not None}
            if chosen and not values[name]:
                flag = f"--{name}"
                named = ", ".join(declared(kind)[field][0].option(field) for field in chosen)
                raise ConfigError(f"{named}: only with {flag}; add {flag}, or leave out {named}")
            values[name] = kind(**chosen) if values[name] else None
        command(**values)

    called.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    called.__annotations__ = {option.name: option.annotation for option in options}
    return called


def _options_of(group: Any) -> list[inspect.Parameter]:
    """The fields of a dataclass that are options: declared as a `Setting`, or for Typer alone."""
    hints = get_type_hints(group, include_extras=True)
    return [
        _as_option(parameter, hints[parameter.name])
        for parameter in inspect.signature(group).parameters.values()
        if get_origin(hint := hints[parameter.name]) is Annotated and _is_option(hint)
    ]


def _is_option(hint: Any) -> bool:
    setting = _setting_of(hint)
    return setting is None or setting.is_option


def _as_option(parameter: inspect.Parameter, hint: Any) -> inspect.Parameter:
    if setting := _setting_of(hint):
        hint = Annotated[hint.__origin__, _as_typer(setting, parameter.name)]
    return parameter.replace(annotation=hint)


def _of_optional(hint: Any) -> Any:
    """The class in `Annotated[Class | None, ...]`; None of other types."""
    kinds = get_args(getattr(hint, "__origin__", None))
    return kinds[0] if len(kinds) == 2 and kinds[1] is type(None) else None


def _setting_of(hint: Any) -> Setting | None:
    metadata = getattr(hint, "__metadata__", ())
    return next((each for each in metadata if isinstance(each, Setting)), None)


def _as_typer(setting: Setting | None, name: str) -> Any:
    """A declared setting as Typer takes it."""
    assert setting is not None, f"{name} has no Setting"
    option = setting.option(name)
    completed = {"--to": _target_languages}.get(option)
    return typer.Option(
        option,
        help=setting.help,
        metavar=setting.metavar,
        # Where a message says how to switch it off, `mt.settings.check` has it.
        min=None if setting.off else setting.min,
        max=None if setting.off else setting.max,
        rich_help_panel=setting.panel,
        autocompletion=completed,
    )
