"""The figures of the code, counted by hand in three small files."""

from __future__ import annotations

import house


def test_figures_of_a_small_house() -> None:
    many = ", ".join("abcdefgh")
    sources = {
        "mt/data/x.py": f"def one({many}):\n    pass\n\n\n"
        "def two(self, *, a):\n    def three(): ...\n    return three\n",
        "mt/cli/y.py": f'"""Y."""\n\n\nasync def four({many}):\n    return 1\n    # end\n',
        "tests/z.py": "\n\n\n",
    }
    assert house.measure(sources) == {
        "files in mt": 2,
        "lines of mt": 13,
        "lines of mt/cli": 6,
        "lines of mt/data": 7,
        "files in tests": 1,
        "lines of tests": 3,
        "lines of scripts": 0,
        "median lines of a file in mt": 6.5,
        "longest file": "7 mt/data/x.py",
        "functions": 4,
        "median length of a function": 2,
        "95th percentile of length": 3,
        "longest function": "3 mt/data/x.py:two",
        "functions of more than 7 parameters, outside cli": 1,
    }


def test_the_working_tree_is_measured() -> None:
    assert house.measure(house.working_tree())["files in mt"] > 100
