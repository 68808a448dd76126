"""Encryption at rest: its configuration, and the Lease in which servers say which keys they have."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mooring.api.kinds import BY_PLURAL
from mooring.client.files import read_limited
from mooring.clock import Clock, rfc3339_micro
from mooring.controllers.actions import Delete
from mooring.controlplane.datadirectory import Reloading, warn_if_exposed
from mooring.controlplane.maintenance import wait_for_event
from mooring.errors import ConfigError, MooringError, NotFoundError
from mooring.reconcile.registryapi import RegistryApi
from mooring.reminders import LastingProblem
from mooring.settings.storage import EncryptionSettings
from mooring.storage.contract import Storage
from mooring.storage.encryption.providers import Providers
from mooring.storage.encryption.storage import EncryptedStorage
from mooring.trust.encryption import keychange
from mooring.trust.encryption.configuration import (
    ANY,
    MAX_BYTES,
    NOTHING,
    EncryptionConfiguration,
    GroupResource,
    parse,
)
from mooring.trust.encryption.keychange import HASH_ANNOTATION, RELOAD_ANNOTATION, SERVER_LABEL

# Encryption at rest of one server process: the file of its keys, its reload, and what health checks and metrics show of it.
#
# Rules kept here:
# * A file that cannot be used stops the start. After that the last good one stays in force. The log says why, and a metric counts
#   it.
# * A new file comes into force once its KMS plugins are healthy. Until then it is tried again.
# * Only the hash of the file is kept and published, as kube-apiserver does.

KEY = "encryption-provider-config"
RETRY_SECONDS = 5.0
"""Time between two attempts to use a file whose KMS plugins are not healthy."""

log = logging.getLogger("mooring.server")


def read_configuration(path: str) -> tuple[EncryptionConfiguration, str]:
    """Return the configuration in a file and the hash of the file; without a path, no encryption. Raises ConfigError."""
    if not path:
        return NOTHING, ""
    try:
        data = read_limited(Path(path), MAX_BYTES + 1)
    except ConfigError as error:
        raise ConfigError(f"{KEY}: {error}") from error
    return parse(data, f"{KEY}: {path}"), f"sha256:{hashlib.sha256(data).hexdigest()}"


def stored_resources() -> dict[str, GroupResource]:
    """Return the resources of this program by the prefix of their storage keys."""
    return {
        kind.storage: GroupResource(kind.resource.group, kind.resource.plural)
        for kind in BY_PLURAL.values()
        if kind.stored
    }


SECRETS = GroupResource("", "secrets")


class EncryptionAtRest:
    """The encrypting store of one process, and the file that it follows."""

    def __init__(
        self,
        settings: EncryptionSettings,
        inner: Storage,
        clock: Clock,
        entropy: Callable[[int], bytes],
        context: Callable[[str], bytes] = str.encode,
    ) -> None:
        """`context` returns the name of a storage key in the engine. Raises ConfigError for a file that cannot be used."""
        self._path = settings.encryption_provider_config
        self._clock = clock
        configuration, self.config_hash = read_configuration(self._path)
        if self._path:
            warn_if_exposed(Path(self._path))
            _warn_of_unknown(configuration)
        self.reloads = settings.encryption_provider_config_automatic_reload
        self.outcomes: Counter[str] = Counter()
        self.outcome_times: dict[str, float] = {}
        self.providers = Providers(configuration, clock, entropy)
        self.storage = EncryptedStorage(inner, self.providers, stored_resources(), context)
        self.changed = asyncio.Event()
        """Set when another file is in force."""
        self._applying: asyncio.Task[None] | None = None

    @property
    def configured(self) -> bool:
        """The operator gave a file."""
        return bool(self._path)

    @property
    def encrypts_secrets(self) -> bool:
        """True when Secrets that are written now are encrypted: the file may name other resources, or the provider identity."""
        return bool(self.providers.transformer(SECRETS).prefix)

    @property
    def has_health_check(self) -> bool:
        """Return True with KMS plugins, and with a file that may add some, as kube-apiserver does."""
        return self.reloads or bool(self.providers.transformers.configuration.plugins)

    def follow(self, reloading: Reloading) -> None:
        """Use the file again after each change, if the operator wants that."""
        if self.reloads:
            reloading.follow_files((Path(self._path),), self._prepare)

    async def close(self) -> None:
        """End an attempt to use a new file."""
        if self._applying is not None:
            self._applying.cancel()
            await asyncio.gather(self._applying, return_exceptions=True)

    def _prepare(self) -> Callable[[], None]:
        """Read the changed file. Runs in a thread. Raises ConfigError."""
        try:
            configuration, config_hash = read_configuration(self._path)
        except MooringError:
            self._count("failure")
            raise
        return lambda: self._use(configuration, config_hash)

    def _use(self, configuration: EncryptionConfiguration, config_hash: str) -> None:
        if self._applying is not None:
            self._applying.cancel()
            self._applying = None
        if config_hash != self.config_hash:
            self._applying = asyncio.get_running_loop().create_task(self._apply(configuration, config_hash))

    async def _apply(self, configuration: EncryptionConfiguration, config_hash: str) -> None:
        while True:
            try:
                await self.providers.replace(configuration)
            except MooringError as error:
                self._count("failure")
                log.error("%s is not used yet, the last good content stays in force: %s", self._path, error)
                await self._clock.sleep(RETRY_SECONDS)
                continue
            # After the providers: the Lease must not name a file that is not in force, since a change of keys waits for
            # it.
            self.config_hash = config_hash
            self._count("success")
            log.info("%s is in force (%s)", self._path, config_hash)
            _warn_of_unknown(configuration)
            self.changed.set()
            return

    def _count(self, outcome: str) -> None:
        self.outcomes[outcome] += 1
        self.outcome_times[outcome] = self._clock.now().timestamp()


def _warn_of_unknown(configuration: EncryptionConfiguration) -> None:
    """Log a warning about resources that this server does not have: a misspelled one stays unencrypted."""
    known = set(stored_resources().values())
    for one in configuration.providers:
        if one.resource != ANY and one not in known:
            log.warning("%s: this server stores no %s; check the name", KEY, one)


class EncryptionMetrics(Collector):
    """Metrics of encryption at rest under kube-apiserver's names."""

    def __init__(self, encryption: EncryptionAtRest, identity: str) -> None:
        self._encryption = encryption
        self._id_hash = f"sha256:{hashlib.sha256(identity.encode()).hexdigest()}"

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics at each scrape."""
        encryption, id_hash = self._encryption, self._id_hash
        controller = "apiserver_encryption_config_controller_"
        reloads = CounterMetricFamily(
            f"{controller}automatic_reloads", "Reloads by outcome.", labels=["status", "apiserver_id_hash"]
        )
        times = GaugeMetricFamily(
            f"{controller}automatic_reload_last_timestamp_seconds",
            "Time of the last reload by outcome.",
            labels=["status", "apiserver_id_hash"],
        )
        for outcome, count in tuple(encryption.outcomes.items()):
            reloads.add_metric([outcome, id_hash], count)
            times.add_metric([outcome, id_hash], encryption.outcome_times[outcome])
        config = GaugeMetricFamily(
            f"{controller}last_config_info", "Hash of the file in force.", labels=["apiserver_id_hash", "hash"]
        )
        if encryption.config_hash:
            config.add_metric([id_hash, encryption.config_hash], 1)
        operations = CounterMetricFamily(
            "apiserver_storage_transformation_operations",
            "Values encrypted and decrypted.",
            labels=["resource", "transformation_type", "transformer_prefix", "status"],
        )
        for labels, count in tuple(encryption.providers.operations.items()):
            operations.add_metric(list(labels), count)
        misses = CounterMetricFamily(
            "apiserver_storage_envelope_transformation_cache_misses",
            "Data keys that a KMS plugin had to decrypt.",
            value=encryption.providers.cache_misses,
        )
        yield from (reloads, times, config, operations, misses)


# A Lease by which one server process says which EncryptionConfiguration it uses, so that a change of keys can wait for it.
#
# Rules kept here:
# * The Lease has the hash of the file, and no key. It is written at start, after each change, and every RENEW_SECONDS.
# * It is deleted at the end of the process. Those of processes that were killed expire, and are deleted by others; on one machine
#   at once, since a change of keys waits for them.
# * Failures are logged once and tried again: a store without this Lease still serves.

RENEW_SECONDS = 30.0
LEASE_SECONDS = 90
"""Time after which a process that does not renew is taken to have ended: two renewals may be late."""
DELETE_SECONDS = 2.0
"""Time for the deletion at the end."""
NAMESPACE = "kube-system"
PLURAL = "leases"


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
                # Before the write: a change meanwhile is written at once after it.
                self._encryption.changed.clear()
                await self._try_to_renew()
                await wait_for_event(self._encryption.changed, self._clock.sleep(RENEW_SECONDS))
        finally:
            with suppress(Exception):
                # The Lease ends by itself, too: no failure may hold up the end of the process.
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
