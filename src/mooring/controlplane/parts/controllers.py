"""Controllers, and the other background work of a server."""

from __future__ import annotations

import logging
import platform
from functools import partial
from pathlib import Path

from mooring.api.core.service import api_address
from mooring.apimachinery.schema import Obj
from mooring.authn.recovery import RecoverySettings
from mooring.authn.x509 import ClientCertificateSettings
from mooring.controllers.certificates.noderecovery import NodeRecovery
from mooring.controllers.certificates.sanpolicy.evidence import serving_names_config_map
from mooring.controllers.table import ControllerSettings, build, selected, without_effect
from mooring.controlplane.addresses import LostAddresses
from mooring.controlplane.carollover import CaFile, CaRollover
from mooring.controlplane.carolloverfiles import RolloverFiles
from mooring.controlplane.encryption import EncryptionLease
from mooring.controlplane.expirywatch import ExpiryWatch
from mooring.controlplane.maintenance import MasterLeases
from mooring.controlplane.notifier import notifier_of
from mooring.controlplane.parts.foundation import Foundation
from mooring.controlplane.parts.status import expiring, server_label
from mooring.controlplane.parts.trust import ServedTrust
from mooring.controlplane.publishing.firstboot import FirstBoot
from mooring.controlplane.publishing.trustpublisher import TrustPublisher
from mooring.controlplane.revocationlist import RevocationListPublisher
from mooring.controlplane.sharedkeys.share import SharedKeys, shares_keys
from mooring.controlplane.snapshots import ScheduledSnapshots
from mooring.pki.x509.bundles import certificates_among
from mooring.reconcile.issuancelog import IssuanceLogWriter
from mooring.reconcile.leaderelection import FencedApi, LeaderElector
from mooring.reconcile.loop import Reconciler
from mooring.settings.controllers import ControllerManagerSettings
from mooring.settings.network import NetworkSettings
from mooring.settings.nodes import NodeSettings
from mooring.settings.serving import ServingSettings
from mooring.settings.signing import ApprovalSettings, SigningSettings
from mooring.settings.snapshots import SnapshotSettings
from mooring.settings.storage import StorageSettings
from mooring.trust.issuancelog import IssuanceLogKey
from mooring.trust.notices import NoticeSettings

log = logging.getLogger("mooring")

# Builds the controllers of one server process, and what decides on which server they run.

USERS_OF_POLICY = ("certificatesigningrequest-signing-controller", "podcertificaterequest-signing-controller")
"""Controllers by which a request waits as the signing policy says: it would fail, or is left alone."""


class Controllers:
    """Controllers, leader election, and what only the leader does."""

    def __init__(self, base: Foundation, trust: ServedTrust) -> None:
        """Raises ConfigError for controllers that do not exist, and for files of notices that cannot be used."""
        self.master_leases = _master_leases(base)
        """None for a server that is alone on its store."""
        self.settings = self._settings(base, trust)
        self.elector = LeaderElector(
            base.api_of("leader-election"), base.clock, base.process.identity, base.process.is_gone
        )

        def fenced(writer: str) -> FencedApi:
            return FencedApi(base.api_of(writer), lambda: self.elector.may_write)

        key = base.key_store.issuance_log_key
        issuance_log = IssuanceLogWriter(fenced("lineage"), IssuanceLogKey(key) if key is not None else None)
        self.notifier = notifier_of(
            base.config[NoticeSettings],
            base.config.endpoints[0].url,
            trust.authentication.reloading,
            base.clock,
        )
        """None without a receiver."""
        names = selected(base.config[ControllerManagerSettings].controllers)
        for line in without_effect(self.settings, names):
            log.warning("%s", line)
        self.reconciler = Reconciler(
            build(self.settings, names),
            fenced("controllers"),
            base.clock,
            base.entropy,
            record=issuance_log.append,
            api_of=fenced,
            event_written=self.event_written,
        )
        trust.policy.subscribe(partial(self.reconciler.plan_again, *USERS_OF_POLICY))
        self.snapshots = _scheduled_snapshots(base, self.elector)
        """None without a schedule."""

    def event_written(self, event: Obj) -> None:
        """Let the receiver of notices know of an Event that this process wrote."""
        if self.notifier is not None:
            self.notifier.add(event)

    def _addresses(self, base: Foundation) -> tuple[str, ...]:
        """Return the addresses of the servers that live."""
        if self.master_leases is not None:
            return self.master_leases.addresses
        return (base.config.advertise_address,) if base.config.advertise_address else ()

    def _settings(self, base: Foundation, trust: ServedTrust) -> ControllerSettings:
        config = base.config
        network = config[NetworkSettings]
        return ControllerSettings(
            authority_for=trust.signing.authority_for,
            signing_duration=config[SigningSettings].cluster_signing_duration,
            signing_policy=trust.policy.current,
            root_ca=trust.serving.root_ca,
            token_keys=trust.authentication.tokens.keys,
            addresses=lambda: self._addresses(base),
            port=network.secure_port,
            service_address=api_address(network.service_cluster_ip_range),
            node_monitor_grace_period=config[ControllerManagerSettings].node_monitor_grace_period,
            end_silent_members_after=config[ControllerManagerSettings].end_silent_members_after,
            issuance_log_retention=config[ControllerManagerSettings].issuance_log_retention,
            trusts_source_address=True,
            machine_inventory_required=config[ApprovalSettings].inventory_required,
            node_dns_suffixes=config[ApprovalSettings].node_dns_suffixes,
            server_names=lambda: trust.server_names,
            node_recovery=NodeRecovery(config[RecoverySettings].rule_age),
            crls=trust.authentication.client_cas.crls,
            deletion_ends_membership=config[NodeSettings].deletion_ends_membership,
            duplicate_identity=config[NodeSettings].duplicate_identity,
        )


def _master_leases(base: Foundation) -> MasterLeases | None:
    """Return the lease of this server; None when no other server can have its store."""
    storage = base.config[StorageSettings]
    if storage.in_memory or (storage.is_in_data_dir and not shares_keys(base.config)):
        return None
    is_alone = base.process.share.alone
    return MasterLeases(base.parts.stored, base.config.advertise_address, base.clock, is_alone=is_alone)


def _scheduled_snapshots(base: Foundation, elector: LeaderElector) -> ScheduledSnapshots | None:
    settings = base.config[SnapshotSettings]
    if settings.snapshot_schedule_cron is None:
        return None
    return ScheduledSnapshots(
        base.parts.stored,
        settings.snapshot_schedule_cron,
        Path(settings.directory(base.config.data_dir)),
        base.clock,
        keep=settings.snapshot_retention,
        compressed=settings.snapshot_compress,
        leads=lambda: elector.leading,
    )


# Builds what one server process keeps up to date in the store and in its files: first objects, trust, keys, the CRL, warnings.


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
            controllers.event_written,
        )


def _serving_names(base: Foundation, trust: ServedTrust) -> Obj:
    """Return the ConfigMap with the names of this server, which its machine and its data directory identify."""
    server = f"{platform.node()}:{Path(base.config.data_dir).resolve()}"
    return serving_names_config_map(server, trust.server_names, trust.serving.chain[0].not_valid_after_utc)
