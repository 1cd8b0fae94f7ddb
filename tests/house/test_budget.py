"""The size of the house: each number of the table only falls.

A number is never raised to make this test pass: find the lines that the new ones replace.
"""

from __future__ import annotations

from collections import Counter

from house import part_of, working_tree
from test_pages import TEXTS

# Lines of Python by folder of mt/, commands of a leaf included; bytes of all pages.
BUDGET = {
    "all of mt": 29_917,
    "core": 19_198,
    "tests": 29_731,
    "pages": 129_561,
    "api and single files": 1_097,
    "data": 5_021,
    "training": 3_132,
    "translate": 2_579,
    "inspect": 2_211,
    "cleaning": 2_059,
    "search": 2_040,
    "interop": 1_753,
    "config": 1_738,
    "cli": 1_598,
    "documents": 1_367,
    "evaluation": 1_164,
    "runtime": 1_009,
    "model": 958,
    "runs": 901,
    "report": 838,
    "synthetic": 452,
}
SLACK = 150  # lines or, of pages, bytes times ten: more than this below the budget lowers it


def sizes() -> Counter[str]:
    """The truth, under the names of the table."""
    found: Counter[str] = Counter(pages=sum(len(text.encode()) for text in TEXTS.values()))
    for name, text in working_tree().items():
        n_lines = len(text.splitlines())
        if name.startswith("tests/"):
            found["tests"] += n_lines
        elif name.startswith("mt/"):
            room = name.split("/")[1]
            found[room if "." not in room else "api and single files"] += n_lines
            found["all of mt"] += n_lines
            found["core"] += n_lines * (part_of(name) == "the core")
    return found


def test_the_house_only_shrinks() -> None:
    truth = sizes()
    assert {name: n for name, n in truth.items() if n > BUDGET.get(name, 0)} == {}


def test_the_budget_follows_what_was_deleted() -> None:
    truth = sizes()
    slack = {name: SLACK * 10 if name == "pages" else SLACK for name in BUDGET}
    assert {name: truth[name] for name, n in BUDGET.items() if n >= truth[name] + slack[name]} == {}
