"""Health checks of one server process, under kube-apiserver's names where it has the same thing, and what warns of an end."""

from __future__ import annotations

from functools import partial

from mooring.api.mooring import ends
from mooring.plane.expirywatch import ExpiryWatch
from mooring.plane.parts.foundation import Foundation
from mooring.plane.snapshots import ScheduledSnapshots
from mooring.reconcile.loop import Reconciler
from mooring.server.healthchecks import DONE_BEFORE_SERVING, HealthChecks
from mooring.server.metrics import EventLoopLag, Metrics
from mooring.settings.serving import AuditMode


def health_checks(base: Foundation, reconciler: Reconciler, event_loop_lag: EventLoopLag) -> HealthChecks:
    """Return the checks of `/healthz`, `/livez` and `/readyz`."""
    audit, registry, encryption, mark = base.audit.log, base.parts.registry, base.parts.encryption, base.parts.mark
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
            f"mooring_{name.replace('-', '_')}_expiry_timestamp_seconds",
            f"End of {source.text}.",
            partial(expiry_watch.end_of, name),
            min,
        )
