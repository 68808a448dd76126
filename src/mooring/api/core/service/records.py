"""Records of what Services were allocated, as kube-apiserver keeps them: ServiceCIDR, IPAddress, and the bitmap of node ports.

Rules kept here (docs/protocol/storage.md#allocations):
* These objects are not kinds of the API here. They are read in both encodings and written as JSON.
* The bitmap is a RangeAllocation: bit `n` of `data`, a big-endian number, stands for the `n`-th port of `range`.
"""

from __future__ import annotations

import base64

from mooring.apimachinery.codec.json import base64_field
from mooring.apimachinery.codec.storedvalue import decode_stored_value
from mooring.apimachinery.metav1 import OBJECT_META
from mooring.apimachinery.schema import Field, ListOf, Message, Obj, Scalar
from mooring.errors import BadRequestError

_METADATA = Field("metadata", 1, OBJECT_META)


def _message(name: str, *fields: Field) -> Message:
    return Message(f"io.k8s.api.networking.v1.{name}", fields)


SERVICE_CIDR = _message(
    "ServiceCIDR", _METADATA, Field("spec", 2, _message("ServiceCIDRSpec", Field("cidrs", 1, ListOf(Scalar.STRING))))
)
_PARENT = _message(
    "ParentReference",
    Field("group", 1, Scalar.STRING),
    Field("resource", 2, Scalar.STRING),
    Field("namespace", 3, Scalar.STRING),
    Field("name", 4, Scalar.STRING),
)
IP_ADDRESS = _message(
    "IPAddress", _METADATA, Field("spec", 2, _message("IPAddressSpec", Field("parentRef", 1, _PARENT)))
)
RANGE_ALLOCATION = Message(
    "io.k8s.api.core.v1.RangeAllocation",
    (_METADATA, Field("range", 2, Scalar.STRING), Field("data", 3, Scalar.BYTES)),
)
NODE_PORT = Message("dev.mooring.v1.NodePort", (_METADATA,))

_SCHEMAS = {
    ("networking.k8s.io/v1", "ServiceCIDR"): SERVICE_CIDR,
    ("networking.k8s.io/v1", "IPAddress"): IP_ADDRESS,
    ("v1", "RangeAllocation"): RANGE_ALLOCATION,
    ("mooring.dev/v1", "NodePort"): NODE_PORT,
}


def decode_record(value: bytes) -> Obj:
    """Return the record in a stored value; empty when the value is not a record."""
    try:
        return decode_stored_value(value, _SCHEMAS)[0]
    except BadRequestError:
        return {}


def is_allocated(bitmap: Obj, offset: int) -> bool:
    """Return whether the bit `offset` of a RangeAllocation is set."""
    return bool(_bits(bitmap) >> offset & 1)


def with_bit(bitmap: Obj, offset: int, allocated: bool) -> Obj:
    """Return a copy of a RangeAllocation in which the bit `offset` is set or cleared."""
    bits = _bits(bitmap) & ~(1 << offset) | allocated << offset
    data = bits.to_bytes((bits.bit_length() + 7) // 8, "big")
    return {**bitmap, "data": base64.b64encode(data).decode()}


def _bits(bitmap: Obj) -> int:
    return int.from_bytes(base64_field(bitmap.get("data")), "big")
