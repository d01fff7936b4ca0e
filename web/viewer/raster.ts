// Turns shares of time into pixels. In a row each category is as high as its share, so that area is time at every zoom
// and hues stay what they are: blending them would turn brown.

export type Rgb = readonly [number, number, number];

// Rows of less than 5 pixels have no room for a stack: their pixels are dealt to the categories by an ordered pattern,
// which keeps area equal to time over a few neighbours.
const PATTERN = [0, 8, 2, 10, 12, 4, 14, 6, 3, 11, 1, 9, 15, 7, 13, 5].map((rank) => (rank + 0.5) / 16);

export function packed([r, g, b]: Rgb): number {
  return (0xff000000 | (b << 16) | (g << 8) | r) >>> 0;
}

// Sums of shares up to each bucket, plane by plane: a pixel's share is then the difference of two of them, however many
// buckets it spans. A plane takes one entry more than it has buckets.
export function running(shares: ArrayLike<number>, planes: number, buckets: number): Uint16Array {
  const made = new Uint16Array(planes * (buckets + 1) + 1); // 255 * 256 fits; the last entry is read, times zero
  for (let plane = 0, from = 0, to = 0; plane < planes; plane++, to++) {
    for (let i = 0, sum = 0; i < buckets; i++) made[++to] = sum += shares[from++]!;
  }
  return made;
}

// Where in a tile's buckets the edges of pixels [left, right] lie: bucket, and how much of it is before the edge.
export interface Edges {
  left: number;
  right: number;
  bucket: Uint16Array;
  part: Float64Array;
  scale: number; // pixels of a bucket
}

// Of buckets [from, from + count), of which the first begins at pixel `first` and each is `scale` pixels wide.
export function edges(width: number, from: number, count: number, first: number, scale: number): Edges {
  const left = Math.min(width, Math.max(0, Math.floor(first)));
  const right = Math.max(left, Math.min(width, Math.ceil(first + count * scale)));
  const bucket = new Uint16Array(right - left + 1);
  const part = new Float64Array(right - left + 1);
  for (let i = 0; i < bucket.length; i++) {
    const at = Math.min(Math.max((left + i - first) / scale, 0), count);
    const whole = Math.floor(at);
    bucket[i] = from + whole;
    part[i] = at - whole;
  }
  return { left, right, bucket, part, scale };
}

// Adds a plane's share of each of the pixels [from, to) to `sums`, of which pixel 0 is at `out`; a full pixel is 255.
export function gather(
  sums: Float32Array, out: number, sum: ArrayLike<number>, plane: number, at: Edges, from: number, to: number,
): void {
  const { left, right, bucket, part, scale } = at;
  const first = Math.max(from, left);
  const last = Math.min(to, right);
  if (first >= last) return;
  let place = plane + bucket[first - left]!;
  let before = sum[place]! + part[first - left]! * (sum[place + 1]! - sum[place]!);
  for (let x = first; x < last; x++) {
    const i = x + 1 - left;
    place = plane + bucket[i]!;
    const low = sum[place]!;
    const after = low + part[i]! * (sum[place + 1]! - low);
    if (after !== before) sums[out + x]! += (after - before) * scale;
    before = after;
  }
}

// Which category each pixel of a low row shows in each bucket: [pixel row][bucket], 255 for none. `line` is where the
// row stands among all rows, so that neighbours take different parts of the pattern.
export function dealt(
  shares: Uint8Array, categories: readonly number[], buckets: number, height: number, line: number,
): Uint8Array {
  const made = new Uint8Array(height * buckets).fill(255);
  for (let y = 0; y < height; y++) {
    const row = ((line + y) & 3) * 4;
    for (let bucket = 0; bucket < buckets; bucket++) {
      let level = ((y + PATTERN[row + (bucket & 3)]!) / height) * 255;
      for (let plane = 0; plane < categories.length; plane++) {
        level -= shares[plane * buckets + bucket]!;
        if (level < 0) {
          made[y * buckets + bucket] = categories[plane]!;
          break;
        }
      }
    }
  }
  return made;
}

const SPECK = 0.02; // of a share of 255: less is nothing

// Draws pixels [from, to) of a row that is `height` pixels high into `data`, the first category at the bottom. `sums` and
// `data` have `line` entries per category and per line of pixels. Most of a frame's time is spent here: no array is made
// and no object is read for a pixel.
export function stack(
  data: Uint32Array, sums: Float32Array, colors: readonly Rgb[], back: Rgb, line: number, height: number, from: number, to: number,
): void {
  const count = colors.length;
  const words = Uint32Array.from(colors, packed);
  const parts = Float64Array.from(colors.flat());
  const paper = packed(back);
  const full = 255 / height; // of a share: what a pixel holds
  const whole = full - SPECK / height;
  const each = 1 / full;
  const bottom = (height - 1) * line;
  for (let x = from; x < to; x++) {
    let at = bottom + x; // the pixel that is drawn next; the stack grows upwards
    let room = full; // of that pixel
    let r = 0;
    let g = 0;
    let b = 0;
    for (let category = 0, place = x; category < count; category++, place += line) {
      let share = sums[place]!;
      if (share === 0) continue;
      const part = 3 * category;
      if (room < full) {
        const taken = share < room ? share : room;
        r += parts[part]! * taken;
        g += parts[part + 1]! * taken;
        b += parts[part + 2]! * taken;
        room -= taken;
        share -= taken;
        if (room > SPECK) continue;
        if (at >= 0) data[at] = 0xff000000 | ((b * each) << 16) | ((g * each) << 8) | (r * each);
        at -= line;
        room = full;
      }
      for (; share >= whole && at >= 0; at -= line, share -= full) data[at] = words[category]!;
      if (share <= SPECK) continue;
      room = full - share;
      r = parts[part]! * share;
      g = parts[part + 1]! * share;
      b = parts[part + 2]! * share;
    }
    if (room < full && at >= 0) {
      data[at] = packed([((r + back[0] * room) * each) | 0, ((g + back[1] * room) * each) | 0, ((b + back[2] * room) * each) | 0]);
      at -= line;
    }
    for (; at >= 0; at -= line) data[at] = paper;
  }
}
