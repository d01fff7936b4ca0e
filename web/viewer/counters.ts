// Counters over the view, each on its own scale.

import { fourDigits } from "../shared/numbers";
import type { Source } from "./source";
import type { Span } from "./state";

export interface CounterView {
  low: number;
  high: number;
  scale: string;
  color: string;
  strips: { start: number; width: number; min: Float32Array; mean: Float32Array; max: Float32Array }[];
}

// What is here of these counters; what is not is asked for.
export function countersIn(source: Source, wanted: number[], view: Span, width: number, color: string): Map<number, CounterView> {
  const made = new Map<number, CounterView>();
  const known = source.run.counters;
  const level = source.level(((view.to - view.from) / Math.max(1, width)) * 2);
  const [first, last] = source.indices(level, view.from, view.to);
  const asks = new Map<string, { key: string; url: string }>();
  for (const counter of wanted) {
    const unit = known.unit[counter] ?? "";
    const low = Math.min(0, known.min[counter]!);
    const high = unit === "%" ? Math.max(100, known.max[counter]!) : known.max[counter]!;
    const one: CounterView = { low, high, color, scale: `${low ? `${fourDigits(low)} to ` : ""}${fourDigits(high)} ${unit}`, strips: [] };
    const block = Math.floor(counter / 8) * 8;
    const until = Math.min(block + 8, known.rank.length) - 1;
    for (let index = first; index <= last; index++) {
      const key = `${level}/${index}/${block}`;
      asks.set(key, { key, url: source.data(`counter/${level}/${index}?counters=${block}-${until}`) });
      const found = source.counters.get(key)?.counters.get(counter);
      const bucket = source.width(level);
      if (found) one.strips.push({ start: source.run.zero + index * 256 * bucket, width: bucket, ...found });
    }
    made.set(counter, one);
  }
  source.counters.want([...asks.values()]);
  return made;
}
