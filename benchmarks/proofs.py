"""How often `lostflops prove` is right about commands whose difference is known.

    python benchmarks/proofs.py [--only KIND] [--equal 40] [--planted 10] [--write]

Each experiment is the command as typed: starts of a loop of equal steps (`proof_steps.py`), in turns, at most
10 pairs. Equal commands may be told apart in at most 4 of 40; 15 % more time is to be found, and of 5 % it
is to be said how many pairs it takes. Equal commands compute, which meets all that the machine does besides;
what is planted is a longer wait, which meets less of it. How far starts of a command differ is in the table.
`--write` puts it into `benchmarks/README.md`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from run import as_text, record
from sections import Found

HERE = Path(__file__).resolve().parent
PAIRS = 10
COMPUTE, WAIT = (100, 500, 0.0), (300, 5, 3.0)  # steps, and work and milliseconds of each
MOST_ALARMS = 0.1  # of the equal commands
KINDS = {"equal commands": 1.0, "15 % longer": 1.15, "5 % longer": 1.05}


def main() -> int:
    parser = ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=list(KINDS), action="append")
    parser.add_argument("--equal", type=int, default=40, metavar="N", help="experiments with equal commands")
    parser.add_argument("--planted", type=int, default=10, metavar="N", help="those of each planted slowdown")
    parser.add_argument("--write", action="store_true", help="write the table into the README")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    kinds = given.only or list(KINDS)
    times = {kind: given.equal if KINDS[kind] == 1 else given.planted for kind in kinds}
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    # The kinds take turns, so that whatever else the machine does meets them all.
    for turn in range(max(times.values())):
        for kind in kinds:
            if (
                len(found[kind]) * max(times.values()) <= turn * times[kind]
                and len(found[kind]) < times[kind]
            ):
                found[kind].append(experiment(KINDS[kind]))
                said = found[kind][-1]
                print(
                    f"{kind}, {len(found[kind])} of {times[kind]}: {said['verdict']}",
                    file=sys.stderr,
                    flush=True,
                )
    table = Found(
        ("planted", "experiments", "faster", "slower", "no difference", "cannot tell", "pairs used",
         "starts of one command differ by", "pairs in all for it"),
        [row(kind, found[kind]) for kind in kinds],
        summary(found),
        f"lostflops {version('lostflops')}",
    )  # fmt: skip
    text = as_text(table, 1, load)
    print(text)
    if given.write:
        record("proofs", text)
    return 0


def experiment(factor: float) -> dict[str, Any]:
    """One whole `lostflops prove`, as one document."""
    with tempfile.TemporaryDirectory() as folder:
        steps, work, wait = COMPUTE if factor == 1 else WAIT
        loop = f"{sys.executable} {HERE / 'proof_steps.py'} {steps} {work}"
        commands = [f"{loop} {wait * by:g}" for by in (1.0, factor)]
        words = ["--before", commands[0], "--after", commands[1], "--step-on", "proof_steps:step"]
        words += ["--pairs", str(PAIRS), "--output", str(Path(folder, "out")), "--json", "-"]
        command = [sys.executable, "-m", "lostflops", "prove", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def row(kind: str, found: list[dict[str, Any]]) -> list[str]:
    said = Counter(one["verdict"] for one in found)
    noise = [one["start_noise"] for one in found]
    needed = [one["more_pairs"] for one in found if one["more_pairs"]]
    pairs = [PAIRS + n["pairs"] if n["pairs"] else 101 for n in needed]
    return [
        kind,
        str(len(found)),
        *(str(said[v]) for v in ("faster", "slower", "no difference", "cannot tell")),
        f"{median(one['pairs'] for one in found):g}",
        f"{100 * median(noise):.1f} % ({100 * min(noise):.1f} to {100 * max(noise):.1f})",
        f"{'more than 100' if median(pairs) > 100 else f'{median(pairs):.0f}'}" if pairs else "shown",
    ]


def summary(found: dict[str, list[dict[str, Any]]]) -> str:
    said: list[str] = []
    for kind, experiments in found.items():
        named = sum(one["verdict"] in ("faster", "slower") for one in experiments)
        if KINDS[kind] == 1:
            most = MOST_ALARMS * len(experiments)
            met = "met" if named <= most else "missed"
            said.append(f"Told apart, though equal: **{named} of {len(experiments)}**.")
            said.append(f"Target at most {most:.0f}: {met}.")
        else:
            slower = sum(one["verdict"] == "slower" for one in experiments)
            inside = sum(one["low"] <= KINDS[kind] <= one["high"] for one in experiments)
            of = len(experiments)
            said.append(f"{kind}: slower in {slower} of {of}, and the interval holds it in {inside}.")
    return " ".join(said)


if __name__ == "__main__":
    sys.exit(main())
