// What can be done, with the keys that do it: those that users of Perfetto have in their fingers.

import { signal } from "@preact/signals";
import { chosen } from "./beside";
import { toggle } from "./critical";
import { next, showArea } from "./evidence";
import { clamp } from "./geometry";
import { chooseTheme, dark } from "./palette";
import { byId, lanesOf, pinnedRows, plot, rankHeight, reveal, rows, scrollTo } from "./rows";
import {
  area, clear, drawer, focused, height, look, lookAt, marks, opened, pan, pinned, pointer, run, said, scroll, toggled, view, whole, zoom,
} from "./state";

export const helping = signal(false);
export const finder = signal<"" | "tracks" | "commands">("");
export const searchBox: { current: HTMLInputElement | null } = { current: null };

export interface Command {
  keys: string[]; // as a keydown's `key`, with "Ctrl+" and "Shift+" where needed
  shown: string;
  does: string;
  run: () => void;
}

const STEP = 1.35;

function middle(): number {
  return pointer.value ?? (view.value.from + view.value.to) / 2;
}

// By whole pixels: what stays in view is then moved, not drawn again.
function sideways(share: number): void {
  const { width } = plot.value;
  pan(width ? Math.round(share * width) / width : share);
}

// Once: it is centred; again: it fills the view.
function fit(): void {
  const span = chosen.value ?? area.value;
  if (!span) return look(whole.value.from, whole.value.to);
  const { from, to } = view.value;
  const isCentred = Math.abs((span.from + span.to - from - to) / 2) < (to - from) / 200;
  if (isCentred) lookAt(span, 0.8);
  else look((span.from + span.to - (to - from)) / 2, (span.from + span.to + (to - from)) / 2);
  if (focused.value) reveal(focused.value);
}

function mark(): void {
  const at = Math.round(chosen.value?.from ?? area.value?.from ?? middle());
  marks.value = marks.value.includes(at) ? marks.value.filter((one) => one !== at) : [...marks.value, at].sort((a, b) => a - b);
  said.value = marks.value.includes(at) ? "Marked" : "Mark removed";
}

function toRange(): void {
  const span = chosen.value;
  if (!span) return;
  const row = byId.value.get(focused.value);
  // A range is of the run that is shown: a row of the one below stands for its rank.
  area.value = { from: Math.round(span.from), to: Math.round(span.to), rows: row?.other ? [`r${row.rank}`] : focused.value ? [focused.value] : [] };
  showArea();
}

function move(by: number): void {
  const all = rows.value;
  const at = all.findIndex((row) => row.id === focused.value);
  const row = all[clamp(at < 0 ? 0 : at + by, 0, all.length - 1)];
  if (!row) return;
  focused.value = row.id;
  reveal(row.id);
  said.value = `${row.title}, row ${all.indexOf(row) + 1} of ${all.length}`;
}

export function openRank(id: string): void {
  const row = byId.value.get(id) ?? pinnedRows.value.find((one) => one.id === id);
  if (!row || row.rank < 0) return;
  opened.value = toggled(opened.value, row.rank);
  said.value = `${row.title} ${opened.value.has(row.rank) ? "opened" : "folded"}`;
}

export function pin(id: string): void {
  if (!id || !/^[rtc]/.test(id)) return;
  pinned.value = pinned.value.includes(id) ? pinned.value.filter((one) => one !== id) : [...pinned.value, id];
  said.value = pinned.value.includes(id) ? "Pinned on top" : "No longer pinned";
}

export function resize(by: number): void {
  height.value = clamp((height.value || rankHeight.value) + by, 1, 64);
}

function rangeOfView(): void {
  const row = byId.value.get(focused.value);
  area.value = { from: Math.round(view.value.from), to: Math.round(view.value.to), rows: row && lanesOf(run.value!, row).length ? [row.id] : [] };
  showArea();
}

export const COMMANDS: Command[] = [
  { keys: ["w"], shown: "W", does: "zoom in at the pointer", run: () => zoom(1 / STEP, middle()) },
  { keys: ["s"], shown: "S", does: "zoom out", run: () => zoom(STEP, middle()) },
  { keys: ["a", "ArrowLeft"], shown: "A ←", does: "go left", run: () => sideways(-0.15) },
  { keys: ["d", "ArrowRight"], shown: "D →", does: "go right", run: () => sideways(0.15) },
  { keys: ["ArrowUp"], shown: "↑", does: "row above", run: () => move(-1) },
  { keys: ["ArrowDown"], shown: "↓", does: "row below", run: () => move(1) },
  { keys: ["PageUp"], shown: "Page ↑", does: "rows above", run: () => scrollTo(scroll.value - 400) },
  { keys: ["PageDown"], shown: "Page ↓", does: "rows below", run: () => scrollTo(scroll.value + 400) },
  { keys: ["Enter"], shown: "Enter", does: "open or fold the rank of the row", run: () => openRank(focused.value) },
  { keys: ["f"], shown: "F", does: "centre what is selected; again: fit it; the whole run where nothing is", run: fit },
  { keys: ["."], shown: ".", does: "next event on the track", run: () => void next(1) },
  { keys: [","], shown: ",", does: "previous event on the track", run: () => void next(-1) },
  { keys: ["r"], shown: "R", does: "make the selected event a range", run: toRange },
  { keys: ["Shift+R"], shown: "Shift R", does: "make what is in view a range", run: rangeOfView },
  { keys: ["m"], shown: "M", does: "mark the time of the selection or pointer", run: mark },
  { keys: ["c"], shown: "C", does: "show or hide the critical path", run: toggle },
  { keys: ["p"], shown: "P", does: "pin the row on top", run: () => pin(focused.value) },
  { keys: ["+", "="], shown: "+", does: "higher rows", run: () => resize(rankHeight.value < 6 ? 1 : 3) },
  { keys: ["-"], shown: "−", does: "lower rows", run: () => resize(rankHeight.value < 7 ? -1 : -3) },
  { keys: ["0", "Home"], shown: "0", does: "the whole run", run: () => look(whole.value.from, whole.value.to) },
  { keys: ["Escape"], shown: "Esc", does: "clear the selection", run: clear },
  { keys: ["/"], shown: "/", does: "search names in the whole run", run: () => searchBox.current?.focus() },
  { keys: ["Ctrl+p"], shown: "Ctrl P", does: "find a track", run: () => (finder.value = "tracks") },
  { keys: ["Ctrl+Shift+P"], shown: "Ctrl Shift P", does: "all commands", run: () => (finder.value = "commands") },
  { keys: ["q"], shown: "Q", does: "show or hide the panel", run: () => (drawer.value = !drawer.value) },
  { keys: ["t"], shown: "T", does: "dark or light", run: () => chooseTheme(dark.value ? "light" : "dark") },
  { keys: ["?"], shown: "?", does: "list the keys", run: () => (helping.value = !helping.value) },
];

const byKey = new Map(COMMANDS.flatMap((command) => command.keys.map((key) => [key, command])));

export function onKey(event: KeyboardEvent): void {
  if (event.altKey || event.defaultPrevented) return;
  const target = event.target as Element;
  const writes = target.matches("input, select, textarea");
  const control = event.ctrlKey || event.metaKey;
  if (writes && !control) return;
  if (target.matches("button, a, summary") && (event.key === "Enter" || event.key === " ")) return;
  if (target.closest("[role=dialog]") && event.key !== "Escape") return;
  const letter = event.key.length === 1 && /[a-z]/i.test(event.key);
  const name = control
    ? `Ctrl+${event.shiftKey ? `Shift+${event.key.toUpperCase()}` : event.key.toLowerCase()}`
    : letter && event.shiftKey && byKey.has(`Shift+${event.key.toUpperCase()}`)
      ? `Shift+${event.key.toUpperCase()}`
      : letter
        ? event.key.toLowerCase()
        : event.key;
  // A panel that scrolls has its arrows and pages for itself.
  if (/^(Arrow|Page|Home)/.test(name) && target.closest(".panel")) return;
  const command = byKey.get(name);
  if (!command || (!run.value && name !== "?")) return;
  event.preventDefault();
  if (helping.value && name === "Escape") helping.value = false;
  else command.run();
}
