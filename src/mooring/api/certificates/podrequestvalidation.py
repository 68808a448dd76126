"""Validation of PodCertificateRequests: spec at creation, and updates of `/status`.

Rules kept here (docs/protocol/pod-certificate-requests.md#validation; wording as kube-apiserver's):
* spec: names and uids of signer, Pod, ServiceAccount and Node, a lifetime within the limits of the signer, and a key whose
  possession is proved: by an empty PKCS#10 request, or in v1beta1 by a signature of the Pod's uid.
* A request is decided once. Until then no status can be written but with one condition Issued, Denied or Failed.
* What is issued is for the requested key, begins within five minutes of now, lives for an hour at least and as long as requested at
  most, and is renewed ten minutes away from both ends. The times in the status are those of the certificate.
* An error quotes no chain: a private key may stand in it, in any form.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from datetime import datetime, timedelta

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa

from mooring.api.objectmeta import condition_list_errors, spec_of
from mooring.api.signername import MIN_SECONDS, longest_seconds, signer_name_errors, user_annotation_errors
from mooring.apimachinery.names import dns1123_subdomain_errors
from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339, rfc3339
from mooring.errors import OMITTED, FieldError, invalid, not_supported, required, too_long
from mooring.pki.errors import (
    CertificateUnreadableError,
    KeyRefusedError,
    PemError,
    RequestError,
    RequestSignatureError,
)
from mooring.pki.keys import UNREADABLE, PublicKey, accepted_public_key, public_key_der
from mooring.pki.pem import CERTIFICATE, blocks
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.names import alternative_names
from mooring.pki.x509.requests import parse_request_der
from mooring.pki.x509.signatures import Algorithm, is_signed, load_public_key

ISSUED, DENIED, FAILED = "Issued", "Denied", "Failed"
CONDITION_TYPES = (ISSUED, DENIED, FAILED)
MAX_UID = 128
MAX_KEY = 10 << 10
"""Bytes of the request, of a public key, and of a proof of possession."""
MAX_CHAIN = 100 << 10
"""Bytes of a chain."""
SKEW = timedelta(minutes=5)
MARGIN = timedelta(minutes=10)
_RSA_BITS = (3072, 4096)
_ATOMS = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*"
_EMAIL = re.compile(f"{_ATOMS}@{_ATOMS}", re.ASCII)
"""Addresses of RFC 5322 3.4.1 without quotes and comments."""
_SPEC = "spec"
_STUB, _KEY, _PROOF = (f"{_SPEC}.{name}" for name in ("stubPKCS10Request", "pkixPublicKey", "proofOfPossession"))
_STATUS = "status"
_CONDITIONS = f"{_STATUS}.conditions"
_CHAIN = f"{_STATUS}.certificateChain"
_TIMES = ("notBefore", "notAfter", "beginRefreshAt")
_GO_FIELDS = {
    "signerName": "", "podName": "", "podUID": "", "serviceAccountName": "", "serviceAccountUID": "", "nodeName": "",
    "nodeUID": "", "maxExpirationSeconds": None, "pkixPublicKey": None, "proofOfPossession": None,
    "stubPKCS10Request": None, "unverifiedUserAnnotations": None,
}  # fmt: skip
"""Fields of the spec in the order of Go's struct, which an error shows, with their zero values."""


def spec_errors(obj: Obj) -> list[FieldError]:
    """Validate `spec` of a new request."""
    spec = spec_of(obj)
    signer = spec.get("signerName") or ""
    errors = signer_name_errors(signer, f"{_SPEC}.signerName")
    annotations = spec.get("unverifiedUserAnnotations") or {}
    errors += user_annotation_errors(annotations, f"{_SPEC}.unverifiedUserAnnotations")
    for subject in ("pod", "serviceAccount", "node"):
        name, uid = spec.get(f"{subject}Name") or "", spec.get(f"{subject}UID") or ""
        errors += [invalid(f"{_SPEC}.{subject}Name", name, detail) for detail in dns1123_subdomain_errors(name)]
        if not uid:
            errors.append(invalid(f"{_SPEC}.{subject}UID", uid, "must not be empty"))
        if len(uid.encode("utf-8", "surrogatepass")) > MAX_UID:
            errors.append(too_long(f"{_SPEC}.{subject}UID", MAX_UID))
    seconds = spec.get("maxExpirationSeconds", 0)
    longest = longest_seconds(signer)
    if not MIN_SECONDS <= seconds <= longest:
        detail = f"must be in the range [{MIN_SECONDS}, {longest}]"
        errors.append(invalid(f"{_SPEC}.maxExpirationSeconds", seconds, detail))
    return errors + _key_errors(spec)


def _key_errors(spec: Obj) -> list[FieldError]:
    stub, key, proof = (spec.get(name) or "" for name in ("stubPKCS10Request", "pkixPublicKey", "proofOfPossession"))
    if stub and not key and not proof:
        return _stub_errors(stub)
    if key and proof and not stub:
        return _old_key_errors(key, proof, spec.get("podUID") or "")
    detail = "exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set"
    return [invalid(_SPEC, OMITTED, detail)]


def _stub_errors(text: str) -> list[FieldError]:
    encoding = _decoded(text)
    # Before it is parsed.
    if len(encoding) > MAX_KEY:
        return [too_long(_STUB, MAX_KEY)]
    try:
        request = parse_request_der(encoding)
    except KeyRefusedError as error:
        return [invalid(_STUB, OMITTED, str(error))]
    except RequestSignatureError:
        return [invalid(_STUB, OMITTED, "invalid signature")]
    except RequestError:
        return [invalid(_STUB, OMITTED, "must be a valid PKCS#10 CSR")]
    return _size_errors(request.public_key, _STUB)


def _old_key_errors(key_text: str, proof_text: str, pod_uid: str) -> list[FieldError]:
    encoding, proof = _decoded(key_text), _decoded(proof_text)
    for path, data in ((_KEY, encoding), (_PROOF, proof)):
        if len(data) > MAX_KEY:
            return [too_long(path, MAX_KEY)]
    try:
        key = _public_key(encoding)
    except KeyRefusedError as error:
        return [invalid(_KEY, OMITTED, str(error))]
    errors = _size_errors(key, _KEY)
    # The proof is over the uid of the Pod: one for another Pod does not count. Last, since it costs most.
    if not errors and not is_signed(pod_uid.encode(), proof, _algorithm(key), key):
        errors = [invalid(_PROOF, OMITTED, "could not verify proof-of-possession signature")]
    return errors


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except binascii.Error:
        return b""


def _public_key(encoding: bytes) -> PublicKey:
    """Return the key of a SubjectPublicKeyInfo. Raises KeyRefusedError."""
    try:
        return accepted_public_key(load_public_key(encoding))
    except UNREADABLE:
        raise KeyRefusedError("must be a valid PKIX-serialized public key") from None


def _size_errors(key: PublicKey, path: str) -> list[FieldError]:
    if not isinstance(key, rsa.RSAPublicKey):
        return []
    bits = (key.key_size + 7) // 8 * 8
    if bits in _RSA_BITS:
        return []
    return [invalid(path, f"{bits}-bit modulus", "RSA keys must have modulus size 3072 or 4096")]


def _algorithm(key: PublicKey) -> Algorithm:
    """Return the algorithm of a proof of possession."""
    if isinstance(key, ed25519.Ed25519PublicKey):
        return Algorithm(ed25519.Ed25519PublicKey)
    digest = hashes.SHA256()
    if isinstance(key, ec.EllipticCurvePublicKey):
        return Algorithm(ec.EllipticCurvePublicKey, digest)
    return Algorithm(rsa.RSAPublicKey, digest, padding.PSS(padding.MGF1(digest), padding.PSS.AUTO))


def requested_key(spec: Obj) -> PublicKey:
    """Return the key for which a request asks. Raises RequestError."""
    stub = spec.get("stubPKCS10Request") or ""
    try:
        if stub:
            return parse_request_der(_decoded(stub)).public_key
        return _public_key(_decoded(spec.get("pkixPublicKey") or ""))
    except KeyRefusedError as error:
        raise RequestError(str(error)) from error


def update_errors(new: Obj, old: Obj) -> list[FieldError]:
    """Refuse a change of `spec`."""
    spec = spec_of(new)
    if _meaning(spec) == _meaning(spec_of(old)):
        return []
    shown = {f"{name[0].upper()}{name[1:]}": spec.get(name) or zero for name, zero in _GO_FIELDS.items()}
    shown["PKIXPublicKey"] = shown.pop("PkixPublicKey")
    return [invalid(_SPEC, shown, "field is immutable")]


def status_errors(new: Obj, old: Obj, now: datetime) -> list[FieldError]:
    """Validate an update of `/status` at `now`."""
    status, before = _meaning(new.get(_STATUS)), _meaning(old.get(_STATUS))
    conditions: list[Obj] = status.get("conditions") or []
    errors = [*_kind_errors(conditions), *condition_list_errors(conditions, _CONDITIONS)]
    if errors:
        return errors
    # First: what was issued, denied or failed is final, whatever the new status is.
    if before.get("conditions"):
        return _unless_equal(status, before, "immutable after PodCertificateRequest is issued, denied, or failed")
    if not conditions:
        detail = 'status is immutable unless transitioning to "Issued", "Denied", or "Failed"'
        return _unless_equal(status, before, detail)
    if conditions[0]["type"] != ISSUED:
        detail = "non-condition status fields must be empty when denying or failing the PodCertificateRequest"
        return _unless_equal(status, {"conditions": conditions}, detail)
    return _issued_errors(status, spec_of(new), now)


def _meaning(part: Obj | None) -> Obj:
    """Return what a part of an object says. An empty field says nothing, whatever its form."""
    return {name: value for name, value in (part or {}).items() if value}


def is_same_status(one: Obj | None, other: Obj | None) -> bool:
    """Return whether two statuses say the same."""
    return _meaning(one) == _meaning(other)


def _unless_equal(status: Obj, wanted: Obj, detail: str) -> list[FieldError]:
    return [] if status == wanted else [invalid(_STATUS, OMITTED, detail)]


def _kind_errors(conditions: list[Obj]) -> Iterator[FieldError]:
    known = 0
    for index, condition in enumerate(conditions):
        kind, status = condition.get("type", ""), condition.get("status", "")
        if kind not in CONDITION_TYPES:
            yield not_supported(f"{_CONDITIONS}[{index}].type", kind, CONDITION_TYPES)
            continue
        known += 1
        if known > 1:
            detail = 'There may be at most one condition with type "Issued", "Denied", or "Failed"'
            yield invalid(f"{_CONDITIONS}[{index}].type", kind, detail)
        if status != "True":
            yield not_supported(f"{_CONDITIONS}[{index}].status", status, ("True",))


def _issued_errors(status: Obj, spec: Obj, now: datetime) -> list[FieldError]:
    chain: str = status.get("certificateChain") or ""
    if len(chain.encode("utf-8", "surrogatepass")) > MAX_CHAIN:
        return [too_long(_CHAIN, MAX_CHAIN)]
    certificates, problem = _certificates(chain)
    if problem:
        return [invalid(_CHAIN, OMITTED, problem)]
    leaf = certificates[0]
    errors = list(_name_errors(leaf))
    try:
        wanted = requested_key(spec)
    except RequestError as error:
        return [*errors, invalid(_STUB, OMITTED, str(error))]
    if not _is_key_of(leaf, wanted):
        return [*errors, invalid(_CHAIN, OMITTED, "leaf certificate was not issued to the requested public key")]
    for name in _TIMES:
        if not status.get(name):
            within = "in the range [notbefore+10min, notafter-10min]"
            expected = within if name == "beginRefreshAt" else "consistent with the issued certificate"
            errors.append(required(f"{_STATUS}.{name}", f"must be present and {expected}"))
    # Only with all times present.
    return errors or _time_errors(status, leaf, spec, now)


def _certificates(chain: str) -> tuple[list[Certificate], str]:
    """Return the certificates of a chain, and what is wrong with it; "" when nothing is."""
    found: list[Certificate] = []
    try:
        for block in blocks(chain.encode("utf-8", "surrogatepass")):
            if block.label != CERTIFICATE:
                return [], "issued certificate chain must consist entirely of CERTIFICATE PEM blocks"
            found.append(Certificate(block.der))
    except PemError as error:
        return [], f"issued certificate chain cannot be decoded: {error}"
    except CertificateUnreadableError:
        return [], f"{'intermediate' if found else 'leaf'} certificate does not parse as valid X.509"
    return found, "" if found else "issued certificate chain must contain at least one certificate"


def _name_errors(leaf: Certificate) -> Iterator[FieldError]:
    names = alternative_names(leaf.extensions)
    for name in names.dns:
        if not name:
            yield invalid(_CHAIN, name, "leaf certificate should not contain empty DNSName")
        if ".." in name:
            yield invalid(_CHAIN, name, "leaf certificate's DNSName should not contain '..'")
        if name.startswith(".") or name.endswith("."):
            yield invalid(_CHAIN, name, "leaf certificate's DNSName should not start or end with '.'")
    for email in names.emails:
        if not _EMAIL.fullmatch(email):
            yield invalid(_CHAIN, email, "leaf certificate should not contain invalid EmailAddress")


def _is_key_of(leaf: Certificate, wanted: PublicKey) -> bool:
    try:
        return public_key_der(accepted_public_key(leaf.public_key())) == public_key_der(wanted)
    except (KeyRefusedError, *UNREADABLE):
        return False


def _time_errors(status: Obj, leaf: Certificate, spec: Obj, now: datetime) -> list[FieldError]:
    begin, end, refresh = (parse_rfc3339(status[name]) for name in _TIMES)
    lifetime = end - begin
    longest = spec.get("maxExpirationSeconds") or 0
    at_begin, at_end, at_refresh = (f"{_STATUS}.{name}" for name in _TIMES)
    checks: tuple[tuple[bool, str, datetime | int, str], ...] = (
        (
            begin == leaf.not_valid_before_utc,
            at_begin,
            begin,
            "must be set to the NotBefore time encoded in the leaf certificate",
        ),
        (
            abs(begin - now) < SKEW,
            at_begin,
            begin,
            "must be set to within 5 minutes of kube-apiserver's current time",
        ),
        (
            end == leaf.not_valid_after_utc,
            at_end,
            end,
            "must be set to the NotAfter time encoded in the leaf certificate",
        ),
        (
            lifetime >= timedelta(seconds=MIN_SECONDS),
            _CHAIN,
            _nanoseconds(lifetime),
            "leaf certificate lifetime must be >= 1 hour",
        ),
        (
            lifetime <= timedelta(seconds=longest),
            _CHAIN,
            _nanoseconds(lifetime),
            f"leaf certificate lifetime must be <= spec.maxExpirationSeconds ({longest})",
        ),
        (refresh - begin >= MARGIN, at_refresh, refresh, "must be at least 10 minutes after status.notBefore"),
        (end - refresh >= MARGIN, at_refresh, refresh, "must be at least 10 minutes before status.notAfter"),
    )
    for is_kept, path, value, detail in checks:
        if not is_kept:
            return [invalid(path, rfc3339(value) if isinstance(value, datetime) else value, detail)]
    return []


def _nanoseconds(duration: timedelta) -> int:
    """Return a duration as Go's JSON shows it."""
    return duration // timedelta(microseconds=1) * 1000
