"""Issuance check of revocation: no certificate is issued that would take a revocation back.

Rules kept here:
* A request for a revoked public key is refused: this server would refuse the certificate anyway.
* A request in the name of a node is refused when it was made before the node was revoked (`api.certificates.knownrevocations`). It
  may wait for long, and a certificate that is issued afterwards would be good.
* An entry that cannot be read is present: that of a key refuses, and that of a node, which revokes up to a moment, holds.
* Both are refused also when a person has approved the request. A new request, which that person sees again, is the way out.
"""

from __future__ import annotations

from dataclasses import dataclass

from mooring.api.certificates.knownrevocations import precedes
from mooring.api.mooring.certificaterevocation import PLURAL, key_entry, node_entry
from mooring.api.view import Views
from mooring.controllers.certificates.issuance import Issuance, Objection

KEY_REVOKED = "KeyRevoked"
NODE_REVOKED = "NodeRevoked"


@dataclass(frozen=True, slots=True)
class RevokedRequests:
    """Objects to requests for a revoked key, and to those of a revoked node from before its revocation."""

    name: str = "revocation"
    watches: tuple[str, ...] = (PLURAL,)

    def check(self, issuance: Issuance, views: Views) -> Objection | None:
        denylist = views[PLURAL]
        entry = key_entry(issuance.request.key_fingerprint)
        if denylist.get(entry) is not None or denylist.problem(entry):
            return Objection(
                KEY_REVOKED,
                f"the public key of the request is revoked by certificaterevocations/{entry}: make a new key and ask again",
                denies=True,
            )
        name = issuance.node_name or issuance.machine
        if not name:
            return None
        entry = node_entry(name)
        if problem := denylist.problem(entry):
            return Objection(NODE_REVOKED, f"certificaterevocations/{entry} cannot be read: {problem}")
        found = denylist.get(entry)
        if found is None:
            return None
        if precedes(issuance.csr, found):
            return Objection(
                NODE_REVOKED,
                f"the request was made before certificaterevocations/{entry} revoked the certificates of this node: if the machine "
                "may return, delete this request and let it ask again",
                denies=True,
            )
        return None
