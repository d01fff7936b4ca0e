"""Each analysis that Holistic Trace Analysis and lostflops both have, and each recipe beside its import."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import traces
from sections import PEER, Found, Say, ratios, spread, verdict

from lostflops.recipes import recipes as all_recipes

HERE = Path(__file__).parent
LEAST_TIMES = 20
PATIENCE = 60.0  # seconds for one answer
# Theirs and ours, those that may exhaust the patience last: a process that is given up answers no more.
SAME = {
    "get_temporal_breakdown": "gpu_overlap",  # the ledger also says why it idles, which theirs does not
    "get_idle_time_breakdown": "stream_waits",
    "get_comm_comp_overlap": "communication_exposed",
    "get_gpu_kernel_breakdown": "kernel_summary",
    "get_gpu_kernels_with_user_annotations": "range_kernel_summary",
    "get_gpu_user_annotation_breakdown": "range_summary",
    "get_cuda_kernel_launch_stats": "launch_latency_trace",
    "get_queue_length_summary": "launch_queue_depth",
    "get_time_spent_blocked_on_full_queue": "launch_queue_full",
    "get_memory_bw_summary": "copy_bandwidth",
    "get_potential_stragglers": "communication_imbalance",
    "get_profiler_steps": "counted_steps",
    "get_aten_op_kernels_and_delay": "operator_kernel_summary",
    "get_frequent_cuda_kernel_sequences": "kernel_sequences",
}


class Asked:
    """A process that has loaded the ranks and answers; `loaded` is what it said first."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.loaded = self._said(600.0)
        self.peak = self.loaded.get("peak", 0)

    def ask(self, what: str) -> dict[str, Any]:
        """Its time in `seconds`, or why there is none in `error`."""
        if self._process.poll() is not None:
            return {"error": "given up"}
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        answer = self._said(PATIENCE)
        self.peak = max(self.peak, answer.get("peak", 0))
        return answer

    def _said(self, patience: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], patience)
        if not ready:
            self._process.kill()
            self._process.wait()
            return {"error": f"over {patience:.0f} s", "over": patience}
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args} ended without an answer.")
        return json.loads(line)


@contextmanager
def asked(python: str | Path, script: str, files: Mapping[int, Path], *more: str) -> Iterator[Asked]:
    """A process of that interpreter which loads the files; `script` lies beside this one."""
    named = json.dumps({rank: str(file) for rank, file in files.items()})
    command = [str(python), str(HERE / script), named, *more]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield Asked(process)
        finally:
            process.kill()


def analyses(repeat: int, big: bool, say: Say) -> Found:
    """Each analysis that Holistic Trace Analysis has, too."""
    jobs = {"DLRM": traces.eight_ranks()} | ({"DDP × 8": traces.eight_large_ranks()} if big else {})
    rows: list[list[str]] = []
    told: list[str] = []
    versions = ""
    for job, files in jobs.items():
        loaded: list[float] = []
        stored: list[float] = []
        with (
            asked(PEER, "ask_hta.py", files) as theirs,
            asked(sys.executable, "ask_lostflops.py", files) as ours,
        ):
            versions = f"{ours.loaded['versions']}; {theirs.loaded['versions']}"
            for analysis, recipe in SAME.items():
                say(f"{job}: {analysis}")
                turns = _turns(theirs, ours, analysis, recipe, repeat)
                rows.append([job, f"`{analysis}`", *turns.row(recipe)])
                if turns.slow:
                    loaded.append(median(ratios(turns.slow, turns.fast)))
                    stored.append(median(ratios(turns.from_files, turns.stored)))
            told.append(
                f"{job}, {ours.loaded['events']:,} events. Both loaded: from {min(loaded):.1f} to "
                f"{max(loaded):.0f} times as fast, median **{median(loaded):.1f}**. "
                f"{verdict(min(loaded) >= LEAST_TIMES, 'at least 20 for each')} In a new process: from "
                f"{min(stored):.1f} to {max(stored):.0f} times, median **{median(stored):.0f}**. "
                f"{verdict(min(stored) >= LEAST_TIMES, 'at least 20 for each')} Loading the files: "
                f"{theirs.loaded['seconds']:.1f} s and {ours.loaded['seconds']:.1f} s; most memory: "
                f"{theirs.peak / 1e6:.0f} MB and {ours.peak / 1e6:.0f} MB."
            )
    header = (
        "ranks",
        "analysis of HTA",
        "HTA, s",
        "recipe",
        "lostflops, s",
        "times as fast",
        "again, s",
        "in a new process, times as fast",
    )
    return Found(header, rows, " ".join(told), versions)


@dataclass
class Turns:
    """Seconds of each turn: theirs, of theirs with loading, and ours; or why there are none of theirs."""

    slow: list[float] = field(default_factory=list[float])
    from_files: list[float] = field(default_factory=list[float])
    fast: list[float] = field(default_factory=list[float])
    again: list[float] = field(default_factory=list[float])
    stored: list[float] = field(default_factory=list[float])
    without: str = ""

    def row(self, recipe: str) -> list[str]:
        ours = f"{median(self.fast):.3f}"
        kept = f"{median(self.again):.4f}"
        if not self.slow:
            return [self.without, f"`{recipe}`", ours, "", kept, ""]
        return [
            f"{median(self.slow):.3f}",
            f"`{recipe}`",
            ours,
            spread(ratios(self.slow, self.fast)),
            kept,
            spread(ratios(self.from_files, self.stored)),
        ]


def _turns(theirs: Asked, ours: Asked, analysis: str, recipe: str, repeat: int) -> Turns:
    turns = Turns()
    ours.ask(f"{recipe} first")  # cold code is in no time
    said = theirs.ask(analysis)
    if said.get("empty"):
        turns.without = "says nothing"
    elif "error" in said:
        turns.without = said["error"].partition(":")[0]
    for _ in range(repeat):
        if not turns.without:
            turns.slow.append(theirs.ask(analysis)["seconds"])
            turns.from_files.append(theirs.loaded["seconds"] + turns.slow[-1])
        turns.fast.append(ours.ask(f"{recipe} first")["seconds"])
        turns.again.append(ours.ask(f"{recipe} again")["seconds"])
        turns.stored.append(ours.ask(f"{recipe} stored")["seconds"])
    return turns


def recipes(repeat: int, big: bool, say: Say) -> Found:
    """Each recipe against the import of its trace."""
    rows: list[list[str]] = []
    slowest: list[float] = []
    for title, files in traces.asked_of().items():
        with asked(sys.executable, "ask_lostflops.py", files) as ours:
            load = ours.loaded["seconds"]
            say(f"{title}: imported in {load:.1f} s")
            times: dict[str, float] = {}
            for name, known in all_recipes().items():
                if not known.page:
                    continue
                said = ours.ask(f"{name} first")
                if "error" in said:
                    continue
                times[name] = median(
                    [said["seconds"], *(ours.ask(f"{name} first")["seconds"] for _ in range(repeat - 1))]
                )
            worst = sorted(times, key=lambda name: -times[name])[:3]
            slowest.append(times[worst[0]] / load)
            listed = ", ".join(f"`{name}` {times[name]:.2f} s" for name in worst)
            rows.append([title, f"{ours.loaded['events']:,}", f"{load:.2f}", str(len(times)), listed])
    return Found(
        ("trace", "events", "import, s", "recipes", "slowest"),
        rows,
        f"The slowest recipe takes {max(slowest):.2f} of the time of its import. "
        f"{verdict(max(slowest) <= 1, 'at most 1')}",
    )
