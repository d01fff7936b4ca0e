"""Planted causes: the first page names them, and leaves healthy jobs in peace.

`make acceptance` shows the table.
"""

from __future__ import annotations

import pytest

from acceptance.run import TARGET, Line, every_case, misses, totals


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[Line]:
    # In this process: two more would import all of it again, beside workers that fill the cores.
    return every_case(0, "", tmp_path_factory.mktemp("planted"), workers=1)


def test_the_first_finding_names_the_cause(lines: list[Line]) -> None:
    named, of = totals(lines).named
    assert of >= 50
    assert named >= TARGET * of, "\n".join(misses(lines))


def test_healthy_jobs_have_no_finding_worth_5_per_cent_of_a_step(lines: list[Line]) -> None:
    quiet, of = totals(lines).quiet
    assert of >= 60
    assert quiet >= TARGET * of, "\n".join(misses(lines))


def test_steps_are_within_3_per_cent_of_the_truth(lines: list[Line]) -> None:
    right, of = totals(lines).steps
    assert right >= TARGET * of, "\n".join(misses(lines))
