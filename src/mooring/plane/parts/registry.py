"""Registry of one process, put together once: the store, the authorizers, the admission plugins, and the registry over them.

Every command that writes objects opens it here, so that all writes pass the same admission.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from mooring.api.kinds import BY_PLURAL
from mooring.authz import table as authz
from mooring.authz.decision import Attributes, Decision, authorize
from mooring.authz.rbac.authorizer import Rbac
from mooring.clock import Clock
from mooring.controllers import table as controllers
from mooring.plane.configuration import ServerConfig
from mooring.plane.encryption import EncryptionAtRest, read_configuration
from mooring.plane.parts import servicerange
from mooring.plane.storemark.markfile import MarkFile
from mooring.plane.storemark.olderstore import continue_beyond
from mooring.plane.storemark.storemark import StoreMark
from mooring.reconcile.registryapi import RegistryApi
from mooring.registry.admission import table as admission
from mooring.registry.store import Registry
from mooring.registry.write.deletion import deletion_records
from mooring.registry.write.serversideapply import Observe, ignore
from mooring.settings.controllers import ControllerManagerSettings
from mooring.settings.network import NetworkSettings
from mooring.settings.nodes import NodeSettings
from mooring.settings.serving import AdmissionSettings, AuthorizationSettings
from mooring.settings.storage import EncryptionSettings, StorageSettings
from mooring.storage.commitsignal import CommitSignal
from mooring.storage.contract import Storage
from mooring.storage.copying import refuse_incomplete
from mooring.storage.etcd.keyspace import name_in_engine
from mooring.storage.formatlevel import FormatLevel, refuse_unsupported
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
    mark: StoreMark | None = None
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

    def decide(attributes: Attributes) -> Decision:
        return authorize(attributes, authorizers, registry.views)

    plugins = admission.build(
        config[AdmissionSettings].disable_admission_plugins,
        services=config[NetworkSettings].service_cluster_ip_range,
    )
    records = deletion_records(ends_membership=config[NodeSettings].deletion_ends_membership)
    kinds = tuple(BY_PLURAL.values())
    registry = Registry(storage, kinds, clock, entropy, plugins, decide, records, storage.is_stale, observe)
    rbac = next((one for one in authorizers if isinstance(one, Rbac)), None) or Rbac()
    return RegistryParts(
        storage=storage,
        stored=storage.inner,
        registry=registry,
        encryption=encryption,
        authorize=decide,
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
        await refuse_incomplete(storage)
        await refuse_unsupported(inner)
        level = None if config[StorageSettings].in_memory else FormatLevel(inner, clock, entropy(8).hex())
        file = None if config[StorageSettings].in_memory else MarkFile(Path(config.data_dir))
        is_continued = True
        if file is not None:
            file.check_lock()
            is_continued = await continue_beyond(file, storage)
        services = config[NetworkSettings].service_cluster_ip_range
        await servicerange.record_or_check(storage, services, clock.now(), entropy)
        parts = replace(build_registry(config, encryption, clock, entropy, observe), format_level=level)
        encryption.providers.subscribe(parts.registry.relist_soon)  # a plugin may come back meanwhile
        await parts.registry.start()
        opened.push_async_callback(parts.registry.stop)
        opened.push_async_callback(encryption.close)
        if file is not None:
            api = RegistryApi(parts.registry, parts.authorize, clock, "store-mark")
            mark = StoreMark(file, parts.registry, api, storage, clock, is_continued)
            parts = replace(parts, mark=mark)
            await mark.compare()  # before `join` writes: the revision of the store is compared
            await opened.enter_async_context(mark.kept())
        if level is not None:
            await level.join()
            opened.push_async_callback(level.leave)
        yield parts
