"""Attention weights as one HTML page: choose kind, layer, head and view; hover shows a weight.

The page loads nothing: its script, style and weights stand in it. Colours follow the reader's light
or dark setting.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mt.inspect.pictures import save_page

if TYPE_CHECKING:
    from mt.inspect.attention_map import Weights

# Weights are stored as whole numbers out of so many.
SCALE = 1000


def save_attention_page(
    output: Path,
    found: Mapping[str, tuple[Weights, Sequence[str], Sequence[str]]],
    *,
    kind: str,
    layer: int | None,
    head: int | None,
    view: str,
    title: str,
) -> None:
    """Write the page. `found`: for each kind the weights (L, H, T, S) and the words of both axes.

    The other arguments choose what it shows first: `layer` and `head` count from 1; None means the
    last layer but one, and the mean of all heads. Raises ConfigError where the file cannot be
    written.
    """
    data = {
        "scale": SCALE,
        "first": {"kind": kind, "layer": layer, "head": head, "view": view},
        "kinds": {
            name: {
                "rows": list(rows),
                "columns": list(columns),
                "weights": np.rint(weights * SCALE).astype(int).tolist(),
            }
            for name, (weights, rows, columns) in found.items()
        },
    }
    # Inside a script only "<" could end it.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    # In one pass: a sentence may have "{data}" in it.
    parts = {"{title}": html.escape(title), "{data}": text}
    save_page(output, re.sub(r"\{title\}|\{data\}", lambda found: parts[found[0]], PAGE))


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Attention: {title}</title>
<style>
:root { color-scheme: light dark; --ink: 31, 78, 140; --text: #1b1b1b; --paper: #ffffff;
  --line: #d0d0d0; }
@media (prefers-color-scheme: dark) {
  :root { --ink: 130, 180, 255; --text: #e6e6e6; --paper: #16181c; --line: #444; }
}
body { font: 15px/1.4 system-ui, sans-serif; color: var(--text); background: var(--paper);
  margin: 1.5rem auto; padding: 0 1rem; max-width: 75rem; }
h1 { font-size: 1.1rem; font-weight: 600; }
form { display: flex; flex-wrap: wrap; gap: .5rem 1rem; }
label { white-space: nowrap; }
select { font: inherit; }
#weight { min-height: 1.5em; margin: .7rem 0; font-variant-numeric: tabular-nums; }
#view { overflow-x: auto; padding-bottom: 1rem; }
table { border-collapse: collapse; margin-right: 6rem; }
td { width: 1.9rem; height: 1.9rem; min-width: 1.9rem; border: 1px solid var(--paper); }
td:hover { outline: 2px solid var(--text); outline-offset: -2px; }
tbody th { text-align: right; padding-right: .5rem; font-weight: 400; white-space: nowrap; }
thead th { height: 7rem; position: relative; font-weight: 400; }
thead th span { position: absolute; bottom: .3rem; left: 50%; transform-origin: 0 100%;
  transform: rotate(-50deg); white-space: nowrap; }
.grid { display: grid; gap: .8rem; justify-content: start; }
.grid figure { margin: 0; cursor: pointer; }
.grid table { margin: 0; }
.grid td { width: .5rem; height: .5rem; min-width: .5rem; border: 0; }
figcaption { font-size: .75rem; }
svg { max-width: 100%; }
svg text { fill: var(--text); font-size: 14px; cursor: default; }
svg line { stroke: rgb(var(--ink)); }
.dim { opacity: .06 !important; }
</style>
</head>
<body>
<h1>{title}</h1>
<form>
<label>attention <select id="kind"></select></label>
<label>layer <select id="layer"></select></label>
<label>head <select id="head"></select></label>
<label>view <select id="shape"><option>map<option>lines<option>grid</select></label>
</form>
<p id="weight" aria-live="polite"></p>
<div id="view"></div>
<script type="application/json" id="data">{data}</script>
<script>
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const [kind, layer, head, shape, view, weight] =
  ["kind", "layer", "head", "shape", "view", "weight"].map((id) => document.getElementById(id));
const names = {cross: "target to source", encoder: "source to source", decoder: "target to target"};
const hint = "Point at a cell, a word or a line: its weight appears here.";

function make(tag, text, parent) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}
function draw_svg(tag, attributes, parent, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}
function options(select, values, chosen) {
  select.replaceChildren();
  for (const [value, text] of values) {
    const option = make("option", text, select);
    option.value = value;
    option.selected = String(value) === String(chosen);
  }
}
const current = () => data.kinds[kind.value];
function weights_of(l, h) {
  const heads = current().weights[l - 1];
  if (h !== "mean") return heads[h - 1];
  return heads[0].map((row, t) => row.map((_, s) =>
    heads.reduce((sum, one) => sum + one[t][s], 0) / heads.length));
}
const percent = (value) => (100 * value / data.scale).toFixed(1) + " %";
const say = (t, s, value) =>
  `${current().rows[t]} looks at ${current().columns[s]}: ${percent(value)}`;

function table_of(values, labelled) {
  const {rows, columns} = current();
  const table = make("table");
  if (labelled) {
    const top = make("tr", undefined, make("thead", undefined, table));
    make("th", undefined, top);
    for (const word of columns) make("span", word, make("th", undefined, top));
  }
  const body = make("tbody", undefined, table);
  values.forEach((row, t) => {
    const line = make("tr", undefined, body);
    if (labelled) make("th", rows[t], line);
    row.forEach((value, s) => {
      const cell = make("td", undefined, line);
      cell.style.background = `rgba(var(--ink), ${value / data.scale})`;
      cell.title = say(t, s, value);
      cell.dataset.weight = say(t, s, value);
    });
  });
  return table;
}
function lines_of(values) {
  const {rows, columns} = current();
  const step = 26, gap = 260, side = 190;
  const height = step * (Math.max(rows.length, columns.length) + 1);
  const svg = draw_svg("svg", {viewBox: `0 0 ${gap + 2 * side} ${height}`, width: gap + 2 * side},
    view);
  const place = (n, i) => height / 2 + (i - (n - 1) / 2) * step;
  const lines = [];
  values.forEach((row, t) => row.forEach((value, s) => {
    const share = value / data.scale;
    if (share < 0.02) return;
    const line = draw_svg("line", {x1: side, x2: side + gap, y1: place(rows.length, t),
      y2: place(columns.length, s), "stroke-width": 0.5 + 8 * share,
      opacity: 0.2 + 0.8 * share}, svg);
    line.dataset.weight = say(t, s, value);
    lines.push({line, t, s});
  }));
  const words = (list, x, anchor, key) => list.forEach((word, i) => {
    const where = {x, y: place(list.length, i) + 5, "text-anchor": anchor};
    const text = draw_svg("text", where, svg, word);
    text.addEventListener("mouseenter", () => {
      for (const one of lines) one.line.classList.toggle("dim", one[key] !== i);
      const seen = lines.filter((one) => one[key] === i)
        .map((one) => [values[one.t][one.s], (key === "t" ? columns[one.s] : rows[one.t])])
        .sort((a, b) => b[0] - a[0]).slice(0, 5).map(([v, w]) => `${w} ${percent(v)}`);
      weight.textContent = `${word}: ${seen.join(", ")}`;
    });
    text.addEventListener("mouseleave", () => {
      for (const one of lines) one.line.classList.remove("dim");
    });
  });
  words(rows, side - 8, "end", "t");
  words(columns, side + gap + 8, "start", "s");
}
function grid() {
  const all = make("div", undefined, view);
  all.className = "grid";
  all.style.gridTemplateColumns = `repeat(${current().weights[0].length}, max-content)`;
  current().weights.forEach((heads, l) => heads.forEach((values, h) => {
    const figure = make("figure", undefined, all);
    make("figcaption", `layer ${l + 1}, head ${h + 1}`, figure);
    figure.append(table_of(values, false));
    figure.addEventListener("click", () => {
      layer.value = l + 1; head.value = h + 1; shape.value = "map"; show();
    });
  }));
}
function show() {
  view.replaceChildren();
  weight.textContent = hint;
  layer.disabled = head.disabled = shape.value === "grid";
  if (shape.value === "grid") return grid();
  const values = weights_of(layer.value, head.value);
  if (shape.value === "lines") lines_of(values); else view.append(table_of(values, true));
}
function choose_kind() {
  const layers = current().weights.length, heads = current().weights[0].length;
  const count = (n) => Array.from({length: n}, (_, i) => [i + 1, i + 1]);
  const wanted = layer.value || data.first.layer || Math.max(1, layers - 1);
  options(layer, count(layers), Math.min(wanted, layers));
  const heads_and_mean = [["mean", "mean of all"], ...count(heads)];
  options(head, heads_and_mean, head.value || data.first.head || "mean");
  show();
}
options(kind, Object.keys(data.kinds).map((name) => [name, `${name}: ${names[name]}`]),
  data.first.kind);
shape.value = data.first.view;
kind.addEventListener("change", choose_kind);
for (const select of [layer, head, shape]) select.addEventListener("change", show);
view.addEventListener("mouseover", (event) => {
  if (event.target.dataset && event.target.dataset.weight)
    weight.textContent = event.target.dataset.weight;
});
choose_kind();
</script>
</body>
</html>
"""
