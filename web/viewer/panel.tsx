// Beside the timeline: the findings, the ledger of a range, an event, hits of a search, and what the run is.

import type { ComponentChildren } from "preact";
import { fixed } from "../shared/numbers";
import { both, exact, time } from "../shared/time";
import { beside, chosen, others, whose } from "./beside";
import { Compare } from "./compare";
import { arrows, collective, failed, goTo, hit, hits, next, ranged, showFinding, step } from "./evidence";
import { classOf } from "./palette";
import type { Collective, EventDetails, Finding, Range, Run } from "./protocol";
import { api, json } from "./source";
import { area, details, drawer, finding, findings, lookAt, picked, query, tab, whole, type Tab } from "./state";

const TABS: { key: Tab; title: string }[] = [
  { key: "findings", title: "Findings" },
  { key: "compare", title: "Compare" },
  { key: "range", title: "Range" },
  { key: "event", title: "Event" },
  { key: "search", title: "Search" },
  { key: "about", title: "Run" },
];

export function Panel({ known }: { known: Run }) {
  if (!drawer.value) return null;
  const open = tab.value;
  return (
    <aside class="panel" aria-label="Details">
      <div class="tabs" role="tablist">
        {TABS.filter(({ key }) => key !== "compare" || others.value.length > 0 || open === key).map(({ key, title }) => (
          <button
            key={key}
            type="button"
            role="tab"
            id={`tab-${key}`}
            aria-selected={open === key}
            aria-controls="panel"
            onClick={() => (tab.value = key)}
          >
            {title}
            {key === "findings" && findings.value ? ` ${findings.value.findings.length}` : ""}
          </button>
        ))}
        <button type="button" class="close" aria-label="Hide the panel" title="Hide the panel (Q)" onClick={() => (drawer.value = false)}>
          ×
        </button>
      </div>
      <div class="body" id="panel" role="tabpanel" aria-labelledby={`tab-${open}`}>
        {open === "findings" && <Findings />}
        {open === "compare" && <Compare known={known} />}
        {open === "range" && <OfRange known={known} />}
        {open === "event" && <OfEvent />}
        {open === "search" && <Found />}
        {open === "about" && <About known={known} />}
      </div>
    </aside>
  );
}

// Names between backticks are code, as in the report.
function Coded({ text }: { text: string }) {
  const parts = text.split("`");
  if (parts.length % 2 === 0) return <>{text}</>;
  return <>{parts.map((part, i) => (i % 2 ? <code key={i}>{part}</code> : part))}</>;
}

function Findings() {
  const known = findings.value;
  if (!known) return <p class="quiet">Asking every recipe about this run…</p>;
  return (
    <>
      <p class="verdict">
        <Coded text={known.verdict} />
      </p>
      {!known.findings.length && <p class="quiet">No findings.</p>}
      <ol class="findings">
        {known.findings.map((one) => (
          <OneFinding key={one.name} one={one} />
        ))}
      </ol>
    </>
  );
}

function OneFinding({ one }: { one: Finding }) {
  const isChosen = finding.value === one.name;
  return (
    <li class={isChosen ? "chosen-one" : undefined}>
      <button type="button" class="claim" aria-expanded={isChosen} onClick={() => showFinding(one)}>
        <Coded text={one.claim} />
      </button>
      {isChosen && (
        <div class="more">
          {one.windows.length > 0 ? (
            <ul class="windows">
              {one.windows.map((window, i) => (
                <li key={i}>
                  <button type="button" class="link" onClick={() => showFinding(one, window)}>
                    {window.text || `rank ${window.rank}`}
                  </button>{" "}
                  <span class="quiet">
                    {time(window.end - window.start)} at {time(window.start - whole.value.from)}
                  </span>
                </li>
              ))}
            </ul>
          ) : (
            <p class="quiet">No one place in the timeline shows it.</p>
          )}
          {one.evidence.length > 0 && (
            <ul>
              {one.evidence.map((fact, i) => (
                <li key={i}>
                  <Coded text={fact} />
                </li>
              ))}
            </ul>
          )}
          <p>
            <b>Next</b> <Coded text={one.next} />
          </p>
          {one.gain_ns > 0 && (
            <p class="quiet">
              <b>Gain</b> {one.gain} {time(one.gain_ns)} per step
            </p>
          )}
          {one.doubt && (
            <p class="quiet">
              <b>Doubt</b> <Coded text={one.doubt} />
            </p>
          )}
          {one.recipe && <Explain recipe={one.recipe} question="" />}
        </div>
      )}
    </li>
  );
}

// How to have it explained: a command that can be copied.
function Explain({ recipe, question }: { recipe: string; question: string }) {
  return (
    <p class="explain">
      {question || "Explain this:"} <code>lostflops explain {recipe.replaceAll("_", "-")}</code>
    </p>
  );
}

function OfRange({ known }: { known: Run }) {
  const range = area.value;
  if (!range) return <p class="quiet">Drag over the timeline to select a range of time and rows. R makes the selected event a range, Shift R what is in view.</p>;
  const found = ranged.value;
  return (
    <>
      <h2>{time(range.to - range.from)} selected</h2>
      <p class="quiet">
        {exact(range.to - range.from)}, from {time(range.from - known.zero)} to {time(range.to - known.zero)},{" "}
        {range.rows.length ? `${range.rows.length} row${range.rows.length === 1 ? "" : "s"}` : "all rows"}
      </p>
      {!found ? <p class="quiet">Adding up…</p> : <Sums known={known} found={found} />}
    </>
  );
}

function Sums({ known, found }: { known: Run; found: Range }) {
  const { ledger } = found;
  const events = found.lanes.reduce((sum, lane) => sum + (lane.lane < known.ranks.rank.length ? 0 : lane.num_events), 0);
  const byCategory = new Map<number, number>();
  for (const lane of found.lanes) {
    if (lane.lane < known.ranks.rank.length) continue;
    for (const [category, ns] of lane.categories) byCategory.set(category, (byCategory.get(category) ?? 0) + ns);
  }
  const categories = [...byCategory].filter(([category]) => !known.categories[category]?.key.startsWith("step:"));
  return (
    <>
      {ledger.ns > 0 && (
        <Bars
          title={`Ledger of ${ledger.ranks} rank${ledger.ranks === 1 ? "" : "s"}`}
          whole={ledger.ns}
          total={exact(ledger.ns)}
          lines={ledger.accounts.map(({ key, name, ns }) => ({ key, name, ns, color: classOf({ key, name, meaning: "" }) }))}
        />
      )}
      {categories.length > 0 && (
        <Bars
          title={`${fixed(events, 0)} events by kind`}
          whole={Math.max(...categories.map(([, ns]) => ns))}
          lines={categories
            .sort((a, b) => b[1] - a[1])
            .map(([category, ns]) => ({ key: String(category), name: known.categories[category]!.name, ns, color: classOf(known.categories[category]!) }))}
        />
      )}
      {found.names.length > 0 && (
        <>
          <h3>By name</h3>
          <table class="names">
            <thead>
              <tr>
                <th scope="col">name</th>
                <th scope="col" class="n">events</th>
                <th scope="col" class="n">time</th>
              </tr>
            </thead>
            <tbody>
              {found.names.map(({ name, category, num_events, ns }, i) => (
                <tr key={i}>
                  <td>
                    <i class={`key ${known.categories[category] ? classOf(known.categories[category]) : ""}`} />
                    <span title={name}>{name}</span>
                  </td>
                  <td class="n">{fixed(num_events, 0)}</td>
                  <td class="n" title={exact(ns)}>
                    {time(ns)}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
          {found.names_shown < found.names_total && (
            <p class="quiet">
              {fixed(found.names_shown, 0)} of {fixed(found.names_total, 0)} names shown
            </p>
          )}
        </>
      )}
    </>
  );
}

function Bars({ title, lines, whole, total }: { title: string; whole: number; total?: string; lines: { key: string; name: string; ns: number; color: string }[] }) {
  return (
    <>
      <h3>{title}</h3>
      <table class="sums">
        <tbody>
          {lines.map(({ key, name, ns, color }) => (
            <tr key={key}>
              <th scope="row">{name}</th>
              <td class="n" title={exact(ns)}>
                {time(ns)}
              </td>
              <td class="n quiet">{total ? `${((100 * ns) / whole).toFixed(1)} %` : ""}</td>
              <td class="meter">
                <i class={color} style={{ width: `${(100 * ns) / whole}%` }} />
              </td>
            </tr>
          ))}
        </tbody>
        {total && (
          <tfoot>
            <tr>
              <th scope="row">all</th>
              <td class="n" colSpan={3}>
                {total}
              </td>
            </tr>
          </tfoot>
        )}
      </table>
    </>
  );
}

function OfEvent() {
  const event = details.value;
  const other = picked.value?.other ?? false;
  const of = whose(other);
  if (!event || !of) return <p class="quiet">Click an event, or choose a row with the arrow keys and press the full stop.</p>;
  const known = of.run;
  const category = known.categories[event.category];
  return (
    <>
      <h2 class="name">{event.name}</h2>
      <p class="quiet">
        {category && <i class={`key ${classOf(category)}`} />}
        {category?.name} · rank {event.rank}
        {beside.value && ` of ${other ? "B" : "A"}`} · {event.title}
      </p>
      <table class="facts">
        <tbody>
          <Fact name="duration" value={both(event.end - event.start)} />
          <Fact name="start" value={`${both(event.start - known.zero)} after the run's first`} />
          <Fact name="end" value={both(event.end - known.zero)} />
          {event.account && <Fact name="account" value={event.account} />}
          {event.fields.map(({ name, value, meaning }, i) => (
            <Fact key={i} name={name} value={value} meaning={meaning} />
          ))}
        </tbody>
      </table>
      <p class="actions">
        <button type="button" onClick={() => void next(-1)} disabled={event.previous === null}>
          ← previous
        </button>
        <button type="button" onClick={() => void next(1)} disabled={event.next === null}>
          next →
        </button>
        <button type="button" onClick={() => chosen.value && lookAt(chosen.value, 0.5)}>
          fit
        </button>
      </p>
      {event.around.length > 0 && (
        <>
          <h3>Stack</h3>
          <ol class="stack">
            {event.around.map(({ lane, row, name }, i) => (
              <li key={i}>
                <button type="button" class="link" onClick={() => void jump(lane, row, other)}>
                  {name}
                </button>
              </li>
            ))}
          </ol>
        </>
      )}
      {arrows.value.length > 0 && (
        <>
          <h3>Linked</h3>
          <ul class="linked">
            {arrows.value.map(({ kind, from, to }, i) => {
              const far = from.lane === event.lane && from.row === event.row ? to : from;
              return (
                <li key={i}>
                  <button type="button" class="link" onClick={() => void jump(far.lane, far.row, other)}>
                    {kind} {far === to ? "→" : "←"} {time(far.time - known.zero)}
                  </button>
                </li>
              );
            })}
          </ul>
        </>
      )}
      {collective.value && <OnRanks of={of} other={other} one={collective.value} />}
      {event.explain.map(({ recipe, question }) => (
        <Explain key={recipe} recipe={recipe} question={question} />
      ))}
    </>
  );
}

const MOST_RANKS = 64;

function OnRanks({ of: { run: known, by }, other, one }: { of: { run: Run; by: number }; other: boolean; one: Collective }) {
  const longest = Math.max(1, ...one.parts.map(({ wait_ns }) => wait_ns));
  const parts = [...one.parts].sort((a, b) => a.arrival - b.arrival);
  return (
    <>
      <h3>
        {one.kind} on {one.parts.length} ranks: rank {one.last_rank} comes last
      </h3>
      <table class="sums">
        <tbody>
          {parts.slice(0, MOST_RANKS).map(({ rank, lane, row, wait_ns, arrival, end }) => (
            <tr key={rank}>
              <th scope="row">
                <button type="button" class="link" onClick={() => goTo({ lane, row, rank, start: arrival, end }, other)}>
                  rank {rank}
                </button>
              </th>
              <td class="n" title={exact(wait_ns)}>
                waits {time(wait_ns)}
              </td>
              <td class="meter">
                <i class="c-communication p-wait" style={{ width: `${(100 * wait_ns) / longest}%` }} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {parts.length > MOST_RANKS && (
        <p class="quiet">
          {MOST_RANKS} of {parts.length} ranks shown
        </p>
      )}
      <p>
        <button type="button" class="link" onClick={() => lookAt({ from: Math.min(...parts.map(({ arrival }) => arrival), one.start) + by, to: one.end + by })}>
          see it on all ranks
        </button>{" "}
        <span class="quiet">from {time(one.start - known.zero)}</span>
      </p>
    </>
  );
}

async function jump(lane: number, row: number, other: boolean): Promise<void> {
  await json<EventDetails>(api(whose(other)!.run.id, `/event/${lane}/${row}`)).then((found) => goTo(found, other), failed);
}

function Fact({ name, value, meaning }: { name: string; value: string; meaning?: string }) {
  return (
    <tr>
      <th scope="row" title={meaning}>
        {name}
      </th>
      <td>{value}</td>
    </tr>
  );
}

function Found() {
  const found = hits.value;
  if (!query.value) return <p class="quiet">Type part of a name into the search box: every event of the run is searched.</p>;
  if (!found) return <p class="quiet">Searching…</p>;
  return (
    <>
      <h2>
        {fixed(found.total, 0)} event{found.total === 1 ? "" : "s"} of {fixed(found.names_total, 0)} name{found.names_total === 1 ? "" : "s"}
      </h2>
      <p class="actions">
        <button type="button" disabled={!found.total} onClick={() => void step(-1)}>
          ← previous
        </button>
        <button type="button" disabled={!found.total} onClick={() => void step(1)}>
          next →
        </button>
      </p>
      <ol class="hits">
        {found.hits.map((one, i) => (
          <li key={i}>
            <button type="button" class="link" aria-current={hit.value === i} onClick={() => pickHit(i)}>
              <span title={one.name}>{one.name}</span>
            </button>
            <small>
              rank {one.rank} · {time(one.start - whole.value.from)} · {time(one.end - one.start)}
            </small>
          </li>
        ))}
      </ol>
      {found.hits.length < found.total && (
        <p class="quiet">
          {fixed(found.hits.length, 0)} of {fixed(found.total, 0)} listed; next goes on
        </p>
      )}
    </>
  );
}

function pickHit(i: number): void {
  hit.value = i;
  goTo(hits.value!.hits[i]!);
}

function About({ known }: { known: Run }) {
  const kinds = new Map<string, ComponentChildren[]>();
  const used = new Set(known.lanes.categories.flat());
  known.categories.forEach((category, i) => {
    const kind = category.key.split(":")[0]!;
    if (!used.has(i) || kind === "step") return;
    if (!kinds.has(kind)) kinds.set(kind, []);
    kinds.get(kind)!.push(
      <li key={i} title={category.meaning}>
        <i class={`key ${classOf(category)}`} />
        {category.name}
      </li>,
    );
  });
  return (
    <>
      <h2>{known.title}</h2>
      <p class="quiet">
        {fixed(known.ranks.rank.length, 0)} rank{known.ranks.rank.length === 1 ? "" : "s"}, {fixed(known.num_events, 0)} events, {time(known.end - known.zero)}
      </p>
      {known.warnings.length > 0 && (
        <ul class="warnings">
          {known.warnings.map((text, i) => (
            <li key={i}>
              <Coded text={text} />
            </li>
          ))}
        </ul>
      )}
      {[...kinds].map(([kind, items]) => (
        <section key={kind}>
          <h3>{KINDS[kind] ?? kind}</h3>
          <ul class="legend">{items}</ul>
        </section>
      ))}
    </>
  );
}

const KINDS: Record<string, string> = {
  account: "A rank's time",
  family: "Kernels",
  copy: "Copies",
  host: "On the CPU",
  collective: "Collectives",
};
