"""Transformers: what one resource's stored values pass through, in the order of its providers and keys.

Source: docs/protocol/encryption-at-rest.md#transformers.

Rules kept here:
* The first key of the first provider writes. A value is read by the first key that fits its prefix and can decrypt it: two
  providers of one kind may have keys of one name.
* A value that another key than the first has written is stale: the next write stores it again, even if nothing else changes.
* A value that no key decrypts raises UnreadableError, which names providers and keys, and contains no bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mooring.errors import MooringError
from mooring.trust.encryption.ciphers import (
    ENCRYPTED,
    AesCbc,
    AesGcm,
    Cipher,
    CipherError,
    Entropy,
    Identity,
    Secretbox,
)
from mooring.trust.encryption.configuration import (
    AESCBC,
    AESGCM,
    IDENTITY,
    KMS,
    SECRETBOX,
    EncryptionConfiguration,
    EncryptionProvider,
    GroupResource,
    Key,
)
from mooring.trust.encryption.encryptedobject import EncryptedDataKey, decode_encrypted_object
from mooring.trust.encryption.envelope import DataKeyNeededError, Envelope

MAX_NAME = 200
"""Characters of a key's name in errors and in the usage report: a prefix comes from the store."""

NOTHING_REFUSED: Mapping[EncryptedDataKey, str] = {}

_CIPHERS: Mapping[str, Callable[..., Cipher]] = {AESCBC: AesCbc, AESGCM: AesGcm, SECRETBOX: Secretbox}


class UnreadableError(MooringError):
    """A stored value that no configured key decrypts."""


@dataclass(frozen=True, slots=True)
class _Slot:
    """One key of one provider, and the prefix of the values that it has written."""

    prefix: bytes
    label: str
    cipher: Cipher | None = None
    envelope: Envelope | None = None


class Transformer:
    """Transformer of one resource."""

    def __init__(self, slots: Sequence[_Slot]) -> None:
        self._slots = tuple(slots)
        self._first = self._slots[0]

    @property
    def label(self) -> str:
        """Provider and key that write."""
        return self._first.label

    @property
    def prefix(self) -> bytes:
        """First bytes of the values that are written now."""
        return self._first.prefix

    @property
    def prefixes(self) -> tuple[bytes, ...]:
        """First bytes of the values of each key, without that of the provider identity, which is empty."""
        return tuple(slot.prefix for slot in self._slots if slot.prefix)

    def open(
        self, value: bytes, context: bytes, now: float, refused: Mapping[EncryptedDataKey, str] = NOTHING_REFUSED
    ) -> tuple[bytes, bool]:
        """Return the plain value, and whether it is stale. Raises UnreadableError, and DataKeyNeededError.

        `refused`: data keys that a plugin could not decrypt, each with the reason.
        """
        problems: list[str] = []
        for place, slot in enumerate(self._slots):
            if not value.startswith(slot.prefix):
                continue
            try:
                if slot.envelope is None:
                    assert slot.cipher is not None  # each slot has one of them
                    return slot.cipher.open(value[len(slot.prefix) :], context), place > 0
                plain, stale = slot.envelope.open(value[len(slot.prefix) :], context, now)
                return plain, stale or place > 0
            except CipherError as error:
                if slot.prefix:
                    problems.append(f"{slot.label}: {error}")
            except DataKeyNeededError as needed:
                if needed.data_key not in refused:
                    raise
                problems.append(f"{slot.label}: {refused[needed.data_key]}")
        raise UnreadableError("; ".join(problems) or _no_key_fits(value))

    def seal(self, value: bytes, context: bytes, entropy: Entropy, now: float) -> bytes:
        """Return the value to store. Raises CipherError."""
        first = self._first
        if first.envelope is not None:
            return first.prefix + first.envelope.seal(value, context, entropy, now)
        assert first.cipher is not None  # each slot has one of them
        return first.prefix + first.cipher.seal(value, context, entropy)


def _no_key_fits(value: bytes) -> str:
    if not value.startswith(ENCRYPTED):
        return "it is not encrypted, and the provider identity is not configured for this resource"
    return f"it was encrypted by {written_by(value)}, which is not configured for this resource"


PLAIN = Transformer([_Slot(b"", IDENTITY, Identity())])
"""Transformer of a resource that is not encrypted."""


class Transformers:
    """Transformers of one configuration, by resource, and the envelopes of its KMS plugins."""

    def __init__(self, configuration: EncryptionConfiguration, envelopes: Mapping[str, Envelope] | None = None) -> None:
        """`envelopes`: those of plugins that stay, by name; their data keys are known already."""
        known = envelopes or {}
        self.configuration = configuration
        self.envelopes = {one.name: known.get(one.name) or Envelope(one.name) for one in configuration.plugins}
        self._by_resource: dict[GroupResource, Transformer] = {}

    def of(self, resource: GroupResource) -> Transformer:
        """Return the transformer of a resource."""
        found = self._by_resource.get(resource)
        if found is None:
            providers = self.configuration.providers_of(resource)
            slots = [slot for provider in providers for slot in self._slots(provider)]
            found = self._by_resource[resource] = Transformer(slots) if slots else PLAIN
        return found

    def _slots(self, provider: EncryptionProvider) -> list[_Slot]:
        if provider.plugin is not None:
            name = provider.plugin.name
            prefix = f"k8s:enc:kms:v2:{name}:".encode()
            return [_Slot(prefix, f"{KMS} {name}", envelope=self.envelopes[name])]
        if provider.kind == IDENTITY:
            return [_Slot(b"", IDENTITY, Identity())]
        return [_slot(provider.kind, key) for key in provider.keys]


def _slot(kind: str, key: Key) -> _Slot:
    prefix = f"k8s:enc:{kind}:v1:{key.name}:".encode()
    return _Slot(prefix, f"{kind} {key.name}", _CIPHERS[kind](key.secret))


def written_by(value: bytes) -> str:
    """Return provider and key that wrote a value, from its prefix alone: `aescbc key1`, `kms vault sha256:…`, `identity`.

    The id of a plugin's key is shown as kube-apiserver's metrics show it, by its hash.
    """
    if not value.startswith(ENCRYPTED):
        return IDENTITY
    provider, _, rest = value[len(ENCRYPTED) :].partition(b":")
    version, _, rest = rest.partition(b":")
    name, _, data = rest.partition(b":")
    kind = _shown(provider)
    if kind != KMS or version != b"v2":
        return f"{kind} {_shown(name)}"
    try:
        key_id = decode_encrypted_object(data).data_key.key_id
    except CipherError:
        return f"{kind} {_shown(name)}"
    return f"{kind} {_shown(name)} {key_id_hash(key_id)}"


def key_id_hash(key_id: str) -> str:
    """Return the id of a plugin's key as metrics show it."""
    return f"sha256:{hashlib.sha256(key_id.encode()).hexdigest()}"


def _shown(raw: bytes) -> str:
    text = raw[:MAX_NAME].decode(errors="replace")
    return "".join(char if char.isprintable() else "?" for char in text)
