"""How the source is laid out: who may import whom, how long files are, what they are called."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# From the ground up. A file imports only from its own floor or below.
FLOORS = (
    {"errors", "files"},
    {"config", "runtime"},
    {"data"},
    {"runs"},
    {"model"},
    {"search"},
    {"translate", "evaluation"},
    {"training", "interop"},
    {"inspect"},
    {"report"},
    {"cli"},
    {"__main__"},
)
# Every folder of a floor on its own; the single files of a floor may import each other.
APART = {"config", "runtime", "translate", "evaluation", "training", "interop"}
# Folders of a folder that are floors themselves, from the ground up.
INNER_FLOORS = {"data": ("reading", "cleaning", "tokens")}
LONGEST_FILE = 500
VAGUE = {"utils", "util", "helpers", "helper", "misc", "common", "tools", "base", "core"}
# Places of one machine: in a tracked file they are of no use to anybody else.
OF_THIS_MACHINE = re.compile(rb"(?<![\w.])/(work|root|tmp/v)/")

SOURCES = sorted((ROOT / "mt").rglob("*.py"))


def part_of(module: str) -> str | None:
    """`mt.data.reading.corpus` -> `data`; None for what is not ours."""
    first, *rest = module.split(".")
    return rest[0] if first == "mt" and rest else None


def imported(tree: ast.Module) -> list[tuple[int, str]]:
    """(line, module) of every import, also those inside functions and for types only."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are written in full, from mt on"
            module = node.module or ""
            found += [(node.lineno, f"{module}.{alias.name}") for alias in node.names]
    return found


def import_faults(part: str, source: str) -> list[str]:
    """What a file of `part` (a folder of mt, or a file beside them) must not import."""
    floor = next(i for i, parts in enumerate(FLOORS) if part in parts)
    faults = []
    for line, module in imported(ast.parse(source)):
        other = part_of(module)
        if other is None or other == part:
            continue
        above = next((i for i, parts in enumerate(FLOORS) if other in parts), None)
        if above is None or above > floor or (above == floor and {part, other} & APART):
            faults.append(f"line {line} imports {module}")
    return faults


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_imported_from_a_floor_above(path: Path) -> None:
    inside = path.relative_to(ROOT / "mt").with_suffix("")
    if inside == Path("__init__"):
        return  # holds a docstring only, see below
    assert import_faults(inside.parts[0], path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("part", "source", "faults"),
    [
        ("data", "from mt.model.transformer import Transformer", 1),
        ("data", "def late():\n    import mt.training.trainer", 1),
        ("translate", "if TYPE_CHECKING:\n    from mt.evaluation.metrics import bleu", 1),
        ("evaluation", "from mt.translate import translator", 1),
        ("errors", "from mt import config", 1),
        ("training", "import mt.cli.main", 1),
        ("model", "import mt.nowhere", 1),
        ("config", "from mt.config import yaml_text\nfrom mt.errors import MtError", 0),
        (
            "translate",
            "import torch\nfrom mt.model import checkpoint\n"
            "from mt.data.reading.corpus import read_lines",
            0,
        ),
        (
            "training",
            "from mt.translate.translator import Translator\nfrom mt.training import loss",
            0,
        ),
    ],
)
def test_import_faults_are_found(part: str, source: str, faults: int) -> None:
    assert len(import_faults(part, source)) == faults


@pytest.mark.parametrize(
    "path",
    [*SOURCES, *sorted((ROOT / "scripts").glob("*.py")), *sorted((ROOT / "tests").glob("*.py"))],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_files_are_short_and_their_names_say_what_they_do(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_FILE
    assert path.stem not in VAGUE
    assert path.parent.name not in VAGUE


@pytest.mark.parametrize(
    "path",
    [path for path in SOURCES if path.name == "__init__.py"],
    ids=lambda path: path.parent.name,
)
def test_an_init_file_holds_a_docstring_and_nothing_else(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), "says what its stage takes and gives"
    assert len(tree.body) == 1


def test_every_folder_of_the_package_has_an_init_file() -> None:
    assert {path.parent for path in SOURCES} == {
        path.parent for path in SOURCES if path.name == "__init__.py"
    }


# --- what is tracked --------------------------------------------------------------------------


def in_repository() -> list[Path]:
    """Files that are tracked, or would be with the next commit."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this copy of the source is no git repository")
    return [path for name in names.decode().split("\0") if name and (path := ROOT / name).is_file()]


def test_no_file_names_a_place_of_the_machine_it_was_written_on() -> None:
    found = []
    for path in in_repository():
        for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
            if OF_THIS_MACHINE.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}")
    assert found == []


def listed_files(page: str, folder: str) -> set[str]:
    """Every source file below `folder` that a page names, as a link or in a code block."""
    return set(re.findall(rf"(?<![\w./-]){folder}/[\w./-]+\.(?:py|yaml|sh|sbatch)\b", page))


def section(page: str, heading: str) -> str:
    """The text below a heading, up to the next one of its level."""
    match = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert match, f"there is no heading ## {heading}"
    return match[1]


def test_paths_are_found_in_a_section() -> None:
    page = "# mt\nmt/no.py\n## Files\n```\nmt/data/corpus.py  as mt/cli.py\n```\n`tests/x.py`\n"
    page += "## Next\nmt/no.py"
    assert listed_files(section(page, "Files"), "mt") == {"mt/data/corpus.py", "mt/cli.py"}


def test_the_map_in_the_readme_of_mt_lists_exactly_its_files() -> None:
    page = (ROOT / "mt" / "README.md").read_text(encoding="utf-8")
    there = {str(path.relative_to(ROOT)) for path in SOURCES if path.name != "__init__.py"}
    assert listed_files(section(page, "Files"), "mt") == there


@pytest.mark.parametrize("folder", ["configs", "scripts", "scripts/slurm"])
def test_the_map_in_the_readme_of_a_folder_names_its_files(folder: str) -> None:
    page = (ROOT / folder / "README.md").read_text(encoding="utf-8")
    names = [
        path.name
        for path in in_repository()
        if path.parent == ROOT / folder and path.suffix in (".py", ".yaml", ".sh", ".sbatch")
    ]
    assert [name for name in names if name not in page] == []
