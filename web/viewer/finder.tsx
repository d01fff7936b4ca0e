// Finds a track or a command by a few of its letters.

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { COMMANDS, finder } from "./commands";
import type { Run } from "./protocol";
import { reveal } from "./rows";
import { focused, opened, said } from "./state";

interface Choice {
  title: string;
  beside: string;
  go: () => void;
}

const MOST = 12;

export function Finder({ known }: { known: Run }) {
  const kind = finder.value;
  return kind ? <Chooser key={kind} known={known} kind={kind} /> : null;
}

function Chooser({ known, kind }: { known: Run; kind: "tracks" | "commands" }) {
  const box = useRef<HTMLDialogElement>(null);
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  // Before the next key: whoever types fast loses no letter.
  useLayoutEffect(() => box.current?.showModal(), []);
  const all = kind === "tracks" ? tracks(known) : COMMANDS.map(({ does, shown, run }): Choice => ({ title: does, beside: shown, go: run }));
  const found = all
    .map((one) => ({ one, score: fuzzy(one.title, text) }))
    .filter(({ score }) => score >= 0)
    .sort((a, b) => a.score - b.score);
  const go = (index: number) => {
    box.current?.close();
    finder.value = "";
    found[index]?.one.go();
  };
  return (
    <dialog ref={box} role="dialog" aria-label={kind === "tracks" ? "Find a track" : "Commands"} class="finder" onClose={() => (finder.value = "")}>
      <input
        type="text"
        role="combobox"
        aria-expanded="true"
        aria-controls="choices"
        aria-activedescendant={found.length ? `choice-${at}` : undefined}
        aria-label={kind === "tracks" ? "Letters of a track's title" : "Letters of a command"}
        placeholder={kind === "tracks" ? "rank 3 stream" : "command"}
        value={text}
        onInput={(event) => {
          setText(event.currentTarget.value);
          setAt(0);
        }}
        onKeyDown={(event) => {
          const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
          if (by) setAt((at + by + Math.min(found.length, MOST)) % Math.max(1, Math.min(found.length, MOST)));
          else if (event.key === "Enter") go(at);
          else return;
          event.preventDefault();
        }}
      />
      <ul id="choices" role="listbox">
        {found.slice(0, MOST).map(({ one }, i) => (
          <li key={one.title + i} id={`choice-${i}`} role="option" aria-selected={i === at} onClick={() => go(i)}>
            <span>{one.title}</span>
            <small>{one.beside}</small>
          </li>
        ))}
      </ul>
      <p class="quiet">{found.length > MOST ? `${MOST} of ${found.length.toLocaleString("en-US")} shown` : found.length ? "" : "Nothing has these letters."}</p>
    </dialog>
  );
}

function tracks(known: Run): Choice[] {
  const index = new Map(known.ranks.rank.map((rank, i) => [rank, i]));
  const made = known.tracks.rank.map((rank, track): Choice => {
    const at = index.get(rank) ?? 0;
    const isState = known.tracks.kind[track] === "state";
    return {
      title: `rank ${rank} ${known.tracks.title[track]}`,
      beside: known.tracks.kind[track]!,
      go: () => {
        if (!isState) opened.value = new Set([...opened.value, at]);
        focused.value = isState ? `r${at}` : `t${track}`;
        reveal(focused.value);
        said.value = `rank ${rank} ${known.tracks.title[track]}`;
      },
    };
  });
  return made;
}

// How far apart the letters stand, in order, in the text; -1 where they do not.
export function fuzzy(text: string, letters: string): number {
  const low = text.toLowerCase();
  let at = -1;
  let score = 0;
  for (const letter of letters.toLowerCase().replace(/\s+/g, " ").trim()) {
    const found = low.indexOf(letter, at + 1);
    if (found < 0) return -1;
    score += found - at - 1;
    at = found;
  }
  return score;
}
