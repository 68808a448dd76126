"""Health checks and metrics of one server process, under kube-apiserver's names where it has the same thing."""

from __future__ import annotations

import asyncio
import resource
from functools import partial
from pathlib import Path

from mooring.api.mooring import ends
from mooring.authn.guesses import GuessLimiter
from mooring.plane.background.expirywatch import ExpiryWatch
from mooring.plane.encryption import EncryptionAtRest
from mooring.plane.parts.authentication import Authentication
from mooring.plane.snapshots.schedule import ScheduledSnapshots
from mooring.plane.storemark.storemark import StoreMark
from mooring.reconcile.leaderelection import LeaderElector
from mooring.reconcile.loop import Reconciler
from mooring.registry.store import Registry
from mooring.server.audit.auditor import Auditor
from mooring.server.audit.logfile import AuditLog
from mooring.server.eventlooplag import EventLoopLag
from mooring.server.flowcontrol import FlowControl
from mooring.server.healthchecks import DONE_BEFORE_SERVING, HealthChecks
from mooring.server.metrics import Metrics
from mooring.server.resources.watches import Watches
from mooring.server.transport.listener import Listener
from mooring.settings.audit import AuditMode
from mooring.storage.contract import Storage


def health_checks(
    audit: AuditLog,
    registry: Registry,
    encryption: EncryptionAtRest,
    reconciler: Reconciler,
    event_loop_lag: EventLoopLag,
    stopping: asyncio.Event,
    mark: StoreMark | None,
) -> HealthChecks:
    """Return the checks of `/healthz`, `/livez` and `/readyz`."""
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
    checks.add_warning("ends-settled", lambda: not ends.refusal(registry.views), "healthz", "readyz")
    checks.add_warning("store-continuity", lambda: mark is None or mark.is_continued, "healthz", "readyz")
    checks.add_warning("etcd-alarms", lambda: not storage.alarm, "healthz", "readyz")
    if encryption.has_health_check:
        checks.add("kms-providers", lambda: encryption.providers.healthy, "healthz", "readyz")
    checks.add("informer-sync", lambda: registry.cache.ready, "readyz")
    for name in DONE_BEFORE_SERVING:
        checks.add(name, lambda: True)
    checks.add("controllers", lambda: reconciler.healthy, "livez", "readyz")
    checks.add("event-loop", lambda: not event_loop_lag.is_late, "readyz")
    checks.add("shutdown", lambda: not stopping.is_set(), "readyz")
    return checks


def add_metrics(
    metrics: Metrics,
    *,
    watches: Watches,
    listener: Listener,
    event_loop_lag: EventLoopLag,
    flow: FlowControl,
    guesses: GuessLimiter,
    authentication: Authentication,
    audit: AuditLog,
    auditor: Auditor,
    registry: Registry,
    storage: Storage,
    elector: LeaderElector,
) -> None:
    """Add the gauges and counters that read the parts of a server at each scrape."""
    gauge, counter = metrics.gauge, metrics.counter
    gauge("apiserver_longrunning_requests", "Open watches.", lambda: watches.count)
    gauge("mooring_connections", "Open client connections.", lambda: len(listener.connections))
    counter("mooring_connections_refused_total", "Beyond the limits.", lambda: listener.refused)
    gauge("process_open_fds", "Open file descriptors.", _open_descriptors)
    gauge("process_max_fds", "Limit of open file descriptors.", lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    counter("mooring_connections_cut_off_total", "Readers too slow.", lambda: listener.held_bytes.cut_off)
    gauge("mooring_held_bytes", "Unread replies and unfinished requests.", lambda: listener.held_bytes.size)
    gauge("mooring_event_loop_late_seconds", "Median of recent timers.", lambda: event_loop_lag.seconds, max)
    counter("mooring_failed_handshakes_total", "TLS handshakes.", lambda: listener.failed_handshakes)
    counter("mooring_requests_queued_total", "Requests that had to wait for a seat.", lambda: flow.queued)
    counter("mooring_requests_rejected_total", "Requests answered 429 by flow control.", lambda: flow.rejected)
    counter("mooring_failed_authentications_total", "Failed authentications.", lambda: guesses.counters.failures)
    for running in authentication.running:
        for one in running.gauges:
            gauge(one.name, one.help, one.read, max)
    counter("mooring_audit_dropped_total", "Audit records lost.", lambda: audit.lost)
    gauge(
        "mooring_audit_log_failing",
        "1 while audit records cannot be written, or their file cannot be rotated.",
        lambda: float(bool(audit.problem)),
        max,
    )
    counter(
        "apiserver_audit_requests_rejected_total",
        "Requests refused because they could not be recorded.",
        lambda: auditor.rejected,
    )
    gauge("mooring_storage_revision", "Newest revision seen.", lambda: registry.cache.revision, max)
    gauge("mooring_storage_failing", "1 while the store does not serve.", lambda: float(bool(storage.problem)), max)
    gauge("mooring_storage_alarm", "1 while the store has an alarm.", lambda: float(bool(storage.alarm)), max)
    counter(
        "mooring_storage_checkpoint_failures_total",
        "Failed copies of SQLite's write-ahead log into the database.",
        lambda: storage.counters.checkpoint_failures,
    )
    counter(
        "mooring_storage_verified_records_total",
        "Stored records that were verified in the background.",
        lambda: storage.counters.verified,
    )
    gauge(
        "mooring_storage_damaged_records",
        "Stored records that the verification in the background found damaged.",
        lambda: storage.counters.damaged,
        max,
    )
    gauge("mooring_unreadable_objects", "Objects that cannot be read.", lambda: len(registry.cache.unreadable), max)
    gauge(
        "mooring_ends_unsettled",
        "1 while nothing is issued, because the store is older than what a server remembers.",
        lambda: float(bool(ends.refusal(registry.views))),
        max,
    )
    gauge("leader_election_master_status", "1 while controllers run here.", lambda: float(elector.leading))


def _open_descriptors() -> int:
    """Return the number of open descriptors; 0 on a system without /proc."""
    try:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())
    except OSError:
        return 0


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
            f"mooring_{name.replace('-', '_')}_expiry_timestamp_seconds",
            f"End of {source.text}.",
            partial(expiry_watch.end_of, name),
            min,
        )
