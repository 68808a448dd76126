"""Certificate revocation lists (RFC 5280 5): the one that an authority signs, and those of other CAs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.x509.oid import CRLEntryExtensionOID, ExtensionOID

from mooring.clock import rfc3339
from mooring.pki import pem
from mooring.pki.errors import CrlError, IssueError
from mooring.pki.x509 import der, names, profiles
from mooring.pki.x509.authority import Authority
from mooring.pki.x509.bundles import key_identities
from mooring.pki.x509.certificate import NO_EXTENSIONS, Certificate
from mooring.pki.x509.der import DerError
from mooring.pki.x509.distinguishedname import DistinguishedName
from mooring.pki.x509.extensions import Extensions, extension
from mooring.pki.x509.signatures import Algorithm, signature_algorithm, signature_of

# CRLs of other CAs: parsing, verification, and what of them is kept for lookups (RFC 5280 5 and 6.3).
#
# Rules kept here:
# * A CRL is complete: it covers every certificate of its CA. A delta CRL, one with an IssuingDistributionPoint (it covers a part),
#   an indirect one, one without nextUpdate, and one with a critical extension that is not understood are refused.
# * The signature is verified with the key of a CA whose subject is the issuer of the CRL and which may sign CRLs: a CA by
#   basicConstraints, or a root of version 1 or 2, and cRLSign where the key usage is limited.
# * A text is used whole or not at all. Of several CRLs of one CA the newest counts, and none older than the one in force.
# * The size of a text and the number of CRLs are capped. The cost is linear: about 15 µs for each entry. No call of a library takes
#   long, so that a thread which reads a CRL leaves the others their turns.
# * A CRL is read by the rules for certificates (`certificate.py`). Of an extension the kind is read, and whether it is critical:
#   the name of a CA in one may be in Latin-1.

MAX_CRL_BYTES = 8 << 20
"""Bytes of one text: 150 000 entries."""
MAX_CRLS = 256
"""CRLs of one text. A bundle has no more CAs that matter."""
LABEL = "X509 CRL"

_KNOWN = frozenset(
    {ExtensionOID.AUTHORITY_KEY_IDENTIFIER, ExtensionOID.CRL_NUMBER, ExtensionOID.ISSUER_ALTERNATIVE_NAME}
)
_KNOWN_OF_ENTRIES = frozenset({CRLEntryExtensionOID.CRL_REASON, CRLEntryExtensionOID.INVALIDITY_DATE})
_VERSION_2 = 1
_TIMES = (der.UTC_TIME, der.GENERALIZED_TIME)


@dataclass(frozen=True, slots=True)
class Crl:
    """A verified CRL. `issuer` is its CA's name, `issuer_key` is `sha256:<hex>` of that CA's SubjectPublicKeyInfo."""

    issuer: str
    issuer_key: str
    this_update: datetime
    next_update: datetime
    serial_numbers: frozenset[int] = field(repr=False)

    def is_current(self, now: datetime) -> bool:
        """Return whether `now` lies between thisUpdate and nextUpdate."""
        return self.this_update <= now <= self.next_update


def verified_crls(text: bytes, cas: Iterable[Certificate]) -> tuple[Crl, ...]:
    """Return the CRLs of a text in PEM or DER, whose CAs are among `cas`. Raises PkiError."""
    by_subject: dict[bytes, list[Certificate]] = {}
    for ca in cas:
        by_subject.setdefault(ca.subject.der, []).append(ca)
    return tuple(_verified(encoding, by_subject) for encoding in _encodings(text))


def newest_crls(crls: Iterable[Crl], in_force: Mapping[str, Crl]) -> dict[str, Crl]:
    """Return the newest CRL of each CA by the CA's key. Raises CrlError when it is older than the one in force."""
    found: dict[str, Crl] = {}
    for crl in crls:
        before = found.get(crl.issuer_key)
        if before is None or before.this_update < crl.this_update:
            found[crl.issuer_key] = crl
    for key, crl in found.items():
        # An old list that someone puts back would accept certificates again that were revoked since.
        if key in in_force and crl.this_update < in_force[key].this_update:
            raise CrlError(f"{described(crl)} is older than the one in force")
    return found


def revoked_anchors(cas: Iterable[Certificate], crls: Iterable[Crl]) -> frozenset[str]:
    """Return the keys of those CAs of a bundle that another CA of it has revoked. No path leads on from such a CA."""
    bundle = tuple(cas)
    by_key = {crl.issuer_key: crl for crl in crls}
    return frozenset(
        key_identities(ca)[0]
        for ca in bundle
        for issuer in bundle
        if ca.issuer == issuer.subject
        and ca is not issuer
        and (crl := by_key.get(key_identities(issuer)[0])) is not None
        and ca.serial_number in crl.serial_numbers
        and key_identities(ca)[0] != crl.issuer_key
        and ca.is_issued_by(issuer)
    )


def _encodings(text: bytes) -> Iterator[bytes]:
    """Yield the CRLs of a text in DER. Raises PkiError."""
    if text[:1] == bytes([der.SEQUENCE]):
        if len(text) > MAX_CRL_BYTES:
            raise CrlError(f"the CRL is longer than {MAX_CRL_BYTES} bytes")
        yield text
        return
    number = 0
    for block in pem.blocks(text, MAX_CRL_BYTES):
        number += 1
        if block.label != LABEL:
            raise CrlError(f"only {LABEL} PEM blocks are allowed, found {block.label}")
        if number > MAX_CRLS:
            raise CrlError(f"the text holds more than {MAX_CRLS} CRLs")
        yield block.der
    if not number:
        raise CrlError(f"the text is neither DER nor does it hold an {LABEL} PEM block")


def _verified(encoding: bytes, cas: Mapping[bytes, Sequence[Certificate]]) -> Crl:
    try:
        signed = _Signed.of(encoding)
        issuer = names.printable(signed.issuer)
        # Before the entries: a certificate that is not on a partial CRL may be revoked all the same.
        _check_extensions(signed.extensions, issuer)
        # It would never be known to be old (RFC 5280 5.1.2.5).
        if signed.next_update is None:
            raise CrlError(f"the CRL of {issuer} has no nextUpdate")
        # The signature before the entries, of which there may be many.
        key = _signer(signed, issuer, cas.get(signed.issuer.der, ()))
        serial_numbers = frozenset(_serial_numbers(signed.entries, issuer))
        return Crl(issuer, key, signed.this_update, signed.next_update, serial_numbers)
    except DerError as error:
        raise CrlError(f"a CRL cannot be parsed: {error}") from error


def _check_extensions(extensions: Extensions, issuer: str) -> None:
    for one in extensions.by_oid.values():
        if one.oid == ExtensionOID.DELTA_CRL_INDICATOR:
            raise CrlError(f"the CRL of {issuer} is a delta CRL: give the complete one")
        if one.oid == ExtensionOID.ISSUING_DISTRIBUTION_POINT:
            raise CrlError(f"the CRL of {issuer} covers a part of the certificates of its CA: give the complete one")
        if one.critical and one.oid not in _KNOWN:
            raise CrlError(
                f"the CRL of {issuer} has a critical extension that is not understood: {one.oid.dotted_string}"
            )


def _serial_numbers(entries: der.Fields, issuer: str) -> Iterator[int]:
    """Yield the serial numbers of the entries. Raises CrlError for an entry of another CA, and for one that is not understood.

    Raises DerError.
    """
    while entries:
        fields = entries.next(der.SEQUENCE).fields()
        yield der.integer(fields.next(der.INTEGER))
        if fields.any().tag not in _TIMES:
            raise DerError("an entry has no time")
        found = fields.optional(der.SEQUENCE)
        if fields:
            raise DerError("bytes follow the extensions of an entry")
        if found is not None:
            _check_entry(found.fields(), issuer)


def _check_entry(extensions: der.Fields, issuer: str) -> None:
    for one in map(extension, extensions):
        if one.oid == CRLEntryExtensionOID.CERTIFICATE_ISSUER:
            raise CrlError(f"the CRL of {issuer} lists certificates of other CAs")
        if one.critical and one.oid not in _KNOWN_OF_ENTRIES:
            raise CrlError(
                f"the CRL of {issuer} has an entry with a critical extension that is not understood: "
                f"{one.oid.dotted_string}"
            )


def _signer(signed: _Signed, issuer: str, cas: Iterable[Certificate]) -> str:
    """Return the key of the CA that has signed the CRL. Raises CrlError."""
    candidates = tuple(cas)
    if not candidates:
        raise CrlError(f"{issuer}, the issuer of a CRL, is none of the CAs that verify client certificates")
    if signed.algorithm is None or not signed.algorithm.is_strong:
        raise CrlError(f"the CRL of {issuer} is not signed over SHA-256, SHA-384 or SHA-512")
    able = [ca for ca in candidates if _may_sign_crls(ca)]
    if not able:
        raise CrlError(f"the certificate of {issuer} does not let it sign CRLs: its key usage needs cRLSign")
    for ca in able:
        if ca.has_signed(signed.data, signed.signature, signed.algorithm):
            return key_identities(ca)[0]
    raise CrlError(f"the CRL of {issuer} was not signed with the key of that CA")


@dataclass(frozen=True, slots=True)
class _Signed:
    """A CRL whose signature is not verified. `data` are the signed bytes, and `entries` is read once."""

    data: bytes
    issuer: DistinguishedName
    this_update: datetime
    next_update: datetime | None
    entries: der.Fields
    extensions: Extensions
    algorithm: Algorithm | None
    signature: bytes

    @classmethod
    def of(cls, encoding: bytes) -> _Signed:
        """Read a CRL but for its entries. Raises DerError."""
        whole = der.only(encoding, der.SEQUENCE).fields()
        data, algorithm = whole.next(der.SEQUENCE), whole.next(der.SEQUENCE)
        signature = signature_of(whole.next(der.BIT_STRING))
        fields = data.fields()
        version = fields.optional(der.INTEGER)
        if version is not None and der.integer(version) != _VERSION_2:
            raise DerError("it is of another version than 1 and 2")
        # RFC 5280 5.1.1.2: the algorithm outside of the signed part must be the signed one.
        if fields.next(der.SEQUENCE).encoding != algorithm.encoding:
            raise DerError("the signature algorithm stands there twice, and differently")
        issuer = DistinguishedName.read(fields.next(der.SEQUENCE))
        begin = der.time(fields.any())
        end = der.time(fields.any()) if any(map(fields.is_next, _TIMES)) else None
        entries = fields.optional(der.SEQUENCE)
        holder = fields.optional(der.CONSTRUCTED)
        if fields:
            raise DerError("bytes follow the extensions")
        return cls(
            data.encoding,
            issuer,
            begin,
            end,
            der.Fields(b"" if entries is None else entries.content),
            NO_EXTENSIONS if holder is None else Extensions.read(holder, ()),
            signature_algorithm(algorithm),
            signature,
        )


def _may_sign_crls(ca: Certificate) -> bool:
    if ca.version < 3:
        # A root of the bundle. Versions 1 and 2 have no extensions.
        return True
    constraints = ca.extensions.basic_constraints
    return constraints is not None and constraints.ca and profiles.may_sign_crls(ca.extensions.key_usage)


def described(crl: Crl) -> str:
    """Return the words for a CRL in a message to the operator."""
    return f"the CRL of {crl.issuer} from {rfc3339(crl.this_update)} to {rfc3339(crl.next_update)}"


# Certificate revocation list (RFC 5280 5): its entries, and the list that an authority signs.
#
# Rules kept here:
# * The list is version 2, with the extensions that RFC 5280 5.2 demands of every CA: AuthorityKeyIdentifier and CRLNumber.
# * The reason `unspecified` is left out of an entry (RFC 5280 5.3.1).

LIFETIME = timedelta(days=7)
"""Time from an issue to nextUpdate: software that reads copies of the list goes on for some days when the server is down."""

_NO_REASON = x509.ReasonFlags.unspecified


@dataclass(frozen=True, slots=True)
class SignedList:
    """A signed list in both encodings."""

    der: bytes
    pem: bytes

    @classmethod
    def of(cls, der: bytes) -> SignedList:
        """Encode a list."""
        return cls(der, pem.encode("X509 CRL", der))


def revoked_certificate(serial_number: int, revoked_at: datetime, reason: str) -> x509.RevokedCertificate:
    """Return the entry of one certificate. `reason` is a word of RFC 5280 5.3.1, such as `keyCompromise`."""
    builder = x509.RevokedCertificateBuilder().serial_number(serial_number).revocation_date(revoked_at)
    flag = x509.ReasonFlags(reason)
    if flag is not _NO_REASON:
        builder = builder.add_extension(x509.CRLReason(flag), critical=False)
    return builder.build()


def revocation_list(authority: Authority, revoked: Sequence[x509.RevokedCertificate], now: datetime) -> bytes:
    """Return the DER of the list of `authority`. Raises IssueError when its certificate does not allow it to sign one.

    CRLNumber is the time in microseconds, which grows from list to list although several servers issue them.
    """
    _require_crl_signing(authority.certificate)
    # The constructor takes all entries at once. The method for one entry copies those before it.
    builder = x509.CertificateRevocationListBuilder(revoked_certificates=list(revoked))
    whole_second = now.replace(microsecond=0)
    number = int(now.timestamp() * 1_000_000)
    builder = (
        builder.last_update(whole_second)
        .next_update(whole_second + LIFETIME)
        .add_extension(x509.CRLNumber(number), critical=False)
    )
    return authority.sign_revocation_list(builder)


def _require_crl_signing(certificate: Certificate) -> None:
    if not profiles.may_sign_crls(certificate.extensions.key_usage):
        raise IssueError("the CA certificate may not sign revocation lists according to its key usage (cRLSign)")
