// Turns shares of time into pixels. In a row each category is as high as its share, so that area is time at every zoom
// and hues stay what they are: blending them would turn brown.

export type Rgb = readonly [number, number, number];

// Rows of less than 5 pixels have no room for a stack: their pixels are dealt to the categories by an ordered pattern,
// which keeps area equal to time over a few neighbours.
const PATTERN = [0, 8, 2, 10, 12, 4, 14, 6, 3, 11, 1, 9, 15, 7, 13, 5].map((rank) => (rank + 0.5) / 16);

export interface Pixels {
  data: Uint32Array; // what an ImageData holds, little-endian RGBA
  width: number;
  height: number;
}

export function packed([r, g, b]: Rgb): number {
  return (0xff000000 | (b << 16) | (g << 8) | r) >>> 0;
}

// Adds what of some buckets falls into each pixel of [0, width) to `sums`, from `out` on; a full pixel is 255. The first
// bucket begins at pixel `first`, and each is `scale` pixels wide.
export function resample(
  sums: Float32Array, out: number, width: number, shares: ArrayLike<number>, from: number, count: number, first: number, scale: number,
): void {
  const low = Math.max(0, Math.floor(-first / scale));
  const high = Math.min(count, Math.ceil((width - first) / scale));
  for (let bucket = low; bucket < high; bucket++) {
    const share = shares[from + bucket]!;
    if (!share) continue;
    const left = first + bucket * scale;
    const right = left + scale;
    const a = left > 0 ? left | 0 : 0;
    if (right <= a + 1) {
      sums[out + a]! += share * (left > a ? right - left : right - a);
      continue;
    }
    const b = Math.min(width, Math.ceil(right));
    for (let x = a; x < b; x++) sums[out + x]! += share * (Math.min(right, x + 1) - Math.max(left, x));
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

const SPECK = 1e-4; // of a pixel: less is nothing

// Draws the sums of a row, the first category at the bottom, into pixels [x, x + width) and [y, y + height). Most of a
// frame's time is spent here: no array is made and no object is read for a pixel.
export function stack(
  into: Pixels,
  sums: Float32Array,
  colors: readonly Rgb[],
  back: Rgb,
  place: { x: number; y: number; width: number; height: number; top: number },
): void {
  const { data, width: line } = into;
  const { width, height, y: ceiling } = place;
  const top = Math.max(place.top, ceiling);
  const bottom = Math.min(into.height, ceiling + height);
  if (top >= bottom) return;
  const count = colors.length;
  const words = Uint32Array.from(colors, packed);
  const parts = Float64Array.from(colors.flat());
  const paper = packed(back);
  const unit = height / 255;
  for (let x = 0; x < width; x++) {
    const column = place.x + x;
    let y = ceiling + height; // pixels below are drawn; the stack grows upwards
    let level = y;
    let mixed = 0; // how much of pixel y - 1 is taken, and by which colour
    let r = 0;
    let g = 0;
    let b = 0;
    for (let category = 0; category < count; category++) {
      const share = sums[category * width + x]!;
      if (share === 0) continue;
      level -= share * unit;
      if (level < ceiling) level = ceiling;
      if (mixed > 0) {
        const room = 1 - mixed;
        const left = y - mixed - level;
        const part = left < room ? left : room;
        if (part <= SPECK) continue;
        r += parts[3 * category]! * part;
        g += parts[3 * category + 1]! * part;
        b += parts[3 * category + 2]! * part;
        mixed += part;
        if (mixed <= 1 - SPECK) continue;
        y--;
        if (y >= top && y < bottom) data[y * line + column] = (0xff000000 | (b << 16) | (g << 8) | r) >>> 0;
        mixed = r = g = b = 0;
      }
      const stop = y - Math.floor(y - level + SPECK);
      const word = words[category]!;
      for (let at = Math.min(y, bottom) - 1, last = Math.max(stop, top); at >= last; at--) data[at * line + column] = word;
      y = stop;
      const rest = y - level;
      if (rest <= SPECK) continue;
      mixed = rest;
      r = parts[3 * category]! * rest;
      g = parts[3 * category + 1]! * rest;
      b = parts[3 * category + 2]! * rest;
    }
    if (mixed > 0) {
      const rest = 1 - mixed;
      y--;
      if (y >= top && y < bottom) {
        data[y * line + column] = packed([(r + back[0] * rest) | 0, (g + back[1] * rest) | 0, (b + back[2] * rest) | 0]);
      }
    }
    for (let at = Math.min(y, bottom) - 1; at >= top; at--) data[at * line + column] = paper;
  }
}
