"""The control loop over an in-memory registry.

Rules kept here: nothing waits in real time. `until` runs every coroutine that can run without time passing, and fails when the
condition does not become true.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from mooring.controllers.actions import Controller
from mooring.controllers.table import ControllerSettings, build
from mooring.pki.pem import RootCa
from mooring.reconcile.clusterapi import ClusterApi
from mooring.reconcile.leaderelection import FencedApi
from mooring.reconcile.loop import Reconciler
from mooring.reconcile.registryapi import RegistryApi
from mooring.reconcile.resolver import ResolveNames
from mooring.settings.signing import SIGNING_DURATION
from tests.support.manualclock import EPOCH, settle
from tests.support.registryroom import Room, counting_entropy, masters_only
from tests.support.testca import ThrowawayCA

CA = ThrowawayCA(now=EPOCH)
TURNS = 500
"""Rounds of the loop after which `until` fails; no test needs nearly as many."""


def controllers(*names: str) -> list[Controller]:
    """Build all controllers, or those named."""
    built = build(
        ControllerSettings(
            authority_for=CA.cluster_ca.for_signer,
            root_ca=RootCa(CA.certificate_pem),
            signing_duration=SIGNING_DURATION,
        )
    )
    return [controller for controller in built if not names or controller.name in names]


async def until(condition: Callable[[], bool], why: str = "") -> None:
    for _ in range(TURNS):
        if condition():
            return
        await settle()
    raise AssertionError(f"did not come about: {why or condition}")


def api_of(room: Room) -> RegistryApi:
    return RegistryApi(room.registry, masters_only, room.clock)


@asynccontextmanager
async def running(
    room: Room,
    which: Sequence[Controller],
    api: ClusterApi | None = None,
    workers: int = 4,
    resolve: ResolveNames | None = None,
) -> AsyncIterator[Reconciler]:
    """Run the loop until the block ends; it has listed every kind before the block begins."""
    fenced = FencedApi(api or api_of(room), lambda: True)
    reconciler = Reconciler(which, fenced, room.clock, counting_entropy(), workers, resolve)
    task = asyncio.ensure_future(reconciler.run())
    await settle()
    try:
        yield reconciler
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def exists(room: Room, plural: str, name: str, namespace: str = "") -> bool:
    return room.registry.views[plural].get(name, namespace) is not None
