"""The first page of a run, as data: all that the terminal, the JSON document and the HTML file show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import polars as pl

from lostflops import causes, frameworks, recipes
from lostflops.causes.declared import OWN_FUNCTION
from lostflops.errors import LostflopsError
from lostflops.finding import Finding, milliseconds, percent
from lostflops.recipes.replayed_steps import replayed_once
from lostflops.remedies import advice, left
from lostflops.report.words.safe import one_line, typed
from lostflops.session import Answer, Session, Skipped
from lostflops.store.trace import GPU_WORK_LOST, NO_LINK, Quality, Trace
from lostflops.tables import STEPS, UNLISTED_GRAPH
from lostflops.version import __version__

from . import facts, quality, roofs, step_notes
from .budget import Budget, budget
from .moments import Moments, moments
from .notes.between_steps import between
from .notes.clocks_apart import with_clocks
from .notes.lost_work import LOST, doubted, doubting_times, lost_work, without_length
from .notes.of_one_run import OF_OTHER_TIMES, of_other_runs, of_other_times, of_several_jobs
from .notes.profiler_overhead import doubting, own_work, profiler_at_work
from .notes.shared_gpu import beside_others, is_shared, shared, verdict_beside_others
from .notes.step_kinds import of_two_kinds
from .pipeline import Pipeline, pipeline
from .run import Run, recorded
from .sentences import job_notes
from .verdict import bounds, verdict

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
STEPS_COUNTED = pl.Schema({"rank": pl.Int32, "step": pl.Int64})
# Kernel time of no known family is a fault of ours from this share on, and then stands among the warnings.
UNCLASSIFIED_PER_MILLE = 10
# What lies outside of the time that counts is told from this share of a recording on.
OUTSIDE_PER_MILLE = 10
# A loss of this share is no reason to call a job well though none of its causes is large.
LARGE_PER_MILLE = 100
SHORT = 5_000  # ns: kernels of less take hardly longer with several times as much to do
# What is asked after the findings, the last two only where a report draws moments.
LATER = ("pipeline_passes", "communication_matches", "device_runs", "idle_stretches")


@dataclass(frozen=True)
class Figure:
    """A number of the strip under the verdict."""

    label: str
    value: str
    meaning: str


@dataclass(frozen=True, repr=False)
class Page:
    """The first page of a run.

    `notes` say what a reader must know before believing the numbers; `ledger` has the columns of the recipe
    `step_ledger` and is empty when that was skipped; of `findings`, what costs most comes first, but a fault
    before what it may lengthen.
    """

    lostflops: str
    run: Run
    verdict: str
    notes: tuple[str, ...]
    figures: tuple[Figure, ...]
    facts: facts.Facts
    budget: Budget | None
    steps: pl.DataFrame
    ledger: pl.DataFrame
    answers: tuple[Answer, ...]
    findings: tuple[Finding, ...]
    skipped: tuple[Skipped, ...]
    quality: tuple[Quality, ...]
    source_names: tuple[str, ...]
    pipeline: Pipeline | None = None
    given: tuple[str, ...] = ()  # the paths that the user named, where somebody did
    # Where in time findings can be seen, by their names: only a page that draws them asks.
    moments: Callable[[], Moments] = lambda: Moments({})
    is_apart: bool = False  # whether its recordings are not of one run at one time
    # Rank and step of the steps that the budget and all figures per step are of.
    counted: pl.DataFrame = field(default_factory=STEPS_COUNTED.to_frame)

    @property
    def untraced(self) -> bool:
        """Whether there is a step log or a monitor's samples and no trace: most questions are idle."""
        return self.budget is None and self.run.formats <= {"step log", "monitor"}

    @property
    def paths(self) -> str:
        """What to type after a command's name to ask about the same steps of the same job."""
        return typed(self.given, self.run.selected_steps) if self.given else "PATH"

    @property
    def name(self) -> str:
        """The run in a few words: its folder's name. That of a file is not told, it may hold the host's."""
        if len(self.given) == 1 and Path(self.given[0]).is_dir():
            return one_line(Path(self.given[0]).resolve().name)
        return self.run.extent

    @property
    def blamed(self) -> str:
        """The account of the ledger that the first finding is about; empty where none is named."""
        accounts = self.findings[0].accounts if self.findings else ()
        return accounts[0] if accounts else ""

    @property
    def no_finding(self) -> str:
        """What it means that there is no finding."""
        if self.run.lost:
            return "the GPU's work was not recorded."
        if self.is_apart:
            return "how long ranks wait for each other is not known from these files."
        losses = [] if self.budget is None else [g for g in self.budget.groups if g.account != "compute"]
        most = max(losses, key=lambda loss: loss.ns, default=None)
        if most is not None and self.budget and 1000 * most.ns >= LARGE_PER_MILLE * self.budget.ns:
            label = "idle time" if most.account == "idle" else most.label
            return (
                f"{label} is {most.share} of the {self.run.span}, but none of its causes is large by itself."
            )
        short = facts.mean_kernel(self.answers) if self.run.device_kind == "gpu" else None
        if short is not None and short < SHORT:
            return (
                f"hardly any time is lost between kernels, but these take {milliseconds(short)} on average: "
                "fewer and larger ones (`torch.compile`, a larger batch) may take less."
            )
        by_hand = facts.attention_by_hand(self.answers) if self.run.device_kind == "gpu" else None
        if by_hand is not None:
            return (
                f"hardly any time is lost between kernels, but {percent(by_hand, 1)} of compute is softmax "
                "and elementwise work, and no attention kernel runs: `scaled_dot_product_attention` may take "
                "less."
            )
        beside = facts.beside_products(self.answers) if self.run.device_kind == "gpu" else ""
        if beside:
            return f"hardly any time is lost between kernels, but {beside}"
        return "nothing here is worth a change."

    def nameless(self, text: str) -> str:
        """`text` without the names of the trace files, in which profilers put the name of the host."""
        for number, name in enumerate(self.source_names, 1):
            text = text.replace(name, f"source {number}")
        return text


def page(trace: Trace, session: Session, on_recipe: Callable[[str, int, int], None] | None = None) -> Page:
    """Ask every recipe that belongs on the page. `on_recipe(name, done, of)` is called before each."""
    with replayed_once():
        return session.small(lambda: _page(trace, session, on_recipe))


def _page(trace: Trace, session: Session, on_recipe: Callable[[str, int, int], None] | None) -> Page:
    names = sorted(name for name, known in recipes.of_the_page().items() if known.page)
    session.begin(
        names,
        (*causes.READS, *LATER),
        (lambda done, of: on_recipe("questions of each rank", done, of)) if on_recipe else None,
        (*causes.FOLDS, LOST, step_notes.BESIDE),
    )
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
    counted, counting = ledger, ledger.select("rank", "step").unique()
    for those in _asked(session, "counted_steps").values():
        counting = those.table.select("rank", "step")
        counted = ledger.join(counting, on=["rank", "step"], how="semi")
    windows = counted.select("rank", "step", "start", "end").unique(maintain_order=True)
    run = recorded(trace, steps, counted)
    spent = budget(counted, run.on_host)
    kernels = session.folded("page_unclassified", lambda: _unclassified(trace))
    unclassified, in_graphs, kernel_time = kernels.row(0)
    job, asked = frameworks.setting(trace, session.folded), causes.remedies()
    given = causes.gather(
        trace,
        session,
        by_name,
        counted,
        run.on_host,
        run.world_size,
        lambda key, otherwise: advice(asked[key].remedies if key in asked else (), job, otherwise),
        lambda names: left(names, job),
        job.units,
        job.fitting,
    )
    found = causes.predicted(causes.findings(given), session, given.mean_step)
    found = tuple(causes.with_busy_links(finding, given) for finding in found)
    lost = _kept_notes(session, "page_lost_work", partial(lost_work, session, steps))
    apart = [*of_other_times(trace.manifest.quality)]
    if len(run.ranks) > 1 and not apart:
        apart = _kept_notes(session, "page_other_runs", lambda: _other_runs(trace, session, run, counting))
    found = tuple(map(doubted, found)) if lost else found
    odd = [*without_length(trace)]
    found = tuple(doubting_times(finding, odd[0]) for finding in found) if odd else found
    beside = is_shared(trace.manifest.quality)
    found = tuple(map(beside_others, found)) if beside else found
    profiler = _kept_notes(session, "page_profiler", partial(_profiler, trace, session, steps, counting))
    found = doubting(found, profiler)
    if "launch_latency" in by_name:
        before = by_name["launch_latency"].table["worst_before_launch"].max()
        found = with_clocks(found, before if isinstance(before, int) else None)
    said = _verdict(
        trace, run, spent, skipped, by_name, found, in_graphs / max(1, kernel_time), bool(lost or odd)
    )
    told = facts.known(trace, run, spent, windows, by_name, step_notes.tell_the_period(steps, counting))
    return Page(
        lostflops=__version__,
        run=run,
        verdict=verdict_beside_others(said) if beside else said,
        notes=(
            *(["Simulated: this job never ran."] if run.simulated else ()),
            *(
                [f"Predicted: replayed with {run.replayed}. These times were not measured."]
                if run.replayed
                else ()
            ),
            *of_several_jobs(trace.manifest.quality),
            *apart,
            *job_notes(trace, by_name, run),
            *_notes(run, _outside(trace, steps), unclassified, kernel_time),
            *lost,
            *(one.note for one in odd),
            *shared(trace.manifest.quality, len(run.ranks)),
            *between(trace, steps),
            *profiler,
            *_kept_notes(session, "page_uncovered", partial(step_notes.uncovered, session, steps)),
            *step_notes.without_update(trace, steps),
            *_clocks(trace, by_name, run),
            *step_notes.lengths(steps, counting),
            *step_notes.left_out(run, steps, counting),
            *step_notes.without_common_step(run, counting),
            *step_notes.uneven(run, steps, counting, given.evaluations),
            *_kept_notes(
                session,
                "page_step_kinds",
                partial(of_two_kinds, trace, run, steps, counting, given.evaluations),
            ),
        ),
        figures=tuple(_figures(run, counted, spent, by_name, unclassified, kernel_time)),
        facts=replace(told, roofs=tuple(roofs.lines(run, spent, by_name))),
        budget=spent,
        steps=steps,
        ledger=ledger,
        answers=tuple(sorted(answers, key=lambda a: (a.recipe.name != "step_ledger", a.recipe.name))),
        findings=found if not run.is_whole else tuple(map(_of_the_whole, found)),
        skipped=tuple(replace(one, reason=job.fitting(one.reason)) for one in skipped),
        quality=tuple(
            sorted(
                (q for q in trace.manifest.quality if q.name not in (OF_OTHER_TIMES, NO_LINK)), key=_gravity
            )
        ),
        is_apart=bool(apart),
        counted=counting,
        source_names=tuple(source.name for source in trace.manifest.sources),
        pipeline=pipeline(by_name, _passes(session, by_name)),
        given=trace.given,
        moments=partial(_moments, trace, session, counted, found),
    )


def _kept_notes(session: Session, name: str, told: Callable[[], Iterator[str]]) -> list[str]:
    """What is said about a recording, for which all of its rows were read."""
    return session.folded(name, lambda: pl.DataFrame({"note": pl.Series([*told()], dtype=pl.String)}))[
        "note"
    ].to_list()


def _profiler(trace: Trace, session: Session, steps: pl.DataFrame, counting: pl.DataFrame) -> Iterator[str]:
    rows = own_work(trace.table("ranges"))
    gaps = _asked(session, "idle_gaps").get("idle_gaps") if rows.height else None
    if gaps is not None:
        known = steps.join(counting.with_columns(counted=pl.lit(True)), on=["rank", "step"], how="left")
        yield from profiler_at_work(rows, gaps.table, known.with_columns(pl.col("counted").fill_null(False)))


def _other_runs(trace: Trace, session: Session, run: Run, counted: pl.DataFrame) -> Iterator[str]:
    matched = _asked(session, "communication_matches").get("communication_matches")
    if matched is not None and not any(step_notes.without_common_step(run, counted)):
        yield from of_other_runs(trace, matched.table)


def _moments(trace: Trace, session: Session, ledger: pl.DataFrame, found: Sequence[Finding]) -> Moments:
    # Asked when a report is drawn: the workers of a cluster may have left by then.
    here = session if type(session) is Session else Session(trace)
    with trace.reading():
        return moments(here, ledger, found)


def _of_the_whole(finding: Finding) -> Finding:
    """The finding where no steps are known: what it costs is of the whole recording, not per step."""
    said = {name: getattr(finding, name).replace(" per step", "") for name in ("claim", "doubt")}
    facts_ = tuple(
        fact.replace(" per step", "").replace(" of all step time", " of all time")
        for fact in finding.evidence
    )
    return replace(finding, evidence=facts_, **said)


def _ask(session: Session, name: str) -> Answer | Skipped:
    try:
        return session.run(name)
    except LostflopsError as error:  # what one recipe cannot answer must not cost the reader the others
        return Skipped(name, error.message)


def _asked(session: Session, name: str) -> dict[str, Answer]:
    said = _ask(session, name)
    return {name: said} if isinstance(said, Answer) else {}


def _passes(session: Session, by_name: Mapping[str, Answer]) -> pl.DataFrame | None:
    bubble = by_name.get("pipeline_bubble")
    if bubble is None or bubble.table.is_empty():
        return None

    def passes() -> pl.DataFrame:
        said = session.run("pipeline_passes")
        return said.table if isinstance(said, Answer) else pl.DataFrame()

    try:
        told = session.folded("page_passes", passes)
    except LostflopsError:
        return None
    return told if told.width else None


def _gravity(fact: Quality) -> tuple[bool, int, str]:
    return (fact.level != "warning", -1 if fact.rank is None else fact.rank, fact.name)


def _unclassified(trace: Trace) -> pl.DataFrame:
    """Summed duration of the kernels whose family is not known, of graphs that were recorded as a whole, and
    of all, ns: a row."""
    kernels = trace.table("kernels")
    if kernels is None:
        return pl.DataFrame({"unclassified": 0, "in_graphs": 0, "all": 0})
    length = (pl.col("end") - pl.col("start")).clip(0)
    graph = pl.col("name").cast(pl.String) == UNLISTED_GRAPH
    return kernels.select(
        unclassified=length.filter(pl.col("family") == "unclassified", ~graph).sum(),
        in_graphs=length.filter(graph).sum(),
        all=length.sum(),
    ).collect()


def _rows(trace: Trace, *tables: str) -> int:
    frames = [frame for frame in map(trace.table, tables) if frame is not None]
    return sum(frame.select(pl.len()).collect().item() for frame in frames)


def _verdict(
    trace: Trace,
    run: Run,
    spent: Budget | None,
    skipped: list[Skipped],
    by_name: Mapping[str, Answer],
    found: tuple[Finding, ...],
    in_graphs: float,
    is_doubtful: bool,
) -> str:
    if not _rows(trace, "kernels", "copies", "collectives"):
        if _rows(trace, "step_log"):
            return _verdict_of_the_log(by_name)
        if run.formats == {"monitor"}:
            return "Only a monitor's samples were recorded: where the steps' time went is not known."
        if not _rows(trace, "operators") and (spent is None or not found):
            return "This recording holds neither GPU work nor operators: there is nothing to account for."
        return "Only the CPU side of this run was recorded: there is no GPU work to account for."
    if spent is None:
        reason = next(
            (s.reason for s in skipped if s.recipe == "step_ledger"), "no step of it holds any time"
        )
        return f"There is no ledger of this recording: {reason}."
    costliest = max(found, key=lambda f: (not causes.is_of_recording(f), f.size), default=None)
    first = found[0] if found and bounds(found[0], spent) else costliest
    own = any(finding.name == OWN_FUNCTION.name for finding in found)
    span = run.bounds or run.span
    return verdict(spent, run.on_host, span, first, _unseen(run), in_graphs, is_doubtful, own)


def _verdict_of_the_log(by_name: Mapping[str, Answer]) -> str:
    """How long the steps took that were logged and not recorded in full."""
    told = by_name.get("step_log_summary")
    median = None if told is None else told.table["median"].max()
    nothing = "no step was recorded in full, so where their time went is not known."
    if isinstance(median, int):
        return f"The median step takes {milliseconds(median)}; {nothing}"
    return f"{nothing[:1].upper()}{nothing[1:]}".replace("their", "the")


def _unseen(run: Run) -> str:
    """A clause on device work that the trace does not show, when only the host's side is there."""
    if run.lost is None or not run.on_host:
        return ""
    if run.lost.name == GPU_WORK_LOST:
        return f"the CPU launched GPU work and copies {run.lost.count:,} times, but none of it was recorded"
    return f"{run.lost.count:,} rows look like work of a device that lostflops does not know"


def _clocks(trace: Trace, by_name: Mapping[str, Answer], run: Run) -> Iterator[str]:
    """What the clocks leave open of the waiting."""
    ranks, waits = trace.table("ranks"), by_name.get("communication_wait")
    if ranks is not None and waits is not None and len(run.ranks) > 1:
        told = ranks.select("rank", "clock_offset", "clock_error").collect()
        yield from quality.clocks(told, waits.table, run.num_windows)


def _outside(trace: Trace, steps: pl.DataFrame) -> pl.DataFrame:
    """Per rank what of its recording lies before its first step and after its last, the most first, ns."""
    table = trace.table("ranks")
    if table is None or steps.is_empty():
        return pl.DataFrame(schema={"rank": pl.Int32, "before": pl.Int64, "after": pl.Int64, "all": pl.Int64})
    within = steps.group_by("rank").agg(first=pl.col("start").min(), last=pl.col("end").max())
    return (
        table.select("rank", "start", "end")
        .collect()
        .join(within, on="rank")
        .select(
            "rank",
            before=(pl.col("first") - pl.col("start")).clip(0),
            after=(pl.col("end") - pl.col("last")).clip(0),
            all=pl.col("end") - pl.col("start"),
        )
        .sort(pl.col("before") + pl.col("after"), "rank", descending=[True, False])
    )


def _told_outside(outside: pl.DataFrame) -> Iterator[str]:
    for rank, before, after, whole in outside.head(1).iter_rows():
        where, most = (f" on rank {rank}", ", the most of any rank") if outside.height > 1 else ("", "")
        if 1000 * (before + after) >= OUTSIDE_PER_MILLE * whole:
            yield (
                f"Of the {milliseconds(whole)} recorded{where}, {milliseconds(before)} lie before the first "
                f"GPU work and {milliseconds(after)} after the last{most}: they are in no account."
            )


def _notes(run: Run, outside: pl.DataFrame, unclassified: int, kernel_time: int) -> Iterator[str]:
    if run.on_host:
        yield (
            "CPU operators are counted instead of kernels."
            if run.lost
            else ("No GPU in this recording: CPU operators are counted instead of kernels.")
        )
    match run.step_source:
        case "whole trace" if run.bounds:
            yield (
                "The trace marks no steps: each rank's time from the first to the last GPU work counts as "
                "one step."
            )
            yield from _told_outside(outside)
        case "whole trace":
            yield "The trace marks no steps: each rank's whole recording counts as one step."
        case "period":
            yield "The trace marks no steps: a step is taken to begin where the work repeats."
        case "optimizer":
            yield "The trace marks no steps: a step is taken to end with the optimizer's step."
        case _:
            pass
    if run.world_size is not None and len(run.ranks) < run.world_size:
        yield (
            f"{len(run.ranks)} of the job's {run.world_size} ranks {'is' if len(run.ranks) == 1 else 'are'} "
            "here: time spent waiting for the others is not reported."
        )
    if run.in_one_process:
        yield (
            f"One process drives {len(run.ranks)} GPUs, each shown as a rank: one that idles while "
            "another works is said to wait for it where nothing else is known to hold it up."
        )
    elif run.world_size is None and len(run.ranks) > 1:
        yield "The recording does not say how many ranks the job has: some may be missing."
    if not run.on_host and kernel_time and unclassified * 1000 >= UNCLASSIFIED_PER_MILLE * kernel_time:
        yield (
            f"No family is known for the kernels of {percent(unclassified, kernel_time)} of the kernel time: "
            "they count as compute."
        )


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
        many = spent.num_windows > 1
        yield Figure(
            f"mean {run.span}" if many and not run.bounds else run.span,
            f"{spent.shown} {spent.unit.name}",
            f"Mean {run.windows}." if many else f"One {'window' if run.bounds else run.span} of one rank.",
        )
        if length.len() > 2 and spent.median is not None:
            low, high = (length.quantile(q, "nearest") for q in (0.0, 1.0))
            yield Figure(
                "median" if run.bounds else f"median {run.span}",
                milliseconds(spent.median),
                f"From {milliseconds(low or 0)} to {milliseconds(high or 0)}.",
            )
        for line in spent.groups:
            yield Figure(line.label, line.share, line.meaning)
    hidden = _hidden(by_name)
    if hidden:
        yield hidden
    if kernel_time and unclassified * 1000 >= UNCLASSIFIED_PER_MILLE * kernel_time:
        yield Figure(
            "unclassified",
            percent(unclassified, kernel_time),
            "Share of the kernel time in kernels that lostflops does not know; it counts as compute.",
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
        percent(total - exposed, total),
        "Share of the communication time inside steps that computation hides.",
    )
