"""Layouts written down by hand, collective by collective: each is told by what it moves, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import polars as pl
import pytest

from lostflops.recipes import named
from lostflops.testing.examples import on_example

Row = dict[str, Any]
Call = tuple[str, int, Row]
P, LAYERS = 1_000_000, 4
UNIT = 4 * P // LAYERS  # bytes of a layer's parameters in fp32
MARK = ("FSDP::all_gather (a)",)
OTHER = ("range of another framework",)


def group(name: str, *ranks: int) -> Row:
    return {"group": f"{name} {list(ranks)}", "group_size": len(ranks)}


class Rank:
    """One step of a rank: phases one after the other, and in each its collectives."""

    def __init__(self, rank: int) -> None:
        self.rank, self.now = rank, 0
        self.operators: list[Row] = []
        self.collectives: list[Row] = []

    def phase(self, name: str, *calls: Call) -> None:
        self.operators.append({"rank": self.rank, "start": self.now, "end": self.now + 5, "phase": name})
        for kind, size, more in calls:
            self.now += 10
            each = size // more.get("group_size", 1)
            volume = {"bytes_in": each, "bytes_out": size} if kind == "all-gather" else {"bytes_in": size}
            at = {"rank": self.rank, "start": self.now, "end": self.now + 5, "arrival": self.now}
            self.collectives.append(at | {"kind": kind, "dtype": "float"} | volume | more)
        self.now += 10


Step = Callable[[Rank], None]


def both(forward: Sequence[Call], backward: Sequence[Call], last: Sequence[Call] = ()) -> Step:
    """A forward and a backward pass and an optimizer."""

    def made(rank: Rank) -> None:
        rank.phase("forward", *forward)
        rank.phase("backward", *backward)
        rank.phase("optimizer", *last)

    return made


def accumulated(microbatches: int, passes: Callable[[int], tuple[Sequence[Call], Sequence[Call]]]) -> Step:
    """Several of them before one optimizer."""

    def made(rank: Rank) -> None:
        for number in range(microbatches):
            forward, backward = passes(number)
            rank.phase("forward", *forward)
            rank.phase("backward", *backward)
        rank.phase("optimizer")

    return made


def rows_of(
    steps: dict[int, Step], world: int, ranges: Sequence[str] = (), groups: Sequence[Row] = ()
) -> list[Row]:
    """What the recipe says of the ranks."""
    ranks = [Rank(rank) for rank in steps]
    for rank in ranks:
        steps[rank.rank](rank)
    end = max(rank.now for rank in ranks) + 10
    of_step = {"step": 3, "start": 0, "end": end, "host_start": 0, "host_end": end}
    given: dict[str, list[Row]] = {
        "steps": [{"rank": rank.rank} | of_step for rank in ranks],
        "operators": [row for rank in ranks for row in rank.operators],
        "collectives": [row for rank in ranks for row in rank.collectives],
        "ranks": [{"rank": rank.rank, "world_size": world, "groups": list(groups)} for rank in ranks],
    }
    if ranges:
        given["ranges"] = [
            {"rank": rank.rank, "start": 1, "end": 2, "name": name} for rank in ranks for name in ranges
        ]
    return on_example(named("parallelism"), given).to_dicts()


def told(*args: Any, **more: Any) -> dict[str, Row]:
    """The same by dimension, of which each has one row."""
    rows = rows_of(*args, **more)
    by_dimension = {row["dimension"]: row for row in rows}
    assert len(by_dimension) == len(rows)
    return by_dimension


def brief(rows: dict[str, Row]) -> dict[str, tuple[Any, ...]]:
    return {name: (row["strategy"], row["degree"], row["ranks"]) for name, row in rows.items()}


def pair(rank: int) -> Row:
    """Neighbours, of four ranks."""
    return group("1", *((0, 1) if rank < 2 else (2, 3)))


def across(rank: int) -> Row:
    """Those of one place in two such groups."""
    return group("2", rank % 2, rank % 2 + 2)


WORLD = group("0", 0, 1, 2, 3)


# --- replicas
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [(0, 1, 2, 3), (1,), (0, 3)])
def test_shards_that_are_averaged_are_hybrid_sharding(ranks: tuple[int, ...]) -> None:
    def step(rank: int) -> Step:
        shard, mean = pair(rank), across(rank)
        back = [("all-gather", UNIT, shard)] * (LAYERS - 1)
        reduced = [("reduce-scatter", UNIT, shard), ("all-reduce", UNIT // 2, mean)] * LAYERS
        return both([("all-gather", UNIT, shard)] * LAYERS, [*back, *reduced])

    rows = told({rank: step(rank) for rank in ranks}, 4, MARK)
    assert brief(rows) == {"data": ("HSDP", 4, len(ranks))}
    assert (rows["data"]["parameters"], rows["data"]["excess"]) == (P, 0.0)


def test_averages_of_another_size_are_not_those_of_shards() -> None:
    """Full sharding among neighbours and DDP of other parameters among all are two layouts."""

    def step(rank: int) -> Step:
        shard = pair(rank)
        back = [("all-gather", UNIT, shard), ("reduce-scatter", UNIT, shard)] * LAYERS
        return both([("all-gather", UNIT, shard)] * LAYERS, [*back, ("all-reduce", 3 * UNIT, WORLD)])

    rows = rows_of({rank: step(rank) for rank in range(4)}, 4, MARK)
    assert [(row["strategy"], row["degree"], row["parameters"]) for row in rows] == [
        ("DDP", 4, 3 * P // LAYERS),
        ("FSDP2", 2, P),
    ]


@pytest.mark.parametrize(
    ("resharded", "microbatches", "last_only", "ranges", "strategy", "rounds"),
    [
        (True, 1, False, MARK, "FSDP2", 1.0),
        (True, 4, False, MARK, "FSDP2", 4.0),
        (True, 4, True, MARK, "FSDP2", 1.0),
        (True, 4, True, OTHER, "ZeRO-3", 1.0),
        (False, 1, False, MARK, "FSDP2 without resharding", 1.0),
        (False, 4, False, OTHER, "FSDP2 without resharding", 4.0),
        (False, 4, True, MARK, "FSDP2 without resharding", 1.0),
        (False, 1, False, OTHER, "FSDP2 without resharding, or a distributed optimizer", 1.0),
    ],
)
def test_sharded_weights_are_told_by_when_they_are_gathered(
    resharded: bool, microbatches: int, last_only: bool, ranges: Any, strategy: str, rounds: float
) -> None:
    def passes(number: int) -> tuple[list[Call], list[Call]]:
        gather, scatter = ("all-gather", UNIT, pair(0)), ("reduce-scatter", UNIT, pair(0))
        reduced = [scatter] * LAYERS if not last_only or number == microbatches - 1 else []
        return [gather] * LAYERS, [*([gather] * (LAYERS - 1) if resharded else []), *reduced]

    rows = told({rank: accumulated(microbatches, passes) for rank in range(2)}, 2, ranges)
    assert brief(rows) == {"data": (strategy, 2, 2)}
    data = rows["data"]
    assert (data["parameters"], data["microbatches"], data["excess"]) == (P, rounds, 0.0)


def test_weights_that_are_gathered_once_for_all_microbatches_are_a_distributed_optimizers() -> None:
    def passes(number: int) -> tuple[list[Call], list[Call]]:
        gathers = [("all-gather", UNIT, pair(0))] * LAYERS
        return gathers if number == 0 else [], [
            ("reduce-scatter", UNIT, pair(0))
        ] * LAYERS if number == 3 else []

    rows = told({rank: accumulated(4, passes) for rank in range(2)}, 2, OTHER)
    assert brief(rows) == {"data": ("distributed optimizer", 2, 2)}


def test_second_copies_in_near_groups_are_hpz() -> None:
    def step(rank: int) -> Step:
        def passes(number: int) -> tuple[list[Call], list[Call]]:
            again = ("all-gather", UNIT, pair(rank))
            first = ("all-gather", UNIT, WORLD) if number == 0 else again
            return [first] * LAYERS, [again, ("reduce-scatter", UNIT, WORLD)] * LAYERS

        return accumulated(2, passes)

    rows = told({rank: step(rank) for rank in range(4)}, 4, OTHER)
    assert brief(rows) == {"data": ("ZeRO-3 with hpZ", 4, 4)}
    assert (rows["data"]["parameters"], rows["data"]["excess"]) == (P, 0.0)


def test_frozen_weights_are_gathered_too() -> None:
    back = [("all-gather", UNIT, pair(0)), ("reduce-scatter", UNIT // 100, pair(0))] * LAYERS
    step = both([("all-gather", UNIT, pair(0))] * LAYERS, back)
    rows = told({0: step, 1: step}, 2, MARK)
    assert brief(rows) == {"data": ("FSDP2", 2, 2)}
    assert (rows["data"]["parameters"], rows["data"]["excess"]) == (P, 0.0)
    assert rows["data"]["basis"].endswith("10,000 parameters have gradients, the others are frozen")


@pytest.mark.parametrize("alike", [False, True])
def test_two_models_that_train_in_turns_average_each_gradient_once(alike: bool) -> None:
    """An actor and a critic, or a generator and its critic: alike but for their heads, or not alike."""
    body = [2 * P] if alike else []

    def passes(number: int) -> tuple[list[Call], list[Call]]:
        sizes = [*body, P] if number == 0 else [*body, 3 * P]
        return [], [("all-reduce", size, pair(0)) for size in sizes]

    (row,) = rows_of({rank: accumulated(2, passes) for rank in range(2)}, 2)
    whole = (4 * P + 2 * sum(body)) // 4
    assert (row["strategy"], row["microbatches"], row["parameters"]) == ("DDP", 1.0, whole)
    assert row["basis"].endswith("those of other parameters in each of 2 passes")
    findings = named("parallelism").findings(pl.DataFrame([row]))
    assert [found.name for found in findings] == []


@pytest.mark.parametrize(
    ("kind", "microbatches", "each", "strategy"),
    [
        ("all-gather", 1, True, "ZeRO-1 or ZeRO-2"),
        ("all-gather", 4, False, "ZeRO-1"),
        ("all-gather", 4, True, "ZeRO-2"),
        ("broadcast", 1, True, "ZeroRedundancyOptimizer"),
    ],
)
def test_what_follows_the_optimizer_tells_how_its_states_are_sharded(
    kind: str, microbatches: int, each: bool, strategy: str
) -> None:
    def step(rank: Rank) -> None:
        for number in range(microbatches):
            rank.phase("forward")
            means = each or number == microbatches - 1
            rank.phase("backward", *([("all-reduce", 2 * P, pair(0))] * 2 if means else []))
        rank.phase("optimizer", *[(kind, 2 * P, pair(0))] * 2)

    rows = told({0: step, 1: step}, 2)
    assert brief(rows) == {"data": (strategy, 2, 2)}
    assert (rows["data"]["parameters"], rows["data"]["excess"]) == (P, 0.0)


@pytest.mark.parametrize("microbatches", [1, 4])
def test_without_groups_all_ranks_are_taken_for_replicas(microbatches: int) -> None:
    def passes(number: int) -> tuple[list[Call], list[Call]]:
        return [], [("all-reduce", UNIT, {})] * LAYERS if number == microbatches - 1 else []

    rows = told({rank: accumulated(microbatches, passes) for rank in range(4)}, 4)
    assert brief(rows) == {"data": ("DDP", 4, 4)}
    assert rows["data"]["basis"].startswith("all ranks of the job assumed")


# --- layers, experts and sequences
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sharded", [False, True])
def test_sequence_parallelism_is_told_from_the_sharding_of_weights(sharded: bool) -> None:
    def step(rank: int) -> Step:
        inside = [("all-gather", 65_536, pair(rank)), ("reduce-scatter", 65_536, pair(rank))] * (2 * LAYERS)
        gathers = [("all-gather", UNIT, across(rank))] * (LAYERS if sharded else 0)
        kind = "reduce-scatter" if sharded else "all-reduce"
        return both([*inside, *gathers], [*inside, *gathers[1:], *[(kind, UNIT, across(rank))] * LAYERS])

    rows = told({rank: step(rank) for rank in range(4)}, 4, MARK if sharded else ())
    assert brief(rows) == {"data": ("FSDP2" if sharded else "DDP", 2, 4), "tensor": ("TP + SP", 2, 4)}
    assert (rows["data"]["parameters"], rows["data"]["excess"]) == (P, 0.0)


@pytest.mark.parametrize("said", [True, False])
def test_gradients_of_experts_are_averaged_in_smaller_groups(said: bool) -> None:
    def step(rank: int) -> Step:
        tokens = [("all-to-all", 40_000 + 1000 * ((rank + n) % 3), pair(rank)) for n in range(2 * LAYERS)]
        means = [("all-reduce", UNIT, WORLD)] * LAYERS + [("all-reduce", P, across(rank))] * 2
        return both(tokens, [*tokens, *means])

    names = [{"name": "1", "description": "mesh_ep", "ranks": [0, 1]}] if said else []
    rows = told({rank: step(rank) for rank in range(4)}, 4, groups=names)
    data = ("DDP", 4, 4)
    if said:
        assert brief(rows) == {"data": data, "expert": ("EP", 2, 4)}
    else:  # sizes do not tell experts from sequences or embeddings
        assert brief(rows) == {"data": data, "unexplained": ("all-to-all", 2, 4)}
    assert rows["data"]["parameters"] == P + P // 2
    assert rows["data"]["calls"] == LAYERS + 2 and rows["data"]["seen"] == 6 * P
    assert rows["data"]["groups"] == "[0, 1, 2, 3], [0, 2], [1, 3]"


@pytest.mark.parametrize("ranks", [(0, 1, 2, 3), (1,), (0, 1)])
@pytest.mark.parametrize("of", [2, 4])
def test_keys_and_values_that_go_round_are_a_ring_and_no_pipeline(ranks: tuple[int, ...], of: int) -> None:
    here = [rank for rank in ranks if rank < of]
    ring = group("7", *range(of))

    def step(rank: int) -> Step:
        on, back = {"peer": (rank + 1) % of}, {"peer": (rank - 1) % of}
        turn = [("send", 50_000, ring | on), ("receive", 50_000, ring | back)] * (2 * (of - 1) * LAYERS)
        return both(turn, [*turn, *turn, *[("all-reduce", UNIT, ring)] * LAYERS])

    rows = told({rank: step(rank) for rank in here}, of)
    assert brief(rows) == {"context": ("CP (ring)", of, len(here)), "data": ("DDP", of, len(here))}


# --- pipelines
# ------------------------------------------------------------------------------------------


def staged(rank: int, *, grouped: bool) -> Step:
    """Four microbatches of 1F1B over two stages with two replicas each: ranks 0 and 1, 2 and 3."""
    first, peer = rank < 2, (rank + 2) % 4
    message = (across(rank) if grouped else {}) | {"peer": peer}

    def passes() -> Iterator[str]:
        yield from ("F", "F", "B", "F", "B", "F", "B", "B") if first else ("F", "B") * 4

    def made(rank_: Rank) -> None:
        done = 0
        for kind in passes():
            done += kind == "B"
            moved = ("send" if (kind == "F") == first else "receive", 80_000, message)
            means = [("all-reduce", UNIT, pair(rank) if grouped else {})] * LAYERS
            phase = "forward" if kind == "F" else "backward"
            rank_.phase(phase, moved, *(means if kind == "B" and done == 4 else []))
        rank_.phase("optimizer")

    return made


@pytest.mark.parametrize("ranks", [(0, 1, 2, 3), (0, 1), (0,)])
def test_stages_and_their_replicas_are_told_apart(ranks: tuple[int, ...]) -> None:
    rows = told({rank: staged(rank, grouped=True) for rank in ranks}, 4)
    assert brief(rows) == {"data": ("DDP", 2, len(ranks)), "pipeline": ("PP, 1f1b", 2, len(ranks))}
    assert rows["data"]["parameters"] == P and rows["data"]["excess"] == 0.0
    assert (rows["pipeline"]["microbatches"], rows["pipeline"]["excess"]) == (4.0, 0.0)


def test_without_groups_not_all_ranks_of_a_pipeline_are_replicas() -> None:
    rows = told({rank: staged(rank, grouped=False) for rank in range(4)}, 4)
    assert brief(rows) == {"data": ("DDP", None, 4), "pipeline": ("PP", None, 4)}
