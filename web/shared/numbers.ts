// How amounts are written. The same rules stand in `report/words/amounts.py`.

export const UNKNOWN = "–";

// A C++ name without its namespaces, so that what tells two kernels apart comes early.
export function brief(name: string): string {
  if (!name.includes("::")) return name;
  return name.replace(/^void /, "").replace(/\b(?:[A-Za-z_]\w*::)+/g, "");
}

const formats: Intl.NumberFormat[] = []; // by decimals: to make one takes longer than to write a thousand numbers

export function fixed(value: number, decimals: number): string {
  formats[decimals] ??= new Intl.NumberFormat("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
  return unsigned(formats[decimals].format(value));
}

// A number that rounds to zero has no sign.
export function unsigned(text: string): string {
  return /^-[0.]+$/.test(text) ? text.slice(1) : text;
}

export function fourDigits(value: number): string {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(3);
  const digits = value === 0 ? 3 : Math.max(0, 3 - String(Math.trunc(size)).length + (size < 1 ? 1 : 0));
  return fixed(value, digits);
}

const BYTES = [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]] as const;

export function inBytes(value: number): string {
  const found = BYTES.find(([, scale]) => Math.abs(value) >= scale);
  return found ? `${fourDigits(value / found[1])} ${found[0]}` : `${value} B`;
}

// Round numbers that cover [low, high], about `count` of them.
export function ticks(low: number, high: number, count: number): number[] {
  if (!(high > low)) return [low];
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= raw)! * power;
  const made: number[] = [];
  for (let at = Math.ceil(low / step); at * step <= high * (1 + 1e-9); at++) made.push(at * step);
  return made;
}
