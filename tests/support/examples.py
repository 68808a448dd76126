"""Fewer examples for tests whose examples are large: a part of what the Hypothesis profile says, `thorough` included."""

from __future__ import annotations

from hypothesis import HealthCheck, settings


def one_in(part: int) -> settings:
    """Return settings with one example where others have `part`."""
    slow = (HealthCheck.too_slow, HealthCheck.data_too_large)
    profile = settings()
    return settings(max_examples=max(1, profile.max_examples // part), deadline=None, suppress_health_check=slow)
