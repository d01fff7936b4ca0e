// What the server says, as `docs/viewer-protocol.md` has it: types of its JSON, and readers of its binary answers.

export interface Category {
  key: string;
  name: string;
  meaning: string;
}

export interface Run {
  id: string;
  title: string;
  hash: string;
  zero: number;
  end: number;
  num_events: number;
  busy_ns: number;
  warnings: string[];
  levels: { finest: number; base: number; coarsest: number; base_width: number; factor: number; buckets: number };
  categories: Category[];
  ranks: {
    rank: number[];
    host: (number | null)[];
    device: (number | null)[];
    gpu: (string | null)[];
    stage: (number | null)[];
    start: number[];
    end: number[];
    clock_error_ns: (number | null)[];
  };
  groupings: { key: string; title: string; of: (number | null)[]; names: string[] }[];
  tracks: {
    rank: number[];
    kind: string[];
    title: string[];
    first_lane: number[];
    num_lanes: number[];
    group: (string | null)[];
  };
  lanes: { track: number[]; num_events: number[]; busy_ns: number[]; categories: number[][]; totals_ns: number[][] };
  steps: { rank: number[]; step: number[]; start: number[]; end: number[]; counts: boolean[] };
  counters: {
    rank: number[];
    title: string[];
    metric: string[];
    unit: string[];
    min: number[];
    max: number[];
    num_samples: number[];
  };
  sortings: { key: string; title: string; unit: string }[];
}

export interface Building {
  building: { done: number; what: string };
}

export interface RunEntry {
  id: string;
  title: string;
  ranks: number;
  steps: number;
  duration_ns: number;
  num_events: number;
  error: string | null;
}

export interface Place {
  lane: number;
  row: number;
}

// An event that is chosen, of the run that is shown or of the one below it.
export interface Picked extends Place {
  other: boolean;
}

export interface EventDetails extends Place {
  rank: number;
  track: number;
  title: string;
  name: string;
  start: number;
  end: number;
  category: number;
  fields: { name: string; value: string; meaning: string }[];
  around: (Place & { name: string })[];
  previous: number | null;
  next: number | null;
  explain: { recipe: string; question: string }[];
  account: string | null;
}

export interface Arrow {
  kind: string;
  from: Place & { time: number };
  to: Place & { time: number };
}

export interface Ledger {
  ranks: number;
  ns: number;
  accounts: { key: string; name: string; ns: number }[];
}

export interface Range {
  from: number;
  to: number;
  lanes: { lane: number; busy_ns: number; num_events: number; categories: [number, number][] }[];
  ledger: Ledger;
  names: { name: string; category: number; num_events: number; ns: number }[];
  names_shown: number;
  names_total: number;
}

export interface Hit extends Place {
  start: number;
  end: number;
  name: string;
  rank: number;
}

export interface Hits {
  total: number;
  names_total: number;
  shown: number;
  hits: Hit[];
  next: number | null;
}

export interface Window {
  rank: number;
  start: number;
  end: number;
  lane: number | null;
  text: string;
}

export interface Finding {
  name: string;
  claim: string;
  cost_ns: number;
  gain: string;
  gain_ns: number;
  evidence: string[];
  next: string;
  doubt: string;
  rank: number | null;
  recipe: string;
  accounts: string[];
  windows: Window[];
}

export interface Collective {
  instance: number;
  kind: string;
  group: string | null;
  bytes: number | null;
  start: number;
  end: number;
  last_rank: number;
  parts: (Place & { rank: number; arrival: number; start: number; end: number; wait_ns: number })[];
}

export interface Comparison {
  steps: { step_a: number; step_b: number; a: [number, number]; b: [number, number] }[];
  rank_a: number;
  rank_b: number;
  notes: string[];
}

// Shares of time of some lanes over `buckets` buckets.
export interface Tile {
  level: number;
  index: number;
  buckets: number;
  bytes: number;
  lanes: Map<number, Planes>;
}

export interface Planes {
  categories: number[];
  shares: Uint8Array; // [plane][bucket]
}

export interface Events {
  shown: number;
  total: number;
  names: Map<number, string>;
  lanes: Map<number, { from: number; to: number; total: number }>;
  start: Float64Array; // after the run's zero
  duration: Float64Array;
  row: Uint32Array;
  name: Uint32Array;
  category: Uint16Array;
}

export interface CounterTile {
  level: number;
  index: number;
  counters: Map<number, { min: Float32Array; mean: Float32Array; max: Float32Array }>;
}

function magic(view: DataView, expected: string): void {
  const found = [0, 1, 2, 3].map((i) => String.fromCharCode(view.getUint8(i))).join("");
  if (found !== expected) throw new Error(`This is not ${expected}: reload the page, the server is of another version.`);
}

export function tile(buffer: ArrayBuffer): Tile {
  const view = new DataView(buffer);
  magic(view, "LFT1");
  const planes = view.getUint32(4, true);
  const buckets = view.getUint32(8, true);
  const lanes = new Map<number, Planes>();
  const first = 32 + planes * 8;
  for (let plane = 0; plane < planes; ) {
    const lane = view.getUint32(32 + plane * 8, true);
    const categories: number[] = [];
    const from = plane;
    while (plane < planes && view.getUint32(32 + plane * 8, true) === lane) {
      categories.push(view.getUint16(36 + plane * 8, true));
      plane++;
    }
    lanes.set(lane, { categories, shares: new Uint8Array(buffer, first + from * buckets, (plane - from) * buckets) });
  }
  return { level: view.getInt32(12, true), index: view.getUint32(16, true), buckets, bytes: buffer.byteLength, lanes };
}

interface EventsHead {
  count: number;
  shown: number;
  total: number;
  lanes: { lane: number; first: number; shown: number; total: number }[];
  names: Record<string, string>;
}

export function events(buffer: ArrayBuffer): Events {
  const view = new DataView(buffer);
  magic(view, "LFE1");
  const length = view.getUint32(4, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length))) as EventsHead;
  const n = head.count;
  let at = 8 + length;
  const start = new Float64Array(buffer, at, n);
  const duration = new Float64Array(buffer, (at += 8 * n), n);
  const row = new Uint32Array(buffer, (at += 8 * n), n);
  const name = new Uint32Array(buffer, (at += 4 * n), n);
  const category = new Uint16Array(buffer, (at += 4 * n), n);
  return {
    shown: head.shown,
    total: head.total,
    names: new Map(Object.entries(head.names).map(([id, text]) => [Number(id), text])),
    lanes: new Map(head.lanes.map((one) => [one.lane, { from: one.first, to: one.first + one.shown, total: one.total }])),
    start,
    duration,
    row,
    name,
    category,
  };
}

export function counterTile(buffer: ArrayBuffer): CounterTile {
  const view = new DataView(buffer);
  magic(view, "LFC1");
  const count = view.getUint32(4, true);
  const buckets = view.getUint32(8, true);
  const counters: CounterTile["counters"] = new Map();
  let at = 32 + 4 * count;
  for (let i = 0; i < count; i++) {
    const part = () => new Float32Array(buffer, (at += 4 * buckets) - 4 * buckets, buckets);
    counters.set(view.getUint32(32 + 4 * i, true), { min: part(), mean: part(), max: part() });
  }
  return { level: view.getInt32(12, true), index: view.getUint32(16, true), counters };
}

// 0, 1, 2, 7 as the server reads them: "0-2,7".
export function laneList(lanes: Iterable<number>): string {
  const sorted = [...new Set(lanes)].sort((a, b) => a - b);
  const parts: string[] = [];
  for (let i = 0; i < sorted.length; ) {
    let j = i;
    while (j + 1 < sorted.length && sorted[j + 1] === sorted[j]! + 1) j++;
    parts.push(i === j ? `${sorted[i]}` : `${sorted[i]}-${sorted[j]}`);
    i = j + 1;
  }
  return parts.join(",");
}
