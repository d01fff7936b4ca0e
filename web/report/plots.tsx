// The three plots that a recipe can declare.

import { named, value, type Column, type Plot, type Table } from "./data";
import { amountScale, css } from "../shared/color";
import { label, shown, withUnit } from "./format";
import { brief, inBytes, ticks, UNKNOWN } from "../shared/numbers";
import { brieflyTimed } from "../shared/time";
import { choice } from "./choice";
import { pointing } from "../shared/tip";
import { chosenRows } from "./table";

const MOST_BARS = 16;
const MOST_AMOUNTS = 4; // of one bar, beyond which their sum is written
const MOST_POINTS = 3000;
const MOST_CELLS = 6000;
const MOST_COLUMNS = 1200;
const WIDTH = 920;

export function Drawn({ table }: { table: Table }) {
  const plot = table.plot;
  if (!plot) return null;
  const used = plot.kind === "heat" ? [plot.x, plot.y, plot.value] : [plot.x, ...(Array.isArray(plot.y) ? plot.y : [plot.y])];
  const rows = chosenRows(table, used);
  if (rows.length < 2 || used.some((name) => !named(table, name))) return null;
  const drawn = plot.kind === "bars" ? plot.y : [];
  // Where nothing is known there is nothing to draw.
  if (drawn.length && !drawn.some((name) => named(table, name)!.values.some((amount) => typeof amount === "number"))) return null;
  switch (plot.kind) {
    case "bars":
      return <Bars table={table} plot={plot} rows={rows} />;
    case "heat":
      return <Cells table={table} plot={plot} rows={rows} />;
    case "points":
      return <Dots table={table} plot={plot} rows={rows} />;
  }
}

interface Props<K> {
  table: Table;
  plot: Extract<Plot, { kind: K }>;
  rows: number[];
}

function facts(table: Table, row: number): string[] {
  return table.columns.map((column) => `${label(column)}: ${withUnit(column, value(column, row))}`);
}

function numberOf(column: Column, row: number): number {
  return knownOf(column, row) ?? 0;
}

function knownOf(column: Column, row: number): number | null {
  const found = value(column, row);
  return typeof found === "number" ? found : null;
}

// Whether a row is about the rank or step chosen in the heat map.
function isChosen(table: Table, row: number): boolean {
  return (["rank", "step"] as const).some((name) => {
    const column = named(table, name);
    return column !== undefined && choice.value[name] !== null && String(column.values[row]) === choice.value[name];
  });
}

function Legend({ columns }: { columns: Column[] }) {
  return (
    <p class="legend">
      {columns.map((column, i) => (
        <span key={column.name} title={column.meaning}>
          <i class={`s${i}`} />
          {label(column)}
        </span>
      ))}
    </p>
  );
}

interface Bar {
  name: string;
  amounts: (number | null)[];
  lines: () => string[];
  chosen: boolean;
}

function Bars({ table, plot, rows }: Props<"bars">) {
  const x = named(table, plot.x)!;
  const ys = plot.y.map((name) => named(table, name)!);
  const isNumbered = x.kind === "id" || x.kind === "integer";
  const distinct = new Set(rows.map((row) => value(x, row)));
  if (rows.length > MOST_BARS && isNumbered && distinct.size === rows.length) return <Upright table={table} plot={plot} rows={rows} />;
  const summed = rows.length === table.rows ? plot.summed : null;
  const listed = rows.slice(0, MOST_BARS);
  const names = summed ? [] : barNames(table, x, listed, isNumbered);
  const bars: Bar[] = summed
    ? summed.names.map((name, i) => ({
        name: brief(name),
        amounts: summed.values.map((values) => values[i]!),
        lines: () => [name, ...ys.map((y, k) => `${label(y)}: ${withUnit(y, summed.values[k]![i]!)}`)],
        chosen: false,
      }))
    : listed.map((row, i) => ({
        name: names[i]!,
        amounts: ys.map((y) => knownOf(y, row)),
        lines: () => facts(table, row),
        chosen: isChosen(table, row),
      }));
  const lengths = bars.map(({ amounts }) => {
    const parts = amounts.map((amount) => Math.max(0, amount ?? 0));
    return plot.stacked ? parts.reduce((sum, part) => sum + part, 0) : Math.max(...parts);
  });
  const most = Math.max(...lengths) || 1;
  return (
    <figure>
      <Legend columns={ys} />
      <div class="bars">
        {bars.map((bar, i) => (
          <div key={i} class={bar.chosen ? "row chosen-row" : "row"} {...pointing(bar.lines)}>
            <span class="name">{bar.name}</span>
            <span class={plot.stacked ? "track" : "track apart"}>
              {bar.amounts.map((amount, k) =>
                amount !== null && amount > 0 ? <i key={k} class={`s${k}`} style={{ width: `${(100 * amount) / most}%` }} /> : null,
              )}
            </span>
            <span class="amount">{amountsText(ys, bar.amounts, plot.stacked)}</span>
          </div>
        ))}
      </div>
      {summed ? (
        <figcaption>
          Added up over rows of the same {label(x)}
          {bars.length < summed.of && `; the largest ${bars.length} of ${summed.of} are drawn`}.
        </figcaption>
      ) : (
        <Left drawn={bars.length} rows={rows.length} table={table} />
      )}
    </figure>
  );
}

// With the rank where the rows are of several, and with what else tells rows of one name apart.
function barNames(table: Table, x: Column, rows: number[], isNumbered: boolean): string[] {
  const rank = named(table, "rank");
  const several = rank !== undefined && rank !== x && new Set(rank.values).size > 1;
  let names = rows.map((row) => {
    const found = value(x, row);
    const name = found === null || found === "" ? nameless(table, row) : isNumbered ? `${label(x)} ${shown(x, found)}` : brief(withUnit(x, found));
    const of = several ? value(rank, row) : null;
    return of === null || name === `rank ${of}` ? name : `rank ${of}, ${name}`;
  });
  // Before times an integer says which row it is, behind them how much is in it.
  const times = table.columns.findIndex((column) => column.kind === "time");
  for (const [at, column] of table.columns.entries()) {
    if (new Set(names).size === names.length) break;
    const tells = column.kind === "id" || column.kind === "text" || (column.kind === "integer" && (times < 0 || at < times));
    if (column === x || column === rank || !tells) continue;
    if (new Set(rows.map((row) => value(column, row))).size < 2) continue;
    names = names.map((name, i) => {
      const found = value(column, rows[i]!);
      const told = column.kind === "text" ? String(found) : `${label(column)} ${shown(column, found)}`;
      return found === null ? name : `${name}, ${told}`;
    });
  }
  return names;
}

// Of a row without a name: the first text that it has.
function nameless(table: Table, row: number): string {
  const texts = table.columns.filter((column) => column.kind === "text").map((column) => value(column, row));
  return String(texts.find((text) => text) ?? UNKNOWN);
}

// Bars are read one by one, so each amount has the unit that suits it; the table has one for a column.
function amountsText(columns: Column[], amounts: (number | null)[], stacked: boolean): string {
  const known = amounts.filter((amount) => amount !== null);
  if (stacked && amounts.length > MOST_AMOUNTS && known.length) {
    return amountText(columns[0]!, known.reduce((sum, amount) => sum + amount, 0));
  }
  const texts = columns.map((column, i) => amountText(column, amounts[i] ?? null));
  const unit = texts[0]!.split(" ")[1];
  const isCommon = unit && texts.every((text) => text.endsWith(` ${unit}`));
  const told = isCommon ? texts.map((text, i) => (i < texts.length - 1 ? text.split(" ")[0] : text)) : texts;
  return told.join(stacked ? " + " : " / ");
}

function amountText(column: Column, amount: number | null): string {
  if (amount === null) return UNKNOWN;
  return column.kind === "time" ? brieflyTimed(amount) : withUnit(column, amount);
}

// What a picture leaves out, so that nobody takes a part for the whole.
function Left({ drawn, rows, table }: { drawn: number; rows: number; table: Table }) {
  if (drawn === rows && table.rows === table.of) return null;
  const of = table.rows < table.of ? table.of : rows;
  return (
    <figcaption>
      {drawn.toLocaleString("en-US")} of {of.toLocaleString("en-US")} rows are drawn.
    </figcaption>
  );
}

// Many numbered rows: thin upright bars side by side.
function Upright({ table, plot, rows }: Props<"bars">) {
  const x = named(table, plot.x)!;
  const ys = plot.y.map((name) => named(table, name)!);
  const drawn = rows.slice(0, MOST_COLUMNS).sort((a, b) => (knownOf(x, a) ?? Infinity) - (knownOf(x, b) ?? Infinity));
  const sums = drawn.map((row) => ys.reduce((sum, y) => sum + Math.max(0, numberOf(y, row)), 0));
  const peaks = drawn.map((row) => Math.max(...ys.map((y) => numberOf(y, row))));
  const most = Math.max(...(plot.stacked ? sums : peaks)) || 1;
  const [left, top, height] = [70, 8, 180];
  const each = (WIDTH - left) / drawn.length;
  const bar = each > 3 ? each - 1 : each;
  const scale = (amount: number) => (height * Math.max(0, amount)) / most;
  return (
    <figure>
      <Legend columns={ys} />
      <svg
        class="plot"
        viewBox={`0 0 ${WIDTH} ${height + top + 34}`}
        shape-rendering="crispEdges"
        role="img" aria-label={`${label(ys[0]!)} by ${label(x)}`}>
        <YAxis column={ys[0]!} low={0} high={most} top={top} height={height} left={left} />
        {drawn.map((row, i) => {
          let below = 0;
          return (
            <g key={row} {...pointing(() => facts(table, row))}>
              <rect class="catch" x={left + i * each} y={top} width={each} height={height} />
              {ys.map((y, k) => {
                const tall = scale(numberOf(y, row));
                const wide = plot.stacked ? bar : bar / ys.length;
                const at = left + i * each + (plot.stacked ? 0 : k * wide);
                if (plot.stacked) below += tall;
                const upper = plot.stacked ? below : tall;
                return <rect key={y.name} class={`s${k}`} x={at} y={top + height - upper} width={wide} height={tall} />;
              })}
            </g>
          );
        })}
        {ticks(0, drawn.length - 1, 8)
          .filter(Number.isInteger)
          .map((i) => (
            <text key={i} class="tick" x={left + (i + 0.5) * each} y={top + height + 16} text-anchor="middle">
              {shown(x, value(x, drawn[i]!))}
            </text>
          ))}
        <text class="tick axis" x={WIDTH} y={top + height + 30} text-anchor="end">
          {label(x)}
        </text>
      </svg>
      <Left drawn={drawn.length} rows={rows.length} table={table} />
    </figure>
  );
}

interface Axis {
  column: Column;
  low: number;
  high: number;
  top: number;
  height: number;
  left: number;
  log?: boolean;
}

function YAxis({ column, low, high, top, height, left, log }: Axis) {
  const place = placed(low, high, log);
  return (
    <>
      {marks(column, low, high, log).map((mark) => {
        const y = top + height * (1 - place(mark));
        return (
          <g key={mark}>
            <line class="grid" x1={left} x2={WIDTH} y1={y} y2={y} />
            <text class="tick" x={left - 8} y={y + 4} text-anchor="end">
              {tickText(column, mark)}
            </text>
          </g>
        );
      })}
    </>
  );
}

function placed(low: number, high: number, log?: boolean): (at: number) => number {
  if (log) return (at) => (Math.log(at) - Math.log(low)) / (Math.log(high) - Math.log(low) || 1);
  return (at) => (at - low) / (high - low || 1);
}

// Round in the unit that is shown, not in the one that is stored.
function marks(column: Column, low: number, high: number, log?: boolean): number[] {
  const scale = column.kind === "share" ? 0.01 : column.scale;
  if (!log) return ticks(low / scale, high / scale, 5).map((at) => at * scale);
  const made: number[] = [];
  for (let power = Math.ceil(Math.log10(low / scale)); power <= Math.log10(high / scale); power++) {
    made.push(10 ** power * scale);
  }
  const every = Math.ceil(made.length / 8);
  return made.length > 1 ? made.filter((_, i) => i % every === 0) : [low, high];
}

function tickText(column: Column, at: number): string {
  if (column.kind === "bytes") return inBytes(Number(at.toPrecision(3))).replace(/\.0+ /, " ");
  const scale = column.kind === "share" ? 0.01 : column.scale;
  return `${Number((at / scale).toPrecision(3)).toLocaleString("en-US", { maximumSignificantDigits: 3 })}${column.unit ? ` ${column.unit}` : ""}`;
}

function Dots({ table, plot, rows }: Props<"points">) {
  const x = named(table, plot.x)!;
  const y = named(table, plot.y)!;
  const usable = rows.filter((row) =>
    [x, y].every((column) => {
      const found = value(column, row);
      return typeof found === "number" && (!plot.log || found > 0);
    }),
  );
  if (usable.length < 2) return null;
  const every = Math.ceil(usable.length / MOST_POINTS);
  const drawn = usable.filter((_, i) => i % every === 0);
  const [left, top, height] = [84, 8, 220];
  const xs = drawn.map((row) => numberOf(x, row));
  const ys = drawn.map((row) => numberOf(y, row));
  const [lowX, highX] = [Math.min(...xs), Math.max(...xs)];
  const [lowY, highY] = [plot.log ? Math.min(...ys) : Math.min(0, ...ys), Math.max(...ys)];
  const placeX = placed(lowX, highX, plot.log);
  const placeY = placed(lowY, highY, plot.log);
  const wide = WIDTH - left - 12;
  return (
    <figure>
      <svg class="plot" viewBox={`0 0 ${WIDTH} ${height + top + 44}`} role="img" aria-label={`${label(y)} against ${label(x)}`}>
        <YAxis column={y} low={lowY} high={highY} top={top} height={height} left={left} log={plot.log} />
        {marks(x, lowX, highX, plot.log).map((mark) => (
          <text key={mark} class="tick" x={left + wide * placeX(mark)} y={top + height + 20} text-anchor={placeX(mark) > 0.96 ? "end" : "middle"}>
            {tickText(x, mark)}
          </text>
        ))}
        <text class="tick axis" x={WIDTH} y={top + height + 38} text-anchor="end">
          {label(y)} against {label(x)}
          {plot.log ? ", both logarithmic" : ""}
        </text>
        {drawn.map((row, i) => (
          <circle
            key={row}
            class="dot"
            cx={left + wide * placeX(xs[i]!)}
            cy={top + height * (1 - placeY(ys[i]!))}
            r={drawn.length > 300 ? 2.5 : 4.5}
            {...pointing(() => facts(table, row))}
          />
        ))}
      </svg>
      <Left drawn={drawn.length} rows={rows.length} table={table} />
    </figure>
  );
}

function Cells({ table, plot, rows }: Props<"heat">) {
  const [x, y, amount] = [plot.x, plot.y, plot.value].map((name) => named(table, name)!) as [Column, Column, Column];
  const drawn = rows.slice(0, MOST_CELLS);
  const across = places(x, drawn);
  const down = places(y, drawn);
  const amounts = drawn.map((row) => value(amount, row)).filter((found) => typeof found === "number");
  if (!amounts.length) return null;
  const [low, high] = [Math.min(0, ...amounts), Math.max(...amounts)];
  const color = amountScale();
  const left = Math.min(260, 16 + 7 * Math.max(...[...down.keys()].map((key) => keyText(y, key).length)));
  const wide = Math.min(56, (WIDTH - left) / across.size);
  const tall = Math.min(26, Math.max(3, 420 / down.size));
  const everyX = Math.ceil(28 / wide);
  const everyY = Math.ceil(14 / tall);
  const bottom = down.size * tall;
  return (
    <figure>
      <svg class="plot" viewBox={`0 0 ${WIDTH} ${bottom + 36}`} role="img" aria-label={`${label(amount)} by ${label(x)} and ${label(y)}`}>
        {drawn.map((row) => {
          const found = value(amount, row);
          if (typeof found !== "number") return null;
          return (
            <rect
              key={row}
              x={left + across.get(value(x, row))! * wide}
              y={down.get(value(y, row))! * tall}
              width={Math.max(0.5, wide - (wide > 4 ? 1 : 0))}
              height={Math.max(0.5, tall - (tall > 4 ? 1 : 0))}
              fill={css(color((found - low) / (high - low || 1)))}
              {...pointing(() => facts(table, row))}
            />
          );
        })}
        {[...down.keys()].map((key, i) =>
          i % everyY ? null : (
            <text key={i} class="tick" x={left - 8} y={i * tall + tall / 2 + 4} text-anchor="end">
              {keyText(y, key).slice(0, 34)}
            </text>
          ),
        )}
        {[...across.keys()].map((key, i) =>
          i % everyX ? null : (
            <text key={i} class="tick" x={left + (i + 0.5) * wide} y={bottom + 16} text-anchor="middle">
              {keyText(x, key).slice(0, 12)}
            </text>
          ),
        )}
        <text class="tick axis" x={left - 8} y={bottom + 16} text-anchor="end">
          {label(y)}
        </text>
        <text class="tick axis" x={left} y={bottom + 33}>
          {label(x)}; darkest is {label(amount)} {amountText(amount, high)}
        </text>
      </svg>
      <Left drawn={drawn.length} rows={rows.length} table={table} />
    </figure>
  );
}

function keyText(column: Column, key: ReturnType<typeof value>): string {
  return key === null ? UNKNOWN : shown(column, key);
}

// The distinct values of a column and where they stand: numbers in order, what is not known last, names as
// they come.
function places(column: Column, rows: number[]): Map<ReturnType<typeof value>, number> {
  const found = [...new Set(rows.map((row) => value(column, row)))];
  if (found.every((one) => typeof one === "number" || one === null)) {
    found.sort((a, b) => (a === null ? 1 : 0) - (b === null ? 1 : 0) || Number(a) - Number(b));
  }
  return new Map(found.map((one, i) => [one, i]));
}
