"""The pages: every command works, links lead somewhere, tables repeat what the code says."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from conftest import DIGITS, ROOT, lines_of, write_lines
from typer.testing import CliRunner

from mt.cli.main import app
from mt.config.key_table import key_table
from mt.config.schema import Config

PAGES = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not {".venv", "node_modules", "runs"} & set(path.relative_to(ROOT).parts)
)
# What a command of a page may name that no test can have: such commands are parsed and not run.
PLACEHOLDER = re.compile(r"\b(FOLDER|FILE|IN|OUT|HOST|RUN)\b")
# First words of lines that are for other programs than mt.
OTHERS = {
    "bash", "curl", "docker", "echo", "eval", "export", "for", "git", "hf", "libretranslate",
    "paste", "pip", "python", "sbatch", "source", "squeue", "time", "torchrun",
}  # fmt: skip


def bash_lines(page: str) -> Iterator[str]:
    """The command lines of a page's shell blocks: continued lines joined, comments left out."""
    for block in re.findall(r"^```(?:bash|sh)\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            if stripped := re.sub(r"(^|\s+)#\s.*", "", line).strip():
                yield stripped


def mt_arguments(line: str) -> list[str] | None:
    """The arguments of mt in a shell line, also of torchrun or a job script; None without mt."""
    words = shlex.split(line)
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words = words[1:]
    if "|" in words:
        words = words[words.index("|") + 1 :]
    if ">" in words:
        words = words[: words.index(">")]
    if words[0] == "mt":
        return words[1:]
    if words[0] == "torchrun":
        return words[words.index("mt") + 1 :]
    if words[0] == "docker" and "run" in words:
        image = next(word for word in words if re.fullmatch(r"mt(:\w+)?", word))
        return words[words.index(image) + 1 :]
    scripts = [word for word in words if word.endswith(".sbatch")]
    if words[0] == "sbatch" and scripts:
        rest = words[words.index(scripts[0]) + 1 :]
        if scripts[0].endswith("train.sbatch"):
            return ["train", *rest]
        return ["translate", rest[0], "-o", rest[1], *rest[2:]]
    return None


LINES = [(page, line) for page in PAGES for line in bash_lines(page.read_text(encoding="utf-8"))]
MT_LINES = [(page, line) for page, line in LINES if mt_arguments(line) is not None]


def name_of(value: object) -> str | None:
    return str(value.relative_to(ROOT)) if isinstance(value, Path) else None


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("mt score --model M", ["score", "--model", "M"]),
        ("echo 'Guten Morgen!' | mt translate --model M", ["translate", "--model", "M"]),
        ("OMP_NUM_THREADS=1 mt train --config c", ["train", "--config", "c"]),
        ("torchrun --nproc-per-node=2 -m mt train --config c", ["train", "--config", "c"]),
        ("sbatch -N 2 scripts/slurm/train.sbatch --config c", ["train", "--config", "c"]),
        (
            "sbatch scripts/slurm/translate.sbatch a b -m M",
            ["translate", "a", "-o", "b", "-m", "M"],
        ),
        ("mt config schema > mt.schema.json", ["config", "schema"]),
        ("docker run --rm mt:cuda train --config c", ["train", "--config", "c"]),
        ("docker build -t mt .", None),
        ("git clone URL", None),
    ],
)
def test_arguments_of_mt_are_found_in_a_line(line: str, arguments: list[str] | None) -> None:
    assert mt_arguments(line) == arguments


def test_lines_of_a_page_are_found() -> None:
    page = "```bash\na \\\n  b   # comment\n\n# comment\nc '#1'\n```\n```yaml\nd: 1\n```\n"
    page += "```sh\ne\n```\n"
    assert list(bash_lines(page)) == ["a    b", "c '#1'", "e"]


def test_the_pages_have_commands_to_check() -> None:
    commands = {arguments[0] for _, line in MT_LINES if (arguments := mt_arguments(line))}
    assert commands >= {"train", "translate", "evaluate", "score", "average", "config", "inspect"}


def parse(arguments: list[str]) -> None:
    """Raise for arguments that mt would refuse before it opens a file."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("mt", list(arguments))
    while hasattr(command, "commands"):
        words = [*context._protected_args, *context.args]
        name, command, rest = command.resolve_command(context, words)
        context = command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("arguments", [["train", "--confg", "a"], ["trian"], ["config", "chek"]])
def test_a_command_with_a_mistake_is_refused(arguments: list[str]) -> None:
    with pytest.raises(Exception, match=r"(?i)no such option|trian|chek"):
        parse(arguments)


@pytest.fixture
def workplace(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as a reader has it: the demonstration corpus, cut short, and trained runs."""
    shutil.copytree(ROOT / "data" / "demo", tmp_path / "data" / "demo")
    for path in (tmp_path / "data" / "demo").iterdir():
        write_lines(path, lines_of(path)[:20])
    for name in ("tiny", "base"):
        shutil.copytree(tiny_run, tmp_path / "runs" / name, symlinks=True)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    config = re.search(r"^```yaml\n(# mine\.yaml\n.*?)^```", readme, re.DOTALL | re.MULTILINE)
    assert config is not None
    (tmp_path / "mine.yaml").write_text(config[1], encoding="utf-8")
    shutil.copytree(tmp_path / "data" / "demo", tmp_path / "corpus")
    shutil.copy(tmp_path / "data" / "demo" / "test.de", tmp_path / "input.de")
    shutil.copy(tmp_path / "data" / "demo" / "test.en", tmp_path / "output.en")
    shutil.copy(tiny_run / "tokenizer.model", tmp_path / "mine.model")
    shutil.copy(tmp_path / "data" / "demo" / "test.de", tmp_path / "pieces.de")
    shutil.copytree(ROOT / "tests" / "files" / "marian", tmp_path / "opus-mt-de-en")
    write_errors(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_errors(folder: Path) -> None:
    """Wrong translations: the words in reverse order."""
    correct = lines_of(folder / "data" / "demo" / "test.en")
    write_lines(folder / "wrong.en", [" ".join(reversed(line.split())) for line in correct])


@pytest.mark.parametrize(("page", "line"), MT_LINES, ids=name_of)
def test_commands_of_the_pages(page: Path, line: str, workplace: Path) -> None:
    """Training is parsed and its config loaded; so is what names a placeholder; all else runs."""
    arguments = mt_arguments(line)
    assert arguments
    parse(arguments)
    if "opus/" in line or "--model opus" in line:  # a command before it on the page makes it
        parse(command := ["import", "huggingface", "opus-mt-de-en", "-o", "opus"])
        assert CliRunner().invoke(app, command).exit_code == 0
    if arguments[0] == "train" and "--config FILE" not in line:
        given = [
            arguments[i : i + 2]
            for i, word in enumerate(arguments)
            if word in ("--config", "--set")
        ]
        arguments = ["config", "show", *(word for pair in given for word in pair)]
    elif PLACEHOLDER.search(line) or line.startswith("sbatch"):
        return
    if arguments[:2] == ["tokenizer", "train"]:
        Path(arguments[arguments.index("-o") + 1]).unlink()  # it replaces nothing
    result = CliRunner().invoke(app, arguments, input=" ".join(DIGITS) + "\n")
    assert result.exit_code == 0, result.output


def test_other_lines_name_what_is_there() -> None:
    """A script is in the repository, and knows each of its options."""
    for page, line in LINES:
        if mt_arguments(line) is not None:
            continue
        words = shlex.split(re.sub(r"^([A-Z_]+=\S* )+", "", line))
        for word in words:
            if re.fullmatch(r"(\./)?(scripts|configs|tests)/[\w./-]+", word):
                assert (ROOT / word).exists(), f"{page}: {word}"
        assert words[0] in OTHERS, f"{page}: {line}"
        if words[0] == "python" and words[1].startswith("scripts/"):
            source = (ROOT / words[1]).read_text(encoding="utf-8")
            options = [word.partition("=")[0] for word in words if word.startswith("--")]
            assert [option for option in options if f'"{option}"' not in source] == [], line


# --- links and sizes --------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The names by which the headings of a page can be linked to."""
    text = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_lead_to_files_and_headings() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            name, _, heading = target.partition("#")
            linked = page.parent / name if name else page
            if "://" not in target:
                assert linked.exists(), f"{page.relative_to(ROOT)}: {target}"
                assert not heading or heading in anchors(linked), f"{page}: {target}"


def test_the_readme_is_three_minutes_reading() -> None:
    assert (ROOT / "README.md").stat().st_size <= 9_000


def test_pictures_of_the_pages_are_small() -> None:
    pictures = [*(ROOT / "data" / "pictures").iterdir()]
    assert pictures
    assert all(path.stat().st_size < 100_000 for path in pictures)


# --- the table of keys ------------------------------------------------------------------------


def test_the_page_of_keys_is_what_the_schema_says() -> None:
    """Made by `mt config schema --markdown > configs/keys.md`, never by hand."""
    page = (ROOT / "configs" / "keys.md").read_text(encoding="utf-8")
    assert page == f"{key_table()}\n"
    assert "| `n_heads` | `8` | >=1 | attention heads" in page
    assert re.search(r"^\| `train\[\]\.share` \| `null` \| >0, <=1 \| .* \| order \|$", page, re.M)
    assert re.search(r"^\| `norm` \| `pre` \| `pre`, `post` \| .* \| refused \|$", page, re.M)
    assert all(f"\n## {section}\n" in page for section in Config.model_fields)
