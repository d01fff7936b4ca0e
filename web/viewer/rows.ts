// Which rows there are, in which order, and how high: a thousand ranks are a thousand short rows.

import { computed, signal } from "@preact/signals";
import { beside } from "./beside";
import type { Run } from "./protocol";
import { closed, grouping, height, opened, pinned, run, scroll, sorting } from "./state";

export type Kind = "group" | "rank" | "track" | "counter";

export interface Row {
  id: string;
  kind: Kind;
  title: string;
  rank: number; // index of its rank in the run that is shown; -1 for a group
  other: boolean; // whether it is of the run that is drawn below: its lanes are that run's
  top: number;
  height: number;
  lanes: number[];
  counter: number; // index, or -1
  depth: number;
}

export const sortValues = signal<(number | null)[] | null>(null);
export const plot = signal({ width: 0, height: 0 }); // room for rows, pixels

const GROUP = 20;
const LANE = 17;
const COUNTER = 38;
const HIGHEST = 26;
const GAP = 2;
export const LEGIBLE = 11; // a row that is higher holds a line of text

// Height of a rank's row: all ranks are seen at once where that is possible.
export const rankHeight = computed(() => {
  const count = run.value?.ranks.rank.length ?? 1;
  if (height.value) return height.value;
  return Math.min(Math.max(Math.floor((plot.value.height - 8) / (beside.value ? 2 * count : count)), 1), HIGHEST);
});

export function order(known: Run, values: (number | null)[] | null): number[] {
  const ranks = known.ranks.rank.map((_, index) => index);
  if (!values) return ranks;
  return ranks.sort((a, b) => (values[b] ?? -Infinity) - (values[a] ?? -Infinity) || a - b);
}

function grouped(known: Run, ranks: number[], key: string): { name: string; ranks: number[] }[] {
  const way = known.groupings.find((one) => one.key === key);
  if (!way) return [{ name: "", ranks }];
  const made = new Map<number, number[]>();
  for (const rank of ranks) {
    const of = way.of[rank] ?? -1;
    if (!made.has(of)) made.set(of, []);
    made.get(of)!.push(rank);
  }
  const name = (of: number) => way.names[of] ?? `no ${way.title}`;
  return [...made].sort(([a], [b]) => a - b).map(([of, ranks]) => ({ name: name(of), ranks }));
}

export function rankTitle(known: Run, index: number): string {
  const host = known.ranks.host[index];
  const several = new Set(known.ranks.host).size > 1;
  return `rank ${known.ranks.rank[index]}${several && host !== null && host !== undefined ? ` · node ${host}` : ""}`;
}

// Of each rank its tracks, but what it does as a whole, and its counters.
function byRank(known: Run | null | undefined, ranks: (known: Run) => number[], counts: (known: Run, one: number) => boolean): number[][] {
  const made: number[][] = [];
  if (!known) return made;
  const index = new Map(known.ranks.rank.map((rank, i) => [rank, i]));
  ranks(known).forEach((rank, one) => {
    const at = index.get(rank);
    if (at !== undefined && counts(known, one)) (made[at] ??= []).push(one);
  });
  return made;
}

const ofTracks = (known: Run | null | undefined) =>
  byRank(known, ({ tracks }) => tracks.rank, ({ tracks }, track) => tracks.kind[track] !== "state");
const tracksOf = computed(() => ofTracks(run.value));
const tracksBelow = computed(() => ofTracks(beside.value?.run));
const countersOf = computed(() => byRank(run.value, ({ counters }) => counters.rank, () => true));

// The rows of one rank, without places. `own` is the rank's index in the run whose rows they are.
function rowsOf(known: Run, rank: number, tall: number, isOpen: boolean, below?: { run: Run; own: number }): Row[] {
  const { run: whose, own } = below ?? { run: known, own: rank };
  const [ofRank, ofTrack] = below ? ["b", "u"] : ["r", "t"];
  const row = (id: string, kind: Kind, title: string, high: number, lanes: number[], counter = -1): Row => ({
    id, kind, title, rank, other: !!below, top: 0, height: high, lanes, counter, depth: kind === "rank" && !below ? 0 : 1,
  });
  const title = beside.value ? `${below ? "B" : "A"} ${rankTitle(whose, own)}` : rankTitle(whose, own);
  const made = [row(`${ofRank}${own}`, "rank", title, isOpen ? Math.max(tall, 18) : tall, [own])];
  if (!isOpen) return made;
  for (const track of (below ? tracksBelow : tracksOf).value[own] ?? []) {
    const first = whose.tracks.first_lane[track]!;
    const lanes = Array.from({ length: whose.tracks.num_lanes[track]! }, (_, i) => first + i);
    made.push(row(`${ofTrack}${track}`, "track", whose.tracks.title[track]!, lanes.length * LANE + GAP, lanes));
  }
  for (const counter of below ? [] : countersOf.value[own] ?? []) {
    made.push(row(`c${counter}`, "counter", known.counters.title[counter]!, COUNTER, [], counter));
  }
  return made;
}

// The same rank of the run that is drawn below.
function belowOf(known: Run, rank: number): { run: Run; own: number } | undefined {
  const other = beside.value?.run;
  const own = other?.ranks.rank.indexOf(known.ranks.rank[rank]!) ?? -1;
  return other && own >= 0 ? { run: other, own } : undefined;
}

export const rows = computed<Row[]>(() => {
  const known = run.value;
  if (!known) return [];
  const made: Row[] = [];
  const tall = rankHeight.value;
  const dense = tall < LEGIBLE;
  let top = 0;
  const put = (row: Row) => {
    row.top = top;
    top += row.height + (row.kind === "rank" && !dense ? GAP : 0);
    made.push(row);
  };
  const values = sorting.value ? sortValues.value : null;
  for (const group of grouped(known, order(known, values), grouping.value)) {
    if (group.name) {
      const count = `${group.ranks.length} rank${group.ranks.length === 1 ? "" : "s"}`;
      const id = `g${group.name}`.replaceAll(",", " ");
      put({ id, kind: "group", title: `${group.name} · ${count}`, rank: -1, other: false, top: 0, height: dense ? 13 : GROUP, lanes: [], counter: -1, depth: 0 });
      if (closed.value.has(id)) continue;
    }
    for (const rank of group.ranks) {
      const isOpen = opened.value.has(rank);
      rowsOf(known, rank, tall, isOpen).forEach(put);
      const below = belowOf(known, rank);
      if (below) rowsOf(known, rank, tall, isOpen, below).forEach(put);
    }
  }
  return made;
});

export const byId = computed(() => new Map(rows.value.map((row) => [row.id, row])));

// Rows that stay on top, whether or not their rank is open.
export const pinnedRows = computed<Row[]>(() => {
  const known = run.value;
  if (!known) return [];
  const made: Row[] = [];
  let top = 0;
  for (const id of pinned.value) {
    const rank = rankOf(known, id);
    const found = rank < 0 ? undefined : rowsOf(known, rank, Math.max(rankHeight.value, 18), true).find((row) => row.id === id);
    if (!found) continue;
    made.push({ ...found, title: found.kind === "rank" ? found.title : `${rankTitle(known, rank)} · ${found.title}`, top });
    top += found.height + GAP;
  }
  return made;
});

export function rankOf(known: Run, id: string): number {
  const number = Number(id.slice(1));
  if (id[0] === "r") return number < known.ranks.rank.length ? number : -1;
  const rank = id[0] === "t" ? known.tracks.rank[number] : id[0] === "c" ? known.counters.rank[number] : undefined;
  return rank === undefined ? -1 : known.ranks.rank.indexOf(rank);
}

export const pinnedHeight = computed(() => {
  const last = pinnedRows.value.at(-1);
  return last ? last.top + last.height + 6 : 0;
});

export const total = computed(() => {
  const last = rows.value.at(-1);
  return last ? last.top + last.height : 0;
});

export const furthest = computed(() => Math.max(0, total.value - (plot.value.height - pinnedHeight.value) + 4));

export function scrollTo(y: number): void {
  scroll.value = Math.min(Math.max(0, y), furthest.value);
}

export function reveal(id: string): void {
  const row = byId.value.get(id);
  if (!row) return;
  const room = plot.value.height - pinnedHeight.value;
  if (row.top < scroll.value) scrollTo(row.top - 24);
  else if (row.top + row.height > scroll.value + room) scrollTo(row.top + Math.min(row.height, room - 24) - room + 24);
}

// The first of `sorted` rows that ends below `y`.
export function firstBelow(sorted: Row[], y: number): number {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle]!.top + sorted[middle]!.height <= y) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The row of a lane, and which rank of the run that is shown it belongs to: -1 where that has no such rank.
export function rowOfLane(known: Run, lane: number, below?: Run): { id: string; rank: number } {
  const of = below ?? known;
  const track = of.lanes.track[lane] ?? 0;
  const rank = known.ranks.rank.indexOf(of.tracks.rank[track]!);
  if (lane < of.ranks.rank.length) return { id: `${below ? "b" : "r"}${lane}`, rank };
  return { id: `${below ? "u" : "t"}${track}`, rank };
}

// All lanes that a row stands for: those of its rank where it is folded.
export function lanesOf(known: Run, row: Row): number[] {
  if (row.other) return [];
  if (row.kind !== "rank" || opened.value.has(row.rank)) return row.lanes;
  const tracks = tracksOf.value[row.rank] ?? [];
  return [...row.lanes, ...tracks.flatMap((track) => {
    const first = known.tracks.first_lane[track]!;
    return Array.from({ length: known.tracks.num_lanes[track]! }, (_, i) => first + i);
  })];
}
