"""Settings of `mooring controllers`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from mooring.errors import ConfigError
from mooring.settings.controllers import StandaloneSettings

SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"leader_elect_renew_deadline": 15 * SECOND},
            "leader-elect-renew-deadline: it must be shorter than leader-elect-lease-duration",
        ),
        (
            {"leader_elect_retry_period": 10 * SECOND},
            "leader-elect-retry-period: it must be shorter than leader-elect-renew-deadline",
        ),
        ({"leader_elect_lease_duration": 0 * SECOND}, "leader-elect-lease-duration: give a duration from 1s to 1h"),
        ({"node_monitor_grace_period": SECOND}, "node-monitor-grace-period: give a duration from 10s to 24h"),
        (
            {"healthz_bind_address": "localhost"},
            'healthz-bind-address: "localhost" is not an IP address; 0.0.0.0 or :: means every address of both families',
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_wrong_values_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        StandaloneSettings.read(values)
    assert str(refused.value) == message


def test_the_defaults_are_those_of_kube_controller_manager() -> None:
    settings = StandaloneSettings.read({})
    times = (
        settings.leader_elect_lease_duration,
        settings.leader_elect_renew_deadline,
        settings.leader_elect_retry_period,
    )
    assert times == (15 * SECOND, 10 * SECOND, 2 * SECOND)
    assert settings.leader_elect_resource_namespace == "kube-system"
