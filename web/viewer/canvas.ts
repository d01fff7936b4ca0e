// Draws a scene on a 2D canvas: shares of time as pixels of our own, then rectangles, texts and what is marked above them.

import { ruler } from "../shared/time";
import type { CounterView } from "./counters";
import { clamp, xOf, type Scale } from "./geometry";
import type { DrawnLane, DrawnRow, Piece, Scene } from "./frame";
import type { Palette } from "./palette";
import type { Run } from "./protocol";
import { Lanes } from "./lanes";
import { dealt, packed } from "./raster";
import { LEGIBLE } from "./rows";
import type { Span } from "./state";

export interface Highlight extends Span {
  row: string;
  y?: number; // of its lane, from the top of the row
  height?: number;
  strong: boolean;
}

export type Steps = { step: number; start: number; end: number; counts: boolean }[];

export interface Link {
  from: { row: string; time: number };
  to: { row: string; time: number };
  kind: string;
}

// The rows of one run in its own times.
export interface Layer {
  scene: Scene;
  run: Run;
  view: Span;
  colors: Palette;
}

export interface Frame {
  layers: Layer[];
  rows: DrawnRow[]; // of all layers
  run: Run; // of the first layer
  view: Span;
  width: number; // of the canvas, pixels of the page
  height: number;
  left: number; // of the plot; the titles of the rows stand left of it
  top: number; // below the ruler
  pinnedHeight: number;
  steps: Steps[]; // of each layer, in the first one's times
  selection: { from: number; to: number; rows: ReadonlySet<string> | null } | null;
  highlights: Highlight[];
  path: { from: number; to: number; y: number }[]; // the critical path, y below the ruler
  links: Link[];
  marks: readonly number[];
  density: Float32Array | null; // hits of a search, by pixel of the plot, 0 to 1
  focused: string;
  opened: ReadonlySet<number>;
  closed: ReadonlySet<string>;
  counters: (counter: number) => CounterView | null;
}

// A renderer draws frames; another one, for a GPU, would take this one's place here. It says whether all is exact: where
// `hasTime` said no, something is near enough until the same frame is drawn again.
export interface Renderer {
  draw(frame: Frame, colors: Palette, hasTime: () => boolean): boolean;
}

interface Pixels {
  data: Uint32Array; // what an ImageData holds, little-endian RGBA
  width: number;
  height: number;
}

// Lines [top, bottom) of the plot, in which a lane is seen that begins at line y.
interface Bounds {
  top: number;
  bottom: number;
  y: number;
  height: number;
}

// Which bucket of a piece's tile each pixel from `left` on shows.
interface Picks {
  left: number;
  bucket: Uint16Array;
}

function picksOf(piece: Piece, from: number, perPixel: number, width: number): Picks {
  const begin = (piece.start - from) / perPixel;
  const step = perPixel / piece.width;
  const left = Math.max(0, Math.ceil(begin - 0.5));
  const right = Math.min(width, Math.ceil(begin + piece.count / step - 0.5));
  const bucket = new Uint16Array(Math.max(0, right - left));
  for (let i = 0, at = (left + 0.5 - begin) * step; i < bucket.length; i++, at += step) bucket[i] = piece.first + Math.min(at | 0, piece.count - 1);
  return { left, bucket };
}

const NARROWEST = 18; // pixels in which a name is tried
const THINNEST = 2; // pixels of a letter
const MOST_WIDTHS = 20_000; // of texts that are kept
const RULER = 17;

export class Canvas2D implements Renderer {
  private readonly context: CanvasRenderingContext2D;
  private image: ImageData | null = null;
  private pixels: Pixels | null = null;
  private readonly lanes = new Lanes();
  private font = "";
  private readonly widths = new Map<string, number>();
  private readonly dealt = new WeakMap<Uint8Array, { height: number; made: Uint8Array }>();

  constructor(private readonly canvas: HTMLCanvasElement) {
    this.context = canvas.getContext("2d", { alpha: false })!;
  }

  draw(frame: Frame, colors: Palette, hasTime: () => boolean): boolean {
    const ratio = Math.min(devicePixelRatio || 1, 2);
    const [width, height] = [Math.round(frame.width * ratio), Math.round(frame.height * ratio)];
    const { canvas, context } = this;
    if (canvas.width !== width || canvas.height !== height) {
      [canvas.width, canvas.height] = [width, height];
      canvas.style.width = `${frame.width}px`;
      canvas.style.height = `${frame.height}px`;
    }
    context.setTransform(1, 0, 0, 1, 0, 0);
    const plotWidth = Math.max(1, width - Math.round(frame.left * ratio));
    const plotHeight = Math.max(1, height - Math.round(frame.top * ratio));
    const exact = this.shares(frame, colors, ratio, plotWidth, plotHeight, hasTime);
    context.putImageData(this.image!, Math.round(frame.left * ratio), Math.round(frame.top * ratio));
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.font ||= getComputedStyle(canvas).fontFamily;
    context.font = `11px ${this.font}`;
    context.textBaseline = "middle";
    const scale: Scale = { left: frame.left, width: frame.width - frame.left, view: frame.view };
    this.events(frame, colors, scale);
    this.countersOf(frame, colors, scale);
    this.titles(frame, colors);
    this.overlays(frame, colors, scale);
    this.ruler(frame, colors, scale);
    return exact;
  }

  // All shares of time, in pixels of the device. Says whether all are exact: what `hasTime` left no time for is not.
  private shares(frame: Frame, colors: Palette, ratio: number, width: number, height: number, hasTime: () => boolean): boolean {
    if (this.image?.width !== width || this.image.height !== height) {
      this.image = new ImageData(width, height);
      this.pixels = { data: new Uint32Array(this.image.data.buffer), width, height };
    }
    const pixels = this.pixels!;
    pixels.data.fill(packed(colors.paper));
    const floor = Math.round(frame.pinnedHeight * ratio);
    let exact = true;
    frame.layers.forEach((layer, number) => {
      const words = new Uint32Array(256).fill(packed(colors.paper));
      layer.colors.categories.forEach((color, i) => (words[i] = packed(color)));
      const perPixel = (layer.view.to - layer.view.from) / width;
      const picks = new Map<Piece, Picks>();
      for (const { lanes, pinned } of layer.scene.rows) {
        for (const lane of lanes) {
          const y = Math.round(lane.y * ratio);
          const high = Math.max(1, Math.round((lane.y + lane.height) * ratio) - y);
          const bounds = { top: Math.max(pinned ? 0 : floor, y), bottom: Math.min(height, y + high), y, height: high };
          if (bounds.top >= bounds.bottom) continue;
          if (high < 5) this.low(pixels, lane, words, bounds, layer.view.from, perPixel, picks);
          else if (!this.high(pixels, layer, `${number}/${lane.lane}/${high}`, lane, bounds, hasTime)) exact = false;
        }
      }
    });
    return exact;
  }

  private low(
    { data, width }: Pixels, lane: DrawnLane, words: Uint32Array, at: Bounds, from: number, perPixel: number, known: Map<Piece, Picks>,
  ): void {
    for (const { piece, planes: { shares, categories } } of lane.strips) {
      const { buckets } = piece.tile;
      let found = this.dealt.get(shares);
      if (found?.height !== at.height) {
        found = { height: at.height, made: dealt(shares, categories, buckets, at.height, lane.lane * at.height) };
        this.dealt.set(shares, found);
      }
      let picks = known.get(piece);
      if (!picks) known.set(piece, (picks = picksOf(piece, from, perPixel, width)));
      const { left, bucket } = picks;
      const { made } = found;
      for (let y = at.top; y < at.bottom; y++) {
        const first = (y - at.y) * buckets;
        const line = y * width + left;
        for (let i = 0; i < bucket.length; i++) data[line + i] = words[made[first + bucket[i]!]!]!;
      }
    }
  }

  // Copies the lane's picture. Where that is of another view, it is stretched, and what it lacks is drawn.
  private high(pixels: Pixels, layer: Layer, key: string, lane: DrawnLane, at: Bounds, hasTime: () => boolean): boolean {
    const { data, width } = pixels;
    const { run, view, colors } = layer;
    const order = run.lanes.categories[lane.lane] ?? [];
    const { picture, stretch } = this.lanes.picture(key, lane, order, colors, view, width, at.height, hasTime);
    const source = picture.data;
    if (!stretch) {
      data.set(source.subarray((at.top - at.y) * width, (at.bottom - at.y) * width), at.top * width);
      return true;
    }
    const { first, last, take } = stretch;
    for (let y = at.top; y < at.bottom; y++) {
      const [from, to] = [(y - at.y) * width, y * width];
      for (let x = first; x < last; x++) data[to + x] = source[from + take[x]!]!;
    }
    for (const [left, right] of [[0, first], [last, width]] as const) {
      if (left === right) continue;
      const beside = this.lanes.columns(lane, order, colors, view, width, at.height, left, right);
      for (let y = at.top; y < at.bottom; y++) data.set(beside.subarray((y - at.y) * width + left, (y - at.y) * width + right), y * width + left);
    }
    return false;
  }

  // Edges between neighbours, and names where there is room.
  private events(frame: Frame, colors: Palette, all: Scale): void {
    for (const layer of frame.layers) this.eventsOf(frame, layer, colors, { ...all, view: layer.view });
  }

  private eventsOf(frame: Frame, { scene, run, view, colors: { inks } }: Layer, colors: Palette, scale: Scale): void {
    const { events } = scene;
    if (!events) return;
    const { context } = this;
    context.save();
    context.beginPath();
    context.rect(frame.left, frame.top, scale.width, frame.height - frame.top);
    context.clip();
    const paper = `rgb(${colors.paper.join(" ")})`;
    const least = (3 * (view.to - view.from)) / scale.width; // 3 pixels
    for (const { lanes, pinned } of scene.rows) {
      for (const lane of lanes) {
        const y = frame.top + lane.y;
        if (lane.last === lane.first || (!pinned && lane.y < frame.pinnedHeight)) continue;
        for (let i = firstIn(events, lane, view.from - run.zero); i < lane.last; i++) {
          const start = events.start[i]! + run.zero;
          if (start > view.to) break;
          if (events.duration[i]! < least) continue;
          const x = xOf(scale, start);
          const wide = xOf(scale, start + events.duration[i]!) - x;
          context.fillStyle = paper;
          if (x > frame.left) context.fillRect(x, y, 1, lane.height);
          const seen = Math.min(x + wide, frame.width) - Math.max(x, frame.left);
          if (seen < NARROWEST || lane.height < LEGIBLE) continue;
          const name = nameOf(run, events, lane.lane, i);
          const text = this.fitted(name, seen - 6);
          if (text !== name && text.length < 5) continue;
          context.fillStyle = inks[events.category[i]!]!;
          context.fillText(text, Math.max(x, frame.left) + 4, y + lane.height / 2 + 0.5);
        }
      }
    }
    context.restore();
  }

  private countersOf(frame: Frame, colors: Palette, scale: Scale): void {
    const { context } = this;
    for (const { row, y, pinned } of frame.rows) {
      if (row.kind !== "counter") continue;
      const found = frame.counters(row.counter);
      if (!found) continue;
      context.save();
      context.beginPath();
      const top = pinned ? 0 : frame.pinnedHeight;
      context.rect(frame.left, frame.top + Math.max(y, top), scale.width, row.height);
      context.clip();
      const high = row.height - 6;
      const base = frame.top + y + row.height - 3;
      const span = found.high - found.low || 1;
      const at = (value: number) => base - ((value - found.low) / span) * high;
      for (const strip of found.strips) {
        const wide = (strip.width / (frame.view.to - frame.view.from)) * scale.width;
        for (let i = 0; i < strip.mean.length; i++) {
          const mean = strip.mean[i]!;
          if (Number.isNaN(mean)) continue;
          const x = xOf(scale, strip.start + i * strip.width);
          if (x > frame.width || x + wide < frame.left) continue;
          context.fillStyle = found.color;
          context.globalAlpha = 0.3;
          context.fillRect(x, at(strip.max[i]!), Math.max(wide, 1), Math.max(1, at(strip.min[i]!) - at(strip.max[i]!)));
          context.globalAlpha = 0.75;
          context.fillRect(x, at(mean), Math.max(wide, 1), Math.max(1, base - at(mean)));
        }
      }
      context.globalAlpha = 1;
      context.fillStyle = colors.quiet;
      context.textAlign = "right";
      context.fillText(found.scale, frame.width - 6, frame.top + y + 8);
      context.textAlign = "left";
      context.restore();
    }
  }

  private titles(frame: Frame, colors: Palette): void {
    const { context } = this;
    context.fillStyle = colors.raised;
    context.fillRect(0, frame.top, frame.left - 1, frame.height - frame.top);
    context.save();
    let last = -Infinity;
    for (const one of frame.rows) {
      const { row } = one;
      const y = frame.top + one.y;
      if (!one.pinned && one.y + row.height < frame.pinnedHeight) continue;
      if (row.kind === "group") {
        context.fillStyle = colors.raised;
        context.fillRect(0, y, frame.width, row.height);
        context.fillStyle = colors.ink;
        context.font = `600 11px ${this.font}`;
        context.fillText(`${frame.closed.has(row.id) ? "▸" : "▾"} ${row.title}`, 6, y + row.height / 2);
        context.font = `11px ${this.font}`;
        last = y + row.height;
        continue;
      }
      if (row.id === frame.focused) {
        context.fillStyle = colors.link;
        context.fillRect(0, y, 3, Math.max(2, row.height));
      }
      // Of rows that are lower than a line, every so many has its title.
      if (y < last) continue;
      const middle = row.height < LEGIBLE ? y + 6 : Math.min(y + 9, y + row.height / 2);
      const isRank = row.kind === "rank";
      context.fillStyle = isRank ? colors.ink : colors.quiet;
      const arrow = isRank && row.height >= LEGIBLE ? (frame.opened.has(row.rank) ? "▾ " : "▸ ") : "";
      const left = 8 + (one.pinned ? 0 : row.depth * 14);
      context.fillText(this.fitted(`${one.pinned ? "⚲ " : arrow}${row.title}`, frame.left - left - 6), left, middle);
      last = row.height < LEGIBLE ? y + 14 : y;
    }
    context.restore();
    context.fillStyle = colors.line;
    context.fillRect(frame.left - 1, frame.top, 1, frame.height - frame.top);
    if (frame.pinnedHeight) context.fillRect(0, frame.top + frame.pinnedHeight - 4, frame.width, 2);
  }

  private overlays(frame: Frame, colors: Palette, scale: Scale): void {
    const { context } = this;
    context.save();
    context.beginPath();
    context.rect(frame.left, 0, scale.width, frame.height);
    context.clip();
    const places = new Map<string, DrawnRow>(frame.rows.map((one) => [one.row.id, one]));
    if (frame.selection) this.selection(frame, colors, scale, places);
    for (const one of frame.highlights) {
      const found = places.get(one.row);
      if (!found) continue;
      const [a, b] = [xOf(scale, one.from), xOf(scale, one.to)];
      const y = frame.top + found.y + (one.y ?? 0);
      const high = one.height ?? found.row.height;
      context.strokeStyle = one.strong ? colors.ink : colors.link;
      context.lineWidth = one.strong ? 2 : 1.5;
      context.strokeRect(a - 0.5, y, Math.max(b - a, 2) + 1, Math.max(high - 1, 2));
    }
    this.path(frame, colors, scale);
    context.lineWidth = 1.25;
    for (const link of frame.links) {
      const [from, to] = [places.get(link.from.row), places.get(link.to.row)];
      if (!from || !to) continue;
      const [x0, y0] = [xOf(scale, link.from.time), frame.top + from.y + Math.min(from.row.height, 18) / 2];
      const [x1, y1] = [xOf(scale, link.to.time), frame.top + to.y + Math.min(to.row.height, 18) / 2];
      const bend = Math.max(12, Math.min(60, Math.abs(x1 - x0) / 2));
      context.strokeStyle = colors.warn;
      context.beginPath();
      context.moveTo(x0, y0);
      context.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1);
      context.stroke();
      context.fillStyle = colors.warn;
      context.beginPath();
      context.moveTo(x1, y1);
      context.lineTo(x1 - 6, y1 - 3.5);
      context.lineTo(x1 - 6, y1 + 3.5);
      context.fill();
    }
    for (const mark of frame.marks) {
      const x = xOf(scale, mark);
      context.fillStyle = colors.warn;
      context.fillRect(x, 0, 1, frame.height);
      context.beginPath();
      context.moveTo(x, 0);
      context.lineTo(x + 9, 4);
      context.lineTo(x, 9);
      context.fill();
    }
    context.restore();
  }

  private path(frame: Frame, colors: Palette, scale: Scale): void {
    if (!frame.path.length) return;
    const { context } = this;
    context.beginPath();
    let last = NaN;
    for (const { from, to, y } of frame.path) {
      const [a, b] = [clamp(xOf(scale, from), -10, frame.width + 10), clamp(xOf(scale, to), -10, frame.width + 10)];
      if (a === b && a !== last) continue;
      if (Number.isNaN(last)) context.moveTo(a, frame.top + y);
      else context.lineTo(a, frame.top + y);
      context.lineTo(b, frame.top + y);
      last = b;
    }
    context.lineJoin = "round";
    context.strokeStyle = `rgb(${colors.paper.join(" ")})`;
    context.lineWidth = 5;
    context.stroke();
    context.strokeStyle = colors.ink;
    context.lineWidth = 2;
    context.stroke();
  }

  private selection(frame: Frame, colors: Palette, scale: Scale, places: Map<string, DrawnRow>): void {
    const { context } = this;
    const { from, to, rows } = frame.selection!;
    const [a, b] = [clamp(xOf(scale, from), -10, frame.width + 10), clamp(xOf(scale, to), -10, frame.width + 10)];
    context.fillStyle = colors.link;
    context.globalAlpha = 0.16;
    if (!rows) context.fillRect(a, frame.top, b - a, frame.height - frame.top);
    else {
      for (const [id, one] of places) {
        if (rows.has(id)) context.fillRect(a, frame.top + one.y, b - a, one.row.height);
      }
    }
    context.globalAlpha = 1;
    context.fillRect(a, 0, 1, frame.height);
    context.fillRect(b - 1, 0, 1, frame.height);
  }

  private ruler(frame: Frame, colors: Palette, scale: Scale): void {
    const { context } = this;
    const { run, view } = frame;
    context.fillStyle = `rgb(${colors.paper.join(" ")})`;
    context.fillRect(0, 0, frame.left, frame.top);
    context.save();
    context.beginPath();
    context.rect(frame.left, 0, scale.width, frame.height);
    context.clip();
    context.fillStyle = `rgb(${colors.paper.join(" ")})`;
    context.fillRect(frame.left, 0, scale.width, frame.top);
    context.fillStyle = colors.quiet;
    for (const { at, text } of ruler(view.from - run.zero, view.to - run.zero, scale.width / 110)) {
      const x = xOf(scale, at + run.zero);
      context.fillRect(x, RULER - 5, 1, 5);
      context.fillText(text, x + 4, RULER / 2);
    }
    frame.steps.forEach((steps, i) => this.stepsOf(steps, RULER * (i + 1), frame, colors, scale));
    if (frame.density) {
      context.fillStyle = colors.warn;
      frame.density.forEach((share, i) => {
        if (share > 0) context.fillRect(frame.left + i, frame.top - 1 - Math.max(2, 7 * share), 1, Math.max(2, 7 * share));
      });
    }
    context.fillStyle = colors.line;
    context.fillRect(frame.left, frame.top - 1, scale.width, 1);
    context.restore();
    context.fillStyle = colors.line;
    context.fillRect(0, frame.top - 1, frame.left, 1);
    if (frame.steps.length > 1) {
      context.fillStyle = colors.quiet;
      ["A", "B"].forEach((name, i) => context.fillText(`${name} steps`, 8, RULER * (i + 1.5)));
    }
    if (frame.selection || frame.marks.length) this.over(frame, colors, scale);
  }

  private stepsOf(steps: Steps, top: number, frame: Frame, colors: Palette, scale: Scale): void {
    const { context } = this;
    let free = -Infinity;
    for (const { step, start, end, counts } of steps) {
      const [a, b] = [xOf(scale, start), xOf(scale, end)];
      if (b < frame.left || a > frame.width) continue;
      context.fillStyle = step % 2 ? colors.line : colors.raised;
      context.fillRect(a, top, Math.max(b - a, 0.5), RULER - 1);
      const text = `${b - a > 70 ? "step " : ""}${step}${counts || b - a < 130 ? "" : ", not counted"}`;
      const x = Math.max(a, frame.left) + 4;
      if (x < free || Math.min(b, frame.width) - x < this.wide(text)) continue;
      context.fillStyle = counts ? colors.ink : colors.quiet;
      context.fillText(text, x, top + RULER / 2);
      free = x + this.wide(text);
    }
  }

  // How wide a text is drawn, in pixels; of the names of a run there are few.
  private wide(text: string): number {
    let found = this.widths.get(text);
    if (found === undefined) {
      if (this.widths.size >= MOST_WIDTHS) this.widths.clear();
      found = this.context.measureText(text).width;
      this.widths.set(text, found);
    }
    return found;
  }

  // The text as far as it fits into so many pixels; empty where nothing does.
  private fitted(text: string, room: number): string {
    const tried = text.slice(0, Math.max(1, Math.ceil(room / THINNEST)));
    const whole = this.wide(tried);
    if (whole <= room && tried === text) return text;
    for (let letters = Math.min(tried.length, Math.floor((tried.length * room) / whole)); letters > 0; letters--) {
      const cut = `${tried.slice(0, letters)}…`;
      if (this.wide(cut) <= room) return cut;
    }
    return "";
  }

  // What stands on the ruler too.
  private over(frame: Frame, colors: Palette, scale: Scale): void {
    const { context } = this;
    context.fillStyle = colors.link;
    if (frame.selection) {
      const a = Math.max(xOf(scale, frame.selection.from), frame.left);
      const b = Math.min(xOf(scale, frame.selection.to), frame.width);
      if (b > a) context.fillRect(a, 0, b - a, 3);
    }
    context.fillStyle = colors.warn;
    for (const mark of frame.marks) {
      const x = xOf(scale, mark);
      if (x < frame.left) continue;
      context.beginPath();
      context.moveTo(x, 0);
      context.lineTo(x + 9, 4);
      context.lineTo(x, 9);
      context.fill();
    }
  }
}

// A rank's time is called by its accounts' words.
export function nameOf(run: Run, events: NonNullable<Scene["events"]>, lane: number, i: number): string {
  const isState = lane < run.ranks.rank.length;
  return (isState ? run.categories[events.category[i]!]?.name : events.names.get(events.name[i]!)) ?? "";
}

// The first of a lane's events that ends in or after the view; they do not overlap, so their ends are in order.
export function firstIn(events: NonNullable<Scene["events"]>, lane: { first: number; last: number }, from: number): number {
  let [low, high] = [lane.first, lane.last];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (events.start[middle]! + events.duration[middle]! <= from) low = middle + 1;
    else high = middle;
  }
  return low;
}
