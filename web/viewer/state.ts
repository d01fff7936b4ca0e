// What the reader looks at and has chosen. All of it stands behind the `#` of the address, so that a link restores it.

import { batch, computed, effect, signal } from "@preact/signals";
import { framed } from "./carrier";
import type { EventDetails, Finding, Picked, Run } from "./protocol";

export interface Span {
  from: number;
  to: number;
}

export interface Area extends Span {
  rows: string[]; // ids of rows; empty stands for all
}

export type Tab = "findings" | "compare" | "range" | "event" | "search" | "about";

export const run = signal<Run | null>(null);
export const view = signal<Span>({ from: 0, to: 1 });
export const scroll = signal(0);
export const height = signal(0); // of a rank's row, pixels; 0: as many as there is room for
export const grouping = signal("");
export const sorting = signal("");
export const opened = signal<ReadonlySet<number>>(new Set()); // indices of ranks whose tracks are shown
export const closed = signal<ReadonlySet<string>>(new Set()); // groups that are folded
export const pinned = signal<readonly string[]>([]);
export const focused = signal(""); // id of the row that keys act on
export const area = signal<Area | null>(null);
export const picked = signal<Picked | null>(null);
export const details = signal<EventDetails | null>(null); // in the times of its own run
export const marks = signal<readonly number[]>([]);
export const query = signal("");
export const finding = signal("");
export const findings = signal<{ verdict: string; findings: Finding[] } | null>(null);
export const compared = signal(""); // id of the run that is drawn below
export const pathShown = signal(false); // the critical path
export const drawer = signal(true);
export const tab = signal<Tab>("findings");
export const said = signal(""); // to a screen reader, and in the status line
export const trouble = signal("");
export const pointer = signal<number | null>(null); // the time under the pointer

export const drawn = signal(false); // whether the timeline was whole once

export const whole = computed<Span>(() => {
  const known = run.value;
  return known ? { from: known.zero, to: Math.max(known.end, known.zero + 1) } : { from: 0, to: 1 };
});

const CLOSEST = 20; // ns in view

// The nearest view that lies within the run, with a little room around it.
export function look(from: number, to: number): void {
  const all = whole.value;
  const room = (all.to - all.from) * 0.02;
  const span = Math.min(Math.max(to - from, CLOSEST), all.to - all.from + 2 * room);
  const middle = (from + to) / 2;
  const first = Math.min(Math.max(middle - span / 2, all.from - room), all.to + room - span);
  view.value = { from: first, to: first + span };
}

export function zoom(factor: number, at: number): void {
  const { from, to } = view.value;
  look(at - (at - from) * factor, at + (to - at) * factor);
}

export function pan(share: number): void {
  const { from, to } = view.value;
  const by = (to - from) * share;
  look(from + by, to + by);
}

// With room around it, so that what stands beside the evidence is seen too.
export function lookAt(span: Span, share = 0.6): void {
  const room = ((span.to - span.from) * (1 / share - 1)) / 2;
  look(span.from - room, span.to + room);
}

export function pick(place: Picked | null): void {
  picked.value = place;
  if (!place) details.value = null;
}

export function clear(): void {
  batch(() => {
    area.value = null;
    finding.value = "";
    pick(null);
  });
}

export function toggled<T>(set: ReadonlySet<T>, one: T): ReadonlySet<T> {
  const made = new Set(set);
  if (!made.delete(one)) made.add(one);
  return made;
}

// The address

const integers = (text: string | null) =>
  (text ?? "").split(",").filter((part) => /^-?\d+$/.test(part)).map(Number);
const words = (text: string | null) => (text ? text.split(",").filter(Boolean) : []);

export function written(): string {
  const made = new URLSearchParams();
  const { from, to } = view.value;
  const all = whole.value;
  if (Math.round(from) > all.from || Math.round(to) < all.to) {
    made.set("from", String(Math.round(from)));
    made.set("to", String(Math.round(to)));
  }
  const put = (name: string, value: string | number, otherwise: string | number) => {
    if (value !== otherwise) made.set(name, String(value));
  };
  put("y", Math.round(scroll.value), 0);
  put("height", height.value, 0);
  put("group", grouping.value, "");
  put("sort", sorting.value, "");
  put("open", [...opened.value].sort((a, b) => a - b).join(","), "");
  put("closed", [...closed.value].join(","), "");
  put("pin", pinned.value.join(","), "");
  put("row", focused.value, "");
  if (area.value) {
    made.set("range", `${Math.round(area.value.from)},${Math.round(area.value.to)}`);
    put("rows", area.value.rows.join(","), "");
  }
  if (picked.value) made.set("event", `${picked.value.lane},${picked.value.row}${picked.value.other ? ",b" : ""}`);
  put("marks", marks.value.join(","), "");
  put("q", query.value, "");
  put("finding", finding.value, "");
  put("with", compared.value, "");
  put("path", pathShown.value ? 1 : 0, 0);
  put("drawer", drawer.value ? 1 : 0, 1);
  put("tab", tab.value, "findings");
  return made.toString().replaceAll("%2C", ",");
}

const TABS: Tab[] = ["findings", "compare", "range", "event", "search", "about"];

export function read(hash: string): void {
  const known = run.value;
  if (!known) return;
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  const number = (name: string): number | null => {
    const text = given.get(name);
    return text !== null && /^-?\d+(\.\d+)?$/.test(text) ? Number(text) : null;
  };
  batch(() => {
    const [from, to] = [number("from"), number("to")];
    const all = whole.value;
    if (from !== null && to !== null && to > from) look(from, to);
    else look(all.from, all.to);
    scroll.value = Math.max(0, number("y") ?? 0);
    height.value = Math.min(Math.max(number("height") ?? 0, 0), 64);
    const group = given.get("group") ?? "";
    grouping.value = known.groupings.some((one) => one.key === group) ? group : "";
    const sort = given.get("sort") ?? "";
    sorting.value = known.sortings.some((one) => one.key === sort) ? sort : "";
    const ranks = integers(given.get("open")).filter((rank) => rank >= 0 && rank < known.ranks.rank.length);
    const rank = number("rank");
    const index = rank === null ? -1 : known.ranks.rank.indexOf(rank);
    if (index >= 0) ranks.push(index);
    opened.value = new Set(given.has("open") || index >= 0 ? ranks : opening(known));
    closed.value = new Set(words(given.get("closed")));
    pinned.value = words(given.get("pin"));
    focused.value = given.get("row") ?? (index >= 0 ? `r${index}` : "");
    const range = integers(given.get("range"));
    area.value =
      range.length === 2 && range[1]! > range[0]!
        ? { from: range[0]!, to: range[1]!, rows: words(given.get("rows")) }
        : null;
    const event = integers(given.get("event"));
    pick(event.length === 2 ? { lane: event[0]!, row: event[1]!, other: words(given.get("event"))[2] === "b" } : null);
    marks.value = integers(given.get("marks"));
    query.value = given.get("q") ?? "";
    finding.value = given.get("finding") ?? "";
    compared.value = /^[0-9a-f]+$/.test(given.get("with") ?? "") ? given.get("with")! : "";
    pathShown.value = given.get("path") === "1";
    drawer.value = given.get("drawer") !== "0";
    tab.value = TABS.find((one) => one === given.get("tab")) ?? "findings";
  });
}

// A few ranks leave room for the tracks of one.
function opening(known: Run): number[] {
  return known.ranks.rank.length <= 8 ? [0] : [];
}

// Writes the address a moment after the last change, and follows it when the reader does.
export function follow(): void {
  let last = location.hash.slice(1);
  let timer = 0;
  const settled = (is: boolean) => (document.body.dataset.settled = String(is)); // whether the address says it all
  effect(() => {
    if (!run.value) return;
    const now = written();
    clearTimeout(timer);
    settled(now === last);
    if (now === last) return;
    timer = window.setTimeout(() => {
      settled(true);
      last = now;
      if (framed) return; // a frame has no address
      history.replaceState(history.state, "", `${location.pathname}${location.search}${now ? `#${now}` : ""}`);
    }, 200);
  });
  addEventListener("hashchange", () => {
    const now = location.hash.slice(1);
    if (now === last) return;
    last = now;
    clearTimeout(timer);
    read(now);
  });
}
