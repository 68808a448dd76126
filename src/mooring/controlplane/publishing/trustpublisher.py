"""Publication of the CAs in force: in TLS handshakes, for joining machines and Pods, and for extension API servers.

Rules kept here:
* Files of certificates change while the server runs. Each change sets an event, and the publisher brings every place up to date.
* A failed write is logged, and repeated every REPEAT_SECONDS until it succeeds.
* A machine that got a certificate for one of these names before is a warning in the log: it may pass as this server until its end.
* An edit of cluster-info is looked at within a second: the CAs of the cluster in it follow, and the log says what it did.
* The record of this server's names is written again when it was deleted, or when an edit took out what is in the certificate: other
  servers reserve the names that are in it. Workers of one server have one record, so that none takes out what another one wrote.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from contextlib import AsyncExitStack
from itertools import islice
from typing import Any

from mooring.api.kind import Change
from mooring.api.kinds import BY_PLURAL
from mooring.apimachinery.options import ListOptions
from mooring.apimachinery.schema import Obj
from mooring.apimachinery.selectors import parse_field_selector
from mooring.clock import Clock
from mooring.controllers.certificates.sanpolicy.evidence import (
    Conflict,
    conflicts,
    published_names,
    reserves,
    with_former_names,
)
from mooring.controlplane.maintenance import wait_for_event
from mooring.controlplane.publishing.configmaps import publish
from mooring.controlplane.publishing.firstboot import FirstBoot
from mooring.controlplane.servingcertificate import ServingContext
from mooring.errors import MooringError
from mooring.identity import API_SERVER_USER
from mooring.pki.pem import RootCa
from mooring.pki.x509.canonicalnames import Name
from mooring.pki.x509.clusterca import ClientCertificateIssuers
from mooring.reconcile.loop import Reconciler
from mooring.registry.cache.events import Event
from mooring.registry.store import Registry
from mooring.trust.discovery import clusterinfo
from mooring.trust.discovery.editedclusterinfo import is_new_edit

log = logging.getLogger("mooring.controlplane")

REPEAT_SECONDS = 60.0
MAX_WARNINGS = 16
"""Machines with certificates for names of this server that the log names."""
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
        ca: ClientCertificateIssuers,
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
        self._conflicts: frozenset[Conflict] = frozenset()
        self._logged: dict[tuple[str, str], str] = {}
        self._is_edited = False

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
        await self._publish(with_former_names(wanted, stored, self._clock.now()), keep_edits=False)
        # A certificate from now on is judged by what is published.
        await self._registry.reader.fresh()
        self._warn_of_conflicts(published_names(wanted))

    def _warn_of_conflicts(self, names: Collection[Name]) -> None:
        """Log the machines that have certificates for names of this server, each once."""
        found = frozenset(islice(conflicts(names, self._registry.views, self._clock.now()), MAX_WARNINGS))
        for conflict in sorted(found - self._conflicts, key=lambda one: one.node):
            log.warning("%s. mooring certs list names the certificates", conflict)
        # One that has ended is named again when it comes back.
        self._conflicts = found

    async def _publish(self, wanted: Obj, *, keep_edits: bool = True) -> None:
        if self._registry.views["configmaps"].problem(wanted["metadata"]["name"], wanted["metadata"]["namespace"]):
            return
        change = Change(API_SERVER_USER, self._clock.now(), writer="trust-publisher")
        await publish(self._registry, wanted, change, keep_edits=keep_edits, logged=self._logged)

    async def run(self) -> None:
        """Publish after every change, until cancelled."""
        metadata = self._serving_names()["metadata"]
        watched = (
            (metadata["namespace"], metadata["name"], self._compare),
            (clusterinfo.NAMESPACE, clusterinfo.NAME, self._compare_cluster_info),
        )
        async with AsyncExitStack() as watches:
            for namespace, name, compare in watched:
                options = ListOptions(watch=True, field_selector=parse_field_selector(f"metadata.name={name}"))
                watch = await self._registry.reader.watch(
                    BY_PLURAL["configmaps"], namespace, options, compare, readable_only=True
                )
                watches.callback(watch.close)
                await watch.replay()
            await self._publish_changes()

    def _compare(self, event: Event) -> None:
        if event.type == "DELETED" or not reserves(event.obj, self._serving_names()):
            self._changed.set()

    def _compare_cluster_info(self, event: Event) -> None:
        # What another server wrote is left, so that servers with different settings do not write in turns.
        if event.type != "DELETED" and is_new_edit(event.obj):
            self._is_edited = True
            self._changed.set()

    async def _publish_changes(self) -> None:
        due: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {}
        while True:
            await (wait_for_event(self._changed, self._clock.sleep(REPEAT_SECONDS)) if due else self._changed.wait())
            if self._changed.is_set():
                self._changed.clear()
                self._context.renew()
                if self._is_edited:
                    self._is_edited = False
                    due[clusterinfo.NAME] = self._first_boot.publish_cluster_info
                if self._published != (newest := (self._root_ca.pem, self._ca.trusted, self._ca.superseded)):
                    self._published = newest
                    self._reconciler.plan_again(*USERS_OF_ROOT_CA)
                    due[clusterinfo.NAME] = self._first_boot.publish_cluster_info
                due["of the names of this server"] = self.publish_serving_names
                due["extension-apiserver-authentication"] = self.publish_client_cas
            for name, publication in list(due.items()):
                try:
                    await publication()
                    del due[name]
                except MooringError as error:
                    log.error("the ConfigMap %s could not be brought up to date: %s", name, error)
