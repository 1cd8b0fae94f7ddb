"""The pages: every command works, links lead somewhere, tables repeat what the code says."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
from conftest import DIGITS, ROOT, MonkeyPatch, lines_of, write_lines
from typer.testing import CliRunner

from mt.cli.config import key_table
from mt.cli.main import app
from mt.config.plan import HELD_OUT
from mt.config.schema import Config, sections

PAGES = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not {".pytest_cache", ".venv", "node_modules", "runs"} & set(path.relative_to(ROOT).parts)
)
# What a command of a page may name that no test can have, or that is fetched: such commands are
# parsed and not run.
PLACEHOLDER = re.compile(r"\b(FOLDER|FILE|IN2?|OUT2?|HOST|RUN|wmt\d+)\b")
# First words of lines that are for other programs than mt.
OTHERS = {
    "awk", "bash", "curl", "docker", "echo", "eval", "export", "git", "head", "hf",
    "libretranslate", "mtdata", "paste", "pip", "python", "sbatch", "source",
    "squeue", "tail", "torchrun",
}  # fmt: skip
DOCUMENTS = {
    "film.srt": "1\n00:00:01,000 --> 00:00:02,000\neins zwei\n",
    "page.html": "<!DOCTYPE html><meta charset='utf-8'><p>eins zwei</p>",
    "project.xlf": '<xliff version="1.2"><file source-language="de" target-language="en"><body>'
    '<trans-unit id="1"><source>eins</source></trans-unit></body></file></xliff>',
}
LONGEST_LINE = 100  # characters of prose
LARGEST_PAGE = 16_000  # bytes


def bash_blocks(page: str) -> Iterator[list[str]]:
    """The command lines of each shell block: continued lines joined, comments left out."""
    for block in re.findall(r"^```(?:bash|sh)\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        lines = block.replace("\\\n", " ").splitlines()
        commands = [re.sub(r"(^|\s+)#\s.*", "", line).strip() for line in lines]
        yield [command for command in commands if command]


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


TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in PAGES}
BLOCKS = [(page, block) for page, text in TEXTS.items() for block in bash_blocks(text)]
LINES = [(page, line) for page, block in BLOCKS for line in block]


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
    assert list(bash_blocks(page)) == [["a    b", "c '#1'"], ["e"]]


def test_the_pages_have_commands_to_check() -> None:
    commands = {arguments[0] for _, line in LINES if (arguments := mt_arguments(line))}
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
def workplace(tiny_run: Path, tmp_path: Path, monkeypatch: MonkeyPatch) -> Path:
    """A folder as a reader has it: corpora of 20 pairs, and the configs that the pages show."""
    for folder in (tmp_path / "data" / "demo", tmp_path / "corpus"):
        shutil.copytree(ROOT / "data" / "demo", folder)
        for path in folder.iterdir():
            write_lines(path, lines_of(path)[:20])
    sides = (lines_of(ROOT / "data/demo" / f"train.{code}")[:8100] for code in ("de", "en"))
    pairs = [*zip(*sides, strict=True)]  # enough to hold out what the pages hold out
    write_lines(tmp_path / "deu.txt", [f"{tgt}\t{src}\tCC-BY" for src, tgt in pairs])
    side = '<tuv xml:lang="{}"><seg>{}</seg></tuv>'.format
    units = [f"<tu>{side('de', src)}{side('en', tgt)}</tu>" for src, tgt in pairs]
    write_lines(tmp_path / "memory.tmx", ['<tmx version="1.4"><body>', *units, "</body></tmx>"])
    for name, document in DOCUMENTS.items():
        write_lines(tmp_path / name, [document])
    del pairs[20:]
    for name in ("train.tsv", "valid.tsv"):
        write_lines(tmp_path / name, ["\t".join(pair) for pair in pairs])
    for text in TEXTS.values():
        for name, config in re.findall(r"^```yaml\n# ([\w-]+\.yaml)\n(.*?)^```", text, re.S | re.M):
            (tmp_path / name).write_text(config, encoding="utf-8")
    shutil.copy(tmp_path / "corpus" / "test.de", tmp_path / "input.de")
    shutil.copy(tmp_path / "corpus" / "test.en", tmp_path / "output.en")
    shutil.copytree(ROOT / "tests" / "files" / "marian", tmp_path / "opus-mt-de-en")
    write_errors(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_errors(folder: Path) -> None:
    """Wrong translations: the words in reverse order."""
    correct = lines_of(folder / "data" / "demo" / "test.en")
    write_lines(folder / "wrong.en", [" ".join(reversed(line.split())) for line in correct])


@pytest.mark.parametrize(
    "block", [pytest.param(block, id=f"{page}: {block[0][:40]}") for page, block in BLOCKS]
)
def test_commands_of_the_pages(block: list[str], workplace: Path, tiny_run: Path) -> None:
    """In their order; of training, the config is loaded; with a placeholder, options are parsed."""
    for line in block:
        arguments = mt_arguments(line)
        if arguments is None:
            continue
        parse(arguments)
        # A model of that name is here.
        arguments = [word.replace("Helsinki-NLP/opus-mt", "opus-mt") for word in arguments]
        if arguments[0] == "train" or arguments[:2] == ["data", "prepare"]:
            if "--config FILE" in line:
                continue
            given = [pair for pair in pairwise(arguments) if pair[0] in ("--config", "--set")]
            arguments = ["config", "show", *chain(*given)]
        elif PLACEHOLDER.search(line) or line.startswith("sbatch"):
            continue
        for run in set(re.findall(r"runs/[\w-]+", line)):
            if not (workplace / run).exists():
                shutil.copytree(tiny_run, workplace / run, symlinks=True)
                (workplace / run / HELD_OUT).mkdir()
                for side, code in (("src", "de"), ("tgt", "en")):
                    held_out = workplace / run / HELD_OUT / f"test-0.{side}"
                    shutil.copy(workplace / "corpus" / f"test.{code}", held_out)
        first, *words = shlex.split(line)
        text = words[0] if first == "echo" else " ".join(DIGITS)
        result = CliRunner().invoke(app, arguments, input=f"{text}\n")
        assert result.exit_code == 0, f"{line}\n{result.output}"
        if ">" in words:
            path = workplace / words[-1]
            path.parent.mkdir(exist_ok=True)
            path.write_text(result.stdout, encoding="utf-8")


@pytest.mark.slow
def test_the_walkthrough_ends_with_a_shipped_model(workplace: Path) -> None:
    """Its commands as they stand, of a smaller corpus and model."""
    config = workplace / "tatoeba.yaml"
    small = """tokenizer: {vocab_size: 400}
model: {d_model: 16, n_heads: 2, n_encoder_layers: 1, n_decoder_layers: 1, d_ff: 32}
optim: {warmup_steps: 2}
train: {max_steps: 6, valid_every: 3}
"""
    write_lines(workplace / "deu.txt", lines_of(workplace / "deu.txt")[:900])
    config.write_text(config.read_text().replace("2000", "50") + small)
    page = "data/walkthrough.md"
    lines = [line for name, line in LINES if name == page and mt_arguments(line) is not None]
    for line in lines:
        result = CliRunner().invoke(app, mt_arguments(line), input="Der Hund schläft.\n")
        assert result.exit_code == 0, f"{line}\n{result.output}"
    assert len(lines) == 11
    assert (
        len(lines_of(workplace / "output.int8.en")) == len(lines_of(workplace / "output.en")) == 50
    )
    assert (workplace / "de-en.ct2" / "README.md").is_file()
    assert (workplace / "runs" / "tatoeba" / "report.html").is_file()


def test_other_lines_name_what_is_there() -> None:
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


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def titles(text: str) -> list[str]:
    return re.findall(r"^#+ (.+)$", without_code(text), re.MULTILINE)


def anchor_of(title: str) -> str:
    """The name by which a heading can be linked to."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def test_links_lead_to_files_and_headings() -> None:
    for page, text in TEXTS.items():
        for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
            name, _, anchor = target.partition("#")
            linked = (ROOT / page).parent / name if name else ROOT / page
            if "://" not in target:
                assert linked.exists(), f"{page}: {target}"
                if anchor:
                    known = map(anchor_of, titles(linked.read_text(encoding="utf-8")))
                    assert anchor in known, f"{page}: {target}"


def test_pages_are_short_and_so_are_their_lines() -> None:
    sizes = {page: len(text.encode()) for page, text in TEXTS.items()}
    assert sizes["README.md"] <= 7_000  # two minutes' reading
    assert {page: size for page, size in sizes.items() if size > LARGEST_PAGE} == {}
    long = [
        f"{page}: {line}"
        for page, text in TEXTS.items()
        for line in without_code(text).splitlines()
        if len(line) > LONGEST_LINE and not line.startswith(("|", "!["))
    ]
    assert long == []


def test_what_the_readme_offers_begins_with_commands() -> None:
    """Each link of the table "I want to …" leads to a heading above a command or a config."""
    table = TEXTS["README.md"].split("## I want to …")[1].split("\n\n")[1]
    links = re.findall(r"\]\(([^)#]+)#([^)]+)\)", table)
    assert len(links) >= table.count("\n") - 1
    for page, anchor in links:
        (title,) = (title for title in titles(TEXTS[page]) if anchor_of(title) == anchor)
        below = re.split(rf"^#+ {re.escape(title)}$", TEXTS[page], flags=re.MULTILINE)[1]
        until_code = below.split("```")[0]
        assert until_code.count("\n\n") <= 2, f"{page}: {title}: {until_code}"


def test_pictures_of_the_pages_are_small() -> None:
    pictures = [*(ROOT / "data" / "pictures").iterdir()]
    assert pictures
    assert all(path.stat().st_size < 100_000 for path in pictures)


# --- the table of keys ------------------------------------------------------------------------


def test_the_page_of_keys_is_what_the_schema_says() -> None:
    """Made by `mt config schema --markdown > configs/keys.md`, never by hand."""
    page = (ROOT / "configs" / "keys.md").read_text(encoding="utf-8")
    assert page == f"{key_table()}\n"
    assert "| `n_heads` | 8 | >=1 | attention heads" in page
    assert re.search(r"^\| `train\[\]\.weight` \| 1.0 \| >0 \| .* \| order \|$", page, re.M)
    assert re.search(r"^\| `norm` \| pre \| pre, post \| .* \| refused \|$", page, re.M)
    assert all(f"\n## {section}\n" in page for section in Config.model_fields)


def test_keys_that_the_pages_name_exist() -> None:
    """But for the changelog, and for what a table says was last in an earlier version."""
    known = {"train.log"} | {
        f"{name}.{k}" for name, of in sections().items() for k in of.model_fields
    }  # the log of a run
    named = re.compile(rf"`((?:{'|'.join(Config.model_fields)})\.[a-z]\w*)(?=[`: =])")
    lines = [
        f"{page}: {key}"
        for page, text in TEXTS.items()
        for line in text.splitlines()
        for key in named.findall(line)
        if page != "CHANGELOG.md" and "last in" not in line and key not in known
    ]
    assert lines == []
