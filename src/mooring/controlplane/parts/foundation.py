"""Foundation of one server process: the registry with what it needs, the audit log, and the objects that all parts use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from mooring.api.core.servicevalidation import decode_record
from mooring.api.kinds import BY_PLURAL
from mooring.apimachinery.codec.json import encode_json
from mooring.apimachinery.names import uuid4
from mooring.authn.bootstraptoken import BootstrapTokenSettings
from mooring.authz import table as authz
from mooring.authz.rbac.authorizer import Rbac
from mooring.clock import Clock, rfc3339
from mooring.controllers import table as controllers
from mooring.controlplane.configuration import ServerConfig
from mooring.controlplane.encryption import EncryptionAtRest, read_configuration
from mooring.controlplane.keystore import KeyStore
from mooring.controlplane.storewatermark.olderstore import continue_beyond
from mooring.controlplane.storewatermark.storewatermark import StoreWatermark
from mooring.controlplane.storewatermark.watermarkfile import WatermarkFile
from mooring.errors import ConfigError
from mooring.reconcile.registryapi import RegistryApi
from mooring.registry.admission import table as admission
from mooring.registry.store import Registry
from mooring.registry.write.deletion import deletion_records
from mooring.registry.write.serversideapply import Observe, ignore
from mooring.server.audit.auditevent import read_policy
from mooring.server.audit.auditor import Auditor
from mooring.server.audit.logfile import AuditLog
from mooring.server.metrics import Metrics
from mooring.server.sharedmemory import WorkerMemory
from mooring.settings.addresses import Network
from mooring.settings.controllers import ControllerManagerSettings
from mooring.settings.network import NetworkSettings
from mooring.settings.nodes import NodeSettings
from mooring.settings.serving import AdmissionSettings, AuditSettings, AuthorizationSettings
from mooring.settings.storage import EncryptionSettings, StorageSettings
from mooring.storage.commitsignal import CommitSignal
from mooring.storage.contract import Entry, KeyExistsError, Storage
from mooring.storage.copying import refuse_incomplete
from mooring.storage.drivers import open_storage
from mooring.storage.etcd.keyspace import name_in_engine
from mooring.storage.formatlevel import FormatLevel, refuse_unsupported

# Range of Service addresses: recorded at the first start of a cluster, and checked at every later one.
#
# Rules kept here (networking.k8s.io/v1 ServiceCIDR, KEP-1880):
# * The record is that of kube-apiserver: a ServiceCIDR `kubernetes`, as protobuf or as JSON. The first server that starts writes
#   it; of several, one succeeds.
# * A server with another range does not start, and its error names the recorded one: existing Services would keep addresses
#   outside of the new range.

KEY = "/registry/servicecidrs/kubernetes"


async def record_or_check(storage: Storage, services: Network, now: datetime, entropy: Callable[[int], bytes]) -> None:
    """Record `services` as the range of the cluster. Raises ConfigError when another one is recorded, StorageError."""
    found = await storage.get(KEY)
    if found is None:
        value = {
            "kind": "ServiceCIDR",
            "apiVersion": "networking.k8s.io/v1",
            "metadata": {
                "name": "kubernetes",
                "uid": uuid4(entropy),
                "creationTimestamp": rfc3339(now),
            },
            "spec": {"cidrs": [str(services)]},
        }
        try:
            await storage.create(KEY, encode_json(value))
            return
        except KeyExistsError as failure:
            # Another server that starts at the same time was faster: its range is the cluster's.
            found = failure.current
    recorded = _recorded_range(found)
    if recorded != str(services):
        raise ConfigError(
            f"service-cluster-ip-range: this cluster's Services have addresses of {recorded}, not of {services}; "
            f"start with --service-cluster-ip-range {recorded}"
        )


def _recorded_range(entry: Entry) -> str:
    try:
        return str(decode_record(entry.value)["spec"]["cidrs"][0])
    except (LookupError, TypeError):
        raise ConfigError(f"{KEY} in the store is no ServiceCIDR; restore it from a backup or delete it") from None


# Registry of one process, put together once: the store, the authorizers, the admission plugins, and the registry over them.
#
# Every command that writes objects opens it here, so that all writes pass the same admission.

Entropy = Callable[[int], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryParts:
    """The registry, and the parts that other parts of a server share with it."""

    storage: Storage
    stored: Storage
    """The store below encryption at rest: values as they are stored."""
    registry: Registry
    encryption: EncryptionAtRest
    rbac: Rbac
    """The RBAC authorizer of the chain; one outside of it when the mode is not enabled."""
    watermark: StoreWatermark | None = None
    """None for a store in memory."""
    format_level: FormatLevel | None = None
    """None for a store in memory."""


def check_names(config: ServerConfig, clock: Clock) -> None:
    """Raise ConfigError for authorizers, admission plugins, controllers and storage drivers that do not exist, and for a file of
    keys that cannot be used. Opens nothing."""
    authz.build(config[AuthorizationSettings].authorization_mode)
    admission.build(config[AdmissionSettings].disable_admission_plugins)
    controllers.selected(config[ControllerManagerSettings].controllers)
    open_storage(config[StorageSettings].storage_url, clock, settings=config[StorageSettings])
    read_configuration(config[EncryptionSettings].encryption_provider_config)


def build_registry(
    config: ServerConfig, encryption: EncryptionAtRest, clock: Clock, entropy: Entropy, observe: Observe = ignore
) -> RegistryParts:
    """Put the registry together. Raises ConfigError."""
    storage = encryption.storage
    authorizers = authz.build(config[AuthorizationSettings].authorization_mode)

    nodes = config[NodeSettings]
    plugins = admission.build(
        config[AdmissionSettings].disable_admission_plugins,
        services=config[NetworkSettings].service_cluster_ip_range,
        accepts_tokens=config[BootstrapTokenSettings].enable_bootstrap_token_auth,
        join_request_networks=nodes.join_requests_allow_cidr if nodes.join_requests else None,
    )
    records = deletion_records(ends_membership=nodes.deletion_ends_membership)
    kinds = tuple(BY_PLURAL.values())
    registry = Registry(storage, kinds, clock, entropy, plugins, authorizers, records, storage.is_stale, observe)
    rbac = next((one for one in authorizers if isinstance(one, Rbac)), None) or Rbac()
    return RegistryParts(
        storage=storage,
        stored=storage.inner,
        registry=registry,
        encryption=encryption,
        rbac=rbac,
    )


@asynccontextmanager
async def open_registry(
    config: ServerConfig,
    clock: Clock,
    entropy: Entropy,
    commits: CommitSignal | None = None,
    observe: Observe = ignore,
) -> AsyncIterator[RegistryParts]:
    """Open the store and follow it until the block ends. Raises ConfigError or StorageError.

    `commits`: signals between the workers of a server; None for a process that is alone. `observe` is called with each write that
    no client requests.
    """
    inner = open_storage(config[StorageSettings].storage_url, clock, commits, config[StorageSettings])
    encryption = EncryptionAtRest(
        config[EncryptionSettings], inner, clock, entropy, name_in_engine(config[StorageSettings])
    )
    storage = encryption.storage
    async with AsyncExitStack() as opened:
        await storage.open()
        opened.push_async_callback(storage.close)
        # Both before anything is written: a copy that is not finished, and a format of later programs, stay as they
        # are.
        await refuse_incomplete(storage)
        await refuse_unsupported(inner)
        level = None if config[StorageSettings].in_memory else FormatLevel(inner, clock, entropy(8).hex())
        file = None if config[StorageSettings].in_memory else WatermarkFile(Path(config.data_dir))
        is_continued = True
        if file is not None:
            # A watermark that can never be written is an error of the start, before anything is written.
            file.check_lock()
            is_continued = await continue_beyond(file, storage)
        services = config[NetworkSettings].service_cluster_ip_range
        await record_or_check(storage, services, clock.now(), entropy)
        parts = replace(build_registry(config, encryption, clock, entropy, observe), format_level=level)
        # A plugin may come back meanwhile.
        encryption.providers.subscribe(parts.registry.relist_soon)
        await parts.registry.start()
        opened.push_async_callback(parts.registry.stop)
        opened.push_async_callback(encryption.close)
        if file is not None:
            api = RegistryApi(parts.registry, parts.registry.authorize, clock, "store-mark")  # a stored field manager
            watermark = StoreWatermark(file, parts.registry, api, storage, clock, is_continued)
            parts = replace(parts, watermark=watermark)
            # Before `join` writes: the revision of the store is compared.
            await watermark.compare()
            await opened.enter_async_context(watermark.kept())
        if level is not None:
            # Last: from here on the leader counts this process, and raises the level only to what it supports.
            await level.join()
            opened.push_async_callback(level.leave)
        yield parts


# Audit of one server process: the log, and what decides on its records.
#
# It is built before the registry, because opening the store may write objects already.


@dataclass(frozen=True, slots=True)
class Audit:
    """The audit log of a process, and the auditor that writes to it."""

    log: AuditLog
    auditor: Auditor


def build_audit(config: ServerConfig, clock: Clock, entropy: Callable[[int], bytes], share: WorkerMemory) -> Audit:
    """Return the audit of a server with this configuration; the log is not open yet. Raises ConfigError for a bad policy."""
    settings = config[AuditSettings]
    log = AuditLog(
        settings.file(config.data_dir),
        suffix=f"-{config[NetworkSettings].secure_port}",
        max_bytes=settings.audit_log_maxsize << 20,
        keep=settings.audit_log_maxbackup,
        max_age=settings.audit_log_maxage,
        mode=settings.audit_log_mode,
        now=clock.now,
        share=share,
    )
    return Audit(log, Auditor(log, read_policy(settings.audit_policy_file), clock, entropy))


# Foundation of one server process: the objects that all groups of its parts use.


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """The process that this server is, for leader election and for limits of the host."""

    identity: str
    is_gone: Callable[[str], bool]
    """Returns whether the process of another identity is known to have ended."""
    share: WorkerMemory = field(default_factory=WorkerMemory)
    """Part of this process in the state that the workers of the host share; by default that of a process that is alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Foundation:
    """Settings, key material, the open registry, and the events by which parts tell each other what happens at run time."""

    config: ServerConfig
    key_store: KeyStore
    parts: RegistryParts
    clock: Clock
    entropy: Entropy
    process: Process
    audit: Audit
    metrics: Metrics = field(default_factory=Metrics)
    trust_changed: asyncio.Event = field(default_factory=asyncio.Event)
    credentials_changed: asyncio.Event = field(default_factory=asyncio.Event)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server begins to stop: it is not ready from then on."""

    def api_of(self, writer: str) -> RegistryApi:
        """Return access to the registry for a part of the server, which the audit log names as the writer."""
        return RegistryApi(self.parts.registry, self.parts.registry.authorize, self.clock, writer)
