"""The figures of the code, counted by hand in three small files."""

from __future__ import annotations

import ast

import house


def test_figures_of_a_small_house() -> None:
    many = ", ".join("abcdefgh")
    sources = {
        "mt/data/x.py": f"def one({many}):\n    pass\n\n\n"
        "def two(self, *, a):\n    def three(): ...\n    return three\n",
        "mt/cli/y.py": f'"""What is y."""\n\n\nasync def four({many}):\n    return 1\n    # end\n',
        "tests/z.py": "\n\n\n",
    }
    assert house.measure(sources) == {
        "files in mt": 2, "lines of mt": 13, "lines of the command line": 6, "lines of the core": 7,
        "lines of mt/cli": 6, "lines of mt/data": 7, "files in tests": 1, "lines of tests": 3,
        "lines of scripts": 0, "median lines of a file in mt": 6.5,
        "longest file": "7 mt/data/x.py", "functions": 4, "median length of a function": 2,
        "95th percentile of length": 3, "longest function": "3 mt/data/x.py:two",
        "functions of more than 90 lines": 0, "functions of more than 7 parameters, outside cli": 1,
        "bindings of one, found, own": 0, "docstrings that open vaguely": 1,
    }  # fmt: skip


def test_parts_and_names() -> None:
    parts = {"mt/report/page.py": "the leaves", "mt/report/commands.py": "the command line"}
    parts |= {"mt/files.py": "the core", "mt/data/tokens/plan.py": "the core"}
    assert {name: house.part_of(name) for name in parts} == parts
    code = 'def f(own):\n    """That of g."""\n    one = [found for found in own]\n'
    assert house.vague(ast.parse(code)) == (3, 1)


def test_the_working_tree_is_measured() -> None:
    assert house.measure(house.working_tree())["files in mt"] > 100
