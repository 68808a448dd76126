"""Admission plugin BootstrapTokenLimits: node names that a bootstrap token may request certificates for.

Rules kept here: only CREATE of a CertificateSigningRequest by `system:bootstrap:<id>` is judged, by the same rules as before its
issuance (`mooring.controllers.certificates.tokenlimits`). A joining machine thereby gets its error at once, and not in a condition.
The cause NodeNameNotAllowed tells it that a repetition is of no use.
"""

from __future__ import annotations

from dataclasses import replace

from mooring.controllers.certificates.tokenlimits import joining_user, name_refusal, requests_allowed_name
from mooring.errors import Cause
from mooring.identity import NAME_NOT_ALLOWED, bootstrap_token_id
from mooring.pki.x509.requests import CertificateRequest
from mooring.registry.admission.certificates import CSRS, parse_new_request
from mooring.registry.admission.request import AdmissionRequest
from mooring.trust.bootstraptoken.restrictions import read_restrictions
from mooring.trust.bootstraptoken.token import TokenError
from mooring.trust.bootstraptoken.tokensecret import NAMESPACE, secret_name


class BootstrapTokenLimits:
    name = "BootstrapTokenLimits"

    def admit(self, request: AdmissionRequest) -> None:
        if request.operation != "CREATE" or request.resource != CSRS:
            return
        token_id = bootstrap_token_id(request.user.username)
        secret = request.views["secrets"].get(secret_name(token_id), NAMESPACE) if token_id else None
        if secret is None:
            return  # another user, or a token that was deleted this instant, which the issuance check notices
        try:
            restrictions = read_restrictions(secret)
        except TokenError as error:
            raise request.forbidden(f"the bootstrap token {token_id}: {error}") from None
        if not restrictions.node_name:
            return
        parsed = parse_new_request(request)
        if parsed is not None and not requests_allowed_name(_user(request, parsed), restrictions):
            message = name_refusal(token_id, restrictions)
            refusal = request.forbidden(message)
            refusal.details = replace(
                refusal.details, causes=(*refusal.details.causes, Cause(NAME_NOT_ALLOWED, message))
            )
            raise refusal


def _user(request: AdmissionRequest, parsed: CertificateRequest) -> str | None:
    spec = (request.new or {}).get("spec") or {}
    return joining_user(spec.get("signerName", ""), parsed, spec.get("extra") or {})
