"""First boot: the objects that every cluster has, and the token of a first start."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from mooring.api.kind import Change, Kind
from mooring.api.kinds import BY_PLURAL
from mooring.apimachinery.options import DeleteOptions, ListOptions, WriteOptions
from mooring.apimachinery.schema import Obj
from mooring.authz.rbac.bootstrappolicy import default_policy, join_request_policy, k3s_policy, kubeadm_policy
from mooring.authz.rbac.escalation import reconcile
from mooring.clock import Clock
from mooring.controlplane.configuration import ServerConfig
from mooring.controlplane.publishing.configmaps import publish
from mooring.errors import AlreadyExistsError, ApiError, ConflictError, MooringError, NotFoundError
from mooring.identity import API_SERVER_USER
from mooring.pki.pem import RootCa
from mooring.pki.x509.bundles import certificates
from mooring.pki.x509.clusterca import ClientCertificateIssuers
from mooring.registry.store import Registry
from mooring.reminders import LastingProblem
from mooring.server.endpoints.discovery import KUBERNETES_VERSION
from mooring.settings.network import NetworkSettings
from mooring.settings.nodes import NodeSettings
from mooring.trust import kubeadmconfig
from mooring.trust.bootstraptoken import tokensecret
from mooring.trust.bootstraptoken.token import BootstrapToken
from mooring.trust.bootstraptoken.tokensecret import NAMESPACE, new_record
from mooring.trust.discovery import clusterinfo
from mooring.trust.discovery.clusterinfo import KUBECONFIG_KEY
from mooring.trust.discovery.editedclusterinfo import (
    PUBLISHED_CAS,
    PublishedCas,
    credentials_in,
    misses,
    rollover_obstacle,
    usable_problem,
)
from mooring.trust.discovery.pins import pin_of

# First boot: the objects that every cluster has, written through the registry like those of clients (law 6).
#
# Rules kept here:
# * Every step reads first and changes only objects that are missing or out of date. Any number of starts, and several servers that
#   start at once, end in the same state.
# * The RBAC default policy is reconciled at each start, additively (docs/protocol/rbac.md#default-roles); kubeadm's objects
#   (docs/protocol/kubeadm-init.md) are created when missing and left alone afterwards, because administrators edit them.
# * While objects cannot be read, because a KMS plugin does not answer, what depends on them is left out. The server starts, and
#   `complete` repeats the first boot once they can be read.
# * cluster-info, kubeadm-config and kubelet-config follow this server's settings until an administrator edits them
#   (`mooring.controlplane.publishing.configmaps`).

SYSTEM_NAMESPACES = ("kube-system", "kube-public", "kube-node-lease", "default")
RETRY_SECONDS = 5.0
"""Seconds between two looks whether everything can be read; a KMS plugin that failed is asked every 3 seconds."""
log = logging.getLogger("mooring")
_PLURALS = {kind.resource.kind: kind for kind in BY_PLURAL.values()}


class FirstBoot:
    """Creates and updates the objects of the cluster itself."""

    def __init__(
        self, registry: Registry, clock: Clock, config: ServerConfig, root_ca: RootCa, ca: ClientCertificateIssuers
    ) -> None:
        """`root_ca`: CAs that verify the serving certificate; `ca`: the CA that signs client certificates."""
        self._registry = registry
        self._clock = clock
        self._config = config
        self._root_ca = root_ca
        self._ca = ca
        self._is_complete = False
        self._logged: dict[tuple[str, str], str] = {}

    async def complete(self) -> None:
        """Run again once everything can be read, unless nothing was left out. A failure is logged once, and tried again."""
        problem = LastingProblem(log.error, "the objects of the cluster could not be brought up to date: %s")
        while not self._is_complete:
            await self._clock.sleep(RETRY_SECONDS)
            if self._registry.cache.unreadable:
                continue
            try:
                await self.run()
            except MooringError as error:
                problem.note(str(error))

    async def run(self) -> None:
        """Create or update every object; idempotent. Raises ApiError or StorageError, unless objects cannot be read."""
        try:
            await self._run()
            self._is_complete = True
        except MooringError as error:
            if not self._registry.cache.unreadable:
                raise
            log.error(
                "the server starts without bringing the objects of the cluster up to date, until they can be read: %s",
                error,
            )

    async def _run(self) -> None:
        # Namespaces first: objects of the later steps are in them.
        namespaces = BY_PLURAL["namespaces"]
        await _concurrently(
            self._create(namespaces, {"metadata": {"name": name}})
            for name in SYSTEM_NAMESPACES
            if self._registry.views["namespaces"].get(name) is None
        )
        await _concurrently(self._reconcile(wanted) for wanted in default_policy())
        await _concurrently(
            self._create(kind, wanted)
            for wanted in (*kubeadm_policy(), *k3s_policy())
            if self._existing(kind := _PLURALS[wanted["kind"]], wanted) is None
        )
        for wanted in join_request_policy():
            kind = _PLURALS[wanted["kind"]]
            existing = self._existing(kind, wanted)
            if self._config[NodeSettings].join_requests and existing is None:
                await self._create(kind, wanted)
            elif existing is not None and not self._config[NodeSettings].join_requests:
                with suppress(NotFoundError):
                    await self._registry.writer.delete(
                        kind, "", wanted["metadata"]["name"], DeleteOptions(), self._change()
                    )
        await _concurrently(self._config_maps())

    async def create_token(self, record: tokensecret.TokenRecord) -> None:
        """Store a bootstrap token, and replace one with the same id, as kubeadm does."""
        kind = BY_PLURAL["secrets"]
        secret = tokensecret.to_secret(record)
        try:
            await self._registry.writer.create(kind, tokensecret.NAMESPACE, secret, self._change(), WriteOptions())
        except AlreadyExistsError:
            await self._registry.writer.update(
                kind, tokensecret.NAMESPACE, secret["metadata"]["name"], secret, self._change(), WriteOptions()
            )

    def _change(self) -> Change:
        return Change(API_SERVER_USER, self._clock.now(), writer="first-boot")

    def _existing(self, kind: Kind, wanted: Obj) -> Obj | None:
        metadata = wanted["metadata"]
        return self._registry.views[kind.resource.plural].get(metadata["name"], metadata.get("namespace", ""))

    async def _create(self, kind: Kind, obj: Obj) -> None:
        try:
            await self._registry.writer.create(
                kind, obj["metadata"].get("namespace", ""), obj, self._change(), WriteOptions()
            )
        except AlreadyExistsError:
            # Another server that starts at the same time was faster.
            return

    async def _reconcile(self, wanted: Obj) -> None:
        kind = _PLURALS[wanted["kind"]]
        existing = self._existing(kind, wanted)
        changed = reconcile(existing, wanted)
        if changed is None:
            return
        metadata = wanted["metadata"]
        namespace, name = metadata.get("namespace", ""), metadata["name"]
        try:
            if existing is None:
                await self._create(kind, changed)
            elif changed["metadata"].get("uid"):
                await self._registry.writer.update(kind, namespace, name, changed, self._change(), WriteOptions())
            else:
                # roleRef cannot be changed: the binding is replaced.
                await self._registry.writer.delete(kind, namespace, name, DeleteOptions(), self._change())
                await self._create(kind, changed)
        except (ConflictError, NotFoundError):
            # Another server reconciles the same object to the same end. What it wrote is the same.
            return

    async def _cluster_info(self) -> Obj:
        if (namespace := self._registry.views["namespaces"].get(tokensecret.NAMESPACE)) is None:
            # Another server made it just now.
            namespace = (await self._registry.reader.get(BY_PLURAL["namespaces"], "", tokensecret.NAMESPACE)).obj
        first, *others = (endpoint.url for endpoint in self._config.endpoints)
        return clusterinfo.config_map(
            first,
            self._root_ca.pem,
            others=others,
            client_ca_pem=self._ca.trusted_pem,
            superseded=map(pin_of, self._ca.superseded),
            cluster_id=namespace["metadata"]["uid"],
        )

    async def publish_cluster_info(self) -> None:
        """Bring cluster-info up to date, and its signatures with it, which are of the text. Raises ApiError or StorageError."""

        def signed(config_map: Obj) -> Obj:
            tokens = self._registry.views["secrets"].list(tokensecret.NAMESPACE)
            return clusterinfo.signed(config_map, tokens, self._clock.now()) or config_map

        stored = self._stored_cluster_info()
        ended = (*self._ca.retired, *self._ca.distrusted)
        cas = PublishedCas.of(stored, self._root_ca.pem, self._ca.trusted, ended)
        wanted = await self._cluster_info()
        wanted["metadata"]["annotations"] = {PUBLISHED_CAS: cas.annotation()}
        follow = {KUBECONFIG_KEY: cas.follow}
        if await publish(self._registry, wanted, self._change(), signed, follow=follow, logged=self._logged):
            self._warn_of_edit(self._stored_cluster_info() or wanted)

    def _stored_cluster_info(self) -> Obj | None:
        return self._registry.views["configmaps"].get(clusterinfo.NAME, clusterinfo.NAMESPACE)

    def _warn_of_edit(self, config_map: Obj) -> None:
        """Log what an edit did to cluster-info, without its secrets."""
        if problem := usable_problem(config_map):
            log.warning("no machine can join by the edited cluster-info: %s", problem)
        if credentials := credentials_in(config_map):
            log.warning(
                "cluster-info is public, and anonymous callers read the credentials in it: %s; remove them, and end them",
                "; ".join(credentials),
            )

    async def join_obstacles(self, leaving: str, staying: str, name: str) -> tuple[str, ...]:
        """Return why machines could not join once the CA with the pin `leaving` is trusted no more.

        `staying` is the pin of the other CA, `name` what it is called. Judged by what is stored now. Raises StorageError.
        """
        cas = {str(pin_of(ca)): ca for ca in self._ca.trusted}
        ended = [str(pin_of(ca)) for ca in (*self._ca.retired, *self._ca.distrusted)]
        gone, stays = cas.get(leaving), cas.get(staying)
        if gone is None or stays is None:
            return ("this process has not read both CAs from the data directory yet",)
        if self._root_ca.pem and misses(certificates(self._root_ca.pem), gone, stays):
            return (
                f"root-ca-file does not hold the {name} CA: append pki/rollover/{name}.crt of the data directory to it",
            )
        try:
            # An edit since the last phase follows first.
            await self.publish_cluster_info()
            found = await self._registry.reader.get(_PLURALS["ConfigMap"], clusterinfo.NAMESPACE, clusterinfo.NAME)
        except NotFoundError:
            return (rollover_obstacle(None, gone, stays, ended, name),)
        except ApiError as error:
            return (f"the ConfigMap {clusterinfo.NAMESPACE}/{clusterinfo.NAME} cannot be read or written: {error}",)
        obstacle = rollover_obstacle(found.obj, gone, stays, ended, name)
        return (obstacle,) if obstacle else ()

    def _config_maps(self) -> Iterable[Coroutine[Any, Any, object]]:
        services = self._config[NetworkSettings].service_cluster_ip_range
        yield self.publish_cluster_info()
        for wanted in (
            kubeadmconfig.kubeadm_config(str(self._config.endpoints[0]), KUBERNETES_VERSION, services),
            kubeadmconfig.kubelet_config(services),
        ):
            yield publish(self._registry, wanted, self._change(), logged=self._logged)


async def _concurrently(steps: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Run steps concurrently, so that their writes share commits. Raises the first failure once all have ended."""
    # All end before the first failure is raised: no write goes on in the background.
    failures = [one for one in await asyncio.gather(*steps, return_exceptions=True) if isinstance(one, BaseException)]
    if failures:
        raise failures[0]


# Token of a first start: stored, and cluster-info signed with it, so that a machine can join at once.
#
# Rules kept here (docs/protocol/cluster-info.md): the signature is the one that the bootstrapsigner controller would write. A
# conflict means that a running controller was faster.

DESCRIPTION = "The default bootstrap token, made at the first start."
MAX_ATTEMPTS = 10
"""Conflicts in a row after which signing is left to the running bootstrapsigner controller."""


async def create_first_token(
    registry: Registry, clock: Clock, first_boot: FirstBoot, token: BootstrapToken, ttl: timedelta
) -> None:
    """Store the token and sign cluster-info with it. Raises ApiError or StorageError."""
    record = new_record(token, clock.now(), ttl=ttl, description=DESCRIPTION)
    # Before the signature, which is made with the tokens in the store.
    await first_boot.create_token(record)
    await sign_cluster_info(registry, clock)


async def sign_cluster_info(registry: Registry, clock: Clock) -> None:
    """Bring the signatures of cluster-info up to date."""
    config_maps, secret_kind = BY_PLURAL["configmaps"], BY_PLURAL["secrets"]
    for _ in range(MAX_ATTEMPTS):
        config_map = (await registry.reader.get(config_maps, clusterinfo.NAMESPACE, clusterinfo.NAME)).obj
        tokens = await registry.reader.list(secret_kind, NAMESPACE, ListOptions())
        now = clock.now()
        changed = clusterinfo.signed(config_map, [item.obj for item in tokens.items], now)
        if changed is None:
            return
        try:
            await registry.writer.update(
                config_maps,
                clusterinfo.NAMESPACE,
                clusterinfo.NAME,
                changed,
                Change(API_SERVER_USER, now, writer="first-boot"),
                WriteOptions(),
            )
        # The controller, or another server, was faster: its signatures are read, and completed.
        except ConflictError:
            continue
        return
