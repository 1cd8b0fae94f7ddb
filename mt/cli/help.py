"""Help texts: options grouped in panels, in plain text for terminals and pipes alike."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand

# The panels, by what an option is about. An option without a panel stands under OTHER.
CONFIG = "Config"
INPUT = "Input"
OUTPUT = "Output"
TESTS = "Confidence and significance"
SLICING = "Slices of a test set"
SEARCH = "Search"
CONSTRAINTS = "Constraints on outputs"
SAMPLING = "Sampling"
EXECUTION = "Execution"
OTHER = "Options"


def option(panel: str, names: str, text: str, metavar: str | None = None, **more: Any) -> Any:
    """Describe an option, such as `--model -m`; `metavar` stands for its value in --help."""
    return typer.Option(*names.split(), metavar=metavar, help=text, rich_help_panel=panel, **more)


def argument(panel: str, metavar: str, text: str, **more: Any) -> Any:
    """Describe an argument, which `metavar` stands for in --help."""
    return typer.Argument(metavar=metavar, help=text, rich_help_panel=panel, **more)


class PanelCommand(TyperCommand):
    """A command that lists its options by `rich_help_panel`.

    Typer does this itself only with Rich, whose boxes leave half of 80 columns to the text and
    stand in redirected output, and which would also put error messages into boxes.
    """

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write one section for each panel, in the order of their first options."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                name, help_text = record
                if parameter.param_type_name == "argument":
                    name = name.split(" <")[0]  # FILE, not FILE <list[str]>
                panel = getattr(parameter, "rich_help_panel", None) or OTHER
                panels.setdefault(panel, []).append((name, help_text))
        # --help and the like come last.
        panels[OTHER] = panels.pop(OTHER, [])
        for panel, records in panels.items():
            with formatter.section(panel):
                formatter.write_dl(records)
