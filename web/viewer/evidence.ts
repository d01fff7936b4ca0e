// What belongs to what is chosen: details of an event, its arrows, the same collective on other ranks, a range's ledger.

import { effect, signal, untracked } from "@preact/signals";
import { time } from "../shared/time";
import { whose } from "./beside";
import { laneList, type Arrow, type Collective, type EventDetails, type Finding, type Hits, type Place, type Range, type Run, type Window } from "./protocol";
import { byId, lanesOf, reveal, rowOfLane } from "./rows";
import { api, json, Refused } from "./source";
import {
  area, details, drawer, finding, findings, focused, look, lookAt, opened, pick, picked, query, run, said, tab, trouble, view,
} from "./state";

export const arrows = signal<Arrow[]>([]);
export const collective = signal<Collective | null>(null);
export const ranged = signal<Range | null>(null);
export const hits = signal<Hits | null>(null);
export const hit = signal(-1); // index into the hits

// A name that would turn the direction of a text turns only itself.
const isolated = (name: string) => `\u2068${name}\u2069`;

export function failed(error: unknown): void {
  if (error instanceof DOMException && error.name === "AbortError") return;
  trouble.value = error instanceof Refused ? `${error.message} ${error.hint}`.trim() : String(error);
}

// Runs `ask` for each new value; an answer to an older one is dropped.
function latest<T>(read: () => T | null, delay: number, none: () => void, ask: (value: T, signal: AbortSignal) => Promise<void>): void {
  let control = new AbortController();
  let timer = 0;
  effect(() => {
    const value = read();
    control.abort();
    clearTimeout(timer);
    if (value === null) return untracked(none);
    const mine = (control = new AbortController());
    timer = window.setTimeout(() => void ask(value, mine.signal).catch(failed), delay);
  });
}

export function watch(id: string): void {
  latest(
    () => (picked.value && whose(picked.value.other) ? picked.value : null),
    0,
    () => {
      arrows.value = [];
      collective.value = null;
    },
    async (place, signal) => {
      const of = whose(place.other)!.run;
      const found = await json<EventDetails>(api(of.id, `/event/${place.lane}/${place.row}`), signal);
      details.value = found;
      said.value = `${isolated(found.name)}, ${time(found.end - found.start)}, rank ${found.rank}${place.other ? " of B" : ""}, ${found.title}`;
      arrows.value = [];
      collective.value = null;
      arrows.value = (await json<{ arrows: Arrow[] }>(api(of.id, `/arrows/${place.lane}/${place.row}`), signal)).arrows;
      collective.value = await acrossRanks(of, found, signal);
    },
  );
  latest(
    () => area.value,
    120,
    () => (ranged.value = null),
    async (chosen, signal) => {
      const known = run.value!;
      const lanes = chosen.rows.length
        ? chosen.rows.flatMap((row) => {
            const found = byId.value.get(row);
            return found ? lanesOf(known, found) : [];
          })
        : [];
      const asked = lanes.length && lanes.length < known.lanes.track.length ? `&lanes=${laneList(lanes)}` : "";
      ranged.value = await json<Range>(
        api(id, `/range?from=${Math.round(chosen.from)}&to=${Math.round(chosen.to)}${asked}`),
        signal,
      );
      said.value = `Selected ${time(chosen.to - chosen.from)}`;
    },
  );
  latest(
    () => query.value || null,
    150,
    () => {
      hits.value = null;
      hit.value = -1;
    },
    async (text, signal) => {
      const got = await json<Hits>(api(id, `/search?q=${encodeURIComponent(text)}&limit=200`), signal);
      hits.value = got;
      hit.value = -1;
      said.value = got.total ? `${got.total.toLocaleString("en-US")} events have “${text}” in their name` : `No event has “${text}” in its name`;
    },
  );
}

// The collective that the event is a part of, where it is one.
async function acrossRanks(known: Run, event: EventDetails, signal: AbortSignal): Promise<Collective | null> {
  const kind = known.tracks.kind[event.track];
  if (kind !== "collectives" && !/communication|collective/.test(known.categories[event.category]?.key ?? "")) return null;
  const url = `/collectives?from=${event.start}&to=${Math.max(event.end, event.start + 1)}&limit=200`;
  const { collectives } = await json<{ collectives: Collective[] }>(api(known.id, url), signal);
  const its = (one: Collective) => one.parts.some(({ lane, row }) => lane === event.lane && row === event.row);
  return collectives.find(its) ?? null;
}

// Goes

export function goTo(place: Place & { start: number; end: number; rank: number }, other = false): void {
  const known = run.value!;
  const of = whose(other);
  if (!of) return;
  open(known.ranks.rank.indexOf(place.rank), place.lane >= of.run.ranks.rank.length);
  const { from, to } = view.value;
  const [start, end] = [place.start + of.by, place.end + of.by];
  const length = Math.max(end - start, 1);
  // What can be seen stays where it is; else the view moves, and comes nearer where the event would be a speck.
  if (length < (to - from) / 200 || length > to - from) lookAt({ from: start, to: end }, 0.15);
  else if (end < from || start > to) look((start + end - (to - from)) / 2, (start + end + (to - from)) / 2);
  pick({ lane: place.lane, row: place.row, other });
  const row = rowOfLane(known, place.lane, other ? of.run : undefined).id;
  focused.value = row;
  reveal(row);
}

function open(rank: number, wanted: boolean): void {
  if (rank < 0 || !wanted || opened.value.has(rank)) return;
  opened.value = new Set([...opened.value, rank]);
}

export async function next(direction: 1 | -1): Promise<void> {
  const at = details.value;
  if (at) {
    const other = picked.value?.other ?? false;
    const of = whose(other);
    if (!of) return;
    const row = direction > 0 ? at.next : at.previous;
    if (row === null) return void (said.value = direction > 0 ? "This is the last event here" : "This is the first event here");
    const found = await json<EventDetails>(api(of.run.id, `/event/${at.lane}/${row}`));
    tab.value = "event";
    return goTo(found, other);
  }
  const row = byId.value.get(focused.value) ?? byId.value.values().next().value;
  if (!row) return;
  const lane = row.lanes[0];
  const of = whose(row.other);
  if (lane === undefined || !of) return;
  const { from, to } = view.value;
  const found = await json<EventDetails>(api(of.run.id, `/at?time=${Math.round((from + to) / 2 - of.by)}&lane=${lane}`)).catch(() => null);
  if (found) {
    tab.value = "event";
    goTo(found, row.other);
  } else said.value = "No event is in the middle of this row";
}

export async function step(direction: 1 | -1): Promise<void> {
  const known = hits.value;
  if (!known?.hits.length) return;
  let at = hit.value + direction;
  if (hit.value < 0) {
    // The first one in view.
    at = known.hits.findIndex((one) => one.start >= view.value.from);
    if (at < 0) at = 0;
  }
  if (at >= known.hits.length && known.next !== null) {
    const more = await json<Hits>(
      api(run.value!.id, `/search?q=${encodeURIComponent(query.value)}&limit=200&after=${known.next}`),
    );
    const seen = new Set(known.hits.map(({ lane, row }) => `${lane},${row}`));
    hits.value = { ...more, total: known.total, hits: [...known.hits, ...more.hits.filter(({ lane, row }) => !seen.has(`${lane},${row}`))] };
  }
  const all = hits.value!.hits;
  hit.value = (at + all.length) % all.length;
  const found = all[hit.value]!;
  said.value = `${hit.value + 1} of ${hits.value!.total.toLocaleString("en-US")}: ${isolated(found.name)}`;
  goTo(found);
}

export function showFinding(one: Finding, window: Window | undefined = one.windows[0]): void {
  const known = run.value!;
  finding.value = one.name;
  tab.value = "findings";
  if (!window) return void (said.value = "Nothing in the timeline shows it: it is about the whole run");
  const rank = known.ranks.rank.indexOf(window.rank);
  open(rank, window.lane !== null && window.lane >= known.ranks.rank.length);
  lookAt({ from: window.start, to: window.end });
  const row = window.lane !== null ? rowOfLane(known, window.lane).id : `r${rank}`;
  focused.value = row;
  area.value = { from: window.start, to: window.end, rows: [row] };
  pick(null);
  reveal(row);
  said.value = window.text;
}

// What a deep link of the report says: a finding's name and no range.
export function followFinding(): void {
  const found = findings.value?.findings.find((one) => one.name === finding.value);
  if (found && !area.value && found.windows.length && !location.hash.includes("from=")) showFinding(found);
}

export function showArea(): void {
  drawer.value = true;
  tab.value = "range";
}

export function showEvent(): void {
  drawer.value = true;
  tab.value = "event";
}
