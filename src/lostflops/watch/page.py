"""The page of a watch: the job now, and what happened last, in lines of text."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence

from rich.text import Text

from lostflops.errors import shown
from lostflops.finding import milliseconds
from lostflops.recipes.steps.log_pauses import ordinal
from lostflops.units import three_figures, written_ranks
from lostflops.watch.job import Happened, Now, RankNow, long

LABEL = 12
BARS = "▁▂▃▄▅▆▇█"
MOST_EVENTS = 12
MOST_NOTES = 5
PAUSES = {"checkpoint": "saving a checkpoint", "data": "waiting for data", "garbage": "collecting garbage",
          "core_wait": "waiting for a processor core", "optimizer": "in the optimizer"}  # fmt: skip


def page(now: Now, run: str, happened: Sequence[Happened]) -> Text:
    """All of it. Names from the run are shown with control characters escaped."""
    text = Text()
    for label, value, style in _lines(now, run):
        text.append(f"{label:<{LABEL}}" if label else "", style="dim" if label else "")
        text.append(f"{value}\n", style=style)
    if happened:
        left = len(happened) - MOST_EVENTS
        text.append(f"\n{'changes':<{LABEL}}", style="bold")
        text.append(f"({left} earlier ones are not shown)\n" if left > 0 else "\n", style="dim")
        for one in happened[-MOST_EVENTS:]:
            text.append(f"  {line(one)}\n", style="red" if one.bad else "")
    for note in now.notes[:MOST_NOTES]:
        text.append(f"note: {shown(note)}\n", style="yellow")
    text.rstrip()
    return text


def line(one: Happened) -> str:
    """What happened, in one line with its time."""
    return f"{clock(one.at)}  {shown(one.text)}"


def clock(ns: int) -> str:
    """A time of day here; with the date where it was not today."""
    if not ns:
        return "--:--:--"
    then = time.localtime(ns / 1e9)
    same = time.strftime("%Y-%m-%d", then) == time.strftime("%Y-%m-%d")
    return time.strftime("%H:%M:%S" if same else "%Y-%m-%d %H:%M:%S", then)


def _lines(now: Now, run: str) -> Iterator[tuple[str, str, str]]:
    if now.step is None:
        yield "", f"{shown(run)} · no rank has finished a step yet", "bold"
        return
    ranks = f"{len(now.ranks)} rank{'s' if len(now.ranks) != 1 else ''}"
    count = f"{ranks} on {now.nodes} node{'s' if now.nodes != 1 else ''}"
    state = "ended" if now.ended else "silent" if now.stalled else "running"
    again = f" · attempt {now.attempt}" if now.attempt else ""
    at = f" at {clock(now.at)}" if now.at else ""
    yield "", f"{shown(run)} · {count} · step {now.step:,}{at} · {state}{again}", "bold"
    if math.isfinite(now.steps_per_second):
        speed = f"{three_figures(now.steps_per_second)} steps/s, median step {milliseconds(now.duration)}"
        yield "speed", f"{speed} (last {now.recent} steps)  {spark(now.spark)}", ""
    if len(now.ranks) > 1:
        slowest = max(now.ranks, key=lambda rank: rank.longer)
        fastest = min(now.ranks, key=lambda rank: rank.longer)
        yield "spread", f"slowest {_rank(slowest)}, fastest {_rank(fastest)}", ""
    per_second = {"tokens": now.tokens_per_second, "samples": now.samples_per_second}
    rates = [f"{rate:,.0f} {name}/s" for name, rate in per_second.items() if rate is not None]
    if rates:
        yield "throughput", ", ".join(rates), ""
    if now.loss is not None:
        before = "" if now.loss_before is None else f"; {now.loss_before:.4g} in the steps before"
        value = f"{now.loss[1]:.4g}" if math.isfinite(now.loss[1]) else "not a number"
        yield "loss", f"{value} at step {now.loss[0]:,}{before}", ""
    for pause, cause in now.pauses:
        does = f" ({PAUSES[cause]})" if cause else ""
        cost = milliseconds(pause.longer / pause.period)
        every = f"every {ordinal(pause.period)} step is {milliseconds(pause.longer)} longer{does}"
        yield "pauses", f"{every}: {cost} per step", ""
    for text in behind(now):
        yield "behind", text, "bold red"


def behind(now: Now) -> Iterator[str]:
    """Who writes nothing, and who is slower than at first: whole nodes together, and the job."""
    for rank in now.ranks:
        if rank.rank in now.silent:
            quiet = long(now.silent[rank.rank])
            yield f"rank {rank.rank} ({shown(rank.node)}): no step for {quiet} while others finish theirs"
    if now.job_slower is not None and now.job_slower > 0:
        yield f"the job is {_share(now.job_slower)} slower than it was"
    slow = [rank for rank in now.ranks if rank.slow is not None and rank.slow > 0]
    nodes: dict[str, list[RankNow]] = {}
    for rank in slow:
        nodes.setdefault(rank.node, []).append(rank)
    for node, ranks in nodes.items():
        lost = [rank.slow or 0 for rank in ranks]
        least, most = _share(min(lost)), _share(max(lost))
        by = most if least == most else f"{least} to {most}"
        whole = len(ranks) > 1 and len(ranks) == sum(rank.node == node for rank in now.ranks)
        named = written_ranks([r.rank for r in ranks])
        who = f"{shown(node)}, all its {named}" if whole else f"{named} ({shown(node)})"
        yield f"{who}: {by} slower than before, against the other ranks"


def spark(values: Sequence[float]) -> str:
    """Step times as bars, whose full height is at least a third more than the lowest: noise looks flat."""
    known = [value for value in values if math.isfinite(value)]
    if len(known) < 4:
        return ""
    low = min(known)
    high = max(max(known), low * 4 / 3)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0
    return "".join(BARS[round((value - low) * scale)] if math.isfinite(value) else " " for value in values)


def _rank(rank: RankNow) -> str:
    sign = "+" if rank.longer >= 0 else "-"
    return f"rank {rank.rank} ({shown(rank.node)}) {sign}{_share(abs(rank.longer))}"


def _share(ratio: float) -> str:
    return f"{100 * ratio:.1f} %"
