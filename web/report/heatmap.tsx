// Every rank and step of the ledger in one picture: what deviates stands out, a click asks the page about it.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { amountScale, css, dark, deviationScale, variable } from "./color";
import type { Heat, Unit } from "./data";
import { apportioned, fixed, inUnit } from "./format";
import { choice, hide, tip } from "./state";
import { range } from "./table";

type Mode = "step" | "rank" | "amount";

interface Metric {
  label: string;
  planes: number[];
}

const LEFT = 64;
const RIGHT = 92;
const TOP = 46;
const BOTTOM = 24;

export function HeatMap({ heat, cells, unit }: { heat: Heat; cells: Uint32Array; unit: Unit }) {
  const [numRanks, numSteps] = [heat.ranks.length, heat.steps.length];
  const metrics = useMemo(() => metricsOf(heat), [heat]);
  const [metric, setMetric] = useState(Math.max(0, metrics.findIndex((m) => m.label === "compute" && numRanks > 1)));
  const [mode, setMode] = useState<Mode>(numRanks > 1 ? "step" : numSteps > 1 ? "rank" : "amount");
  const [at, setAt] = useState<[number, number] | null>(null);
  const [width, setWidth] = useState(0);
  const [isDark, setDark] = useState(dark.matches);
  const holder = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);

  useEffect(() => {
    const seen = new ResizeObserver(([entry]) => setWidth(Math.floor(entry!.contentRect.width)));
    seen.observe(holder.current!);
    const repaint = () => setDark(dark.matches);
    dark.addEventListener("change", repaint);
    return () => {
      seen.disconnect();
      dark.removeEventListener("change", repaint);
    };
  }, []);

  const amounts = useMemo(
    () => summed(cells, metrics[metric]!.planes, numRanks * numSteps, heat.quantum, recorded(cells, heat)),
    [cells, metric],
  );
  const drawn = useMemo(() => relative(amounts, numRanks, numSteps, mode), [amounts, mode]);
  const [low, high] = useMemo(() => extent(drawn, mode), [drawn, mode]);
  const cellWidth = Math.min(110, Math.max(0.2, (width - LEFT - RIGHT) / numSteps));
  const cellHeight = Math.min(24, Math.max(1, 480 / numRanks));
  const height = TOP + cellHeight * numRanks + BOTTOM;

  useEffect(() => {
    if (!canvas.current || !width) return;
    const scale = mode === "amount" ? amountScale(isDark) : deviationScale(isDark);
    const colors = (value: number) => scale((value - low) / (high - low || 1));
    paint(canvas.current, { heat, amounts, drawn, colors, width, height, cellWidth, cellHeight });
  }, [drawn, width, isDark, choice.value, low, high]);

  const find = (event: PointerEvent): [number, number] | null => {
    const box = canvas.current!.getBoundingClientRect();
    const step = Math.floor((event.clientX - box.left - LEFT) / cellWidth);
    const rank = Math.floor((event.clientY - box.top - TOP) / cellHeight);
    return step >= 0 && step < numSteps && rank >= 0 && rank < numRanks ? [rank, step] : null;
  };
  const say = (rank: number, step: number): string[] => {
    const amount = amounts[rank * numSteps + step]!;
    const lines = [`rank ${heat.ranks[rank]}, step ${heat.steps[step]}`];
    if (Number.isNaN(amount)) return [...lines, "not recorded"];
    lines.push(`${metrics[metric]!.label}: ${inUnit(amount, unit)}`);
    if (mode !== "amount") lines.push(`${signed(drawn[rank * numSteps + step]!, unit)} ${MODES[mode]}`);
    return lines;
  };
  const choose = (found: [number, number] | null) => {
    if (!found) return;
    const [rank, step] = [heat.ranks[found[0]]!, heat.steps[found[1]]!];
    const same = choice.value.rank === rank && choice.value.step === step;
    choice.value = same ? { rank: null, step: null } : { rank, step };
  };
  const move = (event: KeyboardEvent) => {
    const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (event.key === "Enter") return choose(at);
    if (event.key === "Escape") choice.value = { rank: null, step: null };
    if (!by) return;
    event.preventDefault();
    const [rank, step] = at ?? [0, 0];
    setAt([clamp(rank + by[0]!, numRanks), clamp(step + by[1]!, numSteps)]);
  };

  const kept = choice.value.rank === null ? null : ([heat.ranks.indexOf(choice.value.rank), heat.steps.indexOf(choice.value.step!)] as [number, number]);
  const told = at ?? kept;
  return (
    <div class="map">
      <p class="controls">
        <label>
          <span>Show</span>
          <select value={metric} onChange={(event) => setMetric(Number(event.currentTarget.value))}>
            {metrics.map((one, i) => (
              <option key={one.label} value={i}>
                {one.label}
              </option>
            ))}
          </select>
        </label>
        <label>
          <span>as</span>
          <select value={mode} onChange={(event) => setMode(event.currentTarget.value as Mode)}>
            {numRanks > 1 && <option value="step">against the ranks' median</option>}
            {numSteps > 1 && <option value="rank">against the steps' median</option>}
            <option value="amount">time</option>
          </select>
        </label>
        <Scale low={low} high={high} mode={mode} unit={unit} isDark={isDark} />
      </p>
      <div class="side">
        <div class="canvas" ref={holder}>
          <canvas
            ref={canvas}
            tabIndex={0}
            role="img"
            aria-label={`${metrics[metric]!.label} of ${numRanks} ranks and ${numSteps} steps; arrow keys move, Enter chooses`}
            style={{ width: `${width}px`, height: `${height}px` }}
            onPointerMove={(event) => {
              const found = find(event);
              setAt(found);
              tip.value = found ? { x: event.clientX, y: event.clientY, lines: say(...found) } : null;
            }}
            onPointerLeave={() => {
              setAt(null);
              hide();
            }}
            onClick={(event) => choose(find(event as unknown as PointerEvent))}
            onKeyDown={move}
          />
        </div>
        <Detail heat={heat} cells={cells} unit={unit} at={told} kept={kept !== null} />
      </div>
    </div>
  );
}

const MODES = { step: "from the median of the ranks in this step", rank: "from the median of this rank's steps" };

function clamp(at: number, count: number): number {
  return Math.min(Math.max(at, 0), count - 1);
}

function signed(ns: number, unit: Unit): string {
  return `${ns < 0 ? "−" : "+"}${inUnit(Math.abs(ns), unit)}`;
}

// The whole step, every group of accounts, and the accounts of groups that have several.
function metricsOf(heat: Heat): Metric[] {
  const made: Metric[] = [{ label: "step", planes: range(heat.accounts.length) }];
  for (const group of new Set(heat.accounts.map((account) => account.group))) {
    const planes = range(heat.accounts.length).filter((i) => heat.accounts[i]!.group === group);
    const name = heat.accounts[planes[0]!]!.label.split(":")[0]!;
    made.push({ label: name, planes });
    if (planes.length > 1) for (const plane of planes) made.push({ label: heat.accounts[plane]!.label, planes: [plane] });
  }
  return made;
}

function recorded(cells: Uint32Array, heat: Heat): (cell: number) => boolean {
  const size = heat.ranks.length * heat.steps.length;
  const planes = range(heat.accounts.length);
  return (cell) => planes.some((plane) => cells[plane * size + cell]);
}

function summed(
  cells: Uint32Array,
  planes: number[],
  size: number,
  quantum: number,
  known: (cell: number) => boolean,
): Float64Array {
  const sums = new Float64Array(size);
  for (let cell = 0; cell < size; cell++) {
    let sum = 0;
    for (const plane of planes) sum += cells[plane * size + cell]!;
    sums[cell] = known(cell) ? sum * quantum : NaN;
  }
  return sums;
}

function relative(amounts: Float64Array, numRanks: number, numSteps: number, mode: Mode): Float64Array {
  if (mode === "amount") return amounts;
  const made = new Float64Array(amounts.length);
  const lines = mode === "step" ? numSteps : numRanks;
  for (let line = 0; line < lines; line++) {
    const at =
      mode === "step"
        ? range(numRanks).map((rank) => rank * numSteps + line)
        : range(numSteps).map((step) => line * numSteps + step);
    const middle = median(at.map((cell) => amounts[cell]!).filter((amount) => !Number.isNaN(amount)));
    for (const cell of at) made[cell] = amounts[cell]! - middle;
  }
  return made;
}

function median(values: number[]): number {
  const inOrder = values.sort((a, b) => a - b);
  const half = inOrder.length >> 1;
  return inOrder.length % 2 ? inOrder[half]! : ((inOrder[half - 1] ?? 0) + (inOrder[half] ?? 0)) / 2;
}

// What the ends of the colour scale mean. A few outliers may lie beyond them.
function extent(values: Float64Array, mode: Mode): [number, number] {
  const known = [...values].filter((value) => !Number.isNaN(value));
  if (mode === "amount") {
    const inOrder = known.sort((a, b) => a - b);
    return [inOrder[0] ?? 0, inOrder[Math.floor(0.995 * (inOrder.length - 1))] ?? 0];
  }
  const sizes = known.map(Math.abs).sort((a, b) => a - b);
  const most = sizes[Math.floor(0.995 * (sizes.length - 1))] || sizes.at(-1) || 1;
  return [-most, most];
}

interface Picture {
  heat: Heat;
  amounts: Float64Array;
  drawn: Float64Array;
  colors: (value: number) => [number, number, number];
  width: number;
  height: number;
  cellWidth: number;
  cellHeight: number;
}

function paint(canvas: HTMLCanvasElement, picture: Picture): void {
  const { heat, drawn, colors, width, height, cellWidth, cellHeight } = picture;
  const [numRanks, numSteps] = [heat.ranks.length, heat.steps.length];
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const draw = canvas.getContext("2d")!;
  draw.scale(ratio, ratio);
  draw.clearRect(0, 0, width, height);

  const image = new ImageData(numSteps, numRanks);
  drawn.forEach((value, cell) => {
    if (Number.isNaN(value)) return;
    const [r, g, b] = colors(value);
    image.data.set([r, g, b, 255], cell * 4);
  });
  const small = new OffscreenCanvas(numSteps, numRanks);
  small.getContext("2d")!.putImageData(image, 0, 0);
  draw.imageSmoothingEnabled = false;
  draw.drawImage(small, LEFT, TOP, cellWidth * numSteps, cellHeight * numRanks);

  draw.fillStyle = variable("--paper");
  if (cellHeight >= 6) for (let rank = 1; rank < numRanks; rank++) draw.fillRect(LEFT, TOP + rank * cellHeight - 0.5, cellWidth * numSteps, 1);
  if (cellWidth >= 6) for (let step = 1; step < numSteps; step++) draw.fillRect(LEFT + step * cellWidth - 0.5, TOP, 1, cellHeight * numRanks);

  margins(draw, picture);
  draw.strokeStyle = variable("--ink");
  draw.lineWidth = 2;
  if (choice.value.rank !== null) {
    const [rank, step] = [heat.ranks.indexOf(choice.value.rank), heat.steps.indexOf(choice.value.step!)];
    draw.strokeRect(LEFT + step * cellWidth - 1, TOP + rank * cellHeight - 1, Math.max(3, cellWidth) + 1, Math.max(3, cellHeight) + 1);
  }
}

// Labels, the mean of every step above the map and of every rank beside it.
function margins(draw: CanvasRenderingContext2D, picture: Picture): void {
  const { heat, amounts, cellWidth, cellHeight } = picture;
  const [numRanks, numSteps] = [heat.ranks.length, heat.steps.length];
  const byStep = range(numSteps).map((step) => mean(range(numRanks).map((rank) => amounts[rank * numSteps + step]!)));
  const byRank = range(numRanks).map((rank) => mean(range(numSteps).map((step) => amounts[rank * numSteps + step]!)));
  const [highStep, highRank] = [Math.max(...byStep, 1), Math.max(...byRank, 1)];
  draw.fillStyle = variable("--bar");
  byStep.forEach((amount, step) => {
    const tall = (30 * amount) / highStep;
    draw.fillRect(LEFT + step * cellWidth, TOP - 6 - tall, Math.max(0.5, cellWidth - (cellWidth > 4 ? 1 : 0)), tall);
  });
  const from = LEFT + numSteps * cellWidth + 8;
  byRank.forEach((amount, rank) => {
    draw.fillRect(from, TOP + rank * cellHeight, ((RIGHT - 12) * amount) / highRank, Math.max(0.5, cellHeight - (cellHeight > 4 ? 1 : 0)));
  });

  draw.fillStyle = variable("--quiet");
  draw.font = `12px ${variable("--font")}`;
  draw.textBaseline = "middle";
  draw.textAlign = "right";
  const everyRank = Math.ceil(16 / cellHeight);
  for (let rank = 0; rank < numRanks; rank += nice(everyRank)) {
    draw.fillText(heat.ranks[rank]!, LEFT - 8, TOP + (rank + 0.5) * cellHeight, LEFT - 12);
  }
  draw.fillText("rank", LEFT - 8, TOP - 12);
  draw.textAlign = "center";
  const longest = Math.max(...heat.steps.map((step) => step.length));
  const everyStep = Math.ceil((8 * longest + 10) / cellWidth);
  for (let step = 0; step < numSteps; step += nice(everyStep)) {
    draw.fillText(heat.steps[step]!, LEFT + (step + 0.5) * cellWidth, TOP + numRanks * cellHeight + 12);
  }
  draw.textAlign = "left";
  draw.fillText("step", from, TOP + numRanks * cellHeight + 12);
}

function mean(values: number[]): number {
  const known = values.filter((value) => !Number.isNaN(value));
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : 0;
}

function nice(least: number): number {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].find((factor) => factor * power >= least)! * power;
}

function Scale({ low, high, mode, unit, isDark }: { low: number; high: number; mode: Mode; unit: Unit; isDark: boolean }) {
  const scale = mode === "amount" ? amountScale(isDark) : deviationScale(isDark);
  const stops = range(9).map((i) => css(scale(i / 8)));
  const text = (ns: number) => (mode === "amount" ? inUnit(ns, unit) : signed(ns, unit));
  return (
    <span class="scale">
      {text(low)}
      <i style={{ backgroundImage: `linear-gradient(to right, ${stops.join(", ")})` }} />
      {text(high)}
    </span>
  );
}

// The ledger of one rank and step; its parts add up to the step as displayed.
function Detail({ heat, cells, unit, at, kept }: { heat: Heat; cells: Uint32Array; unit: Unit; at: [number, number] | null; kept: boolean }) {
  if (!at || at[0] < 0 || at[1] < 0) {
    return <aside class="detail"><p class="hint">Point at a cell for its ledger. Click to keep it, and to show only its rows in the tables below.</p></aside>;
  }
  const size = heat.ranks.length * heat.steps.length;
  const cell = at[0] * heat.steps.length + at[1];
  const parts = heat.accounts.map((_, plane) => cells[plane * size + cell]! * heat.quantum);
  const quantum = unit.ns / 10 ** unit.decimals;
  const amounts = apportioned(parts, quantum);
  const total = amounts.reduce((sum, amount) => sum + amount, 0);
  const most = Math.max(...parts) || 1;
  return (
    <aside class="detail">
      <h3>
        rank {heat.ranks[at[0]]}, step {heat.steps[at[1]]}
        {kept && (
          <button type="button" onClick={() => (choice.value = { rank: null, step: null })}>
            clear
          </button>
        )}
      </h3>
      {total ? (
        <table>
          <tbody>
            {heat.accounts.map((account, i) =>
              parts[i] ? (
                <tr key={account.name}>
                  <th scope="row">
                    {account.label}
                    <i class={`meter c-${account.group}`} style={{ width: `${(100 * parts[i]!) / most}%` }} />
                  </th>
                  <td class="n">{fixed((amounts[i]! * quantum) / unit.ns, unit.decimals)}</td>
                </tr>
              ) : null,
            )}
          </tbody>
          <tfoot>
            <tr>
              <th scope="row">step, {unit.name}</th>
              <td class="n">{fixed((total * quantum) / unit.ns, unit.decimals)}</td>
            </tr>
          </tfoot>
        </table>
      ) : (
        <p class="hint">not recorded</p>
      )}
    </aside>
  );
}
