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
