// The events of the control plane: one connection, and another one when it ends.

const silence = 6000; // ms without an event after which a connection counts as lost
const longest = 15000; // ms between two attempts

// Feed calls onView with each view, and onState with "connecting", "live", "paused" or "lost"; the
// latter with the time since when, the time of the next attempt and the reason.
export class Feed {
  constructor(url, onView, onState) {
    Object.assign(this, { url, onView, onState, source: null, timer: 0, attempts: 0, lastEvent: 0, since: null });
    // A page that is not seen costs the control plane nothing.
    document.addEventListener("visibilitychange", () => (document.hidden ? this.pause() : this.open()));
    setInterval(() => this.check(), 1000);
    this.open();
  }

  open() {
    clearTimeout(this.timer);
    this.close();
    if (document.hidden) return this.onState({ name: "paused" });
    this.lastEvent = Date.now();
    if (!this.since) this.onState({ name: "connecting" });
    const source = (this.source = new EventSource(this.url));
    source.addEventListener("view", (event) => {
      if (source !== this.source) return;
      this.lastEvent = Date.now();
      this.attempts = 0;
      this.since = null;
      this.onState({ name: "live" });
      this.onView(JSON.parse(event.data));
    });
    source.addEventListener("refused", (event) => {
      if (source === this.source) this.lose(JSON.parse(event.data).error);
    });
    source.onerror = () => {
      if (source === this.source) this.lose("the control plane does not answer");
    };
  }

  close() {
    this.source?.close();
    this.source = null;
  }

  pause() {
    clearTimeout(this.timer);
    this.close();
    this.onState({ name: "paused" });
  }

  check() {
    if (this.source && Date.now() - this.lastEvent > silence) this.lose("no update came for some seconds");
  }

  // lose gives a connection up and schedules the next attempt: after one second, then two, four and
  // so on, less a random part, so that many pages do not come back at once.
  lose(reason) {
    this.close();
    this.since ??= new Date();
    const wait = Math.min(longest, 1000 * 2 ** this.attempts++) * (0.7 + 0.3 * Math.random());
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.open(), wait);
    this.onState({ name: "lost", since: this.since, next: Date.now() + wait, reason });
  }
}
