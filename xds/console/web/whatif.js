// What if: the plan for other replicas, other requests or another bound, computed by the server.

import { byId, el, number, setText, Table, text } from "./dom.js";
import { count, dash, figure, milliseconds, percent, plural, range, signed } from "./format.js";
import { why } from "./stages.js";

const fields = ["replicas", "mix", "rate", "iteration_ms"];
const input = (name) => byId(`whatif-${name}`);

export class WhatIf {
  constructor() {
    this.model = null;
    this.mixes = "";
    this.table = new Table(byId("whatif-stages"), "Stages of the plan that would be made", [
      text("Stage", (s) => s.name, { head: true }),
      text("Lengths, tokens", (s) => range(s.low, s.high)),
      number("Replicas", (s) => count(s.replicas)),
      number("Requests", (s) => percent(s.request_share ?? 0)),
      number("Tokens", (s) => percent(s.token_share ?? 0)),
      number("Busy", (s) => percent(s.busy ?? 0)),
      number("Iteration", (s) => milliseconds(s.iteration_seconds)),
      text("Why", why, { wrap: true }),
    ], (s) => s.name, "");
    byId("whatif").addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask();
    });
  }

  // update fills in what is there now; fields that were edited stay.
  update(model, mixes) {
    this.model = model;
    const joined = mixes.join("\n");
    if (this.mixes !== joined || input("mix").options.length === 0) {
      this.mixes = joined;
      input("mix").replaceChildren(el("option", { value: "" }, "as now"), ...mixes.map((name) => el("option", { value: name }, `mix ${name}`)));
    }
    const serving = model.replicas.filter((r) => r.stage >= 0).length;
    input("replicas").placeholder = `${serving} now`;
    input("rate").placeholder = `${figure(model.rate)} now`;
  }

  async ask() {
    const button = byId("whatif").querySelector("button");
    if (!this.model || button.disabled) return;
    for (const name of fields) this.fieldError(name, "");
    const query = new URLSearchParams({ model: this.model.name });
    for (const name of fields) if (input(name).value.trim() !== "") query.set(name, input(name).value.trim());
    button.disabled = true;
    try {
      const response = await fetch(`/console/whatif?${query}`, { signal: AbortSignal.timeout(10000) });
      const answer = await response.json();
      if (response.ok) this.show(answer);
      else this.fail(answer);
    } catch {
      this.fail({ error: "the control plane does not answer; try again when the page is live" });
    } finally {
      button.disabled = false;
    }
  }

  fieldError(name, message) {
    setText(byId(`whatif-${name}-error`), message);
    if (message) input(name).setAttribute("aria-invalid", "true");
    else input(name).removeAttribute("aria-invalid");
  }

  // fail shows an error at its field, or in place of the answer.
  fail(answer) {
    const hasField = fields.includes(answer.field);
    byId("whatif-answer").hidden = hasField;
    if (hasField) {
      this.fieldError(answer.field, answer.error);
      input(answer.field).focus();
      return;
    }
    this.table.update([]);
    byId("whatif-stages").hidden = true;
    setText(byId("whatif-summary"), answer.error);
    byId("whatif-answer").focus();
  }

  show(answer) {
    byId("whatif-answer").hidden = false;
    byId("whatif-stages").hidden = false;
    const bound = answer.iteration_bound_seconds ? `, iterations of at most ${milliseconds(answer.iteration_bound_seconds)}` : "";
    let line = `${plural(answer.replicas, "replica")}, ${figure(answer.rate)} requests/s, ${answer.traffic}${bound}: ${plural(answer.stages.length, "stage")}. Cost: ${figure(answer.cost)} requests in the system`;
    line += answer.one_stage_cost === undefined ? "; one stage could not carry this traffic" : `; in one stage ${figure(answer.one_stage_cost)}, ${signed(answer.cost / answer.one_stage_cost - 1)}`;
    line += answer.present_cost === undefined ? "." : `. The plan in force costs ${figure(answer.present_cost)} at the present traffic.`;
    const slack = answer.slack ? ` but for up to ${percent(answer.slack)} that it gives up for fewer stages` : "";
    line += ` Policy ${answer.policy}, ${answer.exact ? `proven optimal for its model${slack}` : "not proven optimal"}; planned in ${milliseconds(answer.elapsed_seconds) === dash ? "0 ms" : milliseconds(answer.elapsed_seconds)}.`;
    setText(byId("whatif-summary"), line);
    this.table.update(answer.stages);
    byId("whatif-answer").focus();
  }
}
