// What the page carries for its interactive part; `report/html.py` and `report/first_page/heat.py` write it.

export type Kind = "time" | "bytes" | "share" | "integer" | "id" | "number" | "text" | "flag";
export type Value = number | boolean | string | null;

export interface Column {
  name: string;
  meaning: string;
  kind: Kind;
  unit: string;
  scale: number;
  decimals: number;
  values: (number | boolean | null)[];
  words?: (string | null)[];
}

export type Plot =
  | { kind: "bars"; x: string; y: string[]; stacked: boolean; summed: Summed | null }
  | { kind: "heat"; x: string; y: string; value: string }
  | { kind: "points"; x: string; y: string; log: boolean };

// Bars of names that stand on several rows, added up over the whole table: the largest of `of`.
export interface Summed {
  names: string[];
  values: (number | null)[][];
  of: number;
}

export interface Table {
  name: string;
  anchor: string;
  rows: number;
  of: number;
  columns: Column[];
  plot: Plot | null;
}

export interface Unit {
  name: string;
  ns: number;
  decimals: number;
}

export interface Heat {
  ranks: string[];
  steps: string[];
  accounts: { name: string; group: string; label: string; color: string }[];
  quantum: number;
  cells: string;
  blamed: string;
}

export interface Data {
  map: Heat | null;
  unit: Unit | null;
  tables: Table[];
}

export function value(column: Column, row: number): Value {
  const raw = column.values[row] ?? null;
  return column.words && typeof raw === "number" ? (column.words[raw] ?? null) : raw;
}

export function named(table: Table, name: string): Column | undefined {
  return table.columns.find((column) => column.name === name);
}

// The numbers of a heat map: [account, rank, step], in units of `quantum` ns.
export async function unpacked(heat: Heat): Promise<Uint32Array> {
  const bytes = Uint8Array.from(atob(heat.cells), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint32Array(await new Response(stream).arrayBuffer());
}
