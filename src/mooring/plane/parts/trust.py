"""Builds what one server process trusts and shows: the CAs that sign, the authenticators, and the serving certificate."""

from __future__ import annotations

from mooring.pki.x509.clientissuers import ClientIssuers
from mooring.plane.files.reloading import Reloading
from mooring.plane.keys.carenewal import CaRenewal
from mooring.plane.parts.authentication import Authentication
from mooring.plane.parts.foundation import Foundation
from mooring.plane.serving.context import ServingContext
from mooring.plane.serving.pair import ServingPair
from mooring.plane.signing.authorities import SignerAuthorities
from mooring.plane.signing.policy import FollowedPolicy
from mooring.settings.serving import ServingSettings
from mooring.settings.signing import SigningSettings


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
        self.issuers = ClientIssuers(key_store.ca, self.signing.client_cas)
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
