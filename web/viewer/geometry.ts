// Between times and pixels.

import type { Span } from "./state";

export function clamp(value: number, low: number, high: number): number {
  return Math.min(Math.max(value, low), high);
}

export interface Scale {
  left: number; // pixel where the view begins
  width: number;
  view: Span;
}

export function xOf({ left, width, view }: Scale, time: number): number {
  return left + ((time - view.from) / (view.to - view.from)) * width;
}

export function timeOf({ left, width, view }: Scale, x: number): number {
  return view.from + ((x - left) / width) * (view.to - view.from);
}
