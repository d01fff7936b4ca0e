"""What a watch sees, for Prometheus: as OpenMetrics, or in the older text that textfile collectors read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from lostflops.machine.monitor.openmetrics import escaped
from lostflops.version import __version__
from lostflops.watch.job import Now


class Gauge(NamedTuple):
    """A metric: what it means, whether it only ever grows, and its unit as Prometheus spells it."""

    meaning: str
    counts: bool = False
    unit: str = ""


PREFIX = "lostflops_watch_"
METRICS = {
    "step": Gauge("last step that all ranks finished"),
    "steps_per_second": Gauge("steps per second over the recent steps"),
    "step_duration_seconds": Gauge("median step over the recent steps and all ranks", unit="seconds"),
    "step_age_seconds": Gauge("time since a rank last wrote a step", unit="seconds"),
    "tokens_per_second": Gauge("tokens of all ranks per second, where the job tells them"),
    "samples_per_second": Gauge("samples of all ranks per second, where the job tells them"),
    "loss": Gauge("loss of the last step that told one, mean of the ranks"),
    "ranks": Gauge("ranks with a step log"),
    "ranks_expected": Gauge("ranks of the job, as their logs say"),
    "spread_ratio": Gauge("slowest rank's median step over the job's, less 1", unit="ratio"),
    "job_slower_ratio": Gauge("what the job lost since it changed; 0 when it did not", unit="ratio"),
    "stalled": Gauge("1 while no rank finishes a step"),
    "ended": Gauge("1 when the job has ended"),
    "changes": Gauge("changes for the worse so far, by kind", counts=True),
    "rank_step_duration_seconds": Gauge("a rank's median step over the recent steps", unit="seconds"),
    "rank_longer_ratio": Gauge("a rank's median step over the job's, less 1", unit="ratio"),
    "rank_slower_ratio": Gauge(
        "what a rank lost against the others since it changed; 0 when it did not", unit="ratio"
    ),
}


def exposition(now: Now, counts: Mapping[str, int], age: float, *, textfile: bool = False) -> str:
    """The text. `counts` are changes for the worse by kind, `age` the seconds since the last line."""
    lines: list[str] = []
    values = dict(_values(now, counts, age))
    for name, metric in METRICS.items():
        lines += _family(name, metric, values.get(name, []), textfile)
    lines.append(f"# TYPE {PREFIX}info gauge" if textfile else f"# TYPE {PREFIX[:-1]} info")
    lines.append(f'{PREFIX}info{{version="{escaped(__version__)}"}} 1')
    return "\n".join([*lines, *([] if textfile else ["# EOF"]), ""])


def _family(name: str, metric: Gauge, samples: Iterable[tuple[str, float]], textfile: bool) -> Iterator[str]:
    family = PREFIX + name
    total = "_total" if metric.counts else ""
    named = family + (total if textfile else "")
    yield f"# TYPE {named} {'counter' if metric.counts else 'gauge'}"
    if metric.unit and not textfile:
        yield f"# UNIT {family} {metric.unit}"
    yield f"# HELP {named} {escaped(metric.meaning)}"
    for labels, value in samples:
        if math.isfinite(value):
            yield f"{family}{total}{{{labels}}} {float(value)!r}"


def _values(now: Now, counts: Mapping[str, int], age: float) -> Iterator[tuple[str, list[tuple[str, float]]]]:
    alone: dict[str, float | None] = {
        "step": now.step,
        "steps_per_second": now.steps_per_second,
        "step_duration_seconds": now.duration / 1e9,
        "step_age_seconds": age,
        "tokens_per_second": now.tokens_per_second,
        "samples_per_second": now.samples_per_second,
        "loss": now.loss[1] if now.loss else None,
        "ranks": len(now.ranks),
        "ranks_expected": now.world,
        "spread_ratio": max((rank.longer for rank in now.ranks), default=None),
        "job_slower_ratio": now.job_slower or 0,
        "stalled": now.stalled,
        "ended": now.ended,
    }
    for name, value in alone.items():
        if value is not None:
            yield name, [("", value)]
    yield "changes", [(f'kind="{kind}"', counts.get(kind, 0)) for kind in ("rank", "job", "stall", "loss")]
    labels = [f'rank="{rank.rank}",node="{escaped(rank.node)}"' for rank in now.ranks]
    yield (
        "rank_step_duration_seconds",
        [(at, r.duration / 1e9) for at, r in zip(labels, now.ranks, strict=True)],
    )
    yield "rank_longer_ratio", [(at, r.longer) for at, r in zip(labels, now.ranks, strict=True)]
    yield "rank_slower_ratio", [(at, r.slow or 0) for at, r in zip(labels, now.ranks, strict=True)]
