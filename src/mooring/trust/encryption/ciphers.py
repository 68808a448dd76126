"""Ciphers of stored values, byte for byte those of kube-apiserver.

Source: docs/protocol/encryption-at-rest.md#ciphers.

Rules kept here:
* `context` is the storage key in UTF-8. AES-GCM authenticates it, so that a value which was moved to another key cannot be read.
  AES-CBC and secretbox do not use it.
* Randomness comes from the argument `entropy`, fresh for each value.
* An error says what failed, and contains neither key nor value.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher as BlockCipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CBC

from mooring.errors import MooringError
from mooring.secret import Secret

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
        from nacl.exceptions import CryptoError  # imported only where the provider is used

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
