"""Certificate signing requests: building, and parsing with proof of possession (PKCS#10, RFC 2986).

Rules kept here (docs/protocol/certificate-signing-requests.md, docs/protocol/kubelet-certificates.md#one-request):
* The first PEM block must be a `CERTIFICATE REQUEST`; the text after it is ignored.
* The request must be signed by its own key, whose type and size must be allowed.
* A parsed request is remembered by its bytes: admission, validation, approver and signer read the same one within milliseconds, and
  each verification of the signature costs as much as a small write.
* Only the parts that a certificate can contain are read: subject, DNS, IP, email and URI names. Other extensions are ignored. Of
  the attributes, challengePassword (RFC 2985 5.4.1) is read for approvers; one that is not a short text counts as missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import AttributeOID, ExtensionOID, NameOID, ObjectIdentifier

from mooring.pki import pem
from mooring.pki.errors import KeyRefusedError, PemError, RequestError, RequestSignatureError
from mooring.pki.keys import (
    UNREADABLE,
    PrivateKey,
    PublicKey,
    accepted_public_key,
    algorithm_of,
    public_key_fingerprint,
    signature_hash,
)
from mooring.pki.x509 import der, names
from mooring.pki.x509.certificate import MAX_ELEMENTS, NO_EXTENSIONS
from mooring.pki.x509.der import DerError, ElementBudget, TooManyElementsError
from mooring.pki.x509.distinguishedname import DistinguishedName
from mooring.pki.x509.extensions import Extensions
from mooring.pki.x509.names import NO_NAMES, AlternativeNames, IPAddress
from mooring.pki.x509.signatures import is_signed, load_public_key, signature_algorithm, signature_of

_EXTENSION_REQUEST = ObjectIdentifier("1.2.840.113549.1.9.14")

MAX_REQUEST = 64 << 10
"""Bytes of the PEM text. A request with a hundred names of the greatest length has half of it. `MAX_ELEMENTS` limits the names:
admission, approvers and signers read requests on the event loop."""
MAX_CHALLENGE = 255
"""RFC 2985 5.4.1: characters of a challengePassword."""
MAX_REMEMBERED, MAX_REMEMBERED_LARGE = 256, 32
"""Parsed requests in memory: more than are ever between creation and signature, and fewer of large ones, so that each memory holds
the texts of 4 MiB and of 2 MiB."""
LARGE = 16 << 10
"""Bytes above which a request is large. A usual one has 600."""


@dataclass(frozen=True)  # no slots: cached_property needs a dict
class CertificateRequest:
    """A request whose signature has been verified."""

    subject: DistinguishedName
    public_key: PublicKey
    alternative_names: AlternativeNames = NO_NAMES
    challenge_password: str = ""

    @property
    def common_name(self) -> str:
        """Common name of the subject, which is the username."""
        return (self._texts.get(NameOID.COMMON_NAME) or ("",))[-1]

    @property
    def organizations(self) -> tuple[str, ...]:
        """Organizations of the subject, which are the groups."""
        return self._texts.get(NameOID.ORGANIZATION_NAME, ())

    @property
    def key_algorithm(self) -> str:
        """Algorithm of the key for an approver, such as `ECDSA-P256`."""
        return algorithm_of(self.public_key)

    @cached_property
    def _texts(self) -> Mapping[ObjectIdentifier, tuple[str, ...]]:
        return names.texts(self.subject)

    @cached_property
    def key_fingerprint(self) -> str:
        """SHA-256 of the public key, to compare with the one that the machine prints."""
        return public_key_fingerprint(self.public_key)


def build_request(
    key: PrivateKey,
    common_name: str,
    organizations: Iterable[str] = (),
    dns: Iterable[str] = (),
    ips: Iterable[IPAddress] = (),
    challenge_password: str = "",
) -> bytes:
    """Return a PEM request for `key`. Raises RequestError for a DNS name outside ASCII."""
    alternative_names = AlternativeNames(tuple(dns), tuple(ips))
    builder = x509.CertificateSigningRequestBuilder(names.subject(common_name, organizations).for_builder())
    try:
        if alternative_names:
            builder = builder.add_extension(alternative_names.extension(), critical=False)
    except ValueError as error:
        raise RequestError("a DNS name of the request is not ASCII: write it in its A-label (xn--) form") from error
    if challenge_password:
        builder = builder.add_attribute(AttributeOID.CHALLENGE_PASSWORD, challenge_password.encode())
    return pem.encode(pem.CERTIFICATE_REQUEST, builder.sign(key, signature_hash(key)).public_bytes(Encoding.DER))


def has_key_alone(encoding: bytes) -> bool:
    """Return whether a request in DER that was parsed before has neither a subject nor an attribute."""
    fields = der.only(encoding, der.SEQUENCE).fields().next(der.SEQUENCE).fields()
    fields.next(der.INTEGER)
    subject, _, attributes = fields.next(der.SEQUENCE), fields.next(der.SEQUENCE), fields.next(der.CONSTRUCTED)
    return not subject.content and not attributes.content


def parse_request(data: bytes) -> CertificateRequest:
    """Return the verified request of a PEM text. Raises RequestError, whose message fits after `spec.request: Invalid value`."""
    if len(data) > MAX_REQUEST:
        raise RequestError(f"the certificate request has more than {MAX_REQUEST} bytes: ask for fewer names")
    return _parse_remembered(data) if len(data) <= LARGE else _parse_large(data)


def _parse(data: bytes) -> CertificateRequest:
    try:
        block = next(pem.blocks(data), None)
    except PemError as error:
        raise RequestError(str(error)) from error
    if block is None or block.label != pem.CERTIFICATE_REQUEST:
        raise RequestError(f"PEM block type must be {pem.CERTIFICATE_REQUEST}")
    try:
        return _read(block.der)
    except KeyRefusedError as error:
        raise RequestError(str(error)) from error


def parse_request_der(encoding: bytes) -> CertificateRequest:
    """Return the verified request of a DER encoding without PEM, which callers limit to a few KiB.

    Raises RequestSignatureError, KeyRefusedError for a key of a refused type or size, and RequestError for everything else.
    """
    return _read_remembered(encoding)


def _read(encoding: bytes) -> CertificateRequest:
    try:
        return _verified(encoding)
    except DerError as error:
        raise RequestError(f"the certificate request cannot be parsed: {error}") from error


def _verified(encoding: bytes) -> CertificateRequest:
    whole = der.only(encoding, der.SEQUENCE, ElementBudget(MAX_ELEMENTS)).fields()
    signed, algorithm = whole.next(der.SEQUENCE), signature_algorithm(whole.next(der.SEQUENCE))
    signature = signature_of(whole.next(der.BIT_STRING))
    fields = signed.fields()
    # The version, which Go does not check either.
    der.integer(fields.next(der.INTEGER))
    subject = DistinguishedName.read(fields.next(der.SEQUENCE))
    key = _key(fields.next(der.SEQUENCE).encoding)
    asked, challenge = _attributes(fields.next(der.CONSTRUCTED))
    # Proof of possession (RFC 2986): without it a request could name the key of another machine.
    if not is_signed(signed.encoding, signature, algorithm, key):
        raise RequestSignatureError("the certificate request's signature does not verify with the key it carries")
    return CertificateRequest(subject, key, names.alternative_names(asked), challenge)


def _key(encoding: bytes) -> PublicKey:
    try:
        return accepted_public_key(load_public_key(encoding))
    except DerError:
        raise
    except UNREADABLE as error:
        raise DerError("the public key cannot be read") from error


def _attributes(tagged: der.Element) -> tuple[Extensions, str]:
    """Return the requested extensions and the challengePassword. Attributes of another form are ignored, as by Go."""
    extensions, challenge = NO_EXTENSIONS, ""
    for attribute in tagged.fields():
        if attribute.tag != der.SEQUENCE:
            # An approver in Go does not see the names in such an attribute, so that they may get into no certificate.
            continue
        try:
            fields = attribute.fields()
            oid = der.object_identifier(fields.next(der.OID))
            values = fields.next(der.SET)
            every = tuple(values.fields())
        except TooManyElementsError:
            raise
        except DerError:
            continue
        if not every:
            continue
        if oid == _EXTENSION_REQUEST:
            # Of two lists an approver could read one, and the signer the other.
            if extensions is not NO_EXTENSIONS:
                raise DerError("it asks for extensions twice")
            extensions = Extensions.read(values, (ExtensionOID.SUBJECT_ALTERNATIVE_NAME,))
        elif oid == AttributeOID.CHALLENGE_PASSWORD and len(every[0].content) <= MAX_CHALLENGE:
            challenge = _text(every[0].content)
    return extensions, challenge


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return ""


_parse_remembered, _parse_large = lru_cache(MAX_REMEMBERED)(_parse), lru_cache(MAX_REMEMBERED_LARGE)(_parse)
_read_remembered = lru_cache(MAX_REMEMBERED)(_read)
