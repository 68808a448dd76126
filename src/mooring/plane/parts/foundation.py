"""Foundation of one server process: the objects that all groups of its parts use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from mooring.clock import Clock
from mooring.plane.configuration import ServerConfig
from mooring.plane.keys.keystore import KeyStore
from mooring.plane.parts.audit import Audit
from mooring.plane.parts.registry import RegistryParts
from mooring.reconcile.registryapi import RegistryApi
from mooring.server.hostshare.share import HostShare
from mooring.server.metrics import Metrics

Entropy = Callable[[int], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """The process that this server is, for leader election and for limits of the host."""

    identity: str
    is_gone: Callable[[str], bool]
    """Returns whether the process of another identity is known to have ended."""
    share: HostShare = field(default_factory=HostShare)
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
        return RegistryApi(self.parts.registry, self.parts.authorize, self.clock, writer)
