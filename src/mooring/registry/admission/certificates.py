"""Admission plugins for certificate requests: the rights to approve and sign, and subjects that no request may have.

Rules kept here (docs/protocol/certificate-signing-requests.md#admission, docs/protocol/pod-certificate-requests.md#rights):
* CertificateApproval: a change of `/approval` needs the verb `approve` on the signer: resource `signers`, name that of the
  signer, or `<domain>/*`.
* CertificateSigning: a change of the certificate or the conditions through `/status` needs the verb `sign` on the signer alike.
* ClusterTrustBundleAttest: a new ClusterTrustBundle of a signer, and a change of one, need the verb `attest` on the signer alike.
  A change that only the garbage collector and server-side apply make needs none.
* PodCertificateSigning: a change of the status of a PodCertificateRequest needs the verb `sign` on the signer alike. The refusal is
  kube-apiserver's 422: there the strategy of the kind asks for the right.
* CertificateSubjectRestriction: a request to the signer kube-apiserver-client may not name the group system:masters.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from mooring.api.certificates import podcertificaterequest
from mooring.api.certificates.podrequestvalidation import is_same_status
from mooring.apimachinery.schema import Obj
from mooring.authz.decision import Attributes
from mooring.errors import InvalidError, forbidden, quoted
from mooring.identity import MASTERS
from mooring.pki.errors import RequestError
from mooring.pki.x509.requests import CertificateRequest, parse_request
from mooring.pki.x509.signers import KUBE_APISERVER_CLIENT
from mooring.pki.x509.supervisorsigners import issued_request
from mooring.registry.admission.request import AdmissionRequest

CSRS = "certificatesigningrequests"
BUNDLES = "clustertrustbundles"
POD_REQUESTS = podcertificaterequest.PLURAL
_COLLECTOR_FIELDS = frozenset({"ownerReferences", "finalizers", "managedFields"})
GROUP = "certificates.k8s.io"


class CertificateApproval:
    name = "CertificateApproval"

    def admit(self, request: AdmissionRequest) -> None:
        if request.operation == "UPDATE" and request.resource == f"{CSRS}/approval":
            _check_requested_signer(request, "approve")


class CertificateSigning:
    name = "CertificateSigning"

    def admit(self, request: AdmissionRequest) -> None:
        if request.operation != "UPDATE" or request.resource != f"{CSRS}/status":
            return
        if _outcome(request.new) != _outcome(request.old):
            _check_requested_signer(request, "sign")


class ClusterTrustBundleAttest:
    name = "ClusterTrustBundleAttest"

    def admit(self, request: AdmissionRequest) -> None:
        if request.operation not in ("CREATE", "UPDATE") or request.resource != BUNDLES or request.new is None:
            return
        signer = _signer(request.new)  # an update that changes it is refused by the validation
        if not signer or (request.old is not None and _meaning(request.new) == _meaning(request.old)):
            return
        if not _may(request, "attest", signer):
            raise request.forbidden(f'user not permitted to attest for signerName "{signer}"')


class PodCertificateSigning:
    name = "PodCertificateSigning"

    def admit(self, request: AdmissionRequest) -> None:
        if request.resource != f"{POD_REQUESTS}/status" or request.new is None or request.old is None:
            return
        signer = _signer(request.old)
        if is_same_status(request.new.get("status"), request.old.get("status")) or _may(request, "sign", signer):
            return
        resource, user = request.kind.resource, quoted(request.user.username)
        error = forbidden("spec.signerName", f'User {user} is not permitted to "sign" for signer {quoted(signer)}')
        raise InvalidError.of(resource.group, resource.kind, request.name, [error])


class CertificateSubjectRestriction:
    name = "CertificateSubjectRestriction"

    def admit(self, request: AdmissionRequest) -> None:
        if request.operation != "CREATE" or request.resource != CSRS or request.new is None:
            return
        if _signer(request.new) != KUBE_APISERVER_CLIENT:
            return
        parsed = parse_new_request(request)
        if parsed is not None and MASTERS in parsed.organizations:
            raise request.forbidden(f"use of {KUBE_APISERVER_CLIENT} signer with {MASTERS} group is not allowed")


def parse_new_request(request: AdmissionRequest) -> CertificateRequest | None:
    """Parse the certificate request of a new CSR, with the names that its signer puts into the certificate.

    Return None when validation will refuse the object. Raises ForbiddenError.
    """
    assert request.new is not None  # callers handle CREATE only
    spec = request.new.get("spec") or {}
    try:
        parsed = parse_request(base64.b64decode(spec.get("request", ""), validate=True))
        return issued_request(parsed, spec.get("signerName", ""), spec.get("extra") or {})
    except (RequestError, binascii.Error) as error:
        if request.kind.validate(request.new):
            return None  # a 422 tells more than a 403
        raise request.forbidden("unable to parse csr") from error


def _signer(obj: Obj) -> str:
    return str((obj.get("spec") or {}).get("signerName", ""))


def _outcome(obj: Obj | None) -> tuple[Any, Any]:
    status = (obj or {}).get("status") or {}
    return status.get("certificate") or "", status.get("conditions") or []


def _meaning(obj: Obj) -> Obj:
    """Return the object without the metadata that garbage collection and apply write."""
    kept = {name: value for name, value in obj["metadata"].items() if name not in _COLLECTOR_FIELDS}
    return {**obj, "metadata": kept}


def _check_requested_signer(request: AdmissionRequest, verb: str) -> None:
    assert request.old is not None  # UPDATE
    signer = _signer(request.old)
    if not _may(request, verb, signer):
        raise request.forbidden(f'user not permitted to {verb} requests with signerName "{signer}"')


def _may(request: AdmissionRequest, verb: str, signer: str) -> bool:
    """Return true when the user has the verb on the signer, or on all signers of its domain."""
    domain = signer.partition("/")[0]
    return any(
        request.authorize(
            Attributes(user=request.user, verb=verb, group=GROUP, version="*", resource="signers", name=name)
        ).allowed
        for name in (signer, f"{domain}/*")
    )
