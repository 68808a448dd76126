"""certificatesigningrequest-signing-controller: signs certificates of approved requests.

Rules kept here (docs/protocol/certificate-signing-requests.md):
* Requests that are Approved, not Denied, not Failed, without a certificate, and for a signer of the table are signed. Requests for
  other signers are left to those.
* A request that breaks a rule of its signer, or can never become a certificate, gets the condition Failed through `/status`,
  reason SignerValidationFailure.
* The profile determines the content of the certificate, the authority checks the result, and the status carries the leaf alone.
* An expired CA signs nothing; the request waits for a new one.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from mooring.api.certificates.conditions import FAILED
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.clock import rfc3339
from mooring.controllers.actions import Action, Entropy, Key, Retry, Update
from mooring.controllers.certificates.requeststate import (
    REQUESTS,
    is_approved_and_unsigned,
    parsed_request,
    with_condition,
    with_status,
)
from mooring.pki.errors import IssueError, RequestError
from mooring.pki.pem import certificates_pem
from mooring.pki.x509.authority import Authority, serial_number
from mooring.pki.x509.profiles import SIGNING_DURATION, from_request
from mooring.pki.x509.signers import SIGNERS

REASON = "SignerValidationFailure"


@dataclass(frozen=True, slots=True)
class CsrSigner:
    """Signs the requests of every signer in the table with one certificate authority."""

    authority: Authority
    signing_duration: timedelta = SIGNING_DURATION
    name: str = "certificatesigningrequest-signing-controller"
    watches: tuple[str, ...] = (REQUESTS,)

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        return (("", obj["metadata"]["name"]),) if not deleted and _is_to_be_signed(obj) else ()

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        csr = views[REQUESTS].get(key[1])
        if csr is None or not _is_to_be_signed(csr):
            return ()
        if now >= self.authority.not_after:
            return (Retry(f"the CA expired at {rfc3339(self.authority.not_after)}: nothing can be signed"),)
        spec = csr["spec"]
        usages = spec.get("usages") or ()
        try:
            request = parsed_request(spec["request"])
        except RequestError as error:
            return (_mark_failed(csr, str(error)),)
        except ValueError:
            return (_mark_failed(csr, "spec.request is not base64"),)
        try:
            refusals = SIGNERS[spec["signerName"]].refusals(request, usages)
            if refusals:
                return (_mark_failed(csr, "; ".join(refusals)),)
            template = from_request(request, usages, now, spec.get("expirationSeconds"), self.signing_duration)
            certificate = self.authority.sign(template, now, serial_number(entropy))
        except IssueError as error:
            return (_mark_failed(csr, str(error)),)
        text = base64.b64encode(certificates_pem([certificate])).decode()
        return (Update(REQUESTS, with_status(csr, certificate=text), "status"),)


def _is_to_be_signed(csr: Obj) -> bool:
    return (csr.get("spec") or {}).get("signerName") in SIGNERS and is_approved_and_unsigned(csr)


def _mark_failed(csr: Obj, message: str) -> Action:
    return Update(REQUESTS, with_condition(csr, FAILED, REASON, message), "status")
