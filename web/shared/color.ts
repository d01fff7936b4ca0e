// Scales that read the same with every kind of colour vision, on light and on dark paper.

type Rgb = [number, number, number];

const AMOUNT = {
  light: ["#f4f1e8", "#c8d6d3", "#85afc4", "#3f7fb0", "#154a80"],
  dark: ["#1f262d", "#234761", "#2f729c", "#6aa9cf", "#d8edf4"],
};
const DEVIATION = {
  light: ["#12508f", "#6fa3cf", "#f3f1ed", "#e8a15c", "#a8480a"],
  dark: ["#8cc8ff", "#3b719f", "#232a31", "#a8622b", "#ffb066"],
};

export const dark = matchMedia("(prefers-color-scheme: dark)");

function scale(stops: string[]): (share: number) => Rgb {
  const parsed = stops.map((stop): Rgb => [1, 3, 5].map((at) => parseInt(stop.slice(at, at + 2), 16)) as Rgb);
  return (share) => {
    const at = Math.min(Math.max(share, 0), 1) * (parsed.length - 1);
    const low = Math.min(Math.floor(at), parsed.length - 2);
    const [a, b] = [parsed[low]!, parsed[low + 1]!];
    return a.map((part, i) => Math.round(part + (b[i]! - part) * (at - low))) as Rgb;
  };
}

export function amountScale(onDark = dark.matches): (share: number) => Rgb {
  return scale(onDark ? AMOUNT.dark : AMOUNT.light);
}

// 0 is far below, 0.5 none, 1 far above.
export function deviationScale(onDark = dark.matches): (share: number) => Rgb {
  return scale(onDark ? DEVIATION.dark : DEVIATION.light);
}

export function css([r, g, b]: Rgb): string {
  return `rgb(${r} ${g} ${b})`;
}

export function variable(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
