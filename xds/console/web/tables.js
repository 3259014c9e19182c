// The tables of replicas, migrations, plans, proxies and policy slots.

import { byId, el, number, setClass, setText, Table, text } from "./dom.js";
import { bytes, clock, count, dash, duration, figure, milliseconds, percent, plural, range, seconds, signed, tokens } from "./format.js";
import { load } from "./stages.js";

const late = 3; // seconds after which the age of a report is shown

// state says a replica's state and why.
function state(r) {
  const parts = [];
  if (r.drain?.length > 0) {
    parts.push(`drained by ${r.drain.join(" and ")}: ${r.residents + r.streams === 0 ? "empty" : `${plural(r.residents, "request")} here, ${plural(r.streams, "stream")}`}`);
    if (r.pinned > 0) parts.push(`${r.pinned} cannot move${r.pinned_seconds > 0 ? `, ${duration(r.pinned_seconds)} left` : ""}`);
  }
  if (r.reason) parts.push(r.reason);
  if (r.health !== "healthy" && r.health_seconds > 0) parts.push(`for ${duration(r.health_seconds)}`);
  return parts.join("; ");
}

const symbols = { healthy: "●", draining: "◐", unhealthy: "✕" };
const words = { healthy: "ready" };

// mark fills a cell with a symbol, a word and an explanation.
function mark(td, symbol, kind, word, more) {
  if (td.children.length === 0) td.append(el("span", { class: "symbol", "aria-hidden": "true" }), el("span", { class: "word" }), el("span", { class: "more" }));
  setClass(td, `state ${kind}`);
  setText(td.children[0], symbol);
  setText(td.children[1], word);
  setText(td.children[2], more);
}

// meter fills a cell with a bar and its percentage.
function meter(td, share) {
  if (td.children.length === 0) td.append(el("span", { class: "meter", "aria-hidden": "true" }, el("span")), el("span", { class: "value" }));
  setClass(td, "num load");
  td.firstChild.firstChild.style.width = `${Math.min(100, Math.round(100 * share))}%`;
  setText(td.lastChild, percent(share));
}

const order = { unhealthy: 0, draining: 1, healthy: 2 };
const natural = new Intl.Collator("en", { numeric: true });

export class Replicas {
  constructor() {
    this.stages = [];
    this.list = [];
    this.table = new Table(byId("replicas"), "Replicas, those with a problem first", [
      text("Replica", (r) => r.id, { head: true }),
      text("Stage", (r) => this.stageOf(r)),
      { label: "State", cell: (td, r) => mark(td, symbols[r.health] ?? "?", r.health, words[r.health] ?? r.health, state(r)) },
      { label: "KV used", num: true, cell: (td, r) => meter(td, load(r)) },
      number("KV capacity", (r) => tokens(r.capacity)),
      number("Running", (r) => count(r.running)),
      number("Waiting", (r) => count(r.waiting)),
      number("Iteration", (r) => milliseconds(r.iteration_seconds)),
      number("Weight", (r) => count(r.weight)),
      number("Report", (r) => (r.report_age_seconds < 0 ? "never" : r.report_age_seconds < late ? "now" : `${duration(r.report_age_seconds)} ago`)),
      text("Host", (r) => r.host || dash),
    ], (r) => r.id, "No replica fits.");
    byId("filter").addEventListener("input", () => this.render());
  }

  stageOf(r) {
    return r.stage >= 0 ? this.stages[r.stage]?.name ?? dash : r.role || "none";
  }

  update(model) {
    this.stages = model.stages;
    this.list = model.replicas.toSorted((a, b) => order[a.health] - order[b.health] || a.stage - b.stage || natural.compare(a.id, b.id));
    this.render();
  }

  render() {
    const wanted = byId("filter").value.trim().toLowerCase();
    const shown = wanted === "" ? this.list : this.list.filter((r) => [r.id, r.host ?? "", this.stageOf(r), words[r.health] ?? r.health].some((t) => t.toLowerCase().includes(wanted)));
    this.table.update(shown);
    const bad = this.list.filter((r) => r.health !== "healthy").length;
    setText(byId("replicas-note"), `${plural(this.list.length, "replica")}, ${bad === 0 ? "all ready" : `${count(bad)} not ready`}${wanted ? `; ${count(shown.length)} shown` : ""}`);
  }
}

// quantiles are the median and the 95th percentile of a time.
const quantiles = (p50, p95) => (p50 > 0 ? `${seconds(p50)}, ${seconds(p95)}` : dash);

export class Models {
  constructor() {
    this.table = new Table(byId("models"), "Models, and how their clients are served", [
      text("Model", (m) => m.name, { head: true }),
      number("Requests", (m) => `${figure(m.rate)} /s`),
      number("Answered", (m) => count(m.service.answers)),
      { label: "Refused (429)", num: true, cell: (td, m) => this.errors(td, m.service.refused) },
      { label: "Failed (5xx)", num: true, cell: (td, m) => this.errors(td, m.service.failed) },
      number("First token p50, p95", (m) => quantiles(m.service.first_token_p50, m.service.first_token_p95)),
      number("Per token p50, p95", (m) => quantiles(m.service.per_token_p50, m.service.per_token_p95)),
      number("Running", (m) => count(m.replicas.reduce((sum, r) => sum + r.running, 0))),
      number("Waiting", (m) => count(m.replicas.reduce((sum, r) => sum + r.waiting, 0))),
    ], (m) => m.name, "No model is known yet.");
  }

  // errors fills a cell with a number of requests, marked if there are any.
  errors(td, n) {
    setClass(td, n > 0 ? "num errors" : "num");
    setText(td, count(n));
  }

  update(view) {
    this.table.update(view.models);
  }
}

export class Migrations {
  constructor() {
    this.table = new Table(byId("migrations"), "Latest migrations, newest first", [
      text("When", (m) => this.ago(m)),
      text("Cause", (m) => m.cause),
      text("From", (m) => m.from),
      text("To", (m) => m.to),
      text("Way", (m) => (m.transport ? `${m.method}, ${m.transport}` : m.method)),
      { label: "State", cell: (td, m) => mark(td, m.state === "done" ? "●" : m.state === "aborted" ? "✕" : "◐", m.state === "done" ? "healthy" : m.state === "aborted" ? "unhealthy" : "draining", m.state, m.reason ?? "") },
      number("Stall", (m) => seconds(m.stall_seconds)),
      number("Length", (m) => count(m.tokens)),
      number("Copied", (m) => bytes(m.bytes)),
      text("Request", (m) => m.request, { wrap: true }),
    ], (m) => m.id, "No request has migrated yet.");
  }

  ago(m) {
    const passed = (this.now - new Date(m.reported)) / 1000;
    return passed < 1 ? "now" : `${duration(passed)} ago`;
  }

  update(migrations, time) {
    this.now = new Date(time);
    this.table.update(migrations.latest);
    let note = `Last minute: ${count(migrations.done)} done, ${count(migrations.aborted)} aborted; ${count(migrations.running)} in progress`;
    if (migrations.copies_tried > 0) note += `; beginnings of prompts copied: ${count(migrations.copied)} of ${count(migrations.copies_tried)} tried`;
    if (migrations.done > 0) note += `; stall p50 ${seconds(migrations.stall_p50)}, p99 ${seconds(migrations.stall_p99)}`;
    setText(byId("migrations-note"), note);
  }
}

// division says a plan in one line.
const division = (stages) => (stages ?? []).map((s) => `${range(s.low, s.high)}: ${s.replicas}`).join(" · ");

export class History {
  constructor() {
    this.table = new Table(byId("history"), "Decisions about the plan, newest first", [
      text("Time", (d) => clock(new Date(d.time))),
      number("Plan", (d) => String(d.epoch)),
      text("Decision", (d) => (d.times > 1 ? `${d.decision}, ${d.times} times` : d.decision)),
      text("Why", (d) => (d.by && d.by !== this.plane ? `${d.reason} (${d.by})` : d.reason), { wrap: true }),
      number("Gain", (d) => (d.gain ? signed(d.gain) : dash)),
      number("Predicted", (d) => milliseconds(d.predicted_seconds)),
      number("Observed", (d) => milliseconds(d.observed_seconds)),
      text("Lengths: replicas", (d) => division(d.stages) || dash, { wrap: true }),
    ], (d) => `${d.time} ${d.epoch} ${d.decision}`, "No plan has been made yet.");
  }

  // update shows who decided where that was not this control plane, whose name is plane.
  update(model, plane) {
    this.plane = plane;
    this.table.update(model.history);
  }
}

const proxyKinds = { current: "healthy", following: "draining", late: "unhealthy", refuses: "unhealthy", unlisted: "draining", gone: "unhealthy" };

export class Proxies {
  constructor() {
    this.table = new Table(byId("proxies"), "Proxies", [
      text("Proxy", (p) => p.id, { head: true }),
      { label: "State", cell: (td, p) => mark(td, symbols[proxyKinds[p.state]] ?? "?", proxyKinds[p.state] ?? "draining", p.state, p.reason ?? "") },
      number("Plan", (p) => (p.epoch > 0 ? String(p.epoch) : dash)),
      number("Unanswered", (p) => count(p.pending)),
      number("NACKs", (p) => count(p.nacks)),
      text("Connected to", (p) => p.control_plane || "this control plane"),
    ], (p) => `${p.control_plane ?? ""} ${p.id}`, "No proxy has connected yet.");
  }

  update(view) {
    this.table.update(view.proxies);
    const parts = [`proxies are sent plan ${view.published_epoch}, the newest is ${view.epoch}`];
    if (view.phase !== "idle") parts.push(`roll-out: ${view.phase}`);
    parts.push(...view.rollout);
    if (view.observers > 0) parts.push(`${plural(view.observers, "migrator or other client follows", "migrators and other clients follow")} the plans`);
    const line = parts.join("; ");
    setText(byId("proxies-note"), `${line.charAt(0).toUpperCase()}${line.slice(1)}.`);
  }
}

export class Slots {
  constructor() {
    this.table = new Table(byId("slots"), "Policy slots", [
      text("Slot", (s) => s.slot, { head: true }),
      text("Decides", (s) => s.stable, { wrap: true }),
      text("Promoted", (s) => s.candidate ?? dash, { wrap: true }),
      number("Hosts", (s) => count(s.nodes)),
      { label: "Phases", wrap: true, cell: (td, s) => this.phases(td, s) },
    ], (s) => s.slot, "No module has been pushed: the built-in policies decide.");
  }

  phases(td, slot) {
    if (td.children.length === 0) td.append(el("details", null, el("summary"), el("ul")));
    const [summary, list] = td.firstChild.children;
    setText(summary, slot.phases.map((p) => `${count(p.hosts)} ${p.phase}`).join(", ") || "no host reports");
    const lines = slot.hosts.map((h) => `${h.host}: ${h.module}, ${h.phase}${h.problem ? `: ${h.problem}` : ""}`);
    if (slot.nodes > slot.hosts.length) lines.push(`and ${count(slot.nodes - slot.hosts.length)} more`);
    while (list.children.length > lines.length) list.lastChild.remove();
    while (list.children.length < lines.length) list.append(el("li"));
    lines.forEach((line, i) => setText(list.children[i], line));
    setClass(td, slot.refusing > 0 ? "state unhealthy" : "");
  }

  update(slots) {
    this.table.update(slots);
  }
}
