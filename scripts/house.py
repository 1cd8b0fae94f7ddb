"""Print the size of the code: files, lines of core and leaves, functions, names.

    python scripts/house.py
    python scripts/house.py --compare v0.1.0          a commit and the working tree, side by side
    python scripts/house.py --json

Blank lines and docstrings count as lines, `self` as a parameter. Functions are those of mt/.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import statistics
import subprocess
import tarfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MANY_PARAMETERS = 7
LONG_FUNCTION = 90
# Parts that can be cut off; their commands belong to the command line.
LEAVES = {
    *("cleaning", "documents", "inspect"),
    *("interop", "report", "synthetic"),
}
COMMAND_LINE = {"cli", "api.py", "__main__.py"}
# Names that say nothing, and openings of docstrings that do not say what the thing is.
VAGUE_NAMES = {"one", "found", "own"}
VAGUE_OPENING = re.compile(
    r"(The same (of|for|as)|That of|Those of|What (is|it|the|of|a|may|must))\b"
)


def working_tree() -> dict[str, str]:
    """The Python sources as they are: path → text."""
    paths = [
        path for folder in ("mt", "tests", "scripts") for path in (ROOT / folder).rglob("*.py")
    ]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


def sources_at(revision: str) -> dict[str, str]:
    """The Python sources of a commit: path → text."""
    command = ["git", "archive", revision, "mt", "tests", "scripts"]
    archive = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        files = {m.name: tar.extractfile(m) for m in tar if m.isfile() and m.name.endswith(".py")}
        return {name: file.read().decode() for name, file in files.items() if file}


def part_of(name: str) -> str:
    """Of which part a file of mt/ is: the core, a leaf, or the command line."""
    room = name.split("/")[1]
    if room in COMMAND_LINE or name.endswith("commands.py"):
        return "the command line"
    return "the leaves" if room in LEAVES else "the core"


def vague(tree: ast.AST) -> tuple[int, int]:
    """How often a file binds one of `VAGUE_NAMES`, and opens a docstring with `VAGUE_OPENING`."""
    names = openings = 0
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                names += name in VAGUE_NAMES
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Module():
                openings += bool(VAGUE_OPENING.match(ast.get_docstring(node) or ""))
    return names, openings


def measure(sources: Mapping[str, str]) -> dict[str, int | float | str]:
    """The figures, by name."""
    lines = {name: len(text.splitlines()) for name, text in sources.items()}
    ours = [name for name in sources if name.startswith("mt/")]
    folders: Counter[str] = Counter()
    parts: Counter[str] = Counter()
    for name in ours:
        folders["/".join(name.split("/")[:2])] += lines[name]
        parts[part_of(name)] += lines[name]
    functions: list[tuple[int, int, str]] = []  # length, parameters, name
    names = openings = 0
    for name in ours:
        tree = ast.parse(sources[name])
        names, openings = names + vague(tree)[0], openings + vague(tree)[1]
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                every = node.args
                n_parameters = len(every.posonlyargs + every.args + every.kwonlyargs)
                length = (node.end_lineno or 0) - node.lineno + 1
                functions.append((length, n_parameters, f"{name}:{node.name}"))
    lengths = [length for length, _, _ in functions]
    longest_file = max(ours, key=lambda name: lines[name])
    return {
        "files in mt": len(ours),
        "lines of mt": sum(lines[name] for name in ours),
        **{f"lines of {part}": count for part, count in sorted(parts.items())},
        **{f"lines of {folder}": count for folder, count in sorted(folders.items())},
        "files in tests": sum(name.startswith("tests/") for name in sources),
        "lines of tests": sum(n for name, n in lines.items() if name.startswith("tests/")),
        "lines of scripts": sum(n for name, n in lines.items() if name.startswith("scripts/")),
        "median lines of a file in mt": statistics.median(lines[name] for name in ours),
        "longest file": f"{lines[longest_file]} {longest_file}",
        "functions": len(functions),
        "median length of a function": statistics.median(lengths),
        "95th percentile of length": sorted(lengths)[int(0.95 * len(lengths))],
        "longest function": "{0} {2}".format(*max(functions)),
        f"functions of more than {LONG_FUNCTION} lines": sum(n > LONG_FUNCTION for n in lengths),
        f"functions of more than {MANY_PARAMETERS} parameters, outside cli": sum(
            n > MANY_PARAMETERS and part_of(name.partition(":")[0]) != "the command line"
            for _, n, name in functions
        ),
        "bindings of one, found, own": names,
        "docstrings that open vaguely": openings,
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--compare", metavar="REV", help="a commit to put beside the working tree")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    columns = {args.compare: measure(sources_at(args.compare))} if args.compare else {}
    columns["now"] = measure(working_tree())
    if args.json:
        print(json.dumps(columns, indent=1))
        return
    print(f"{'':<52}", *(f"{name:<44}" for name in columns))
    for figure in dict.fromkeys(name for column in columns.values() for name in column):
        print(f"{figure:<52}", *(f"{column.get(figure, '')!s:<44}" for column in columns.values()))


if __name__ == "__main__":
    main()
