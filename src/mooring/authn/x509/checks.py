"""`CHECKS`: the table of checks that a verified client certificate must pass before it authenticates (law 10).

Rules kept here:
* A check is one row: the plurals of the views that it reads, and a pure function that returns a rejection or None.
* Every certificate that verifies is checked: those of users and nodes, those of authenticating proxies, and those that ask for
  recovery after their end.
* The first rejection counts. The caller sees 401 only; the reason and the detail are for the operator.
* A result holds until one of the views changes, or the `state` of a check. A check reads nothing but its arguments and what its
  `state` speaks for. Without a `state`, `now` serves the detail of a rejection only: no certificate begins to fail by time alone.
* `CHECKS` are the same on all servers. The CRLs of a server's own files are one check more (`with_crls`).
* A check costs a few lookups by name. It never lists a view, because it runs for each certificate after each change.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from datetime import datetime

from mooring.api.mooring.membership import READS
from mooring.api.view import Views
from mooring.authn.host import Crls
from mooring.authn.verdict import Rejected
from mooring.authn.x509 import denylist, membership
from mooring.pki.x509.checkedpeer import CheckedPeer


def stateless(now: datetime) -> Hashable:
    """Return the state of a check that reads views alone."""
    return None


@dataclass(frozen=True, slots=True)
class CertificateCheck:
    """One check of a verified certificate. `reads`: plurals of the views that `rejection` reads.

    `state`: returns another value when `rejection` may have another result although no view has changed.
    """

    reads: tuple[str, ...]
    rejection: Callable[[CheckedPeer, Views, datetime], Rejected | None]
    state: Callable[[datetime], Hashable] = stateless


CHECKS: tuple[CertificateCheck, ...] = (
    CertificateCheck(denylist.READS, denylist.revoked),
    CertificateCheck(READS, membership.ended_or_replaced),
)


def with_crls(crls: Crls) -> tuple[CertificateCheck, ...]:
    """Return the checks of a server with these CRLs."""
    return (*CHECKS, CertificateCheck((), crls.rejection, crls.state))


READ_PLURALS: tuple[str, ...] = tuple(dict.fromkeys(plural for check in CHECKS for plural in check.reads))
"""Plurals of all kinds that the checks read. A change of one of them calls for another look at open connections."""

Revisions = tuple[int, ...]


def revisions(views: Views, plurals: Sequence[str] = READ_PLURALS) -> Revisions:
    """Return the revisions of the views that the checks read. While they are equal, no check has another result."""
    return tuple([views[plural].revision for plural in plurals])


def rejection(
    peer: CheckedPeer, views: Views, now: datetime, checks: Sequence[CertificateCheck] = CHECKS
) -> Rejected | None:
    """Return the first rejection of the checks, or None when the certificate passes them all."""
    for check in checks:
        found = check.rejection(peer, views, now)
        if found is not None:
            return found
    return None
