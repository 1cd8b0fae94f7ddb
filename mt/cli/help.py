"""Groups of commands, each imported when it is asked for; help texts with options in panels."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from mt.cli.options import with_groups
from mt.errors import ConfigError, leaf_for
from mt.removed import REMOVED

OTHER = "Options"  # the panel of an option without a panel


class Group(TyperGroup):
    """Commands that are imported when they are asked for, some of which may have left."""

    places: ClassVar[Mapping[str, str]] = {}  # `module:name` of each command or group

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands.update(dict.fromkeys(self.places))  # type: ignore[arg-type]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name, which may be one that says what is missing; None: unknown."""
        if cmd_name not in self.places:
            return super().get_command(ctx, cmd_name)
        try:
            command = self._imported(cmd_name)
        except ConfigError as error:
            return _missing(cmd_name, error)
        if isinstance(command, typer.Typer):
            return typer.main.get_group(command)
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(cmd_name, cls=PanelCommand)(with_groups(command))
        return typer.main.get_command(single)

    def _imported(self, name: str) -> Any:
        """The function or group of this name. Raises ConfigError where its leaf is missing."""
        module, attribute = self.places[name].split(":")
        with leaf_for(name):
            return getattr(import_module(module), attribute)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List first sentences; Typer would make all options before: 0.05 s more for `--help`."""
        if not self.places:
            super().format_commands(ctx, formatter)
            return
        rows = []
        for name in self.places:
            text = "Missing."
            with suppress(ConfigError):
                command = self._imported(name)
                is_group = isinstance(command, typer.Typer)
                text = str(command.info.help if is_group else inspect.getdoc(command))
            first = " ".join(text.partition("\n\n")[0].split()).partition(". ")[0]
            rows.append((name, f"{first.rstrip('.')}."))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        refuse_removed(ctx, args[:1])
        return super().resolve_command(ctx, args)


def _missing(name: str, error: ConfigError) -> TyperCommand:
    """A command whose leaf is missing: running it raises the error, which says so."""

    def raise_it(**_: object) -> None:
        raise error

    settings = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    return TyperCommand(name, callback=raise_it, help="Missing.", context_settings=settings)


class CommandGroup(typer.Typer):
    """Commands below one name, each with its options in panels, and its groups of options."""

    def command(self, name: str, **settings: Any) -> Callable[..., Any]:  # type: ignore[override]
        register = super().command(name, cls=PanelCommand, **settings)
        return lambda function: register(with_groups(function))


def command_group(
    name: str, help_text: str, places: Mapping[str, str] | None = None, base: type[Group] = Group
) -> CommandGroup:
    """Commands below one name; those at `places` (`module:name`) are imported when asked for."""
    return CommandGroup(
        name=name,
        cls=type("Group", (base,), {"places": places or {}}),
        help=help_text or None,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode=None,
    )


def refuse_removed(ctx: Any, words: list[str]) -> None:
    """Raise ConfigError for words of the command line that `REMOVED` names."""
    given = f"{ctx.command_path} {' '.join(words)} ".replace("=", " ")
    for name, instead in REMOVED.items():
        command, *options = name.split(" --")
        if not options and given.startswith(f"{command} "):
            raise ConfigError(f"{command}: was removed in {instead}")
        for option in options if command == ctx.command_path else ():
            if f" --{option} " in given:
                raise ConfigError(f"{command} --{option}: was removed in {instead}")


class PanelCommand(TyperCommand):
    """A command that lists its options by `rich_help_panel`.

    Typer does this itself only with Rich, whose boxes leave half of 80 columns to the text and
    stand in redirected output, and which would also put error messages into boxes.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse options that have left; say in one line which value is wrong."""
        refuse_removed(ctx, args)
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            if type(error) is not typer.BadParameter or error.param is None:  # one that is missing
                raise
            reason = error.message.rstrip(".").removeprefix("Input should be ")
            if choices := reason.partition(" is not one of ")[2]:
                reason = " or ".join(choices.replace("'", "").rsplit(", ", 1))
            value = self.make_parser(ctx).parse_args(given)[0].get(error.param.name)
            raise ConfigError(
                f"{error.param.opts[0]}: must be {reason.partition(', unable')[0]}, found {value!r}"
            ) from error

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write one section for each panel, in the order of their first options."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                name, help_text = record
                if parameter.param_type_name == "argument":
                    name = name.split(" <")[0]  # FILE, not FILE <list[str]>
                panel = getattr(parameter, "rich_help_panel", None) or OTHER
                panels.setdefault(panel, []).append((name, help_text))
        panels[OTHER] = panels.pop(OTHER, [])  # --help and the like come last
        for panel, records in panels.items():
            with formatter.section(panel):
                formatter.write_dl(records)
