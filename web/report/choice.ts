// The rank and step that the reader has chosen in the heat map; every part of the page follows them.

import { signal } from "@preact/signals";

export interface Choice {
  rank: string | null;
  step: string | null;
}

export const choice = signal<Choice>({ rank: null, step: null });
