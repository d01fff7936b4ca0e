// Opens the run that is drawn below, and adds up what the steps that begin together hold.

import { effect, signal } from "@preact/signals";
import { beside, others, pair, waiting } from "./beside";
import { failed } from "./evidence";
import type { Comparison, Ledger, Range, RunEntry } from "./protocol";
import { api, json, opened } from "./source";
import { compared, pick, picked, run, said, tab } from "./state";

export interface Ledgers {
  step: number;
  a: Ledger;
  b: Ledger;
}

export const ledgers = signal<Ledgers | null>(null); // of the steps that begin together, each over its own length

export function watchBeside(id: string): void {
  void json<{ runs: RunEntry[] }>("/api/runs").then(({ runs }) => (others.value = runs.filter((one) => one.id !== id)), () => undefined);
  let linked = tab.peek() !== "findings"; // the address says what the panel shows
  effect(() => {
    const wanted = compared.value;
    if (wanted === (beside.peek()?.run.id ?? "")) return;
    if (!wanted && picked.peek()?.other) pick(null);
    beside.value = null;
    ledgers.value = null;
    waiting.value = wanted ? "Opening the other run…" : "";
    if (wanted) void load(id, wanted, linked);
    linked = false;
  });
  effect(() => {
    const both = beside.value?.said.steps[pair.value];
    if (!both) return void (ledgers.value = null);
    void sums(id, pair.value, both);
  });
}

async function load(id: string, wanted: string, stays: boolean): Promise<void> {
  try {
    const other = await opened(wanted, (at) => (waiting.value = `Adding up the other run: ${at.what}`));
    const found = await json<Comparison>(`/api/compare?a=${id}&b=${wanted}`);
    if (compared.value !== wanted) return;
    beside.value = { run: other, said: found };
    said.value = `${other.title} is drawn below, as B`;
    if (!stays) tab.value = "compare";
  } catch (error) {
    if (compared.value === wanted) compared.value = "";
    failed(error);
  } finally {
    waiting.value = "";
  }
}

async function sums(id: string, step: number, both: Comparison["steps"][number]): Promise<void> {
  const other = beside.value!.run;
  const known = run.value!;
  const ask = (whose: string, [from, to]: [number, number], ranks: number) =>
    json<Range>(api(whose, `/range?from=${from}&to=${to}&lanes=0-${ranks - 1}`));
  const found = await Promise.all([
    ask(id, both.a, known.ranks.rank.length),
    ask(other.id, both.b, other.ranks.rank.length),
  ]).catch(failed);
  if (found && beside.value?.run === other && pair.value === step) ledgers.value = { step, a: found[0].ledger, b: found[1].ledger };
}
