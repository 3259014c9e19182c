// Numbers with their units.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const three = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

export const dash = "–";

export const count = (n) => whole.format(n);

// figure has three digits, and all digits of what is above 100.
export const figure = (x) => (x >= 100 ? whole.format(x) : three.format(x));

export function percent(share) {
  const p = 100 * share;
  return `${Math.abs(p) < 9.95 ? p.toFixed(1) : whole.format(p)} %`;
}

// signed is a percentage with its sign.
export const signed = (share) => (share > 0 ? "+" : share < 0 ? "−" : "") + percent(Math.abs(share));

// tokens is a number of tokens.
export const tokens = (n) => whole.format(n);

// range is [low, high) of a stage, as all commands show it; no high is no end.
export const range = (low, high) => `${tokens(low)}–${high === undefined ? "∞" : tokens(high)}`;

export function seconds(s) {
  if (!(s > 0)) return dash;
  if (s < 1) return `${three.format(s * 1e3)} ms`;
  if (s < 120) return `${three.format(s)} s`;
  return duration(s);
}

// milliseconds is a time that is compared with others in a column.
export const milliseconds = (s) => (s > 0 ? `${(s * 1e3).toFixed(s < 0.1 ? 1 : 0)} ms` : dash);

// duration is a length of time in two units.
export function duration(s) {
  s = Math.round(s);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export function bytes(n) {
  if (!(n > 0)) return dash;
  if (n < 2 ** 20) return `${three.format(n / 2 ** 10)} KiB`;
  if (n < 2 ** 30) return `${three.format(n / 2 ** 20)} MiB`;
  return `${three.format(n / 2 ** 30)} GiB`;
}

export const plural = (n, one, many) => `${whole.format(n)} ${n === 1 ? one : many ?? `${one}s`}`;

// clock is a time of day, with the day if it is another one.
export function clock(date, now = new Date()) {
  const time = date.toLocaleTimeString("en-GB");
  return date.toDateString() === now.toDateString() ? time : `${date.toLocaleDateString("en-CA")} ${time}`;
}
