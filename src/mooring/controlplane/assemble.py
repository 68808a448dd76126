"""Composition root: builds every part of one server process once, in the order of dependence; and the metrics that read them."""

from __future__ import annotations

from dataclasses import dataclass

from mooring.api.mooring import tombstones
from mooring.controlplane.encryption import EncryptionMetrics
from mooring.controlplane.membermetrics import MemberMetrics
from mooring.controlplane.notifier import NoticeMetrics
from mooring.controlplane.parts.controllers import Controllers, Upkeep
from mooring.controlplane.parts.foundation import Foundation
from mooring.controlplane.parts.http import Http
from mooring.controlplane.parts.status import watch_expiry, watch_snapshots
from mooring.controlplane.parts.trust import Authentication, ServedTrust
from mooring.reconcile.leaderelection import LeaderElector

# Metrics of one server process that read its parts, under kube-apiserver's names where it has the same thing.


def add_metrics(base: Foundation, authentication: Authentication, elector: LeaderElector, http: Http) -> None:
    """Add the gauges and counters that read the parts of a server at each scrape."""
    gauge, counter = base.metrics.gauge, base.metrics.counter
    audit, registry, storage = base.audit.log, base.parts.registry, base.parts.storage
    listener = http.listener
    gauge("apiserver_longrunning_requests", "Open watches.", lambda: http.watches.count)
    gauge("mooring_connections", "Open client connections.", lambda: len(listener.connections))
    counter("mooring_connections_refused_total", "Beyond the limits.", lambda: listener.refused)
    base.metrics.add_process()
    counter("mooring_connections_cut_off_total", "Readers too slow.", lambda: listener.held_bytes.cut_off)
    gauge("mooring_held_bytes", "Unread replies and unfinished requests.", lambda: listener.held_bytes.size)
    gauge("mooring_event_loop_late_seconds", "Median of recent timers.", lambda: http.event_loop_lag.seconds, max)
    counter("mooring_failed_handshakes_total", "TLS handshakes.", lambda: listener.failed_handshakes)
    counter("mooring_requests_queued_total", "Requests that had to wait for a seat.", lambda: http.flow.queued)
    counter("mooring_requests_rejected_total", "Requests answered 429 by flow control.", lambda: http.flow.rejected)
    counter(
        "mooring_failed_authentications_total", "Failed authentications.", lambda: http.auth_failures.counters.failures
    )
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
        lambda: base.audit.auditor.rejected,
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
        "mooring_restore_check_pending",
        "1 while nothing is issued, because the store is older than what a server remembers.",
        lambda: float(bool(tombstones.refusal(registry.views))),
        max,
    )
    MemberMetrics(registry.views, base.clock, lambda: elector.leading).add_to(base.metrics)
    gauge("leader_election_master_status", "1 while controllers run here.", lambda: float(elector.leading))


# Composition root: builds every part of one server process once, whole, in the order in which the parts depend on each other.
#
# Rules kept here:
# * Each group of parts (`mooring.controlplane.parts`) builds its own, from the foundation and from the groups before it.
# * A part gets as arguments what it uses, and nothing is assigned to it afterwards. Nothing is global, and nothing is started
#   here.
# * What happens at run time is passed on by events that exist before the parts: `trust_changed`, `credentials_changed`,
#   `stopping`.


@dataclass(frozen=True, slots=True)
class Assembly:
    """The groups of parts of one server process."""

    base: Foundation
    trust: ServedTrust
    controllers: Controllers
    upkeep: Upkeep
    http: Http


def assemble(base: Foundation) -> Assembly:
    """Build the parts of a server over an open registry. Raises ConfigError for settings and files that cannot be used."""
    base.metrics.registry.register(EncryptionMetrics(base.parts.encryption, base.process.identity))
    trust = ServedTrust(base)
    controllers = Controllers(base, trust)
    upkeep = Upkeep(base, trust, controllers)
    http = Http(base, trust, controllers, upkeep)
    add_metrics(base, trust.authentication, controllers.elector, http)
    watch_expiry(upkeep.expiry_watch, http.health, base.metrics)
    if controllers.snapshots is not None:
        watch_snapshots(controllers.snapshots, http.health, base.metrics)
    if controllers.notifier is not None:
        base.metrics.registry.register(NoticeMetrics(controllers.notifier))
    return Assembly(base, trust, controllers, upkeep, http)
