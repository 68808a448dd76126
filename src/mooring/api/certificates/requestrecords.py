"""Records in certificate requests: conditions, and the annotations that a server writes about the one who asks."""

from __future__ import annotations

from mooring.api.kind import Change
from mooring.api.mooring.certificaterevocation import issued_before, revokes_known
from mooring.api.objectmeta import reset_fields
from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339, rfc3339
from mooring.pki.x509.clientcertificate import recorded

# Source address of a CertificateSigningRequest: the address of the client that created it, as the server saw it.
#
# Rules kept here: the annotation is the server's. A client cannot set, change or remove it; a write within the server has no
# address.

SOURCE_ADDRESS = "mooring.dev/source-address"


def source_address_of(obj: Obj) -> str:
    """Return the recorded address; "" when none is known."""
    found: str = (obj["metadata"].get("annotations") or {}).get(SOURCE_ADDRESS, "")
    return found


def record_source_address(obj: Obj, change: Change) -> None:
    """Set, in place, the address of the client that creates `obj`."""
    set_annotation(obj, SOURCE_ADDRESS, change.source)


def keep_source_address(new: Obj, old: Obj) -> None:
    """Reset, in place, the recorded address to that of the stored object."""
    set_annotation(new, SOURCE_ADDRESS, source_address_of(old))


def set_annotation(obj: Obj, name: str, value: str) -> None:
    """Set, in place, an annotation that only the server writes; "" removes it."""
    metadata = obj.setdefault("metadata", {})
    annotations = dict(metadata.pop("annotations", None) or {})
    # Whatever a client sent: only the server writes this one.
    annotations.pop(name, None)
    if value:
        annotations[name] = value
    if annotations:
        metadata["annotations"] = annotations


# CertificateSigningRequest conditions: their types, and the strategies of `/approval` and `/status`.
#
# Rules kept here (docs/protocol/certificate-signing-requests.md):
# * `/approval` changes conditions only. `/status` changes the certificate and other conditions.
# * A missing lastUpdateTime becomes now. A missing lastTransitionTime becomes that of an old condition of equal type and status,
#   or now.

APPROVED = "Approved"
DENIED = "Denied"
FAILED = "Failed"


def conditions_of(obj: Obj) -> list[Obj]:
    """Return the conditions of a request; callers do not change them."""
    found: list[Obj] = (obj.get("status") or {}).get("conditions") or []
    return found


def indexes_of_type(conditions: list[Obj], kind: str) -> list[int]:
    return [index for index, condition in enumerate(conditions) if condition.get("type") == kind]


def prepare_approval(new: Obj, old: Obj, change: Change) -> None:
    """Reset `new` except its conditions, and fill in their times."""
    conditions = _with_times(conditions_of(new), old, change)
    # The certificate is the signer's: an approval neither brings nor removes one.
    status = {name: value for name, value in (old.get("status") or {}).items() if name != "conditions"}
    new["status"] = {"conditions": conditions, **status} if conditions else status
    reset_fields(new, old, "spec")
    keep_source_address(new, old)


def prepare_status(new: Obj, old: Obj, change: Change) -> None:
    """Reset `new` except its status, reset Approved and Denied in it, and fill in the times of its conditions."""
    conditions, old_conditions = list(conditions_of(new)), conditions_of(old)
    for kind in (APPROVED, DENIED):
        here, there = indexes_of_type(conditions, kind), indexes_of_type(old_conditions, kind)
        # They are the approver's: reset where their number is unchanged, and refused by the validation otherwise.
        if len(here) == len(there):
            for index, old_index in zip(here, there, strict=True):
                conditions[index] = old_conditions[old_index]
    status = dict(new.get("status") or {})
    if conditions:
        status["conditions"] = _with_times(conditions, old, change)
    new["status"] = status
    reset_fields(new, old, "spec")
    keep_source_address(new, old)


def _with_times(conditions: list[Obj], old: Obj, change: Change) -> list[Obj]:
    now = rfc3339(change.now)
    before = {
        (condition.get("type"), condition.get("status")): condition.get("lastTransitionTime") or now
        for condition in reversed(conditions_of(old))
    }
    return [
        {
            **condition,
            "lastUpdateTime": condition.get("lastUpdateTime") or now,
            "lastTransitionTime": condition.get("lastTransitionTime")
            or before.get((condition.get("type"), condition.get("status")), now),
        }
        for condition in conditions
    ]


# Order of a CertificateSigningRequest and a revocation of its node: which of them was first.
#
# Rules kept here:
# * Times of two servers, or of one whose clock was set, have no order. The server records in the request up to which revision it
#   knew the denylist. An entry of a later revision was written after the request.
# * The annotation is the server's, like the source address. Requests of another API server have none, and times are compared.
# * Times count as well: an entry may have been changed by a server that did not record it.
# * An entry that revokes up to an earlier moment than its own write is compared by time alone. Such a moment is meant.

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


# Client certificate with which a CertificateSigningRequest was made, as the server saw it.
#
# Rules kept here: the annotation is the server's, like the source address. It lets the controllers ask about the certificate when
# the request is approved and signed, which may be days later: the object of a revocation names serial numbers and keys, and the
# request only its user.

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
