"""What holds for all tests: on a machine that others use too, a slow example is no failure."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
if settings.get_current_profile_name() == "default":  # the mutants have one of their own
    settings.load_profile("shared machine")
