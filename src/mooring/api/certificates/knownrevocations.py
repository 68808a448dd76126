"""Order of a CertificateSigningRequest and a revocation of its node: which of them was first.

Rules kept here:
* Times of two servers, or of one whose clock was set, have no order. The server records in the request up to which revision it
  knew the denylist. An entry of a later revision was written after the request.
* The annotation is the server's, like the source address. Requests of another API server have none, and times are compared.
* Times count as well: an entry may have been changed by a server that did not record it.
* An entry that revokes up to an earlier moment than its own write is compared by time alone. Such a moment is meant.
"""

from __future__ import annotations

from mooring.api.certificates.sourceaddress import set_annotation
from mooring.api.mooring.certificaterevocation import issued_before, revokes_known
from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339

KNOWN_REVOCATIONS = "mooring.dev/known-revocations"


def record_known_revocations(obj: Obj, revision: int) -> None:
    """Set, in place, the revision up to which the server that creates `obj` knows the denylist."""
    set_annotation(obj, KNOWN_REVOCATIONS, str(revision))


def keep_known_revocations(new: Obj, old: Obj) -> None:
    """Reset, in place, the recorded revision to that of the stored object."""
    set_annotation(new, KNOWN_REVOCATIONS, _recorded(old))


def precedes(csr: Obj, revocation: Obj) -> bool:
    """Return true for a request that was made before its node was revoked. Raises ValueError unless the stored text is a time."""
    before = issued_before(revocation)
    if before is None or parse_rfc3339(csr["metadata"]["creationTimestamp"]) < before:
        return True
    known = _recorded(csr)
    if not known.isdecimal() or not revokes_known(revocation):
        return False
    return int(revocation["metadata"].get("resourceVersion") or 0) > int(known)


def _recorded(obj: Obj) -> str:
    found: str = (obj["metadata"].get("annotations") or {}).get(KNOWN_REVOCATIONS, "")
    return found
