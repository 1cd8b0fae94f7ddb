"""The picture of BLEU by the number of pairs, and the table that it is drawn from."""

from __future__ import annotations

import math
import re

import draw_pairs
import numpy as np


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


def test_the_picture_has_the_points_of_the_page() -> None:
    """On the axes places are linear functions of the logarithm of the pairs, and of BLEU."""
    curves = draw_pairs.curves(draw_pairs.PAGE.read_text(encoding="utf-8"))
    picture = draw_pairs.PICTURE.read_text(encoding="utf-8")
    places = list[tuple[float, ...]]()
    for name in curves:
        drawn = picture.split(f'<g id="{name}">')[1].split('d="')[1].split('"')[0]
        places += [tuple(map(float, place.split())) for place in re.split("[ML]", drawn)[1:]]
    points = [(math.log(pairs), bleu) for curve in curves.values() for pairs, bleu in curve]
    assert len(points) == len(places) > 6
    for values, along in zip(zip(*points, strict=True), zip(*places, strict=True), strict=True):
        line = np.polynomial.Polynomial.fit(values, along, 1)
        assert np.abs(line(np.array(values)) - along).max() < 0.1  # points of an inch / 72
