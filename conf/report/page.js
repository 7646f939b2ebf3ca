"use strict";
// Elements out of texts: nothing of a run is ever parsed as HTML.
const SVG = "http://www.w3.org/2000/svg";
let DATA = null;

function put(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}
const make = (tag, attributes, ...children) => put(document.createElement(tag), attributes, children);
const draw = (tag, attributes, ...children) => put(document.createElementNS(SVG, tag), attributes, children);
const byId = (id) => document.getElementById(id);

// A name or text of the run, whose direction of writing turns nothing beside it around.
const isolated = (text, kind = "text") => make("bdi", { class: kind, dir: "auto" }, text ?? "");
const textOf = (number) => (number === null || number === undefined ? "" : DATA.texts[number]);
function cutNote(number) {
  const length = number === null || number === undefined ? undefined : DATA.lengths[number];
  if (length === undefined) return null;
  return make("span", { class: "cut" }, ` [cut: ${count(textOf(number).length)} of ${count(length)} characters]`);
}
const shown = (number) => [isolated(textOf(number)), cutNote(number)];

const count = (number) => (number ?? 0).toLocaleString("en-US");
const decimal = (value, digits = 3) => (value === null || value === undefined ? "–" : value.toFixed(digits));
const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;
const distinct = (values) => [...new Set(values)];
const button = (label, onclick, more = {}) => make("button", { type: "button", class: "button", onclick, ...more }, label);
const badge = (text, kind = "") => make("span", { class: `badge ${kind}` }, text.replaceAll("_", " "));

function choice(label, values, onchange, first = "all") {
  const options = first === null ? values : ["", ...values];
  const select = make("select", { onchange }, options.map((one) => make("option", { value: one }, one || first)));
  return { node: make("label", {}, label, select), get value() { return select.value; }, set value(to) { select.value = to; } };
}

// A table whose heads sort and which shows a page of its rows at a time.
class Table {
  constructor(label, columns, by, down = false) {
    Object.assign(this, { columns, size: 50, from: 0, rows: [], by: columns[by], down });
    this.heads = columns.map((column) => this.head(column));
    this.body = make("tbody");
    this.status = make("span", { role: "status" });
    this.back = button("Previous", () => this.turn(-this.size));
    this.on = button("Next", () => this.turn(this.size));
    const table = make("table", { class: "answers" }, make("thead", {}, make("tr", {}, this.heads)), this.body);
    const region = { class: "scroll", role: "region", tabindex: 0, "aria-label": `Table: ${label}` };
    this.node = make("div", {}, make("div", region, table), make("div", { class: "pager" }, this.back, this.on, this.status));
  }
  head(column) {
    const kind = `${column.number ? "n" : ""} ${column.optional ? "optional" : ""}`;
    return make("th", { scope: "col", class: kind }, make("button", { type: "button", onclick: () => this.sort(column) }, column.name));
  }
  sort(column, down = this.by === column ? !this.down : Boolean(column.down)) {
    Object.assign(this, { by: column, down });
    this.show(this.rows);
  }
  turn(by) {
    this.from += by;
    this.fill();
  }
  show(rows) {
    this.rows = sorted(rows, this.by.value, this.down);
    this.from = 0;
    this.fill();
  }
  fill() {
    this.heads.forEach((head, place) => {
      if (this.columns[place] === this.by) head.setAttribute("aria-sort", this.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const page = this.rows.slice(this.from, this.from + this.size);
    this.body.replaceChildren(...page.map((row) => this.line(row)));
    const last = Math.min(this.from + this.size, this.rows.length);
    this.status.textContent = this.rows.length ? `${count(this.from + 1)} to ${count(last)} of ${count(this.rows.length)}` : "No row matches.";
    this.back.disabled = this.from === 0;
    this.on.disabled = last >= this.rows.length;
  }
  line(row) {
    const kind = (column) => `${column.number ? "n" : ""} ${column.optional ? "optional" : ""}`;
    return make("tr", {}, this.columns.map((column) => make("td", { class: kind(column) }, column.cell(row))));
  }
}

// Rows by a value, what has none last in both directions; equal ones stay in their order.
function sorted(rows, value, down) {
  const keyed = rows.map((row) => [value(row), row]);
  const none = (key) => key === null || key === undefined;
  const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b) : a - b);
  keyed.sort(([a], [b]) => (none(a) || none(b) ? none(a) - none(b) : down ? compare(b, a) : compare(a, b)));
  return keyed.map(([, row]) => row);
}
