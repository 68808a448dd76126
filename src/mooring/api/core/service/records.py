"""Records of what Services were allocated, as kube-apiserver keeps them: ServiceCIDR, IPAddress, and the bitmap of node ports.

Rules kept here (docs/protocol/storage.md#allocations):
* These objects are not kinds of the API here. They are read in both encodings and written as JSON.
* The bitmap is a RangeAllocation: bit `n` of `data`, a big-endian number, stands for the `n`-th port of `range`.
"""

from __future__ import annotations

import base64

from mooring.apimachinery.codec.json import base64_field
from mooring.apimachinery.codec.storedvalue import decode_stored_value
from mooring.apimachinery.schema import Obj, message
from mooring.errors import BadRequestError

_SCHEMAS = {
    ("networking.k8s.io/v1", "ServiceCIDR"): message("io.k8s.api.networking.v1.ServiceCIDR"),
    ("networking.k8s.io/v1", "IPAddress"): message("io.k8s.api.networking.v1.IPAddress"),
    ("v1", "RangeAllocation"): message("io.k8s.api.core.v1.RangeAllocation"),
    ("mooring.dev/v1", "NodePort"): message("dev.mooring.v1.NodePort"),
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
