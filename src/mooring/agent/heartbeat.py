"""Heartbeat of a member: renews its Lease in kube-node-lease and refreshes its Node's status.

Rules kept here (kubelet's node lease controller and `nodeStatusReportFrequency`):
* The Lease has the name of the node, is renewed every 10 s, and lasts 40 s.
* The Node's status is refreshed every 5 minutes, and within 10 s after the address of the machine has changed, as by a kubelet
  without `--node-ip`. A Lease that was deleted alone is created again. A Node that was deleted ends the heartbeat, unless a deleted
  Node is to be registered again; its Lease is deleted with it, so that this is known within 10 s.
* 401 for 20 s ends the heartbeat: the certificate is not accepted any more.
* While another program keeps the Node fresh, neither Node nor Lease is written, and the Node is read again every minute. A Lease
  that another program renewed causes the Node to be read at once.
* A request that fails is repeated after 0.2 s, doubled up to 7 s (kubelet's back-off). Every failure is logged once, and so is the
  recovery.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NoReturn

from mooring.agent import node, registration
from mooring.agent.steps import described
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.clock import rfc3339_micro
from mooring.errors import AlreadyExistsError, ConflictError, MooringError, NotFoundError, UnauthorizedError

log = logging.getLogger("mooring.agent")

RENEW_SECONDS = 10.0
LEASE_SECONDS = 40
STATUS_SECONDS = 300.0
SILENCE = timedelta(seconds=LEASE_SECONDS)
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 7.0
REFUSED_SECONDS = 20.0
"""Seconds for which a server may answer 401 to a valid certificate: it was restarted and fills its caches."""
RECORD_SECONDS = 600.0
"""Seconds between two reports of an answered heartbeat: each is a write to a disk that may be a memory card."""
KEPT_SECONDS = 60.0
"""Seconds between two reads of a Node that another program keeps fresh."""


class Heartbeat:
    """Heartbeat of one member."""

    def __init__(
        self,
        client: ClusterClient,
        machine: node.Machine,
        register_node: str = "",
        *,
        known_uid: Callable[[], str] = lambda: "",
        on_registered: Callable[[str], None] = lambda uid: None,
        on_answered: Callable[[datetime], None] = lambda moment: None,
        on_alone: Callable[[], None] = lambda: None,
        chosen: Callable[[node.Machine], node.Machine] = lambda machine: machine,
        locate: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        """`locate` returns the address of this machine now, "" while it has none; None for one that was chosen.

        `known_uid` returns the uid of the Node that this machine registered, `on_registered` is called with it.

        `on_answered` is called with the time of the last heartbeat that was answered: every RECORD_SECONDS, and at the end.

        `on_alone` is called when no other program keeps the Node: after the first answer, and after the other one is gone.

        `chosen` returns the machine with what was chosen for its Node since the heartbeat began.
        """
        self._client = client
        self._machine = machine
        self._register_node = register_node
        self._known_uid = known_uid
        self._on_registered = on_registered
        self._on_answered = on_answered
        self._on_alone = on_alone
        self._chosen = chosen
        self._locate = locate
        self._is_kept = False
        self._refused_since: float | None = None
        self._lease: Obj | None = None
        self._node: Obj | None = None
        self._refreshed = -STATUS_SECONDS
        self._renewed = client.clock.now()
        self._answered: datetime | None = None
        self._reported = -RECORD_SECONDS

    @property
    def may_be_kept(self) -> bool:
        """True while another program, such as a kubelet, keeps the Node, and until the first answer."""
        return self._is_kept or self._answered is None

    async def run(self) -> NoReturn:
        """Renew and refresh until cancelled. Raises NodeDeletedError, CertificateRefusedError."""
        try:
            await self._beat()
        finally:
            if self._answered is not None:
                self._on_answered(self._answered)

    async def _beat(self) -> NoReturn:
        clock = self._client.clock
        pause = FIRST_PAUSE
        is_alone = False
        while True:
            try:
                await self._follow_address()
                due = clock.monotonic() - self._refreshed >= STATUS_SECONDS
                # After a silence longer than the Lease, by the wall clock because a suspended machine has no other,
                # the status comes before the Lease: the control plane may have set it to Unknown.
                if due or self._node is None or clock.now() - self._renewed > SILENCE:
                    await self.refresh()
                await self.renew()
            except registration.NodeKeptError as error:
                if not self._is_kept:
                    log.warning("no heartbeat while another program gives it: %s", error)
                # Both are read again: the other program changes them meanwhile.
                self._is_kept, self._node, self._lease = True, None, None
                is_alone = False
                await clock.sleep(KEPT_SECONDS)
                continue
            except registration.MembershipEndedError:
                raise
            except MooringError as error:
                self._check_refusal(error)
                if pause == FIRST_PAUSE:
                    log.warning("no heartbeat, trying again: %s", described(error))
                await clock.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
                continue
            self._refused_since = None
            if self._is_kept or pause != FIRST_PAUSE:
                log.info("heartbeat is back")
                self._is_kept, pause = False, FIRST_PAUSE
            if not is_alone:
                is_alone = True
                self._on_alone()
            await clock.sleep(RENEW_SECONDS)

    async def _follow_address(self) -> None:
        """Have the Node refreshed when this machine has another address. One that it does not have may be another machine's."""
        address = "" if self._locate is None else await self._locate()
        if address and address != self._machine.address:
            log.info("the address of this machine is %s now, and was %s", address, self._machine.address or "not known")
            self._machine = replace(self._machine, address=address)
            self._refreshed = -STATUS_SECONDS

    async def refresh(self) -> None:
        """Update the Node, or create it. Raises NodeKeptError, ApiError, PeerError."""
        kind = await registration.choose(self._client, self._register_node)
        machine = replace(self._chosen(self._machine), ready=kind == registration.READY)
        self._node = await node.register(self._client, machine, first=self._lease is None, uid=self._known_uid())
        self._on_registered(self._node["metadata"]["uid"])
        self._refreshed = self._client.clock.monotonic()

    def _check_refusal(self, error: MooringError) -> None:
        """Raise CertificateRefusedError when the server has answered 401 for REFUSED_SECONDS."""
        if not isinstance(error, UnauthorizedError):
            self._refused_since = None
            return
        now = self._client.clock.monotonic()
        if self._refused_since is None:
            self._refused_since = now
        elif now - self._refused_since >= REFUSED_SECONDS:
            raise registration.CertificateRefusedError(self._machine.name, error.audit_id) from error

    async def renew(self) -> None:
        """Renew the Lease, or create it. Raises NodeKeptError, ApiError, PeerError."""
        try:
            self._lease = await self._write_lease()
        except (ConflictError, NotFoundError, AlreadyExistsError):
            # Changed or deleted by another program: it is read again, unless that program keeps the Node.
            self._lease = None
            await self.refresh()
            self._lease = await self._write_lease()
        self._renewed = self._answered = self._client.clock.now()
        monotonic = self._client.clock.monotonic()
        if monotonic - self._reported >= RECORD_SECONDS:
            self._reported = monotonic
            self._on_answered(self._renewed)

    async def _write_lease(self) -> Obj:
        name = self._machine.name
        if self._lease is None:
            try:
                self._lease = await self._client.get("leases", name, node.LEASES)
            except NotFoundError:
                return await self._client.create("leases", self._lease_object({"name": name, "namespace": node.LEASES}))
        return await self._client.update("leases", self._lease_object(self._lease["metadata"]))

    def _lease_object(self, metadata: Obj) -> Obj:
        metadata = dict(metadata)
        if self._node is not None:
            # The Node owns the Lease, so that both are deleted together.
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
