"""The closing summary of a translation."""

from __future__ import annotations

from mt.translate.progress import LineNumbers, Tally


def test_the_closing_line() -> None:
    assert Tally(1, tokens=8, seconds=0.5).summary() == "1 line in 0.5 s: 2 lines/s, 16 tokens/s"
    assert Tally(
        12000, blank=2, split=LineNumbers(1, [7]), tokens=90000, seconds=10.0
    ).summary() == (
        "12,000 lines (2 blank; 1 too long for the model, translated in pieces: line 7) in 10.0 s: "
        "1,200 lines/s, 9,000 tokens/s"
    )
    assert "6 too long for the model, translated in pieces: line 1, 2, 3, 4, 1,005, ...)" in (
        Tally(9000, split=LineNumbers(6, [1, 2, 3, 4, 1005]), tokens=1, seconds=1.0).summary()
    )
    assert Tally().summary() == "0 lines in 0.0 s: 0 lines/s, 0 tokens/s"
    flagged = {"copied": LineNumbers(1, [3]), "truncated": LineNumbers()}
    for number in range(1, 7):
        flagged["truncated"].add(number)
    assert Tally(9, flagged=flagged, seconds=1.0).summary().split("\n")[1:] == [
        "copied: 1 (equal to the source): line 3",
        "truncated: 6 (stopped at the length limit): line 1, 2, 3, 4, 5, ...",
    ]
