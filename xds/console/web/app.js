// The page: it shows each view of the control plane.

import { Chart } from "./chart.js";
import { byId, el, setText } from "./dom.js";
import { Feed } from "./feed.js";
import { count, figure, percent, seconds } from "./format.js";
import { Orders } from "./orders.js";
import { read } from "./read.js";
import { load, Stages } from "./stages.js";
import { History, Migrations, Models, Proxies, Replicas, Slots } from "./tables.js";
import { ready, Verdict } from "./verdict.js";
import { WhatIf } from "./whatif.js";

const parts = {
  verdict: new Verdict(), chart: new Chart(), stages: new Stages(), replicas: new Replicas(), migrations: new Migrations(), models: new Models(),
  history: new History(), proxies: new Proxies(), slots: new Slots(), whatIf: new WhatIf(), orders: new Orders(),
};
let view = null;

// chosen is the model that the address names, or else the first.
function chosen() {
  const hash = location.hash.slice(1);
  return view.models.find((m) => encodeURIComponent(m.name) === hash) ?? view.models[0];
}

function chooseModel(model) {
  const select = byId("model");
  const names = view.models.map((m) => m.name);
  if ([...select.options].map((o) => o.value).join("\n") !== names.join("\n")) select.replaceChildren(...names.map((name) => el("option", { value: name }, name)));
  if (select.value !== model.name) select.value = model.name;
  byId("choose").hidden = names.length < 2;
}

// figures shows a model in numbers.
function figures(model) {
  const serving = model.replicas.filter((r) => r.stage >= 0);
  const sum = (of) => model.replicas.reduce((total, r) => total + of(r), 0);
  const rows = [
    ["Requests", `${figure(model.rate)} /s`], ["Running", count(sum((r) => r.running))], ["Waiting", count(sum((r) => r.waiting))],
    ["KV used", serving.length > 0 ? percent(serving.reduce((total, r) => total + load(r), 0) / serving.length) : "–"],
    ["Replicas ready", `${count(model.replicas.filter(ready).length)} of ${count(model.replicas.length)}`],
    ["Stages", count(model.stages.length)], ["Migrations", `${count(view.migrations.done)} /min`], ["Stall p99", seconds(view.migrations.stall_p99)],
  ];
  const list = byId("figures");
  if (list.children.length === 0) list.append(...rows.map(([name]) => el("div", null, el("dt", null, name), el("dd"))));
  rows.forEach(([, value], i) => setText(list.children[i].lastChild, value));
}

function render() {
  if (!view) return;
  performance.clearMeasures("cascade-view"); // else the browser keeps them all
  const start = performance.now();
  setText(byId("plane"), view.name ?? "");
  parts.verdict.update(view);
  parts.models.update(view);
  parts.migrations.update(view.migrations, view.time);
  parts.proxies.update(view);
  parts.slots.update(view.slots);
  const model = chosen();
  if (model) {
    chooseModel(model);
    figures(model);
    for (const name of ["chart", "stages", "replicas"]) parts[name].update(model);
    parts.history.update(model, view.name);
    parts.whatIf.update(model, view.mixes);
    parts.orders.update(model, view.orders);
  }
  performance.measure("cascade-view", { start, end: performance.now() });
}

byId("model").addEventListener("change", (event) => {
  location.hash = encodeURIComponent(event.target.value);
});
addEventListener("hashchange", render);
setInterval(() => parts.verdict.tick(), 1000);
new Feed("/console/events", (next) => {
  view = read(next);
  render();
}, (state) => parts.verdict.connection(state));
