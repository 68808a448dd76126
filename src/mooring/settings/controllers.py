"""Settings of the controllers that run in a server."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from mooring.errors import ConfigError
from mooring.settings.addresses import parse_bind_address
from mooring.settings.declaration import (
    BOOLEAN,
    COMMA_SEPARATED,
    DURATION,
    OPTIONAL_DURATION,
    PORT,
    TEXT,
    Settings,
    duration_within,
    setting,
)

parse_grace_period = duration_within(timedelta(seconds=10), timedelta(hours=24))
"""A node renews its Lease every ten seconds."""
_within_silence = duration_within(timedelta(hours=1), timedelta(days=3650))
"""An hour: a setting for all machines must not remove those that are being repaired."""
_within_retention = duration_within(timedelta(days=30), timedelta(days=36500))
"""30 days: admission deletes no record earlier (`mooring.api.mooring.lineagerecord.MIN_RETENTION`)."""


def parse_silence(value: timedelta | None, key: str) -> timedelta | None:
    """Return the silence after which machines are removed; None for never. Raises ConfigError."""
    return None if value is None else _within_silence(value, key)


def parse_retention(value: timedelta | None, key: str) -> timedelta | None:
    """Return the time that records of the issuance log outlive their certificates; None for ever. Raises ConfigError."""
    return None if value is None else _within_retention(value, key)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeControllerSettings(Settings):
    """Times of the controllers of Nodes, in a server and against any cluster."""

    node_monitor_grace_period: timedelta = setting(
        DURATION,
        default=timedelta(seconds=50),
        meaning="Time without a renewed Lease and without a status after which the conditions of a Node become Unknown.",
        parse=parse_grace_period,
    )
    end_silent_members_after: timedelta | None = setting(
        OPTIONAL_DURATION,
        default=None,
        meaning="Silence, such as 90d, after which the Node of a machine is deleted, which ends its membership; at least 1h. A "
        "machine whose token says otherwise follows its token.",
        default_note="never",
        parse=parse_silence,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerManagerSettings(NodeControllerSettings):
    """Selection of controllers, and their times. `mooring.controllers.actions` checks the names."""

    heading: ClassVar[str] = "Controllers"

    controllers: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=("*",),
        meaning="Controllers to run: a name runs that controller, * the others too, and -NAME leaves one out; repeatable, or with "
        "commas. Names are those of kube-controller-manager.",
        metavar="NAME,...",
    )
    issuance_log_retention: timedelta | None = setting(
        OPTIONAL_DURATION,
        default=None,
        meaning="Time, such as 365d, after the end of its certificates after which a record of the issuance log is deleted; at "
        "least 30d.",
        default_note="records stay",
        parse=parse_retention,
    )


_ELECTION = duration_within(timedelta(seconds=1), timedelta(hours=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class StandaloneSettings(NodeControllerSettings):
    """Selection, leader election and health. `mooring.controllers.standalonetable` checks the names of controllers."""

    heading: ClassVar[str] = "Controllers against any cluster"

    controllers: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=("*",),
        meaning="Controllers to run: a name runs that controller, * those that do no harm beside the same controller of "
        "kube-controller-manager, and -NAME leaves one out; repeatable, or with commas.",
        metavar="NAME,...",
    )
    leader_elect: bool = setting(
        BOOLEAN,
        default=True,
        meaning="Run the controllers in one process at a time, the one that holds the Lease.",
    )
    leader_elect_resource_namespace: str = setting(
        TEXT, default="kube-system", meaning="Namespace of the Lease.", metavar="NAME"
    )
    leader_elect_resource_name: str = setting(
        TEXT, default="mooring-standalone-controllers", meaning="Name of the Lease.", metavar="NAME"
    )
    leader_elect_lease_duration: timedelta = setting(
        DURATION,
        default=timedelta(seconds=15),
        meaning="Time without a renewal after which another process takes over.",
        parse=_ELECTION,
    )
    leader_elect_renew_deadline: timedelta = setting(
        DURATION,
        default=timedelta(seconds=10),
        meaning="Time without a renewal after which the holder stops its controllers.",
        parse=_ELECTION,
    )
    leader_elect_retry_period: timedelta = setting(
        DURATION, default=timedelta(seconds=2), meaning="Time between two attempts.", parse=_ELECTION
    )
    healthz_bind_address: str = setting(
        TEXT,
        default="127.0.0.1",
        meaning="Address of /healthz and /metrics, over plain http.",
        metavar="ADDRESS",
        parse=parse_bind_address,
    )
    healthz_port: int = setting(
        PORT, default=0, meaning="Port of /healthz and /metrics.", default_note="none is opened"
    )

    def __post_init__(self) -> None:
        """Raise ConfigError unless the retry period is shorter than the deadline, and the deadline shorter than the Lease."""
        if self.leader_elect_renew_deadline >= self.leader_elect_lease_duration:
            raise ConfigError("leader-elect-renew-deadline: it must be shorter than leader-elect-lease-duration")
        if self.leader_elect_retry_period >= self.leader_elect_renew_deadline:
            raise ConfigError("leader-elect-retry-period: it must be shorter than leader-elect-renew-deadline")
