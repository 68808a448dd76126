"""Protobuf bodies of Kubernetes: the envelope around one message, and the frames of a watch.

Source: docs/protocol/negotiation.md#protobuf-envelope, docs/protocol/watch.md.

Rules kept here:
* A body is `k8s\\0` and runtime.Unknown {typeMeta=1 {apiVersion=1, kind=2}, raw=2, contentEncoding=3, contentType=4}.
* A watch frame is 4 bytes of big-endian length and WatchEvent {type=1, object=2 {raw=1}}, where raw is again a whole body.
* Whatever the bytes are, the answer is a value or BadRequestError.
"""

from __future__ import annotations

import struct

from mooring.apimachinery.codec.protobuf.read import (
    BYTES,
    Allowance,
    NotReadableError,
    decode,
    expect,
    fields,
    text_of,
    wrapped,
)
from mooring.apimachinery.codec.protobuf.write import encode, put_bytes, put_length, wrap
from mooring.apimachinery.schema import Message, Obj
from mooring.errors import BadRequestError

__all__ = [
    "MAGIC",
    "decode",
    "decode_envelope",
    "decode_watch_frame",
    "encode",
    "encode_envelope",
    "encode_object",
    "encode_watch_frame",
]

MAGIC = b"k8s\x00"
"""First bytes of every protobuf body of Kubernetes."""


def decode_envelope(data: bytes) -> tuple[str, str, bytes]:
    """(apiVersion, kind, message) of a protobuf body. Raises BadRequestError, RequestEntityTooLargeError."""
    allowance = Allowance()
    if not data.startswith(MAGIC):
        raise BadRequestError("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")
    api_version = kind = ""
    raw = b""
    try:
        for number, wire, value in fields(data[len(MAGIC) :], allowance):
            if number not in (1, 2, 3):
                continue
            expect(wire, BYTES)
            if number == 1:
                for inner, inner_wire, part in fields(value, allowance):
                    if inner in (1, 2):
                        expect(inner_wire, BYTES)
                        if inner == 1:
                            api_version = text_of(part)
                        else:
                            kind = text_of(part)
            elif number == 2:
                raw = value
            elif value:
                raise NotReadableError("a content encoding is not supported")
    except NotReadableError as error:
        raise BadRequestError(f"protobuf: envelope: {error}") from None
    return api_version, kind, raw


def encode_envelope(api_version: str, kind: str, raw: bytes) -> bytes:
    """A whole protobuf body for one encoded message, as kube-apiserver writes it (empty fields 3 and 4 included)."""
    before, after = envelope(api_version, kind, len(raw))
    return before + raw + after


def envelope(api_version: str, kind: str, size: int) -> tuple[bytes, bytes]:
    """The bytes of a protobuf body before and after an encoded message of `size` bytes."""
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
    """A whole protobuf body for an object that carries its kind and apiVersion."""
    return encode_envelope(obj["apiVersion"], obj["kind"], encode(obj, schema))


def encode_watch_frame(event_type: str, envelope: bytes) -> bytes:
    """One frame of a protobuf watch: 4 bytes of length, then WatchEvent whose object.raw is a whole body."""
    event = bytearray()
    put_bytes(event, 1, event_type.encode())
    put_bytes(event, 2, wrap(envelope))
    return struct.pack(">I", len(event)) + bytes(event)


def decode_watch_frame(frame: bytes) -> tuple[str, bytes]:
    """(type, object body) of one whole frame. Raises BadRequestError, RequestEntityTooLargeError."""
    allowance = Allowance()
    if len(frame) < 4 or struct.unpack(">I", frame[:4])[0] != len(frame) - 4:
        raise BadRequestError("protobuf: watch frame: unexpected end of data")
    event_type, envelope = "", b""
    try:
        for number, wire, value in fields(frame[4:], allowance):
            if number in (1, 2):
                expect(wire, BYTES)
                if number == 1:
                    event_type = text_of(value)
                else:
                    envelope = b"".join(wrapped(value, allowance)[-1:])
    except NotReadableError as error:
        raise BadRequestError(f"protobuf: watch frame: {error}") from None
    return event_type, envelope
