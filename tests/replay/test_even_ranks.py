"""A rank that is as fast as the others is so in each kind of work: in the forward pass, with its experts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl

from lostflops.replay.dependencies.edges import Kind
from lostflops.replay.edits.between_ranks.ranks import above, kinds, waits_beyond
from lostflops.replay.edits.between_ranks.work import shares_of_work


def test_a_rank_comes_down_to_the_others_where_it_is_above_them() -> None:
    """Rank 1 is 6 ns late in the forward pass (kind 0), which the backward pass does not tell."""
    part = np.array([10, 20, 9, 7, 20])
    rank, kind = np.array([0, 0, 1, 1, 1]), np.array([0, 1, 0, 0, 1])
    step, inside = np.zeros(5, dtype=np.int64), np.ones(5, dtype=bool)
    less = above(part, rank, step, inside, [1], kind)
    np.testing.assert_allclose(less, [0, 0, 6 * 9 / 16, 6 * 7 / 16, 0])
    np.testing.assert_allclose(above(part, rank, step, inside, [1]).sum(), 6)


def test_work_that_other_ranks_do_not_have_goes() -> None:
    less = above(
        np.array([5, 8]), np.array([0, 1]), np.zeros(2, np.int64), np.ones(2, bool), [1], np.arange(2)
    )
    np.testing.assert_allclose(less, [0, 8])


def test_work_that_one_rank_alone_has_is_shared_with_the_others() -> None:
    """Rank 0 computes 8 ns as rank 1 does, and evaluates for 6 (kind 1): half of that stays with it. It kept
    all of it, as the mean of those that have such work. Ranks of other stages get none of it."""
    rank, kind = np.array([0, 1, 0]), np.array([0, 0, 1])
    operations = pl.DataFrame({"what": [0, 0, 0]})
    edges = SimpleNamespace(kind=np.full(3, Kind.DEVICE), source=np.arange(3))
    job: Any = SimpleNamespace(edges=edges, operations=operations, ranks=rank, communicates=np.zeros(3, bool))
    job.operation_of = np.asarray
    lags, step, counts = np.array([8, 8, 6]), np.zeros(3, np.int64), np.ones(3, bool)
    np.testing.assert_allclose(shares_of_work(job, lags, counts, step, {}, kind), [1, 1, 0.5])
    np.testing.assert_allclose(shares_of_work(job, lags, counts, step, {0: 0, 1: 1}, kind), [1, 1, 1])


def test_a_kernel_that_not_all_ranks_run_is_one_of_its_family() -> None:
    rows = pl.DataFrame(
        {
            "name": ["grouped", "small", "grouped", "large", "add"],
            "family": ["gemm", "gemm", "gemm", "gemm", "elementwise"],
            "phase": ["forward"] * 4 + [None],
        },
        schema_overrides={"phase": pl.String},
    )
    found = kinds(rows, np.array([0, 0, 1, 1, 0])).tolist()
    assert found[0] == found[2] != found[1] == found[3] and len(set(found)) == 3


def test_a_rank_that_is_even_waits_for_its_device_as_often_as_the_others() -> None:
    """Rank 1 waits in three calls of step 0 and once in step 1, the others once in each: two of them go."""
    rank = np.array([0, 0, 2, 2, 1, 1, 1, 1, 1])
    step = np.array([0, 1, 0, 1, 0, 0, 0, 1, 0])
    edges = SimpleNamespace(kind=np.full(9, Kind.SYNC), target=np.array([2, 4, 6, 8, 10, 12, 14, 16, 14]))
    job: Any = SimpleNamespace(edges=edges)
    inside = np.ones(9, dtype=bool)
    beyond = [False, False, False, False, True, True, False, False, False]
    assert waits_beyond(job, rank, step, inside, [1]).tolist() == beyond
    assert not waits_beyond(job, rank, step, inside, None).any()
    assert not waits_beyond(job, rank, step, inside, [0]).any()
    edges.kind[:] = Kind.OWN
    assert not waits_beyond(job, rank, step, inside, [1]).any()
