"""Ciphers of stored values: round trips, values that kube-apiserver wrote, and damaged values.

Source: docs/protocol/encryption-at-rest.md#ciphers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.secret import Secret
from mooring.trust.encryption.encryptedobject import (
    ENCRYPTED,
    AesCbc,
    AesGcm,
    Cipher,
    CipherError,
    Identity,
    Secretbox,
    SeededAesGcm,
)

KEY = b"/registry/secrets/default/a"
SECRET = Secret(b"k" * 32)
CIPHERS: dict[str, Callable[[], Cipher]] = {
    "aescbc": lambda: AesCbc(SECRET),
    "aesgcm": lambda: AesGcm(SECRET),
    "secretbox": lambda: Secretbox(SECRET),
    "seed": lambda: SeededAesGcm(SECRET),
    "identity": Identity,
}
AUTHENTICATED = ("aesgcm", "secretbox", "seed")


def entropy(size: int) -> bytes:
    return hashlib.shake_256(b"entropy").digest(size)


@pytest.mark.parametrize("name", CIPHERS)
@given(data=st.binary(max_size=80).filter(lambda data: not data.startswith(ENCRYPTED)))  # identity refuses that prefix
def test_what_is_sealed_opens_again(name: str, data: bytes) -> None:
    cipher = CIPHERS[name]()
    assert cipher.open(cipher.seal(data, KEY, entropy), KEY) == data


@pytest.mark.parametrize("name", AUTHENTICATED)
@given(data=st.data())
def test_any_changed_byte_is_noticed(name: str, data: st.DataObject) -> None:
    cipher = CIPHERS[name]()
    sealed = bytearray(cipher.seal(b"value", KEY, entropy))
    place = data.draw(st.integers(0, len(sealed) - 1))
    sealed[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CipherError, match="not authentic"):
        cipher.open(bytes(sealed), KEY)


@pytest.mark.parametrize("name", [name for name in CIPHERS if name != "identity"])
@given(data=st.binary(max_size=120))
def test_any_bytes_are_opened_or_refused(name: str, data: bytes) -> None:
    with suppress(CipherError):
        CIPHERS[name]().open(data, KEY)


@pytest.mark.parametrize("name", ["aesgcm", "seed"])
def test_a_value_that_was_moved_to_another_key_is_noticed(name: str) -> None:
    cipher = CIPHERS[name]()
    with pytest.raises(CipherError, match="moved to another key"):
        cipher.open(cipher.seal(b"value", KEY, entropy), b"/registry/secrets/default/b")


def padded(plain: bytes) -> bytes:
    """Return blocks encrypted without padding of their own."""
    whole = AesCbc(SECRET).seal(plain, KEY, lambda size: bytes(size))
    return whole[: 16 + len(plain)]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"short", "shorter than the required size", id="less than the vector"),
        pytest.param(b"v" * 17, "not a multiple of the block size", id="half a block"),
        pytest.param(b"v" * 16, "empty or not padded", id="no block"),
        pytest.param(padded(b"a" * 15 + b"\x00"), "empty or not padded", id="padding of zero"),
        pytest.param(padded(b"a" * 15 + b"\x11"), "empty or not padded", id="padding longer than the value"),
        pytest.param(padded(b"a" * 14 + b"\x01\x02"), "invalid padding", id="padding of different bytes"),
    ],
)
def test_damaged_blocks_of_aes_cbc(data: bytes, message: str) -> None:
    with pytest.raises(CipherError, match=message):
        AesCbc(SECRET).open(data, KEY)


@pytest.mark.parametrize("name", AUTHENTICATED)
def test_a_short_value(name: str) -> None:
    with pytest.raises(CipherError, match="shorter than the required size"):
        CIPHERS[name]().open(b"short", KEY)


def test_a_short_seed_is_refused() -> None:
    with pytest.raises(CipherError, match="shorter than 32 bytes"):
        SeededAesGcm(Secret(b"k" * 31))


def test_identity_refuses_encrypted_values() -> None:
    with pytest.raises(CipherError, match="tried to read encrypted data"):
        Identity().open(b"k8s:enc:aescbc:v1:key1:x", KEY)
    assert Identity().open(b"k8s\x00protobuf", KEY) == b"k8s\x00protobuf"
