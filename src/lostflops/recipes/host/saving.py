"""Which rows of a job's threads prove that they save a checkpoint or log."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from lostflops import intervals
from lostflops.accounts.account import Row
from lostflops.naming.host_causes import cause_of, causes_of
from lostflops.recipes.host_steps import host_steps, while_on_host
from lostflops.recipes.stretch_names import spoken as row_in_words
from lostflops.store.trace import Trace

SAVING = "checkpoint_logging"
MOST_PROOFS = 5  # names of one kind that are looked at
# What returns when a checkpoint can be written beside the job: until then the thread that asks for it is held
# up, mostly by the copy of the state to the host.
ASYNC, STAGING = "async", "staging"
IN_ASYNC = {
    ASYNC: r"torch/distributed/checkpoint/state_dict_saver\.py\(\d+\): async_save$",
    STAGING: r"torch/distributed/checkpoint/(?:staging|_state_dict_stager)\.py\(\d+\): "
    r"(?:_?stage|synchronize_staging)",
}
HELD_UP = pl.Schema({"part": pl.String, "ns": pl.Int64})


def saving_rows(trace: Trace) -> Iterator[tuple[Row, pl.DataFrame]]:
    """The ranges and frames that prove saving or logging: rank, thread, start, end, name."""
    kinds: tuple[tuple[str, Row], ...] = (("ranges", "range"), ("frames", "frame"))
    for table, row in kinds:
        rows = trace.table(table)
        if rows is None:
            continue
        name = pl.col("name").cast(pl.String)
        causes = cause_of(
            rows.select(pl.col("name").unique().cast(pl.String)).collect()["name"].drop_nulls(), row
        )
        saves = causes.filter(pl.col("cause") == SAVING)["name"].to_list()
        if saves:
            yield row, rows.filter(name.is_in(saves)).select("rank", "thread", "start", "end", name).collect()


def with_proofs(stretches: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Stretches of saving or logging, with what proves that in their names, where it is a row inside of what
    names them: 'print in train.py(150): report'."""
    frame = pl.col("name").str.extract(r"(?:^| in )(\S+\(\d+\): .+)$")
    named = stretches["name"].unique().drop_nulls().to_list()
    bare = [name for name in named if set(causes_of([name, name.partition(" in ")[0]], "frame")) == {None}]
    here = stretches.filter(pl.col("name").is_in(bare))
    if here.is_empty():
        return stretches
    spans = here.select("rank", "name", "start", "end")
    found = [spans.select("rank", "name").unique().with_columns(proof=pl.lit(None, pl.String), ns=pl.lit(0))]
    for _, rows in saving_rows(trace):
        by_name = rows.partition_by("name", as_dict=True)
        longest = sorted(by_name.items(), key=lambda of: (-_length(of[1]), of[0]))[:MOST_PROOFS]
        for (name,), mine in longest:
            cover = intervals.union(mine.lazy(), ["rank"])
            meets = intervals.inside(spans.lazy(), cover, {"ns": pl.lit(True)}).collect()
            sums = meets.group_by("rank", "name").agg(pl.col("ns").sum())
            found.append(sums.select("rank", "name", proof=pl.lit(row_in_words(str(name))), ns="ns"))
    proofs = (
        pl.concat(found, how="vertical_relaxed")
        .filter(pl.col("ns") > 0)
        .sort("ns", "proof", descending=[True, False])
        .unique(["rank", "name"], keep="first", maintain_order=True)
    )
    told = pl.format("{} in {}", "proof", frame)
    joined = stretches.join(proofs.select("rank", "name", "proof"), on=["rank", "name"], how="left")
    return joined.with_columns(name=pl.coalesce(told, "name")).drop("proof")


def _length(rows: pl.DataFrame) -> int:
    return int((rows["end"] - rows["start"]).sum())


def held_up_by_async(trace: Trace, counted: pl.DataFrame) -> pl.DataFrame:
    """How long main threads are in `async_save` in steps that count, and in the copy to the host that is part
    of it, ns: a row of 'async' and one of 'staging', none where nobody saves so."""
    frames, steps, ranks = (trace.table(name) for name in ("frames", "steps", "ranks"))
    if frames is None or steps is None or ranks is None:
        return HELD_UP.to_frame()
    name = pl.col("name").cast(pl.String)
    names = frames.select(name.unique()).collect()["name"].drop_nulls()
    if not names.str.contains(IN_ASYNC[ASYNC]).any():
        return HELD_UP.to_frame()
    mine = frames.join(ranks.select("rank", thread="main_thread"), on=["rank", "thread"], how="semi")
    windows = while_on_host(host_steps(steps, counted.lazy()))
    told: list[tuple[str, int]] = []
    for part, pattern in IN_ASYNC.items():
        rows = mine.filter(name.is_in(names.filter(names.str.contains(pattern)).implode()))
        inside = intervals.inside(intervals.union(rows, ["rank"]), windows, {"ns": pl.lit(True)})
        told.append((part, int(inside.select(pl.col("ns").sum()).collect().item() or 0)))
    return pl.DataFrame(told, schema=HELD_UP, orient="row")
