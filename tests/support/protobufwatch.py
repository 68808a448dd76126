"""Decodes the frames of a protobuf watch, which the server only encodes."""

from __future__ import annotations

import struct

from mooring.apimachinery.codec.protobuf import BYTES, ValueBudget, expect_wire_type, fields, utf8_text, wrapped


def decode_watch_frame(frame: bytes) -> tuple[str, bytes]:
    """Return (type, protobuf body of the object) of one whole frame."""
    budget = ValueBudget()
    assert struct.unpack(">I", frame[:4])[0] == len(frame) - 4
    event_type, envelope = "", b""
    for number, wire, value in fields(frame[4:], budget):
        expect_wire_type(wire, BYTES)
        if number == 1:
            event_type = utf8_text(value)
        else:
            envelope = b"".join(wrapped(value, budget))
    return event_type, envelope
