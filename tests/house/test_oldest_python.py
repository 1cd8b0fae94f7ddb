"""mt imports on the oldest Python of pyproject.toml, 3.10."""

from __future__ import annotations

import ast

from conftest import ROOT

# What typing has only since 3.11 or later; typing_extensions has it before.
NEWER = {"LiteralString", "Never", "NotRequired", "Required", "Self", "TypeVarTuple", "Unpack",
         "assert_never", "assert_type", "override", "reveal_type"}  # fmt: skip


def test_nothing_is_imported_from_typing_that_python_3_10_lacks() -> None:
    found = [
        f"{path.name}: {name.name}"
        for folder in ("mt", "scripts")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "typing"
        for name in node.names
        if name.name in NEWER
    ]
    assert not found
