"""The recipe keeps what every recipe promises, and says what it says about made-up rows."""

import pytest
from short_kernels.recipe import short_kernels

from lostflops.testing import Promise, on_example, promises


@pytest.mark.parametrize("promise", promises(short_kernels), ids=str)
def test_it_keeps_what_recipes_promise(promise: Promise) -> None:
    promise.check()


def test_a_kernel_of_just_the_limit_is_not_short() -> None:
    rows = [{"start": 0, "end": 5_000}, {"start": 9_000, "end": 13_999}]
    assert on_example(short_kernels, {"kernels": rows})["short"].to_list() == [1]
