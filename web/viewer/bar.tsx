// Above the timeline: what run this is, how its rows are ordered, and the search. Below it: what is shown of it.

import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { fixed } from "../shared/numbers";
import { time } from "../shared/time";
import { beside, others, waiting } from "./beside";
import { COMMANDS, helping, resize, searchBox } from "./commands";
import { adding, byRank, critical, toggle } from "./critical";
import { hit, hits, step } from "./evidence";
import { chooseTheme, classOf, theme } from "./palette";
import type { Category, Run } from "./protocol";
import { rankHeight } from "./rows";
import { compared, drawer, grouping, pathShown, query, said, sorting, tab, trouble, view, whole } from "./state";
import { shownOf } from "./timeline";

export function Bar({ known, several }: { known: Run; several: boolean }) {
  return (
    <header>
      <a class="mark" href={several ? "/" : "#"} title={several ? "all runs" : undefined}>
        lostflops
      </a>
      <h1>{known.title}</h1>
      {known.groupings.length > 0 && (
        <label>
          <span>group</span>
          <select value={grouping.value} onChange={(event) => (grouping.value = event.currentTarget.value)}>
            <option value="">by rank only</option>
            {known.groupings.map(({ key, title }) => (
              <option key={key} value={key}>
                {title}
              </option>
            ))}
          </select>
        </label>
      )}
      {known.ranks.rank.length > 1 && known.sortings.length > 0 && (
        <label>
          <span>sort</span>
          <select value={sorting.value} onChange={(event) => (sorting.value = event.currentTarget.value)}>
            <option value="">by rank</option>
            {known.sortings.map(({ key, title }) => (
              <option key={key} value={key}>
                {title}
              </option>
            ))}
          </select>
        </label>
      )}
      {others.value.length > 0 && (
        <label>
          <span>beside</span>
          <select value={compared.value} onChange={(event) => (compared.value = event.currentTarget.value)}>
            <option value="">no other run</option>
            {others.value.map(({ id, title, error }) => (
              <option key={id} value={id} disabled={!!error}>
                {title}
              </option>
            ))}
          </select>
        </label>
      )}
      <div class="heights" role="group" aria-label={`Height of rows, now ${rankHeight.value} pixels`}>
        <button type="button" aria-label="Lower rows" title="Lower rows (−)" onClick={() => resize(rankHeight.value < 7 ? -1 : -3)}>
          −
        </button>
        <button type="button" aria-label="Higher rows" title="Higher rows (+)" onClick={() => resize(rankHeight.value < 6 ? 1 : 3)}>
          +
        </button>
      </div>
      <Search />
      <button type="button" class="icon" aria-pressed={pathShown.value} onClick={toggle} title="Show or hide the critical path: what the end of the last step waited for (C)">
        Path
      </button>
      <button type="button" class="icon" onClick={() => chooseTheme(theme.value === "system" ? "dark" : theme.value === "dark" ? "light" : "system")} title="Dark, light, or as the system has it">
        {{ system: "Theme: auto", dark: "Theme: dark", light: "Theme: light" }[theme.value]}
      </button>
      <button type="button" class="icon" aria-pressed={drawer.value} onClick={() => (drawer.value = !drawer.value)} title="Show or hide the panel (Q)">
        Panel
      </button>
      <button type="button" class="icon" onClick={() => (helping.value = true)} title="Keys (?)" aria-label="Keys">
        ?
      </button>
    </header>
  );
}

function Search() {
  const box = useRef<HTMLInputElement>(null);
  useEffect(() => {
    searchBox.current = box.current;
  });
  const found = hits.value;
  return (
    <div class="search" role="search">
      <input
        ref={box}
        type="search"
        placeholder="Search names  /"
        aria-label="Search names in the whole run"
        value={query.value}
        onInput={(event) => (query.value = event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Enter") {
            event.preventDefault();
            drawer.value = true;
            tab.value = "search";
            void step(event.shiftKey ? -1 : 1);
          } else if (event.key === "Escape") {
            if (!query.value) box.current!.blur();
            query.value = "";
            event.preventDefault();
            document.querySelector<HTMLElement>(".timeline canvas")?.focus();
          }
        }}
      />
      {found && query.value && (
        <span class="count">
          {hit.value >= 0 ? `${fixed(hit.value + 1, 0)} of ` : ""}
          {fixed(found.total, 0)}
        </span>
      )}
    </div>
  );
}

// What the colours of the ranks' rows mean; those of other rows stand under "Run".
export function Legend({ known }: { known: Run }) {
  const sums = new Map<string, { category: Category; ns: number }>();
  for (const { ranks, lanes, categories } of [known, ...(beside.value ? [beside.value.run] : [])]) {
    for (let lane = 0; lane < ranks.rank.length; lane++) {
      lanes.categories[lane]?.forEach((number, i) => {
        const category = categories[number]!;
        const found = sums.get(category.key) ?? { category, ns: 0 };
        found.ns += lanes.totals_ns[lane]?.[i] ?? 0;
        sums.set(category.key, found);
      });
    }
  }
  return (
    <ul class="legend keys" aria-label="Colours of a rank's time">
      {[...sums.values()].sort((a, b) => b.ns - a.ns).map(({ category }) => (
        <li key={category.key} title={category.meaning}>
          <i class={`key ${classOf(category)}`} />
          {category.key.startsWith("account:idle.") && "idle: "}
          {category.name}
        </li>
      ))}
    </ul>
  );
}

export function Status({ known }: { known: Run }) {
  const { shown, total, asked, rows, of, coarse } = shownOf.value;
  const { from, to } = view.value;
  const span = Math.min(to, whole.value.to) - Math.max(from, whole.value.from);
  return (
    <footer class="status">
      <span>
        {time(span)} in view, from {time(Math.max(0, from - known.zero))}
      </span>
      {of > 1 && <span>{rows < of ? `${fixed(rows, 0)} of ${fixed(of, 0)} ranks in view` : `all ${fixed(of, 0)} ranks in view`}</span>}
      {asked && total > 0 && shown < total && (
        <span class="cut">
          {fixed(shown, 0)} of {fixed(total, 0)} events shown one by one, the longest; the shares count all
        </span>
      )}
      {!asked && <span>shares of time, exact; zoom in or raise rows (+) for single events</span>}
      {pathShown.value && <OfPath />}
      {waiting.value && <span class="loading">{waiting.value}</span>}
      {coarse && <span class="loading">loading…</span>}
      <span id="status" class="said" role="status" aria-live="polite">
        {said.value}
      </span>
      {trouble.value && (
        <span class="trouble" role="alert">
          {trouble.value}{" "}
          <button type="button" class="link" onClick={() => (trouble.value = "")}>
            dismiss
          </button>
        </span>
      )}
    </footer>
  );
}

function OfPath() {
  const found = critical.value;
  if (adding.value) return <span class="loading">replaying the run for its critical path…</span>;
  if (!found) return null;
  if (found.why_not) return <span class="cut">{found.why_not}</span>;
  const [first] = byRank();
  return (
    <span title={found.doubts.join("; ") || undefined}>
      critical path in view: {first ? `${(100 * first.share).toFixed(0)} % on rank ${first.rank}` : "none"}
      {found.shown < found.total && `; ${fixed(found.shown, 0)} of ${fixed(found.total, 0)} stretches drawn`}
    </span>
  );
}

export function Help() {
  const box = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => {
    if (helping.value && !box.current?.open) box.current?.showModal();
  });
  if (!helping.value) return null;
  const gestures: [string, string][] = [
    ["Ctrl wheel", "zoom at the pointer"],
    ["wheel", "scroll the rows"],
    ["Shift drag", "move"],
    ["drag", "select a range of time and rows; its edges can be moved"],
    ["drag on the ruler", "select a range of all rows"],
    ["click", "details of an event"],
    ["click on a title", "open or fold a rank; right click pins a row"],
  ];
  return (
    <dialog ref={box} aria-label="Keys" role="dialog" onClose={() => (helping.value = false)} onClick={(event) => event.target === box.current && box.current!.close()}>
      <div class="inside">
        <h2>Keys</h2>
        <dl>
          {[...COMMANDS.map(({ shown, does }): [string, string] => [shown, does]), ...gestures].map(([shown, does]) => (
            <div key={shown}>
              <dt>
                <kbd>{shown}</kbd>
              </dt>
              <dd>{does}</dd>
            </div>
          ))}
        </dl>
        <form method="dialog">
          <button class="button">Close</button>
        </form>
      </div>
    </dialog>
  );
}

