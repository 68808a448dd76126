"""Source address of a CertificateSigningRequest: the address of the client that created it, as the server saw it.

Rules kept here: the annotation is the server's. A client cannot set, change or remove it; a write within the server has no address.
"""

from __future__ import annotations

from mooring.api.kind import Change
from mooring.apimachinery.schema import Obj

SOURCE_ADDRESS = "mooring.dev/source-address"


def source_address_of(obj: Obj) -> str:
    """Return the recorded address; "" when none is known."""
    found: str = (obj["metadata"].get("annotations") or {}).get(SOURCE_ADDRESS, "")
    return found


def record_source_address(obj: Obj, change: Change) -> None:
    """Set, in place, the address of the client that creates `obj`."""
    _set(obj, change.source)


def keep_source_address(new: Obj, old: Obj) -> None:
    """Reset, in place, the recorded address to that of the stored object."""
    _set(new, source_address_of(old))


def _set(obj: Obj, address: str) -> None:
    metadata = obj.setdefault("metadata", {})
    annotations = dict(metadata.pop("annotations", None) or {})
    annotations.pop(SOURCE_ADDRESS, None)
    if address:
        annotations[SOURCE_ADDRESS] = address
    if annotations:
        metadata["annotations"] = annotations
