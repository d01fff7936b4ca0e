"""Which parallelism a rank's communication shows: rules on kinds, groups, passes and volumes.

Ranks average gradients in the backward pass or at its end, gather weights before they are needed, exchange
activations inside layers or between stages, or tokens between experts: each has its place in the step, and
its volume is a multiple of the parameters or of one activation. Counts and volumes decide; names are hints.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from lostflops.naming.groups import group_apart

from .seen import ALIKE, AROUND, CONTROL, OF_EXPERTS, P2P, Dimension, Groups, Row, Traffic
from .sharing import gradients_averaged, sharded


def layouts(
    rows: Sequence[Row], groups: Groups, marked: bool | None, microbatches: int | None = None
) -> Iterator[Dimension]:
    """Every dimension that one rank's communication shows; `marked` says whether FSDP named its units,
    `microbatches` how many a pipeline has, where that is known."""
    rows = _recounted(rows, microbatches)
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
    second = _second_copies(by_group)
    found = [
        layout
        for group, mine in by_group.items()
        for layout in _of_group(group, [*mine, *second.get(group, ())], groups, peers, marked)
    ]
    staged = bool(messages.rows) and not _goes_round(messages)
    for layout in _hybrid(list(_one_average(found))):
        uncertain = staged and not microbatches and layout.dimension == "data" and (layout.rounds or 0) > 1
        yield replace(layout, parameters=None, rounds=None, expected=None) if uncertain else layout


def _recounted(rows: Sequence[Row], microbatches: int | None) -> Sequence[Row]:
    """The rows, with a pipeline's microbatches where something is exchanged in each backward pass.

    There backward passes follow each other, and operators do not tell where one ends.
    """
    if not microbatches:
        return rows
    each = [r["microbatches"] is not None and r["rounds"] == r["microbatches"] > r["steps"] for r in rows]
    return [
        {**row, "microbatches": microbatches * row["steps"]}
        | ({"rounds": microbatches * row["steps"]} if always else {})
        for row, always in zip(rows, each, strict=True)
    ]


def _second_copies(by_group: dict[str | None, list[Row]]) -> dict[str | None, list[Row]]:
    """Gathers that a smaller group does for the group that scatters the gradients, taken out of theirs.

    ZeRO++ (hpZ) keeps a second copy of the weights in groups of near ranks: only the first forward pass
    gathers among all.
    """
    moved: dict[str | None, list[Row]] = {}
    for group, rows in by_group.items():
        wide = Traffic(rows)
        size = max((r["group_size"] or 0 for r in rows), default=0)
        if not wide.of("reduce-scatter", "backward").rows or wide.of("all-gather", "backward").rows:
            continue
        for other, mine in list(by_group.items()):
            near = Traffic(mine)
            alone = {(r["kind"], (r["group_size"] or size) < size) for r in mine} == {("all-gather", True)}
            if alone and near.of("all-gather", "backward").sizes <= wide.of("all-gather").sizes:
                moved.setdefault(group, []).extend(mine)
                by_group[other] = []
    return moved


def _of_group(
    group: str | None, rows: list[Row], groups: Groups, peers: set[int], marked: bool | None
) -> Iterator[Dimension]:
    if not rows:
        return
    said = groups.described(group)
    size = max((r["group_size"] for r in rows if r["group_size"]), default=None)
    _, members = group_apart(group)
    if not group and (one := groups.only(peers)) is not None:
        size, members = len(one), str(list(one))
    # Stages of a pipeline share no weights: how many ranks of the job do is not known.
    basis = "" if size or groups.known or not groups.world or peers else "all ranks of the job assumed; "
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
    ring = "cp" in groups.described(named).split("_") or _goes_round(messages)
    ranks = group_apart(named)[1] or (str(list(members)) if members else "")
    return Dimension(
        "context" if ring else "pipeline",
        "CP (ring)" if ring else "PP",
        size or (len(members) if members else None),
        ranks,
        seen=sent.volume,
        calls=sent.calls + got.calls,
        basis="sends and receives",
    )


def _goes_round(messages: Traffic) -> bool:
    """Whether a rank sends to one neighbour and receives from the other, in both passes: keys and values in a
    ring. Between stages, gradients go back where activations came from.

    In a ring of two each message that is sent has one that is received, in each pass.
    """

    def others(kind: str, phase: str) -> set[int]:
        return {r["peer"] for r in messages.of(kind, phase).rows if r["peer"] is not None}

    to, back = others("send", "forward"), others("send", "backward")
    got, returned = others("receive", "forward"), others("receive", "backward")
    if len(to) != 1 or len(got) != 1 or to != back or got != returned:
        return False
    return to != got or all(
        messages.of("send", phase).calls == messages.of("receive", phase).calls
        for phase in ("forward", "backward")
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


def _one_average(found: list[Dimension]) -> Iterator[Dimension]:
    """Gradients that are averaged in several groups, as those of experts in smaller ones, are one layout."""
    means = [x for x in found if x.dimension == "data" and x.strategy == "DDP"]
    if len(means) < 2 or any(x.strategy.startswith("FSDP") for x in found):
        yield from found
        return
    widest = max(means, key=lambda x: x.degree or 0)
    for layout in found:
        if layout is widest:
            known = [x.parameters for x in means if x.parameters is not None]
            sizes = ", ".join(f"{x.parameters:,} among {x.degree}" for x in means if x.parameters)
            yield replace(
                widest,
                ranks=", ".join(x.ranks for x in means if x.ranks),
                parameters=sum(known) if len(known) == len(means) else None,
                rounds=max((x.rounds for x in means if x.rounds), default=None),
                expected=sum(x.expected or 0 for x in means),
                seen=sum(x.seen for x in means),
                calls=sum(x.calls for x in means),
                basis=f"{widest.basis}; in several groups: parameters {sizes}",
            )
        elif layout not in means:
            yield layout


def _hybrid(found: list[Dimension]) -> Iterator[Dimension]:
    """Full sharding inside groups, and averages of the shards between them, are one layout."""
    shard = next((x for x in found if x.dimension == "data" and x.strategy.startswith("FSDP")), None)
    means = [x for x in found if x.dimension == "data" and x.strategy == "DDP"]
    if (
        shard is None
        or not means
        or not shard.parameters
        or not shard.degree
        or not _are_shards(means, shard)
    ):
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


def _are_shards(means: list[Dimension], shard: Dimension) -> bool:
    """Whether what is averaged is as large as what each rank keeps of the sharded gradients."""
    averaged = sum(x.parameters or 0 for x in means)
    kept = (shard.parameters or 0) / (shard.degree or 1)
    return abs(averaged - kept) <= ALIKE * kept
