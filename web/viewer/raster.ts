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
    const a = left > 0 ? Math.floor(left) : 0;
    const b = Math.min(width, Math.ceil(right));
    if (b - a === 1) {
      sums[out + a]! += share * (Math.min(right, a + 1) - Math.max(left, a));
      continue;
    }
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

// Draws the sums of a row, the first category at the bottom, into pixels [x, x + width) and [y, y + height).
export function stack(
  into: Pixels,
  sums: Float32Array,
  colors: readonly Rgb[],
  back: Rgb,
  place: { x: number; y: number; width: number; height: number; top: number },
): void {
  const { width, height } = place;
  const words = colors.map(packed);
  const top = Math.max(place.top, place.y);
  const bottom = Math.min(into.height, place.y + height);
  if (top >= bottom) return;
  const count = colors.length;
  const paper = packed(back);
  const unit = height / 255;
  for (let x = 0; x < width; x++) {
    let y = place.y + height; // pixels below are drawn; the stack grows upwards
    let level = y;
    let mixed = 0; // how much of pixel y - 1 is taken
    let [r, g, b] = [0, 0, 0];
    const column = place.x + x;
    for (let category = 0; category < count; category++) {
      const share = sums[category * width + x]!;
      if (!share) continue;
      level -= share * unit;
      const color = colors[category]!;
      const end = Math.max(level, place.y);
      while (y - end > 1e-4) {
        const part = Math.min(1 - mixed, y - mixed - end);
        if (part <= 1e-4) break;
        if (mixed === 0 && part === 1) {
          y--;
          if (y >= top && y < bottom) into.data[y * into.width + column] = words[category]!;
          continue;
        }
        r += color[0] * part;
        g += color[1] * part;
        b += color[2] * part;
        mixed += part;
        if (mixed > 1 - 1e-4) {
          y--;
          if (y >= top && y < bottom) into.data[y * into.width + column] = packed([r | 0, g | 0, b | 0]);
          mixed = r = g = b = 0;
        }
      }
    }
    if (mixed > 0) {
      const rest = 1 - mixed;
      y--;
      if (y >= top && y < bottom) {
        into.data[y * into.width + column] = packed([
          (r + back[0] * rest) | 0,
          (g + back[1] * rest) | 0,
          (b + back[2] * rest) | 0,
        ]);
      }
    }
    for (y = Math.min(y, bottom) - 1; y >= top; y--) into.data[y * into.width + column] = paper;
  }
}
