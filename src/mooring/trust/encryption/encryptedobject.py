"""Stored values as kube-apiserver encrypts them: the ciphers, and the message of a KMS v2 provider's value."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher as BlockCipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CBC

from mooring.apimachinery.codec.protobuf import (
    BYTES,
    VARINT,
    MessageError,
    ValueBudget,
    expect_wire_type,
    fields,
    put_bytes,
    put_number,
    utf8_text,
)
from mooring.apimachinery.names import dns1123_subdomain_errors
from mooring.errors import ApiError, MooringError
from mooring.secret import Secret

# Ciphers of stored values, byte for byte those of kube-apiserver.
#
# Source: docs/protocol/encryption-at-rest.md#ciphers.
#
# Rules kept here:
# * `context` is the storage key in UTF-8. AES-GCM authenticates it, so that a value which was moved to another key cannot be read.
#   AES-CBC and secretbox do not use it.
# * Randomness comes from the argument `entropy`, fresh for each value.
# * An error says what failed, and contains neither key nor value.

Entropy = Callable[[int], bytes]

BLOCK = 16
GCM_NONCE = 12
GCM_TAG = 16
SECRETBOX_NONCE = 24
SECRETBOX_TAG = 16
SEED = 32
"""Bytes of the seed of a KMS provider, and of the input from which each value's key is derived."""

_SHORT = "the stored data is shorter than the required size"
_NOT_AUTHENTIC = (
    "the stored data is not authentic: it was changed, moved to another key, or written with another secret"
)


class CipherError(MooringError):
    """A value that a cipher cannot decrypt, or cannot encrypt now."""


class Cipher(Protocol):
    """One cipher with its key."""

    def open(self, data: bytes, context: bytes) -> bytes:
        """Return the plain value. Raises CipherError."""

    def seal(self, data: bytes, context: bytes, entropy: Entropy) -> bytes:
        """Return the encrypted value."""


class AesCbc:
    """AES-CBC with PKCS #7 padding: initialisation vector, then blocks. It detects no changes."""

    def __init__(self, key: Secret) -> None:
        self._algorithm = AES(key.reveal())

    def open(self, data: bytes, context: bytes) -> bytes:
        if len(data) < BLOCK:
            raise CipherError(_SHORT)
        if len(data) % BLOCK:
            raise CipherError("the stored data is not a multiple of the block size")
        decryptor = BlockCipher(self._algorithm, CBC(data[:BLOCK])).decryptor()
        padded = decryptor.update(data[BLOCK:]) + decryptor.finalize()
        size = padded[-1] if padded else 0
        if not 0 < size <= len(padded):
            raise CipherError("invalid PKCS7 data (empty or not padded)")
        if padded[-size:] != bytes([size]) * size:
            raise CipherError("invalid padding on input")
        return padded[:-size]

    def seal(self, data: bytes, context: bytes, entropy: Entropy) -> bytes:
        vector = entropy(BLOCK)
        size = BLOCK - len(data) % BLOCK
        encryptor = BlockCipher(self._algorithm, CBC(vector)).encryptor()
        return vector + encryptor.update(data + bytes([size]) * size) + encryptor.finalize()


class AesGcm:
    """AES-GCM: nonce, ciphertext, tag; the storage key is authenticated."""

    def __init__(self, key: Secret) -> None:
        self._aead = AESGCM(key.reveal())

    def open(self, data: bytes, context: bytes) -> bytes:
        if len(data) < GCM_NONCE + GCM_TAG:
            raise CipherError(_SHORT)
        try:
            return self._aead.decrypt(data[:GCM_NONCE], data[GCM_NONCE:], context)
        except InvalidTag:
            raise CipherError(_NOT_AUTHENTIC) from None

    def seal(self, data: bytes, context: bytes, entropy: Entropy) -> bytes:
        nonce = entropy(GCM_NONCE)
        return nonce + self._aead.encrypt(nonce, data, context)


class Secretbox:
    """XSalsa20-Poly1305 of NaCl: nonce, tag, ciphertext."""

    def __init__(self, key: Secret) -> None:
        from nacl.bindings import crypto_secretbox, crypto_secretbox_open

        # Imported only where the provider is used.
        from nacl.exceptions import CryptoError

        self._key = key.reveal()
        self._seal, self._open, self._error = crypto_secretbox, crypto_secretbox_open, CryptoError

    def open(self, data: bytes, context: bytes) -> bytes:
        if len(data) < SECRETBOX_NONCE + SECRETBOX_TAG:
            raise CipherError(_SHORT)
        try:
            return self._open(data[SECRETBOX_NONCE:], data[:SECRETBOX_NONCE], self._key)
        except self._error:
            raise CipherError(_NOT_AUTHENTIC) from None

    def seal(self, data: bytes, context: bytes, entropy: Entropy) -> bytes:
        nonce = entropy(SECRETBOX_NONCE)
        return nonce + self._seal(data, nonce, self._key)


class SeededAesGcm:
    """AES-GCM with a key of its own for each value: HKDF-Expand(seed, info), info stored before the value.

    A seed may thus write any number of values, where one AES-GCM key with random nonces wears out after 2^32.
    """

    def __init__(self, seed: Secret) -> None:
        if len(seed.reveal()) < SEED:
            raise CipherError("the seed is shorter than 32 bytes")
        self._seed = seed

    def _derived(self, info: bytes) -> AesGcm:
        # RFC 5869 section 2.3 with L = HashLen: one block
        return AesGcm(Secret(hmac.digest(self._seed.reveal(), info + b"\x01", "sha256")))

    def open(self, data: bytes, context: bytes) -> bytes:
        if len(data) < SEED:
            raise CipherError(_SHORT)
        return self._derived(data[:SEED]).open(data[SEED:], context)

    def seal(self, data: bytes, context: bytes, entropy: Entropy) -> bytes:
        # New for each value, so that no key of AES-GCM is used for many values.
        info = entropy(SEED)
        return info + self._derived(info).seal(data, context, entropy)


class Identity:
    """No encryption. It refuses to read what another provider has encrypted."""

    def open(self, data: bytes, context: bytes) -> bytes:
        if data.startswith(ENCRYPTED):
            raise CipherError("identity transformer tried to read encrypted data")
        return data

    def seal(self, data: bytes, context: bytes, entropy: Entropy) -> bytes:
        return data


ENCRYPTED = b"k8s:enc:"
"""First bytes of every encrypted value. JSON begins with a brace, protobuf with `k8s` and a zero."""


# EncryptedObject: the protobuf message that holds a value of a KMS v2 provider, beside its encrypted data key.
#
# Source: docs/protocol/encryption-at-rest.md#kms-v2.
#
# Rules kept here: the limits of kube-apiserver, also for what a plugin returns. Annotations are sorted, so that equal messages
# are equal bytes.

MAX_KEY_ID = 1024
MAX_DATA_KEY = 1024
"""Bytes of an encrypted data key or seed."""
MAX_ANNOTATIONS = 32 * 1024
"""Bytes of the names and values of all annotations."""
MAX_LABEL = 63

AES_GCM_KEY = 0
"""The data key itself encrypts values: the form before Kubernetes 1.29."""
HKDF_SHA256_XNONCE_AES_GCM_SEED = 1
"""A key for each value is derived from the data key, the seed."""


@dataclass(frozen=True, slots=True)
class EncryptedDataKey:
    """A data key or seed as the plugin encrypted it."""

    ciphertext: bytes = field(repr=False)
    key_id: str
    annotations: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)
    source_type: int = HKDF_SHA256_XNONCE_AES_GCM_SEED

    @property
    def is_seed(self) -> bool:
        return self.source_type == HKDF_SHA256_XNONCE_AES_GCM_SEED

    def check(self) -> None:
        """Raise CipherError for a data key that kube-apiserver would refuse."""
        if self.source_type not in (AES_GCM_KEY, HKDF_SHA256_XNONCE_AES_GCM_SEED):
            raise CipherError(f"unknown encryptedDEKSourceType: {self.source_type}")
        if not self.ciphertext:
            raise CipherError("failed to validate encrypted DEK source: encrypted DEK source is empty")
        if len(self.ciphertext) > MAX_DATA_KEY:
            raise CipherError(
                f"failed to validate encrypted DEK source: encrypted DEK source is {len(self.ciphertext)} bytes, "
                f"which exceeds the max size of {MAX_DATA_KEY}"
            )
        if problem := key_id_problem(self.key_id):
            raise CipherError(f"failed to validate key id: {problem}")
        _check_annotations(self.annotations)


@dataclass(frozen=True, slots=True)
class EncryptedObject:
    """An encrypted value and its data key."""

    data: bytes = field(repr=False)
    data_key: EncryptedDataKey


def key_id_problem(key_id: str) -> str:
    """Return the reason to refuse the id of a key, "" when it is good."""
    size = len(key_id.encode())
    if not size:
        return "keyID is empty"
    return f"keyID is {size} bytes, which exceeds the max size of {MAX_KEY_ID}" if size > MAX_KEY_ID else ""


def _check_annotations(annotations: tuple[tuple[str, bytes], ...]) -> None:
    for name, _ in annotations:
        domain = name.removesuffix(".")
        labels = domain.split(".")
        if dns1123_subdomain_errors(domain) or len(labels) < 2 or any(len(one) > MAX_LABEL for one in labels):
            raise CipherError(
                "failed to validate annotations: the name of an annotation is not a fully qualified domain name"
            )
    size = sum(len(name) + len(value) for name, value in annotations)
    if size > MAX_ANNOTATIONS:
        raise CipherError(
            f"failed to validate annotations: total size of annotations is {size}, "
            f"which exceeds the max size of {MAX_ANNOTATIONS}"
        )


def sorted_annotations(annotations: Mapping[str, bytes]) -> tuple[tuple[str, bytes], ...]:
    """Return annotations in the order in which they are stored."""
    return tuple(sorted(annotations.items()))


def encode_encrypted_object(found: EncryptedObject) -> bytes:
    """Return the protobuf message."""
    key = found.data_key
    out = bytearray()
    put_bytes(out, 1, found.data)
    put_bytes(out, 2, key.key_id.encode())
    put_bytes(out, 3, key.ciphertext)
    for name, value in key.annotations:
        put_bytes(out, 4, encode_map_entry(name, value))
    if key.source_type:
        put_number(out, 5, key.source_type)
    return bytes(out)


def encode_map_entry(name: str, value: bytes) -> bytes:
    """Return one entry of a `map<string, bytes>`."""
    entry = bytearray()
    put_bytes(entry, 1, name.encode())
    put_bytes(entry, 2, value)
    return bytes(entry)


def decode_map_entry(raw: bytes, budget: ValueBudget) -> tuple[str, bytes]:
    """Return name and value of one entry of a `map<string, bytes>`. Raises MessageError."""
    name, value = "", b""
    for number, wire, part in fields(raw, budget):
        if number in (1, 2):
            expect_wire_type(wire, BYTES)
        if number == 1:
            name = utf8_text(part)
        elif number == 2:
            value = part
    return name, value


def decode_encrypted_object(raw: bytes) -> EncryptedObject:
    """Return the message, checked. Raises CipherError."""
    texts: dict[int, Any] = {1: b"", 2: b"", 3: b"", 5: 0}
    annotations: dict[str, bytes] = {}
    budget = ValueBudget()
    try:
        for number, wire, value in fields(raw, budget):
            if number in (1, 2, 3, 4):
                expect_wire_type(wire, BYTES)
            elif number == 5:
                expect_wire_type(wire, VARINT)
            if number == 4:
                name, annotation = decode_map_entry(value, budget)
                annotations[name] = annotation
            elif number in texts:
                texts[number] = value
        key_id = utf8_text(texts[2])
    except (MessageError, ApiError):
        raise CipherError("the stored data is not an EncryptedObject") from None
    if not texts[1]:
        raise CipherError("encrypted data is empty")
    key = EncryptedDataKey(texts[3], key_id, sorted_annotations(annotations), texts[5])
    key.check()
    return EncryptedObject(texts[1], key)
