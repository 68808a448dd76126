"""ClusterTrustBundle: trust anchors, of a signer or of none; its two versions, their conversion and the validation.

Rules kept here (docs/protocol/certificate-signing-requests.md#clustertrustbundle):
* v1 and v1beta1 are served, and differ in their name only. Objects are stored as v1beta1, as in Kubernetes 1.37, so that a server
  of 1.36 can read them. Objects in the form of v1, as a later server may store them, are read too.
* The name of a bundle with a signer is the signer's, with `:` for `/`, then `:` and a DNS name. Without a signer it has no `:`.
* `spec.trustBundle` has one CA certificate or more, at most 1 MiB, only CERTIFICATE blocks without headers, none twice. It is
  parsed again only when it changes.
* `spec.signerName` is immutable.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from mooring.api.kind import Kind, in_version
from mooring.api.objectmeta import NAME, NONE, spec_of
from mooring.api.signername import signer_name_errors
from mooring.apimachinery.names import dns1123_subdomain_errors, path_segment_errors
from mooring.apimachinery.resource import Column, Resource
from mooring.apimachinery.schema import Obj, message
from mooring.errors import FieldError, invalid, too_long
from mooring.pki.errors import CertificateTooLargeError, CertificateUnreadableError, PemError
from mooring.pki.pem import CERTIFICATE, MAX_PEM_BYTES, blocks
from mooring.pki.x509.bundles import element_budget
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.der import ElementBudget

GROUP = "certificates.k8s.io"
PLURAL = "clustertrustbundles"
MAX_TRUST_BUNDLE = 1 << 20
"""Bytes of a bundle, as in Kubernetes."""
# Else the reader of PEM would refuse it with another error.
assert MAX_TRUST_BUNDLE <= MAX_PEM_BYTES
_BUNDLE = "spec.trustBundle"
_OMITTED = "<value omitted>"


def name_prefix(signer_name: str) -> str:
    """Return the beginning of the names of a signer's bundles."""
    return signer_name.replace("/", ":") + ":"


def _signer_name(obj: Obj) -> str:
    return spec_of(obj).get("signerName") or ""


def _validate(obj: Obj) -> list[FieldError]:
    name, signer = obj["metadata"].get("name") or "", _signer_name(obj)
    errors = [invalid("metadata.name", name, detail) for detail in _name_problems(name, signer)]
    return errors + (signer_name_errors(signer, "spec.signerName") if signer else [])


def _name_problems(name: str, signer: str) -> list[str]:
    if not signer:
        if ":" in name:
            return ['ClusterTrustBundle without signer name must not have ":" in its name']
        return dns1123_subdomain_errors(name)
    prefix = name_prefix(signer)
    if not name.startswith(prefix):
        return [f"ClusterTrustBundle for signerName {signer} must be named with prefix {prefix}"]
    return dns1123_subdomain_errors(name.removeprefix(prefix))


def _validate_create(obj: Obj) -> list[FieldError]:
    return _bundle_errors(spec_of(obj).get("trustBundle") or "")


def _validate_update(new: Obj, old: Obj) -> list[FieldError]:
    bundle = spec_of(new).get("trustBundle") or ""
    # A bundle that stays is not parsed again: one that an older version accepted must not stop a change of labels.
    errors = [] if bundle == (spec_of(old).get("trustBundle") or "") else _bundle_errors(bundle)
    if _signer_name(new) != _signer_name(old):
        errors.append(invalid("spec.signerName", _signer_name(new), "field is immutable"))
    return errors


def _bundle_errors(text: str) -> list[FieldError]:
    data = text.encode("utf-8", "surrogatepass")
    if len(data) > MAX_TRUST_BUNDLE:
        return [too_long(_BUNDLE, MAX_TRUST_BUNDLE)]
    places: dict[bytes, list[int]] = {}
    problems: list[str] = []
    for index, (der, problem) in enumerate(_entries(data)):
        if problem:
            problems.append(f"entry {index} {problem}")
        else:
            places.setdefault(der, []).append(index)
    if not problems:
        if not places:
            problems.append("at least one trust anchor must be provided")
        repeated = (indices for indices in places.values() if len(indices) > 1)
        problems += [f"duplicate trust anchor (indices [{' '.join(map(str, indices))}])" for indices in repeated]
    return [invalid(_BUNDLE, _OMITTED, problem) for problem in problems]


def _entries(data: bytes) -> Iterator[tuple[bytes, str]]:
    """Yield the DER and the problem of each block. A block that cannot be decoded ends the list."""
    # One for the whole bundle: what many certificates cost together is bounded.
    budget = element_budget(data.count(b"-----BEGIN "))
    try:
        for block in blocks(data):
            problem = (
                _problem(block.der, budget) if block.label == CERTIFICATE else f"has bad block type: {block.label}"
            )
            yield block.der, problem
    except PemError as error:
        headers = "carries headers" in str(error)
        yield b"", "has PEM block headers" if headers else f"cannot be decoded: {error}"


def _problem(der: bytes, budget: ElementBudget) -> str:
    try:
        constraints = Certificate(der, budget).extensions.basic_constraints
    except CertificateTooLargeError as error:
        return f"cannot be read: {error}"
    except CertificateUnreadableError:
        return "does not parse as X.509"
    return "" if constraints is not None and constraints.ca else "does not have the CA bit set"


def _shown_signer(obj: Obj, now: datetime) -> str:
    return _signer_name(obj) or NONE


KIND = Kind(
    resource=Resource(
        group=GROUP,
        version="v1beta1",
        kind="ClusterTrustBundle",
        plural=PLURAL,
        namespaced=False,
        schema=message("io.k8s.api.certificates.v1beta1.ClusterTrustBundle"),
        columns=(NAME, Column("SignerName", _shown_signer, description="Signer whose trust anchors these are.")),
    ),
    storage="/registry/clustertrustbundles",
    name_errors=path_segment_errors,
    validate=_validate,
    validate_create=_validate_create,
    validate_update=_validate_update,
    selectable_fields=lambda obj: {"spec.signerName": _signer_name(obj)},
    field_labels=("spec.signerName",),
    allow_unconditional_update=False,
)
"""The kind in the form in which it is stored."""


KIND_V1 = in_version(KIND, "v1", message("io.k8s.api.certificates.v1.ClusterTrustBundle"))
