"""Registry of one process, put together once: the store, the authorizers, the admission plugins, and the registry over them.

Every command that writes objects opens it here, so that all writes pass the same admission.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from mooring.api.kinds import BY_PLURAL
from mooring.authz import table as authz
from mooring.authz.attributes import Attributes
from mooring.authz.chain import authorize
from mooring.authz.decision import Decision
from mooring.authz.rbac.authorizer import Rbac
from mooring.clock import Clock
from mooring.plane import servicerange
from mooring.plane.configuration import ServerConfig
from mooring.registry.admission import table as admission
from mooring.registry.store import Registry
from mooring.settings.admission import AdmissionSettings
from mooring.settings.authorization import AuthorizationSettings
from mooring.settings.network import NetworkSettings
from mooring.settings.storage import StorageSettings
from mooring.storage.contract import Storage
from mooring.storage.table import open_storage

Entropy = Callable[[int], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryParts:
    """The registry, and the parts that other parts of a server share with it."""

    storage: Storage
    registry: Registry
    authorize: Callable[[Attributes], Decision]
    """Decides on a request, from the objects that the registry has in memory."""
    rbac: Rbac
    """The RBAC authorizer of the chain; one outside of it when the mode is not enabled."""


def check_names(config: ServerConfig, clock: Clock) -> None:
    """Raise ConfigError for authorizers, admission plugins and storage drivers that do not exist. Opens nothing."""
    authz.build(config[AuthorizationSettings].authorization_mode)
    admission.build(config[AdmissionSettings].disable_admission_plugins)
    open_storage(config[StorageSettings].storage_url, clock)


def build_registry(config: ServerConfig, storage: Storage, clock: Clock, entropy: Entropy) -> RegistryParts:
    """Put the registry together. Raises ConfigError."""
    authorizers = authz.build(config[AuthorizationSettings].authorization_mode)

    def decide(attributes: Attributes) -> Decision:
        return authorize(attributes, authorizers, registry.views)

    plugins = admission.build(
        config[AdmissionSettings].disable_admission_plugins,
        services=config[NetworkSettings].service_cluster_ip_range,
    )
    registry = Registry(storage, tuple(BY_PLURAL.values()), clock, entropy, plugins, decide)
    rbac = next((one for one in authorizers if isinstance(one, Rbac)), None) or Rbac()
    return RegistryParts(storage=storage, registry=registry, authorize=decide, rbac=rbac)


@asynccontextmanager
async def open_registry(config: ServerConfig, clock: Clock, entropy: Entropy) -> AsyncIterator[RegistryParts]:
    """Open the store and follow it until the block ends. Raises ConfigError or StorageError."""
    storage = open_storage(config[StorageSettings].storage_url, clock)
    await storage.open()
    try:
        services = config[NetworkSettings].service_cluster_ip_range
        await servicerange.record_or_check(storage, services, clock.now(), entropy)
        parts = build_registry(config, storage, clock, entropy)
        await parts.registry.start()
        try:
            yield parts
        finally:
            await parts.registry.stop()
    finally:
        await storage.close()
