"""Verification of certificate chains: of clients, with the identity that they state, and of a path to a root (RFC 5280 6.1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID, ObjectIdentifier

from mooring.clock import gap, rfc3339
from mooring.identity import NODE_PREFIX
from mooring.pki.errors import (
    CertificateTooLargeError,
    CertificateUnreadableError,
    KeyRefusedError,
    PeerCertificateError,
)
from mooring.pki.keys import UNREADABLE, accepted_public_key
from mooring.pki.x509 import names, profiles
from mooring.pki.x509.bundles import key_identities
from mooring.pki.x509.certificate import MAX_ELEMENTS, Certificate
from mooring.pki.x509.clientcertificate import PathCertificate
from mooring.pki.x509.der import DerError, ElementBudget
from mooring.pki.x509.distinguishedname import DistinguishedName
from mooring.pki.x509.extensions import DIRECTORY_NAME, BasicConstraints
from mooring.pki.x509.profiles import BACKDATE
from mooring.pki.x509.signers import machine_of

# Certificate policies along a path (RFC 5280 6.1, for a verifier that demands no policy; Go's `policiesValid`).
#
# Rules kept here:
# * Policies restrict nothing until a CA of the path requires one. From then on the path needs a policy that every certificate of it
#   has, under its own name or one that a CA maps to it.
# * The set of valid policies stands for the tree of RFC 5280: without a demand of the verifier it matters only whether one is left.

ANY_POLICY = bytes.fromhex("551d2000")
"""Content of the object identifier 2.5.29.32.0."""
_Policies = frozenset[bytes]


def has_valid_policies(path: Sequence[Certificate]) -> bool:
    """Return whether the policies of a path, leaf first and trust anchor last, are valid."""
    # The policies of the anchor do not count (RFC 5280 6.1.1 d).
    certificates = tuple(reversed(path[:-1]))
    never = len(certificates) + 1
    explicit = mapping = inhibit_any = never
    valid: _Policies = frozenset({ANY_POLICY})
    for place, one in enumerate(certificates):
        is_leaf = place == len(certificates) - 1
        is_self_issued = one.subject == one.issuer
        extensions = one.extensions
        valid = _narrowed(valid, extensions.policies, inhibit_any > 0 or (is_self_issued and not is_leaf))
        if explicit <= 0 and not valid:
            return False
        if is_leaf:
            continue
        if valid and mapping > 0 and any(ANY_POLICY in pair for pair in extensions.policy_mappings):
            return False
        valid = _mapped(valid, extensions.policy_mappings, is_allowed=mapping > 0)
        if not is_self_issued:
            explicit, mapping, inhibit_any = explicit - 1, mapping - 1, inhibit_any - 1
        limits = extensions.policy_constraints
        explicit = _smaller(explicit, limits.require_explicit)
        mapping = _smaller(mapping, limits.inhibit_mapping)
        inhibit_any = _smaller(inhibit_any, extensions.inhibit_any_policy)
    is_required = explicit <= 1 or (
        bool(certificates) and certificates[-1].extensions.policy_constraints.require_explicit == 0
    )
    return bool(valid) or not is_required


def _narrowed(valid: _Policies, stated: Sequence[bytes] | None, any_counts: bool) -> _Policies:
    """Return the policies that are valid below a certificate which states these (RFC 5280 6.1.3 d and e)."""
    if stated is None:
        return frozenset()
    named = frozenset(one for one in stated if one != ANY_POLICY and (one in valid or ANY_POLICY in valid))
    return named | valid if any_counts and ANY_POLICY in stated else named


def _mapped(valid: _Policies, mappings: Sequence[tuple[bytes, bytes]], *, is_allowed: bool) -> _Policies:
    """Return the policies by the names that the next certificate has for them (RFC 5280 6.1.4 b)."""
    replaced = frozenset(issuer for issuer, _ in mappings)
    named = frozenset(
        subject for issuer, subject in mappings if is_allowed and (issuer in valid or ANY_POLICY in valid)
    )
    return valid - replaced | named


def _smaller(number: int, limit: int | None) -> int:
    return number if limit is None else min(number, limit)


# Verification of client certificate chains and the identity that they state, and of the path from a CA to its root.
#
# Rules kept here (docs/protocol/authentication.md#client-certificates; RFC 5280 6; Go's `x509.Verify`, which defines the chains
# that Kubernetes accepts):
# * A chain is verified against the client CA bundle at the `now` given. The steps are numbered as in `ClientTrust`: (1) octets
#   and elements are capped and every certificate can be read; (2) the leaf's key and signature are strong, it has no unknown
#   critical extension, it is valid now and, where it limits its purposes, they include clientAuth; (3) a path to a CA of the
#   bundle is searched through the presented intermediates; (4) each issuer of the path must be a CA that may sign certificates at
#   that depth, valid now, for clients, and the policies of the path must be valid; (5) the identity is read from the leaf.
# * Of several CAs with one name that is tried first whose key has the identifier that the certificate names, as in Go.
# * No two certificates of a path have the same subject, key and alternative names, as in Go.
# * A certificate of the bundle itself is trusted as a leaf too, as in Go. Roots of versions 1 and 2, which have no extensions,
#   are CAs because they are in the bundle.
# * Name constraints on a CA are honoured by refusing paths that could violate them.
# * A key that the cluster has retired makes a path unusable, at any place in it and certified by any CA.
# * A serial number is positive and has at most 20 octets, as a revocation names it.
# * The path of a CA is searched by the same rules, for serverAuth, which Go's `x509.Verify` wants when no usage is given.
# * The result has the period in which the whole chain is valid, so that a connection verifies once and then compares times.
#
# `cryptography.x509.verification` is not used: it implements the profile of the web and refuses Ed25519 keys and version 1 roots
# whatever extension policy it is given (checked with cryptography 50), both of which Kubernetes accepts.

MAX_CHAIN = 10
"""Certificates that a peer may present. Real chains have one to three."""
MAX_CERTIFICATE_BYTES = 64 * 1024  # real ones are rarely above 4 KiB; each signature check hashes all of it
MAX_INTERMEDIATE_BYTES = 32 * 1024  # of all but the leaf: a CA has few names
MAX_SERIAL_OCTETS = 20
MAX_SIGNATURE_CHECKS = 12
"""Bounds the cost of a chain of certificates with equal subjects: a check takes 80 µs, and 720 µs with a key on P-384. Real paths
have three."""


@dataclass(frozen=True, slots=True)
class _Purpose:
    """One extended key usage, which a certificate that limits its purposes must include."""

    oid: ObjectIdentifier
    meaning: str


_CLIENT = _Purpose(ExtendedKeyUsageOID.CLIENT_AUTH, "client authentication")
_SERVER = _Purpose(ExtendedKeyUsageOID.SERVER_AUTH, "server authentication")
_RETIRED = "a CA of the chain has a key that this cluster has retired"
_ALTERNATIVE_NAME = ExtensionOID.SUBJECT_ALTERNATIVE_NAME


@dataclass(frozen=True, slots=True)
class VerifiedPeer:
    """The identity of a verified chain. `not_before`/`not_after` are the leaf's; `valid_from`/`valid_until` the chain's.

    `path` is the leaf and the certificates above it, apart from the cluster's own CAs. `public_key` and `issuer` are `sha256:<hex>`
    of a SubjectPublicKeyInfo: the leaf's, and that of the CA which signed it. A leaf that is itself in the bundle is its own
    issuer. `issued_at` is the latest moment at which the leaf can have been issued, as far as its issuer is known; otherwise it is
    `not_before`.
    """

    common_name: str
    organizations: tuple[str, ...]
    uid: str
    fingerprint: str
    not_before: datetime
    not_after: datetime
    valid_from: datetime
    valid_until: datetime
    serial_number: int
    public_key: str
    issuer: str
    issued_at: datetime
    path: tuple[PathCertificate, ...]
    leaf: Certificate = field(repr=False, compare=False)

    @property
    def node_name(self) -> str:
        """Name of the node that the certificate is for, or to whose machine it is bound; "" for every other certificate."""
        name = self.common_name.removeprefix(NODE_PREFIX)
        return name if name != self.common_name else machine_of(self.leaf.subject)

    @property
    def credential_id(self) -> str:
        """Value of the user's extra `authentication.kubernetes.io/credential-id`."""
        return f"X509SHA256={self.fingerprint}"


@dataclass(frozen=True, slots=True)
class ReadChain:
    """A presented chain, leaf first. Bundles that verify it one after the other share the signature checks."""

    certificates: tuple[Certificate, ...]
    signatures: dict[tuple[Certificate, Certificate], bool] = field(default_factory=dict, repr=False, compare=False)


def valid_at(peer: VerifiedPeer, now: datetime) -> bool:
    """Return whether every certificate of the verified chain is valid at `now`."""
    return peer.valid_from <= now <= peer.valid_until


class ClientTrust:
    """A bundle of CAs that verifies client certificates."""

    def __init__(
        self,
        cas: Iterable[Certificate],
        backdating: Iterable[Certificate] = (),
        distrusted: Iterable[Certificate] = (),
        forgotten: Iterable[Certificate] = (),
    ) -> None:
        """An empty bundle verifies no certificate.

        `backdating`: the cluster's own CAs, whose certificates begin BACKDATE before they are issued. `distrusted`: CAs whose keys
        may stand on no path, at any place in it and certified by any CA. `forgotten`: certificates by such CAs, which are known
        by these signatures alone.
        """
        self._backdating = frozenset(_key_identity(ca) for ca in backdating)
        self._distrusted = _Distrusted(tuple(distrusted), tuple(forgotten))
        roots = tuple(dict.fromkeys(cas))
        self._root_encodings = frozenset(ca.der for ca in roots)
        self._roots = _by_subject(roots)

    def verify(self, chain: Sequence[bytes], now: datetime) -> VerifiedPeer:
        """Return the identity of a presented `chain` (DER, leaf first). Raises PeerCertificateError."""
        # (1) Sizes and parsing.
        return self.verify_read(read_chain(chain), now)

    def verify_read(self, chain: ReadChain, now: datetime | None) -> VerifiedPeer:
        """Return the identity of a chain that has been read. Raises PeerCertificateError.

        `now`: None for the last moment of the leaf. The issuers must have been valid then. The CA's key of that time may have been
        stolen since: the caller must know the leaf's key from elsewhere.
        """
        leaf, *intermediates = chain.certificates
        now = now or leaf.not_valid_after_utc

        # (2) The leaf alone.
        _check_strength(leaf)
        _check_critical_extensions(leaf)
        _check_time(leaf, now)
        _check_purpose(leaf, _CLIENT)
        _check_serial_number(leaf)

        # (3) and (4) A path to a CA of the bundle.
        if leaf.der in self._root_encodings:
            path = [leaf]
        else:
            search = _Search(self._roots, _by_subject(intermediates), now, _CLIENT, self._distrusted, chain.signatures)
            path = search.path_from(leaf)
        # The search checks the issuers alone, and a leaf of the bundle has none.
        self._distrusted.check(leaf)

        # (5) The identity.
        issuer = _key_identity(path[1] if len(path) > 1 else leaf)
        begin, subject = leaf.not_valid_before_utc, leaf.subject
        return VerifiedPeer(
            common_name=names.common_name(subject),
            organizations=names.organizations(subject),
            uid=_uid(subject),
            fingerprint=leaf.fingerprint,
            not_before=begin,
            not_after=leaf.not_valid_after_utc,
            valid_from=max(certificate.not_valid_before_utc for certificate in path),
            valid_until=min(certificate.not_valid_after_utc for certificate in path),
            serial_number=leaf.serial_number,
            public_key=_key_identity(leaf),
            issuer=issuer,
            path=tuple(_step(path, depth) for depth in range(len(path)) if depth == 0 or not self._is_own(path[depth])),
            issued_at=begin + BACKDATE if issuer in self._backdating else begin,
            leaf=leaf,
        )

    @property
    def is_empty(self) -> bool:
        """Return whether the bundle verifies nothing."""
        return not self._roots

    def _is_own(self, certificate: Certificate) -> bool:
        return _key_identity(certificate) in self._backdating


def path_to_root(chain: Sequence[Certificate], roots: Iterable[Certificate], now: datetime) -> tuple[Certificate, ...]:
    """Return the path from the CA `chain[0]` to one of `roots`, through the rest of `chain`. Raises PeerCertificateError."""
    first, *intermediates = chain
    _check_strength(first)
    _check_critical_extensions(first)
    _check_time(first, now)
    _check_purpose(first, _SERVER)
    trusted = tuple(roots)
    if first in trusted:
        return (first,)
    search = _Search(_by_subject(trusted), _by_subject(intermediates), now, _SERVER, _Distrusted())
    return tuple(search.path_from(first))


@dataclass(frozen=True, slots=True)
class _Distrusted:
    """Keys that may stand on no path: those of `cas`, and those that signed one of `signed`."""

    cas: tuple[Certificate, ...] = ()
    signed: tuple[Certificate, ...] = ()
    keys: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", frozenset(_key_identity(ca) for ca in self.cas))

    def check(self, certificate: Certificate) -> None:
        """Raise PeerCertificateError for a certificate with such a key."""
        is_retired = bool(self.keys) and _key_identity(certificate) in self.keys
        if is_retired or any(one.is_issued_by(certificate) for one in self.signed):
            raise PeerCertificateError("retired-ca", _RETIRED)

    def check_issuer_of(self, certificate: Certificate) -> None:
        """Raise PeerCertificateError for a certificate that a CA of `cas` signed."""
        if any(certificate.is_issued_by(ca) for ca in self.cas):
            raise PeerCertificateError("retired-ca", _RETIRED)


class _Search:
    """Depth-first search of one verification for a path, roots before intermediates, within a budget of signature checks."""

    def __init__(
        self,
        roots: dict[bytes, list[Certificate]],
        intermediates: dict[bytes, list[Certificate]],
        now: datetime,
        purpose: _Purpose,
        distrusted: _Distrusted,
        signatures: dict[tuple[Certificate, Certificate], bool] | None = None,
    ) -> None:
        """`signatures`: what was found out about a certificate and its issuer before; it is added to."""
        self._signatures = {} if signatures is None else signatures
        self._roots = roots
        self._intermediates = intermediates
        self._now = now
        self._purpose = purpose
        self._distrusted = distrusted
        self._checks_left = MAX_SIGNATURE_CHECKS
        self._tried: set[Certificate] = set()
        self._refusal: PeerCertificateError | None = None
        self._end: Certificate | None = None
        """Certificate whose issuer is unknown."""
        self._keys: dict[int, str] = {}
        """Identities of keys by `id` of the certificate, which the search holds. Each takes as long as the certificate is large."""

    def path_from(self, leaf: Certificate) -> list[Certificate]:
        """Return the first path that keeps all rules, or raise the last refusal of an issuer."""
        for path in self._extended_paths([leaf]):
            return path
        if self._refusal is not None:
            raise self._refusal
        end = self._end or leaf
        self._distrusted.check_issuer_of(end)
        issuer = names.printable(end.issuer)
        raise PeerCertificateError("unknown-ca", f"the certificate was signed by an unknown authority: issuer {issuer}")

    def _extended_paths(self, path: list[Certificate]) -> Iterator[list[Certificate]]:
        issuer = path[-1].issuer.der
        roots, candidates = self._roots.get(issuer, ()), self._intermediates.get(issuer, ())
        if not roots and not candidates:
            self._end = path[-1]
        for root in _likely_first(roots, path[-1]):
            if self._may_have_issued(root, path, is_root=True) and self._has_valid_policies([*path, root]):
                yield [*path, root]
        for candidate in _likely_first(candidates, path[-1]):
            if self._may_have_issued(candidate, path, is_root=False):
                yield from self._extended_paths([*path, candidate])

    def _may_have_issued(self, issuer: Certificate, path: list[Certificate], *, is_root: bool) -> bool:
        if issuer in path or not self._may_check(issuer, is_root=is_root):
            return False
        # A renewed CA does not vouch for itself.
        if self._is_on(path, issuer):
            return False
        try:
            if not is_root:
                # Before its key is used: with a 16384-bit key one check costs a hundred times as much.
                _check_strength(issuer)
            # Before the other checks: only a CA that has signed the certificate gives the refusal that is reported.
            self._check_signature(path[-1], issuer)
            self._distrusted.check(issuer)
            _check_issuer(issuer, path, self._now, is_root=is_root)
            _check_purpose(issuer, self._purpose, "a CA of the chain")
        except PeerCertificateError as refusal:
            # Of several CAs of one name, all but one have a bad signature.
            if self._refusal is None or refusal.code != "bad-signature":
                self._refusal = refusal
            return False
        return True

    def _may_check(self, issuer: Certificate, *, is_root: bool) -> bool:
        """Return whether the budget allows another check, and take it off."""
        # The operator may have any number of CAs of one name, so the first check of each is free. The budget limits
        # what the certificates of a presenter cost.
        if is_root and issuer not in self._tried:
            self._tried.add(issuer)
            return True
        self._checks_left -= 1
        return self._checks_left >= 0

    def _has_valid_policies(self, path: list[Certificate]) -> bool:
        if has_valid_policies(path):
            return True
        self._refusal = PeerCertificateError(
            "no-valid-policy", "a CA of the chain requires a policy that the chain does not have"
        )
        return False

    def _is_on(self, path: Sequence[Certificate], candidate: Certificate) -> bool:
        """Return whether a path has a certificate of the candidate's subject, key and alternative names."""
        return any(
            self._key(candidate) == self._key(one)
            and candidate.subject == one.subject
            and _alternative_name(candidate) == _alternative_name(one)
            for one in path
        )

    def _check_signature(self, certificate: Certificate, issuer: Certificate) -> None:
        pair = (certificate, issuer)
        if pair not in self._signatures:
            self._signatures[pair] = certificate.is_issued_by(issuer)
        if not self._signatures[pair]:
            raise PeerCertificateError(
                "bad-signature", "the certificate names a known authority but was not signed with its key"
            )

    def _key(self, certificate: Certificate) -> str:
        key = self._keys.get(id(certificate))
        if key is None:
            key = self._keys[id(certificate)] = _key_identity(certificate)
        return key


def _alternative_name(certificate: Certificate) -> bytes | None:
    extension = certificate.extensions.by_oid.get(_ALTERNATIVE_NAME)
    return None if extension is None else extension.value


def _key_identity(certificate: Certificate) -> str:
    return key_identities(certificate)[0]


def _step(path: Sequence[Certificate], depth: int) -> PathCertificate:
    certificate, issuer = path[depth], path[min(depth + 1, len(path) - 1)]
    return PathCertificate(f"{certificate.serial_number:x}", _key_identity(issuer), key_identities(certificate))


def _check_serial_number(certificate: Certificate) -> None:
    """Check what a revocation by serial number needs (RFC 5280 4.1.2.2)."""
    number = certificate.serial_number
    if number <= 0 or number.bit_length() >= MAX_SERIAL_OCTETS * 8:
        raise PeerCertificateError(
            "bad-serial-number", f"the serial number is not a positive number of at most {MAX_SERIAL_OCTETS} octets"
        )


def _by_subject(certificates: Iterable[Certificate]) -> dict[bytes, list[Certificate]]:
    found: dict[bytes, list[Certificate]] = {}
    for certificate in certificates:
        found.setdefault(certificate.subject.der, []).append(certificate)
    return found


def _likely_first(issuers: Sequence[Certificate], certificate: Certificate) -> Sequence[Certificate]:
    """Return the issuers in the order in which Go tries them: those whose identifier the certificate names, then those of which it
    cannot be said. To Go an identifier that is missing is an empty one: where both are, they agree."""
    if len(issuers) < 2:
        return issuers
    wanted = certificate.extensions.authority_key_identifier or b""

    def rank(issuer: Certificate) -> int:
        identifier = issuer.extensions.subject_key_identifier or b""
        return 0 if identifier == wanted else 2 if identifier and wanted else 1

    return sorted(issuers, key=rank)


def read_chain(chain: Sequence[bytes]) -> ReadChain:
    """Read a presented `chain` (DER, leaf first), whose signatures are not verified. Raises PeerCertificateError."""
    if not chain:
        raise PeerCertificateError("malformed", "no certificate was presented")
    # Sizes before anything is parsed: the sender is not known yet.
    if len(chain) > MAX_CHAIN:
        raise PeerCertificateError("too-large", f"more than {MAX_CHAIN} certificates were presented")
    if any(len(der) > MAX_CERTIFICATE_BYTES for der in chain):
        raise PeerCertificateError("too-large", f"a certificate is larger than {MAX_CERTIFICATE_BYTES} bytes")
    if sum(map(len, chain[1:])) > MAX_INTERMEDIATE_BYTES:
        raise PeerCertificateError(
            "too-large", f"the intermediates are larger than {MAX_INTERMEDIATE_BYTES} bytes together"
        )
    # One budget for the whole chain: many small certificates cost no more than one.
    budget = ElementBudget(MAX_ELEMENTS)
    try:
        return ReadChain(tuple([Certificate(encoding, budget) for encoding in chain]))
    except CertificateTooLargeError as error:
        raise PeerCertificateError("too-large", str(error)) from error
    except CertificateUnreadableError as error:
        raise PeerCertificateError("malformed", str(error)) from error


def _check_strength(certificate: Certificate) -> None:
    """Check key and signature hash. Roots are not checked: they are trusted because they are in the bundle."""
    try:
        accepted_public_key(certificate.public_key())
    except (KeyRefusedError, DerError) as error:
        raise PeerCertificateError("weak-key", str(error)) from error
    except UNREADABLE as error:
        raise PeerCertificateError("malformed", "the certificate's public key cannot be read") from error
    if not certificate.has_strong_signature:
        raise PeerCertificateError("weak-signature", "the certificate is not signed over SHA-256, SHA-384 or SHA-512")


def _check_critical_extensions(certificate: Certificate) -> None:
    for oid in certificate.extensions.not_understood:
        raise PeerCertificateError(
            "unknown-critical-extension",
            f"the certificate has a critical extension that is not understood: {oid.dotted_string}",
        )


def _check_time(certificate: Certificate, now: datetime, whose: str = "the certificate") -> None:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begin:
        early = begin - now
        raise PeerCertificateError(
            "not-yet-valid",
            f"{whose} is not valid for another {gap(early)}, until {rfc3339(begin)}: compare the clocks",
            _seconds_rounded_up(early),
        )
    if now > end:
        late = now - end
        raise PeerCertificateError(
            "expired", f"{whose} expired {gap(late)} ago, at {rfc3339(end)}", _seconds_rounded_up(late)
        )


def _seconds_rounded_up(missed: timedelta) -> int:
    # Rounded up, so that a miss of half a second is not 0.
    return -(-missed // timedelta(seconds=1))


def _check_purpose(certificate: Certificate, wanted: _Purpose, whose: str = "the certificate") -> None:
    listed = certificate.extensions.extended_key_usage
    # A certificate without the extension is valid for any purpose (RFC 5280 4.2.1.12): `openssl x509 -req` makes such
    # certificates.
    if listed and {wanted.oid, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE}.isdisjoint(listed):
        raise PeerCertificateError("wrong-usage", f"{whose}'s extended key usage does not include {wanted.meaning}")


def _check_issuer(issuer: Certificate, path: list[Certificate], now: datetime, *, is_root: bool) -> None:
    """Raise PeerCertificateError unless `issuer` may issue `path[-1]` on the path to the leaf `path[0]`."""
    _check_critical_extensions(issuer)
    constraints = issuer.extensions.basic_constraints
    if constraints is None and is_root and issuer.version < 3:
        # Versions 1 and 2 have no extensions: such a root is a CA because it is in the bundle.
        constraints = BasicConstraints(ca=True)
    if constraints is None or not constraints.ca:
        raise PeerCertificateError("not-a-ca", "the certificate was issued by a certificate that is not a CA")
    if not profiles.may_sign_certificates(issuer.extensions.key_usage):
        raise PeerCertificateError("not-a-ca", "the certificate was issued by a CA that may not sign certificates")
    if constraints.path_length is not None and len(path) - 1 > constraints.path_length:
        raise PeerCertificateError("path-too-long", "there are more intermediates than a CA of the chain allows")
    limits = issuer.extensions.constrained_types
    # Any path with alternative names below the CA, and every one where directory names are constrained. Partial
    # support would let a name through.
    if limits is not None and (DIRECTORY_NAME in limits or any(one.has_extension(_ALTERNATIVE_NAME) for one in path)):
        raise PeerCertificateError(
            "constrained-names", "a CA of the chain constrains names, and the certificate may violate it"
        )
    _check_time(issuer, now, "a CA of the chain")


def _uid(subject: DistinguishedName) -> str:
    found = names.values(subject, names.UID_ATTRIBUTE)
    if len(found) > 1:
        raise PeerCertificateError("bad-uid", "the certificate states more than one UID")
    if found == ("",):
        raise PeerCertificateError("bad-uid", "the certificate states a UID that is empty")
    return found[0] if found else ""
