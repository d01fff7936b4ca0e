// The whole run above the timeline: the mean of all ranks, with the part that is in view.

import { effect } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { ask } from "./carrier";
import { clamp } from "./geometry";
import { dark, palette } from "./palette";
import { edges, gather, stack } from "./raster";
import { source, leftOf } from "./timeline";
import { area, look, marks, view, whole } from "./state";
import { tile, type Run, type Tile } from "./protocol";

const HEIGHT = 34;

export function Minimap({ known }: { known: Run }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => alive(known, canvas.current!), [known]);
  return (
    <div class="minimap">
      <canvas ref={canvas} role="img" aria-label="The whole run, mean of all ranks; drag to move the view" />
    </div>
  );
}


function alive(known: Run, canvas: HTMLCanvasElement): () => void {
  const context = canvas.getContext("2d", { alpha: false })!;
  let width = 0;
  let tiles: Tile[] = [];
  let picture: ImageData | null = null;
  let waiting = 0;

  const compose = () => {
    const colors = palette(known.categories);
    const sums = new Float32Array(known.categories.length * width);
    const all = whole.value;
    const perPixel = (all.to - all.from) / width;
    const ranks = known.ranks.rank.length;
    for (const one of tiles) {
      const bucket = known.levels.base_width * known.levels.factor ** one.level;
      const mean = new Map<number, Float64Array>(); // of each category, running sums over the buckets
      for (const { categories, shares } of one.lanes.values()) {
        categories.forEach((category, plane) => {
          const into = mean.get(category) ?? new Float64Array(one.buckets + 2);
          mean.set(category, into);
          for (let i = 0, sum = 0; i < one.buckets; i++) into[i + 1]! += (sum += shares[plane * one.buckets + i]!) / ranks;
        });
      }
      const at = edges(width, 0, one.buckets, (known.zero + one.index * one.buckets * bucket - all.from) / perPixel, bucket / perPixel);
      for (const [category, sum] of mean) gather(sums, category * width, sum, 0, at, 0, width);
    }
    picture = new ImageData(width, HEIGHT);
    stack(new Uint32Array(picture.data.buffer), sums, colors.categories, colors.paper, width, HEIGHT, 0, width);
  };

  const draw = () => {
    waiting = 0;
    if (width < 1) return;
    if (!picture || picture.width !== width) compose();
    if (canvas.width !== width) canvas.width = width;
    if (canvas.height !== HEIGHT) canvas.height = HEIGHT;
    context.putImageData(picture!, 0, 0);
    const all = whole.value;
    const x = (time: number) => ((time - all.from) / (all.to - all.from)) * width;
    const colors = getComputedStyle(canvas);
    const [a, b] = [clamp(x(view.value.from), 0, width), clamp(x(view.value.to), 0, width)];
    context.fillStyle = colors.backgroundColor;
    context.globalAlpha = 0.62;
    context.fillRect(0, 0, a, HEIGHT);
    context.fillRect(b, 0, width - b, HEIGHT);
    context.globalAlpha = 1;
    context.strokeStyle = colors.color;
    context.strokeRect(a + 0.5, 0.5, Math.max(2, b - a - 1), HEIGHT - 1);
    context.fillStyle = colors.outlineColor;
    if (area.value) context.fillRect(x(area.value.from), HEIGHT - 4, Math.max(2, x(area.value.to) - x(area.value.from)), 4);
    for (const mark of marks.value) context.fillRect(x(mark), 0, 2, 8);
  };
  const redraw = () => {
    waiting ||= requestAnimationFrame(draw);
  };

  const load = async () => {
    const asked = source.value;
    if (!asked) return;
    const level = Math.min(asked.level((known.end - known.zero) / 256) + 1, known.levels.coarsest);
    const [first, last] = asked.indices(level, known.zero, known.end);
    const ranks = known.ranks.rank.length;
    const blocks = new Map<string, string>();
    for (let lane = 0; lane < ranks; lane++) {
      const block = asked.block(lane);
      blocks.set(block.name, block.lanes);
    }
    for (let index = first; index <= last; index++) {
      for (const lanes of blocks.values()) {
        const got = await ask(asked.data(`tile/${level}/${index}?lanes=${lanes}`)).catch(() => null);
        if (!got?.ok) continue;
        tiles.push(tile(await got.arrayBuffer()));
        picture = null;
        redraw();
      }
    }
  };

  let dragging = false;
  const go = (event: PointerEvent) => {
    const box = canvas.getBoundingClientRect();
    const all = whole.value;
    const at = all.from + ((event.clientX - box.left) / box.width) * (all.to - all.from);
    const span = view.value.to - view.value.from;
    look(at - span / 2, at + span / 2);
  };
  canvas.onpointerdown = (event) => {
    dragging = true;
    canvas.setPointerCapture(event.pointerId);
    go(event);
  };
  canvas.onpointermove = (event) => dragging && go(event);
  canvas.onpointerup = () => (dragging = false);
  const seen = new ResizeObserver(([entry]) => {
    width = Math.max(0, Math.floor(entry!.contentRect.width) - leftOf(entry!.contentRect.width));
    canvas.style.width = `${width}px`;
    canvas.style.marginLeft = `${leftOf(entry!.contentRect.width)}px`;
    picture = null;
    redraw();
  });
  seen.observe(canvas.parentElement!);
  let asked: unknown = null;
  const stops = [
    effect(() => {
      if (source.value?.run !== known || asked === source.value) return;
      asked = source.value;
      void load();
    }),
    effect(() => {
      void dark.value;
      picture = null;
      redraw();
    }),
    effect(() => {
      void [view.value, area.value, marks.value, whole.value];
      redraw();
    }),
  ];
  return () => {
    seen.disconnect();
    stops.forEach((stop) => stop());
    tiles = [];
  };
}
