// The verdict: is the fleet well, and if not, what does not work, what it means and what to do.

import { byId, el, setClass, setText } from "./dom.js";
import { clock, count, duration, plural } from "./format.js";

const marks = { ok: "✓", faults: "!", not_ready: "✕", starting: "…", lost: "?" };

export const ready = (replica) => replica.health === "healthy";

// headline says the verdict in a few words.
function headline(view) {
  switch (view.state) {
    case "ok":
      return "The fleet is well";
    case "not_ready":
      return "Requests or orders fail";
    case "starting":
      return "The control plane is starting";
  }
  return view.faults.length === 1 ? "One thing does not work" : `${count(view.faults.length)} things do not work`;
}

function detail(view) {
  const replicas = view.models.flatMap((m) => m.replicas);
  const proxies = view.proxies.filter((p) => p.state !== "gone");
  const current = proxies.filter((p) => p.state === "current").length;
  let text = `${count(replicas.filter(ready).length)} of ${plural(replicas.length, "replica")} take requests. `;
  if (proxies.length === 0) text += "No proxy is connected.";
  else text += `${count(current)} of ${plural(proxies.length, "proxy", "proxies")} ${current === 1 ? "has" : "have"} the newest plan, ${view.epoch}.`;
  return view.leadership ? `${text} ${view.leadership.charAt(0).toUpperCase()}${view.leadership.slice(1)}.` : text;
}

export class Verdict {
  constructor() {
    this.items = new Map();
    this.view = null;
    this.lost = null;
  }

  update(view) {
    this.view = view;
    this.render();
  }

  // connection is called with every state of the feed.
  connection(state) {
    this.lost = state.name === "lost" ? state : null;
    this.paused = state.name === "paused";
    this.render();
    this.tick();
  }

  render() {
    const state = this.lost ? "lost" : this.view?.state ?? "starting";
    setClass(byId("verdict"), `verdict ${state}`);
    setText(byId("mark"), marks[state]);
    document.body.classList.toggle("stale", Boolean(this.lost));
    if (this.lost) {
      setText(byId("headline"), `Disconnected since ${clock(this.lost.since)}`);
    } else if (this.view) {
      setText(byId("headline"), headline(this.view));
      setText(byId("detail"), detail(this.view));
    }
    const title = this.lost ? "disconnected" : this.view ? headline(this.view) : "connecting";
    document.title = `${title} – Cascade`;
    this.faults(this.view?.faults ?? []);
  }

  // tick updates what depends on the time alone.
  tick() {
    if (this.lost) {
      const left = Math.max(0, Math.ceil((this.lost.next - Date.now()) / 1000));
      setText(byId("detail"), `${this.lost.reason.charAt(0).toUpperCase()}${this.lost.reason.slice(1)}. What is below was known then. The next attempt is in ${left} s.`);
      setText(byId("connection"), "Disconnected");
    } else if (this.paused) {
      setText(byId("connection"), "Paused while hidden");
    } else if (this.view) {
      setText(byId("connection"), `Live, as of ${clock(new Date(this.view.time))}`);
    }
    setClass(byId("connection"), this.lost ? "connection lost" : "connection");
  }

  faults(list) {
    const seen = new Set();
    let before = null; // the item that the next one follows
    for (const fault of list) {
      let key = `${fault.kind}\n${fault.object}`;
      while (seen.has(key)) key += "\n";
      seen.add(key);
      let item = this.items.get(key);
      if (!item) {
        item = this.item(fault);
        this.items.set(key, item);
      }
      setText(item.text, fault.text);
      setText(item.since, fault.seconds > 0 ? `for ${duration(fault.seconds)}` : "");
      setClass(item.node, fault.not_ready ? "fault serious" : "fault");
      // A node that is where it belongs stays: moving it would take the focus from its button.
      const next = before ? before.nextSibling : byId("faults").firstChild;
      if (next !== item.node) byId("faults").insertBefore(item.node, next);
      before = item.node;
    }
    for (const [key, item] of this.items) {
      if (!seen.has(key)) {
        item.node.remove();
        this.items.delete(key);
      }
    }
    byId("faults").hidden = list.length === 0;
  }

  item(fault) {
    const text = el("p", { class: "said" });
    const since = el("span", { class: "since" });
    const node = el("li", null, el("h3", null, fault.title, " ", el("span", { class: "object" }, fault.object), " ", since), text,
      el("p", { class: "means" }, fault.meaning, " ", el("strong", null, fault.action)));
    if (fault.command) node.append(command(fault.command));
    return { node, text, since };
  }
}

// command shows a command with a button that copies it.
function command(line) {
  const button = el("button", { type: "button", "aria-label": `Copy the command ${line}` }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(line);
      setText(button, "Copied");
    } catch {
      setText(button, "Not copied"); // the browser does not permit it
    }
    setTimeout(() => setText(button, "Copy"), 2000);
  });
  return el("p", { class: "command" }, el("code", null, line), " ", button);
}
