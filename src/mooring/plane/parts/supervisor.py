"""Builds the supervisor API of k3s for one server process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from cryptography.x509 import Certificate

from mooring.apimachinery.schema import Obj
from mooring.authn.k3stoken.authenticator import K3sTokenAuthenticator
from mooring.authz.decision import Authorize
from mooring.clock import Clock
from mooring.controllers.certificates.approval.supervisorapprover import would_approve
from mooring.controllers.certificates.issuance import IssuanceCheck
from mooring.pki.pem import certificates_pem
from mooring.pki.x509.clusterca import ClusterCa
from mooring.plane.agentconfig import agent_config
from mooring.plane.configuration import ServerConfig
from mooring.plane.encryption import EncryptionAtRest
from mooring.plane.parts.authentication import Authentication
from mooring.plane.serving.pair import ServingPair
from mooring.plane.sharedkeys.jointokens import JoinTokenFiles
from mooring.plane.sharedkeys.served import server_keys
from mooring.plane.sharedkeys.share import SharedKeys
from mooring.plane.signing.authorities import SignerAuthorities
from mooring.registry.store import Registry
from mooring.server.endpoints.supervisor.addresses import api_server_addresses
from mooring.server.endpoints.supervisor.certificates import NodeCertificates
from mooring.server.endpoints.supervisor.nodepasswords import NodePasswords
from mooring.server.endpoints.supervisor.services import SupervisorServices
from mooring.server.endpoints.supervisor.table import routes
from mooring.server.endpoints.supervisor.tunnel import Tunnels
from mooring.server.hostshare.share import HostShare
from mooring.server.supervised import InFlight, Supervisor
from mooring.settings.storage import StorageSettings
from mooring.trust.encryption import keychange
from mooring.trust.encryption.configuration import GroupResource
from mooring.trust.k3s.encryptionstatus import encryption_status
from mooring.trust.k3s.settings import K3sSettings

SECRETS = GroupResource("", "secrets")


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorParts:
    """Parts of the server that the supervisor API shows or uses."""

    config: ServerConfig
    authentication: Authentication
    serving: ServingPair
    registry: Registry
    encryption: EncryptionAtRest
    clock: Clock
    ready: Callable[[], bool]
    signing: SignerAuthorities
    ca: ClusterCa
    entropy: Callable[[int], bytes]
    shared_keys: SharedKeys | None
    """None for a store in memory."""
    checks: tuple[IssuanceCheck, ...]
    """Issuance checks that see a request before its node password is stored."""
    authorize: Authorize


class SupervisorApi:
    """The supervisor API of one server process."""

    def __init__(self, parts: SupervisorParts, share: HostShare) -> None:
        self._parts = parts
        self._counting = asyncio.Lock()
        self.tunnels = Tunnels(parts.clock)
        self.passwords = NodePasswords(
            parts.registry,
            parts.clock,
            parts.entropy,
            fail_open=parts.config[K3sSettings].k3s_node_password_fail_open,
            workers=share.workers,
        )
        self.tokens = None if parts.config[StorageSettings].in_memory else JoinTokenFiles(parts.config)
        """None for a server without a data directory."""
        self.supervisor = Supervisor(
            find=routes(self._services()),
            authenticators=parts.authentication.supervisor_authenticators,
            schemes=parts.authentication.supervisor_schemes,
            in_flight=InFlight(share),
        )

    def _services(self) -> SupervisorServices:
        parts = self._parts
        return SupervisorServices(
            server_ca=lambda: parts.serving.root_ca.pem,
            client_ca=lambda: certificates_pem(parts.authentication.client_cas.clients),
            config=self._agent_config,
            apiservers=lambda: api_server_addresses(parts.registry.views) or tuple(map(str, parts.config.endpoints)),
            ready=parts.ready,
            certificates=NodeCertificates(
                registry=parts.registry,
                passwords=self.passwords,
                chain_for=self._chain_for,
                clock=parts.clock,
                would_approve=lambda csr: would_approve(
                    csr, parts.checks, parts.registry.views, parts.clock.now(), parts.authorize
                ),
            ),
            tunnels=self.tunnels,
            encryption=self._encryption_status,
            server_keys=server_keys(
                parts.config,
                parts.shared_keys,
                self._agent_config,
                lambda: parts.serving.root_ca.pem,
                parts.registry.views,
                self._read_tokens,
            ),
        )

    def _read_tokens(self) -> None:
        for authenticator in self._parts.authentication.supervisor_authenticators:
            if isinstance(authenticator, K3sTokenAuthenticator):
                authenticator.read_again()

    def _chain_for(self, signer_name: str) -> tuple[Certificate, ...]:
        """Return the CA that signs for a signer, and the CAs that are trusted beside it."""
        ca = self._parts.ca
        others = (one for one in ca.trusted if one != ca.authority.certificate)
        return self._parts.signing.chain_for(signer_name) or (ca.authority.certificate, *others)

    def _agent_config(self) -> Obj:
        encrypts_secrets = self._parts.encryption.providers.is_configured(SECRETS)
        return agent_config(self._parts.config, encrypts_secrets=encrypts_secrets)

    async def _encryption_status(self) -> Obj:
        encryption, registry = self._parts.encryption, self._parts.registry
        async with self._counting:  # reads every stored value
            usage = await encryption.storage.usage()
        leases = keychange.live_servers(
            [one for one in registry.views["leases"].list("kube-system") if _is_of_server(one)], self._parts.clock.now()
        )
        hashes = [(one["metadata"].get("annotations") or {}).get(keychange.HASH_ANNOTATION, "") for one in leases]
        return encryption_status(
            encryption.providers.transformers.configuration.providers_of(SECRETS),
            sum(one.stale for one in usage if one.resource == SECRETS),
            {encryption.config_hash, *hashes},
        )


def build_supervisor(parts: SupervisorParts, share: HostShare) -> SupervisorApi | None:
    """Return the supervisor API; None unless it is turned on."""
    return SupervisorApi(parts, share) if parts.config[K3sSettings].k3s_supervisor else None


def _is_of_server(lease: Obj) -> bool:
    return keychange.SERVER_LABEL in (lease["metadata"].get("labels") or {})
