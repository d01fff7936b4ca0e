"""Repeated blocks in a pass, told by names alone."""

from __future__ import annotations

import numpy as np
import pytest

from lostflops.replay.blocks import block_ends


@pytest.mark.parametrize(
    ("names", "ends"),
    [
        ("hABCABCABCt", [3, 6, 9]),  # a head before three blocks, a tail after them
        ("hABBABBt", [3, 6]),  # a name that each block holds twice
        ("hABCABCt" * 2, [7, 15]),  # of two whole passes no smaller parts are told: ready later, not earlier
        ("ABCD", []),
        ("", []),
    ],
)
def test_blocks_end_where_their_names_return(names: str, ends: list[int]) -> None:
    assert block_ends(np.array([ord(name) for name in names], np.int64)).tolist() == ends
