// What is to be drawn now: the rows in view, with the finest tiles that are here, and what else has to be fetched.

import { clamp } from "./geometry";
import { laneList, type Events, type Planes, type Tile } from "./protocol";
import { firstBelow, type Row } from "./rows";
import type { Block, Source } from "./source";
import type { Span } from "./state";

// Buckets [first, first + count) of a tile, and where in time they are drawn.
export interface Piece {
  tile: Tile;
  first: number;
  count: number;
  start: number;
  width: number; // of a bucket, ns
}

export interface LaneStrip {
  planes: Planes;
  piece: Piece; // the part of a tile that it is seen by
}

export interface DrawnLane {
  lane: number;
  y: number;
  height: number;
  strips: LaneStrip[];
  pieces: readonly Piece[]; // all that its block is seen by; the same array in each lane of the block
  exact: boolean; // whether no piece is of a coarser tile than it should be
  first: number; // events [first, last) of `events` are its own
  last: number;
}

export interface DrawnRow {
  row: Row;
  y: number;
  pinned: boolean;
  lanes: DrawnLane[];
}

export interface Scene {
  rows: DrawnRow[];
  events: Events | null;
  coarse: boolean; // whether something finer is on its way
  asked: boolean; // whether single events were asked for
}

const LOW = 5; // rows below this are dealt, not stacked: half the buckets do
const MOST_EVENTS = 20_000;
const TOO_MANY = 3_000_000; // events in the rows in view, from which on nobody asks for single ones
const LEAST_LANE = 8; // pixels: events are drawn one by one from here on

interface Asked {
  key: string;
  url: string;
}

export function scene(
  source: Source,
  rows: Row[],
  pinned: Row[],
  view: Span,
  place: { scroll: number; top: number; height: number; width: number },
  other = false, // whether the rows of the run below are wanted, in that run's times
): Scene {
  const shown: DrawnRow[] = pinned.map((row) => ({ row, y: row.top, pinned: true, lanes: [] }));
  for (let i = firstBelow(rows, place.scroll); i < rows.length; i++) {
    const row = rows[i]!;
    const y = row.top - place.scroll + place.top;
    if (y >= place.height) break;
    if (row.other !== other) continue;
    shown.push({ row, y, pinned: false, lanes: [] });
  }
  const perPixel = (view.to - view.from) / Math.max(1, place.width);
  const lists: Lists = { coarse: new Map(), exact: new Map(), around: new Map(), missing: false, pieces: new Map() };
  const single: number[] = [];
  for (const one of shown) {
    const { row } = one;
    const gap = row.kind === "track" ? 2 : 0;
    const high = row.lanes.length ? (row.height - gap) / row.lanes.length : 0;
    row.lanes.forEach((lane, i) => {
      const y = one.y + i * high;
      if (y + high < 0 || y > place.height) return;
      const tall = row.lanes.length > 1 || row.kind === "track" ? high - 1 : high;
      const level = source.level(tall < LOW ? 2 * perPixel : perPixel);
      const { made, pieces, exact } = strips(source, lane, level, view, lists);
      one.lanes.push({ lane, y, height: tall, strips: made, pieces, exact, first: 0, last: 0 });
      if (tall >= LEAST_LANE) single.push(lane);
    });
  }
  source.tiles.want([...lists.coarse.values(), ...lists.exact.values(), ...(lists.missing ? [] : lists.around.values())]);
  const events = single.length ? eventsIn(source, single, view) : null;
  if (events && events !== "none") {
    for (const { lanes } of shown) {
      for (const lane of lanes) {
        const found = events.lanes.get(lane.lane);
        if (!found) continue;
        lane.first = found.from;
        lane.last = found.to;
      }
    }
  }
  return {
    rows: shown,
    events: events === "none" ? null : events,
    coarse: lists.missing,
    asked: events !== "none" && single.length > 0,
  };
}

interface Lists {
  coarse: Map<string, Asked>;
  exact: Map<string, Asked>;
  around: Map<string, Asked>;
  missing: boolean;
  pieces: Map<Block, Map<number, Seen>>;
}

// What is here of a block's tiles over a view, and whether it is all of the level that was asked for.
interface Seen {
  pieces: Piece[];
  exact: boolean;
}

// Many lanes share a block: its tiles are looked up once a frame.
function strips(source: Source, lane: number, level: number, view: Span, lists: Lists): Seen & { made: LaneStrip[] } {
  const block = source.block(lane);
  let seen = lists.pieces.get(block)?.get(level);
  if (!seen) {
    seen = piecesOf(source, block, level, view, lists);
    if (!lists.pieces.has(block)) lists.pieces.set(block, new Map());
    lists.pieces.get(block)!.set(level, seen);
  }
  const made: LaneStrip[] = [];
  for (const piece of seen.pieces) {
    const planes = piece.tile.lanes.get(lane);
    if (planes) made.push({ planes, piece });
  }
  return { ...seen, made };
}

// What is here of a block's tiles over the view: where one is missing, what is known from coarser ones.
function piecesOf(source: Source, block: Block, level: number, view: Span, lists: Lists): Seen {
  const [first, last] = source.indices(level, view.from, view.to);
  const made: Piece[] = [];
  let exact = true;
  const span = source.width(level) * source.run.levels.buckets;
  for (let index = first; index <= last; index++) {
    const key = source.key(level, index, block);
    const tile = source.tiles.get(key);
    if (tile) {
      put(made, source, tile, 0, source.run.levels.buckets);
      continue;
    }
    lists.missing = true;
    exact = false;
    lists.exact.set(key, source.wantTile(level, index, block));
    const start = source.run.zero + index * span;
    if (!fallback(made, source, block, level, start, span)) coarse(source, block, level, start, lists);
  }
  for (const index of [first - 1, last + 1]) {
    if (index < 0 || index > source.indices(level, view.from, source.run.end)[1]) continue;
    const ask = source.wantTile(level, index, block);
    lists.around.set(ask.key, ask);
  }
  return { pieces: made, exact };
}

const AHEAD = 2; // levels: a coarser tile holds 16 times the time

function coarse(source: Source, block: Block, level: number, start: number, lists: Lists): void {
  const higher = Math.min(level + AHEAD, source.run.levels.coarsest);
  if (higher === level) return;
  const ask = source.wantTile(higher, source.indices(higher, start, start)[0], block);
  lists.coarse.set(ask.key, ask);
}

function fallback(
  made: Piece[], source: Source, block: Block, level: number, start: number, span: number,
): boolean {
  for (let higher = level + 1; higher <= source.run.levels.coarsest; higher++) {
    const index = source.indices(higher, start, start)[0];
    const tile = source.tiles.get(source.key(higher, index, block));
    if (!tile) continue;
    const width = source.width(higher);
    const at = (start - source.run.zero) / width - index * tile.buckets;
    const first = clamp(Math.floor(at), 0, tile.buckets - 1);
    put(made, source, tile, first, Math.max(1, Math.min(Math.ceil(span / width), tile.buckets - first)), start, span);
    return true;
  }
  return false;
}

// A coarse bucket that is wider than the missing tile counts only where that would be.
function put(
  made: Piece[], source: Source, tile: Tile, first: number, count: number, start?: number, span?: number,
): void {
  const width = source.width(tile.level);
  const from = source.run.zero + (tile.index * tile.buckets + first) * width;
  const cut = start !== undefined && span !== undefined && count === 1 && width > span;
  made.push({ first, count, start: cut ? start : from, width: cut ? span : width, tile });
}

function eventsIn(source: Source, lanes: number[], view: Span): Events | null | "none" {
  const { run } = source;
  const share = Math.min(1, (view.to - view.from) / (run.end - run.zero || 1));
  const about = lanes.reduce((sum, lane) => sum + (run.lanes.num_events[lane] ?? 0), 0) * share;
  if (about > TOO_MANY) return "none";
  return source.eventsOf(laneList(lanes), view.from, view.to, MOST_EVENTS);
}
