// How numbers are written. The same rules stand in `report/words/cells.py` and `report/words/amounts.py`.

import { fixed, fourDigits, inBytes, unsigned } from "../shared/numbers";
import type { Column, Unit, Value } from "./data";

export function shown(column: Column, value: Value): string {
  if (value === null) return "";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "string" || column.kind === "id") return String(value);
  if (column.kind === "share") return unsigned((100 * value).toFixed(column.decimals));
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
