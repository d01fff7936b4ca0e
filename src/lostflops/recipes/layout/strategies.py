"""Which parallelism a rank's communication shows: rules on kinds, groups, passes and volumes.

Ranks average gradients in the backward pass or at its end, gather weights before they are needed, exchange
activations inside layers or between stages, or tokens between experts: each has its place in the step, and
its volume is a multiple of the parameters or of one activation. Counts and volumes decide; names are hints.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .seen import AROUND, CONTROL, OF_EXPERTS, P2P, Dimension, Groups, Row, Traffic
from .sharing import gradients_averaged, sharded


def layouts(rows: Sequence[Row], groups: Groups, marked: bool | None) -> Iterator[Dimension]:
    """Every dimension that one rank's communication shows; `marked` says whether FSDP named its units."""
    large = [r for r in rows if r["bytes"] is None or r["bytes"] >= CONTROL or r["kind"] in OF_EXPERTS]
    messages = Traffic(r for r in large if r["kind"] in P2P)
    if messages.rows:
        yield _stages(messages, groups)
    experts = Traffic(r for r in large if r["kind"] in OF_EXPERTS)
    if experts.rows:
        yield _experts(experts, groups)
    peers = {r["peer"] for r in messages.rows if r["peer"] is not None}
    rest = [r for r in large if r["kind"] not in (*P2P, *OF_EXPERTS)]
    by_group = dict[str | None, list[Row]]()
    for row in rest:
        by_group.setdefault(row["group"], []).append(row)
    found = [
        layout for group, mine in by_group.items() for layout in _of_group(group, mine, groups, peers, marked)
    ]
    yield from _hybrid(found)


def _of_group(
    group: str | None, rows: list[Row], groups: Groups, peers: set[int], marked: bool | None
) -> Iterator[Dimension]:
    said = groups.described(group)
    size = next((r["group_size"] for r in rows if r["group_size"]), None)
    members = group.split(" ", 1)[1] if group and " " in group else ""
    if not group and (one := groups.only(peers)) is not None:
        size, members = len(one), str(list(one))
    basis = "" if size or groups.known or not groups.world else "all ranks of the job assumed; "
    size = size or (groups.world if basis else None)
    exchanged = Traffic(r for r in rows if r["kind"] == "all-to-all")
    if exchanged.rows:
        yield _all_to_all(exchanged, said, size, members, basis)
    rest = Traffic(r for r in rows if r["kind"] != "all-to-all")
    if "cp" in said.split("_") or "context" in said:
        yield Dimension("context", "CP", size, members, seen=rest.volume, calls=rest.calls, basis="its name")
        return
    inside, around = _apart(rest)
    if inside.rows:
        yield _tensor(inside, size, members, basis)
    if around.rows:
        yield from _data(around, size, members, basis, marked)


def _apart(traffic: Traffic) -> tuple[Traffic, Traffic]:
    """What is exchanged inside layers, forward as well as backward, and the rest."""
    forward = traffic.of("all-reduce", "forward").sizes
    sequence = traffic.of("reduce-scatter", "forward").rows and traffic.of("all-gather", "forward").rows
    kinds = {"all-gather", "reduce-scatter"} if sequence else set[str]()
    backward = traffic.of("all-reduce", "backward").sizes
    both = forward & backward

    def is_inside(row: Row) -> bool:
        return row["kind"] in kinds or (row["kind"] == "all-reduce" and row["bytes"] in both)

    return (
        Traffic(r for r in traffic.rows if is_inside(r)),
        Traffic(r for r in traffic.rows if not is_inside(r)),
    )


def _tensor(inside: Traffic, size: int | None, members: str, basis: str) -> Dimension:
    forward, backward = inside.of("all-reduce", "forward"), inside.of("all-reduce", "backward")
    if not forward.rows:
        return Dimension(
            "tensor", "TP + SP", size, members, seen=inside.volume, calls=inside.calls,
            basis=f"{basis}gathers and reduce-scatters inside layers, forward as well as backward",
        )  # fmt: skip
    times = round(backward.volume / forward.volume) if forward.volume else 1
    parts = {1: "4 per layer and microbatch", 2: "6 per layer and microbatch: q, k, v apart"}
    return Dimension(
        "tensor", "TP", size, members,
        expected=forward.volume * (1 + times), seen=inside.volume, calls=inside.calls,
        basis=f"{basis}all-reduces of one size in both passes, {parts.get(times, 'of another kind')}",
    )  # fmt: skip


def _stages(messages: Traffic, groups: Groups) -> Dimension:
    named = next((r["group"] for r in messages.rows if r["group"]), None)
    peers = {r["peer"] for r in messages.rows if r["peer"] is not None}
    members = groups.with_peer(peers | {groups.rank}) if peers else None
    sent, got = messages.of("send"), messages.of("receive")
    size = next((r["group_size"] for r in messages.rows if r["group_size"]), None)
    ring = "cp" in groups.described(named).split("_")
    ranks = named.split(" ", 1)[1] if named and " " in named else str(list(members)) if members else ""
    return Dimension(
        "context" if ring else "pipeline",
        "CP (ring)" if ring else "PP",
        size or (len(members) if members else None),
        ranks,
        seen=sent.volume,
        calls=sent.calls + got.calls,
        basis="sends and receives",
    )


def _experts(exchanged: Traffic, groups: Groups) -> Dimension:
    calls = sum(exchanged.of(kind).calls for kind in OF_EXPERTS)
    basis = "kernels that dispatch tokens to experts and combine them; all ranks of the job assumed"
    return Dimension("expert", "EP", groups.world, "", seen=exchanged.volume, calls=calls, basis=basis)


def _all_to_all(exchanged: Traffic, said: str, size: int | None, members: str, basis: str) -> Dimension:
    seen, calls = exchanged.volume, exchanged.calls
    words = set(said.replace("-", "_").split("_"))
    if words & {"ep", "expert", "moe"}:
        return Dimension(
            "expert", "EP", size, members, seen=seen, calls=calls, basis="all-to-alls in a group of that name"
        )
    if words & {"cp", "ulysses", "sp", "sequence"}:
        return Dimension(
            "context",
            "CP (Ulysses)",
            size,
            members,
            seen=seen,
            calls=calls,
            basis="all-to-alls in such a group",
        )
    which = "experts, sequences or embeddings: sizes do not tell which"
    return Dimension(
        "unexplained", "all-to-all", size, members, seen=seen, calls=calls, basis=f"{basis}{which}"
    )


def _data(
    around: Traffic, size: int | None, members: str, basis: str, marked: bool | None
) -> Iterator[Dimension]:
    scattered, averaged = around.of("reduce-scatter", "backward"), around.of("all-reduce", "backward")
    gathered = around.of("all-gather")
    used: set[str] = set()
    if scattered.rows and gathered.rows:
        yield sharded(around, size, members, basis, marked)
        used = {"reduce-scatter", "all-gather"}
    elif averaged.rows:
        yield gradients_averaged(around, size, members, basis)
        used = {"all-reduce", "broadcast"} | (
            {"all-gather"} if around.of("all-gather", *AROUND).rows else set()
        )
    for kind in sorted({r["kind"] for r in around.rows} - used):
        left = around.of(kind)
        yield Dimension(
            "unexplained", kind, size, members, seen=left.volume, calls=left.calls, basis="fits no layout"
        )


def _hybrid(found: list[Dimension]) -> Iterator[Dimension]:
    """Full sharding inside groups, and averages of the shards between them, are one layout."""
    shard = next((x for x in found if x.dimension == "data" and x.strategy.startswith("FSDP")), None)
    means = [x for x in found if x.dimension == "data" and x.strategy == "DDP"]
    if shard is None or not means or not shard.parameters or not shard.degree:
        yield from found
        return
    for layout in found:
        if layout in means:
            continue
        if layout is not shard:
            yield layout
            continue
        more = sum(x.expected or 0 for x in means)
        copies = means[0].degree
        yield Dimension(
            "data", "HSDP", copies and copies * shard.degree, shard.ranks, shard.parameters, shard.rounds,
            (shard.expected or 0) + more, shard.seen + sum(x.seen for x in means),
            shard.calls + sum(x.calls for x in means),
            f"{shard.basis}; shards of {shard.degree} ranks are averaged among {copies}",
        )  # fmt: skip
