"""EncryptedObject: its bytes, and the limits of kube-apiserver.

Source: docs/protocol/encryption-at-rest.md#kms-v2.
"""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.apimachinery.codec.protobuf import put_bytes, put_number
from mooring.trust.encryption.encryptedobject import (
    AES_GCM_KEY,
    CipherError,
    EncryptedDataKey,
    EncryptedObject,
    decode_encrypted_object,
    encode_encrypted_object,
    encode_map_entry,
    sorted_annotations,
)

NOTES = sorted_annotations({"b.example.com": b"2", "a.example.com": b""})


def whole(
    ciphertext: bytes = b"c",
    key_id: str = "id",
    notes: tuple[tuple[str, bytes], ...] = NOTES,
    source: int = 1,
    data: bytes = b"d",
) -> bytes:
    return encode_encrypted_object(EncryptedObject(data, EncryptedDataKey(ciphertext, key_id, notes, source)))


def fields(*parts: tuple[int, bytes | int]) -> bytes:
    out = bytearray()
    for number, value in parts:
        if isinstance(value, int):
            put_number(out, number, value)
        else:
            put_bytes(out, number, value)
    return bytes(out)


@pytest.mark.parametrize("source", [AES_GCM_KEY, 1])
def test_a_message_is_read_as_it_was_written(source: int) -> None:
    found = decode_encrypted_object(whole(source=source))
    assert (found.data, found.data_key) == (b"d", EncryptedDataKey(b"c", "id", NOTES, source))
    assert found.data_key.is_seed == bool(source)


def test_unknown_fields_are_skipped() -> None:
    extra = fields((9, b"x"), (10, 7), (4, encode_map_entry("c.example.com", b"") + fields((3, 1))))
    assert len(decode_encrypted_object(whole() + extra).data_key.annotations) == 3


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        pytest.param(b"\xff", "is not an EncryptedObject", id="no message"),
        pytest.param(fields((1, 1)), "is not an EncryptedObject", id="a number for bytes"),
        pytest.param(fields((5, b"")), "is not an EncryptedObject", id="bytes for a number"),
        pytest.param(fields((1, b"d"), (2, b"\xff")), "is not an EncryptedObject", id="an id that is no text"),
        pytest.param(fields((4, fields((1, 1)))), "is not an EncryptedObject", id="an annotation that is no message"),
        pytest.param(whole(data=b""), "encrypted data is empty", id="no data"),
        pytest.param(whole(source=2), "unknown encryptedDEKSourceType: 2", id="an unknown source"),
        pytest.param(whole(b""), "encrypted DEK source is empty", id="no data key"),
        pytest.param(whole(b"c" * 1025), "1025 bytes, which exceeds the max size of 1024", id="a long data key"),
        pytest.param(whole(key_id=""), "failed to validate key id: keyID is empty", id="no key id"),
        pytest.param(whole(key_id="é" * 513), "keyID is 1026 bytes", id="a long key id"),
        pytest.param(whole(notes=(("local", b""),)), "not a fully qualified domain name", id="one label"),
        pytest.param(whole(notes=(("A.b", b""),)), "not a fully qualified domain name", id="capital letters"),
        pytest.param(whole(notes=((f"{'a' * 64}.b", b""),)), "not a fully qualified domain name", id="a long label"),
        pytest.param(
            whole(notes=(("a.b.", b"x" * 32768),)), "total size of annotations is 32772", id="long annotations"
        ),
    ],
)
def test_what_kube_apiserver_refuses_is_refused(raw: bytes, message: str) -> None:
    with pytest.raises(CipherError, match=message):
        decode_encrypted_object(raw)


@given(raw=st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    with suppress(CipherError):
        decode_encrypted_object(raw)


def test_nothing_of_a_data_key_is_printed() -> None:
    found = decode_encrypted_object(whole(b"ciphertext", data=b"data"))
    assert "ciphertext" not in repr(found).replace("ciphertext=", "")
    assert "b'data'" not in repr(found)
