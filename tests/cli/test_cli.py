"""The command line: help, version, completion, mistakes in options, and what is imported."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from conftest import MonkeyPatch, Mt, mt_command, refused
from messages import says

from mt.cli.main import app
from mt.package import VERSION
from mt.removed import REMOVED


def commands(
    command: Any = None, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with its words, such as ("config", "check")."""
    command = command or typer.main.get_command(app)
    below = getattr(command, "commands", None)
    if below is None:
        yield path, command
    for name in below or ():
        yield from commands(command.get_command(None, name), (*path, name))


COMMANDS = {" ".join(path): command for path, command in commands()}


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_is_plain_text_of_80_columns_with_valid_examples(name: str, mt: Mt) -> None:
    ended = mt(*name.split(), "-h")
    assert (ended.code, ended.err) == (0, "")
    for line in ended.lines:
        assert len(line) <= 80
        assert line.isprintable()
        assert not set(line) & set("│╭╮╰╯─")
        assert not re.match(r"  \w+ <(str|path|list)", line)  # of an argument, Python's type
    command = COMMANDS.get(name)
    if command is None:
        return
    examples = [line.strip() for line in ended.lines if re.match(rf"\s+(.* \| )?mt {name}\b", line)]
    assert examples
    for example in examples:
        words = shlex.split(example.split(" | ")[-1].split(" > ")[0])
        given = words[1 + len(name.split()) :]
        assert words == ["mt", *name.split(), *given]
        command.make_context(name, given).close()  # raises for an unknown option


def test_message_about_wrong_usage(mt: Mt) -> None:
    for arguments, message in [
        (["transalte"], "No such command 'transalte'. Did you mean 'translate'"),
        (["translate"], "Missing option '--model'"),
        (["translate", "-m", "x", "a", "b"], "unexpected extra argument"),
        (["train"], "Missing option '--config'"),
        (["average", "x"], "Missing option '--output'"),
    ]:
        ended = mt(*arguments)
        assert ended.code == 2
        assert message in ended.err
        assert "Usage: mt" in ended.err
        assert "Traceback" not in ended.err


def test_a_wrong_value_is_one_line(mt: Mt) -> None:
    for arguments, parts in [
        ("translate -m x --beam-size 0", "1|'0'"),
        ("translate -m x --beam-size two", "integer|'two'"),
        ("translate -m x --length-penalty -1", "0|'-1'"),
        ("translate -m x --length-penalty inf", "10|'inf'"),
        ("translate -m x --n-best 0", "1|'0'"),
        ("translate -m x --batch-tokens 0", "1|'0'"),
        ("translate -m x --engine marian", "auto, torch or ctranslate2|'marian'"),
        ("average x -o y --last 0", "1|'0'"),
    ]:
        option = arguments.split()[-2]
        message = refused(mt(*arguments.split()))
        assert says(message, f"{option}: must be", *parts.split("|"))
        assert "\n" not in message


@pytest.mark.parametrize("name", [name for name in REMOVED if name.startswith("mt ")])
def test_what_was_removed_says_what_to_do_instead(name: str, mt: Mt) -> None:
    command, *options = name.split(" --")
    for option in options or [""]:
        words = f"{command} --{option}" if option else command
        assert refused(mt(*words.split()[1:], "x")) == f"{words}: was removed in {REMOVED[name]}"


def test_version(mt: Mt) -> None:
    import platform

    import torch

    ended = mt("--version")
    assert (ended.code, ended.err) == (0, "")
    assert ended.lines[0] == f"mt {VERSION}"
    assert ended.lines[1:3] == [f"torch {torch.__version__}", f"Python {platform.python_version()}"]
    assert re.match("device: .+ in (fp32|bf16|fp16)", ended.lines[3])


def test_shell_completion(mt: Mt, monkeypatch: MonkeyPatch) -> None:
    for words, completions in [
        (["tr"], ["train", "translate"]),
        (["config", "sh"], ["show"]),
        (["train", "--conf"], ["--config"]),
        (["train", "--config", "t"], ["tiny-post.yaml", "tiny.yaml"]),
        (["train", "--config", "my/"], []),  # the shell then completes files
        (["translate", "--model", "x", "in"], []),
        (["translate", "--format", "j"], ["jsonl"]),
        (["translate", "--engine", "c"], ["ctranslate2"]),
        (["evaluate", "--metrics", "ch"], ["chrf", "chrf++"]),
        (["evaluate", "--metrics", "bleu,t"], ["bleu,ter"]),
    ]:
        monkeypatch.setenv("_MT_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(["mt", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        assert mt().out.decode().split() == completions
        monkeypatch.setenv("_MT_COMPLETE", "source_bash")
        assert says(mt().out.decode(), "_MT_COMPLETE=complete_bash", "complete -o default")


# --- heavy packages are imported only by what uses them ---------------------------------------


LARGE = {"ctranslate2", "datasets", "matplotlib", "sacrebleu", "torch", "transformers"}
HEAVY = LARGE | {"numpy", "pydantic", "safetensors", "sentencepiece", "yaml"}


def imported_by(*commands: Sequence[object], module: str = "mt.cli.main") -> set[str]:
    """The modules that a new process imports with this one, and for these commands."""
    code = f"""
import sys, {module}
for words in {[[str(word) for word in words] for words in commands]!r}:
    sys.argv = ["mt", *words]
    try:
        mt.cli.main.main()
    except SystemExit as ended:
        assert not ended.code, words
print(*sys.modules, file=sys.stderr)
"""
    command, environment = [sys.executable, "-c", code], mt_command()[1]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return set(ended.stderr.splitlines()[-1].split())


def test_help_imports_nothing_heavy() -> None:
    assert not HEAVY & imported_by(["--help"])
    # Newer versions of Typer import pydantic to parse the options of a command.
    helps = ([*name.split(), "--help"] for name in (*COMMANDS, "config", "inspect"))
    assert not (HEAVY - {"pydantic"}) & imported_by(*helps)


def test_commands_without_a_model_do_not_import_torch(tiny_config: Path, tiny_corpus: Path) -> None:
    checks = [["config", "check", "-c", tiny_config], ["config", "show", "-c", tiny_config]]
    text = tiny_corpus / "test.tgt"
    evaluate = ["evaluate", "--hyp", text, "--ref", text, "--metrics", "chrf"]
    assert not {"torch", "datasets"} & imported_by(*checks, ["config", "schema"], evaluate)


@pytest.mark.parametrize("engine", ["ctranslate2", "torch"])
def test_translating_lines_needs_no_leaf(engine: str, copied_run: Path, tiny_corpus: Path) -> None:
    pytest.importorskip(engine)
    command = ["translate", "--model", copied_run, tiny_corpus / "test.src", "--engine", engine]
    names = imported_by([*command, "--device", "cpu"])
    leaves = {"documents", "inspect", "interop", "report", "training"}
    assert not leaves & {name.split(".")[1] for name in names if name.startswith("mt.")}
    assert engine == "torch" or LARGE & names == {"ctranslate2"}


def test_training_on_text_files_imports_neither_datasets_nor_matplotlib(
    tiny_config: Path, tmp_path: Path
) -> None:
    train = ["train", "--config", tiny_config, "--run-dir", tmp_path / "run", "--device", "cpu"]
    names = imported_by([*train, "--set", "train.max_steps=1", "--set", "data.test=null"])
    assert LARGE & names == {"torch", "sacrebleu"}
