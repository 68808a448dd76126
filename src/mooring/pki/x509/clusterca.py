"""The cluster's CA: as it is now, its successor, and all CAs that issue client certificates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.x509.oid import ExtensionOID

from mooring.observed import Observed
from mooring.pki.errors import IssueError
from mooring.pki.keys import UNREADABLE, PrivateKey, accepted_public_key
from mooring.pki.x509 import profiles
from mooring.pki.x509.authority import Authority, self_signed_ca, serial_number
from mooring.pki.x509.bundles import certificates_pem, key_identities
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.names import NO_NAMES, AlternativeNames
from mooring.pki.x509.signers import SIGNERS

# CAs of a cluster: those that issue client certificates now, the next one, and the certificates between old and new.
#
# Rules kept here:
# * The name of a new CA ends in the time at which it was made (`kubernetes@1767225600`, as k3s names CAs), because OpenSSL finds
#   the issuer of a certificate by name.
# * Between both CAs stand certificates of two kinds. That of the new CA, signed by the old one, leads machines that come back later
#   to the server. That of the old CA, signed by the new one, is made again while clients may need it (`bridge`).
# * A cross-signed certificate has the name, the key and the key identifier of one CA and the signature of the other. It ends with
#   the earlier of both. A client that trusts only the other CA verifies a chain that contains it.

Entropy = Callable[[int], bytes]
BRIDGE_LIFE = timedelta(days=7)


def successor(key: PrivateKey, now: datetime, entropy: Entropy) -> Authority:
    """Return a new root CA for `key`."""
    name = f"{profiles.CLUSTER_CA_NAME}@{int(now.timestamp())}"
    return self_signed_ca(key, name, now, serial_number(entropy))


def cross_sign(
    subject: Certificate,
    issuer: Authority,
    now: datetime,
    entropy: Entropy,
    *,
    lifetime: timedelta = profiles.CA_LIFETIME,
    permitted: AlternativeNames = NO_NAMES,
) -> Certificate:
    """Return the CA `subject`, certified by `issuer` for servers. Raises IssueError."""
    template = replace(
        profiles.certificate_authority(accepted_public_key(subject.public_key()), now, lifetime=lifetime),
        subject=subject.subject,
        subject_key_identifier=subject.extensions.subject_key_identifier or b"",
        permitted=permitted,
    )
    # For servers alone, so that no path by it leads to a client certificate.
    template = replace(template, usages=(*template.usages, profiles.SERVER_AUTH))
    return issuer.sign(template.ending_by(subject.not_valid_after_utc), now, serial_number(entropy))


def bridge(
    subject: Certificate, issuer: Authority, permitted: AlternativeNames, now: datetime, entropy: Entropy
) -> Certificate:
    """Return the CA `subject`, certified by `issuer` for BRIDGE_LIFE and servers of the permitted names. Raises IssueError."""
    # It makes anyone who has the old key a CA under the new one: so for a week, and for the names of one server.
    return cross_sign(subject, issuer, now, entropy, lifetime=BRIDGE_LIFE, permitted=permitted)


def is_bridge(
    certificate: Certificate,
    subject: Certificate,
    issuer: Authority,
    permitted: AlternativeNames,
    now: datetime,
) -> bool:
    """Return whether a certificate is a bridge between these CAs for these names, with more than half of its life left."""
    limits = certificate.extensions.by_oid.get(ExtensionOID.NAME_CONSTRAINTS)
    return (
        limits is not None
        and limits.value == permitted.constraints().public_bytes()
        and certificate.is_issued_by(issuer.certificate)
        and certificate.subject == subject.subject
        and certificate.public_key() == subject.public_key()
        and certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc - BRIDGE_LIFE / 2
    )


def find_cross_signed(
    certificates: Iterable[Certificate], subject: Certificate, issuer: Certificate
) -> Certificate | None:
    """Return the certificate that certifies the key of `subject` under `issuer`; None when there is none."""
    names = (subject.subject, issuer.subject)
    return next(
        (
            one
            for one in certificates
            if (one.subject, one.issuer) == names and one.public_key() == subject.public_key()
        ),
        None,
    )


# The cluster's CA as it is now: the certificate and key that issue, the CAs that are trusted, and those that were retired.
#
# Rules kept here:
# * Holders read the CA at each use, because a rollover replaces it while the server runs. One function, `ClusterCa.for_signer`,
#   returns the authority that signs for a signer.
# * The trusted CAs keep the order of `ca.crt`. The CA that issues is one of them, in any place. Where it is the first of several,
#   machines are asked to renew certificates of the others.
# * A cross-signed certificate certifies the key of one of the cluster's CAs under another. The server sends those that lead from
#   the CA that issues to other CAs, so that a client which trusts only another one verifies the server.
# * The keys of CAs that were retired, given up or stolen make every path unusable on which they stand. A signer may keep one that
#   was merely retired, on purpose. One that was given up or stolen comes back with no bundle.
# * Retired CAs verify nothing but the way back of a machine that was off during the rollover, the newest of them.

Certificates = tuple[Certificate, ...]

MAX_RETIRED = 4
"""Retired CAs that verify the way back. A machine that was off during more rollovers joins again."""

MAX_CROSS_SIGNED = 4
"""Cross-signed certificates behind the serving certificate. Each adds about 500 bytes to a handshake; four lead over the last three
rollovers, and hold the one back to the old CA."""


@dataclass(frozen=True, slots=True)
class CaState:
    """One state of the cluster's CA. `trusted` contains the certificate of `authority`."""

    authority: Authority
    trusted: Certificates
    cross_signed: Certificates = ()
    retired: Certificates = ()
    distrusted: Certificates = ()
    """CAs whose keys may stand on no path, because they were retired, given up or stolen."""
    compromised: Certificates = ()
    """Those of `distrusted` that were given up or stolen: no bundle brings them back."""
    forgotten: Certificates = ()
    """Cross-signed certificates of trusted CAs whose issuer is on no list. The key that signed one counts as `compromised`."""

    @classmethod
    def of(cls, authority: Authority) -> CaState:
        """Return the state of a cluster with one CA."""
        return cls(authority, (authority.certificate,))

    @classmethod
    def of_files(
        cls,
        bundle: Certificates,
        key: PrivateKey,
        cross_signed: Certificates = (),
        retired: Certificates = (),
        distrusted: Certificates = (),
    ) -> CaState:
        """Return the state that files describe.

        Raises IssueError when `key` belongs to no CA of `bundle`, and for a certificate whose key cannot be read.
        """
        public = key.public_key()
        problem: IssueError | None = None
        for certificate in bundle:
            try:
                authority = Authority(certificate, key)
            except IssueError as error:
                problem = problem or error
                # The CA of this key, which may not sign: the reason is better than that the key belongs to none.
                if _public_key(certificate) == public:
                    raise
                continue
            trusted = tuple(dict.fromkeys(bundle))
            # A rollover of an earlier version made a certificate by which the new CA makes the old key a CA for
            # clients, for ten years, and sent it to every client. Where it is on disk it is dropped, and the key
            # counts as given up unless it is remembered as retired.
            vouched = tuple(one for one in cross_signed if _makes_a_former_key_a_ca(one, trusted))
            cross_signed = tuple(one for one in cross_signed if one not in vouched)
            known = [_public_key(one) for one in (*distrusted, *retired)]
            former = (one for one in vouched if _public_key(one) not in known)
            stolen = tuple(one for one in dict.fromkeys((*distrusted, *former)) if _public_key(one) != public)
            keys = [_public_key(one) for one in (*trusted, *stolen)]
            kept = tuple(one for one in dict.fromkeys(retired) if _public_key(one) not in keys)
            # That version kept nothing of a compromised CA but the other cross-signed certificate, which has its
            # signature. While the CA in it is trusted, the key that made the signature counts as given up, too,
            # unless a list names it.
            listed, present = (*trusted, *retired, *stolen), [_public_key(one) for one in trusted]
            full = (one for one in cross_signed if not _is_limited(one) and _public_key(one) in present)
            forgotten = tuple(one for one in full if not _has_issuer(one, listed))
            return cls(authority, trusted, cross_signed, kept[:MAX_RETIRED], (*stolen, *kept), stolen, forgotten)
        raise problem or IssueError("the bundle of CAs is empty")

    @property
    def superseded(self) -> Certificates:
        """The trusted CAs whose certificates machines are asked to renew; none unless the CA that issues is the first."""
        return self.trusted[1:] if self.trusted[:1] == (self.authority.certificate,) else ()

    def chain_above(self, issuer: Certificate, now: datetime) -> Certificates:
        """Return the cross-signed certificates that lead from `issuer` to other CAs and are valid at `now`, nearest first."""
        usable = [one for one in self.cross_signed if one.not_valid_before_utc <= now < one.not_valid_after_utc]
        found: list[Certificate] = []
        reached = [issuer.subject]
        for name in reached:
            for one in usable:
                if one.subject == name and one.issuer not in reached:
                    found.append(one)
                    reached.append(one.issuer)
        return tuple(found[:MAX_CROSS_SIGNED])


def _makes_a_former_key_a_ca(certificate: Certificate, trusted: Certificates) -> bool:
    """Return whether a trusted CA vouches in it, for more than servers, for the key of a CA that is trusted no more."""
    if _is_limited(certificate):
        return False
    key = _public_key(certificate)
    return all(key != _public_key(one) for one in trusted) and _has_issuer(certificate, trusted)


def _is_limited(certificate: Certificate) -> bool:
    """Return whether a certificate limits its purposes, as cross-signed ones of this version do."""
    return certificate.has_extension(ExtensionOID.EXTENDED_KEY_USAGE)


def _has_issuer(certificate: Certificate, cas: Certificates) -> bool:
    return any(certificate.is_issued_by(one) for one in cas)


def _public_key(certificate: Certificate) -> PublicKeyTypes:
    try:
        return certificate.public_key()
    except UNREADABLE as error:
        raise IssueError("the public key of a certificate cannot be read") from error


class ClusterCa(Observed[[]]):
    """Holds the state in force. Read it at each use."""

    def __init__(self, state: CaState) -> None:
        self._state = state
        super().__init__()

    @property
    def state(self) -> CaState:
        """The state in force."""
        return self._state

    @property
    def authority(self) -> Authority:
        """The CA that issues now."""
        return self._state.authority

    @property
    def trusted(self) -> Certificates:
        """The CAs that are trusted now."""
        return self._state.trusted

    @property
    def trusted_pem(self) -> bytes:
        """The CAs that are trusted now, as PEM."""
        return certificates_pem(self._state.trusted)

    @property
    def superseded(self) -> Certificates:
        """The trusted CAs whose certificates machines are asked to renew."""
        return self._state.superseded

    @property
    def retired(self) -> Certificates:
        """The CAs that verify only the way back of a machine that was off."""
        return self._state.retired

    @property
    def distrusted(self) -> Certificates:
        """The CAs whose keys may stand on no path."""
        return self._state.distrusted

    @property
    def compromised(self) -> Certificates:
        """The CAs that were given up or stolen."""
        return self._state.compromised

    @property
    def forgotten(self) -> Certificates:
        """Cross-signed certificates whose issuer counts as given up, and is on no list."""
        return self._state.forgotten

    @property
    def issuers(self) -> Mapping[str, Certificate]:
        """The CA certificate that signs now, by the place where it is configured."""
        return {
            "this cluster's own CA, pki/ca.crt of the data directory, which signed admin.conf": self._state.authority.certificate
        }

    def for_signer(self, signer_name: str) -> Authority | None:
        """Return the authority that signs for a built-in signer now; None for every other signer."""
        return self._state.authority if signer_name in SIGNERS else None

    def replace(self, state: CaState) -> None:
        """Put another state in force and call the subscribers, if it differs."""
        if _content(state) == _content(self._state):
            return
        self._state = state
        self.notify()


def _content(state: CaState) -> tuple[Certificate, *tuple[Certificates, ...]]:
    lists = (state.trusted, state.cross_signed, state.retired, state.distrusted, state.compromised)
    return state.authority.certificate, *lists


# CAs of client certificates: the cluster's own, and those that signers of client certificates have.
#
# Rules kept here (docs/choose-the-signers.md):
# * The bundle that verifies clients, and that cluster-info names, contains all of them, the cluster's own first.
# * A signer may keep a CA that the cluster has retired. One that was given up or stolen is trusted nowhere, whatever names it.
# * Holders read it at each use, because files of CAs change while the server runs.


class ClientCertificateIssuers(Protocol):
    """CAs that issue client certificates now. `ClusterCa` and `ClientIssuers` are such."""

    @property
    def trusted(self) -> Certificates:
        """CAs that verify clients."""

    @property
    def trusted_pem(self) -> bytes:
        """CAs that verify clients, as PEM."""

    @property
    def retired(self) -> Certificates:
        """CAs that verify only the way back of a machine that was off."""

    @property
    def distrusted(self) -> Certificates:
        """CAs whose keys may stand on no path."""

    @property
    def forgotten(self) -> Certificates:
        """Certificates whose issuer may stand on no path, and is known by its signature alone."""

    @property
    def superseded(self) -> Certificates:
        """CAs whose certificates machines are asked to renew."""

    @property
    def issuers(self) -> Mapping[str, Certificate]:
        """CA certificates that sign for clients now, by the place where they are configured."""

    def subscribe(self, use: Callable[[], None]) -> None:
        """Call `use` after each change."""


class CombinedIssuers(Observed[[]]):
    """The cluster's own CA, and the CAs of single signers of client certificates."""

    def __init__(self, own: ClusterCa, signers: Callable[[], Mapping[str, CaState]]) -> None:
        """`signers` returns the CAs of signers now, by the setting that names them. Call `notify` after a change of one."""
        self._own = own
        self._signers = signers
        super().__init__()
        own.subscribe(self.notify)

    @property
    def trusted(self) -> Certificates:
        """CAs that verify clients."""
        others = (one for state in self._signers().values() for one in state.trusted)
        return tuple(dict.fromkeys((*self._own.trusted, *(one for one in others if not self._is_given_up(one)))))

    def _is_given_up(self, ca: Certificate) -> bool:
        if any(_key(ca) == _key(one) for one in self._own.compromised):
            return True
        # A CA that was given up and is on no list is known by its signature alone.
        return any(one.is_issued_by(ca) for one in self._own.forgotten)

    @property
    def trusted_pem(self) -> bytes:
        """CAs that verify clients, as PEM."""
        return certificates_pem(self.trusted)

    @property
    def retired(self) -> Certificates:
        """CAs that verify only the way back of a machine that was off."""
        trusted = self.trusted
        return tuple(one for one in self._own.retired if one not in trusted)

    @property
    def distrusted(self) -> Certificates:
        """CAs whose keys may stand on no path."""
        keys, stolen = {_key(one) for one in self.trusted}, self._own.compromised
        return tuple(one for one in self._own.distrusted if one in stolen or _key(one) not in keys)

    @property
    def forgotten(self) -> Certificates:
        """Certificates whose issuer may stand on no path, and is known by its signature alone."""
        return self._own.forgotten

    @property
    def superseded(self) -> Certificates:
        """CAs of the cluster whose certificates machines are asked to renew."""
        issuing = self.issuers.values()
        return tuple(one for one in self._own.superseded if one not in issuing)

    @property
    def issuers(self) -> Mapping[str, Certificate]:
        """CA certificates that sign for clients now, by the place where they are configured."""
        others = {place: state.authority.certificate for place, state in self._signers().items()}
        return {**self._own.issuers, **others}


def _key(ca: Certificate) -> str:
    """Return the name of a key, which need not be readable."""
    return key_identities(ca)[0]
