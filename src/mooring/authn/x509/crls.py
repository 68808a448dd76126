"""Check of the CRLs of other CAs (`--client-crl-file`): refuse a certificate whose path has a revoked certificate on it.

Rules kept here (docs/authentication/client-certificates.md#crls):
* Every certificate of the path is looked up on the CRL of the CA that issued it: the leaf, the intermediates that the client sent,
  and a CA of the bundle that another CA of the bundle has revoked.
* A serial number on a CRL counts whatever the clock says, from when the file is read until a newer CRL of that CA leaves it out.
* With `--client-crl-strict` a certificate of a CA whose CRL is missing, not yet valid or past nextUpdate is undecided, and the
  caller gets 503. The CAs of the cluster are exempt: their certificates are revoked by the denylist.
* The CRLs are those of this server's files. `state` changes with them, and with the time where the time decides.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping
from datetime import datetime
from types import MappingProxyType

from mooring.api.view import Views
from mooring.authn.verdict import Rejected
from mooring.authn.x509.reasons import CRL_MISSING, CRL_NOT_CURRENT, CRL_REVOKED
from mooring.clock import rfc3339
from mooring.pki.x509.checkedpeer import CheckedPeer, PathCertificate
from mooring.pki.x509.crl import Crl, described


class ClientCrls:
    """The CRLs in force on one server."""

    def __init__(self, *, required: bool = False) -> None:
        """`required`: certificates of a CA without a current CRL are undecided."""
        self._required = required
        self._exempt: Collection[str] = ()
        self._revoked_cas: Collection[str] = ()
        self._generation = 0
        self._begins: tuple[datetime, ...] = ()
        self._ends: tuple[datetime, ...] = ()
        self._seen = (0, 0, 0)
        self.crls: Mapping[str, Crl] = MappingProxyType({})
        """By the key of the CA."""

    def replace(self, crls: Mapping[str, Crl], revoked_cas: Collection[str] = ()) -> None:
        """Use these CRLs from now on, and no others. `revoked_cas`: keys of CAs of the bundle that are on one of them."""
        self.crls, self._revoked_cas = MappingProxyType(dict(crls)), frozenset(revoked_cas)
        self._generation += 1
        if self._required:
            self._begins = tuple(sorted(crl.this_update for crl in crls.values()))
            self._ends = tuple(sorted(crl.next_update for crl in crls.values()))

    def exempt(self, keys: Collection[str]) -> None:
        """Demand no CRL for certificates that these keys have signed."""
        self._exempt = frozenset(keys)
        self._generation += 1

    def state(self, now: datetime) -> tuple[int, int, int]:
        """Return a value that differs from an earlier one when `rejection` may have another result."""
        return self._generation, bisect_right(self._begins, now), bisect_left(self._ends, now)

    def has_passed(self, now: datetime) -> bool:
        """Return whether `state` differs from that of the last call: running watches are to be judged again."""
        before, self._seen = self._seen, self.state(now)
        return before != self._seen

    def rejection(self, peer: CheckedPeer, views: Views, now: datetime) -> Rejected | None:
        """Return the rejection of a certificate with a revoked one on its path, or of one that must wait for a CRL."""
        if not self.crls and not self._required:
            return None
        for certificate in peer.path:
            if (found := self._revocation(certificate)) is not None:
                return found
        if self._required:
            for certificate in peer.path:
                if (found := self._gap(certificate, now)) is not None:
                    return found
        return None

    def _revocation(self, certificate: PathCertificate) -> Rejected | None:
        if _is_anchor(certificate):
            if certificate.issuer in self._revoked_cas:
                return Rejected(CRL_REVOKED, f"the CA with serial number {certificate.serial_number} is on a CRL")
            return None
        crl = self.crls.get(certificate.issuer)
        if crl is not None and int(certificate.serial_number, 16) in crl.serial_numbers:
            return Rejected(CRL_REVOKED, f"serial number {certificate.serial_number} is on {described(crl)}")
        return None

    def _gap(self, certificate: PathCertificate, now: datetime) -> Rejected | None:
        if _is_anchor(certificate) or certificate.issuer in self._exempt:
            return None
        crl = self.crls.get(certificate.issuer)
        if crl is None:
            detail = f"no CRL of the CA with the key {certificate.issuer}"
            return Rejected(CRL_MISSING, detail, is_undecided=True)
        if not crl.is_current(now):
            return Rejected(CRL_NOT_CURRENT, f"{described(crl)}; it is {rfc3339(now)}", is_undecided=True)
        return None


def _is_anchor(certificate: PathCertificate) -> bool:
    """Return whether this is the end of the path, a certificate of the bundle."""
    return certificate.issuer in certificate.public_keys
