// What the reader points at, in a box beside the pointer.

import { signal } from "@preact/signals";

export const tip = signal<{ x: number; y: number; lines: string[] } | null>(null);

export function pointing(lines: () => string[]) {
  const show = (event: PointerEvent) => {
    tip.value = { x: event.clientX, y: event.clientY, lines: lines() };
  };
  return { onPointerEnter: show, onPointerMove: show, onPointerLeave: hide };
}

export function hide(): void {
  tip.value = null;
}

export function Tip() {
  const shown = tip.value;
  if (!shown) return null;
  const right = shown.x > innerWidth / 2;
  const style = right
    ? { right: `${innerWidth - shown.x + 14}px`, top: `${shown.y + 14}px` }
    : { left: `${shown.x + 14}px`, top: `${shown.y + 14}px` };
  return (
    <div class="tip" style={style} role="status">
      {shown.lines.map((line, i) => (
        <div key={i} class={i ? undefined : "first"}>
          {line}
        </div>
      ))}
    </div>
  );
}
