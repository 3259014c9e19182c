// The stages on a logarithmic axis of lengths, with the traffic of each length above and the
// migrations between them below.

import { byId, svg } from "./dom.js";
import { figure, percent, plural, range, tokens } from "./format.js";

const left = 64; // room for the labels of the rows
const right = 26; // room for half of the last label
const shortest = 8; // where the axis begins: shorter requests are drawn there
const rows = { arrivals: { top: 22, height: 58 }, tokens: { top: 104, height: 58 }, band: { top: 176, height: 26 }, axis: 218, moves: 232 };

export class Chart {
  constructor() {
    this.model = null;
    this.node = svg("svg", { role: "img" });
    byId("chart").append(this.node);
    new ResizeObserver(() => this.draw()).observe(byId("chart"));
  }

  update(model) {
    this.model = model;
    this.draw();
  }

  draw() {
    const model = this.model;
    const width = Math.floor(byId("chart").clientWidth);
    if (!model || width < 100) return;
    const end = Math.max(model.context, 2 * shortest);
    const octaves = Math.log2(end / shortest);
    const x = (length) => left + ((width - left - right) * Math.log2(Math.min(Math.max(length, shortest), end) / shortest)) / octaves;
    const height = rows.moves + (model.moves.length > 0 ? 64 : 0);
    const parts = [...this.bands(model, x, width), ...this.bars(model, x, "arrivals", "requests/s", "by prompt length"), ...this.bars(model, x, "tokens", "tokens/s", "by length so far"), ...this.axis(end, x), ...this.moves(model, x)];
    this.node.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.node.setAttribute("height", height);
    this.node.setAttribute("aria-label", this.describe(model));
    this.node.replaceChildren(...parts);
  }

  // bands draws each stage's range behind the traffic, and its name below.
  bands(model, x, width) {
    return model.stages.flatMap((stage, i) => {
      const from = x(stage.low);
      const to = stage.high === undefined ? width - right : x(stage.high);
      const middle = (from + to) / 2;
      const out = [
        svg("rect", { class: `band ${i % 2 ? "odd" : "even"}`, x: from, y: 8, width: Math.max(to - from, 1), height: rows.band.top + rows.band.height - 8 }),
        svg("rect", { class: "stage", x: from + 1, y: rows.band.top, width: Math.max(to - from - 2, 1), height: rows.band.height, rx: 3 }),
      ];
      const long = `${stage.name} · ${plural(stage.replicas, "replica")}`;
      const label = to - from > 8 * long.length ? long : stage.name;
      if (to - from > 18) out.push(svg("text", { class: "stage-name", x: middle, y: rows.band.top + 17, "text-anchor": "middle" }, label));
      if (i > 0) out.push(svg("line", { class: "cut", x1: from, x2: from, y1: 8, y2: rows.band.top + rows.band.height }));
      return out;
    });
  }

  // bars draws one figure of the buckets, each as wide as its lengths.
  bars(model, x, name, unit, by) {
    const { top, height } = rows[name];
    const most = Math.max(...model.buckets.map((b) => b[name]), 0);
    const out = [
      svg("line", { class: "base", x1: left, x2: x(Infinity), y1: top + height, y2: top + height }),
      svg("text", { class: "label", x: 0, y: top + 10 }, unit),
      svg("text", { class: "label", x: 0, y: top + 26 }, most > 0 ? `max ${figure(most)}` : "none"),
      svg("text", { class: "label", x: left + 4, y: top - 4 }, by),
    ];
    model.buckets.forEach((bucket, i) => {
      if (!(bucket[name] > 0)) return;
      const from = x(bucket.low);
      const to = i + 1 < model.buckets.length ? x(model.buckets[i + 1].low) : x(Infinity);
      const h = Math.max(1, (height * bucket[name]) / most);
      out.push(svg("rect", { class: `bar ${name}`, x: from + 0.5, y: top + height - h, width: Math.max(to - from - 1, 1), height: h }));
    });
    return out;
  }

  axis(end, x) {
    const out = [];
    const wide = x(2 * shortest) - x(shortest) > 48 ? 1 : 2; // octaves between two labels
    for (let length = 16, n = 0; length <= end; length *= 2, n++) {
      if (n % wide) continue;
      out.push(svg("line", { class: "base", x1: x(length), x2: x(length), y1: rows.band.top + rows.band.height, y2: rows.band.top + rows.band.height + 4 }));
      out.push(svg("text", { class: "label", x: x(length), y: rows.axis, "text-anchor": "middle" }, tokens(length)));
    }
    out.push(svg("text", { class: "label", x: 0, y: rows.axis }, "tokens"));
    return out;
  }

  // moves draws an arc for the migrations from each stage to another one, as wide as they are many.
  moves(model, x) {
    const end = (stage) => (stage.high === undefined ? x(Infinity) : x(stage.high));
    const centre = (i) => (x(model.stages[i].low) + end(model.stages[i])) / 2;
    const wide = (i) => end(model.stages[i]) - x(model.stages[i].low);
    const shown = model.moves.filter((m) => model.stages[m.from] && model.stages[m.to]);
    const out = [];
    for (const move of shown) {
      const width = Math.min(1.5 + Math.log2(move.count), 7);
      const within = move.from === move.to;
      // Arcs between stages begin and end beside those within one.
      const shift = (i, most) => Math.min(most, wide(i) / 4);
      const side = Math.sign(move.to - move.from);
      const from = centre(move.from) + (within ? -shift(move.from, 12) : side * shift(move.from, 30));
      const to = centre(move.to) + (within ? shift(move.to, 12) : -side * shift(move.to, 30));
      const top = rows.moves - 6;
      const deep = top + (within ? 24 : move.to > move.from ? 34 : 50);
      out.push(svg("path", { class: "move", d: `M${from} ${top}C${from} ${deep} ${to} ${deep} ${to} ${top + 5}`, "stroke-width": width }));
      out.push(svg("path", { class: "head", d: `M${to} ${top}l-5 8h10z` }));
      out.push(svg("text", { class: "move-count", x: (from + to) / 2, y: top + 0.75 * (deep - top) + 13, "text-anchor": "middle" }, String(move.count)));
    }
    if (shown.length > 0) {
      out.push(svg("text", { class: "label", x: 0, y: rows.moves + 12 }, "migrations"), svg("text", { class: "label", x: 0, y: rows.moves + 27 }, "a minute"));
    }
    return out;
  }

  // describe says in words what the chart shows.
  describe(model) {
    const stages = model.stages.map((s) => `${s.name}, ${range(s.low, s.high)} tokens, ${plural(s.replicas, "replica")}${s.known ? `, ${percent(s.request_share ?? 0)} of the requests` : ""}`);
    const moves = model.moves.map((m) => `${m.count} from ${model.stages[m.from]?.name ?? "no stage"} to ${model.stages[m.to]?.name ?? "no stage"}`);
    return `${figure(model.rate)} requests a second. Stages: ${stages.join("; ")}.${moves.length > 0 ? ` Migrations in the last minute: ${moves.join("; ")}.` : ""}`;
  }
}
