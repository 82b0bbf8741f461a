"""Property-based tests: few examples by default, always the same; `--hypothesis-profile=many` looks for new ones."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

_SHARED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
settings.register_profile(
    "few",
    max_examples=30,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=_SHARED,
)
settings.register_profile(
    "many", max_examples=3000, database=None, deadline=None, suppress_health_check=_SHARED
)
settings.load_profile("few")
