"""What an approver needs to know about a certificate signing request: the derived facts that were once planned for its status
(docs/differences.md#kubelet-tls-bootstrap), worked out here from the request itself.

Rules kept here: nothing in a request is believed that its signature does not cover; a request that cannot be read says so in
place of facts. The requester's name and groups are the server's word, the subject is the requester's: they stand apart.
"""

from __future__ import annotations

import base64
import binascii
from datetime import datetime
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from mooring.api.certificates.certificatesigningrequest import KIND
from mooring.apimachinery.schema import Obj
from mooring.clock import rfc3339
from mooring.pki import pem
from mooring.pki.errors import PkiError
from mooring.pki.x509 import names
from mooring.pki.x509.requests import CertificateRequest, parse_request
from mooring.pki.x509.signers import SIGNERS

_CONDITION = next(column for column in KIND.resource.columns if column.name == "Condition")


def facts(obj: Obj, now: datetime) -> dict[str, Any]:
    """Everything about one request, as one document; what does not apply is absent."""
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


def decoded(text: object) -> bytes:
    """The bytes of a base64 field; empty when it is none."""
    try:
        return base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        return b""


def fingerprint(request: CertificateRequest) -> str:
    """`sha256:<hex>` of the public key, as pins are written."""
    return f"sha256:{request.key_fingerprint}"


def _request(spec: dict[str, Any]) -> dict[str, Any]:
    try:
        request = parse_request(decoded(spec.get("request")))
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


def _subject(subject: x509.Name) -> dict[str, Any]:
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
        leaf = pem.certificates(decoded(text))[0]
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
        "fingerprint": f"sha256:{leaf.fingerprint(hashes.SHA256()).hex()}",
    }
