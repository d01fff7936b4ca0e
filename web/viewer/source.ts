// Asks the server. Tiles are fetched as they are looked at, coarse ones first; what is no longer looked at is cancelled.

import { ask } from "./carrier";
import { counterTile, events, tile, type Building, type CounterTile, type Events, type Run, type Tile } from "./protocol";

export class Refused extends Error {
  constructor(
    readonly kind: string,
    message: string,
    readonly hint: string,
  ) {
    super(message);
  }
}

// Answers that are slow to come are asked for compressed: the server may be far away.
let slow = false;

async function answer(url: string, signal?: AbortSignal): Promise<Response> {
  const began = performance.now();
  let got: Response;
  try {
    got = await ask(url, { signal: signal ?? null, headers: slow ? { "X-Compress": "1" } : {} });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refused("no-server", "The server does not answer.", "Is `lostflops view` still running?");
  }
  if (!got.ok) {
    const said = (await got.json().catch(() => null)) as { error?: { kind: string; message: string; hint?: string } } | null;
    const { kind, message, hint } = said?.error ?? { kind: "unknown", message: `The server says ${got.status}.`, hint: "" };
    throw new Refused(kind, message, hint ?? "");
  }
  const bytes = Number(got.headers.get("Content-Length") ?? 0);
  if (bytes > 200_000 && bytes / (performance.now() - began) < 2000) slow = true;
  return got;
}

export async function json<T>(url: string, signal?: AbortSignal): Promise<T> {
  return (await (await answer(url, signal)).json()) as T;
}

export const api = (id: string, rest: string) => `/api/run/${id}${rest}`;

export async function opened(id: string, waiting: (at: Building["building"]) => void): Promise<Run> {
  for (;;) {
    const got = await json<Run | Building>(api(id, ""));
    if (!("building" in got)) return got;
    waiting(got.building);
    await new Promise((resolve) => setTimeout(resolve, 300));
  }
}

// A store of what was fetched and of what is on its way. The least recently used goes first when it is full.
class Shelf<T> {
  readonly kept = new Map<string, { value: T; bytes: number }>();
  private readonly coming = new Map<string, AbortController>();
  private readonly failed = new Set<string>();
  private wanted: { key: string; url: string }[] = [];
  private bytes = 0;

  constructor(
    private readonly read: (buffer: ArrayBuffer) => T,
    private readonly most: number,
    private readonly atOnce: number,
    private readonly arrived: () => void,
    private readonly went: (error: unknown) => void,
  ) {}

  get(key: string): T | undefined {
    const found = this.kept.get(key);
    if (!found) return undefined;
    this.kept.delete(key);
    this.kept.set(key, found);
    return found.value;
  }

  get idle(): boolean {
    return !this.coming.size;
  }

  // What is to be there, the most urgent first; all else is given up.
  want(wanted: { key: string; url: string }[]): void {
    const keys = new Set(wanted.map((one) => one.key));
    for (const [key, control] of this.coming) {
      if (!keys.has(key)) {
        control.abort();
        this.coming.delete(key);
      }
    }
    this.wanted = wanted.filter(({ key }) => !this.kept.has(key) && !this.coming.has(key) && !this.failed.has(key));
    this.pump();
  }

  private pump(): void {
    while (this.wanted.length && this.coming.size < this.atOnce) {
      const { key, url } = this.wanted.shift()!;
      void this.fetch(key, url);
    }
  }

  private async fetch(key: string, url: string): Promise<void> {
    const control = new AbortController();
    this.coming.set(key, control);
    try {
      const buffer = await (await answer(url, control.signal)).arrayBuffer();
      if (control.signal.aborted) return;
      this.kept.set(key, { value: this.read(buffer), bytes: buffer.byteLength });
      this.bytes += buffer.byteLength;
      for (const [old, { bytes }] of this.kept) {
        if (this.bytes <= this.most || old === key) break;
        this.kept.delete(old);
        this.bytes -= bytes;
      }
      this.arrived();
    } catch (error) {
      if (control.signal.aborted) return;
      this.failed.add(key);
      this.went(error);
    } finally {
      if (this.coming.get(key) === control) this.coming.delete(key);
      this.pump();
    }
  }
}

const STATE_BLOCK = 256; // lanes of a request, where a lane is a rank's state
const BLOCK = 32;

export interface Block {
  name: string;
  lanes: string;
}

export class Source {
  readonly tiles: Shelf<Tile>;
  readonly counters: Shelf<CounterTile>;
  private readonly blocks: Block[] = [];
  private events_: { from: number; to: number; lanes: string; got: Events } | null = null;
  private asking: { from: number; to: number; lanes: string; control: AbortController; failed?: boolean } | null = null;

  constructor(
    readonly run: Run,
    private readonly arrived: () => void,
    private readonly went: (error: unknown) => void,
  ) {
    this.tiles = new Shelf(tile, 400e6, 5, arrived, went);
    this.counters = new Shelf(counterTile, 50e6, 2, arrived, went);
  }

  // Whether nothing is on its way.
  get idle(): boolean {
    return this.tiles.idle && this.counters.idle && (!this.asking || !!this.asking.failed);
  }

  data(rest: string): string {
    return `/data/${this.run.id}/${this.run.hash}/${rest}`;
  }

  width(level: number): number {
    return this.run.levels.base_width * this.run.levels.factor ** level;
  }

  // The coarsest level whose buckets are at most `ns` wide.
  level(ns: number): number {
    const { finest, coarsest, base_width, factor } = this.run.levels;
    const level = Math.floor(Math.log(Math.max(ns, 1e-9) / base_width) / Math.log(factor) + 1e-9);
    return Math.min(Math.max(level, finest), coarsest);
  }

  indices(level: number, from: number, to: number): [number, number] {
    const span = this.width(level) * this.run.levels.buckets;
    const last = Math.max(0, Math.ceil((this.run.end - this.run.zero) / span) - 1);
    const at = (time: number) => Math.min(Math.max(Math.floor((time - this.run.zero) / span), 0), last);
    return [at(from), at(to)];
  }

  // The lanes that travel together with this one.
  block(lane: number): Block {
    return (this.blocks[lane] ??= this.blockOf(lane));
  }

  private blockOf(lane: number): Block {
    const ranks = this.run.ranks.rank.length;
    const [size, base, end] = lane < ranks ? [STATE_BLOCK, 0, ranks] : [BLOCK, ranks, this.run.lanes.track.length];
    const first = base + Math.floor((lane - base) / size) * size;
    const last = Math.min(first + size, end) - 1;
    const known = this.blocks[first];
    return known ?? (this.blocks[first] = { name: `${first}`, lanes: `${first}-${last}` });
  }

  key(level: number, index: number, block: Block): string {
    return `${level}/${index}/${block.name}`;
  }

  wantTile(level: number, index: number, block: Block): { key: string; url: string } {
    return { key: this.key(level, index, block), url: this.data(`tile/${level}/${index}?lanes=${block.lanes}`) };
  }

  // Single events of these lanes in and around a window: the longest where there are too many. What was fetched for a
  // wider window serves until it lacks some that would be wide enough to see.
  eventsOf(lanes: string, from: number, to: number, limit: number): Events | null {
    const has = this.events_;
    const fits = (one: { from: number; to: number; lanes: string }) =>
      one.lanes === lanes && one.from <= from && one.to >= to && one.to - one.from <= 8 * (to - from);
    const all = has && has.got.shown === has.got.total;
    if (has && has.lanes === lanes && has.from <= from && has.to >= to && (all || fits(has))) return has.got;
    if (!this.asking || !fits(this.asking)) void this.single(lanes, from, to, limit);
    return has ? has.got : null;
  }

  private async single(lanes: string, from: number, to: number, limit: number): Promise<void> {
    this.asking?.control.abort();
    const room = to - from;
    const asking: NonNullable<typeof this.asking> = {
      lanes,
      from: Math.floor(from - room),
      to: Math.ceil(to + room),
      control: new AbortController(),
    };
    this.asking = asking;
    const at = (time: number) => Math.min(Math.max(time, this.run.zero), this.run.end);
    const url = this.data(`events?lanes=${lanes}&from=${at(asking.from)}&to=${Math.max(at(asking.to), at(asking.from) + 1)}&limit=${limit}`);
    try {
      const got = events(await (await answer(url, asking.control.signal)).arrayBuffer());
      if (this.asking !== asking) return;
      this.events_ = { lanes, from: asking.from, to: asking.to, got };
      this.asking = null;
      this.arrived();
    } catch (error) {
      if (asking.control.signal.aborted) return;
      asking.failed = true;
      this.went(error);
    }
  }
}
