"""Who may approve and sign certificate requests, and what no request may ask for.

Rules kept here (docs/protocol/certificate-signing-requests.md#admission):
* CertificateApproval: whoever changes `/approval`, in whatever way, needs the verb `approve` on the signer: resource
  `signers`, name = the signer's name, else name `<domain>/*`.
* CertificateSigning: whoever changes the certificate or the conditions through `/status` needs `sign`, looked up alike.
* CertificateSubjectRestriction: nobody asks kube-apiserver-client for a member of system:masters.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from mooring.apimachinery.schema import Obj
from mooring.authz.attributes import Attributes
from mooring.identity import MASTERS
from mooring.pki.errors import RequestError
from mooring.pki.x509.requests import CertificateRequest, parse_request
from mooring.pki.x509.signers import KUBE_APISERVER_CLIENT
from mooring.registry.admission.request import AdmissionRequest

CSRS = "certificatesigningrequests"
GROUP = "certificates.k8s.io"


class CertificateApproval:
    name = "CertificateApproval"

    def admit(self, request: AdmissionRequest) -> None:
        if request.operation == "UPDATE" and request.resource == f"{CSRS}/approval":
            _check_signer(request, "approve")


class CertificateSigning:
    name = "CertificateSigning"

    def admit(self, request: AdmissionRequest) -> None:
        if request.operation != "UPDATE" or request.resource != f"{CSRS}/status":
            return
        if _outcome(request.new) != _outcome(request.old):
            _check_signer(request, "sign")


class CertificateSubjectRestriction:
    name = "CertificateSubjectRestriction"

    def admit(self, request: AdmissionRequest) -> None:
        if request.operation != "CREATE" or request.resource != CSRS or request.new is None:
            return
        if _signer(request.new) != KUBE_APISERVER_CLIENT:
            return
        parsed = requested(request)
        if parsed is not None and MASTERS in parsed.organizations:
            raise request.forbidden(f"use of {KUBE_APISERVER_CLIENT} signer with {MASTERS} group is not allowed")


def requested(request: AdmissionRequest) -> CertificateRequest | None:
    """What the new CSR asks for; None when validation will refuse the object anyway. Raises ForbiddenError."""
    assert request.new is not None  # callers look at CREATE only
    text = (request.new.get("spec") or {}).get("request", "")
    try:
        return parse_request(base64.b64decode(text, validate=True))
    except (RequestError, binascii.Error) as error:
        if request.kind.validate(request.new):
            return None  # 422 says more than 403 would
        raise request.forbidden("unable to parse csr") from error


def _signer(obj: Obj) -> str:
    return str((obj.get("spec") or {}).get("signerName", ""))


def _outcome(obj: Obj | None) -> tuple[Any, Any]:
    status = (obj or {}).get("status") or {}
    return status.get("certificate") or "", status.get("conditions") or []


def _check_signer(request: AdmissionRequest, verb: str) -> None:
    assert request.old is not None  # UPDATE
    signer = _signer(request.old)
    domain = signer.partition("/")[0]
    for name in (signer, f"{domain}/*"):
        asked = Attributes(user=request.user, verb=verb, group=GROUP, version="*", resource="signers", name=name)
        if request.authorize(asked).allowed:
            return
    raise request.forbidden(f'user not permitted to {verb} requests with signerName "{signer}"')
