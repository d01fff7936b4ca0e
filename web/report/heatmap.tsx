// Every rank and step of the ledger in one picture: what deviates stands out, a click asks the page about it.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { amountScale, css, dark, deviationScale, variable } from "../shared/color";
import type { Heat, Unit } from "./data";
import { apportioned, inUnit } from "./format";
import { fixed } from "../shared/numbers";
import { choice } from "./choice";
import { hide, tip } from "../shared/tip";
import { range } from "./table";

type Mode = "step" | "rank" | "amount";

// A row and a column of the map; -1 stands for all of them.
type Place = [rank: number, step: number];

interface Metric {
  name: string;
  label: string;
  planes: number[];
}

// A finger points at nothing before it taps.
const touched = matchMedia("(hover: none)");
const LEFT = 64;
const RIGHT = 92;
const TOP = 46;
const BOTTOM = 24;
const LEAST = 0.01; // of a mean step

export function HeatMap({ heat, cells, unit }: { heat: Heat; cells: Uint32Array; unit: Unit }) {
  const [numRanks, numSteps] = [heat.ranks.length, heat.steps.length];
  const metrics = useMemo(() => metricsOf(heat), [heat]);
  const [metric, setMetric] = useState(() => opening(metrics, heat));
  const [mode, setMode] = useState<Mode>(numRanks > 1 ? "step" : numSteps > 1 ? "rank" : "amount");
  const [at, setAt] = useState<Place | null>(null);
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
  // Ranks and steps that differ by less are alike.
  const least = useMemo(() => {
    const planes = range(heat.accounts.length);
    return LEAST * mean([...summed(cells, planes, numRanks * numSteps, heat.quantum, recorded(cells, heat))]);
  }, [cells]);
  const [low, high] = useMemo(() => extent(drawn, mode, least), [drawn, mode]);
  const cellWidth = Math.max(0.2, (width - LEFT - RIGHT) / numSteps);
  const cellHeight = Math.min(24, Math.max(1, 480 / numRanks));
  const height = TOP + cellHeight * numRanks + BOTTOM;

  useEffect(() => {
    if (!canvas.current || !width) return;
    const scale = mode === "amount" ? amountScale(isDark) : deviationScale(isDark);
    const colors = (value: number) => scale((value - low) / (high - low || 1));
    paint(canvas.current, { heat, amounts, drawn, colors, width, height, cellWidth, cellHeight });
  }, [drawn, width, isDark, choice.value, low, high]);

  // Beside the map a whole row is meant, above and below it a whole column.
  const find = (event: MouseEvent): Place | null => {
    const box = canvas.current!.getBoundingClientRect();
    const step = Math.floor((event.clientX - box.left - LEFT) / cellWidth);
    const rank = Math.floor((event.clientY - box.top - TOP) / cellHeight);
    const [onRank, onStep] = [rank >= 0 && rank < numRanks, step >= 0 && step < numSteps];
    return onRank || onStep ? [onRank ? rank : -1, onStep ? step : -1] : null;
  };
  const say = (place: Place): string[] => {
    const cells = cellsOf(heat, place);
    const amount = mean(cells.map((cell) => amounts[cell]!));
    const lines = [titleOf(heat, place)];
    if (Number.isNaN(amount)) return [...lines, "not recorded"];
    lines.push(`${metrics[metric]!.label}: ${inUnit(amount, unit)}${cells.length > 1 ? " on average" : ""}`);
    if (mode !== "amount") lines.push(`${signed(mean(cells.map((cell) => drawn[cell]!)), unit)} ${MODES[mode]}`);
    return lines;
  };
  const choose = (found: Place | null) => {
    if (!found) return;
    const [rank, step] = [heat.ranks[found[0]] ?? null, heat.steps[found[1]] ?? null];
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

  const kept = chosenPlace(heat);
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
              tip.value = found ? { x: event.clientX, y: event.clientY, lines: say(found) } : null;
            }}
            onPointerLeave={() => {
              setAt(null);
              hide();
            }}
            onClick={(event) => choose(find(event))}
            onKeyDown={move}
          />
          {mode !== "amount" && <Furthest heat={heat} drawn={drawn} mode={mode} unit={unit} least={least} choose={choose} />}
        </div>
        <Detail heat={heat} cells={cells} unit={unit} at={told} kept={kept !== null && at === null} />
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

// What the first finding blames; else what deviates where ranks can be compared, or the step.
function opening(metrics: Metric[], heat: Heat): number {
  const wanted = [heat.blamed, heat.blamed.split(".")[0]!, ...(heat.ranks.length > 1 ? ["compute"] : [])];
  const found = wanted.map((name) => metrics.findIndex((metric) => metric.name === name));
  return found.find((at) => at >= 0) ?? 0;
}

// The whole step, every group of accounts, and the accounts of groups that have several.
function metricsOf(heat: Heat): Metric[] {
  const made: Metric[] = [{ name: "step", label: "step", planes: range(heat.accounts.length) }];
  for (const group of new Set(heat.accounts.map((account) => account.group))) {
    const planes = range(heat.accounts.length).filter((i) => heat.accounts[i]!.group === group);
    const name = heat.accounts[planes[0]!]!.label.split(":")[0]!;
    made.push({ name: group, label: name, planes });
    for (const plane of planes) {
      const { name, label } = heat.accounts[plane]!;
      if (planes.length > 1) made.push({ name, label, planes: [plane] });
      else made.at(-1)!.name = name === group ? group : name;
    }
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

// What the ends of the colour scale mean. One slow rank in a thousand must stand out, so nothing is cut off.
function extent(values: Float64Array, mode: Mode, least: number): [number, number] {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return [0, 0];
  if (mode === "amount") return [low, high];
  const most = Math.max(-low, high, least) || 1;
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
  const kept = chosenPlace(heat);
  if (!kept) return;
  const [rank, step] = kept;
  const [x, wide] = step < 0 ? [0, numSteps * cellWidth] : [step * cellWidth, Math.max(3, cellWidth)];
  const [y, tall] = rank < 0 ? [0, numRanks * cellHeight] : [rank * cellHeight, Math.max(3, cellHeight)];
  draw.strokeRect(LEFT + x - 1, TOP + y - 1, wide + 1, tall + 1);
}

// Labels, the mean of every step above the map and of every rank beside it.
function margins(draw: CanvasRenderingContext2D, picture: Picture): void {
  const { heat, amounts, cellWidth, cellHeight } = picture;
  const [numRanks, numSteps] = [heat.ranks.length, heat.steps.length];
  const byStep = range(numSteps).map((step) => mean(range(numRanks).map((rank) => amounts[rank * numSteps + step]!)));
  const byRank = range(numRanks).map((rank) => mean(range(numSteps).map((step) => amounts[rank * numSteps + step]!)));
  const highest = (means: number[]) => means.reduce((high, one) => (one > high ? one : high), 1);
  const [highStep, highRank] = [highest(byStep), highest(byRank)];
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
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : NaN;
}

function nice(least: number): number {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].find((factor) => factor * power >= least)! * power;
}

function chosenPlace(heat: Heat): Place | null {
  const { rank, step } = choice.value;
  if (rank === null && step === null) return null;
  return [rank === null ? -1 : heat.ranks.indexOf(rank), step === null ? -1 : heat.steps.indexOf(step)];
}

function cellsOf(heat: Heat, [rank, step]: Place): number[] {
  const [numRanks, numSteps] = [heat.ranks.length, heat.steps.length];
  if (rank >= 0 && step >= 0) return [rank * numSteps + step];
  return rank >= 0 ? range(numSteps).map((one) => rank * numSteps + one) : range(numRanks).map((one) => one * numSteps + step);
}

function titleOf(heat: Heat, [rank, step]: Place): string {
  const words = [rank < 0 ? "all ranks" : `rank ${heat.ranks[rank]}`, step < 0 ? "mean step" : `step ${heat.steps[step]}`];
  return words.join(", ");
}

// Of many rows a screen shows none by name: those furthest out are named below the map.
function Furthest({ heat, drawn, mode, unit, least, choose }: {
  heat: Heat;
  drawn: Float64Array;
  mode: Mode;
  unit: Unit;
  least: number;
  choose: (place: Place) => void;
}) {
  const places = mode === "step" ? range(heat.ranks.length).map((rank): Place => [rank, -1]) : range(heat.steps.length).map((step): Place => [-1, step]);
  const far = places
    .map((place) => ({ place, by: mean(cellsOf(heat, place).map((cell) => drawn[cell]!)) }))
    .filter(({ by }) => Math.abs(by) >= Math.max(least, unit.ns / 10 ** unit.decimals))
    .sort((a, b) => Math.abs(b.by) - Math.abs(a.by))
    .filter(({ by }, _, all) => Math.abs(by) >= Math.abs(all[0]!.by) / 10)
    .slice(0, 4);
  if (!far.length) return null;
  return (
    <p class="count">
      Furthest out on average:
      {far.map(({ place, by }) => (
        <button key={place.join()} type="button" onClick={() => choose(place)}>
          {mode === "step" ? `rank ${heat.ranks[place[0]]}` : `step ${heat.steps[place[1]]}`} {signed(by, unit)}
        </button>
      ))}
    </p>
  );
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
function Detail({ heat, cells, unit, at, kept }: { heat: Heat; cells: Uint32Array; unit: Unit; at: Place | null; kept: boolean }) {
  if (!at) {
    return (
      <aside class="detail">
        <p class="hint">
          {touched.matches
            ? "Tap a cell, a row or a column for its ledger; the tables below then show its rows only."
            : "Point at a cell, a row or a column for its ledger. Click to keep it: the tables below then show its rows only."}
        </p>
      </aside>
    );
  }
  const size = heat.ranks.length * heat.steps.length;
  const known = cellsOf(heat, at).filter(recorded(cells, heat));
  const parts = heat.accounts.map((_, plane) => {
    const sum = known.reduce((total, cell) => total + cells[plane * size + cell]!, 0);
    return known.length ? (sum / known.length) * heat.quantum : 0;
  });
  const quantum = unit.ns / 10 ** unit.decimals;
  const amounts = apportioned(parts, quantum);
  const total = amounts.reduce((sum, amount) => sum + amount, 0);
  const most = Math.max(...parts) || 1;
  return (
    <aside class="detail">
      <h3>
        {titleOf(heat, at)}
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
                    <i class={`meter ${account.color}`} style={{ width: `${(100 * parts[i]!) / most}%` }} />
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
