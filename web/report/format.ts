// How numbers are written. The same rules stand in `report/words/cells.py` and `report/words/amounts.py`.

import type { Column, Unit, Value } from "./data";

export const UNKNOWN = "–";

export function shown(column: Column, value: Value): string {
  if (value === null) return "";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "string" || column.kind === "id") return String(value);
  if (column.kind === "share") return (100 * value).toFixed(column.decimals);
  if (column.kind === "number") return fourDigits(value);
  if (column.kind === "bytes") return inBytes(value);
  return fixed(value / column.scale, column.decimals);
}

export function withUnit(column: Column, value: Value): string {
  const text = shown(column, value);
  return column.unit && value !== null ? `${text} ${column.unit}` : text;
}

export function label(column: Column): string {
  return column.name.replace(/(^|_)ns$/, "$1time").replaceAll("_", " ");
}

// A C++ name without its namespaces, so that what tells two kernels apart comes early.
export function brief(name: string): string {
  if (!name.includes("::")) return name;
  return name.replace(/^void /, "").replace(/\b(?:[A-Za-z_]\w*::)+/g, "");
}

export function fixed(value: number, decimals: number): string {
  return value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

export function fourDigits(value: number): string {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(3);
  const digits = value === 0 ? 3 : Math.max(0, 3 - String(Math.trunc(size)).length + (size < 1 ? 1 : 0));
  return fixed(value, digits);
}

const BYTES = [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]] as const;

export function inBytes(value: number): string {
  const found = BYTES.find(([, scale]) => Math.abs(value) >= scale);
  return found ? `${fourDigits(value / found[1])} ${found[0]}` : `${value} B`;
}

// Rounded multiples of `size` that add up to the rounded sum: the method of largest remainders.
export function apportioned(parts: number[], size: number): number[] {
  const total = Math.round(parts.reduce((sum, part) => sum + part, 0) / size);
  const floors = parts.map((part) => Math.floor(part / size));
  const byLoss = parts.map((_, i) => i).sort((a, b) => (parts[b]! % size) - (parts[a]! % size));
  const missing = total - floors.reduce((sum, floor) => sum + floor, 0);
  for (const i of byLoss.slice(0, missing)) floors[i]! += 1;
  return floors;
}

export function inUnit(ns: number, unit: Unit): string {
  return `${fixed(ns / unit.ns, unit.decimals)} ${unit.name}`;
}

// Round numbers that cover [low, high], about `count` of them.
export function ticks(low: number, high: number, count: number): number[] {
  if (!(high > low)) return [low];
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= raw)! * power;
  const made: number[] = [];
  for (let at = Math.ceil(low / step); at * step <= high * (1 + 1e-9); at++) made.push(at * step);
  return made;
}
