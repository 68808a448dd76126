"""Configuration of one server process: the settings of every subject, and what follows from several of them.

- `SUBJECTS` is the table of settings: a class in it is all that flags, environment, configuration file and reference page need.
- A part of the server gets the settings of its subject, or single values.
- Pure: the room `cli` reads flags, environment and files, and detects the addresses of this machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

from mooring.authn import table as authn
from mooring.errors import ConfigError
from mooring.settings.addresses import Endpoint
from mooring.settings.controllers import ControllerManagerSettings
from mooring.settings.declaration import Setting, Settings
from mooring.settings.network import NetworkSettings
from mooring.settings.nodes import NodeSettings
from mooring.settings.serving import (
    AdmissionSettings,
    AuditSettings,
    AuthorizationSettings,
    FlowControlSettings,
    ServingSettings,
    WorkersSettings,
)
from mooring.settings.signing import ApprovalSettings, SigningSettings
from mooring.settings.snapshots import SnapshotSettings
from mooring.settings.storage import EncryptionSettings, StorageSettings
from mooring.trust.k3s.settings import K3sSettings
from mooring.trust.notices import NoticeSettings
from mooring.trust.sharedkeys.servertoken import SharedKeysSettings

S = TypeVar("S", bound=Settings)

SUBJECTS: tuple[type[Settings], ...] = (
    StorageSettings,
    SnapshotSettings,
    EncryptionSettings,
    SharedKeysSettings,
    K3sSettings,
    NetworkSettings,
    WorkersSettings,
    ServingSettings,
    SigningSettings,
    AuthorizationSettings,
    AdmissionSettings,
    ApprovalSettings,
    NodeSettings,
    ControllerManagerSettings,
    FlowControlSettings,
    AuditSettings,
    NoticeSettings,
    *authn.SUBJECTS,
)
"""Every subject that has settings, in the order of `--help` and of the reference page."""


def declared_settings() -> tuple[Setting, ...]:
    """Return every setting of a server."""
    return tuple(one for subject in SUBJECTS for one in subject.declared())


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Checked configuration of one server process. `config[AuditSettings]` are the settings of a subject."""

    settings: Mapping[type[Settings], Settings]
    endpoints: tuple[Endpoint, ...]
    """Addresses that are published to clients; the first is the address of the control plane."""
    advertise_address: str
    """Address under which Pods reach this server; "" when no usable one is known."""
    given_endpoints: tuple[Endpoint, ...] = ()
    """Those of `endpoints` that were given at this start, and not at an earlier one."""

    def __getitem__(self, subject: type[S]) -> S:
        """Return the settings of a subject."""
        found = self.settings[subject]
        assert isinstance(found, subject)
        return found

    def with_settings(self, *changed: Settings) -> Self:
        """Return the configuration with the settings of some subjects replaced."""
        return replace(self, settings={**self.settings, **{type(one): one for one in changed}})

    @property
    def data_dir(self) -> str:
        """Directory of the state."""
        return self[StorageSettings].data_dir


def server_config(
    *,
    detected_addresses: Sequence[str] = (),
    endpoints_before: Sequence[str] = (),
    **values: Any,
) -> ServerConfig:
    """Check the values of settings, by field name, and return the configuration. Raises ConfigError.

    `detected_addresses` are addresses of this machine, at most one of each family. `endpoints_before` were given at an earlier
    start, and count where this one gives none.
    """
    is_given = bool(values.get("control_plane_endpoint"))
    if not is_given:
        values = {**values, "control_plane_endpoint": endpoints_before}
    unknown = values.keys() - {one.field for one in declared_settings()}
    if unknown:
        raise TypeError(f"no setting is called {', '.join(sorted(unknown))}")
    settings = {subject: subject.read(values) for subject in SUBJECTS}
    network, store, workers = settings[NetworkSettings], settings[StorageSettings], settings[WorkersSettings]
    assert isinstance(network, NetworkSettings)
    assert isinstance(store, StorageSettings)
    assert isinstance(workers, WorkersSettings)
    if store.in_memory and workers.workers > 1:
        raise ConfigError("workers: a store in memory belongs to one process; give 1, or another --storage")
    endpoints = network.endpoints(detected_addresses)
    return ServerConfig(
        settings=settings,
        endpoints=endpoints,
        given_endpoints=endpoints if is_given else (),
        advertise_address=network.advertised(detected_addresses),
    )
