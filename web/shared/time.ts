// How times are written, and where a ruler has its marks.

import { fixed } from "./numbers";

const UNITS = [["s", 1e9], ["ms", 1e6], ["µs", 1e3], ["ns", 1]] as const;

// Three digits or more: 412.6 ms, 1.204 s, 87 ns.
export function time(ns: number): string {
  const size = Math.abs(ns);
  const [name, scale] = UNITS.find(([, unit]) => size >= unit) ?? UNITS[3];
  if (scale === 1) return `${fixed(ns, 0)} ns`;
  const value = ns / scale;
  return `${fixed(value, Math.abs(value) >= 100 ? 1 : Math.abs(value) >= 10 ? 2 : 3)} ${name}`;
}

// Three digits, as the page's sentences write times: 413 ms, 1.20 s, 87 ns.
export function brieflyTimed(ns: number): string {
  const size = Math.abs(ns);
  const [name, scale] = UNITS.find(([, unit]) => size >= 0.9995 * unit) ?? UNITS[3];
  if (scale === 1) return `${fixed(ns, 0)} ns`;
  const value = ns / scale;
  return `${fixed(value, Math.abs(value) >= 99.95 ? 0 : Math.abs(value) >= 9.995 ? 1 : 2)} ${name}`;
}

export function exact(ns: number): string {
  return `${fixed(Math.round(ns), 0)} ns`;
}

// For a reader, and for who compares digits: 54.58 ms (54,583,857 ns).
export function both(ns: number): string {
  return Math.abs(ns) < 1e3 ? exact(ns) : `${time(ns)} (${exact(ns)})`;
}

// Marks of a ruler over [from, to) at most `apart` ns from each other, with as many digits as tell them apart.
export function ruler(from: number, to: number, count: number): { at: number; text: string }[] {
  const raw = (to - from) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = Math.max(1, [1, 2, 5, 10].find((factor) => factor * power >= raw)! * power);
  const [name, scale] = UNITS.find(([, unit]) => Math.max(Math.abs(from), Math.abs(to)) >= unit) ?? UNITS[3];
  const decimals = Math.max(0, Math.ceil(Math.log10(scale / step) - 1e-9));
  const made: { at: number; text: string }[] = [];
  for (let i = Math.ceil(from / step); i * step < to; i++) {
    made.push({ at: i * step, text: `${fixed((i * step) / scale, decimals)} ${name}` });
  }
  return made;
}
