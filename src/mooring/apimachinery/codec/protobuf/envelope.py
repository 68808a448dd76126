"""Protobuf bodies of Kubernetes: the runtime.Unknown envelope around one message, and the frames of a watch.

Rules kept here (docs/protocol/negotiation.md#protobuf-envelope, docs/protocol/watch.md):
* A body is `k8s\\0` and runtime.Unknown {typeMeta=1 {apiVersion=1, kind=2}, raw=2, contentEncoding=3, contentType=4}.
* A watch frame is 4 bytes of big-endian length and WatchEvent {type=1, object=2 {raw=1}}, where raw is again a whole body.
* Decoding any bytes gives a value, BadRequestError or RequestEntityTooLargeError.
"""

from __future__ import annotations

import struct

from mooring.apimachinery.codec.protobuf.decode import (
    BYTES,
    MessageError,
    ValueBudget,
    expect_wire_type,
    fields,
    utf8_text,
)
from mooring.apimachinery.codec.protobuf.encode import encode_message, put_bytes, put_length, wrap
from mooring.apimachinery.schema import Message, Obj
from mooring.errors import BadRequestError

MAGIC = b"k8s\x00"
"""First bytes of every protobuf body of Kubernetes."""


def decode_envelope(data: bytes) -> tuple[str, str, bytes]:
    """Return (apiVersion, kind, message) of a protobuf body. Raises BadRequestError, RequestEntityTooLargeError."""
    budget = ValueBudget()
    if not data:
        raise BadRequestError("empty data")
    if not data.startswith(MAGIC):
        raise BadRequestError("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")
    api_version = kind = ""
    raw = b""
    try:
        for number, wire, value in fields(data[len(MAGIC) :], budget):
            if number not in (1, 2, 3):
                continue
            expect_wire_type(wire, BYTES)
            if number == 1:
                for type_number, type_wire, name in fields(value, budget):
                    if type_number in (1, 2):
                        expect_wire_type(type_wire, BYTES)
                        if type_number == 1:
                            api_version = utf8_text(name)
                        else:
                            kind = utf8_text(name)
            elif number == 2:
                raw = value
            elif value:
                raise MessageError("a content encoding is not supported")
    except MessageError as error:
        raise BadRequestError(str(error)) from None
    return api_version, kind, raw


def encode_envelope(api_version: str, kind: str, raw: bytes) -> bytes:
    """Return the protobuf body around one encoded message, as kube-apiserver writes it (empty fields 3 and 4 included)."""
    before, after = envelope_parts(api_version, kind, len(raw))
    return before + raw + after


def envelope_parts(api_version: str, kind: str, size: int) -> tuple[bytes, bytes]:
    """Return the bytes of a protobuf body before and after an encoded message of `size` bytes."""
    type_meta = bytearray()
    put_bytes(type_meta, 1, api_version.encode())
    put_bytes(type_meta, 2, kind.encode())
    before, after = bytearray(MAGIC), bytearray()
    put_bytes(before, 1, bytes(type_meta))
    put_length(before, 2, size)
    for number in (3, 4):
        put_bytes(after, number, b"")
    return bytes(before), bytes(after)


def encode_object(obj: Obj, schema: Message) -> bytes:
    """Return the protobuf body of an object that has its kind and apiVersion."""
    return encode_envelope(obj["apiVersion"], obj["kind"], encode_message(obj, schema))


def encode_watch_frame(event_type: str, envelope: bytes) -> bytes:
    """Return one frame of a protobuf watch around a whole protobuf body."""
    event = bytearray()
    put_bytes(event, 1, event_type.encode())
    put_bytes(event, 2, wrap(envelope))
    return struct.pack(">I", len(event)) + bytes(event)
