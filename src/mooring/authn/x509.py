"""Client certificates: the CAs that are trusted, the checks that each certificate passes, and the user that it names."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import ClassVar

from mooring.api.mooring.membership import READS
from mooring.api.view import Views
from mooring.authn import revocations
from mooring.authn.credentials import CONNECTION, Credentials
from mooring.authn.host import Crls
from mooring.authn.revocations import CRL_MISSING, CRL_NOT_CURRENT, CRL_REVOKED, NO_COMMON_NAME
from mooring.authn.verdict import Accepted, NotMine, Rejected, Verdict
from mooring.bounded import Bounded
from mooring.clock import rfc3339
from mooring.errors import ConfigError
from mooring.identity import CREDENTIAL_ID, NODE_NAME, NODE_PREFIX, UserInfo
from mooring.pki.errors import PeerCertificateError
from mooring.pki.x509.clientcertificate import ClientCertificate, PathCertificate
from mooring.pki.x509.crl import Crl, described
from mooring.pki.x509.verify import ClientTrust, ReadChain, VerifiedPeer, read_chain, valid_at
from mooring.settings.declaration import BOOLEAN, COMMA_SEPARATED, Settings, file_setting, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCertificateSettings(Settings):
    """Client certificates."""

    heading: ClassVar[str] = "Client certificates"

    client_ca_file: str = file_setting(
        "Certificates of the CAs that client certificates are verified under; read again when it changes.",
        default_note="the cluster's CA",
    )
    client_crl_file: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=(),
        meaning="CRLs, in PEM or DER, of the CAs that verify client certificates; read again when a file changes.",
        metavar="FILE",
    )
    client_crl_strict: bool = setting(
        BOOLEAN,
        default=False,
        meaning="Accept no client certificate of another CA than the cluster's while there is no current CRL of it.",
    )

    def __post_init__(self) -> None:
        if self.client_crl_strict and not self.client_crl_file:
            raise ConfigError("client-crl-strict: it needs client-crl-file")


# Check of the CRLs of other CAs (`--client-crl-file`): refuse a certificate whose path has a revoked certificate on it.
#
# Rules kept here (docs/authentication/client-certificates.md#crls):
# * Every certificate of the path is looked up on the CRL of the CA that issued it: the leaf, the intermediates that the client
#   sent, and a CA of the bundle that another CA of the bundle has revoked.
# * A serial number on a CRL counts whatever the clock says, from when the file is read until a newer CRL of that CA leaves it
#   out.
# * With `--client-crl-strict` a certificate of a CA whose CRL is missing, not yet valid or past nextUpdate is undecided, and the
#   caller gets 503. The CAs of the cluster are exempt: their certificates are revoked by the denylist.
# * The CRLs are those of this server's files. `state` changes with them, and with the time where the time decides.


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

    def rejection(self, peer: ClientCertificate, views: Views, now: datetime) -> Rejected | None:
        """Return the rejection of a certificate with a revoked one on its path, or of one that must wait for a CRL."""
        if not self.crls and not self._required:
            return None
        for certificate in peer.path:
            if (found := self._revocation(certificate)) is not None:
                return found
        # Revocations of the complete path first: they are final, and a missing CRL is only undecided.
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


# `CHECKS`: the table of checks that a verified client certificate must pass before it authenticates (law 10).
#
# Rules kept here:
# * A check is one row: the plurals of the views that it reads, and a pure function that returns a rejection or None.
# * Every certificate that verifies is checked: those of users and nodes, those of authenticating proxies, and those that ask for
#   recovery after their end.
# * The first rejection counts. The caller sees 401 only; the reason and the detail are for the operator.
# * A result holds until one of the views changes, or the `state` of a check. A check reads nothing but its arguments and what its
#   `state` speaks for. Without a `state`, `now` serves the detail of a rejection only: no certificate begins to fail by time
#   alone.
# * `CHECKS` are the same on all servers. The CRLs of a server's own files are one check more (`with_crls`).
# * A check costs a few lookups by name. It never lists a view, because it runs for each certificate after each change.


def stateless(now: datetime) -> Hashable:
    """Return the state of a check that reads views alone."""
    return None


@dataclass(frozen=True, slots=True)
class CertificateCheck:
    """One check of a verified certificate. `reads`: plurals of the views that `rejection` reads.

    `state`: returns another value when `rejection` may have another result although no view has changed.
    """

    reads: tuple[str, ...]
    rejection: Callable[[ClientCertificate, Views, datetime], Rejected | None]
    state: Callable[[datetime], Hashable] = stateless


CHECKS: tuple[CertificateCheck, ...] = (
    CertificateCheck(revocations.READS, revocations.revoked),
    CertificateCheck(READS, revocations.ended_or_replaced),
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
    peer: ClientCertificate, views: Views, now: datetime, checks: Sequence[CertificateCheck] = CHECKS
) -> Rejected | None:
    """Return the first rejection of the checks, or None when the certificate passes them all."""
    for check in checks:
        found = check.rejection(peer, views, now)
        if found is not None:
            return found
    return None


# Verdicts about presented certificate chains under one bundle of CAs, each chain walked once.
#
# Rules kept here (docs/protocol/authentication.md#client-certificates):
# 1. The chain is read once for a request, whatever the number of bundles, and walked once for a connection and bundle. Afterwards
#    only the validity dates of the whole chain are compared with `now`. Rejections are remembered too, those about time for a
#    second: a large certificate takes 5 ms to read, and anyone may present one that has expired. Another bundle or another chain
#    is judged again, so that a memo passed on by mistake never lends one peer the identity of another.
# 2. Verified chains are also remembered across connections (bounded, oldest out): a client that opens a connection for each
#    request, as kubectl does, pays for the walk once. Only time can end the validity of a verified chain, and it is always
#    checked.
# 3. A verified certificate must pass the checks of `mooring.authn.x509`. Their result is remembered with the revisions of the
#    views that they read and the states of the checks, and the checks run again once one of them differs.
# 4. For the recovery of nodes a chain is verified at the last moment of its leaf, so that time changes no verdict.

States = tuple[Hashable, ...]
MAX_REMEMBERED = 4096  # chains of about 1 kB: as many as a large cluster has nodes, 8 MB at the most
_OF_TIME = frozenset({"expired", "not-yet-valid"})
_NO_TIME, _SECOND = timedelta(), timedelta(seconds=1)


@dataclass(slots=True)
class Known:
    """Remembered verdict about one chain. `peer` is None for a chain that does not verify.

    `of_time` is the moment of a rejection that time may change. `rejection` is that of the checks at `checked_at`, the revisions of
    the views that they read and their states; None there: not checked yet.
    """

    chain: tuple[bytes, ...]
    verdict: Verdict
    peer: VerifiedPeer | None = None
    rejection: Rejected | None = None
    checked_at: tuple[Revisions, States] | None = None
    of_time: datetime | None = None
    at_end: bool = False

    def holds(self, chain: tuple[bytes, ...], now: datetime) -> bool:
        """Return whether the verdict is about this chain and its dates still hold."""
        is_recent = self.of_time is None or _NO_TIME <= now - self.of_time < _SECOND
        return self.chain == chain and is_recent and (self.peer is None or self.at_end or valid_at(self.peer, now))


class ClientCertificateVerifier:
    """One bundle of CAs. `verdict` turns a verified peer into a verdict. Make a new object for a new bundle.

    `at_end`: chains are verified at the last moment of their leaf.
    """

    def __init__(
        self,
        trust: ClientTrust,
        verdict: Callable[[VerifiedPeer], Verdict],
        max_remembered: int = MAX_REMEMBERED,
        checks: Sequence[CertificateCheck] = CHECKS,
        *,
        at_end: bool = False,
    ) -> None:
        self._at_end = at_end
        self._trust = trust
        self._verdict = verdict
        self._checks = checks
        self._reads = tuple(dict.fromkeys(plural for check in checks for plural in check.reads))
        self._states = tuple(check.state for check in checks if check.state is not stateless)
        self._accepted: Bounded[tuple[bytes, ...], Known] = Bounded(max_remembered)

    def judged(self, credentials: Credentials, views: Views, now: datetime) -> Verdict:
        """Return the verdict about the chain in `credentials`, which has one; `Rejected` when it does not verify."""
        known = self.known(credentials, now)
        if known.peer is None:
            return known.verdict
        # The checks run again only once a view that they read, or their state, has changed: no revocation is missed.
        current = revisions(views, self._reads), tuple([state(now) for state in self._states])
        if known.checked_at != current:
            known.rejection = rejection(known.peer, views, now, self._checks)
            undecided = known.rejection is not None and known.rejection.is_undecided
            # An object that becomes readable again keeps its revision, so an undecided result is not remembered.
            known.checked_at = None if undecided else current
        return known.rejection or known.verdict

    def peer(self, credentials: Credentials) -> VerifiedPeer | None:
        """Return the peer that `judged` has verified on this connection."""
        known = credentials.memo.known.get(self)
        return known.peer if isinstance(known, Known) else None

    def known(self, credentials: Credentials, now: datetime) -> Known:
        """Return the verdict about the chain alone, without the checks, from memory where it still holds."""
        memo = credentials.memo.known
        known = memo.get(self)
        if isinstance(known, Known) and known.holds(credentials.peer, now):
            return known
        # A client that opens a connection for each request, as kubectl does, pays for the walk of the chain once.
        known = self._accepted.get(credentials.peer)
        if known is not None and known.holds(credentials.peer, now):
            memo[self] = known
            return known
        chain = _read(credentials)
        if isinstance(chain, Rejected):
            known = memo[self] = Known(credentials.peer, chain)
            return known
        try:
            peer = self._trust.verify_read(chain, None if self._at_end else now)
        except PeerCertificateError as error:
            # Remembered for a second: a large certificate takes 5 ms to read, and anyone can send an expired one.
            of_time = now if error.code in _OF_TIME and not self._at_end else None
            known = memo[self] = Known(credentials.peer, Rejected(error.code, str(error)), of_time=of_time)
            return known
        known = Known(credentials.peer, self._verdict(peer), peer, at_end=self._at_end)
        # Only verified chains are remembered across connections: rejected ones would displace them.
        self._accepted[credentials.peer] = known
        memo[self] = known
        return known


def _read(credentials: Credentials) -> ReadChain | Rejected:
    if credentials.read_peer is None:
        try:
            credentials.read_peer = read_chain(credentials.peer)
        except PeerCertificateError as error:
            credentials.read_peer = Rejected(error.code, str(error))
    return credentials.read_peer


# Client certificates: the common name is the user, the organizations are the groups.
#
# Rules kept here (docs/protocol/authentication.md#client-certificates):
# 1. No certificate is not mine. A certificate that does not verify under the client CAs is rejected. A good bearer token beside
#    it still rescues the request, by the rules of the chain.
# 2. A verified certificate without a common name is not mine.
# 3. The credential id is `X509SHA256=<hex of the leaf's SHA-256>`, in extra. A certificate of a user that all machines share has
#    the machine to which it is bound there, too, under the key that Kubernetes uses for tokens of Pods (docs/adr/0063).
# 4. The bundle of CAs may change while the server runs. Every certificate is judged under the new one from then on, on open
#    connections too.

_NOT_MINE = NotMine()


class ClientCertificateAuthenticator:
    """Judges the peer chain of the connection."""

    name = "client-certificate"
    judges = CONNECTION

    def __init__(
        self, trust: ClientTrust, max_remembered: int = MAX_REMEMBERED, checks: Sequence[CertificateCheck] = CHECKS
    ) -> None:
        self._max_remembered = max_remembered
        self._checks = checks
        self.replace(trust)

    def replace(self, trust: ClientTrust) -> None:
        """Verify under these CAs from now on, and no others."""
        self._peers = ClientCertificateVerifier(trust, _verdict, self._max_remembered, self._checks)

    def authenticate(self, credentials: Credentials, views: Views, now: datetime, audiences: Sequence[str]) -> Verdict:
        return self._peers.judged(credentials, views, now) if credentials.peer else _NOT_MINE


def _verdict(peer: VerifiedPeer) -> Verdict:
    if not peer.common_name:
        return NotMine(NO_COMMON_NAME)
    extra = {CREDENTIAL_ID: (peer.credential_id,)}
    if peer.node_name and not peer.common_name.startswith(NODE_PREFIX):
        extra[NODE_NAME] = (peer.node_name,)
    user = UserInfo(peer.common_name, peer.uid, peer.organizations, MappingProxyType(extra))
    return Accepted(user, certificate=peer)
