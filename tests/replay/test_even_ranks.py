"""A rank that is as fast as the others is so in each kind of work: in the forward pass, with its experts."""

from __future__ import annotations

import numpy as np
import polars as pl

from lostflops.replay.edits.between_ranks.ranks import above, kinds


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
