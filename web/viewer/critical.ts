// The critical path over the rows: what the end of the last step waited for, and that for in turn.

import { effect, signal } from "@preact/signals";
import { failed } from "./evidence";
import { rowOfLane } from "./rows";
import { api, json } from "./source";
import { pathShown, run, said, view } from "./state";

interface Answer {
  lane: number[];
  start: number[];
  end: number[];
  shown: number;
  total: number;
  why_not: string;
  doubts: string[];
}

export interface CriticalPath extends Answer {
  from: number; // what was asked for
  to: number;
}

export const critical = signal<CriticalPath | null>(null);
export const adding = signal(false); // whether the run is being replayed for it
const MOST = 20_000;

export function toggle(): void {
  pathShown.value = !pathShown.value;
  if (!pathShown.value) said.value = "The critical path is no longer drawn";
}

export function watchPath(id: string): void {
  let asked = 0;
  let timer = 0;
  effect(() => {
    const { from, to } = view.value;
    clearTimeout(timer);
    if (!pathShown.value) return void (critical.value = null);
    const has = critical.peek();
    if (has && (has.why_not || (has.from <= from && has.to >= to && (has.shown === has.total || has.to - has.from <= 8 * (to - from))))) return;
    const mine = ++asked;
    timer = window.setTimeout(() => void ask(id, from, to, () => mine === asked), has ? 120 : 0);
  });
}

async function ask(id: string, from: number, to: number, isLatest: () => boolean): Promise<void> {
  const room = to - from;
  const wide = { from: Math.floor(from - room), to: Math.ceil(to + room) };
  const { zero, end } = run.value!;
  adding.value = !critical.peek();
  try {
    const url = `/critical?from=${Math.max(zero, wide.from)}&to=${Math.min(end, wide.to)}&limit=${MOST}`;
    const got = await json<Answer>(api(id, url));
    if (!isLatest() || !pathShown.value) return;
    critical.value = { ...got, from: wide.from <= zero ? -Infinity : wide.from, to: wide.to >= end ? Infinity : wide.to };
    if (got.why_not) said.value = got.why_not;
  } catch (error) {
    pathShown.value = false;
    failed(error);
  } finally {
    adding.value = false;
  }
}

// How the part of it that is in view is spread over ranks: the one with most first.
export function byRank(): { rank: number; share: number }[] {
  const found = critical.value;
  const known = run.value;
  if (!found || !known) return [];
  const { from, to } = view.value;
  const sums = new Map<number, number>();
  let whole = 0;
  found.lane.forEach((lane, i) => {
    const ns = Math.min(found.end[i]!, to) - Math.max(found.start[i]!, from);
    if (ns <= 0) return;
    const { rank } = rowOfLane(known, lane);
    sums.set(rank, (sums.get(rank) ?? 0) + ns);
    whole += ns;
  });
  return [...sums].sort(([, a], [, b]) => b - a).map(([rank, ns]) => ({ rank: known.ranks.rank[rank]!, share: ns / whole }));
}
