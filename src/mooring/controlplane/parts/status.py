"""Builds what tells the state of one server process: health checks, warnings and its report."""

from __future__ import annotations

import platform
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from mooring import __version__, build
from mooring.api.mooring import tombstones
from mooring.apimachinery.schema import Obj
from mooring.authn.requestheadersettings import RequestHeaderSettings
from mooring.authn.x509 import ClientCertificateSettings
from mooring.client.files import read_limited
from mooring.clock import Clock, rfc3339, rfc3339_micro
from mooring.controlplane.configuration import ServerConfig
from mooring.controlplane.expirywatch import Ending, ExpirySource, ExpiryWatch
from mooring.controlplane.parts.foundation import Audit, Foundation, RegistryParts
from mooring.controlplane.parts.trust import Authentication
from mooring.controlplane.servingcertificate import ServingPair
from mooring.controlplane.signingkeys import SignerAuthorities
from mooring.controlplane.snapshots import ScheduledSnapshots, newest
from mooring.errors import ConfigError
from mooring.pki.keys import algorithm_of
from mooring.pki.x509.bundles import certificates, certificates_among
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.clusterca import ClusterCa
from mooring.pki.x509.crl import Crl
from mooring.reconcile.loop import Reconciler
from mooring.server.healthchecks import DONE_BEFORE_SERVING, HealthChecks
from mooring.server.metrics import EventLoopLag, Metrics
from mooring.settings.serving import AuditMode, ServingSettings, WorkersSettings
from mooring.settings.signing import SigningSettings
from mooring.settings.snapshots import SnapshotSettings
from mooring.settings.storage import StorageSettings
from mooring.trust.kubeconfigtext import parse_kubeconfig

# Health checks of one server process, under kube-apiserver's names where it has the same thing, and what warns of an end.


def health_checks(base: Foundation, reconciler: Reconciler, event_loop_lag: EventLoopLag) -> HealthChecks:
    """Return the checks of `/healthz`, `/livez` and `/readyz`."""
    audit, registry, encryption, watermark = (
        base.audit.log,
        base.parts.registry,
        base.parts.encryption,
        base.parts.watermark,
    )
    checks = HealthChecks()
    is_strict = audit.mode is AuditMode.BLOCKING_STRICT
    checks.add("log", lambda: audit.running, "livez")
    checks.add(
        "log",
        lambda: audit.running and (audit.is_recording or not is_strict),
        "healthz",
        "readyz",
        warns=lambda: bool(audit.problem),
    )
    storage = encryption.storage
    checks.add("etcd", lambda: registry.cache.ready and not storage.problem)
    checks.add_warning("unreadable-objects", lambda: not registry.cache.unreadable, "healthz", "readyz")
    checks.add_warning("restore-check", lambda: not tombstones.refusal(registry.views), "healthz", "readyz")
    checks.add_warning("store-continuity", lambda: watermark is None or watermark.is_continued, "healthz", "readyz")
    checks.add_warning("etcd-alarms", lambda: not storage.alarm, "healthz", "readyz")
    if encryption.has_health_check:
        checks.add("kms-providers", lambda: encryption.providers.healthy, "healthz", "readyz")
    checks.add("informer-sync", lambda: registry.cache.ready, "readyz")
    for name in DONE_BEFORE_SERVING:
        checks.add(name, lambda: True)
    checks.add("controllers", lambda: reconciler.healthy, "livez", "readyz")
    checks.add("event-loop", lambda: not event_loop_lag.is_late, "readyz")
    checks.add("shutdown", lambda: not base.stopping.is_set(), "readyz")
    return checks


def watch_snapshots(snapshots: ScheduledSnapshots, health: HealthChecks, metrics: Metrics) -> None:
    """Add the warning and the metrics of scheduled snapshots."""
    health.add_warning("snapshots", lambda: not snapshots.problem, "healthz", "readyz")
    gauge, counter = metrics.gauge, metrics.counter
    gauge(
        "mooring_snapshot_last_success_timestamp_seconds",
        "Last scheduled snapshot of this server.",
        lambda: snapshots.last_success,
        max,
    )
    gauge("mooring_snapshot_size_bytes", "Size of that snapshot.", lambda: snapshots.saved_bytes, max)
    counter("mooring_snapshot_failures_total", "Failed scheduled snapshots.", lambda: snapshots.failures)


def watch_expiry(expiry_watch: ExpiryWatch, health: HealthChecks, metrics: Metrics) -> None:
    """Add the warning and the metrics of certificates that end."""
    health.add_warning("certificates", lambda: expiry_watch.passes, "healthz", "readyz")
    for name, source in expiry_watch.sources.items():
        metrics.gauge(
            f"mooring_{name.replace('-', '_')}_expiration_timestamp_seconds",
            f"End of {source.text}.",
            partial(expiry_watch.end_of, name),
            min,
        )


# Sources of certificates that end some day, for `ExpiryWatch`: its own certificates and CAs, and those of the operator's files.

KUBECONFIGS = ("admin.conf", "super-admin.conf")
_OWN = "this server renews it, and failed to: its log says why"


def expiring(
    config: ServerConfig,
    ca: ClusterCa,
    serving: ServingPair,
    authentication: Authentication,
    signing: SignerAuthorities,
) -> dict[str, ExpirySource]:
    """Return the sources of a server, by their names."""
    of_files = bool(config[ServingSettings].tls_cert_file)
    found = {
        "serving-certificate": ExpirySource(
            "the serving certificate of tls-cert-file" if of_files else "the serving certificate",
            "write its successor and the key to the same files; a running server takes them" if of_files else _OWN,
            lambda: serving.chain,
            is_renewed=not of_files,
            file=config[ServingSettings].tls_cert_file or f"{config.data_dir}/pki/apiserver.crt",
        ),
        "ca": ExpirySource(
            "the CA of the cluster",
            "replace it with mooring ca rollover start",
            lambda: (ca.authority.certificate,),
            is_ca=True,
            file=f"{config.data_dir}/pki/ca.crt",
        ),
        "client-ca": ExpirySource(
            "the last CA that verifies clients",
            "write its successor to client-ca-file, or replace the CA of the cluster with mooring ca rollover start",
            lambda: authentication.client_cas.clients,
            is_ca=True,
            last_counts=True,
            file=config[ClientCertificateSettings].client_ca_file,
        ),
    }
    if file := config[RequestHeaderSettings].requestheader_client_ca_file:
        found["requestheader-client-ca"] = ExpirySource(
            "the last CA that verifies authenticating proxies",
            "write its successor to requestheader-client-ca-file; a running server takes it",
            lambda: authentication.client_cas.proxies,
            is_ca=True,
            last_counts=True,
            file=file,
        )
    if config[ClientCertificateSettings].client_crl_file:
        found["client-crl"] = ExpirySource(
            "a CRL of client-crl-file",
            "write the one that its CA has published since to the same file; a running server takes it",
            lambda: tuple(map(_CrlEnd, authentication.client_cas.crls.crls.values())),
        )
    if signing.certificates:
        found["signer-ca"] = ExpirySource(
            "a CA of a signer",
            "replace the files of the setting cluster-signing that names it; a running server takes them",
            lambda: signing.certificates,
            is_ca=True,
        )
    if file := config[StorageSettings].etcd_certfile:
        found["etcd-client-certificate"] = ExpirySource(
            "the client certificate of etcd-certfile",
            "write its successor and the key to the same files, and start this server again",
            lambda: _read(file),
            file=file,
        )
    return found


def kubeconfigs(config: ServerConfig) -> dict[str, ExpirySource]:
    """Return the administrators' kubeconfigs of the data directory, which the server renews, by their names."""
    return {
        name: ExpirySource(
            f"the client certificate of {name}",
            _OWN,
            partial(_of_kubeconfig, Path(config.data_dir) / name),
            is_renewed=True,
            file=f"{config.data_dir}/{name}",
            may_be_missing=True,
        )
        for name in KUBECONFIGS
    }


def server_label(config: ServerConfig) -> str:
    """Return what tells this server from others in the name of an Event: a DNS label of its address or host name."""
    return (
        re.sub(r"[^a-z0-9]+", "-", (config.advertise_address or socket.gethostname()).lower()).strip("-")[:60]
        or "server"
    )


@dataclass(frozen=True, slots=True)
class _CrlEnd:
    """A CRL as something that ends."""

    crl: Crl

    @property
    def not_valid_before_utc(self) -> datetime:
        return self.crl.this_update

    @property
    def not_valid_after_utc(self) -> datetime:
        return self.crl.next_update

    @property
    def serial_number(self) -> int:
        return int(self.crl.this_update.timestamp())


def _of_kubeconfig(path: Path) -> Sequence[Certificate]:
    """Return the client certificates in a kubeconfig. Raises MooringError."""
    users = parse_kubeconfig(read_limited(path)).users
    return [one for user in users if user.certificate_pem for one in certificates(user.certificate_pem)[:1]]


def _read(file: str) -> Sequence[Certificate]:
    """Return the certificates of a file. Raises MooringError."""
    return certificates_among(read_limited(Path(file)))


# Report of one server about itself: its certificates, its store, its snapshots and its workers.

_SQLITE = "sqlite:"
_SQLITE_FILES = ("", "-wal")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """Makes the report."""

    config: ServerConfig
    clock: Clock
    parts: RegistryParts
    audit: Audit
    serving: ServingPair
    sources: Mapping[str, ExpirySource]
    """Sources of certificates that end some day, by name."""
    snapshots: ScheduledSnapshots | None
    lost_addresses: Callable[[], Sequence[str]]

    def report(self) -> Obj:
        """Return the report. Files are read."""
        ends = {name: source.examine() for name, source in self.sources.items()}
        signing = self.config[SigningSettings]
        return {
            "time": rfc3339_micro(self.clock.now()),
            "server": platform.node(),
            "dataDir": self.config.data_dir,
            "version": __version__,
            "commit": build.commit(),
            "addresses": [str(one) for one in self.config.endpoints],
            "lostAddresses": list(self.lost_addresses()),
            "workers": self.config[WorkersSettings].workers,
            "certificates": [self._certificate(name, end) for name, (end, _) in ends.items() if end is not None],
            "unreadable": [
                {"description": self.sources[name].text, "file": self.sources[name].file, "problem": problem}
                for name, (_, problem) in ends.items()
                if problem
            ],
            "store": self._store(),
            "servingKey": algorithm_of(self.serving.key),
            "auditLog": {"enabled": self.audit.auditor.is_on, "problem": self.audit.log.problem},
            "signing": {
                "ownSigners": [name for name, _ in signing.signer],
                "hasPolicy": bool(signing.cluster_signing_policy_file),
            },
            "snapshots": self._snapshots(),
            "encryption": {
                "configured": self.parts.encryption.configured,
                "encryptsSecrets": self.parts.encryption.encrypts_secrets,
                "configHash": self.parts.encryption.config_hash,
            },
        }

    def _certificate(self, name: str, end: Ending) -> Obj:
        source = self.sources[name]
        return {
            "name": name,
            "description": source.text,
            "file": source.file,
            "serialNumber": f"{end.serial_number:x}",
            "notBefore": rfc3339(end.not_valid_before_utc),
            "notAfter": rfc3339(end.not_valid_after_utc),
            "isCA": source.is_ca,
            "renewedByServer": source.is_renewed,
            "advice": "" if source.is_renewed else source.advice,
        }

    def _store(self) -> Obj:
        url, storage = self.config[StorageSettings].storage_url, self.parts.storage
        kind = url.partition(":")[0]
        found: Obj = {
            "kind": kind,
            "revision": self.parts.registry.cache.revision,
            "problem": storage.problem,
            "alarm": storage.alarm,
            "refusesWrites": storage.refuses_writes,
            "unreadableObjects": len(self.parts.registry.cache.unreadable),
        }
        if kind == "sqlite":
            found["bytes"] = sum(_size(url.removeprefix(_SQLITE) + end) for end in _SQLITE_FILES)
        return found

    def _snapshots(self) -> Obj:
        settings = self.config[SnapshotSettings]
        directory = Path(settings.directory(self.config.data_dir))
        try:
            last = newest(directory)
        except ConfigError:
            # The first snapshot makes the directory.
            last = None
        return {
            "scheduled": self.snapshots is not None,
            "directory": str(directory),
            "onDiskOfStore": self._is_on_disk_of_store(directory),
            "problem": self.snapshots.problem if self.snapshots is not None else "",
            "last": last
            and {"file": last.path.name, "bytes": last.size, "problem": last.problem}
            | ({"time": last.header.time, "revision": last.header.revision} if last.header is not None else {}),
        }

    def _is_on_disk_of_store(self, directory: Path) -> bool:
        """Return True when one lost disk takes the store and the snapshots."""
        url = self.config[StorageSettings].storage_url
        if not url.startswith(_SQLITE):
            return False
        store, place = Path(url.removeprefix(_SQLITE)), directory
        # The first snapshot makes the directory.
        while not place.exists():
            place = place.parent
        try:
            return store.stat().st_dev == place.stat().st_dev
        except OSError:
            return False


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0
