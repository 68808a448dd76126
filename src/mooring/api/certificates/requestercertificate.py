"""Client certificate with which a CertificateSigningRequest was made, as the server saw it.

Rules kept here: the annotation is the server's, like the source address. It lets the controllers ask about the certificate when the
request is approved and signed, which may be days later: the object of a revocation names serial numbers and keys, and the
request only its user.
"""

from __future__ import annotations

from mooring.api.certificates.sourceaddress import set_annotation
from mooring.api.kind import Change
from mooring.apimachinery.schema import Obj
from mooring.pki.x509.checkedpeer import recorded

REQUESTER_CERTIFICATE = "mooring.dev/requester-certificate"


def requester_certificate_of(obj: Obj) -> str:
    """Return the record of the certificate; "" for a request that was made without one."""
    found: str = (obj["metadata"].get("annotations") or {}).get(REQUESTER_CERTIFICATE, "")
    return found


def record_requester_certificate(obj: Obj, change: Change) -> None:
    """Set, in place, the certificate of the client that creates `obj`."""
    set_annotation(obj, REQUESTER_CERTIFICATE, "" if change.certificate is None else recorded(change.certificate))


def keep_requester_certificate(new: Obj, old: Obj) -> None:
    """Reset, in place, the recorded certificate to that of the stored object."""
    set_annotation(new, REQUESTER_CERTIFICATE, requester_certificate_of(old))
