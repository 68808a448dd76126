"""SupervisorRequests: only the supervisor creates requests for its signers.

Rules kept here (docs/protocol/k3s.md#certificates): the signers of the supervisor decide every name in a certificate from what the
supervisor states about the requester. A request that a client creates itself, by whatever user or impersonation, has no such
statement. It is refused at once, with the path that answers such requests.
"""

from __future__ import annotations

from mooring.pki.x509.supervisorsigners import CREDENTIAL, SUPERVISOR_SIGNERS
from mooring.registry.admission.certificates import CSRS
from mooring.registry.admission.request import AdmissionRequest


class SupervisorRequests:
    name = "SupervisorRequests"

    def admit(self, request: AdmissionRequest) -> None:
        if request.operation != "CREATE" or request.resource != CSRS or request.new is None:
            return
        signer = str((request.new.get("spec") or {}).get("signerName", ""))
        if signer in SUPERVISOR_SIGNERS and CREDENTIAL not in request.change.attested:
            raise request.forbidden(f"certificates of {signer} are requested by POST to /v1-k3s/… of the supervisor")
