"""Builds the supervisor API of k3s for one server process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mooring.apimachinery.schema import Obj
from mooring.authn.k3stoken import K3sTokenAuthenticator
from mooring.controllers.certificates.approval import would_approve
from mooring.controllers.certificates.issuance import IssuanceCheck
from mooring.controllers.table import ControllerSettings, checks_before_password
from mooring.pki.x509.bundles import certificates_pem
from mooring.pki.x509.certificate import Certificate
from mooring.plane.parts.foundation import Foundation
from mooring.plane.parts.trust import ServedTrust
from mooring.plane.sharedkeys.joining import agent_config, server_keys
from mooring.plane.sharedkeys.share import SharedKeys
from mooring.plane.sharedkeys.tokenfile import JoinTokenFiles
from mooring.server.endpoints.supervisor.certificates import NodeCertificates
from mooring.server.endpoints.supervisor.nodepasswords import NodePasswords
from mooring.server.endpoints.supervisor.servers import api_server_addresses
from mooring.server.endpoints.supervisor.table import SupervisorServices, routes
from mooring.server.endpoints.supervisor.tunnel import Tunnels
from mooring.server.requestcontext import InFlight, Supervisor
from mooring.settings.storage import StorageSettings
from mooring.trust.encryption import keychange
from mooring.trust.encryption.configuration import GroupResource
from mooring.trust.k3s.settings import K3sSettings, encryption_status

SECRETS = GroupResource("", "secrets")


class SupervisorApi:
    """The supervisor API of one server process."""

    def __init__(
        self,
        base: Foundation,
        trust: ServedTrust,
        shared_keys: SharedKeys | None,
        checks: tuple[IssuanceCheck, ...],
        ready: Callable[[], bool],
    ) -> None:
        """`checks` see a request before its node password is stored. `shared_keys`: None for a store in memory."""
        self._base = base
        self._trust = trust
        self._counting = asyncio.Lock()
        self.tunnels = Tunnels(base.clock)
        self.passwords = NodePasswords(
            base.parts.registry,
            base.clock,
            base.entropy,
            fail_open=base.config[K3sSettings].k3s_node_password_fail_open,
            workers=base.process.share.workers,
        )
        self.tokens = None if base.config[StorageSettings].in_memory else JoinTokenFiles(base.config)
        """None for a server without a data directory."""
        self.supervisor = Supervisor(
            find=routes(self._services(shared_keys, checks, ready)),
            authenticators=trust.authentication.supervisor_authenticators,
            schemes=trust.authentication.supervisor_schemes,
            in_flight=InFlight(base.process.share),
        )

    def _services(
        self, shared_keys: SharedKeys | None, checks: tuple[IssuanceCheck, ...], ready: Callable[[], bool]
    ) -> SupervisorServices:
        trust, config, clock, registry = self._trust, self._base.config, self._base.clock, self._base.parts.registry
        authorize = self._base.parts.authorize
        return SupervisorServices(
            server_ca=lambda: trust.serving.root_ca.pem,
            client_ca=lambda: certificates_pem(trust.authentication.client_cas.clients),
            config=self._agent_config,
            apiservers=lambda: api_server_addresses(registry.views) or tuple(map(str, config.endpoints)),
            ready=ready,
            certificates=NodeCertificates(
                registry=registry,
                passwords=self.passwords,
                chain_for=self._chain_for,
                clock=clock,
                would_approve=lambda csr: would_approve(csr, checks, registry.views, clock.now(), authorize),
            ),
            tunnels=self.tunnels,
            encryption=self._encryption_status,
            server_keys=server_keys(
                config,
                shared_keys,
                self._agent_config,
                lambda: trust.serving.root_ca.pem,
                registry.views,
                self._read_tokens,
            ),
        )

    def _read_tokens(self) -> None:
        for authenticator in self._trust.authentication.supervisor_authenticators:
            if isinstance(authenticator, K3sTokenAuthenticator):
                authenticator.read_again()

    def _chain_for(self, signer_name: str) -> tuple[Certificate, ...]:
        """Return the CA that signs for a signer, and the CAs that are trusted beside it."""
        ca = self._base.key_store.ca
        others = (one for one in ca.trusted if one != ca.authority.certificate)
        return self._trust.signing.chain_for(signer_name) or (ca.authority.certificate, *others)

    def _agent_config(self) -> Obj:
        encrypts_secrets = self._base.parts.encryption.providers.is_configured(SECRETS)
        return agent_config(self._base.config, encrypts_secrets=encrypts_secrets)

    async def _encryption_status(self) -> Obj:
        encryption, registry = self._base.parts.encryption, self._base.parts.registry
        async with self._counting:  # reads every stored value
            usage = await encryption.storage.usage()
        leases = keychange.live_servers(
            [one for one in registry.views["leases"].list("kube-system") if _is_of_server(one)], self._base.clock.now()
        )
        hashes = [(one["metadata"].get("annotations") or {}).get(keychange.HASH_ANNOTATION, "") for one in leases]
        return encryption_status(
            encryption.providers.transformers.configuration.providers_of(SECRETS),
            sum(one.stale for one in usage if one.resource == SECRETS),
            {encryption.config_hash, *hashes},
        )


def build_supervisor(
    base: Foundation,
    trust: ServedTrust,
    shared_keys: SharedKeys | None,
    settings: ControllerSettings,
    ready: Callable[[], bool],
) -> SupervisorApi | None:
    """Return the supervisor API; None unless it is turned on."""
    if not base.config[K3sSettings].k3s_supervisor:
        return None
    return SupervisorApi(base, trust, shared_keys, checks_before_password(settings), ready)


def _is_of_server(lease: Obj) -> bool:
    return keychange.SERVER_LABEL in (lease["metadata"].get("labels") or {})
