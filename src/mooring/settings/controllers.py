"""Settings of the controllers that run in a server."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from mooring.settings.checks import duration_within
from mooring.settings.declaration import Settings, setting
from mooring.settings.valuetypes import COMMA_SEPARATED, DURATION

parse_grace_period = duration_within(timedelta(seconds=10), timedelta(hours=24))
"""A node renews its Lease every ten seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerManagerSettings(Settings):
    """Selection of controllers, and their times. `mooring.controllers.actions` checks the names."""

    heading: ClassVar[str] = "Controllers"

    controllers: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=("*",),
        meaning="Controllers to run: a name runs that controller, * the others too, and -NAME leaves one out; repeatable, or with "
        "commas. Names are those of kube-controller-manager.",
        metavar="NAME,...",
    )
    node_monitor_grace_period: timedelta = setting(
        DURATION,
        default=timedelta(seconds=50),
        meaning="Time without a renewed Lease and without a status after which the conditions of a Node become Unknown.",
        parse=parse_grace_period,
    )
