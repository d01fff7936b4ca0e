"""A pytest plugin: a property test draws at most `LOSTFLOPS_MOST_DRAWN` cases.

    LOSTFLOPS_MOST_DRAWN=20 PYTHONPATH=tests/versions python -m pytest -p fewer_draws

Cases by the hundred look for faults of logic, which are the same everywhere. Whether a version of Python or
of a library can do what is asked of it, the first few tell.
"""

from __future__ import annotations

import os

import hypothesis
import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Lower the number of cases where it is told."""
    most = os.environ.get("LOSTFLOPS_MOST_DRAWN")
    if most:
        draw_at_most(int(most), items)


def draw_at_most(most: int, items: list[pytest.Item]) -> None:
    """Let those of the tests that draw their cases draw at most so many."""
    for item in items:
        function = getattr(item, "function", None)
        if function is not None and hypothesis.is_hypothesis_test(function):
            asked = function._hypothesis_internal_use_settings
            fewer = hypothesis.settings(asked, max_examples=min(asked.max_examples, most))
            function._hypothesis_internal_use_settings = fewer
