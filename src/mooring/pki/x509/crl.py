"""CRLs of other CAs: parsing, verification, and what of them is kept for lookups (RFC 5280 5 and 6.3).

Rules kept here:
* A CRL is complete: it covers every certificate of its CA. A delta CRL, one with an IssuingDistributionPoint (it covers a part), an
  indirect one, and one with a critical extension that is not understood are refused, because a certificate that is not on it may be
  revoked.
* A CRL without nextUpdate is refused: it would never be known to be old (RFC 5280 5.1.2.5).
* The signature is verified with the key of a CA whose subject is the issuer of the CRL and which may sign CRLs: a CA by
  basicConstraints, or a root of version 1 or 2, and cRLSign where the key usage is limited.
* A text is used whole or not at all. Of several CRLs of one CA the newest counts, and none older than the one in force.
* The size of a text and the number of CRLs are capped. The cost is linear: about 15 µs for each entry.
* No single call of the library takes long, so that a thread which reads a CRL leaves the others their turns. The library's own
  verification of a CRL encodes every entry again in one call (0.3 s for 80 000). So the signed bytes are taken from the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from mooring.clock import rfc3339
from mooring.pki import pem
from mooring.pki.errors import CrlError
from mooring.pki.x509 import der, names, usages
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.der import DerError
from mooring.pki.x509.distinguishedname import DistinguishedName
from mooring.pki.x509.publickeyinfo import key_identities
from mooring.pki.x509.signatures import Algorithm, signature_algorithm, signature_of

MAX_CRL_BYTES = 8 << 20
"""Bytes of one text: 150 000 entries. The library parses them in one call of 50 ms."""
MAX_CRLS = 256
"""CRLs of one text. A bundle has no more CAs that matter."""
LABEL = "X509 CRL"

_UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""Exceptions of the library for a CRL that it cannot read."""

_KNOWN = frozenset({x509.AuthorityKeyIdentifier.oid, x509.CRLNumber.oid, x509.IssuerAlternativeName.oid})
_KNOWN_OF_ENTRIES = frozenset({x509.CRLReason.oid, x509.InvalidityDate.oid})


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
        crl = x509.load_der_x509_crl(encoding)
        signed = _Signed.of(encoding)
        issuer = names.printable(signed.issuer)
        _check_extensions(crl, issuer)
        end = crl.next_update_utc
        if end is None:
            raise CrlError(f"the CRL of {issuer} has no nextUpdate")
        key = _signer(signed, issuer, cas.get(signed.issuer.der, ()))
        serial_numbers = frozenset(_serial_numbers(crl, issuer))
        return Crl(issuer, key, crl.last_update_utc, end, serial_numbers)
    except DerError as error:
        raise CrlError(f"a CRL cannot be parsed: {error}") from error
    except _UNREADABLE as error:
        raise CrlError("a CRL cannot be parsed") from error


def _check_extensions(crl: x509.CertificateRevocationList, issuer: str) -> None:
    for extension in crl.extensions:
        if extension.oid == x509.DeltaCRLIndicator.oid:
            raise CrlError(f"the CRL of {issuer} is a delta CRL: give the complete one")
        if extension.oid == x509.IssuingDistributionPoint.oid:
            raise CrlError(f"the CRL of {issuer} covers a part of the certificates of its CA: give the complete one")
        if extension.critical and extension.oid not in _KNOWN:
            raise CrlError(
                f"the CRL of {issuer} has a critical extension that is not understood: {extension.oid.dotted_string}"
            )


def _serial_numbers(crl: x509.CertificateRevocationList, issuer: str) -> Iterator[int]:
    """Yield the serial numbers of the entries. Raises CrlError for an entry of another CA, and for one that is not understood."""
    for entry in crl:
        for extension in entry.extensions:
            if extension.oid == x509.CertificateIssuer.oid:
                raise CrlError(f"the CRL of {issuer} lists certificates of other CAs")
            if extension.critical and extension.oid not in _KNOWN_OF_ENTRIES:
                raise CrlError(
                    f"the CRL of {issuer} has an entry with a critical extension that is not understood: "
                    f"{extension.oid.dotted_string}"
                )
        yield entry.serial_number


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
    """The signed bytes of a CRL, their issuer, and the signature."""

    data: bytes
    issuer: DistinguishedName
    algorithm: Algorithm | None
    signature: bytes

    @classmethod
    def of(cls, encoding: bytes) -> _Signed:
        """Read the parts of a CRL that the library has read, which compares both places of the algorithm (RFC 5280 5.1.1.2).

        Raises DerError.
        """
        whole = der.only(encoding, der.SEQUENCE).fields()
        data, algorithm = whole.next(der.SEQUENCE), whole.next(der.SEQUENCE)
        fields = data.fields()
        fields.optional(der.INTEGER)  # of version 2
        fields.next(der.SEQUENCE)  # the algorithm again
        issuer = DistinguishedName.read(fields.next(der.SEQUENCE).encoding)
        return cls(data.encoding, issuer, signature_algorithm(algorithm), signature_of(whole.next(der.BIT_STRING)))


def _may_sign_crls(ca: Certificate) -> bool:
    if ca.version < 3:
        return True  # a root of the bundle; versions 1 and 2 have no extensions
    constraints = ca.extensions.basic_constraints
    return constraints is not None and constraints.ca and usages.may_sign_crls(ca.extensions.key_usage)


def described(crl: Crl) -> str:
    """Return the words for a CRL in a message to the operator."""
    return f"the CRL of {crl.issuer} from {rfc3339(crl.this_update)} to {rfc3339(crl.next_update)}"
