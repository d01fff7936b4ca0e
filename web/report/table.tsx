// A table that can be sorted and filtered, and that says how many of its rows it shows.

import { useState } from "preact/hooks";
import { named, value, type Column, type Table } from "./data";
import { label, shown } from "./format";
import { choice } from "./choice";

const FEW = 8;
const MORE = 100;

// The rows that fit the rank and step chosen in the heat map, by index; `free` columns may hold anything.
export function chosenRows(table: Table, free: string[] = []): number[] {
  const { rank, step } = choice.value;
  const wanted: [Column, number][] = [];
  for (const [name, text] of [["rank", rank], ["step", step]] as const) {
    const column = free.includes(name) ? undefined : named(table, name);
    if (column && text !== null && Number.isInteger(Number(text))) wanted.push([column, Number(text)]);
  }
  return range(table.rows).filter((row) => wanted.every(([column, number]) => column.values[row] === number));
}

export function range(count: number): number[] {
  return Array.from({ length: count }, (_, i) => i);
}

export function Rows({ table }: { table: Table }) {
  const [order, setOrder] = useState<{ column: number; down: boolean } | null>(null);
  const [text, setText] = useState("");
  const [limit, setLimit] = useState(FEW);
  if (!table.of) return <p class="empty">Nothing of the kind is in this trace.</p>;

  const chosen = chosenRows(table);
  let rows = chosen;
  const wanted = text.trim().toLowerCase();
  if (wanted) {
    rows = rows.filter((row) =>
      table.columns.some((column) => shown(column, value(column, row)).toLowerCase().includes(wanted)),
    );
  }
  if (order) rows = sorted(rows, table.columns[order.column]!, order.down);
  const isChosen = chosen.length < table.rows;
  const visible = rows.slice(0, limit);

  return (
    <>
      <div class="scroll">
        <table>
          <thead>
            <tr>
              {table.columns.map((column, i) => {
                const down = order?.column === i ? order.down : null;
                return (
                  <th
                    key={column.name}
                    scope="col"
                    class={cellClass(column)}
                    title={column.meaning}
                    aria-sort={down === null ? "none" : down ? "descending" : "ascending"}
                  >
                    <button type="button" onClick={() => setOrder({ column: i, down: !(down ?? !isNumber(column)) })}>
                      {label(column)}
                      {column.unit && <small> {column.unit}</small>}
                    </button>
                  </th>
                );
              })}
            </tr>
          </thead>
          <tbody>
            {visible.map((row) => (
              <tr key={row}>
                {table.columns.map((column) => (
                  <td key={column.name} class={cellClass(column)}>
                    {cellClass(column) === "long" ? (
                      <span title={shown(column, value(column, row))}>{shown(column, value(column, row))}</span>
                    ) : (
                      shown(column, value(column, row))
                    )}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p class="count">
        {table.rows > FEW && (
          <label class="filter">
            Filter
            <input type="search" value={text} onInput={(event) => setText(event.currentTarget.value)} />
          </label>
        )}
        {visible.length.toLocaleString("en-US")} of {rows.length.toLocaleString("en-US")} rows shown
        {isChosen && `, of the ${chosen.length} that fit the choice above`}
        {table.rows < table.of &&
          `; this file holds the first ${table.rows.toLocaleString("en-US")} of ${table.of.toLocaleString("en-US")}`}
        {rows.length > limit && (
          <button type="button" onClick={() => setLimit(limit < MORE ? MORE : Infinity)}>
            {limit < MORE && rows.length > MORE ? `show ${MORE}` : "show all"}
          </button>
        )}
        {limit > FEW && rows.length > FEW && (
          <button type="button" onClick={() => setLimit(FEW)}>
            show fewer
          </button>
        )}
      </p>
    </>
  );
}

// Short names stay on one line, as in `report/words/cells.py`.
function cellClass(column: Column): string | undefined {
  if (isNumber(column)) return "n";
  return column.words?.some((word) => word !== null && word.length > 36) ? "long" : undefined;
}

function isNumber(column: Column): boolean {
  return column.kind !== "text" && column.kind !== "flag";
}

// Unknown values come last either way.
function sorted(rows: number[], column: Column, down: boolean): number[] {
  const sign = down ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [x, y] = [value(column, a), value(column, b)];
    if (x === null || y === null) return Number(x === null) - Number(y === null);
    return sign * (typeof x === "string" ? x.localeCompare(String(y)) : Number(x) - Number(y));
  });
}
