"""The picture of BLEU by the number of pairs, and the table that it is drawn from."""

from __future__ import annotations

import draw_pairs


def test_curves_are_the_columns_of_the_first_table_below_the_title() -> None:
    page = (
        "| pairs | before |\n|---|---|\n| 1 | 1 |\n\n## How many pairs\n\nText.\n\n"
        "| pairs | one corpus | another |\n|---|---|---|\n| 500 | | 2.5 ± 0.1 |\n"
        "| 161,323 | 46.29 | 3 |\n\n| pairs | after |\n|---|---|\n| 1 | 1 |\n"
    )
    assert draw_pairs.curves(page) == {
        "one corpus": [(161_323, 46.29)],
        "another": [(500, 2.5), (161_323, 3)],
    }


def test_the_picture_has_the_curves_of_the_page() -> None:
    """Made by `python scripts/draw_pairs.py`, never by hand."""
    curves = draw_pairs.curves(draw_pairs.PAGE.read_text(encoding="utf-8"))
    assert curves
    (axes,) = draw_pairs.draw(curves).axes
    assert [list(line.get_xydata()) for line in axes.lines]  # type: ignore[arg-type]
    picture = draw_pairs.PICTURE.read_text(encoding="utf-8")
    assert all(name in picture for name in curves)
