// Elements whose text is text: nothing in this page is parsed as HTML.

const svgNamespace = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value !== undefined && value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

// el creates an element. Children are nodes, or strings that become text.
export const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);

// svg creates an SVG element.
export const svg = (tag, attributes, ...children) => fill(document.createElementNS(svgNamespace, tag), attributes, children);

export const byId = (id) => document.getElementById(id);

// setText changes a node's text only if it differs, so that live regions and layout rest.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setClass(node, name) {
  if (node.className !== name) node.className = name;
}

// Table keeps the rows of a table by key, so that an update touches only what has changed.
// A column has a label, cell(td, row), which fills its cell, and what the cell has: a row's name
// (head), a number (num), or a long text (wrap).
export class Table {
  constructor(node, caption, columns, key, empty) {
    this.columns = columns;
    this.key = key;
    this.rows = new Map();
    this.body = el("tbody");
    this.none = el("tr", { class: "none" }, el("td", { colspan: columns.length }, empty));
    const head = columns.map((c) => el("th", { scope: "col", class: c.num ? "num" : undefined }, c.label));
    node.append(el("caption", { class: "hidden" }, caption), el("thead", null, el("tr", null, ...head)), this.body);
  }

  update(list) {
    const seen = new Set();
    let before = null; // the row that the next one follows
    for (const item of list) {
      const key = this.key(item);
      seen.add(key);
      let row = this.rows.get(key);
      if (!row) {
        row = el("tr");
        for (const c of this.columns) row.append(el(c.head ? "th" : "td", { class: c.num ? "num" : c.wrap ? undefined : "short", scope: c.head ? "row" : undefined, "data-label": c.label }));
        this.rows.set(key, row);
      }
      this.columns.forEach((c, i) => c.cell(row.children[i], item, row));
      const next = before ? before.nextSibling : this.body.firstChild;
      if (next !== row) this.body.insertBefore(row, next);
      before = row;
    }
    for (const [key, row] of this.rows) {
      if (!seen.has(key)) {
        row.remove();
        this.rows.delete(key);
      }
    }
    if (list.length === 0) this.body.append(this.none);
    else this.none.remove();
  }
}

// text makes a column whose cells are one text.
export const text = (label, of, more) => ({ label, cell: (td, row) => setText(td, of(row)), ...more });

// number makes a column of aligned numbers.
export const number = (label, of) => text(label, of, { num: true });
