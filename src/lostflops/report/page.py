"""The first page of a run, as data: all that the terminal, the JSON document and the HTML file show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import polars as pl

from lostflops import recipe
from lostflops.errors import LostflopsError
from lostflops.finding import Finding, milliseconds
from lostflops.recipe import Answer, Session, Skipped
from lostflops.tables import STEPS
from lostflops.trace import Quality, Trace
from lostflops.version import __version__

from .amounts import percent
from .budget import Budget, budget
from .run import Run, recorded
from .verdict import verdict

LEDGER = pl.Schema(
    {
        "rank": pl.Int32,
        "step": pl.Int64,
        "start": pl.Int64,
        "end": pl.Int64,
        "account": pl.String,
        "ns": pl.Int64,
    }
)
# Kernel time of no known family is a fault of ours from this share on, and then stands among the warnings.
UNCLASSIFIED_PER_MILLE = 10


@dataclass(frozen=True)
class Figure:
    """A number of the strip under the verdict."""

    label: str
    value: str
    meaning: str


@dataclass(frozen=True)
class Page:
    """The first page of a run.

    `notes` say what a reader must know before believing the numbers; `ledger` has the columns of the recipe
    `step_ledger` and is empty when that was skipped; `findings` come largest first.
    """

    lostflops: str
    run: Run
    verdict: str
    notes: tuple[str, ...]
    figures: tuple[Figure, ...]
    budget: Budget | None
    steps: pl.DataFrame
    ledger: pl.DataFrame
    answers: tuple[Answer, ...]
    findings: tuple[Finding, ...]
    skipped: tuple[Skipped, ...]
    quality: tuple[Quality, ...]
    source_names: tuple[str, ...]

    def nameless(self, text: str) -> str:
        """`text` without the names of the trace files, in which profilers put the name of the host."""
        for number, name in enumerate(self.source_names, 1):
            text = text.replace(name, f"source {number}")
        return text


def page(trace: Trace, session: Session, on_recipe: Callable[[str, int, int], None] | None = None) -> Page:
    """Ask every recipe that belongs on the page. `on_recipe(name, done, of)` is called before each."""
    names = sorted(name for name, known in recipe.recipes().items() if known.page)
    answers: list[Answer] = []
    skipped: list[Skipped] = []
    for done, name in enumerate(names):
        if on_recipe:
            on_recipe(name, done, len(names))
        said = _ask(session, name)
        (answers if isinstance(said, Answer) else skipped).append(said)  # pyright: ignore[reportArgumentType]
    by_name = {answer.recipe.name: answer for answer in answers}
    ledger = LEDGER.to_frame()
    if "step_ledger" in by_name:
        ledger = by_name["step_ledger"].table.select(pl.col(c).cast(t) for c, t in LEDGER.items())
    steps_table = trace.table("steps")
    steps = STEPS.empty() if steps_table is None else steps_table.sort("rank", "start").collect()
    run = recorded(trace, steps, ledger)
    spent = budget(ledger, run.on_host)
    unclassified, kernel_time = _unclassified(trace)
    return Page(
        lostflops=__version__,
        run=run,
        verdict=_verdict(trace, run, spent, skipped, by_name),
        notes=(*_notes(run, steps, spent, unclassified, kernel_time), *_beside_the_log(by_name)),
        figures=tuple(_figures(run, ledger, spent, by_name, unclassified, kernel_time)),
        budget=spent,
        steps=steps,
        ledger=ledger,
        answers=tuple(sorted(answers, key=lambda a: (a.recipe.name != "step_ledger", a.recipe.name))),
        findings=tuple(
            sorted((f for a in answers for f in a.findings), key=lambda f: (-f.ns_per_step, f.recipe, f.name))
        ),
        skipped=tuple(skipped),
        quality=tuple(sorted(trace.manifest.quality, key=_gravity)),
        source_names=tuple(source.name for source in trace.manifest.sources),
    )


def _beside_the_log(answers: Mapping[str, Answer]) -> Iterator[str]:
    """How the recorded steps compare with all that the job has logged."""
    if "step_log_summary" not in answers:
        return
    log = answers["step_log_summary"].table.filter(pl.col("longer").is_not_null())
    if log.is_empty():
        return
    others, kept = log["median"].median(), log["recorded_median"].median()
    assert isinstance(others, float) and isinstance(kept, float)
    ranks = "on the median rank" if log.height > 1 else f"on rank {log['rank'][0]}"
    yield (
        f"The step log holds {log['steps'].max():,} steps, of which {log['recorded'].max():,} were recorded: "
        f"median {milliseconds(kept)}, of the others {milliseconds(others)} ({ranks})."
    )


def _ask(session: Session, name: str) -> Answer | Skipped:
    try:
        return session.run(name)
    except LostflopsError as error:  # what one recipe cannot answer must not cost the reader the others
        return Skipped(name, error.message)


def _gravity(fact: Quality) -> tuple[bool, int, str]:
    return (fact.level != "warning", -1 if fact.rank is None else fact.rank, fact.name)


def _unclassified(trace: Trace) -> tuple[int, int]:
    """Summed duration of the kernels whose family is not known, and of all kernels, ns."""
    kernels = trace.table("kernels")
    if kernels is None:
        return 0, 0
    length = (pl.col("end") - pl.col("start")).clip(0)
    return (
        kernels.select(
            length.filter(pl.col("family") == "unclassified").sum().alias("unclassified"),
            length.sum().alias("all"),
        )
        .collect()
        .row(0)
    )


def _rows(trace: Trace, *tables: str) -> int:
    frames = [frame for frame in map(trace.table, tables) if frame is not None]
    return sum(frame.select(pl.len()).collect().item() for frame in frames)


def _verdict(
    trace: Trace, run: Run, spent: Budget | None, skipped: list[Skipped], by_name: dict[str, Answer]
) -> str:
    if not _rows(trace, "kernels", "copies", "collectives"):
        if not _rows(trace, "operators"):
            return "This trace holds no GPU work and no operators: there is nothing to account for."
        return "This trace holds no GPU work: only the host's side of the run was recorded."
    if spent is None:
        reason = next(
            (s.reason for s in skipped if s.recipe == "step_ledger"), "no step of it holds any time"
        )
        return f"The time of this trace cannot be accounted for: {reason}."
    span = "trace" if run.step_source == "whole trace" else "step"
    return verdict(spent, run.on_host, span, _culprit(by_name))


def _culprit(by_name: dict[str, Answer]) -> str:
    """A clause on the rank that costs the others most by arriving last, when one stands out."""
    answer = by_name.get("communication_imbalance")
    if answer is None or not answer.findings:
        return ""
    worst = answer.table.filter(pl.col("rank").is_not_null()).row(0, named=True)
    late = round(100 * worst["late_share"])
    return f"rank {worst['rank']} arrives last in {late} % of its collectives"


def _notes(
    run: Run, steps: pl.DataFrame, spent: Budget | None, unclassified: int, kernel_time: int
) -> Iterator[str]:
    if run.on_host:
        yield (
            "No GPU work was recorded: host operators take the kernels' place. Compute is time in operators, "
            "idle is time in which no operator ran."
        )
    match run.step_source:
        case "whole trace":
            yield "The trace marks no steps: each rank's whole recording counts as one step."
        case "period":
            yield "The trace marks no steps: their boundaries were taken from the period of the work."
        case "optimizer":
            yield "The trace marks no steps: each was taken to end with the optimizer's work."
        case _:
            pass
    if run.world_size is not None and len(run.ranks) < run.world_size:
        yield (
            f"{len(run.ranks)} of the job's {run.world_size} ranks {'is' if len(run.ranks) == 1 else 'are'} "
            "here: how long the others were waited for cannot be told."
        )
    if run.world_size is None and len(run.ranks) > 1:
        yield "The number of ranks in the job was not recorded: some may be missing here."
    incomplete = int((~steps["complete"].fill_null(True)).sum())
    if incomplete and run.step_source != "whole trace":
        yield (
            f"The recording begins or ends inside {incomplete} of the {steps.height} steps; "
            "they count in the mean as far as they were recorded."
        )
    if kernel_time and unclassified * 1000 >= UNCLASSIFIED_PER_MILLE * kernel_time:
        yield (
            f"{_share(unclassified, kernel_time)} of the kernel time is of no family that lostflops knows; "
            "it counts as compute."
        )


def _share(part: int, whole: int) -> str:
    return percent((2000 * part + whole) // (2 * whole))


def _figures(
    run: Run,
    ledger: pl.DataFrame,
    spent: Budget | None,
    by_name: dict[str, Answer],
    unclassified: int,
    kernel_time: int,
) -> Iterator[Figure]:
    if spent is not None:
        lengths = ledger.unique(("rank", "step", "start", "end")).select(pl.col("end") - pl.col("start"))
        length = lengths.to_series()
        what = "recording" if run.step_source == "whole trace" else "step"
        many = spent.num_windows > 1
        yield Figure(
            f"mean {what}" if many else what,
            f"{spent.shown} {spent.unit.name}",
            f"Mean {run.windows}." if many else f"One {what} of one rank.",
        )
        if length.len() > 2:
            low, median, high = (length.quantile(q, "nearest") for q in (0.0, 0.5, 1.0))
            yield Figure(
                f"median {what}",
                milliseconds(median or 0),
                f"From {milliseconds(low or 0)} to {milliseconds(high or 0)}.",
            )
        for line in spent.groups:
            yield Figure(line.label, line.share, line.meaning)
    hidden = _hidden(by_name)
    if hidden:
        yield hidden
    if kernel_time:
        yield Figure(
            "unclassified",
            _share(unclassified, kernel_time),
            "Share of the kernel time, added up, whose family is not known; it counts as compute.",
        )


def _hidden(by_name: dict[str, Answer]) -> Figure | None:
    """How much of the communication inside steps ran behind compute, from the recipe that measures it."""
    answer = by_name.get("communication_exposed")
    if answer is None or not {"total_in_steps", "in_steps"} <= set(answer.table.columns):
        return None
    total, exposed = answer.table.select(pl.col("total_in_steps", "in_steps").sum()).row(0)
    if not total:
        return None
    return Figure(
        "communication hidden",
        _share(total - exposed, total),
        "Share of the communication time inside steps during which kernels ran as well.",
    )
