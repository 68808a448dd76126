"""Test the records of what Services were allocated, as kube-apiserver keeps them."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.api.core.servicevalidation import decode_record, is_allocated, with_bit

VECTORS = Path(__file__).parent.parent / "vectors" / "storage" / "kube-apiserver.json"
VALUES = {key: base64.b64decode(value) for key, value in json.loads(VECTORS.read_text())["values"].items()}
EMPTY = {"kind": "RangeAllocation", "apiVersion": "v1", "range": "30000-32767"}


def test_records_of_kube_apiserver_are_read() -> None:
    address = decode_record(VALUES["/registry/ipaddresses/10.96.7.7"])
    assert address["spec"] == {"parentRef": {"resource": "services", "namespace": "layout", "name": "every"}}
    assert address["metadata"]["creationTimestamp"]
    assert decode_record(VALUES["/registry/servicecidrs/kubernetes"])["spec"] == {"cidrs": ["10.96.0.0/16"]}
    ports = decode_record(VALUES["/registry/ranges/servicenodeports"])
    assert ports["range"] == "30000-32767"
    assert [port for port in range(2768) if is_allocated(ports, port)] == [777, 778]


@pytest.mark.parametrize(
    "value", [b"", b"junk", b'{"kind":"Secret","apiVersion":"v1"}', VALUES["/registry/minions/layout-1"]]
)
def test_any_other_value_is_no_record(value: bytes) -> None:
    assert decode_record(value) == {}


@given(st.sets(st.integers(0, 2767), max_size=20), st.sets(st.integers(0, 2767), max_size=20))
def test_bits_are_set_and_cleared_one_by_one(taken: set[int], released: set[int]) -> None:
    bitmap = EMPTY
    for offset in taken:
        bitmap = with_bit(bitmap, offset, True)
    for offset in released:
        bitmap = with_bit(bitmap, offset, False)
    assert {offset for offset in range(2768) if is_allocated(bitmap, offset)} == taken - released
    assert bitmap["range"] == EMPTY["range"]
