"""Orders that Polars does not promise, turned round for one test."""

from __future__ import annotations

import pytest

import untold_order


@pytest.fixture
def turned_round(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, method in untold_order.TURNED:
        monkeypatch.setattr(owner, method, getattr(owner, method))  # given back after the test
    untold_order.reverse()
