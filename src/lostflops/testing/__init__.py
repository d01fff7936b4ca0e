"""For tests of recipes: what every recipe promises, checked on its own examples, and answers on made-up rows.

A test of a recipe is four lines:

    import pytest
    from lostflops.testing import promises

    @pytest.mark.parametrize("promise", promises(my_recipe), ids=str)
    def test_it_keeps_what_recipes_promise(promise):
        promise.check()
"""

from lostflops.testing.examples import example_table, on_example, rows_of
from lostflops.testing.promises import Promise, check, promises

__all__ = ["Promise", "check", "example_table", "on_example", "promises", "rows_of"]
