// What two runs differ in: the steps that begin together, account by account, and all steps of both.

import { fixed } from "../shared/numbers";
import { exact, time } from "../shared/time";
import { beside, pair, waiting } from "./beside";
import { ledgers } from "./comparing";
import { classOf } from "./palette";
import type { Comparison, Run } from "./protocol";
import { compared, lookAt } from "./state";

const MOST_STEPS = 200;

export function Compare({ known }: { known: Run }) {
  const other = beside.value;
  if (!other) return <p class="quiet">{waiting.value || "Choose a run under “beside” above the timeline: it is drawn below this one, step by step."}</p>;
  const { steps, notes } = other.said;
  const both = steps[pair.value];
  return (
    <>
      <h2>
        A {known.title} <span class="quiet">beside</span> B {other.run.title}
      </h2>
      {notes.map((note) => (
        <p key={note} class="quiet">
          {note}
        </p>
      ))}
      {both && <OfStep both={both} ranks={[known.ranks.rank.length, other.run.ranks.rank.length]} />}
      {steps.length > 0 && <Steps steps={steps} />}
      <p class="actions">
        <a href={`/run/${encodeURIComponent(other.run.id)}`}>open B alone</a>{" "}
        <button type="button" onClick={() => (compared.value = "")}>
          take B away
        </button>
      </p>
    </>
  );
}

const length = ([from, to]: [number, number]) => to - from;

function OfStep({ both, ranks }: { both: Comparison["steps"][number]; ranks: [number, number] }) {
  const [a, b] = [length(both.a), length(both.b)];
  const found = ledgers.value?.step === pair.value ? ledgers.value : null;
  return (
    <>
      <p class="verdict">
        Step {both.step_a} of A takes <b title={exact(a)}>{time(a)}</b>, step {both.step_b} of B{" "}
        <b title={exact(b)}>{time(b)}</b>: {change(a, b)}.
      </p>
      <h3>Where the step’s time goes, mean of a rank</h3>
      {!found ? <p class="quiet">Adding up…</p> : <Accounts a={found.a} b={found.b} ranks={ranks} />}
    </>
  );
}

function Accounts({ a, b, ranks }: { a: { accounts: { key: string; name: string; ns: number }[] }; b: typeof a; ranks: [number, number] }) {
  const lines = new Map<string, { name: string; a: number; b: number }>();
  for (const { key, name, ns } of a.accounts) lines.set(key, { name, a: ns, b: 0 });
  for (const { key, name, ns } of b.accounts) lines.set(key, { name, a: 0, ...lines.get(key), b: ns });
  const mean = (ns: number, of: 0 | 1) => ns / Math.max(1, ranks[of]);
  const sorted = [...lines].sort(([, one], [, two]) => Math.abs(mean(two.a, 0) - mean(two.b, 1)) - Math.abs(mean(one.a, 0) - mean(one.b, 1)));
  return (
    <table class="names compared">
      <thead>
        <tr>
          <th scope="col">account</th>
          <th scope="col" class="n">A</th>
          <th scope="col" class="n">B</th>
          <th scope="col" class="n">B − A</th>
        </tr>
      </thead>
      <tbody>
        {sorted.map(([key, line]) => {
          const by = mean(line.b, 1) - mean(line.a, 0);
          return (
            <tr key={key}>
              <th scope="row">
                <i class={`key ${classOf({ key, name: line.name, meaning: "" })}`} />
                {line.name}
              </th>
              <td class="n" title={`${exact(line.a)} on ${fixed(ranks[0], 0)} ranks`}>{time(mean(line.a, 0))}</td>
              <td class="n" title={`${exact(line.b)} on ${fixed(ranks[1], 0)} ranks`}>{time(mean(line.b, 1))}</td>
              <td class="n">{signed(by)}</td>
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}

function Steps({ steps }: { steps: Comparison["steps"] }) {
  const [a, b] = [steps.reduce((sum, one) => sum + length(one.a), 0), steps.reduce((sum, one) => sum + length(one.b), 0)];
  return (
    <>
      <h3>{fixed(steps.length, 0)} steps beside each other</h3>
      <table class="names compared">
        <thead>
          <tr>
            <th scope="col">step</th>
            <th scope="col" class="n">A</th>
            <th scope="col" class="n">B</th>
            <th scope="col" class="n">B − A</th>
          </tr>
        </thead>
        <tbody>
          {steps.slice(0, MOST_STEPS).map((one, i) => (
            <tr key={i} aria-current={i === pair.value ? "true" : undefined}>
              <th scope="row">
                <button type="button" class="link" onClick={() => lookAt({ from: one.a[0], to: one.a[0] + Math.max(length(one.a), length(one.b)) }, 0.95)}>
                  {one.step_a}
                  {one.step_b !== one.step_a && ` and ${one.step_b}`}
                </button>
              </th>
              <td class="n" title={exact(length(one.a))}>{time(length(one.a))}</td>
              <td class="n" title={exact(length(one.b))}>{time(length(one.b))}</td>
              <td class="n">{signed(length(one.b) - length(one.a))}</td>
            </tr>
          ))}
        </tbody>
        <tfoot>
          <tr>
            <th scope="row">mean</th>
            <td class="n">{time(a / steps.length)}</td>
            <td class="n">{time(b / steps.length)}</td>
            <td class="n">{signed((b - a) / steps.length)}</td>
          </tr>
        </tfoot>
      </table>
      {steps.length > MOST_STEPS && (
        <p class="quiet">
          {MOST_STEPS} of {fixed(steps.length, 0)} steps shown; the mean is of all
        </p>
      )}
      <p class="quiet">One recording of each: whether a difference is more than chance, <code>lostflops prove</code> says.</p>
    </>
  );
}

export function signed(ns: number): string {
  return `${ns < 0 ? "−" : ns > 0 ? "+" : ""}${time(Math.abs(ns))}`;
}

export function change(a: number, b: number): string {
  if (a === b || !a) return "as long";
  return `${((100 * Math.abs(b - a)) / a).toFixed(1)} % ${b < a ? "less" : "more"}`;
}
