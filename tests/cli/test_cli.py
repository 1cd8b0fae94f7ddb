"""The command line: help, version, completion, and mistakes in options."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from conftest import Mt, mt_command
from messages import says

from mt import __version__
from mt.cli.main import app

HEAVY = {
    "torch", "datasets", "sacrebleu", "sentencepiece", "pydantic", "numpy", "yaml", "safetensors",
}  # fmt: skip


def commands(
    command: Any = None, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with its words, such as ("config", "check")."""
    command = command or typer.main.get_command(app)
    below = getattr(command, "commands", None)
    if below is None:
        yield path, command
    for name, child in (below or {}).items():
        yield from commands(child, (*path, name))


NAMES = [" ".join(path) for path, _ in commands()]


def run_commands(commands: list[list[str]], heavy: set[str]) -> subprocess.CompletedProcess[str]:
    """Run commands in one new process, which prints those of `heavy` it imported to stderr."""
    code = f"""
import sys
from mt.cli.main import main
for words in {commands!r}:
    sys.argv = ["mt", *words]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, words
print(sorted({heavy!r} & sys.modules.keys()), file=sys.stderr)
"""
    environment = mt_command()[1]
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )


def test_help_imports_nothing_heavy() -> None:
    ended = run_commands([["--help"]], HEAVY)
    assert (ended.stderr, ended.stdout.count("Usage: mt ")) == ("[]\n", 1)
    # Newer versions of Typer import pydantic to parse the options of a command.
    names = [*NAMES, "config", "inspect"]
    ended = run_commands([[*name.split(), "--help"] for name in names], HEAVY - {"pydantic"})
    assert (ended.stderr, ended.stdout.count("Usage: mt ")) == ("[]\n", len(names))


def test_commands_without_a_model_do_not_import_torch(tiny_config: Path, tiny_corpus: Path) -> None:
    config, text = ["-c", str(tiny_config)], str(tiny_corpus / "test.tgt")
    evaluate = ["evaluate", "--hyp", text, "--ref", text, "--metrics", "chrf"]
    light = [["config", "check", *config], ["config", "show", *config], ["config", "schema"]]
    assert run_commands([*light, evaluate], {"torch", "datasets"}).stderr == "[]\n"


@pytest.mark.parametrize("name", ["", *NAMES])
def test_help_is_plain_text_of_80_columns_with_valid_examples(name: str, mt: Mt) -> None:
    ended = mt(*name.split(), "-h")
    assert (ended.code, ended.err) == (0, "")
    for line in ended.lines:
        assert len(line) <= 80
        assert line.isprintable()
        assert not set(line) & set("│╭╮╰╯─")
        assert not re.match(r"  \w+ <(str|path|list)", line)  # of an argument, Python's type
    command = {" ".join(path): command for path, command in commands()}.get(name)
    if command is None:
        return
    examples = [line.strip() for line in ended.lines if re.match(rf"\s+(.* \| )?mt {name}\b", line)]
    assert examples
    for example in examples:
        words = shlex.split(example.split(" | ")[-1].split(" > ")[0])
        given = words[1 + len(name.split()) :]
        assert words == ["mt", *name.split(), *given]
        command.make_context(name, given).close()  # raises for an unknown option


def test_summaries_of_commands_fit_the_list(mt: Mt) -> None:
    for group in ("", "config", "data", "import", "export", "inspect", "tokenizer"):
        ended = mt(*group.split(), "--help")
        listed = ended.out.decode().split("\nCommands:\n")[1]
        assert listed
        assert "..." not in listed
    listed = mt("--help").out.decode().split("\nCommands:\n")[1]
    commands = [line.split()[0] for line in listed.splitlines() if re.match("  [a-z]", line)]
    assert commands[:4] == ["train", "translate", "score", "evaluate"]
    assert {name.split()[0] for name in NAMES} <= set(commands)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["transalte"], "No such command 'transalte'. Did you mean 'translate'"),
        (["translate"], "Missing option '--model'"),
        (["translate", "-m", "x", "a", "b"], "unexpected extra argument"),
        (["translate", "-m", "x", "--beam-size", "0"], "--beam-size"),
        (["translate", "-m", "x", "--beam-size", "two"], "--beam-size"),
        (["translate", "-m", "x", "--length-penalty", "-1"], "--length-penalty"),
        (["translate", "-m", "x", "--length-penalty", "inf"], "--length-penalty"),
        (["translate", "-m", "x", "--n-best", "0"], "--n-best"),
        (["translate", "-m", "x", "--batch-tokens", "0"], "--batch-tokens"),
        (["train"], "Missing option '--config'"),
        (["average", "x"], "Missing option '--output'"),
        (["average", "x", "-o", "y", "--last", "0"], "--last"),
    ],
)
def test_message_about_wrong_usage(arguments: list[str], message: str, mt: Mt) -> None:
    ended = mt(*arguments)
    assert ended.code == 2
    assert message in ended.err
    assert "Usage: mt" in ended.err
    assert "Traceback" not in ended.err


def test_options_are_listed_in_panels(mt: Mt) -> None:
    blocks = mt("translate", "--help").out.decode().split("\n\n")
    panels = {title: options for title, _, options in (block.partition(":\n") for block in blocks)}
    assert list(panels)[-7:] == [
        "Input", "Output", "Search", "Constraints on outputs", "Sampling", "Execution", "Options",
    ]  # fmt: skip
    assert says(panels["Input"], "--model", " IN ", "--format")
    assert says(panels["Output"], "--output", "--n-best", "--scores")
    assert says(panels["Execution"], "--workers", "--precision", "--device")
    assert says(panels["Search"], "--beam-size", "--length-penalty", "--mbr")
    assert says(panels["Sampling"], "--sample", "--top-p", "--seed")
    assert says(panels["Options"], "--help")


def test_version(mt: Mt) -> None:
    import platform

    import torch

    ended = mt("--version")
    assert (ended.code, ended.err) == (0, "")
    assert ended.lines[0] == f"mt {__version__}"
    assert ended.lines[1:3] == [f"torch {torch.__version__}", f"Python {platform.python_version()}"]
    assert re.match("device: .+ in (fp32|bf16|fp16)", ended.lines[3])


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        (["tr"], ["train", "translate"]),
        (["config", "sh"], ["show"]),
        (["train", "--conf"], ["--config"]),
        (["train", "--config", "t"], ["tiny.yaml"]),
        (["config", "show", "-c", "w"], ["wmt14.yaml"]),
        (["inspect", "model", "-c", "v"], ["vaswani2017.yaml"]),
        (["train", "--config", "my/"], []),  # the shell then completes files
        (["translate", "--model", ""], []),
        (["translate", "--model", "x", "in"], []),
    ],
)
def test_shell_completion(
    words: list[str], completions: list[str], mt: Mt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its script falls back to files."""
    monkeypatch.setenv("_MT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", " ".join(["mt", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    assert mt().out.decode().split() == completions
    monkeypatch.setenv("_MT_COMPLETE", "source_bash")
    assert says(mt().out.decode(), "_MT_COMPLETE=complete_bash", "complete -o default")
