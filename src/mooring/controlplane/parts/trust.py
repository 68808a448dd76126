"""Builds what one server process trusts and shows: CAs that sign, authenticators, and what the listener shows."""

from __future__ import annotations

from collections.abc import Callable

from mooring.authn import table
from mooring.authn.credentials import NOTHING, Authenticator
from mooring.authn.host import Host, Target
from mooring.authn.lastuses import CertificateUses, LastUses
from mooring.authn.serviceaccountsettings import ServiceAccountSettings
from mooring.clock import Clock
from mooring.controlplane.carolloverfiles import CaRenewal
from mooring.controlplane.configuration import ServerConfig
from mooring.controlplane.datadirectory import Reloading
from mooring.controlplane.keystore import KeyStore
from mooring.controlplane.parts.foundation import Foundation
from mooring.controlplane.servingcertificate import ServingContext, ServingPair
from mooring.controlplane.signingkeys import FollowedPolicy, SignerAuthorities
from mooring.pki.x509.clusterca import ClientCertificateIssuers, CombinedIssuers
from mooring.server.authentication.clientcas import FollowedClientCas
from mooring.server.authentication.deferred import DeferredAuthentication
from mooring.server.authentication.kubeconfigtarget import TargetConnector
from mooring.server.authentication.oidc import FollowedConfiguration
from mooring.server.authentication.providers import FollowedTokenKeys
from mooring.settings.serving import ServingSettings
from mooring.settings.signing import SigningSettings

# Builds the authenticators of one server from its settings, key material and files.
#
# Rules kept here: a mistake in a setting or a file stops the start, with the name of the file. Later changes of the files are
# followed. The rows of `mooring.authn.table` do the rest.


class Authentication:
    """The authenticators of one server. Call `start` in the event loop, and `close` at the end."""

    def __init__(
        self,
        config: ServerConfig,
        key_store: KeyStore,
        clock: Clock,
        entropy: Callable[[int], bytes],
        *,
        reloading: Reloading,
        issuers: ClientCertificateIssuers,
        client_cas_changed: Callable[[], None],
        credentials_changed: Callable[[], None],
        count_review: Callable[[str], None],
        workers: int = 1,
    ) -> None:
        """`issuers` are the CAs of clients, unless client-ca-file names others. `count_review` counts answers of the token webhook,
        `workers` is the number of processes of the host that share limits.

        Raises ConfigError for a setting or a file that cannot be used.
        """
        self.reloading = reloading
        self.last_uses = LastUses()
        self.certificate_uses = CertificateUses(clock.monotonic)
        self.tokens = FollowedTokenKeys(
            key_store.token_key,
            key_store.token_keys,
            issuer=config[ServiceAccountSettings].issuer,
            signing_file=key_store.token_signing_file,
            verifying_files=key_store.token_key_files,
            files=self.reloading,
        )
        self.client_cas = FollowedClientCas(config, issuers, self.reloading)
        targets: dict[str, Target] = {}
        self.client_cas.subscribe(client_cas_changed)
        self.deferred_authentication = DeferredAuthentication(clock, entropy, targets, workers)
        self.host = Host(
            clock=clock,
            entropy=entropy,
            files=self.reloading,
            connect=TargetConnector(clock, self.reloading.read),
            targets=targets,
            exchanges=self.deferred_authentication,
            count_review=count_review,
            credentials_changed=credentials_changed,
            client_cas=self.client_cas,
            token_keys=self.tokens,
            last_uses=self.last_uses,
            configuration=FollowedConfiguration(config, self.reloading),
            names=table.NAMES,
        )
        self.running = table.build(config, self.host)
        self.authenticators: tuple[Authenticator, ...] = tuple(
            authenticator
            for running in self.running
            if not running.supervisor
            for authenticator in running.authenticators
        )
        self.supervisor_authenticators: tuple[Authenticator, ...] = tuple(
            authenticator
            for running in sorted(self.running, key=lambda one: not one.supervisor)
            for authenticator in running.authenticators
            if authenticator.judges != NOTHING
        )
        """Those of requests to the supervisor API: its own first, as in k3s, because a machine that has joined offers its
        certificate beside the token. Anonymous access has no group there and is left out."""
        self.schemes: dict[str, str] = {}
        """HTTP authentication schemes beside Bearer that an authenticator judges, those of custom authenticators first."""
        self.supervisor_schemes: dict[str, str] = {}
        for running in reversed(self.running):
            self.supervisor_schemes |= running.schemes
            if not running.supervisor:
                self.schemes |= running.schemes

    def start(self) -> None:
        """Begin the background work of the authenticators, such as fetching keys."""
        for running in self.running:
            running.start()

    async def close(self) -> None:
        """End background work and connections."""
        await self.deferred_authentication.close()
        for running in self.running:
            await running.close()


# Builds what one server process trusts and shows: the CAs that sign, the authenticators, and the serving certificate.


class ServedTrust:
    """Certificates and credentials of one server process."""

    def __init__(self, base: Foundation) -> None:
        """Raises ConfigError for settings and files that cannot be used."""
        config, key_store, clock = base.config, base.key_store, base.clock
        self._config = config
        reloading = Reloading()
        base.parts.encryption.follow(reloading)
        self.signing = SignerAuthorities(config[SigningSettings], key_store.ca.for_signer, reloading)
        self.policy = FollowedPolicy(config[SigningSettings].cluster_signing_policy_file, reloading)
        self.issuers = CombinedIssuers(key_store.ca, self.signing.client_cas)
        self.signing.subscribe(self.issuers.notify)

        def client_cas_changed() -> None:
            base.trust_changed.set()
            base.credentials_changed.set()

        self.authentication = Authentication(
            config,
            key_store,
            clock,
            base.entropy,
            reloading=reloading,
            issuers=self.issuers,
            client_cas_changed=client_cas_changed,
            credentials_changed=base.credentials_changed.set,
            count_review=base.metrics.token_review,
            workers=base.process.share.workers,
        )
        self.signing.warn_of_client_cas(self.authentication.client_cas.clients)
        self.serving = ServingPair(
            config[ServingSettings],
            (key_store.serving_chain, key_store.serving_key),
            key_store.ca,
            reloading,
            clock.now,
            changed=base.trust_changed.set,
            endpoints=config.endpoints,
        )
        self.ca_renewal = CaRenewal(config, key_store, self.serving, clock, base.entropy)
        self.ca_renewal.follow(reloading)
        self.context = ServingContext(
            self.serving,
            lambda: self.authentication.client_cas.every,
            config[ServingSettings].tls_profile(),
            http2=not config[ServingSettings].disable_http2_serving,
        )

    @property
    def server_names(self) -> tuple[str, ...]:
        """Names and addresses of the serving certificate, and those that are published: a wildcard may stand for them."""
        return (*self.serving.names, *(endpoint.host for endpoint in self._config.endpoints))
