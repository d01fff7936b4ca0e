"""Which modules of the model take time, forward and backward."""

from __future__ import annotations

import numpy as np
import polars as pl

from lostflops import intervals
from lostflops.columns import Count, Id, Name, Ratio, Time
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.operators.launched import added, launched, numbered, with_children
from lostflops.recipes.steps.totals import per_step
from lostflops.tables import Copies, Frames, Kernels, Operators, Ranks

REENTRANT = "CheckpointFunctionBackward"
MARK = "nn.Module: "
LANE = ["rank", "thread"]
T = {"thread": 7}


@recipe(
    question="Which modules and layers take time, forward and backward?",
    scope="rank",
    plot=Bars(x="module", y=("own",)),
    columns={
        "rank": Id("rank"),
        "module": Name("chain of modules, outermost first; null for what none of them launched"),
        "kind": Name("the same without the numbers that tell modules of one class apart"),
        "calls": Count("how often it was called"),
        "host_self": Time("host time in it and in no module inside it"),
        "host_total": Time("host time in it, in the forward pass"),
        "forward": Time("kernels and copies launched in it; on a CPU its operators"),
        "backward": Time("the same of the backward passes of its operators"),
        "own": Time("forward and backward, without the modules inside it"),
        "per_step": Time("`own` per step"),
        "step_share": Ratio("`own` inside steps / step time"),
    },
    examples=[
        Example(
            "a block with one linear layer: the backward pass of the layer's product belongs to the layer",
            given={
                "frames": [
                    {"start": 0, "end": 50, "name": "nn.Module: Block_0"} | T,
                    {"start": 10, "end": 30, "name": "nn.Module: Linear_4"} | T,
                    {"start": 12, "end": 29, "name": "torch/nn/linear.py(1): forward"} | T,
                ],
                "operators": [
                    {"start": 13, "end": 20, "name": "aten::addmm", "sequence": 3, "phase": "forward"} | T,
                    {"start": 70, "end": 90, "name": "AddmmBackward0", "sequence": 3, "phase": "backward"}
                    | {"thread": 9},
                    {"start": 71, "end": 80, "name": "aten::mm", "phase": "backward", "thread": 9},
                ],
                "kernels": [
                    {"start": 20, "end": 31, "launch_start": 14, "device": 0} | T,
                    {"start": 40, "end": 45, "launch_start": 35, "device": 0} | T,
                    {"start": 80, "end": 103, "launch_start": 75, "device": 0, "thread": 9},
                    {"start": 110, "end": 112, "launch_start": 95, "device": 0, "thread": 9},
                ],
                "steps": [{"start": 0, "end": 100}],
                "ranks": [{"device_kind": "gpu"}],
            },
            expect=[
                {"rank": 0, "module": "Block_0 > Linear_4", "kind": "Block > Linear", "calls": 1}
                | {"host_self": 20, "host_total": 20, "forward": 11, "backward": 23, "own": 34}
                | {"per_step": 31, "step_share": 0.31},
                {"rank": 0, "module": "Block_0", "kind": "Block", "calls": 1}
                | {"host_self": 30, "host_total": 50, "forward": 16, "backward": 23, "own": 5}
                | {"per_step": 5, "step_share": 0.05},
                {"rank": 0, "module": None, "kind": None, "calls": None}
                | {"host_self": None, "host_total": None, "forward": None, "backward": None, "own": 2}
                | {"per_step": 0, "step_share": 0.0},
            ],
        ),
    ],
)  # fmt: skip
def module_summary(
    frames: Frames,
    operators: Operators | None,
    kernels: Kernels | None,
    copies: Copies | None,
    counted_steps: pl.LazyFrame,
    step_totals: pl.LazyFrame,
    ranks: Ranks | None,
) -> pl.LazyFrame:
    """Add up what each module of the model launched, told apart by the chain of modules around it.

    A module is known by the Python frame of its call. What the backward pass launches belongs to the module
    whose operator it is the backward pass of, by the number that both have; what has none, such as optimizers
    and gradient reductions, stands in the row without a module, so that `own` adds up to all work. A compiled
    model's kernels belong to the module that calls the compiled function.
    """
    rows, lanes = _modules(frames)
    forest = intervals.nest(*(rows[c].to_numpy() for c in ("start", "end", "lane")))
    rows = rows[forest.order]
    path, chains = _paths(forest, rows["name"].cast(pl.String).to_list())
    work = launched(kernels, copies, intervals.union(counted_steps, ["rank"]), ranks)
    work = work.join(rows.select("rank").unique(), on="rank")
    forward = _covering(forest, work, lanes)
    backward = np.where(forward >= 0, -1, _by_sequence(forest, work, lanes, operators))
    spent = {
        name: added(at, work["time"].to_numpy(), rows.height)
        for name, at in (("forward", forward), ("backward", backward))
    }
    at_work = np.where(forward >= 0, forward, backward)
    inside = added(at_work, work["in_steps"].to_numpy(), rows.height)
    length = rows["end"].to_numpy() - rows["start"].to_numpy()
    each = rows.select(
        "rank",
        module=pl.Series(chains, dtype=pl.String).gather(pl.Series(path)),
        host_self=pl.Series(length - added(forest.parent, length, rows.height)),
        host_total=pl.Series(length),
        **{name: pl.Series(with_children(forest, given)) for name, given in spent.items()},
        own=pl.Series(spent["forward"] + spent["backward"]),
        in_steps=pl.Series(inside, dtype=pl.Int64),
    )
    summed = each.group_by("rank", "module").agg(pl.all().sum(), calls=pl.len().cast(pl.Int64))
    nobody = work.filter(pl.Series(at_work < 0, dtype=pl.Boolean))
    rest = nobody.group_by("rank").agg(own=pl.col("time").sum(), in_steps=pl.col("in_steps").sum())
    found = pl.concat([summed, rest], how="diagonal").with_columns(
        kind=pl.col("module").str.replace_all(r"_\d+", "")
    )
    return (
        per_step(found.lazy(), step_totals, "in_steps")
        .select(*module_summary.columns)
        .sort("rank", pl.col("module").is_null(), "own", "module", descending=[False, False, True, False])
    )


def _modules(frames: pl.LazyFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Calls of modules, each with the number of its thread, and those numbers."""
    name = pl.col("name").cast(pl.String)
    names = frames.select("name").unique().collect().filter(name.str.starts_with(MARK))["name"].to_list()
    calls = frames.filter(pl.col("name").is_in(names)).select(*LANE, "start", "end", name).collect()
    lanes = calls.select(LANE).unique().with_row_index("lane")
    return numbered(calls, lanes), lanes


def _paths(forest: intervals.Forest, names: list[str]) -> tuple[intervals.Int, list[str]]:
    """Per call the number of its chain of modules, and the chains in words."""
    known: dict[tuple[int, str], int] = {}
    path = np.empty(len(names), dtype=np.int64)
    chains: list[str] = []
    for i, (parent, name) in enumerate(zip(forest.parent.tolist(), names, strict=True)):
        above = int(path[parent]) if parent >= 0 else -1
        at = known.setdefault((above, name), len(known))
        if at == len(chains):
            own = name.removeprefix(MARK)
            chains.append(f"{chains[above]} > {own}" if above >= 0 else own)
        path[i] = at
    return path, chains


def _covering(forest: intervals.Forest, points: pl.DataFrame, lanes: pl.DataFrame) -> intervals.Int:
    """The innermost call around each point, -1 where there is none."""
    place = numbered(points.select(*LANE, "launch_start"), lanes, how="left")["lane"].fill_null(-1)
    return intervals.innermost_at(forest, points["launch_start"].to_numpy(), place.to_numpy())


def _by_sequence(
    forest: intervals.Forest, work: pl.DataFrame, lanes: pl.DataFrame, operators: pl.LazyFrame | None
) -> intervals.Int:
    """The call whose operator each piece of work is the backward pass of."""
    nothing = np.full(work.height, -1, dtype=np.int64)
    if operators is None or not work.height:
        return nothing
    phase, name = (pl.col(c).cast(pl.String) for c in ("phase", "name"))
    # A checkpoint's second pass is what gradients are computed from where it is reentrant. Elsewhere they are
    # the first one's, and the numbers of the second, counted on another thread, are those of other operators.
    reentrant = name.str.contains(REENTRANT).any().over("rank")
    told = (
        operators.with_columns(_kept=reentrant | (phase != "recompute").fill_null(True))
        .filter("_kept", pl.col("sequence").is_not_null())
        .select(*LANE, "start", "end", "sequence", backward=(phase == "backward").fill_null(False))
    )
    rows = told.collect()
    # Operators without gradients repeat the number of the one before: the latest is the one that counts it.
    own = (
        rows.filter(~pl.col("backward"))
        .sort("rank", "start", "end", "thread")
        .unique(["rank", "sequence"], keep="last")
    )
    own = own.with_columns(call=pl.Series(_covering(forest, own.rename({"start": "launch_start"}), lanes)))
    points = work.select("rank", pl.col("thread").fill_null(-1), start="launch_start")
    numbers = intervals.innermost(
        points,
        rows.filter("backward").with_columns(pl.col("thread").fill_null(-1)),
        LANE,
        "sequence",
    )
    joined = work.select("rank", sequence=numbers).join(
        own.select("rank", "sequence", "call"), on=["rank", "sequence"], how="left", maintain_order="left"
    )
    return joined["call"].fill_null(-1).to_numpy()
