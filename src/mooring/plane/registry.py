"""Registry of one process, put together once: the store, the authorizers, the admission plugins, and the registry over them.

Every command that writes objects opens it here, so that all writes pass the same admission.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from mooring.api.kinds import BY_PLURAL
from mooring.api.mooring.certificaterevocation import PLURAL as REVOCATIONS
from mooring.authz import table as authz
from mooring.authz.attributes import Attributes
from mooring.authz.chain import authorize
from mooring.authz.decision import Decision
from mooring.authz.rbac.authorizer import Rbac
from mooring.clock import Clock
from mooring.controllers import table as controllers
from mooring.errors import StorageError
from mooring.plane import servicerange
from mooring.plane.background.storehead import FILE_NAME, StoreHead, continue_beyond
from mooring.plane.configuration import ServerConfig
from mooring.plane.encryption import EncryptionAtRest, read_configuration
from mooring.registry.admission import table as admission
from mooring.registry.store import Registry
from mooring.registry.write.deletionrecords import deletion_records
from mooring.settings.admission import AdmissionSettings
from mooring.settings.authorization import AuthorizationSettings
from mooring.settings.controllers import ControllerManagerSettings
from mooring.settings.encryption import EncryptionSettings
from mooring.settings.network import NetworkSettings
from mooring.settings.nodes import NodeSettings
from mooring.settings.storage import StorageSettings
from mooring.storage.commitsignal import CommitSignal
from mooring.storage.contract import Storage
from mooring.storage.copying import refuse_incomplete
from mooring.storage.etcd.keyspace import Keyspace
from mooring.storage.table import open_storage

Entropy = Callable[[int], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryParts:
    """The registry, and the parts that other parts of a server share with it."""

    storage: Storage
    stored: Storage
    """The store below encryption at rest: values as they are stored."""
    registry: Registry
    encryption: EncryptionAtRest
    authorize: Callable[[Attributes], Decision]
    """Decides on a request, from the objects that the registry has in memory."""
    rbac: Rbac
    """The RBAC authorizer of the chain; one outside of it when the mode is not enabled."""


def check_names(config: ServerConfig, clock: Clock) -> None:
    """Raise ConfigError for authorizers, admission plugins, controllers and storage drivers that do not exist, and for a file of
    keys that cannot be used. Opens nothing."""
    authz.build(config[AuthorizationSettings].authorization_mode)
    admission.build(config[AdmissionSettings].disable_admission_plugins)
    controllers.selected(config[ControllerManagerSettings].controllers)
    open_storage(config[StorageSettings].storage_url, clock, settings=config[StorageSettings])
    read_configuration(config[EncryptionSettings].encryption_provider_config)


def build_registry(config: ServerConfig, encryption: EncryptionAtRest, clock: Clock, entropy: Entropy) -> RegistryParts:
    """Put the registry together. Raises ConfigError."""
    storage = encryption.storage
    authorizers = authz.build(config[AuthorizationSettings].authorization_mode)

    def decide(attributes: Attributes) -> Decision:
        return authorize(attributes, authorizers, registry.views)

    plugins = admission.build(
        config[AdmissionSettings].disable_admission_plugins,
        services=config[NetworkSettings].service_cluster_ip_range,
    )
    records = deletion_records(ends_membership=config[NodeSettings].deletion_ends_membership)
    kinds = tuple(BY_PLURAL.values())
    registry = Registry(storage, kinds, clock, entropy, plugins, decide, records, storage.is_stale)
    rbac = next((one for one in authorizers if isinstance(one, Rbac)), None) or Rbac()
    return RegistryParts(
        storage=storage,
        stored=storage.inner,
        registry=registry,
        encryption=encryption,
        authorize=decide,
        rbac=rbac,
    )


def _name_in_engine(config: ServerConfig) -> Callable[[str], bytes]:
    """Return a function from storage keys to their names in the engine, which encryption at rest authenticates."""
    settings = config[StorageSettings]
    return Keyspace(settings.etcd_prefix).encode if settings.storage_url.startswith("etcd:") else str.encode


def _refuse_unreadable_denylist(registry: Registry) -> None:
    """Raise StorageError when entries of the denylist cannot be decrypted: revoked certificates would be accepted."""
    prefix = BY_PLURAL[REVOCATIONS].key_prefix("")
    unreadable = [problem for key, problem in registry.cache.unreadable.items() if key.startswith(prefix)]
    if unreadable:
        raise StorageError(
            f"{len(unreadable)} {REVOCATIONS} cannot be decrypted, and revoked certificates would be accepted: {unreadable[0]}"
        )


@asynccontextmanager
async def open_registry(
    config: ServerConfig, clock: Clock, entropy: Entropy, commits: CommitSignal | None = None
) -> AsyncIterator[RegistryParts]:
    """Open the store and follow it until the block ends. Raises ConfigError or StorageError.

    `commits`: signals between the workers of a server; None for a process that is alone.
    """
    inner = open_storage(config[StorageSettings].storage_url, clock, commits, config[StorageSettings])
    encryption = EncryptionAtRest(config[EncryptionSettings], inner, clock, entropy, _name_in_engine(config))
    storage = encryption.storage
    await storage.open()
    try:
        await refuse_incomplete(storage)
        head = None if config[StorageSettings].in_memory else Path(config.data_dir) / FILE_NAME
        if head is not None:
            await continue_beyond(storage, head)
        services = config[NetworkSettings].service_cluster_ip_range
        await servicerange.record_or_check(storage, services, clock.now(), entropy)
        parts = build_registry(config, encryption, clock, entropy)
        await parts.registry.start()
        _refuse_unreadable_denylist(parts.registry)
        encryption.providers.subscribe(parts.registry.relist_soon)
        try:
            if head is None:
                yield parts
            else:
                async with StoreHead(head, lambda: parts.registry.revision, clock).kept():
                    yield parts
        finally:
            await encryption.close()
            await parts.registry.stop()
    finally:
        await storage.close()
