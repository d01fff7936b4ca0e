"""Sharded weights that are gathered so many layers ahead of the one that computes.

Which gather a layer waits for, and where the host was when it asked for it, say how far ahead gathers are in
the recording. Asked for earlier, a gather begins when the layer does that is so many before its own; what it
waited for on the computing stream is then what came before that layer. The order of a stream follows.
"""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from lostflops.errors import BadOption, shown

from ...dependencies.edges import Edges, Int, Kind, joined
from ...edit import REMOVED, Edit, Edited, EditKind, Known, Typed, in_steps, step_of
from ...graph import NEVER
from ...recorded import RecordedJob
from .overlap import GATHERS, SHARED, of_replicas

PASSES = {"forward": "forward", "backward": "backward", "recompute": "backward"}
WAITS = (Kind.EVENT, Kind.GUESSED, Kind.CONTENDED)
HOLDS = "memory holds the weights of more layers at once, {} by this, which is not looked at"
NONE_HERE = "nothing tells which layers wait for gathered weights: no gather here is awaited by what computes"


def made(typed: Typed) -> Edit:
    if typed.selection not in ("", "forward", "backward") or not re.fullmatch(
        r"[1-9]\d{0,3}", typed.amount or ""
    ):
        raise BadOption(
            f"'{shown(typed.text)}' does not say how many layers ahead.",
            "write 'prefetch=1', 'prefetch:forward=2' or 'prefetch:backward=1'.",
        )
    ahead = int(typed.amount or 1)

    def apply(job: RecordedJob, lags: Int, known: Known) -> Edited:
        rows = _gathers(job, known)
        if typed.selection:
            rows = rows.filter(pl.col("pass") == typed.selection)
        if not rows.height:
            return Edited(lags, refused=NONE_HERE)
        layers, rows = rows.select("user", "operation"), _moved(rows, ahead)
        moved, usual = rows.filter("moves"), int(np.median(rows["distance"].to_numpy()))
        if usual >= ahead or not moved.height:
            return Edited(lags, refused=f"gathers are asked for {usual} layers ahead in the recording")
        order = _order(job, moved)
        if not _alike(job, known, order):
            return Edited(lags, refused="ranks ask for their collectives in different orders")
        earlier, added = lags.copy(), list[Edges]()
        for which, source, target in (
            _launches(job, moved), _waits(job, moved, layers), _streams(job, order)
        ):  # fmt: skip
            earlier[which] = REMOVED
            kept = source >= 0
            added.append(Edges(source[kept], target[kept], lags[which[kept]], job.edges.kind[which[kept]]))
        gathers = moved["operation"].to_numpy()
        gathers = gathers[in_steps(job, known.steps, 2 * gathers)]
        length = (job.measured[2 * gathers + 1] - job.measured[2 * gathers]).sum()
        return Edited(
            earlier, (joined(added),), removed=int(length), doubts=(SHARED, HOLDS.format(ahead - usual))
        )

    where = f"in {typed.selection} passes " if typed.selection else ""
    says = f"weights were gathered {ahead} layer{'s' * (ahead > 1)} ahead {where}".rstrip()
    return Edit(typed.text, says, apply, of_communication=True)


def _gathers(job: RecordedJob, known: Known) -> pl.DataFrame:
    """Each gather that a pass waits for: operation, rank, run, pass, called, user, used.

    `user` is the first row that waits for it, called at `used`; `run` numbers the passes, and its first row
    stands before the gathers, with `operation` null, where the host began with that.
    """
    operations, edges = job.operations, job.edges
    computes = (
        operations.filter(
            pl.col("on_device") & ~pl.col("communication").fill_null(False) & pl.col("call").is_not_null()
        )
        .select(
            "operation",
            "rank",
            "stream",
            "call",
            **{"pass": pl.col("phase").replace_strict(PASSES, default=None)},
        )
        .drop_nulls("pass")
    )
    row = computes["operation"].to_numpy()
    computes = computes.with_columns(
        used=pl.Series(job.measured[2 * computes["call"].to_numpy()]),
        step=pl.Series(step_of(job, known.every_step, 2 * row)),
    ).sort("rank", "used", "operation")
    computes = computes.with_columns(run=pl.struct("rank", "step", "pass").rle_id())
    is_one = of_replicas(operations, GATHERS) & operations["call"].is_not_null().to_numpy()
    waits = np.flatnonzero(np.isin(edges.kind, WAITS))
    source = edges.source[waits] // 2
    waits = waits[is_one[job.operation_of(edges.source[waits])] & (source < len(is_one))]
    pairs = pl.DataFrame({"gather": edges.source[waits] // 2, "operation": edges.target[waits] // 2})
    users = (
        pairs.join(computes, on="operation")
        .sort("used")
        .unique("gather", keep="first", maintain_order=True)
        .select("run", "pass", "rank", "used", "stream", "step", user="operation", operation="gather")
    )
    call = operations["call"].to_numpy()[users["operation"].to_numpy()].astype(np.int64)
    gather = users["operation"].to_numpy()
    users = users.with_columns(
        called=pl.Series(job.measured[2 * call]), _step=pl.Series(step_of(job, known.every_step, 2 * gather))
    ).filter((pl.col("_step") == pl.col("step")) & (pl.col("step") >= 0))
    first = computes.unique("run", keep="first", maintain_order=True).select(
        "run", "pass", "rank", "used", "stream", user="operation"
    )
    begins = users.group_by("run").agg(_first=pl.col("called").min())
    first = first.join(begins, on="run").filter(pl.col("used") < pl.col("_first")).drop("_first")
    columns = ["run", "pass", "rank", "user", "used", "stream", "operation", "called"]
    rows = pl.concat([first, users.select(columns)], how="diagonal").select(columns)
    return rows.sort("run", pl.coalesce("called", "used"))


def _moved(rows: pl.DataFrame, ahead: int) -> pl.DataFrame:
    """The gathers with their `distance`, and for those that move the row `at` whose launch they begin, and
    `key`, when that was launched."""
    found = rows.with_columns(
        at=pl.coalesce(pl.col("user").shift(ahead), pl.col("user").first()).over("run"),
        key=pl.coalesce(pl.col("used").shift(ahead), pl.col("used").first()).over("run"),
    )
    number = pl.int_range(pl.len()).over("run")
    found = found.with_columns(_number=number)
    later = (
        found.drop_nulls("operation")
        .join(found.select("run", _used="used", _other="_number"), on="run")
        .filter((pl.col("_other") < pl.col("_number")) & (pl.col("_used") > pl.col("called")))
        .group_by("operation")
        .agg(distance=pl.len())
    )
    return (
        found.drop_nulls("operation")
        .join(later, on="operation", how="left", maintain_order="left")
        .with_columns(pl.col("distance").fill_null(0), moves=pl.col("key") < pl.col("called"))
    )


def _launches(job: RecordedJob, moved: pl.DataFrame) -> tuple[Int, Int, Int]:
    """Launches of gathers that move, and of what is made ready for them: edges, new sources and targets."""
    operations, edges = job.operations, job.edges
    call = operations["call"].to_numpy()
    mine = moved.select("operation", "at")
    mine = pl.concat([mine, _fed(job, moved).select("operation", "at")]).unique("operation", keep="first")
    which = np.flatnonzero(edges.kind == Kind.LAUNCH)
    frame = pl.DataFrame({"edge": which, "operation": edges.target[which] // 2}).join(mine, on="operation")
    edge = frame["edge"].to_numpy()
    return edge, 2 * call[frame["at"].to_numpy()].astype(np.int64), edges.target[edge]


def _fed(job: RecordedJob, moved: pl.DataFrame) -> pl.DataFrame:
    """Rows of other streams than the computing one that gathers wait for: copies into what is sent."""
    edges = job.edges
    which = np.flatnonzero(np.isin(edges.kind, WAITS) & ~job.communicates[job.operation_of(edges.source)])
    pairs = pl.DataFrame({"_row": edges.source[which] // 2, "operation": edges.target[which] // 2})
    streams = job.operations.select(_row="operation", _stream="stream")
    return (
        pairs.join(moved, on="operation")
        .join(streams, on="_row")
        .filter(pl.col("_stream") != pl.col("stream"))
        .drop("operation")
        .rename({"_row": "operation"})
    )


def _waits(job: RecordedJob, moved: pl.DataFrame, layers: pl.DataFrame) -> tuple[Int, Int, Int]:
    """Waits of gathers for what is launched later than they now are: edges, new sources and targets.

    They wait for what the layer to which they move and its own gather wait for. Where the wait is for
    communication, the recording cannot tell whether the gather or the layer waited, so the layer does. A wait
    for the first row of a layer stays one: memory is free when weights were copied out of it.
    """
    edges = job.edges
    which = np.flatnonzero(np.isin(edges.kind, WAITS))
    pairs = pl.DataFrame(
        {"edge": which, "_row": edges.source[which] // 2, "operation": edges.target[which] // 2}
    )
    columns = ["operation", "at", "key", "stream", "user"]
    both = pl.concat([moved.select(columns), _fed(job, moved).select(columns)])
    told = job.operations.select(_row="operation", _call="call", _stream="stream", _sends="communication")
    frame = (
        pairs.join(both.unique("operation", keep="first"), on="operation")
        .join(told.drop_nulls("_call"), on="_row")
        .filter((pl.col("_stream") == pl.col("stream")) | pl.col("_sends").fill_null(False))
    )
    called = job.measured[2 * frame["_call"].to_numpy().astype(np.int64)]
    frame = frame.filter(pl.Series(called >= frame["key"].to_numpy()))
    frees = pl.col("_row").is_in(layers["user"].implode())
    into = np.flatnonzero(np.isin(edges.kind, [Kind.STREAM, Kind.BESIDE, *WAITS]))
    held = pl.DataFrame({"_of": edges.target[into] // 2, "source": edges.source[into]})
    asks = layers.select(at="user", _of="user").vstack(layers.select(at="user", _of="operation").drop_nulls())
    guards = frame.filter(frees).select("edge", "operation", source=2 * pl.col("at") + 1)
    # One without anything to wait for instead still loses its own.
    others = frame.filter(~frees).select("edge", "operation", "at").join(asks, on="at", how="left")
    others = others.join(held, on="_of", how="left").with_columns(pl.col("source").fill_null(-1))
    sent = frame.filter("_sends").select("edge", operation="user", source=2 * pl.col("_row") + 1)
    whole = pl.concat(each.select("edge", "source", "operation") for each in (guards, others, sent))
    return whole["edge"].to_numpy(), whole["source"].to_numpy(), 2 * whole["operation"].to_numpy()


def _order(job: RecordedJob, moved: pl.DataFrame) -> pl.DataFrame:
    """The rows of the streams on which gathers move, in the order in which they are then asked for."""
    operations = job.operations
    lanes = operations.select("operation", "rank", "device", "stream", "call", "start").join(
        moved.select("operation", "key"), on="operation", how="left"
    )
    of = ["rank", "device", "stream"]
    lanes = lanes.filter(pl.col("key").is_not_null().any().over(of))
    called = pl.Series(job.measured[2 * lanes["call"].fill_null(0).to_numpy()])
    # What was queued before the recording began comes first, and nothing overtakes the first row.
    queued = pl.col("call").is_null() | (pl.col("start") == pl.col("start").min().over(of))
    key = pl.when(queued).then(NEVER).otherwise(pl.coalesce("key", called))
    return lanes.with_columns(key=key).sort(*of, "key", "start")


def _alike(job: RecordedJob, known: Known, order: pl.DataFrame) -> bool:
    """Whether all ranks of a group ask for its collectives in one order, as they have to."""
    edges = job.edges
    arrive = np.flatnonzero(edges.kind == Kind.ARRIVE)
    instance = pl.DataFrame({"operation": edges.source[arrive] // 2, "join": edges.target[arrive]})
    seen = order.join(instance, on="operation", maintain_order="left")
    place = seen.with_columns(place=pl.int_range(pl.len()).over("rank", "device", "stream"))
    pairs = place.select(
        "rank", "join", "place", before=pl.col("join").shift().over("rank", "device", "stream")
    )
    other = place.select(_rank="rank", join="join", _place="place")
    turned = (
        pairs.drop_nulls("before")
        .join(other, on="join")
        .join(other.rename({"join": "before", "_place": "_before"}), on=["before", "_rank"])
        .filter(pl.col("_before") > pl.col("_place"))
    )
    return turned.is_empty()


def _streams(job: RecordedJob, order: pl.DataFrame) -> tuple[Int, Int, Int]:
    """Edges along the streams on which the order changes, with the row that is then the one before."""
    edges = job.edges
    before = order.select("operation", _then=pl.col("operation").shift().over("rank", "device", "stream"))
    which = np.flatnonzero(np.isin(edges.kind, [Kind.STREAM, Kind.BESIDE]))
    frame = pl.DataFrame(
        {"edge": which, "operation": edges.target[which] // 2, "_now": edges.source[which] // 2}
    ).join(before, on="operation")
    # Rows that follow another than now; what has become the first follows none.
    frame = frame.filter(pl.col("_then").ne_missing(pl.col("_now")))
    source = 2 * frame["_then"].fill_null(-1).to_numpy() + 1
    edge = frame["edge"].to_numpy()
    return edge, source, edges.target[edge]


PREFETCH = EditKind(
    "prefetch",
    "prefetch[:PASS]=LAYERS",
    "What if sharded weights were gathered so many layers ahead? PASS is forward or backward.",
    "prefetch=1",
    made,
)
