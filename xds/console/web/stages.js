// The table of stages: what each serves, how loaded its replicas are, and why it exists.

import { byId, el, number, setText, svg, Table, text } from "./dom.js";
import { count, dash, milliseconds, percent, range } from "./format.js";

// load is the share of a replica's KV cache that is in use.
export const load = (r) => (r.capacity > 0 ? Math.min(1, r.held / r.capacity) : 0);

// why says why a stage exists.
export function why(stage) {
  if (!stage.known) return "not known yet";
  if (!stage.merged_with) return "the only stage";
  if (stage.cost_rise === undefined) return "merged with a neighbour, it would be over its limits";
  return `merged with ${stage.merged_with}, the plan would cost ${percent(Math.abs(stage.cost_rise))} ${stage.cost_rise < 0 ? "less" : "more"}`;
}

const cell = 11; // px of a replica in the strip, its gap included
const perRow = 24;

// Strip draws one square for each replica, darker with more load.
class Strip {
  constructor() {
    this.node = svg("svg", { role: "img", class: "strip" });
    this.squares = [];
  }

  update(replicas) {
    const columns = Math.min(Math.max(replicas.length, 1), replicas.length > 200 ? 2 * perRow : perRow);
    const lines = Math.ceil(replicas.length / columns);
    if (this.squares.length !== replicas.length) {
      this.squares = replicas.map((_, i) => svg("rect", { x: (i % columns) * cell, y: Math.floor(i / columns) * cell, width: cell - 2, height: cell - 2, rx: 1.5 }));
      this.node.replaceChildren(...this.squares);
      this.node.setAttribute("width", columns * cell);
      this.node.setAttribute("height", Math.max(lines, 1) * cell);
    }
    replicas.forEach((r, i) => {
      const name = r.health === "healthy" ? `load-${Math.min(4, Math.floor(5 * load(r)))}` : r.health === "draining" ? "draining" : "unhealthy";
      if (this.squares[i].getAttribute("class") !== name) this.squares[i].setAttribute("class", name);
    });
    const loads = replicas.map(load);
    const bad = replicas.filter((r) => r.health !== "healthy").length;
    const label = replicas.length === 0 ? "no replica" : `loads from ${percent(Math.min(...loads))} to ${percent(Math.max(...loads))}, ${bad} of ${replicas.length} not ready`;
    if (this.node.getAttribute("aria-label") !== label) this.node.setAttribute("aria-label", label);
  }
}

export class Stages {
  constructor() {
    this.strips = new WeakMap();
    this.table = new Table(byId("stages"), "Stages of the plan in force", [
      text("Stage", (s) => s.name, { head: true }),
      text("Lengths, tokens", (s) => range(s.low, s.high)),
      number("Replicas", (s) => count(s.replicas)),
      number("Requests", (s) => (s.known ? percent(s.request_share ?? 0) : dash)),
      number("Tokens", (s) => (s.known ? percent(s.token_share ?? 0) : dash)),
      number("Running", (s) => count(s.running)),
      number("Waiting", (s) => count(s.waiting)),
      number("KV used", (s) => percent(s.mean)),
      number("Iteration", (s) => milliseconds(s.iteration)),
      { label: "Load of each replica", cell: (td, s) => this.strip(td, s) },
      text("Why", why, { wrap: true }),
    ], (s) => s.name, "There is no plan yet.");
    this.legend();
  }

  strip(td, stage) {
    let strip = this.strips.get(td);
    if (!strip) {
      strip = new Strip();
      this.strips.set(td, strip);
      td.append(strip.node);
    }
    strip.update(stage.members);
  }

  legend() {
    const swatch = (name) => svg("svg", { width: 10, height: 10, "aria-hidden": "true" }, svg("rect", { width: 9, height: 9, rx: 1.5, class: name }));
    byId("stages").after(el("p", { class: "legend" }, "KV used: ", ...["below 20 %", "20–40 %", "40–60 %", "60–80 %", "80 % and more"].flatMap((name, i) => [swatch(`load-${i}`), ` ${name} `]), swatch("draining"), " draining ", swatch("unhealthy"), " unhealthy"));
  }

  update(model) {
    this.table.update(model.stages.map((stage, i) => {
      const members = model.replicas.filter((r) => r.stage === i);
      const sum = (of) => members.reduce((total, r) => total + of(r), 0);
      const busy = members.filter((r) => r.iteration_seconds > 0);
      return {
        ...stage, members, running: sum((r) => r.running), waiting: sum((r) => r.waiting), mean: members.length > 0 ? sum(load) / members.length : 0,
        iteration: busy.length > 0 ? busy.reduce((total, r) => total + r.iteration_seconds, 0) / busy.length : 0,
      };
    }));
    setText(byId("plan-note"), model.stages.length > 0 ? `Plan ${model.epoch}: ${model.reason || "no reason is stored"}.${model.pinned ? ` Pinned to ${model.pinned}.` : ""}` : "");
    setText(byId("planner-note"), model.planner ? `Planner: ${model.planner}.` : "");
  }
}
