"""KnownSerialNumbers: records which certificates the entry of a key or node revokes, for the CRL.

Rules kept here:
* A CRL lists serial numbers only. They are taken from the NodeIdentities at the write of the entry, because later a NodeIdentity
  also has certificates that were issued after the revocation.
* A change of a node's entry that keeps its moment adds none: the machine may have joined again since.
* Certificates that have expired are left out. Serial numbers of an earlier write stay, and the newest ones count.
* The server sets the field, whatever the client sends.
"""

from __future__ import annotations

from collections.abc import Iterator

from mooring.api.meta.printcolumns import spec_of
from mooring.api.mooring import certificaterevocation, nodeidentity
from mooring.api.mooring.certificaterevocation import MAX_KNOWN
from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339
from mooring.registry.admission.request import AdmissionRequest

FIELD = "knownSerialNumbers"


class KnownSerialNumbers:
    name = "KnownSerialNumbers"

    def admit(self, request: AdmissionRequest) -> None:
        if request.resource != certificaterevocation.PLURAL or request.new is None:
            return
        spec: Obj = request.new.get("spec") or {}
        before = spec_of(request.old or {}).get(FIELD) or ()
        known = list(dict.fromkeys((*before, *_known(request, spec))))[-MAX_KNOWN:]
        spec.pop(FIELD, None)
        if known:
            spec[FIELD] = known


def _revokes_until_now(request: AdmissionRequest, spec: Obj) -> bool:
    before = certificaterevocation.time_of(spec, "issuedBefore")
    return before is None or before >= request.change.now


def _known(request: AdmissionRequest, spec: Obj) -> Iterator[str]:
    """Yield the serial numbers of unexpired certificates that the entry revokes."""
    identities = request.views[nodeidentity.PLURAL]
    public_key, node_name = spec.get("publicKey"), spec.get("nodeName")
    if node_name:
        if request.operation == "UPDATE" and not _revokes_until_now(request, spec):
            return
        identity = identities.get(node_name)
        found = [] if identity is None else [*nodeidentity.keys_of(identity), *nodeidentity.companions_of(identity)]
    elif public_key:
        keys = (
            key
            for identity in identities.list()
            for key in (*nodeidentity.keys_of(identity), *nodeidentity.companions_of(identity))
        )
        found = [key for key in keys if key.get("publicKey") == public_key]
    else:
        return
    for key in found:
        serial_number = (key.get("serialNumber") or "").lstrip("0")
        if serial_number and parse_rfc3339(key["notAfter"]) > request.change.now:
            yield serial_number
