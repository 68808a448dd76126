"""A host for the runtimes of authenticators, without the rest of a server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mooring.authn import table
from mooring.authn.host import Host, Target
from mooring.authn.lastuses import LastUses
from mooring.authn.serviceaccountsettings import ServiceAccountSettings
from mooring.clock import Clock
from mooring.controlplane.configuration import ServerConfig, server_config
from mooring.controlplane.datadirectory import Reloading
from mooring.pki.keys import generate_key
from mooring.server.authentication.clientcas import FollowedClientCas
from mooring.server.authentication.deferred import DeferredAuthentication
from mooring.server.authentication.kubeconfigtarget import TargetConnector
from mooring.server.authentication.oidc import FollowedConfiguration
from mooring.server.authentication.providers import FollowedTokenKeys
from tests.support.manualclock import ManualClock
from tests.support.testca import ThrowawayCA


def configured(**values: Any) -> ServerConfig:
    """The settings of a server with these values, by field name."""
    return server_config(**{"data_dir": "/nowhere", **values})


@dataclass
class AuthnHost:
    """One host. `stage` drives its exchanges; `counted` holds what the token webhook answered."""

    config: ServerConfig = field(default_factory=configured)
    clock: Clock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        self.files = Reloading()
        self.targets: dict[str, Target] = {}
        self.stage = DeferredAuthentication(self.clock, bytes, self.targets)
        self.counted: list[str] = []
        key = generate_key()
        self.host = Host(
            clock=self.clock,
            entropy=bytes,
            files=self.files,
            connect=TargetConnector(self.clock, self.files.read),
            targets=self.targets,
            exchanges=self.stage,
            count_review=self.counted.append,
            credentials_changed=lambda: None,
            client_cas=FollowedClientCas(self.config, ThrowawayCA().cluster_ca, self.files),
            token_keys=FollowedTokenKeys(
                key,
                (),
                issuer=self.config[ServiceAccountSettings].issuer,
                signing_file="",
                verifying_files=(),
                files=self.files,
            ),
            last_uses=LastUses(),
            configuration=FollowedConfiguration(self.config, self.files),
            names=table.NAMES,
        )

    async def changed(self) -> None:
        """Let the host see changed files at rest."""
        for _ in range(2):
            await self.files.look()

    async def close(self) -> None:
        await self.stage.close()
