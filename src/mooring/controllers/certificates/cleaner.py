"""Deletion of old certificate requests, records of the issuance log and entries of the denylist, and denial of revoked requests."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice

from mooring.api.certificates.podcertificaterequest import PLURAL as POD_REQUESTS
from mooring.api.certificates.requestrecords import APPROVED, DENIED, FAILED, conditions_of, precedes
from mooring.api.certificates.requeststate import REQUESTS, is_issued
from mooring.api.mooring import tombstones
from mooring.api.mooring.certificaterevocation import KEPT_AFTER_EXPIRY, key_entry, node_entry
from mooring.api.mooring.certificaterevocation import PLURAL as REVOCATIONS
from mooring.api.mooring.lineagerecord import PLURAL as LINEAGE_RECORDS
from mooring.api.mooring.lineagerecord import TrimmedLog, end_of, newest_trim
from mooring.api.mooring.membership import is_terminating
from mooring.api.objectmeta import spec_of
from mooring.api.view import View, Views
from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339, rfc3339
from mooring.controllers.actions import GRACE, Action, Delete, Entropy, Key, Overdue, RecordIssuance, Requeue
from mooring.controllers.certificates.issuance import NEEDS_APPROVAL, WOULD_FAIL, Hold, PendingIssue
from mooring.identity import ANONYMOUS
from mooring.pki.errors import PkiError
from mooring.pki.x509.bundles import first_certificate
from mooring.trust.issuancelog import START, TRIMMED, checkpoint_of, record_name

# certificatesigningrequest-cleaner-controller: deletes old CertificateSigningRequests.
#
# Rules kept here (docs/protocol/certificate-signing-requests.md#cleaner):
# * An issued request is deleted one hour after its approval, or as soon as its certificate has expired. A denied or failed one is
#   deleted after an hour. One without any condition, or with NeedsApproval alone, and one approved but never issued, is deleted
#   after 24 hours.
# * A request that was made without a credential waits for an hour, and is kept for a day once it was denied: its machine is told
#   so meanwhile (docs/join-by-asking.md).
# * Ages count from the condition's lastUpdateTime. A condition without a readable one never makes a request old.
# * kube-controller-manager checks every hour; here the request is planned again at the moment it falls due.

DONE_AFTER = timedelta(hours=1)
"""Long enough for the requester to fetch the certificate."""
ABANDONED_AFTER = timedelta(hours=24)
"""Long enough for an administrator to return to work and decide."""


@dataclass(frozen=True, slots=True)
class CsrCleaner:
    """Deletes old requests."""

    name: str = "certificatesigningrequest-cleaner-controller"
    watches: tuple[str, ...] = (REQUESTS,)

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        return () if deleted else (("", obj["metadata"]["name"]),)

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        csr = views[REQUESTS].get(key[1])
        if csr is None or csr["metadata"].get("deletionTimestamp"):
            return ()
        due = min(_due_times(csr), default=None)
        if due is None:
            return ()
        if due > now:
            return (Requeue(due),)
        return (Delete.of(REQUESTS, csr),)


def _due_times(csr: Obj) -> Iterator[datetime]:
    """Yield every moment at which the request falls due."""
    conditions, is_asked = conditions_of(csr), spec_of(csr).get("username") == ANONYMOUS
    if all(condition.get("type") in (NEEDS_APPROVAL, WOULD_FAIL) for condition in conditions):
        age = DONE_AFTER if is_asked else ABANDONED_AFTER
        yield from _due_after(csr["metadata"].get("creationTimestamp"), age)
    for condition in conditions:
        kind, updated = condition.get("type"), condition.get("lastUpdateTime")
        if kind == APPROVED:
            yield from _due_after(updated, DONE_AFTER if is_issued(csr) else ABANDONED_AFTER)
            yield from _certificate_end(csr)
        elif kind in (DENIED, FAILED):
            yield from _due_after(updated, ABANDONED_AFTER if is_asked and kind == DENIED else DONE_AFTER)


def _due_after(text: str | None, age: timedelta) -> Iterator[datetime]:
    try:
        yield parse_rfc3339(text or "") + age
    except (ValueError, OverflowError):
        return


def _certificate_end(csr: Obj) -> Iterator[datetime]:
    """Yield the expiry of the first issued certificate, if it can be parsed."""
    if not is_issued(csr):
        return
    try:
        first = first_certificate(base64.b64decode(csr["status"]["certificate"]))
    except (PkiError, ValueError):  # ValueError: no base64
        return
    yield first.not_valid_after_utc


# podcertificaterequest-cleaner-controller: deletes PodCertificateRequests 15 minutes after their creation.
#
# Rules kept here (docs/protocol/pod-certificate-requests.md#cleaner):
# * A request is deleted whatever its state is. The kubelet that made it has the answer by then, and makes another one otherwise.
# * kube-controller-manager looks every 5 minutes; here the request is planned again at the moment it falls due.
# * A clock that runs ahead deletes requests early. Nothing is lost with them, so that they do not wait for a day as revocations
#   do.
# * A request without a readable creationTimestamp stays.

KEPT_FOR = timedelta(minutes=15)
"""kube-controller-manager's threshold: longer than a kubelet waits for an answer."""


@dataclass(frozen=True, slots=True)
class PodRequestCleaner:
    """Deletes old requests of Pods."""

    name: str = "podcertificaterequest-cleaner-controller"
    watches: tuple[str, ...] = (POD_REQUESTS,)

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        return () if deleted else ((obj["metadata"]["namespace"], obj["metadata"]["name"]),)

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        namespace, name = key
        request = views[POD_REQUESTS].get(name, namespace)
        if request is None or request["metadata"].get("deletionTimestamp"):
            return ()
        try:
            due = parse_rfc3339(request["metadata"].get("creationTimestamp") or "") + KEPT_FOR
        except (ValueError, OverflowError):
            return ()
        return (Requeue(due),) if due > now else (Delete.of(POD_REQUESTS, request),)


# revocation-cleaner: deletes entries of the denylist that are no longer needed.
#
# Rules kept here:
# * An entry is deleted KEPT_AFTER_EXPIRY after the day of its `expiresAt`, or later while an expired certificate recovers by
#   rule: a revoked machine must not come back that way. The clock must have said so for a day (`mooring.controllers.actions`).
# * An entry without `expiresAt` stays.
# * Entries are planned by the day of their `expiresAt`: 100 000 entries are a few hundred keys, and not as many timers.
# * The delete carries uid and resourceVersion: an entry that was just prolonged stays.
# * Deletion is hygiene: the check of certificates takes an entry into account as long as it exists.

DAY = timedelta(days=1)
MAX_DELETES = 500
"""Entries deleted by one plan, so that other controllers have their turn."""


@dataclass(slots=True)
class RevocationCleaner:
    """Deletes entries of certificates that ended long ago."""

    recovery_age: timedelta | None = None
    """Time after its end within which a node certificate recovers by rule."""
    name: str = "revocation-cleaner"
    watches: tuple[str, ...] = (REVOCATIONS,)
    _by_day: dict[str, dict[str, None]] = field(default_factory=dict)
    """Names of entries by the day of their `expiresAt`. A name whose entry has another day now is dropped when its day is due."""
    _overdue: Overdue = field(default_factory=Overdue)

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        day = _day_of(obj)
        if deleted or not day:
            return ()
        names = self._by_day.setdefault(day, {})
        names[obj["metadata"]["name"]] = None
        return (("", day),)

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        day = key[1]
        begin = parse_rfc3339(f"{day}T00:00:00Z")
        if begin > now:
            return (Requeue(begin),)
        due = begin + DAY + max(KEPT_AFTER_EXPIRY, self.recovery_age or KEPT_AFTER_EXPIRY)
        deletable = self._overdue.deletable_at(key, due, now)
        if deletable > now:
            return (Requeue(deletable),)
        names = self._by_day.get(day, {})
        actions: list[Action] = []
        for name in list(islice(names, MAX_DELETES)):
            del names[name]
            entry = views[REVOCATIONS].get(name)
            if entry is not None and _day_of(entry) == day and not entry["metadata"].get("deletionTimestamp"):
                actions.append(Delete.of(REVOCATIONS, entry))
        if names:
            return (*actions, Requeue(now))
        self._by_day.pop(day, None)
        self._overdue.forget(key)
        return actions


def _day_of(entry: Obj) -> str:
    """Return the day of `expiresAt`, as `2026-01-31`; "" without it. Stored times are in UTC."""
    text: str = spec_of(entry).get("expiresAt") or ""
    return text[:10]


# issuance-log-trimmer: deletes records of certificates that ended long ago.
#
# Rules kept here (docs/trace-a-certificate.md#trim):
# * The oldest records go, up to the first one with a certificate that ended less than the retention ago, or whose end is not known.
# * An entry says so first, in the chain and signed with it. Records are deleted once it is stored, from the oldest on: a trim that
#   was killed half-way leaves no gap, and the next plan goes on with it.
# * The clock must have said so of these records for a day: a deletion cannot be taken back. Another writer's entry gives no record
#   a shorter retention than this server has.
# * The log is looked at once a day, and not at each certificate.


MAX_A_DAY = 5000
"""Records that are found due at a time: reading them takes about 50 ms."""


@dataclass(frozen=True, slots=True)
class DueRecords:
    """The oldest records, up to the number `last`, and the time at which all of them were found to be due."""

    since: datetime
    last: int


@dataclass(slots=True)
class IssuanceLogTrimmer:
    """Trims the issuance log."""

    retention: timedelta | None = None
    """Time that a record outlives its certificates, at least MIN_RETENTION; None keeps all."""
    name: str = "issuance-log-trimmer"
    _trimmed: TrimmedLog = field(default_factory=TrimmedLog)
    _due: DueRecords | None = None

    @property
    def watches(self) -> tuple[str, ...]:
        # a server that keeps all does not read them at its start
        return () if self.retention is None else (LINEAGE_RECORDS, tombstones.CONFIG_MAPS)

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        """Return the key for the first record, or for one that says what was trimmed: every log has one of the two."""
        if plural != LINEAGE_RECORDS or deleted:
            return ()
        is_first = obj["metadata"]["name"] == record_name(START.sequence + 1)
        return (_ALL,) if is_first or newest_trim((obj,)) is not START else ()

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        view = views[LINEAGE_RECORDS]
        if tombstones.refusal(views):
            # The store is older than what a server remembers: nothing is appended until that is settled.
            self._due = None
            return (Requeue(now + DAY),)
        mark = self._trimmed.checkpoint(view)
        first = mark.sequence + 1
        while view.get(record_name(first - 1)) is not None:
            first -= 1
        if self._due is None or not self._due.since <= now or self._due.last < first:
            # What is due now is trimmed in a day. What a clock that is set makes due meanwhile waits for a day of its own.
            last = first - 1 + sum(1 for _ in islice(self._old(view, first, now), MAX_A_DAY))
            self._due = DueRecords(now, last) if last >= first else None
            return (Requeue(now + DAY),)
        if now < self._due.since + GRACE:
            return (Requeue(self._due.since + GRACE),)
        old = list(islice(self._old(view, first, now), min(MAX_DELETES, self._due.last + 1 - first)))
        left = old[: mark.sequence + 1 - first]
        if left:
            # What stands between two deletions keeps their order: those that follow each other are applied at once. It is no time
            # that is due now, which would repeat a deletion that fails without a pause.
            later = Requeue(now + DAY)
            return [*(action for one in left for action in (Delete.of(LINEAGE_RECORDS, one), later)), Requeue(now)]
        if all(newest_trim((one,)) is not START for one in old):  # none has a certificate
            self._due = None
            return (Requeue(now + DAY),)
        end = max(filter(None, map(end_of, old)))
        entry = {
            "time": rfc3339(now),
            "event": TRIMMED,
            "checkpoint": str(checkpoint_of(old[-1])),
            "notAfter": rfc3339(end),
        }
        return (RecordIssuance(entry), Requeue(now))

    def _old(self, view: View, sequence: int, now: datetime) -> Iterator[Obj]:
        """Yield the records from a number on whose certificates ended before the retention."""
        while (record := view.get(record_name(sequence))) is not None:
            end = end_of(record)
            # Nothing is added to the end: it may be the last moment of the year 9999 (RFC 5280 4.1.2.5).
            if self.retention is None or end is None or end > now - self.retention or is_terminating(record):
                return
            yield record
            sequence += 1


_ALL: Key = ("", "")


# Issuance check of revocation: no certificate is issued that would take a revocation back.
#
# Rules kept here:
# * A request for a revoked public key is refused: this server would refuse the certificate anyway.
# * A request in the name of a node is refused when it was made before the node was revoked (`api.certificates.knownrevocations`).
# * An entry that cannot be read is present: that of a key refuses, and that of a node, which revokes up to a moment, holds.
# * Both are refused also when a person has approved the request. A new request, which that person sees again, is the way out.

KEY_REVOKED = "KeyRevoked"
NODE_REVOKED = "NodeRevoked"


@dataclass(frozen=True, slots=True)
class RevokedRequests:
    """Objects to requests for a revoked key, and to those of a revoked node from before its revocation."""

    name: str = "revocation"
    watches: tuple[str, ...] = (REVOCATIONS,)

    def check(self, pending: PendingIssue, views: Views) -> Hold | None:
        denylist = views[REVOCATIONS]
        entry = key_entry(pending.request.key_fingerprint)
        if denylist.get(entry) is not None or denylist.problem(entry):
            return Hold(
                KEY_REVOKED,
                f"the public key of the request is revoked by certificaterevocations/{entry}: make a new key and ask again",
                denies=True,
            )
        name = pending.node_name or pending.machine
        if not name:
            return None
        entry = node_entry(name)
        # An entry that cannot be read is present. It revokes up to a moment that is not known, so the request is held.
        if problem := denylist.problem(entry):
            return Hold(NODE_REVOKED, f"certificaterevocations/{entry} cannot be read: {problem}")
        found = denylist.get(entry)
        if found is None:
            return None
        # A request may wait for long, and a certificate that is issued after the revocation would be good.
        if precedes(pending.csr, found):
            return Hold(
                NODE_REVOKED,
                f"the request was made before certificaterevocations/{entry} revoked the certificates of this node: if the machine "
                "may return, delete this request and let it ask again",
                denies=True,
            )
        return None
