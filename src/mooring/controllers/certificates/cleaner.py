"""certificatesigningrequest-cleaner-controller: deletes old CertificateSigningRequests.

Rules kept here (docs/protocol/certificate-signing-requests.md#cleaner):
* An issued request is deleted one hour after its approval, or as soon as its certificate has expired. A denied or failed one is
  deleted after an hour. One without any condition, or with NeedsApproval alone, and one approved but never issued, is deleted
  after 24 hours.
* Ages count from the condition's lastUpdateTime. A condition without a readable one never makes a request old.
* kube-controller-manager checks every hour; here the request is planned again at the moment it falls due.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from mooring.api.certificates.conditions import APPROVED, DENIED, FAILED, conditions_of
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339
from mooring.controllers.actions import Action, Delete, Entropy, Key, Requeue
from mooring.controllers.certificates.issuance import NEEDS_APPROVAL, WOULD_FAIL
from mooring.controllers.certificates.requeststate import REQUESTS, is_issued
from mooring.pki.errors import PkiError
from mooring.pki.x509.bundles import first_certificate

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
    conditions = conditions_of(csr)
    if all(condition.get("type") in (NEEDS_APPROVAL, WOULD_FAIL) for condition in conditions):
        yield from _due_after(csr["metadata"].get("creationTimestamp"), ABANDONED_AFTER)
    for condition in conditions:
        kind, updated = condition.get("type"), condition.get("lastUpdateTime")
        if kind == APPROVED:
            yield from _due_after(updated, DONE_AFTER if is_issued(csr) else ABANDONED_AFTER)
            yield from _certificate_end(csr)
        elif kind in (DENIED, FAILED):
            yield from _due_after(updated, DONE_AFTER)


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
