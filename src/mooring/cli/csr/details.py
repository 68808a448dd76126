"""Details of a certificate signing request for an approver: requester, subject, key, problems, certificate.

Upstream planned them for the status of a request (docs/differences.md#kubelet-tls-bootstrap). Rules kept here: only what the
signature of the request covers is read from it. A request that cannot be read has a `problem` in place of details. The name and
groups of the requester come from the server, the subject comes from the requester: they are kept apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from mooring.api.certificates.certificatesigningrequest import KIND
from mooring.apimachinery.codec.json import base64_field
from mooring.apimachinery.schema import Obj
from mooring.clock import rfc3339
from mooring.pki.errors import PkiError
from mooring.pki.x509 import bundles, names
from mooring.pki.x509.encoding.distinguishedname import DistinguishedName
from mooring.pki.x509.requests import CertificateRequest, parse_request
from mooring.pki.x509.signers import SIGNERS, issued_request

PLURAL = KIND.resource.plural
QUALIFIED = f"{KIND.resource.singular}.{KIND.resource.group}"
_CONDITION = next(column for column in KIND.resource.columns if column.name == "Condition")


def csr_details(obj: Obj, now: datetime) -> dict[str, Any]:
    """Return the details of one request as one document. Empty fields are left out."""
    spec, status, metadata = obj.get("spec") or {}, obj.get("status") or {}, obj["metadata"]
    found = {
        "name": metadata["name"],
        "created": metadata.get("creationTimestamp"),
        "requester": _present(
            {
                "username": spec.get("username"),
                "uid": spec.get("uid"),
                "groups": spec.get("groups"),
                "extra": spec.get("extra"),
            }
        ),
        "signerName": spec.get("signerName"),
        "usages": spec.get("usages"),
        "expirationSeconds": spec.get("expirationSeconds"),
        "request": _request(spec),
        "condition": str(_CONDITION.cell(obj, now)),
        "conditions": status.get("conditions"),
        "certificate": _certificate(status.get("certificate"), now),
    }
    return _present(found)


def _present(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value not in (None, "", [], {}, ())}


def fingerprint(request: CertificateRequest) -> str:
    """Return `sha256:<hex>` of the public key, the form of a pin."""
    return f"sha256:{request.key_fingerprint}"


def refusals_by_signer(obj: Obj) -> Sequence[str]:
    """Return the rules of its signer that a request breaks; none for a request that cannot be read, and for other signers."""
    return _request(obj.get("spec") or {}).get("refusedBySigner") or ()


def _request(spec: dict[str, Any]) -> dict[str, Any]:
    try:
        request = issued_request(
            parse_request(base64_field(spec.get("request"))), spec.get("signerName") or "", spec.get("extra") or {}
        )
    except PkiError as error:
        return {"problem": str(error)}
    alternatives = request.alternative_names
    signer = SIGNERS.get(spec.get("signerName") or "")
    return _present(
        {
            "subject": _subject(request.subject),
            "dnsNames": list(alternatives.dns),
            "ipAddresses": [str(address) for address in alternatives.ips],
            "emailAddresses": list(alternatives.emails),
            "uris": list(alternatives.uris),
            "key": {"algorithm": request.key_algorithm, "fingerprint": fingerprint(request)},
            "refusedBySigner": signer.refusals(request, spec.get("usages") or ()) if signer else None,
        }
    )


def _subject(subject: DistinguishedName) -> dict[str, Any]:
    return _present(
        {
            "commonName": names.common_name(subject),
            "organizations": list(names.organizations(subject)),
            "text": subject.rfc4514_string(),
        }
    )


def _certificate(text: object, now: datetime) -> dict[str, Any]:
    if not text:
        return {}
    try:
        leaf = bundles.certificates(base64_field(text))[0]
    except PkiError as error:
        return {"problem": str(error)}
    begin, end = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    return {
        "serialNumber": f"{leaf.serial_number:x}",
        "subject": leaf.subject.rfc4514_string(),
        "issuer": leaf.issuer.rfc4514_string(),
        "notBefore": rfc3339(begin),
        "notAfter": rfc3339(end),
        "valid": begin <= now < end,
        "fingerprint": f"sha256:{leaf.fingerprint}",
    }
