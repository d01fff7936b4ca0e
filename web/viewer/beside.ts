// A second run below the first, rank by rank, moved in time so that one step of both begins at the same place.

import { computed, signal } from "@preact/signals";
import type { Comparison, Run, RunEntry } from "./protocol";
import { details, picked, run, view, type Span } from "./state";

export interface Beside {
  run: Run;
  said: Comparison;
}

export const others = signal<RunEntry[]>([]); // that are served besides the one that is shown
export const beside = signal<Beside | null>(null);
export const waiting = signal(""); // what is being done until it is there

// Which steps begin together: the first of A that begins in view; where none does, the one that is seen.
export const pair = computed<number>(() => {
  const pairs = beside.value?.said.steps ?? [];
  const { from, to } = view.value;
  const first = pairs.findIndex(({ a }) => a[0] >= from && a[0] < to);
  if (first >= 0) return first;
  const before = pairs.findLastIndex(({ a }) => a[0] < from);
  return Math.max(0, before);
});

// What is added to a time of B to have its place on A's clock.
export const moved = computed<number>(() => {
  const other = beside.value;
  const both = other?.said.steps[pair.value];
  if (!other) return 0;
  return both ? both.a[0] - both.b[0] : (run.value?.zero ?? 0) - other.run.zero;
});

// The run that is shown or the one below it, and what is added to its times to have their place on the first one's clock.
export function whose(other: boolean): { run: Run; by: number } | null {
  const found = other ? beside.value?.run : run.value;
  return found ? { run: found, by: other ? moved.value : 0 } : null;
}

// Where the chosen event is drawn.
export const chosen = computed<Span | null>(() => {
  const event = details.value;
  const of = whose(picked.value?.other ?? false);
  return event && of && { from: event.start + of.by, to: Math.max(event.end, event.start + 1) + of.by };
});
