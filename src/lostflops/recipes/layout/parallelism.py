"""Which parallelism a job uses, and whether it moves the bytes that this must move."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import polars as pl

from lostflops.columns import Bytes, Count, Name, Number, Ratio, Text
from lostflops.finding import Finding
from lostflops.recipe import Example, HeatMap, recipe
from lostflops.tables import Collectives, Ranges, Ranks

from .seen import Dimension, Groups
from .strategies import layouts

ORDER = ("data", "tensor", "pipeline", "context", "expert", "unexplained")
GROUPS = re.compile(r"\[[^]]*\]")
GROUP = {"group": "0 [0, 1]", "group_size": 2, "dtype": "float"}


def _two_passes(microbatches: int) -> dict[str, Any]:
    """Two replicas that average 4,000 bytes of gradients in each of some microbatches."""
    at = [20 * n for n in range(microbatches)]
    return {
        "steps": [
            {"rank": rank, "step": 3, "start": 0, "end": 200, "host_start": 0, "host_end": 200}
            for rank in range(2)
        ],
        "operators": [
            {"rank": rank, "start": n + start, "end": n + start + 9, "phase": phase}
            for rank in range(2)
            for n in at
            for start, phase in ((0, "forward"), (10, "backward"))
        ],
        "collectives": [
            {"rank": rank, "start": n + 15, "end": n + 18, "kind": "all-reduce", "bytes_in": size} | GROUP
            for rank in range(2)
            for n in at
            for size in (3000, 1000 + 24, 8)
        ],
        "ranks": [{"rank": rank, "world_size": 2} for rank in range(2)],
    }


@recipe(
    question="Which parallelism does this job use, and does it move the bytes that this must move?",
    scope="job",
    plot=HeatMap(x="dimension", y="strategy", value="seen"),
    columns={
        "dimension": Name("data, tensor, pipeline, context or expert; unexplained for what fits none"),
        "strategy": Name("DDP, ZeRO-1, FSDP2, HSDP, TP, PP with its schedule, EP, …"),
        "degree": Count("ranks of a group; null when unknown"),
        "groups": Text("the groups, by their ranks, of those recorded"),
        "ranks": Count("recorded ranks that show it"),
        "parameters": Count("parameters that a group shares, as volumes tell; null when unknown"),
        "microbatches": Number("microbatches per step in which gradients are exchanged; of a pipeline, all"),
        "calls": Number("operations per step of a rank"),
        "expected": Bytes("what a rank must move per step, as whole tensors; null when unknown"),
        "seen": Bytes("what it moves"),
        "excess": Ratio("seen / expected - 1"),
        "basis": Text("what it was told by"),
    },
    examples=[
        Example(
            "gradients are averaged on both microbatches: twice what `no_sync` would move",
            given=_two_passes(2),
            expect=[
                {"dimension": "data", "strategy": "DDP", "degree": 2, "groups": "[0, 1]", "ranks": 2}
                | {"parameters": 1006, "microbatches": 2.0, "calls": 4.0, "expected": 8048, "seen": 8048}
                | {"excess": 0.0}
                | {"basis": "gradients all-reduced in the backward pass, for each of 2 microbatches"}
            ],
        ),
        Example(
            "of one step without operators, kinds and groups are all that is known",
            given={
                "steps": [{"start": 0, "end": 200}],
                "collectives": [{"start": 15, "end": 18, "kind": "broadcast", "bytes_in": 9999} | GROUP],
            },
            expect=[
                {"dimension": "unexplained", "strategy": "broadcast", "degree": 2, "groups": "[0, 1]"}
                | {"ranks": 1, "parameters": None, "microbatches": None, "calls": 1.0, "expected": None}
                | {"seen": 9999, "excess": None, "basis": "fits no layout"}
            ],
        ),
    ],
)  # fmt: skip
def parallelism(
    collective_phases: pl.LazyFrame,
    pipeline_passes: pl.LazyFrame | None,
    ranks: Ranks | None,
    ranges: Ranges | None,
    collectives: Collectives,
    counted_steps: pl.LazyFrame,
) -> pl.LazyFrame:
    """Tell the layout by which tensors ranks exchange in which pass, how often, and how large they are.

    Volumes are whole tensors: what an all-reduce or reduce-scatter takes in, what an all-gather gives out. A
    step's own traffic decides; ranges of FSDP tell it from ZeRO-3. With one microbatch ZeRO-1 and ZeRO-2 move
    the same. Parameters are those of the rank's own shard of tensor and pipeline parallelism.
    """
    rows = collective_phases.collect()
    given = {} if ranks is None else {r["rank"]: r for r in ranks.collect().iter_rows(named=True)}
    marked = None if ranges is None else _marked(ranges)
    passes = pl.DataFrame() if pipeline_passes is None else pipeline_passes.collect()
    microbatches = None if passes.is_empty() else passes["microbatches"].drop_nulls().max()
    assert microbatches is None or isinstance(microbatches, int)
    found: list[tuple[int, Dimension]] = []
    for (rank,), mine in rows.partition_by("rank", as_dict=True, maintain_order=True).items():
        about = given.get(rank, {})
        groups = Groups(rank, about.get("world_size"), about.get("groups") or [])
        found += [(rank, each) for each in layouts(mine.to_dicts(), groups, marked, microbatches)]
    ahead = _sent_ahead(collectives, counted_steps)
    table = [_row(those, passes, ahead) for those in _together(found)]
    schema: dict[str, Any] = {name: column.dtype for name, column in parallelism.columns.items()}
    return pl.DataFrame(table, schema=schema).lazy()


def _marked(ranges: pl.LazyFrame) -> bool:
    names = ranges.select(pl.col("name").unique()).collect()["name"].cast(pl.String)
    return bool(names.str.starts_with("FSDP::").any())


def _together(found: list[tuple[int, Dimension]]) -> Iterator[list[tuple[int, Dimension]]]:
    """What ranks show of one dimension and strategy, in the order of the page."""
    kinds = sorted({(ORDER.index(x.dimension), x.strategy) for _, x in found})
    for place, strategy in kinds:
        yield [(rank, x) for rank, x in found if ORDER.index(x.dimension) == place and x.strategy == strategy]


def _row(those: list[tuple[int, Dimension]], passes: pl.DataFrame, ahead: dict[int, int]) -> dict[str, Any]:
    layouts = [layout for _, layout in those]
    first, many = layouts[0], len({rank for rank, _ in those})
    expected = [x.expected for x in layouts if x.expected is not None]
    row: dict[str, Any] = {
        "dimension": first.dimension,
        "strategy": first.strategy,
        "degree": max((x.degree for x in layouts if x.degree), default=None),
        "groups": ", ".join(sorted({group for x in layouts for group in GROUPS.findall(x.ranks)})) or None,
        "ranks": many,
        "parameters": max((x.parameters for x in layouts if x.parameters), default=None),
        "microbatches": max((x.rounds for x in layouts if x.rounds), default=None),
        "calls": sum(x.calls for x in layouts) / many,
        "expected": sum(expected) / many if len(expected) == len(layouts) else None,
        "seen": sum(x.seen for x in layouts) / many,
        "basis": first.basis,
    }
    if first.strategy == "PP":
        _staged(row, those, passes, ahead)
    wanted, seen = row["expected"], row["seen"]
    row["excess"] = seen / wanted - 1 if wanted else None
    return row | {"expected": None if wanted is None else round(wanted), "seen": round(seen)}


def _sent_ahead(collectives: pl.LazyFrame, counted_steps: pl.LazyFrame) -> dict[int, int]:
    """Per rank how many messages it sends in a step before it first receives one, at most."""
    messages = collectives.filter(pl.col("kind").cast(pl.String).is_in(["send", "receive"]))
    steps = counted_steps.select("rank", "step", opened="start", closed="end").sort("rank", "opened")
    got = (pl.col("kind").cast(pl.String) == "receive").cum_sum().over("rank", "step")
    inside = (
        messages.sort("rank", "arrival", "kind")
        .join_asof(steps, left_on="arrival", right_on="opened", by="rank", check_sortedness=False)
        .filter(pl.col("arrival") < pl.col("closed"))
        .with_columns(got=got)
        .group_by("rank", "step")
        .agg(ahead=(pl.col("got") == 0).sum().cast(pl.Int64))
    )
    return dict(inside.group_by("rank").agg(pl.col("ahead").max()).collect().iter_rows())


def _by_messages(those: list[tuple[int, Dimension]], ahead: dict[int, int]) -> tuple[str | None, int, int]:
    """Schedule, microbatches and chunks as the messages of the first stages tell, one chunk each assumed."""
    first = {rank for rank, x in those if x.ranks.startswith(f"[{rank},")}
    sends = {round(x.calls / 2) for rank, x in those if rank in first}
    before = {ahead[rank] for rank in first if rank in ahead}
    stages = max((x.degree for _, x in those if x.degree), default=0)
    if len(sends) != 1 or len(before) != 1:
        return None, 0, 1
    (microbatches,), (warm_up,) = sends, before
    if warm_up == microbatches > stages:
        return "gpipe", microbatches, 1
    return ("1f1b" if warm_up == stages < microbatches else None), microbatches, 1


def _staged(
    row: dict[str, Any], those: list[tuple[int, Dimension]], passes: pl.DataFrame, ahead: dict[int, int]
) -> None:
    """The schedule, and how many messages it must send: 2 m (p v - 1) in the whole pipeline."""
    if passes.is_empty():
        schedule, microbatches, chunks = _by_messages(those, ahead)
    else:
        schedule, microbatches, chunks = passes.select("schedule", "microbatches", "chunks").row(0)
    stages, sends = row["degree"], sum(x.calls for _, x in those) / 2
    if schedule is None or schedule == "unknown" or not stages or not microbatches:
        return
    row["strategy"] = f"PP, {schedule}" + (f" with {chunks} chunks" if chunks > 1 else "")
    row["microbatches"] = float(microbatches)
    each = sum(x.seen for _, x in those) / sends if sends else 0
    order = "messages" if passes.is_empty() else "passes"
    row["expected"] = 2 * microbatches * (stages * chunks - 1) * each / stages
    row["basis"] += f"; the schedule from the order of {order}"


@parallelism.finding(name="gradients-exchanged-per-microbatch", remedies=("gradient-accumulation",))
def gradients_are_exchanged_per_microbatch(table: pl.DataFrame) -> Iterator[Finding]:
    for row in table.filter((pl.col("strategy") == "DDP") & (pl.col("microbatches") > 1)).to_dicts():
        times, seen = row["microbatches"], row["seen"]
        more = seen * (times - 1) / times
        yield Finding(
            name="gradients-exchanged-per-microbatch",
            claim=f"DDP averages gradients {times:g} times per step, once per microbatch; once is enough.",
            gain="unknown",
            evidence=(f"{more / 1e6:,.1f} of {seen / 1e6:,.1f} MB of all-reduces per step are not needed",),
            next="Run all but the last microbatch of a step under `model.no_sync()`.",
        )
