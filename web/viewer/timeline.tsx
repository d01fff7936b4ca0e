// The timeline: one canvas, and what the pointer, the wheel and fingers do on it.

import { effect, signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { exact, time } from "../shared/time";
import { hide, tip } from "../shared/tip";
import { beside, moved, whose } from "./beside";
import { Canvas2D, firstIn, nameOf, type Highlight, type Layer, type Link, type Steps } from "./canvas";
import { openRank, pin } from "./commands";
import { countersIn } from "./counters";
import { critical } from "./critical";
import { arrows, collective, failed, hits, showArea, showEvent } from "./evidence";
import { scene, type DrawnLane, type DrawnRow } from "./frame";
import { clamp, timeOf, xOf, type Scale } from "./geometry";
import { dark, palette, type Palette } from "./palette";
import type { EventDetails, Range, Run } from "./protocol";
import { byId, furthest, pinnedHeight, pinnedRows, plot, rankHeight, rowOfLane, rows, scrollTo, total } from "./rows";
import { api, json, Source } from "./source";
import {
  area, closed, details, drawn, focused, look, marks, opened, picked, pointer, scroll, toggled, view, whole, zoom,
} from "./state";

const TOP = 34; // the ruler and the steps
const MORE = 17; // the steps of the run below
const above = () => TOP + (beside.value ? MORE : 0);
const DRAG = 4; // pixels from which on a press is a drag
const EDGE = 6;
const AT_ONCE = 8; // ms of a frame after which what was drawn before is stretched, until the next frame

export const shownOf = signal({ shown: 0, total: 0, asked: false, rows: 0, of: 0, coarse: false });
export const source = signal<Source | null>(null);

export function leftOf(width: number): number {
  return width < 640 ? 84 : 196;
}

interface Gesture {
  kind: "press" | "pan" | "area" | "edge" | "pinch";
  x: number;
  y: number;
  from: number; // of the view, or of the area's fixed edge
  to: number;
  scroll: number;
}

export function Timeline({ known }: { known: Run }) {
  const holder = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => alive(known, holder.current!, canvas.current!), [known]);
  return (
    <div class="timeline" ref={holder}>
      <canvas
        ref={canvas}
        tabIndex={0}
        role="application"
        aria-label={`Timeline of ${known.ranks.rank.length} ranks. Arrow keys choose a row and move in time, W and S zoom, full stop and comma go through events, question mark lists all keys.`}
        aria-describedby="status"
      />
    </div>
  );
}

function alive(known: Run, holder: HTMLElement, canvas: HTMLCanvasElement): () => void {
  const renderer = new Canvas2D(canvas);
  let colors: Palette = palette(known.categories);
  let size = { width: 0, height: 0 };
  let last: Layer[] = []; // the run's rows, then those of the run below
  let below: { source: Source; colors: Palette } | null = null;
  let waiting = 0;
  const redraw = () => {
    canvas.dataset.complete = "false";
    waiting ||= requestAnimationFrame(draw);
  };
  const fetched = new Source(known, redraw, failed);
  source.value = fetched;
  const left = () => leftOf(size.width);
  const scale = (): Scale => ({ left: left(), width: size.width - left(), view: view.value });

  const steps = (of: Run, by: number): Steps => {
    const byRank = stepsByRank(of);
    const rank = known.ranks.rank[byId.value.get(focused.value)?.rank ?? 0] ?? 0;
    const found = byRank.get(rank) ?? byRank.values().next().value ?? [];
    return by ? found.map((one) => ({ ...one, start: one.start + by, end: one.end + by })) : found;
  };

  function draw(): void {
    waiting = 0;
    if (!size.width) return;
    const began = performance.now();
    const place = { scroll: scroll.value, top: pinnedHeight.value, height: size.height - above(), width: size.width - left() };
    const own = scene(fetched, rows.value, pinnedRows.value, view.value, place);
    last = [{ scene: own, run: known, view: view.value, colors }];
    const other = beside.value;
    if (other && below) {
      const theirs = { from: view.value.from - moved.value, to: view.value.to - moved.value };
      last.push({ scene: scene(below.source, rows.value, [], theirs, place, true), run: other.run, view: theirs, colors: below.colors });
    }
    const wanted = own.rows.filter(({ row }) => row.counter >= 0).map(({ row }) => row.counter);
    const color = `rgb(${colors.paper.map((part) => (part > 128 ? 60 : 150)).join(" ")})`;
    const counters = wanted.length ? countersIn(fetched, wanted, view.value, place.width, color) : null;
    const chosen = area.value;
    const isExact = renderer.draw(
      {
        layers: last,
        rows: inOrder(last),
        run: known,
        view: view.value,
        width: size.width,
        height: size.height,
        left: left(),
        top: above(),
        pinnedHeight: pinnedHeight.value,
        steps: [steps(known, 0), ...(other ? [steps(other.run, moved.value)] : [])],
        selection: chosen && { ...chosen, rows: chosen.rows.length ? new Set(chosen.rows) : null },
        highlights: highlights(known),
        path: pathOf(known),
        links: links(known),
        marks: marks.value,
        density: densityOf(place.width),
        focused: focused.value,
        opened: opened.value,
        closed: closed.value,
        counters: (counter) => counters?.get(counter) ?? null,
      },
      colors,
      () => performance.now() - began < AT_ONCE,
    );
    const ranks = own.rows.filter(({ row, pinned }) => row.kind === "rank" && !pinned).length;
    const coarse = last.some(({ scene }) => scene.coarse);
    shownOf.value = {
      shown: last.reduce((sum, { scene }) => sum + (scene.events?.shown ?? 0), 0),
      total: last.reduce((sum, { scene }) => sum + (scene.events?.total ?? 0), 0),
      asked: own.asked,
      rows: ranks,
      of: known.ranks.rank.length,
      coarse,
    };
    performance.clearMeasures("draw");
    performance.measure("draw", { start: began });
    canvas.dataset.drawn = String(Number(canvas.dataset.drawn ?? 0) + 1);
    canvas.dataset.complete = String(isExact && !coarse && fetched.idle && (!below || below.source.idle));
    if (canvas.dataset.complete === "true") drawn.value = true;
    if (!isExact) waiting ||= requestAnimationFrame(draw);
  }

  // Where the pointer is.
  const rowAt = (y: number): DrawnRow | undefined => {
    const at = y - above();
    const isThere = ({ row, y: top, pinned }: DrawnRow) => at >= top && at < top + row.height && (pinned || at >= pinnedHeight.value);
    return last.flatMap(({ scene }) => scene.rows).find(isThere);
  };
  const laneAt = (row: DrawnRow | undefined, y: number): DrawnLane | undefined =>
    row?.lanes.find((lane) => y - above() >= lane.y && y - above() < lane.y + lane.height + 1);
  const layerOf = (row: DrawnRow): Layer => last[row.row.other ? 1 : 0]!;
  const eventAt = ({ scene: { events }, run: of }: Layer, lane: DrawnLane, at: number): number => {
    if (!events) return -1;
    const i = firstIn(events, lane, at - of.zero);
    return i < lane.last && events.start[i]! + of.zero <= at ? i : -1;
  };

  let gesture: Gesture | null = null;
  const fingers = new Map<number, { x: number; y: number }>();
  let shift = false;

  const at = (event: MouseEvent) => {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const edgeAt = (x: number): number | null => {
    if (!area.value) return null;
    const [a, b] = [xOf(scale(), area.value.from), xOf(scale(), area.value.to)];
    if (Math.abs(x - a) <= EDGE) return area.value.to;
    return Math.abs(x - b) <= EDGE ? area.value.from : null;
  };

  const down = (event: PointerEvent) => {
    if (event.button !== 0) return;
    const { x, y } = at(event);
    canvas.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, { x, y });
    hide();
    const base = { x, y, from: view.value.from, to: view.value.to, scroll: scroll.value };
    if (fingers.size === 2) {
      gesture = { ...base, kind: "pinch" };
      return;
    }
    const fixed = x > left() ? edgeAt(x) : null;
    if (fixed !== null) gesture = { ...base, kind: "edge", from: fixed };
    else gesture = { ...base, kind: "press" };
    shift = event.shiftKey || event.pointerType === "touch";
  };

  const move = (event: PointerEvent) => {
    const { x, y } = at(event);
    if (!gesture) return hover(event, x, y);
    const before = fingers.get(event.pointerId);
    if (gesture.kind === "pinch" && before) {
      const other = [...fingers].find(([id]) => id !== event.pointerId)?.[1];
      fingers.set(event.pointerId, { x, y });
      if (!other) return;
      const [was, is] = [Math.abs(before.x - other.x), Math.abs(x - other.x)];
      if (was > 8 && is > 8) zoom(was / is, timeOf(scale(), (x + other.x) / 2));
      return;
    }
    fingers.set(event.pointerId, { x, y });
    if (gesture.kind === "press") {
      if (Math.hypot(x - gesture.x, y - gesture.y) < DRAG || gesture.x < left()) {
        if (gesture.x >= left() || event.pointerType !== "touch") return;
      }
      gesture.kind = shift ? "pan" : "area";
    }
    if (gesture.kind === "pan") {
      const by = ((x - gesture.x) / (size.width - left())) * (gesture.to - gesture.from);
      if (gesture.x >= left()) look(gesture.from - by, gesture.to - by);
      scrollTo(gesture.scroll - (y - gesture.y));
    } else if (gesture.kind === "edge") {
      stretch(gesture.from, timeOf(scale(), x), area.value?.rows ?? []);
    } else {
      stretch(timeOf(scale(), gesture.x), timeOf(scale(), x), between(gesture.y, y));
    }
  };

  const stretch = (one: number, other: number, chosen: string[]) => {
    const all = whole.value;
    const [from, to] = [Math.min(one, other), Math.max(one, other)];
    const begin = Math.round(clamp(from, all.from, all.to - 1));
    area.value = { from: begin, to: Math.max(Math.round(clamp(to, all.from, all.to)), begin + 1), rows: chosen };
  };

  // The rows of a drag; on the ruler it means all of them.
  const between = (one: number, other: number): string[] => {
    const [a, b] = [Math.min(one, other) - above(), Math.max(one, other) - above()];
    if (one < above()) return [];
    const chosen = last.flatMap(({ scene }) => scene.rows)
      .filter(({ row, y, pinned }) => y < b && y + row.height > a && row.kind !== "group" && (pinned || b > pinnedHeight.value));
    // What is selected is of the run that is shown: a row of the one below stands for its rank.
    return [...new Set(chosen.map(({ row }) => (row.other ? `r${row.rank}` : row.id)))];
  };

  const up = (event: PointerEvent) => {
    fingers.delete(event.pointerId);
    const done = gesture;
    gesture = null;
    if (!done) return;
    if (done.kind === "area" || done.kind === "edge") return showArea();
    if (done.kind !== "press") return;
    const { x, y } = at(event);
    const row = rowAt(y);
    if (!row) return;
    focused.value = row.row.id;
    if (row.row.kind === "group") return void (closed.value = toggled(closed.value, row.row.id));
    if (x < left()) {
      if (row.row.kind === "rank") openRank(row.row.id);
      return;
    }
    void choose(layerOf(row), laneAt(row, y), timeOf(scale(), x), row.row.other);
  };

  const choose = async (layer: Layer, lane: DrawnLane | undefined, pointed: number, other: boolean) => {
    if (!lane) return;
    const when = other ? pointed - moved.value : pointed;
    const i = eventAt(layer, lane, when);
    if (i >= 0) {
      picked.value = { lane: lane.lane, row: layer.scene.events!.row[i]!, other };
      return showEvent();
    }
    try {
      const found = await json<EventDetails>(api(layer.run.id, `/at?time=${Math.round(when)}&lane=${lane.lane}`));
      picked.value = { lane: found.lane, row: found.row, other };
      showEvent();
    } catch {
      picked.value = null;
    }
  };

  let asked = 0;
  const hover = (event: PointerEvent, x: number, y: number) => {
    const inside = x >= left();
    const pointed = timeOf(scale(), x);
    pointer.value = inside ? pointed : null;
    canvas.style.cursor = !inside ? "pointer" : edgeAt(x) !== null ? "ew-resize" : event.shiftKey ? "grab" : "crosshair";
    clearTimeout(asked);
    const row = y > above() ? rowAt(y) : undefined;
    const lane = laneAt(row, y);
    if (!row || !inside) return hide();
    const place = { x: event.clientX, y: event.clientY };
    const layer = layerOf(row);
    const of = layer.run;
    const when = row.row.other ? pointed - moved.value : pointed;
    const i = lane ? eventAt(layer, lane, when) : -1;
    const { view: seen, width } = scale();
    const pixel = (seen.to - seen.from) / width;
    const events = layer.scene.events;
    if (events && i >= 0 && events.duration[i]! > 2 * pixel) {
      const start = events.start[i]!;
      tip.value = {
        ...place,
        lines: [
          nameOf(of, events, lane!.lane, i),
          `${of.categories[events.category[i]!]?.name ?? ""}: ${exact(events.duration[i]!)}`,
          `from ${time(start)} · ${titleOf(known, row)}`,
        ],
      };
      return;
    }
    const head = [titleOf(known, row), `at ${time(when - of.zero)}`];
    tip.value = { ...place, lines: head };
    if (!lane) return;
    asked = window.setTimeout(() => void exactly(of, lane, when, pixel, place, head), 150);
  };

  // What the pixel under the pointer stands for, in whole nanoseconds.
  const exactly = async (of: Run, lane: DrawnLane, when: number, pixel: number, place: { x: number; y: number }, head: string[]) => {
    const from = clamp(Math.floor(when - pixel), of.zero, of.end - 1);
    const to = clamp(Math.ceil(when + pixel), from + 1, of.end);
    const said = await json<Range>(api(of.id, `/range?from=${from}&to=${to}&lanes=${lane.lane}`)).catch(() => null);
    if (!said || tip.value?.lines !== head) return;
    const parts = (said.lanes[0]?.categories ?? []).map(([category, ns]) => `${of.categories[category]?.name ?? ""}: ${exact(ns)}`);
    tip.value = { ...place, lines: [...head, `of ${exact(to - from)} here:`, ...(parts.length ? parts : ["nothing runs"])] };
  };

  const wheel = (event: WheelEvent) => {
    event.preventDefault();
    hide();
    const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
    if (event.ctrlKey || event.metaKey) return zoom(1.0025 ** clamp(event.deltaY * unit, -400, 400), timeOf(scale(), at(event).x));
    if (event.deltaX && !event.shiftKey) {
      const { from, to } = view.value;
      const by = ((event.deltaX * unit) / (size.width - left())) * (to - from);
      look(from + by, to + by);
    }
    scrollTo(scroll.value + event.deltaY * unit);
  };

  const leave = () => {
    pointer.value = null;
    clearTimeout(asked);
    hide();
  };
  const menu = (event: MouseEvent) => {
    const { x, y } = at(event);
    const row = rowAt(y);
    if (!row || x >= left()) return;
    event.preventDefault();
    pin(row.row.id);
  };
  const whileAlive = new AbortController();
  const options = { signal: whileAlive.signal };
  canvas.addEventListener("pointerdown", down, options);
  canvas.addEventListener("pointermove", move, options);
  canvas.addEventListener("pointerup", up, options);
  canvas.addEventListener("pointercancel", (event) => {
    fingers.delete(event.pointerId);
    gesture = null;
  }, options);
  canvas.addEventListener("pointerleave", leave, options);
  canvas.addEventListener("contextmenu", menu, options);
  canvas.addEventListener("wheel", wheel, { ...options, passive: false });
  const seen = new ResizeObserver(([entry]) => {
    size = { width: Math.floor(entry!.contentRect.width), height: Math.floor(entry!.contentRect.height) };
    room();
    redraw();
  });
  seen.observe(holder);
  const room = () => (plot.value = { width: size.width - left(), height: size.height - above() });
  const stops = [
    effect(() => {
      void dark.value;
      colors = palette(known.categories);
      if (below && beside.value) below.colors = palette(beside.value.run.categories);
      redraw();
    }),
    effect(() => {
      const other = beside.value?.run;
      if (other?.id === below?.source.run.id) return;
      below = other ? { source: new Source(other, redraw, failed), colors: palette(other.categories) } : null;
      if (size.width) room();
      redraw();
    }),
    effect(() => {
      void [view.value, rows.value, pinnedRows.value, scroll.value, area.value, picked.value, details.value, arrows.value, collective.value];
      void [marks.value, hits.value, focused.value, opened.value, closed.value, rankHeight.value, plot.value, moved.value, critical.value];
      redraw();
    }),
    effect(() => {
      void [view.value, scroll.value];
      hide(); // what it says is of what was under the pointer
    }),
    effect(() => {
      if (plot.value.height && total.value && scroll.value > furthest.value) scroll.value = furthest.value;
    }),
  ];
  return () => {
    whileAlive.abort();
    seen.disconnect();
    stops.forEach((stop) => stop());
    cancelAnimationFrame(waiting);
  };
}

// The rows of all layers from the top down, pinned ones first.
function inOrder(layers: Layer[]): DrawnRow[] {
  const all = layers.flatMap(({ scene }) => scene.rows);
  return layers.length < 2 ? all : all.sort((one, two) => Number(two.pinned) - Number(one.pinned) || one.y - two.y);
}

const kept = new WeakMap<Run, Map<number, Steps>>();

function stepsByRank(of: Run): Map<number, Steps> {
  const known = kept.get(of);
  if (known) return known;
  const made = new Map<number, Steps>();
  of.steps.rank.forEach((rank, i) => {
    if (!made.has(rank)) made.set(rank, []);
    const { step, start, end, counts } = of.steps;
    made.get(rank)!.push({ step: step[i]!, start: start[i]!, end: end[i]!, counts: counts[i]! });
  });
  kept.set(of, made);
  return made;
}

function titleOf(known: Run, { row }: DrawnRow): string {
  return row.kind === "rank" || row.rank < 0 ? row.title : `rank ${known.ranks.rank[row.rank]} · ${row.title}`;
}

// The rows in which something stands: its own where that is shown, else its rank's.
function shownRow(known: Run, lane: number, below?: Run): string {
  const { id, rank } = rowOfLane(known, lane, below);
  if (byId.value.has(id)) return id;
  return below ? `b${below.ranks.rank.indexOf(known.ranks.rank[rank]!)}` : `r${rank}`;
}

function highlights(known: Run): Highlight[] {
  const made: Highlight[] = [];
  const other = picked.value?.other ?? false;
  const of = whose(other);
  if (!of) return made;
  const put = (lane: number, start: number, end: number, strong: boolean) => {
    const [from, to] = [start + of.by, end + of.by];
    const id = shownRow(known, lane, other ? of.run : undefined);
    const row = byId.value.get(id);
    const index = row?.lanes.indexOf(lane) ?? -1;
    if (!row || index < 0) return void made.push({ row: id, from, to, strong });
    const high = (row.height - (row.kind === "track" ? 2 : 0)) / row.lanes.length;
    made.push({ row: id, from, to, strong, y: index * high, height: high });
  };
  for (const part of collective.value?.parts ?? []) put(part.lane, part.arrival, part.end, false);
  const event = details.value;
  if (event && picked.value?.lane === event.lane && picked.value.row === event.row) put(event.lane, event.start, event.end, true);
  return made;
}

function links(known: Run): Link[] {
  const other = picked.value?.other ?? false;
  const of = whose(other);
  if (!of) return [];
  const below = other ? of.run : undefined;
  return arrows.value.map(({ kind, from, to }) => ({
    kind,
    from: { row: shownRow(known, from.lane, below), time: from.time + of.by },
    to: { row: shownRow(known, to.lane, below), time: to.time + of.by },
  }));
}

// The critical path near what is in view, also over rows that are scrolled away.
function pathOf(known: Run): { from: number; to: number; y: number }[] {
  const found = critical.value;
  if (!found) return [];
  const { from, to } = view.value;
  const made: { from: number; to: number; y: number }[] = [];
  found.lane.forEach((lane, i) => {
    if (found.end[i]! < from || found.start[i]! > to) return;
    const row = byId.value.get(shownRow(known, lane));
    if (!row) return;
    const y = row.top - scroll.value + pinnedHeight.value + Math.min(row.height - 3, row.kind === "track" ? 14 : row.height);
    made.push({ from: found.start[i]!, to: found.end[i]!, y: Math.max(y, -20) });
  });
  return made;
}

// Where the hits that were fetched are, by pixel.
function densityOf(width: number): Float32Array | null {
  const found = hits.value?.hits;
  if (!found?.length) return null;
  const counts = new Float32Array(Math.max(1, Math.ceil(width)));
  const { from, to } = view.value;
  for (const { start } of found) {
    const x = Math.floor(((start - from) / (to - from)) * width);
    if (x >= 0 && x < counts.length) counts[x]! += 1;
  }
  const most = counts.reduce((a, b) => Math.max(a, b), 0);
  return most ? counts.map((count) => count / most) : null;
}

