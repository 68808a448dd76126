"""Composition root: builds every part of one server process once, whole, in the order in which the parts depend on each other.

Rules kept here:
* Each group of parts (`mooring.plane.parts`) builds its own, from the foundation and from the groups before it.
* A part gets as arguments what it uses, and nothing is assigned to it afterwards. Nothing is global, and nothing is started here.
* What happens at run time is passed on by events that exist before the parts: `trust_changed`, `credentials_changed`, `stopping`.
"""

from __future__ import annotations

from dataclasses import dataclass

from mooring.plane.encryption import EncryptionMetrics
from mooring.plane.parts.controllers import Controllers
from mooring.plane.parts.foundation import Foundation
from mooring.plane.parts.http import Http
from mooring.plane.parts.metrics import add_metrics
from mooring.plane.parts.monitoring import watch_expiry, watch_snapshots
from mooring.plane.parts.trust import ServedTrust
from mooring.plane.parts.upkeep import Upkeep


@dataclass(frozen=True, slots=True)
class Assembly:
    """The groups of parts of one server process."""

    base: Foundation
    trust: ServedTrust
    controllers: Controllers
    upkeep: Upkeep
    http: Http


def assemble(base: Foundation) -> Assembly:
    """Build the parts of a server over an open registry. Raises ConfigError for settings and files that cannot be used."""
    base.metrics.registry.register(EncryptionMetrics(base.parts.encryption, base.process.identity))
    trust = ServedTrust(base)
    controllers = Controllers(base, trust)
    upkeep = Upkeep(base, trust, controllers)
    http = Http(base, trust, controllers, upkeep)
    add_metrics(base, trust.authentication, controllers.elector, http)
    watch_expiry(upkeep.expiry_watch, http.health, base.metrics)
    if controllers.snapshots is not None:
        watch_snapshots(controllers.snapshots, http.health, base.metrics)
    return Assembly(base, trust, controllers, upkeep, http)
