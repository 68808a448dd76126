"""Transformers: what one resource's stored values pass through, and the data keys of a KMS v2 plugin."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mooring.bounded import Bounded
from mooring.errors import MooringError
from mooring.secret import Secret
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
from mooring.trust.encryption.encryptedobject import (
    ENCRYPTED,
    AesCbc,
    AesGcm,
    Cipher,
    CipherError,
    EncryptedDataKey,
    EncryptedObject,
    Entropy,
    Identity,
    Secretbox,
    SeededAesGcm,
    decode_encrypted_object,
    encode_encrypted_object,
    key_id_problem,
)

# Envelope encryption by a KMS v2 plugin: the data keys of one provider, and the state of the key that writes.
#
# Source: docs/protocol/encryption-at-rest.md#kms-v2.
#
# Rules kept here:
# * The server makes a seed, the plugin encrypts it, and the encrypted seed is stored beside each value. The plugin is called once
#   for each seed, and not once for each value.
# * A value whose data key is not known raises DataKeyNeededError. The caller has the plugin decrypt it, calls `learn`, and repeats.
# * A decrypted data key is kept once it has opened a value, so that a wrong answer of the plugin is not kept for a day.
# * The plugin reports the id of its key. A new id gives a new seed, and makes every value of another id stale.
# * Without news from the plugin, values are written for `WRITE_SECONDS` more, and then refused: an administrator who replaced the
#   key of the plugin knows that nothing is written with the old one afterwards. Reading continues.

WRITE_SECONDS = 180.0
"""kube-apiserver's figure: writes go on so long after the plugin was last healthy."""
DATA_KEY_SECONDS = 86400.0
"""Time for which a decrypted data key is kept, kube-apiserver's figure."""
MAX_DATA_KEYS = 4096
"""Decrypted data keys in memory: one for each start of a server and each key of the plugin, until values are written again."""
VERSIONS = ("v2", "v2beta1")


class DataKeyNeededError(Exception):
    """The plugin has to decrypt `data_key` first."""

    def __init__(self, envelope: Envelope, found: EncryptedObject, context: bytes) -> None:
        """`found`: the value that needs it, with its `context`."""
        super().__init__("a data key is needed")
        self.envelope = envelope
        self.data_key = found.data_key
        self.found = found
        self.context = context


@dataclass(frozen=True, slots=True)
class PluginStatus:
    """Answer of a plugin to Status."""

    version: str
    healthz: str
    key_id: str


@dataclass(slots=True)
class _WriteKey:
    cipher: Cipher
    data_key: EncryptedDataKey
    expires: float


class Envelope:
    """Data keys of one provider. Times are seconds of a monotonic clock."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._write: _WriteKey | None = None
        self._version = ""
        self._keys: Bounded[EncryptedDataKey, tuple[float, Cipher]] = Bounded(MAX_DATA_KEYS)

    @property
    def key_id(self) -> str:
        """Id of the plugin's key that writes, "" before the plugin was reached."""
        return self._write.data_key.key_id if self._write else ""

    # -- values --------------------------------------------------------------------------------------------------------

    def open(self, data: bytes, context: bytes, now: float) -> tuple[bytes, bool]:
        """Return the plain value, and whether it is stale. Raises CipherError, and DataKeyNeededError."""
        found = decode_encrypted_object(data)
        cipher = self._known(found.data_key, now)
        if cipher is None:
            raise DataKeyNeededError(self, found, context)
        return cipher.open(found.data, context), self._is_stale(found.data_key)

    def _is_stale(self, key: EncryptedDataKey) -> bool:
        writes = self._write.data_key if self._write else None
        return writes is None or (key.key_id, key.source_type) != (writes.key_id, writes.source_type)

    def seal(self, data: bytes, context: bytes, entropy: Entropy, now: float) -> bytes:
        """Return the encrypted value. Raises CipherError when the plugin has not been healthy for too long."""
        write = self._write
        if write is None:
            raise CipherError("the KMS plugin has not been reached yet: see that it runs and listens at its endpoint")
        if now > write.expires:
            raise CipherError(f"the KMS plugin has not been healthy for more than {WRITE_SECONDS:.0f} s")
        return encode_encrypted_object(EncryptedObject(write.cipher.seal(data, context, entropy), write.data_key))

    # -- data keys -----------------------------------------------------------------------------------------------------

    def _known(self, key: EncryptedDataKey, now: float) -> Cipher | None:
        write = self._write
        if write is not None and key == write.data_key:
            return write.cipher
        found = self._keys.get(key)
        if found is None or found[0] < now:
            return None
        return found[1]

    def learn(self, needed: DataKeyNeededError, plain: Secret, now: float) -> None:
        """Keep a data key that the plugin has decrypted. Raises CipherError for one that does not open the value that needs it."""
        key = needed.data_key
        try:
            cipher = SeededAesGcm(plain) if key.is_seed else AesGcm(plain)
        except ValueError:
            raise CipherError("the KMS plugin returned something that is no data key") from None
        cipher.open(needed.found.data, needed.context)
        self._keep(key, cipher, now)

    def _keep(self, key: EncryptedDataKey, cipher: Cipher, now: float) -> None:
        self._keys[key] = (now + DATA_KEY_SECONDS, cipher)

    # -- the plugin ----------------------------------------------------------------------------------------------------

    def check_status(self, status: PluginStatus) -> None:
        """Raise CipherError for a plugin that is not healthy, or that changed its version."""
        if status.healthz != "ok":
            raise CipherError("the KMS plugin says that it is not healthy")
        if status.version not in VERSIONS:
            raise CipherError("the KMS plugin has another version of the API than v2")
        if self._version not in ("", status.version):
            raise CipherError(f"the KMS plugin changed its API version from {self._version} to {status.version}")
        self._version = status.version
        if problem := key_id_problem(status.key_id):
            raise CipherError(f"the KMS plugin reports an invalid key id: {problem}")

    def is_current(self, key_id: str) -> bool:
        """Return whether the plugin's key `key_id` encrypted the seed that writes."""
        return bool(self._write) and self.key_id == key_id

    def extend(self, now: float) -> None:
        """Let the present seed write on: the plugin was healthy at `now`, before its answer."""
        # After `is_current`.
        assert self._write is not None
        self._write.expires = now + WRITE_SECONDS

    def replace(self, seed: Secret, encrypted: EncryptedDataKey, key_id: str, now: float) -> None:
        """Write with a new seed, which the plugin encrypted. Raises CipherError; the present seed then stays."""
        encrypted.check()
        if encrypted.key_id != key_id:
            raise CipherError("the KMS plugin encrypts with another key than the one that its status names")
        if self._write is not None:
            self._keep(self._write.data_key, self._write.cipher, now)
        self._write = _WriteKey(SeededAesGcm(seed), encrypted, now + WRITE_SECONDS)


# Transformers: what one resource's stored values pass through, in the order of its providers and keys.
#
# Source: docs/protocol/encryption-at-rest.md#transformers.
#
# Rules kept here:
# * The first key of the first provider writes. A value is read by the first key that fits its prefix and can decrypt it: two
#   providers of one kind may have keys of one name.
# * A value that another key than the first has written is stale: the next write stores it again, even if nothing else changes.
# * A value that no key decrypts raises UnreadableError, which names providers and keys, and contains no bytes.

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
                    # Each slot has one of them.
                    assert slot.cipher is not None
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
        # Each slot has one of them.
        assert first.cipher is not None
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
