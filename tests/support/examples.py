"""Fewer Hypothesis examples where each is large: a fraction of the profile's number, the profile `thorough` included."""

from __future__ import annotations

from hypothesis import HealthCheck, settings


def one_in(part: int) -> settings:
    """Return settings with one example for every `part` examples of the profile."""
    slow = (HealthCheck.too_slow, HealthCheck.data_too_large)
    profile = settings()
    return settings(max_examples=max(1, profile.max_examples // part), deadline=None, suppress_health_check=slow)
