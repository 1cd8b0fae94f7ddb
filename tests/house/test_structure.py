"""How the source is laid out: who may import whom, how long files are, what they are called."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mt.package import DISTRIBUTION

ROOT = Path(__file__).parents[2]
# The core, from the ground up. A file imports only from its own floor or below.
CORE = (
    {"artefacts", "errors", "files", "package", "removed", "settings", "terminal"},
    {"config", "runtime"}, {"data/reading"}, {"data/tokens"}, {"runs"}, {"model"}, {"search"},
    {"translate", "evaluation"}, {"training"},
)  # fmt: skip
# Each can be cut off: only what is above imports one.
LEAVES = ({"cleaning", "synthetic"}, {"inspect", "interop", "documents"}, {"report"})
FLOORS = (*CORE, *LEAVES, {"api"}, {"cli"}, {"__main__"})
# Single files of a floor may import each other; the folders of a floor may not.
SINGLE_FILES = {"artefacts", "errors", "files", "package", "removed", "settings", "terminal"}
LONGEST_FILE = 500
LONGEST_BARE = 3  # lines of a public function without a docstring
VAGUE = {"utils", "util", "helpers", "helper", "misc", "common", "tools", "base", "core"}
# Places of one machine: in a tracked file they are of no use to anybody else.
OF_THIS_MACHINE = re.compile(rb"(?<![\w.])/(work|root|tmp/v)/")

SOURCES = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "mt").rglob("*.py"))}
TREES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): ast.parse(
        text
    )
    for path, text in SOURCES.items()
}


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, module or name) of every import of ours, also inside functions and for types only."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are written in full, from mt on"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith("mt."):
                yield node.lineno, name


def room_of(module: str) -> str:
    """The folder of a module, such as `data/reading`; the commands of a leaf are in `cli`."""
    parts = module.split(".")[1:]
    if parts[1:] and parts[1].endswith("commands"):
        return "cli"
    return "/".join(parts[:2]) if parts[0] == "data" else parts[0]


def floor_of(module: str) -> int | None:
    """The floor of a module, counted from the ground."""
    return next((i for i, rooms in enumerate(FLOORS) if room_of(module) in rooms), None)


def import_faults(module: str, tree: ast.Module) -> list[str]:
    """What a module imports and must not: from above, or from a folder beside its own."""
    faults = []
    floor = floor_of(module)
    assert floor is not None, f"{module} has no floor"
    room = room_of(module)
    for line, name in imported(tree):
        other = room_of(name)
        above = floor_of(name)
        beside = above == floor and other != room and not {room, other} <= SINGLE_FILES
        if above is None or above > floor or beside:
            faults.append(f"{module}:{line} imports {name}")
    return faults


def circles(trees: dict[str, ast.Module]) -> list[set[str]]:
    """Groups of modules that import each other, directly or through others of the group."""
    reached = {
        module: {name if name in trees else name.rpartition(".")[0] for _, name in imported(tree)}
        for module, tree in trees.items()
    }
    for via in reached:  # afterwards: all that can be reached over any number of imports
        for others in reached.values():
            if via in others:
                others |= reached[via]
    groups = {
        frozenset(other for other in others if module in reached.get(other, ()))
        for module, others in reached.items()
        if module in others
    }
    return [set(group) for group in groups]


def test_nothing_is_imported_from_a_floor_above() -> None:
    faults = []
    for module, tree in TREES.items():
        if module not in ("mt", "mt.data"):  # docstrings only, see below
            faults += import_faults(module, tree)
    assert faults == []


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circles(TREES) == []


def test_no_two_classes_have_one_name() -> None:
    places: dict[str, list[str]] = {}
    # The API has the plain names, of classes that hide those of the same name.
    for module, tree in TREES.items() - {("mt.api", TREES["mt.api"])}:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(module)
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


@pytest.mark.parametrize(
    ("module", "source", "faults"),
    [
        ("mt.data.tokens.store", "from mt.model.transformer import Transformer", 1),
        ("mt.data.reading.corpus", "from mt.data.tokens import store", 1),
        ("mt.data.tokens.duplicates", "def late():\n    import mt.training.trainer", 1),
        ("mt.translate.x", "if TYPE_CHECKING:\n    from mt.evaluation.metrics import bleu", 1),
        ("mt.evaluation.x", "from mt.translate import translator", 1),
        ("mt.errors", "from mt import config", 1),
        ("mt.training.x", "import mt.cli.main", 1),
        ("mt.model.x", "import mt.nowhere", 1),
        ("mt.report.x", "from mt.report.commands import report", 1),
        ("mt.report.commands", "from mt.cli.options import described", 0),
        ("mt.files", "from mt.errors import MtError", 0),
        ("mt.config.x", "from mt.config import yaml_text\nfrom mt.errors import MtError", 0),
        ("mt.data.tokens.x", "from mt.data.reading.corpus import a\nimport mt.package", 0),
        ("mt.translate.x", "import torch\nfrom mt.model import checkpoint", 0),
        ("mt.training.x", "from mt.translate.lines import Line\nfrom mt.training import loss", 0),
    ],
)
def test_import_faults_are_found(module: str, source: str, faults: int) -> None:
    assert len(import_faults(module, ast.parse(source))) == faults


def test_circles_are_found() -> None:
    imports = {
        "mt.a": "from mt.b import c",
        "mt.b": "def late():\n    from mt import c",
        "mt.c": "if TYPE_CHECKING:\n    from mt import a, d",
        "mt.d": "import torch",
        "mt.e": "from mt import a",
    }
    trees = {module: ast.parse(source) for module, source in imports.items()}
    assert circles(trees) == [{"mt.a", "mt.b", "mt.c"}]


def test_a_translator_is_complete_when_built() -> None:
    """Only its own file sets an attribute of a translator, or of its counts."""
    assigned = re.compile(r"\b(?:translator|translator\.\w+)\.\w+ [-+|]?= |__dict__\.update")
    faults = {
        path.relative_to(ROOT / "mt").as_posix(): line.strip()
        for path, text in SOURCES.items()
        for line in text.splitlines()
        if assigned.search(line)
    }
    faults.pop("config/data_schema.py", None)  # completes a section that nobody has seen yet
    assert faults == {}


def test_files_are_short_and_their_names_say_what_they_do() -> None:
    paths = [*SOURCES, *(ROOT / "scripts").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    assert {path: length for path, length in lengths.items() if length > LONGEST_FILE} == {}
    assert [path for path in paths if VAGUE & {path.stem, path.parent.name}] == []


def test_public_functions_have_docstrings() -> None:
    """A body of three lines with a good name needs none."""
    bare = [
        f"{module}:{node.lineno} {node.name}"
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and ast.get_docstring(node) is None
        and (node.body[-1].end_lineno or 0) - node.body[0].lineno >= LONGEST_BARE
        and id(node) in public_functions(tree)
    ]
    assert bare == []


def public_functions(tree: ast.Module) -> set[int]:
    """Functions of a module, and methods of its public classes; not those within others."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    public = [node for node in classes if not node.name.startswith("_")]
    return {id(node) for body in (tree.body, *(each.body for each in public)) for node in body}


def test_every_folder_has_an_init_file_that_holds_its_docstring_and_nothing_else() -> None:
    inits = [path for path in SOURCES if path.name == "__init__.py"]
    assert {path.parent for path in inits} == {path.parent for path in SOURCES}
    for path in inits:
        docstring, *rest = ast.parse(SOURCES[path]).body
        assert isinstance(docstring, ast.Expr), f"{path} says what its stage takes and gives"
        if path.parent == ROOT / "mt":  # also the names of the API, imported when they are used
            assert "__version__: str" in map(ast.unparse, rest)
        else:
            assert rest == [], path


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


def test_no_file_tells_anybody_to_install_the_other_project_called_mt() -> None:
    bare = re.compile(r"pip3? install[^\n`;]*?[ '\"]mt(?=[\[ '\"`\n])|\bmt\[[a-z]+\]")
    assert bare.search("pip install -q 'MT[corpora]'".lower())
    assert not bare.search(f"pip install '{DISTRIBUTION}[corpora]'; docker build -t mt .")
    texts = {path: path.read_bytes().decode(errors="replace") for path in in_repository()}
    assert {str(path): m[0] for path, text in texts.items() if (m := bare.search(text))} == {}


@pytest.mark.parametrize("folder", ["configs", "scripts", "scripts/slurm"])
def test_the_map_in_the_readme_of_a_folder_names_its_files(folder: str) -> None:
    page = (ROOT / folder / "README.md").read_text(encoding="utf-8")
    names = [
        path.name
        for path in in_repository()
        if path.parent == ROOT / folder and path.suffix in (".py", ".yaml", ".sh", ".sbatch")
    ]
    assert [name for name in names if name not in page] == []


def test_workflows_pin_every_action_by_its_commit() -> None:
    texts = [path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml")]
    used = [line for text in texts for line in text.splitlines() if "uses:" in line]
    assert len(used) >= 6
    pinned = re.compile(r"\s+- uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert [line for line in used if not pinned.fullmatch(line)] == []
