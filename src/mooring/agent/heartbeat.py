"""The heartbeat of a member: its Lease in kube-node-lease, and its Node's status.

Rules kept here (kubelet's node lease controller and `nodeStatusReportFrequency`):
* The Lease is named after the node, renewed every 10 s, lasts 40 s, and is owned by the Node, so that it goes with it.
* The Node's status is refreshed every 5 minutes; a Node or Lease that somebody deleted is made again, both at once when the
  Lease went with its Node.
* A server that is away is asked again after 0.2 s doubled up to 7 s (kubelet's back-off); nothing is lost, as a renewal is a
  state, not an event. Every failure is told once, and so is the recovery.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NoReturn

from mooring.agent import node
from mooring.client.cluster import ClusterClient
from mooring.clock import rfc3339_micro
from mooring.errors import AlreadyExistsError, ConflictError, MooringError, NotFoundError
from mooring.wire.schema import Obj

log = logging.getLogger("mooring.agent")

NAMESPACE = "kube-node-lease"
RENEW_SECONDS = 10.0
LEASE_SECONDS = 40
STATUS_SECONDS = 300.0
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 7.0


class Heartbeat:
    """Keeps one member's Lease and Node fresh."""

    def __init__(self, client: ClusterClient, machine: node.Machine) -> None:
        self._client = client
        self._machine = machine
        self._lease: Obj | None = None
        self._node: Obj | None = None
        self.renewals = 0

    async def run(self) -> NoReturn:
        """Beat until cancelled."""
        clock = self._client.clock
        refreshed = -STATUS_SECONDS
        pause = FIRST_PAUSE
        while True:
            try:
                if clock.monotonic() - refreshed >= STATUS_SECONDS or self._node is None:
                    await self.refresh()
                    refreshed = clock.monotonic()
                await self.renew()
            except MooringError as error:
                if pause == FIRST_PAUSE:
                    log.warning("no heartbeat: %s; trying again", error)
                await clock.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
                continue
            if pause != FIRST_PAUSE:
                log.info("heartbeat is back")
                pause = FIRST_PAUSE
            await clock.sleep(RENEW_SECONDS)

    async def refresh(self) -> None:
        """Bring the Node up to date; make it if it is not there. Raises ApiError, PeerError."""
        try:
            if self._node is None:
                raise NotFoundError("not registered by this process yet")
            self._node = await node.refresh(self._client, self._machine, self._node)
        except NotFoundError:
            self._node = await node.register(self._client, self._machine)

    async def renew(self) -> None:
        """Renew the Lease; make it if it is not there. Raises ApiError, PeerError."""
        try:
            self._lease = await self._written()
        except (ConflictError, NotFoundError, AlreadyExistsError):
            self._lease = None  # changed or deleted by somebody: read it anew
            self._lease = await self._written()
        self.renewals += 1

    async def _written(self) -> Obj:
        name = self._machine.name
        if self._lease is None:
            try:
                self._lease = await self._client.get("leases", name, NAMESPACE)
            except NotFoundError:
                if self.renewals:
                    await self.refresh()  # it may have gone with its Node: a new one owned by the old Node would go too
                return await self._client.create("leases", self._wanted({"name": name, "namespace": NAMESPACE}))
        return await self._client.update("leases", self._wanted(self._lease["metadata"]))

    def _wanted(self, metadata: Obj) -> Obj:
        metadata = dict(metadata)
        if self._node is not None:
            metadata["ownerReferences"] = [
                {
                    "kind": "Node",
                    "apiVersion": "v1",
                    "name": self._machine.name,
                    "uid": self._node["metadata"]["uid"],
                }
            ]
        return {
            "kind": "Lease",
            "apiVersion": "coordination.k8s.io/v1",
            "metadata": metadata,
            "spec": {
                "holderIdentity": self._machine.name,
                "leaseDurationSeconds": LEASE_SECONDS,
                "renewTime": rfc3339_micro(self._client.clock.now()),
            },
        }


async def beat_until(stopping: asyncio.Event, heartbeat: Heartbeat) -> None:
    """Run `heartbeat` until `stopping` is set. Raises what broke it."""
    beating = asyncio.create_task(heartbeat.run())
    stopped = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait((beating, stopped), return_when=asyncio.FIRST_COMPLETED)
        if beating.done():
            beating.result()
    finally:
        for task in (beating, stopped):
            task.cancel()
        await asyncio.gather(beating, stopped, return_exceptions=True)
