"""Builds what one server process keeps up to date in the store and in its files: first objects, trust, keys, the CRL, warnings."""

from __future__ import annotations

import platform
from pathlib import Path

from mooring.apimachinery.schema import Obj
from mooring.authn.x509 import ClientCertificateSettings
from mooring.controllers.certificates.names.nameevidence import serving_names_config_map
from mooring.pki.x509.bundles import certificates_among
from mooring.plane.background.encryptionlease import EncryptionLease
from mooring.plane.background.expirywatch import ExpiryWatch
from mooring.plane.background.revocationlist import RevocationListPublisher
from mooring.plane.endpoints import LostAddresses
from mooring.plane.parts.controllers import Controllers
from mooring.plane.parts.foundation import Foundation
from mooring.plane.parts.status import expiring, server_label
from mooring.plane.parts.trust import ServedTrust
from mooring.plane.publishing.firstboot import FirstBoot
from mooring.plane.publishing.trustpublisher import TrustPublisher
from mooring.plane.rollover.files import RolloverFiles
from mooring.plane.rollover.runner import CaFile, CaRollover
from mooring.plane.sharedkeys.share import SharedKeys, shares_keys
from mooring.settings.serving import ServingSettings
from mooring.settings.storage import StorageSettings


class Upkeep:
    """Work of one server process beside requests and controllers."""

    def __init__(self, base: Foundation, trust: ServedTrust, controllers: Controllers) -> None:
        config, key_store, registry, clock = base.config, base.key_store, base.parts.registry, base.clock
        client_cas = trust.authentication.client_cas
        self.first_boot = FirstBoot(registry, clock, config, trust.serving.root_ca, trust.issuers)
        self.trust_publisher = TrustPublisher(
            base.trust_changed,
            trust.context,
            trust.serving.root_ca,
            trust.issuers,
            client_cas.bundles.config_map,
            lambda: _serving_names(base, trust),
            registry,
            self.first_boot,
            controllers.reconciler,
            clock,
        )
        self.shared_keys: SharedKeys | None = None
        """None when the CA or the store is in memory only."""
        self.ca_rollover: CaRollover | None = None
        """None when the CA is in memory only."""
        if key_store.pki is not None:
            if not config[StorageSettings].in_memory:
                self.shared_keys = SharedKeys(config, base.parts.stored, base.entropy, clock)
            self.ca_rollover = CaRollover(
                registry,
                RolloverFiles(key_store.pki.parent),
                trust.ca_renewal,
                trust.serving.root_ca,
                lambda: client_cas.clients,
                self.first_boot.join_obstacles,
                lambda: controllers.elector.leading,
                clock,
                base.entropy,
                base.process.identity,
                self.shared_keys if shares_keys(config) else None,
                self.shared_keys.claim if self.shared_keys is not None else None,
                tuple(
                    CaFile(flag, Path(path), in_force)
                    for flag, path, in_force in (
                        (
                            "client-ca-file",
                            config[ClientCertificateSettings].client_ca_file,
                            lambda: client_cas.clients,
                        ),
                        (
                            "root-ca-file",
                            config[ServingSettings].root_ca_file,
                            lambda: certificates_among(trust.serving.root_ca.pem),
                        ),
                    )
                    if path
                ),
            )
        self.encryption_lease = EncryptionLease(
            base.parts.encryption,
            base.api_of("encryption-lease"),
            clock,
            base.process.identity,
            base.process.is_gone,
        )
        self.revocation_list = RevocationListPublisher(registry, key_store.ca, key_store.pki, clock)
        self.lost_addresses = LostAddresses(config)
        self.expiry_watch = ExpiryWatch(
            expiring(config, key_store.ca, trust.serving, trust.authentication, trust.signing),
            registry,
            clock,
            server_label(config),
            lambda now: base.credentials_changed.set() if client_cas.crls.has_passed(now) else None,
        )


def _serving_names(base: Foundation, trust: ServedTrust) -> Obj:
    """Return the ConfigMap with the names of this server, which its machine and its data directory identify."""
    server = f"{platform.node()}:{Path(base.config.data_dir).resolve()}"
    return serving_names_config_map(server, trust.server_names, trust.serving.chain[0].not_valid_after_utc)
