// The form by which an operator gives orders to the control plane; it is shown if a token is configured.

import { byId, el, setText } from "./dom.js";

const plan = (epoch) => `plan ${epoch}`;

// drainedByOperator says whether an operator drains a replica. The fleet file and the end of its migrator
// drain one, too, and no order undoes that.
const drainedByOperator = (replica) => replica.drain?.includes("operator") ?? false;

// kinds are the kinds of orders. objects returns what an order may be about, as pairs of value and text,
// parameters those of the request, and effect what will happen.
const kinds = [
  {
    name: "drain", text: "Drain a replica", label: "Replica",
    objects: (m) => m.replicas.filter((r) => !drainedByOperator(r)).map((r) => [r.id, r.id]),
    parameters: (m, object) => ({ replica: object }),
    effect: (m, object) => `${object} gets no new requests, and its streams migrate. Undrain takes that back.`,
  },
  {
    name: "undrain", text: "Undrain a replica", label: "Replica",
    objects: (m) => m.replicas.filter(drainedByOperator).map((r) => [r.id, r.id]),
    parameters: (m, object) => ({ replica: object }),
    effect: (m, object) => `${object} takes requests again, and joins a stage.`,
  },
  {
    name: "plan/pin", text: "Pin the plan", label: "Plan",
    objects: (m) => [...new Set([m.epoch, ...m.former])].filter((e) => e > 0).sort((a, b) => b - a).map((e) => [String(e), plan(e)]),
    parameters: (m, object) => ({ model: m.name, epoch: object }),
    effect: (m, object) => `${m.name} keeps ${plan(object)}, whatever the planner proposes, until it is unpinned.`,
  },
  {
    name: "plan/unpin", text: "Unpin the plan", label: "Plan",
    objects: (m) => (m.pinned ? [[m.pinned, m.pinned]] : []),
    parameters: (m) => ({ model: m.name }),
    effect: (m) => `The planner may change the plan of ${m.name} again.`,
  },
  {
    name: "plan/rollback", text: "Roll the plan back", label: "Plan",
    objects: (m) => m.former.filter((e) => e < m.epoch).sort((a, b) => b - a).map((e) => [String(e), plan(e)]),
    parameters: (m, object) => ({ model: m.name, epoch: object }),
    effect: (m, object) => `The stages of ${m.name} become those of ${plan(object)}. The planner may change them again.`,
  },
];

export class Orders {
  constructor() {
    this.model = null;
    this.listed = "";
    byId("order-kind").append(...kinds.map((k) => el("option", { value: k.name }, k.text)));
    byId("order-kind").addEventListener("change", () => this.list());
    byId("order-object").addEventListener("change", () => this.explain());
    byId("order").addEventListener("submit", (event) => {
      event.preventDefault();
      this.give();
    });
  }

  update(model, offered) {
    byId("orders").hidden = !offered;
    byId("reads").hidden = offered;
    this.model = model;
    if (offered) this.list();
  }

  kind() {
    return kinds.find((k) => k.name === byId("order-kind").value);
  }

  // list fills the menu of objects of the chosen order. The chosen object stays if it is still offered; else
  // none is chosen, so that no click is about an object that the operator has not chosen.
  list() {
    const kind = this.kind();
    const objects = kind.objects(this.model);
    const listed = JSON.stringify([this.model.name, kind.name, objects]);
    if (listed !== this.listed) {
      this.listed = listed;
      const select = byId("order-object");
      const was = select.value;
      select.replaceChildren(el("option", { value: "" }, objects.length > 0 ? "choose" : "none"), ...objects.map(([value, name]) => el("option", { value }, name)));
      select.value = objects.some(([value]) => value === was) ? was : "";
      select.disabled = objects.length === 0;
      setText(byId("order-object-label"), kind.label);
    }
    this.explain();
  }

  explain() {
    const object = byId("order-object").value;
    setText(byId("order-effect"), object ? this.kind().effect(this.model, object) : "Choose what the order is about.");
    byId("order").querySelector("button").disabled = !object || this.giving === true;
  }

  async give() {
    const kind = this.kind();
    const object = byId("order-object").value;
    if (!object || this.giving) return;
    this.error("token", "");
    this.error("object", "");
    this.giving = true;
    this.explain();
    try {
      const query = new URLSearchParams({ ...kind.parameters(this.model, object), by: "console" });
      const response = await fetch(`/console/orders/${kind.name}?${query}`, {
        method: "POST", headers: { "Content-Type": "application/json", "X-Cascade-Console-Token": byId("order-token").value }, signal: AbortSignal.timeout(15000),
      });
      const answer = await response.json();
      if (response.ok) this.answer(`Done: ${kind.text.toLowerCase()}, ${object}.`);
      else if (answer.field === "token") this.error("token", answer.error);
      else this.error("object", answer.error);
    } catch {
      this.answer("The control plane does not answer as it should. The tables above show whether the order was carried out.");
    } finally {
      this.giving = false;
      this.explain();
    }
  }

  error(field, message) {
    const input = byId(`order-${field}`);
    setText(byId(`order-${field}-error`), message);
    if (message) {
      byId("order-answer").hidden = true;
      input.setAttribute("aria-invalid", "true");
      input.focus();
    } else input.removeAttribute("aria-invalid");
  }

  answer(message) {
    byId("order-answer").hidden = false;
    setText(byId("order-answer"), message);
    byId("order-answer").focus();
  }
}
