"""What holds for all tests: on a machine that others use too, a slow example is no failure."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
if settings.get_current_profile_name() == "default":  # the mutants have one of their own
    settings.load_profile("shared machine")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One worker more than there are cores: some tests sleep, or wait for jobs that do."""
    return (os.cpu_count() or 1) + 1
