"""One of two runs, as a comparison sees it: its counted steps, what they consist of, and how it was made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from lostflops.errors import LostflopsError
from lostflops.report.first_page.budget import Budget, budget
from lostflops.report.first_page.run import Run, recorded
from lostflops.session import Session, Skipped
from lostflops.store.trace import Trace
from lostflops.tables import STEPS

from .pieces import LEVELS, SCHEMA, asked, kernel_rows, pieces

STEP = ["rank", "step"]


@dataclass(frozen=True)
class Side:
    """A run. `missing` says why its steps cannot be accounted for; then there is nothing in `pieces`."""

    name: str
    trace: Trace
    session: Session
    run: Run
    steps: pl.DataFrame  # those that count: rank, step, start, end
    ledger: pl.DataFrame  # of these: rank, step, account, ns
    pieces: pl.DataFrame
    missing: str = ""
    links: pl.DataFrame | None = None  # the table of `communication_slow_links`, where the run has one

    @property
    def num_windows(self) -> int:
        """Steps of ranks that the mean is taken over."""
        return self.steps.height

    @cached_property
    def budget(self) -> Budget | None:
        spent = self.ledger.join(self.steps, on=STEP)
        return budget(spent, self.run.on_host)

    @cached_property
    def lengths(self) -> Mapping[int, float]:
        """How long each step took, mean of its ranks, by its number, ns."""
        length = (pl.col("end") - pl.col("start")).mean()
        return dict(self.steps.group_by("step").agg(length).sort("step").iter_rows())

    def spent(self, *accounts: str) -> list[float]:
        """The time of each step in these accounts together, mean of its ranks, ns."""
        return self._each(*accounts).group_by("step").agg(pl.col("ns").mean()).sort("step")["ns"].to_list()

    def spent_of_ranks(self, account: str) -> dict[int, list[float]]:
        """The time of each step in an account on each rank, ns."""
        each = self._each(account).sort(STEP)
        by_rank = each.group_by("rank", maintain_order=True).agg(pl.col("ns").cast(pl.Float64))
        return dict(by_rank.iter_rows())

    def _each(self, *accounts: str) -> pl.DataFrame:
        """The time of each step of each rank in these accounts together, ns: rank, step, ns."""
        of = self.ledger.filter(pl.col("account").is_in(accounts)).group_by(STEP).agg(pl.col("ns").sum())
        return self.steps.select(STEP).join(of, on=STEP, how="left").with_columns(pl.col("ns").fill_null(0))

    @cached_property
    def calls(self) -> Mapping[tuple[str, ...], float]:
        """How often kernels begin per step, by kind, by kind and operator, and by these and their name."""
        rows = kernel_rows(self.session)
        if rows is None or not self.num_windows:
            return {}
        begun = (
            rows.filter(~pl.col("continued"))
            .sort("start")
            .join_asof(
                self.steps.sort("start").select("rank", "start", until="end"),
                on="start", by="rank", strategy="backward", check_sortedness=False,
            )
            .filter(pl.col("start") < pl.col("until"))
        )  # fmt: skip
        counted: dict[tuple[str, ...], float] = {}
        for depth in range(1, len(LEVELS) + 1):
            keys = [pl.col(name).fill_null("") for name in LEVELS[:depth]]
            for *path, many in begun.group_by(keys).len().iter_rows():
                counted[tuple(path)] = many / self.num_windows
        return counted


def side(trace: Trace, name: str) -> Side:
    """A run, accounted for as far as it can be."""
    with trace.reading():
        session = Session(trace)
        nothing = pl.DataFrame(
            schema={"rank": pl.Int32, "step": pl.Int64, "start": pl.Int64, "end": pl.Int64}
        )
        try:
            _require_work(trace)
            spent = asked(session, "step_ledger").with_columns(pl.col("rank").cast(pl.Int32))
            counted = asked(session, "counted_steps").with_columns(pl.col("rank").cast(pl.Int32))
            missing = ""
        except LostflopsError as error:
            spent = nothing.with_columns(account=pl.lit("", pl.String), ns=pl.lit(0, pl.Int64))
            counted, missing = nothing, error.message.rstrip(".")
        spent = spent.join(counted, on=STEP, how="semi")
        counted = counted.filter(pl.col("end") > pl.col("start"))
        if not missing and spent.is_empty():
            missing = "no step of it holds any time"
        told = (
            SCHEMA.to_frame() if missing else pieces(session, counted, spent.select(*STEP, "account", "ns"))
        )
        present = trace.table("steps")
        steps = STEPS.empty() if present is None else present.collect()
        run = recorded(trace, steps, spent)
        links = None if missing else session.run("communication_slow_links")
    compared = None if links is None or isinstance(links, Skipped) else links.table
    ledger = spent.select(*STEP, "account", "ns")
    return Side(name, trace, session, run, counted, ledger, told, missing, compared)


def same_recording(before: Side, after: Side) -> bool:
    """Whether both are the same steps of the same files."""
    first, second = (
        sorted(source.identity for source in one.trace.manifest.sources) for one in (before, after)
    )
    return first == second and before.trace.steps == after.trace.steps


def _require_work(trace: Trace) -> None:
    """Raise LostflopsError for a run without anything that an account is made of."""
    for name in ("kernels", "copies", "collectives"):
        table = trace.table(name)
        if table is not None and not table.head(1).collect().is_empty():
            return
    raise LostflopsError("neither GPU work nor operators were recorded in it.")
