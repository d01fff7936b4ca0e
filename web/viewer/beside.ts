// A second run below the first, rank by rank, moved in time so that one step of both begins at the same place.

import { computed, signal } from "@preact/signals";
import type { Comparison, Run, RunEntry } from "./protocol";
import { run, view } from "./state";

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
