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
    set_annotation(obj, SOURCE_ADDRESS, change.source)


def keep_source_address(new: Obj, old: Obj) -> None:
    """Reset, in place, the recorded address to that of the stored object."""
    set_annotation(new, SOURCE_ADDRESS, source_address_of(old))


def set_annotation(obj: Obj, name: str, value: str) -> None:
    """Set, in place, an annotation that only the server writes; "" removes it."""
    metadata = obj.setdefault("metadata", {})
    annotations = dict(metadata.pop("annotations", None) or {})
    annotations.pop(name, None)
    if value:
        annotations[name] = value
    if annotations:
        metadata["annotations"] = annotations
