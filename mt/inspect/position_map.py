"""Position embeddings (P positions, D width): the matrix, and how similar any two positions are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mt.config.schema import ModelConfig
from mt.errors import ConfigError
from mt.inspect.pictures import LINE_STYLES, saved_figure
from mt.model.transformer import Transformer, sinusoids

Table = npt.NDArray[np.floating[Any]]

SINUSOIDAL = "sinusoidal"  # begins the title of a table of sinusoids
DISTANCES = (0, 1, 2, 3, 4, 5, 10, 20, 50, 100, 200, 500)  # distances that the text form lists
TICKS = CURVES = 8  # of the dimensions


def position_table(
    config: ModelConfig, count: int, model: Transformer | None = None, side: str = "src"
) -> tuple[Table, str]:
    """Positions (P, D) of a model or, if they are sinusoidal, of a config; and what they are."""
    if model is not None:
        embedding = model.src_embedding if side == "src" else model.tgt_embedding
        table = embedding.positions.detach().double().numpy()
    elif config.learned_positions:
        raise ConfigError(
            "model.positions: learned positions are random before training; give --model"
        )
    else:
        table = sinusoids(config.max_positions, config.d_model).numpy()
    kind = f"learned, {side}" if config.learned_positions else SINUSOIDAL
    return table[:count], f"{kind} positions, d_model {config.d_model}"


def similarity(table: Table) -> Table:
    """Cosine of every two positions: (P, D) -> (P, P).

    For sinusoids it is 2/D times the sum of cos(distance / 10000^(2i/D)): the same for all pairs at
    the same distance, so that attention can find "three words back" anywhere in a sentence.
    """
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    return np.asarray(unit @ unit.T)


def as_text(table: Table) -> str:
    """Return a line for each distance: mean, least and largest cosine of positions so far apart."""
    cosines = similarity(table)
    lines = ["distance   mean cosine   least   largest"]
    for distance in DISTANCES:
        if distance < len(table):
            at = np.diagonal(cosines, distance)
            lines.append(f"{distance:>8}{at.mean():>14.3f}{at.min():>8.3f}{at.max():>10.3f}")
    return "\n".join(lines)


def vector_as_text(table: Table, position: int, title: str) -> str:
    """Return a vector, of sinusoids by pairs of one frequency 10000^(-2i/D). ConfigError beyond."""
    if position >= len(table):
        raise ConfigError(f"--at: the model has positions 0 to {len(table) - 1}, found {position}")
    row = table[position]
    if not title.startswith(SINUSOIDAL):
        return "\n".join(f"{number:>4}  {value:8.5f}" for number, value in enumerate(row))
    frequencies = 10_000.0 ** (-np.arange(0, len(row), 2) / len(row))
    return "\n".join(
        f"{2 * i:>4}  sin({position} · {omega:.6g}) = {row[2 * i]:8.5f}   "
        f"{2 * i + 1:>4}  cos({position} · {omega:.6g}) = {row[2 * i + 1]:8.5f}"
        for i, omega in enumerate(frequencies)
    )


def save_picture(output: Path, table: Table, title: str) -> None:
    """Draw the matrix (P, D) and the cosines of its rows."""
    width = table.shape[1]
    order, dimensions = np.arange(width), "dimension"
    if title.startswith(SINUSOIDAL):  # sine and cosine in turn would be stripes too narrow to see
        order = np.concatenate([order[0::2], order[1::2]])
        dimensions = "dimension: even ones (sine), then odd ones (cosine)"
    panels = (
        (table[:, order], float(np.abs(table).max()), dimensions, title),
        (similarity(table), 1.0, "position", "cosine of every two positions"),
    )
    with saved_figure(output, 10, 6.8, layout="constrained") as figure:
        places = figure.subplot_mosaic("AB;CC", height_ratios=[3, 2])
        heat: Any = {"cmap": "RdBu_r", "aspect": "auto", "interpolation": "none"}
        both = zip((places["A"], places["B"]), panels, strict=True)
        for axes, (values, limit, columns, above) in both:
            image = axes.imshow(values, vmin=-limit, vmax=limit, **heat)
            axes.set_ylabel("position")
            axes.set_xlabel(columns)
            figure.colorbar(image, ax=axes, fraction=0.045).outline.set_visible(False)
            axes.set_title(above, fontsize=9)
        ticks = range(0, width, max(1, width // TICKS))
        places["A"].set_xticks(ticks, [str(order[tick]) for tick in ticks])
        curves = places["C"]
        for number, dimension in enumerate(range(0, width, max(1, width // CURVES))):
            style = LINE_STYLES[number % len(LINE_STYLES)]
            curves.plot(table[:, dimension], linestyle=style, label=str(dimension))
        curves.set_xlabel("position")
        curves.set_title("some dimensions over the positions", fontsize=9)
        place: Any = {"loc": "outside lower center", "ncols": CURVES + 1}
        figure.legend(frameon=False, title="dimension", **place)
