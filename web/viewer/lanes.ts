// Keeps the pixels of each lane that was drawn. What moved is copied, what is new is drawn; where a frame has no time left,
// a lane's last picture is stretched to the new view, and drawn exactly in a later frame.

import type { DrawnLane, Piece } from "./frame";
import type { Palette } from "./palette";
import { edges, gather, running, stack, type Edges, type Rgb } from "./raster";
import type { Span } from "./state";

export interface Picture {
  data: Uint32Array; // [line][pixel]
  from: number; // time of pixel 0
  perPixel: number; // ns
  pieces: readonly Piece[];
  exact: boolean; // whether no coarser tile had to do
  colors: Palette;
}

// How a picture of another view is shown in this one: which of its pixels each pixel takes.
export interface Stretch {
  first: number; // pixels [first, last) are there
  last: number;
  take: Int32Array;
}

const MOST = 48e6; // bytes of pictures
const SAME = 1e-3; // pixels: less is no move

export class Lanes {
  private readonly kept = new Map<string, Picture>();
  private readonly edges = new WeakMap<Piece, { perPixel: number; from: number; found: Edges }>();
  private readonly sums = new WeakMap<Uint8Array, Uint16Array>();
  private scratch = new Float32Array(0);
  private width = 0;
  private bytes = 0;
  private stretched: { of: Picture; from: number; perPixel: number; found: Stretch } | null = null;

  // The picture of a lane, whole for this view; or, when there is no time, one of another view.
  picture(
    key: string, lane: DrawnLane, order: readonly number[], colors: Palette, view: Span, width: number, height: number, hasTime: () => boolean,
  ): { picture: Picture; stretch: Stretch | null } {
    if (width !== this.width) this.forget(width);
    const perPixel = (view.to - view.from) / width;
    let found = this.kept.get(key);
    if (found) this.kept.delete(key);
    if (found && (found.colors !== colors || found.data.length !== width * height)) found = this.dropped(found);
    if (found) {
      this.kept.set(key, found);
      const shift = (view.from - found.from) / perPixel;
      const grown = Math.abs(found.perPixel / perPixel - 1) * width;
      if (grown > SAME || Math.abs(shift - Math.round(shift)) > SAME) {
        const stretch = this.stretch(found, view.from, perPixel);
        if (stretch.first < stretch.last && !hasTime()) return { picture: found, stretch };
        this.paint(found, lane, order, view.from, perPixel, height, 0, width);
        [found.from, found.perPixel, found.pieces] = [view.from, perPixel, lane.pieces];
      } else this.follow(found, lane, order, view.from, perPixel, height, Math.round(shift));
      found.exact = lane.exact;
      return { picture: found, stretch: null };
    }
    const made: Picture = { data: new Uint32Array(width * height), from: view.from, perPixel, pieces: lane.pieces, exact: lane.exact, colors };
    this.paint(made, lane, order, view.from, perPixel, height, 0, width);
    this.kept.set(key, made);
    this.bytes += made.data.byteLength;
    for (const [old, { data }] of this.kept) {
      if (this.bytes <= MOST || old === key) break;
      this.kept.delete(old);
      this.bytes -= data.byteLength;
    }
    return { picture: made, stretch: null };
  }

  // Columns [from, to) of a lane on paper of their own: what a stretched picture lacks.
  columns(lane: DrawnLane, order: readonly number[], colors: Palette, view: Span, width: number, height: number, from: number, to: number): Uint32Array {
    const made: Picture = { data: new Uint32Array(width * height), from: view.from, perPixel: 0, pieces: [], exact: false, colors };
    this.paint(made, lane, order, view.from, (view.to - view.from) / width, height, from, to);
    return made.data;
  }

  private dropped(old: Picture): undefined {
    this.bytes -= old.data.byteLength;
    return undefined;
  }

  private forget(width: number): void {
    this.kept.clear();
    this.width = width;
    this.bytes = 0;
  }

  // Moves a picture by whole pixels, and draws what came into view and where other tiles are here now.
  private follow(picture: Picture, lane: DrawnLane, order: readonly number[], from: number, perPixel: number, height: number, shift: number): void {
    const { width } = this;
    const { data } = picture;
    let [first, last] = [width, 0];
    if (shift) {
      const stays = Math.max(0, width - Math.abs(shift));
      for (let line = 0; line < height && stays; line++) {
        const at = line * width;
        if (shift > 0) data.copyWithin(at, at + shift, at + width);
        else data.copyWithin(at - shift, at, at + stays);
      }
      [first, last] = shift > 0 ? [stays, width] : [0, width - stays];
    }
    // Columns that were exact stay so: only where coarser tiles had to do are others looked for.
    if (!picture.exact) {
      for (const piece of lane.pieces) {
        const { tile, first: bucket, count } = piece;
        if (picture.pieces.some((one) => one.tile === tile && one.first === bucket && one.count === count)) continue;
        const { left, right } = this.edgesOf(piece, from, perPixel);
        [first, last] = [Math.min(first, left), Math.max(last, right)];
      }
    }
    if (first < last) this.paint(picture, lane, order, from, perPixel, height, first, last);
    picture.from += shift * picture.perPixel; // not `from`: what is less than a move must not add up
    picture.pieces = lane.pieces;
  }

  private paint(picture: Picture, lane: DrawnLane, order: readonly number[], from: number, perPixel: number, height: number, first: number, last: number): void {
    const { width } = this;
    const size = order.length * width;
    if (this.scratch.length < size) this.scratch = new Float32Array(size);
    const sums = this.scratch;
    for (let slot = 0; slot < order.length; slot++) sums.fill(0, slot * width + first, slot * width + last);
    for (const { planes, piece } of lane.strips) {
      const { shares, categories } = planes;
      const { buckets } = piece.tile;
      let sum = this.sums.get(shares);
      if (!sum) this.sums.set(shares, (sum = running(shares, categories.length, buckets)));
      const at = this.edgesOf(piece, from, perPixel);
      for (let plane = 0; plane < categories.length; plane++) {
        const slot = order.indexOf(categories[plane]!);
        if (slot >= 0) gather(sums, slot * width, sum, plane * (buckets + 1), at, first, last);
      }
    }
    const shades: Rgb[] = order.map((category) => picture.colors.categories[category]!);
    stack(picture.data, sums, shades, picture.colors.paper, width, height, first, last);
  }

  // Many lanes are seen by the same piece.
  private edgesOf(piece: Piece, from: number, perPixel: number): Edges {
    const known = this.edges.get(piece);
    if (known?.from === from && known.perPixel === perPixel) return known.found;
    const found = edges(this.width, piece.first, piece.count, (piece.start - from) / perPixel, piece.width / perPixel);
    this.edges.set(piece, { from, perPixel, found });
    return found;
  }

  private stretch(of: Picture, from: number, perPixel: number): Stretch {
    const known = this.stretched;
    if (known && known.of.from === of.from && known.of.perPixel === of.perPixel && known.from === from && known.perPixel === perPixel) return known.found;
    const { width } = this;
    const take = new Int32Array(width);
    const [begin, step] = [(from - of.from) / of.perPixel, perPixel / of.perPixel];
    const first = Math.min(width, Math.max(0, Math.ceil(-begin / step - 0.5)));
    const last = Math.max(first, Math.min(width, Math.ceil((width - begin) / step - 0.5)));
    for (let x = first; x < last; x++) take[x] = Math.min(width - 1, Math.max(0, Math.floor(begin + (x + 0.5) * step)));
    const found = { first, last, take };
    this.stretched = { of: { ...of }, from, perPixel, found };
    return found;
  }
}
