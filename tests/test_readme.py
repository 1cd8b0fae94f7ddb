"""Every `mt` command of the README is one that mt understands, and the quick ones are run."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
import typer
from conftest import ROOT
from typer.testing import CliRunner

from mt.cli.main import app

BLOCKS = re.findall(
    r"```bash\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
)
LINES = [line.split("  #")[0].strip() for block in BLOCKS for line in block.split("\n")]
COMMANDS = [line[line.index("mt ") :] for line in LINES if re.match(r"(mt |.*\| mt )", line)]


def test_the_readme_has_commands_to_check() -> None:
    """A change of layout must not leave the other test with nothing to do."""
    assert len(COMMANDS) >= 10
    assert {shlex.split(command)[1] for command in COMMANDS} >= {
        "train",
        "translate",
        "evaluate",
        "config",
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_readme(
    command: str, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training is only parsed and its config checked; all else runs, on a tiny model in the place of runs/tiny."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "data", tmp_path / "data")
    shutil.copytree(tiny_run, tmp_path / "runs" / "tiny", symlinks=True)
    for name in ("test.de", "test.en"):
        path = tmp_path / "data" / "demo" / name
        path.write_text(
            "".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:20]),
            encoding="utf-8",
        )
    (tmp_path / "output.en").write_bytes((tmp_path / "data" / "demo" / "test.en").read_bytes())
    arguments = shlex.split(command)[1:]
    if arguments[0] == "train":
        config = arguments[arguments.index("--config") + 1]
        typer.main.get_command(app).make_context("mt", list(arguments), resilient_parsing=False)
        arguments = ["config", "show", "--config", config]
    result = CliRunner().invoke(app, arguments, input="Guten Morgen!\n")
    assert result.exit_code == 0, result.output
