"""Every controller, as an explicit table (law 10): a pure plan each, run by the one loop of `mooring.reconcile`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType

from mooring.controllers.actions import Controller
from mooring.pki.authority import Authority
from mooring.pki.profiles import SIGNING_DURATION


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """What controllers are built from."""

    authority: Authority
    root_ca_pem: bytes
    signing_duration: timedelta = SIGNING_DURATION


CONTROLLERS: Mapping[str, Callable[[ControllerSettings], Controller]] = MappingProxyType({})


def build(settings: ControllerSettings) -> tuple[Controller, ...]:
    """All controllers, in order."""
    return tuple(make(settings) for make in CONTROLLERS.values())
