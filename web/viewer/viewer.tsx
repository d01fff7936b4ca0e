// Opens a run, or lists those that are served. What the page is stands in the element that the server wrote.

import { effect } from "@preact/signals";
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { fixed } from "../shared/numbers";
import { time } from "../shared/time";
import { Tip } from "../shared/tip";
import { Bar, Help, Legend, Status } from "./bar";
import { onKey } from "./commands";
import { failed, followFinding, watch } from "./evidence";
import { framed } from "./carrier";
import { watchBeside } from "./comparing";
import { watchPath } from "./critical";
import { Finder } from "./finder";
import { Minimap } from "./minimap";
import { dress } from "./palette";
import { Panel } from "./panel";
import type { Building, Finding, Run, RunEntry } from "./protocol";
import { sortValues } from "./rows";
import { api, json, opened, Refused } from "./source";
import { drawer, drawn, findings, follow, read, run, sorting } from "./state";
import { Timeline } from "./timeline";

const app = document.getElementById("app")!;
dress();

function Viewer({ id }: { id: string }) {
  const [building, setBuilding] = useState<Building["building"] | null>(null);
  const [refused, setRefused] = useState<Error | null>(null);
  const [several, setSeveral] = useState(false);
  useEffect(() => {
    void open(id, setBuilding).catch(setRefused);
    void json<{ runs: RunEntry[] }>("/api/runs").then(({ runs }) => setSeveral(runs.length > 1), () => undefined);
  }, [id]);
  const known = run.value;
  if (refused) return <Trouble error={refused} />;
  if (!known) {
    return (
      <main class="waiting" aria-live="polite">
        <p>{building ? `Adding up the run: ${building.what}` : "Opening the run…"}</p>
        <progress value={building?.done} max={1} />
      </main>
    );
  }
  return (
    <div class={drawer.value ? "viewer with-panel" : "viewer"}>
      <Bar known={known} several={several} />
      <Minimap known={known} />
      <Timeline known={known} />
      <Legend known={known} />
      <Panel known={known} />
      <Status known={known} />
      <Help />
      <Finder known={known} />
      <Tip />
    </div>
  );
}

async function open(id: string, building: (at: Building["building"]) => void): Promise<void> {
  const known: Run = await opened(id, building);
  document.title = `${known.title} · lostflops`;
  run.value = known;
  read(framed ? app.dataset.state ?? "" : location.hash);
  follow();
  watch(id);
  watchBeside(id);
  watchPath(id);
  addEventListener("keydown", onKey);
  effect(() => {
    const by = sorting.value;
    sortValues.value = null;
    if (!by) return;
    void json<{ values: (number | null)[] }>(api(id, `/sort?by=${encodeURIComponent(by)}`)).then(({ values }) => {
      if (sorting.value === by) sortValues.value = values;
    }, failed);
  });
  await firstPicture();
  findings.value = await json<{ verdict: string; findings: Finding[] }>(api(id, "/findings")).catch((error) => {
    failed(error);
    return { verdict: "The findings could not be computed.", findings: [] };
  });
  followFinding();
  addEventListener("hashchange", followFinding);
}

// Findings are much to compute for the server, which draws first; where something cannot be drawn, it is asked all the same.
function firstPicture(): Promise<void> {
  return new Promise((done) => {
    setTimeout(done, 3_000);
    effect(() => void (drawn.value && done()));
  });
}

function Trouble({ error }: { error: Error }) {
  return (
    <main class="waiting" aria-live="assertive">
      <h1>{error.message}</h1>
      {error instanceof Refused && error.hint && <p>{error.hint}</p>}
      <p>
        <a href="/">All runs</a>
      </p>
    </main>
  );
}

function Index() {
  const [runs, setRuns] = useState<RunEntry[] | null>(null);
  const [refused, setRefused] = useState<Error | null>(null);
  useEffect(() => {
    json<{ runs: RunEntry[] }>("/api/runs").then(({ runs }) => setRuns(runs), setRefused);
  }, []);
  if (refused) return <Trouble error={refused} />;
  if (!runs) return <main class="waiting">Reading the folder…</main>;
  return (
    <main class="index">
      <p class="mark">lostflops</p>
      <h1>
        {fixed(runs.length, 0)} run{runs.length === 1 ? "" : "s"}
      </h1>
      {runs.length > 1 && <p class="quiet">Open one, then choose another under “beside”: it is drawn below the first, step by step.</p>}
      <table>
        <thead>
          <tr>
            <th scope="col">run</th>
            <th scope="col" class="n">ranks</th>
            <th scope="col" class="n">steps</th>
            <th scope="col" class="n">time</th>
            <th scope="col" class="n">events</th>
          </tr>
        </thead>
        <tbody>
          {runs.map((one) => (
            <tr key={one.id}>
              <th scope="row">
                {one.error ? one.title : <a href={`/run/${encodeURIComponent(one.id)}`}>{one.title}</a>}
                {one.error && <small class="warn"> {one.error}</small>}
              </th>
              <td class="n">{one.error ? "" : fixed(one.ranks, 0)}</td>
              <td class="n">{one.error ? "" : fixed(one.steps, 0)}</td>
              <td class="n">{one.error ? "" : time(one.duration_ns)}</td>
              <td class="n">{one.error ? "" : fixed(one.num_events, 0)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </main>
  );
}

render(app.dataset.page === "run" ? <Viewer id={app.dataset.run ?? ""} /> : <Index />, app);
