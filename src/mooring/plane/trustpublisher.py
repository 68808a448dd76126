"""Publication of the CAs in force: in TLS handshakes, for joining machines and Pods, and for extension API servers.

Rules kept here:
* Files of certificates change while the server runs. Each change sets an event, and the publisher brings every place up to date.
* A failed write is logged. It is repeated when a certificate changes again, and at the next start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from mooring.api.kind import Change
from mooring.apimachinery.schema import Obj
from mooring.clock import Clock
from mooring.controllers.certificates.nameevidence import with_former_names
from mooring.errors import MooringError
from mooring.pki.rootca import RootCa
from mooring.pki.x509.clientissuers import IssuingCas
from mooring.plane.configmaps import publish
from mooring.plane.firstboot import SYSTEM_USER, FirstBoot
from mooring.plane.serving.context import ServingContext
from mooring.reconcile.loop import Reconciler
from mooring.registry.store import Registry
from mooring.trust.discovery import clusterinfo

log = logging.getLogger("mooring.plane")

USERS_OF_ROOT_CA = (
    "root-ca-certificate-publisher-controller",
    "kube-apiserver-serving-clustertrustbundle-publisher-controller",
    "serviceaccount-token-controller",
)
"""Controllers that write the CAs of the serving certificate into objects."""


class TrustPublisher:
    """Publishes the CAs of one server."""

    def __init__(
        self,
        changed: asyncio.Event,
        context: ServingContext,
        root_ca: RootCa,
        ca: IssuingCas,
        client_cas: Callable[[], Obj],
        serving_names: Callable[[], Obj],
        registry: Registry,
        first_boot: FirstBoot,
        reconciler: Reconciler,
        clock: Clock,
    ) -> None:
        """`changed` is set after each change of a CA or of the serving certificate.

        `client_cas` returns the ConfigMap that extension API servers read, `serving_names` the one with the names of this server.
        """
        self._changed = changed
        self._context = context
        self._root_ca = root_ca
        self._ca = ca
        self._published = (root_ca.pem, ca.trusted, ca.superseded)
        self._client_cas = client_cas
        self._serving_names = serving_names
        self._registry = registry
        self._first_boot = first_boot
        self._reconciler = reconciler
        self._clock = clock

    async def publish_client_cas(self) -> None:
        """Bring the ConfigMap for extension API servers up to date; leave it while it cannot be read. Raises ApiError or
        StorageError."""
        await self._publish(self._client_cas())

    async def publish_serving_names(self) -> None:
        """Publish the names of the serving certificate, which other servers reserve. Raises ApiError or StorageError.

        Names of a certificate that was replaced stay until it ends.
        """
        wanted = self._serving_names()
        stored = self._registry.views["configmaps"].get(wanted["metadata"]["name"], wanted["metadata"]["namespace"])
        await self._publish(with_former_names(wanted, stored, self._clock.now()))

    async def _publish(self, wanted: Obj) -> None:
        if self._registry.views["configmaps"].problem(wanted["metadata"]["name"], wanted["metadata"]["namespace"]):
            return
        change = Change(SYSTEM_USER, self._clock.now(), writer="trust-publisher")
        await publish(self._registry, wanted, change)

    async def run(self) -> None:
        """Publish after every change, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            self._context.renew()
            if self._published != (newest := (self._root_ca.pem, self._ca.trusted, self._ca.superseded)):
                self._published = newest
                self._reconciler.plan_again(*USERS_OF_ROOT_CA)
                await self._log_failure(self._first_boot.publish_cluster_info(), clusterinfo.NAME)
            await self._log_failure(self.publish_serving_names(), "of the names of this server")
            await self._log_failure(self.publish_client_cas(), "extension-apiserver-authentication")

    async def _log_failure(self, publication: Coroutine[Any, Any, None], name: str) -> None:
        try:
            await publication
        except MooringError as error:
            log.error("the ConfigMap %s could not be brought up to date: %s", name, error)
