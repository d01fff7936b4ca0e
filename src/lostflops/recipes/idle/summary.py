"""What each cause of idle time costs a mean step, and what its removal could save."""

from __future__ import annotations

from functools import partial

import polars as pl

from lostflops.accounts import IDLE, WAITING
from lostflops.columns import Count, Flag, Id, Name, Share, Time
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.accounting import HOST_CAUSES, HOST_ONLY, SYNCHRONISED
from lostflops.tables import Ranks

from .costs import half_of_a_step, idle_costs_step_time
from .host_at_it import host_at_it, waiting

LOADS = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
PROVEN = [f"idle.{cause}" for cause in HOST_CAUSES]


def _of_a_cpu(account: str, own: int, host: int, at_most: int | None) -> dict[str, object]:
    """What an account takes of the one step of 100 ns of a CPU."""
    return {
        "account": account,
        "per_step": own,
        "host_per_step": host,
        "step_share": own / 100,
        "steps": 1,
        "most_on": 0,
        "most": own,
        "on_host": True,
        "at_most": at_most,
    }


@recipe(
    question="What does each cause of idle time cost per step, and what could its removal save?",
    scope="job",
    plot=Bars(x="account", y=("per_step", "at_most")),
    columns={
        "account": Name("cause: an account of the ledger"),
        "per_step": Time("idle for this cause per step, mean of ranks"),
        "host_per_step": Time("CPU time per step spent on it, GPU idle or not"),
        "step_share": Share("the same as a share of step time"),
        "steps": Count("number of steps in the mean, over all ranks"),
        "most_on": Id("rank with the most of it per step"),
        "most": Time("how much that rank has"),
        "on_host": Flag("whether CPU operators are counted instead of kernels"),
        "at_most": Time(
            "most that removing the cause on all ranks could save per step; null where the recording "
            "does not say what could be removed"
        ),
    },
    examples=[
        Example(
            "rank 0 loads data for 30 ns and rank 1 waits 25 of them: without the loader both would gain",
            given={
                "steps": [{"rank": rank, "start": 0, "end": 100} for rank in range(2)],
                "kernels": [
                    {"rank": 0, "start": 0, "end": 20},
                    {"rank": 0, "start": 50, "end": 95, "launch_start": 50, "thread": 7},
                    {"rank": 1, "start": 0, "end": 70},
                    {"rank": 0, "start": 95, "end": 100, "family": "communication"},
                    {"rank": 1, "start": 70, "end": 100, "family": "communication"},
                ],
                "collectives": [
                    {"rank": 0, "start": 95, "end": 100, "kind": "all-reduce"},
                    {"rank": 1, "start": 70, "end": 100, "kind": "all-reduce"},
                ],
                "ranges": [{"start": 18, "end": 50, "thread": 7, "name": LOADS}],
                "ranks": [
                    {
                        "rank": rank,
                        "world_size": 2,
                        "clock_error": 1,
                        "device_kind": "gpu",
                        "main_thread": 7,
                    }
                    for rank in range(2)
                ],
            },
            expect=[
                {
                    "account": "idle.data_loading",
                    "per_step": 15,
                    "host_per_step": 16,
                    "step_share": 0.15,
                    "steps": 2,
                    "most_on": 0,
                    "most": 30,
                    "on_host": False,
                    "at_most": 28,
                }
            ],
        ),
        Example(
            "on a CPU, the loader goes with the 20 ns of operators that it calls; communication has no bound",
            given={
                "steps": [{"start": 0, "end": 100}],
                "kernels": [
                    {"start": start, "end": end, "launch_start": start, "thread": 7}
                    for start, end in ((4, 24), (36, 93))
                ],
                "ranges": [{"start": 0, "end": 32, "thread": 7, "name": LOADS}],
                "operators": [{"start": 93, "end": 95, "thread": 7, "name": "c10d::barrier"}],
                "ranks": [{"world_size": 1, "device_kind": "cpu", "main_thread": 7}],
            },
            expect=[
                _of_a_cpu("idle.data_loading", 12, 32, at_most=32),
                _of_a_cpu("idle.unexplained", 9, 9, at_most=None),
                _of_a_cpu("idle.host_synchronisation", 2, 2, at_most=None),
            ],
        ),
        Example(
            "on a CPU, 15 ns of Python around an operator and 32 of the loader: each can save what it idles",
            given={
                "steps": [{"start": 0, "end": 100}],
                "kernels": [{"start": 40, "end": 93, "launch_start": 40, "thread": 7}],
                "ranges": [{"start": 0, "end": 32, "thread": 7, "name": LOADS}],
                "frames": [{"start": 0, "end": 100, "thread": 7, "name": "train.py(3): step"}],
                "ranks": [{"world_size": 1, "device_kind": "cpu", "main_thread": 7}],
            },
            expect=[
                _of_a_cpu("idle.data_loading", 32, 32, at_most=32),
                _of_a_cpu("idle.other_host_work", 15, 15, at_most=15),
            ],
        ),
    ],
)
def idle_summary(
    step_ledger: pl.LazyFrame,
    idle_stretches: pl.LazyFrame,
    host_spans: pl.LazyFrame,
    counted_steps: pl.LazyFrame,
    busiest_stream: pl.LazyFrame,
    communication_matches: pl.LazyFrame | None,
    ranks: Ranks,
    backward_engines: pl.LazyFrame,
) -> pl.LazyFrame:
    """Add up idle time by cause, the largest first, with a bound on what removing each cause could save.

    A step is as long as the longest chain of work through it. Without a cause, a rank gains no more than the
    time in which its host is at it and the time in which the rank waits for others. What the host does while
    the device is busy counts, because without it the host would run ahead and hide other gaps. Where all
    ranks of the job are here it is no more than the time in which any of them is at it, for the chain passes
    one rank at a time. And the work of the busiest stream remains, without its copies where the cause is what
    makes them: a value that nobody reads is not copied. On a CPU where one thread computes, what it does
    between its operators is hidden by nothing: only the idle time itself and the waits count, and of what has
    a name of its own, such as the loader, the operators that it calls.

    What removes launches, such as a CUDA graph, removes the Python between them as well: the host counts as
    launching whenever it is not at a cause with a name of its own.
    """
    window = ["rank", "step"]
    idle = pl.col("account").str.starts_with("idle.")
    counted = counted_steps.select(*window, "start", "end").filter(pl.col("end") > pl.col("start"))
    own = step_ledger.filter(idle).select(*window, "account", own="ns")
    bubble = (
        step_ledger.filter(pl.col("account").is_in(WAITING) & idle)
        .group_by(*window)
        .agg(bubble=pl.col("ns").sum())
    )
    removable = [account.name for account in IDLE if account.loss and account.loss.removable]
    with_copies = [account.name for account in IDLE if account.loss and account.loss.takes_copies]
    # Where one thread computes, nothing runs beside it that could hide what it does between its operators. A
    # cause with a name of its own goes with the operators that it calls.
    with_operators = pl.col("on_host") & pl.col("account").is_in(PROVEN)
    alone = pl.col("on_host") & (pl.col("beside") <= pl.col("own").sum().over("rank"))
    at_it = pl.when(alone & ~with_operators).then("own").otherwise("host")
    beside = pl.when(pl.col("account").is_in(with_copies)).then("beside_kernels").otherwise("beside")
    beside = pl.when(~with_operators).then(beside)
    bound = pl.min_horizontal(at_it + pl.col("waits"), "anywhere", beside)
    # Fewer calls of communication, and cores that are free, shorten what is no idle time as well.
    unbounded = pl.col("on_host") & (pl.col("account") == SYNCHRONISED)
    asked = counted.collect()
    asked = asked.hstack([waiting(asked, communication_matches)]).lazy()
    asked = asked.join(own.select("account").unique(), how="cross").collect()
    each = (
        host_at_it(
            asked, idle_stretches.collect(), host_spans.collect(), ranks.collect(), backward_engines.collect()
        )
        .lazy()
        .join(own, on=[*window, "account"], how="left")
        .join(bubble, on=window, how="left")
        .with_columns(pl.col("own", "bubble").fill_null(0), whole=pl.col("end") - pl.col("start"))
        .with_columns(
            waits=pl.col("waits") + pl.when(pl.col("account").is_in(WAITING)).then(0).otherwise("bubble")
        )
        # What a step gains may come from what its rank, or another, did during the step before: the sums are
        # bounds, the steps are not.
        .group_by("account", "rank")
        .agg(
            pl.col("own", "host", "waits", "whole").sum(),
            anywhere=pl.when(pl.col("anywhere").count() == pl.len()).then(pl.col("anywhere").sum()),
            steps=pl.len().cast(pl.Int64),
            most=pl.col("own").sum() // pl.len(),
        )
        .join(busiest_stream, on="rank", how="left")
        .join(ranks.select("rank", on_host=HOST_ONLY), on="rank", how="left")
        .with_columns(at_most=pl.when(pl.col("account").is_in(removable), ~unbounded).then(bound))
        .sort("account", "most", "rank", descending=[False, True, False])
    )
    steps = pl.col("steps").sum()
    return (
        each.group_by("account", maintain_order=True)
        .agg(
            steps,
            per_step=pl.col("own").sum() // steps,
            host_per_step=pl.col("host").sum() // steps,
            step_share=pl.col("own").sum() / pl.col("whole").sum(),
            at_most=pl.when(pl.col("at_most").count() > 0).then(pl.col("at_most").sum() // steps),
            most_on=pl.col("rank").first(),
            most=pl.col("most").first(),
        )
        .join(ranks.select(on_host=HOST_ONLY.all()), how="cross")
        .select(*idle_summary.columns)
        .sort("per_step", "account", descending=[True, False])
    )


for _account in IDLE:
    if _account.loss is not None:
        idle_summary.finding(
            name=_account.loss.finding,
            remedies=_account.loss.remedies,
            also=_account.loss.also,
            none_known=_account.loss.none_known,
            examples=[half_of_a_step(_account, _account.loss)],
        )(partial(idle_costs_step_time, account=_account, loss=_account.loss))
