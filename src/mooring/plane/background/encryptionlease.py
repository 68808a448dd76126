"""A Lease by which one server process says which EncryptionConfiguration it uses, so that a change of keys can wait for it.

Rules kept here:
* The Lease has the hash of the file, and no key. It is written at start, after each change, and every RENEW_SECONDS.
* It is deleted at the end of the process. Those of processes that were killed expire, and are deleted by others; on one machine
  at once, since a change of keys waits for them.
* Failures are logged once and tried again: a store without this Lease still serves.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from contextlib import suppress

from mooring.clock import Clock, rfc3339_micro
from mooring.controllers.actions import Delete
from mooring.errors import MooringError, NotFoundError
from mooring.plane.encryption import EncryptionAtRest
from mooring.plane.wakeups import wait_for_event
from mooring.reconcile.registryapi import RegistryApi
from mooring.reminders import LastingProblem
from mooring.trust.encryption import keychange
from mooring.trust.encryption.keychange import HASH_ANNOTATION, RELOAD_ANNOTATION, SERVER_LABEL

RENEW_SECONDS = 30.0
LEASE_SECONDS = 90
"""Time after which a process that does not renew is taken to have ended: two renewals may be late."""
DELETE_SECONDS = 2.0
"""Time for the deletion at the end."""
NAMESPACE = "kube-system"
PLURAL = "leases"

log = logging.getLogger("mooring.server")


class EncryptionLease:
    """Lease of one process."""

    def __init__(
        self,
        encryption: EncryptionAtRest,
        api: RegistryApi,
        clock: Clock,
        identity: str,
        is_gone: Callable[[str], bool],
    ) -> None:
        self._encryption = encryption
        self._api = api
        self._clock = clock
        self._identity = identity
        self._is_gone = is_gone
        self._name = f"mooring-encryption-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
        self._problem = LastingProblem(log.warning, f"the Lease {NAMESPACE}/{self._name} was not written: %s")

    async def run(self) -> None:
        """Keep the Lease until cancelled; do nothing without a file."""
        if not self._encryption.configured:
            return
        try:
            while True:
                self._encryption.changed.clear()
                await self._try_to_renew()
                await wait_for_event(self._encryption.changed, self._clock.sleep(RENEW_SECONDS))
        finally:
            with suppress(Exception):
                await asyncio.wait_for(self._delete_own(), DELETE_SECONDS)

    async def _try_to_renew(self) -> None:
        problem = ""
        try:
            await self._renew()
            await self._delete_abandoned()
        except MooringError as error:
            problem = str(error)
        self._problem.note(problem)

    async def _renew(self) -> None:
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": rfc3339_micro(self._clock.now()),
        }
        notes = {
            HASH_ANNOTATION: self._encryption.config_hash,
            RELOAD_ANNOTATION: "true" if self._encryption.reloads else "false",
        }
        metadata = {"labels": {SERVER_LABEL: "server"}, "annotations": notes}
        try:
            current = await self._api.get(PLURAL, NAMESPACE, self._name)
        except NotFoundError:
            await self._api.create(
                PLURAL, {"metadata": {"name": self._name, "namespace": NAMESPACE, **metadata}, "spec": spec}
            )
            return
        await self._api.update(
            PLURAL, {**current, "metadata": {**current["metadata"], **metadata}, "spec": {**current["spec"], **spec}}
        )

    async def _delete_abandoned(self) -> None:
        for lease in keychange.abandoned(self._api.views[PLURAL].list(NAMESPACE), self._clock.now(), self._is_gone):
            await self._api.delete(Delete.of(PLURAL, lease))

    async def _delete_own(self) -> None:
        lease = self._api.views[PLURAL].get(self._name, NAMESPACE)
        if lease is not None:
            await self._api.delete(Delete.of(PLURAL, lease))
