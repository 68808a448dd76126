"""State of a CertificateSigningRequest, as the approver, signer and cleaner read it, and copies with a changed status.

Rules kept here (docs/protocol/certificate-signing-requests.md):
* Approved and Denied count by their presence. Failed counts only when it is True: the API allows nothing else, but another
  writer of the store may have written it.
* `parsed_request` returns the names that the certificate will have: those of the request, or those that the signer decides.
* Conditions added here leave their times to the server.
"""

from __future__ import annotations

import base64
import re

from mooring.api.certificates.requestrecords import APPROVED, DENIED, FAILED, conditions_of
from mooring.apimachinery.schema import Obj
from mooring.identity import CREDENTIAL_ID, NODE_PREFIX
from mooring.pki.errors import RequestError
from mooring.pki.x509.requests import CertificateRequest, parse_request
from mooring.pki.x509.signers import issued_request, node_name_in

REQUESTS = "certificatesigningrequests"
_CERTIFICATE_ID = re.compile("X509SHA256=([0-9a-f]{64})").fullmatch


def parsed_request(csr: Obj) -> CertificateRequest:
    """Parse `spec.request`, with the names that its signer puts into the certificate.

    Raises RequestError, or ValueError when it is not base64.
    """
    spec = csr.get("spec") or {}
    request = parse_request(base64.b64decode(spec.get("request") or ""))
    return issued_request(request, spec.get("signerName", ""), spec.get("extra") or {})


def requested_node(csr: Obj) -> str:
    """Return the node that a request is for; "" when it is for none, or cannot be read."""
    if node := node_name_in((csr.get("spec") or {}).get("extra") or {}):
        return node
    try:
        user = parsed_request(csr).common_name
    except (RequestError, ValueError):
        return ""
    return user.removeprefix(NODE_PREFIX) if user.startswith(NODE_PREFIX) else ""


def presented_certificate(csr: Obj) -> str:
    """Return the fingerprint of the certificate with which the request was made; "" when it was made without one."""
    for credential in ((csr.get("spec") or {}).get("extra") or {}).get(CREDENTIAL_ID) or ():
        if found := _CERTIFICATE_ID(credential):
            return f"sha256:{found[1]}"
    return ""


def is_issued(csr: Obj) -> bool:
    return bool((csr.get("status") or {}).get("certificate"))


def is_undecided(csr: Obj) -> bool:
    """Return true when the request is neither approved, denied nor issued."""
    return not is_issued(csr) and not any(
        condition.get("type") in (APPROVED, DENIED) for condition in conditions_of(csr)
    )


def is_approved_and_unsigned(csr: Obj) -> bool:
    """Return true when the request is approved, and neither denied, failed nor issued."""
    if is_issued(csr):
        return False
    approved = False
    for condition in conditions_of(csr):
        kind = condition.get("type")
        if kind == DENIED or (kind == FAILED and condition.get("status") == "True"):
            return False
        approved = approved or kind == APPROVED
    return approved


def with_condition(csr: Obj, kind: str, reason: str, message: str) -> Obj:
    """Return a copy with the condition `kind` added or replaced."""
    condition = {"type": kind, "status": "True", "reason": reason, "message": message}
    others = [other for other in conditions_of(csr) if other.get("type") != kind]
    return with_status(csr, conditions=[*others, condition])


def without_condition(csr: Obj, kind: str) -> Obj:
    """Return a copy without the condition `kind`; the request itself when it has none."""
    others = [other for other in conditions_of(csr) if other.get("type") != kind]
    return csr if len(others) == len(conditions_of(csr)) else with_status(csr, conditions=others)


def with_status(csr: Obj, **fields: object) -> Obj:
    """Return a copy with these status fields; it shares unchanged parts with `csr`."""
    return {**csr, "status": {**(csr.get("status") or {}), **fields}}
