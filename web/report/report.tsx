// Brings the report to life: the page is complete without it, up to the heat map, the plots and long tables.

import { render, type ComponentChild } from "preact";
import { unpacked, type Data } from "./data";
import { HeatMap } from "./heatmap";
import { Drawn } from "./plots";
import { choice } from "./choice";
import { Tip } from "../shared/tip";
import { Rows } from "./table";

const data = JSON.parse(document.getElementById("data")!.textContent!) as Data;

function put(id: string, what: ComponentChild): void {
  const place = document.getElementById(id);
  if (!place) return;
  place.replaceChildren();
  render(what, place);
}

function Chosen() {
  const { rank, step } = choice.value;
  if (rank === null && step === null) return null;
  const words = [rank !== null && `rank ${rank}`, step !== null && `step ${step}`].filter(Boolean).join(", ");
  return (
    <p class="chosen">
      Only {words} in tables that have them
      <button type="button" onClick={() => (choice.value = { rank: null, step: null })}>
        show all
      </button>
    </p>
  );
}

for (const table of data.tables) {
  put(
    table.anchor,
    <>
      <Drawn table={table} />
      <Rows table={table} />
    </>,
  );
}
if (data.map && data.unit) {
  const { map, unit } = data;
  void unpacked(map).then((cells) => put("map-here", <HeatMap heat={map} cells={cells} unit={unit} />));
}
// A link to what is folded opens it; browsers differ in whether they do that themselves.
function unfold(): void {
  const place = document.getElementById(location.hash.slice(1));
  for (let at = place?.closest("details"); at; at = at.parentElement?.closest("details")) at.open = true;
  place?.scrollIntoView();
}
addEventListener("hashchange", unfold);
document.addEventListener("click", (event) => {
  const link = (event.target as Element).closest<HTMLAnchorElement>('a[href^="#"]');
  if (link && link.hash === location.hash) unfold();
});
if (location.hash) unfold();
// On paper nothing can be unfolded.
addEventListener("beforeprint", () => document.querySelectorAll("details:not(.question)").forEach((one) => one.setAttribute("open", "")));

const layer = document.body.appendChild(document.createElement("div"));
render(
  <>
    <Tip />
    <Chosen />
  </>,
  layer,
);
