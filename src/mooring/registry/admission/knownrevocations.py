"""KnownRevocations: records in a CertificateSigningRequest up to which revision the server knew the denylist."""

from __future__ import annotations

from mooring.api.certificates.knownrevocations import record_known_revocations
from mooring.api.mooring.certificaterevocation import PLURAL
from mooring.registry.admission.request import AdmissionRequest

REQUESTS = "certificatesigningrequests"


class KnownRevocations:
    name = "KnownRevocations"

    def admit(self, request: AdmissionRequest) -> None:
        if request.resource == REQUESTS and request.operation == "CREATE" and request.new is not None:
            record_known_revocations(request.new, request.views[PLURAL].revision)
