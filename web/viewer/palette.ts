// The colours of the page's style, as numbers for the canvas: each category has those of its class.

import { signal } from "@preact/signals";
import type { Category } from "./protocol";
import type { Rgb } from "./raster";

export interface Palette {
  categories: Rgb[];
  inks: string[]; // what is legible on each
  paper: Rgb;
  raised: string;
  ink: string;
  quiet: string;
  line: string;
  link: string;
  warn: string;
  dark: boolean;
}

type Theme = "system" | "light" | "dark";
const system = matchMedia("(prefers-color-scheme: dark)");
const isDark = signal(system.matches);
export const theme = signal<Theme>(kept());
export const dark = isDark;

function kept(): Theme {
  try {
    const found = localStorage.getItem("lostflops-theme");
    return found === "light" || found === "dark" ? found : "system";
  } catch {
    return "system"; // a browser that keeps nothing
  }
}

// The dark colours stand in a media query, which is made to hold or not: there is one list of them for both ways.
export function dress(): void {
  for (const sheet of document.styleSheets) {
    for (const rule of sheet.cssRules) {
      if (!(rule instanceof CSSMediaRule)) continue;
      const asked = rule as CSSMediaRule & { asked?: string };
      asked.asked ??= rule.media.mediaText;
      if (!asked.asked.includes("prefers-color-scheme")) continue;
      rule.media.mediaText = theme.value === "system" ? asked.asked : theme.value === "dark" ? "all" : "not all";
    }
  }
  document.documentElement.style.colorScheme = theme.value === "system" ? "light dark" : theme.value;
  isDark.value = theme.value === "system" ? system.matches : theme.value === "dark";
}

export function chooseTheme(chosen: Theme): void {
  theme.value = chosen;
  try {
    localStorage.setItem("lostflops-theme", chosen);
  } catch {
    // it then holds until the page is closed
  }
  dress();
}

system.addEventListener("change", dress);

// The classes that give a category its colour; accounts have those of the report.
export function classOf({ key }: Category): string {
  const [kind = "", name = ""] = key.split(/:(.*)/s);
  const safe = name.replace(/[^a-z0-9]+/gi, "-").toLowerCase();
  if (kind === "account") {
    const [group = "", part = ""] = name.split(".");
    const known = ["compute", "communication", "copy", "idle", "outside"].includes(group) ? `c-${group}` : "c-other";
    return /^[a-z_]+$/i.test(part) ? `${known} p-${part.replaceAll("_", "-")}` : known;
  }
  if (kind === "collective") return `c-communication k-collective k-${safe}`;
  if (kind === "copy") return `c-copy k-copy k-${safe}`;
  return `k-${kind.replace(/[^a-z]/gi, "")} k-${safe}`;
}

export function palette(categories: Category[]): Palette {
  const probe = document.body.appendChild(document.createElement("i"));
  probe.hidden = true;
  const made = categories.map((category) => {
    probe.className = classOf(category);
    return rgb(getComputedStyle(probe).backgroundColor) ?? ([128, 128, 128] as const);
  });
  probe.className = "";
  const variable = (name: string) => {
    probe.style.background = `var(--${name})`;
    return getComputedStyle(probe).backgroundColor;
  };
  const [paper, raised, ink, quiet, line, link, warn] = ["paper", "raised", "ink", "quiet", "line", "link", "warn"].map(variable);
  probe.remove();
  return {
    categories: made,
    inks: made.map(legible),
    paper: rgb(paper!) ?? [255, 255, 255],
    raised: raised!, ink: ink!, quiet: quiet!, line: line!, link: link!, warn: warn!,
    dark: isDark.value,
  };
}

export function rgb(text: string): Rgb | null {
  const found = /^rgba?\(([\d.]+),? ([\d.]+),? ([\d.]+)(?:[,/ ]+([\d.]+))?\)$/.exec(text);
  if (!found || found[4] === "0") return null;
  return [Math.round(Number(found[1])), Math.round(Number(found[2])), Math.round(Number(found[3]))];
}

function legible([r, g, b]: Rgb): string {
  return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#14181c" : "#ffffff";
}
