"""Names of keys in etcd: the layout of kube-apiserver below the prefix of the settings.

Rules kept here: a key `/registry/…` is stored below the prefix, as kube-apiserver stores it. Every other key belongs to Mooring,
and is stored beside the prefix: as it is when the prefix is `/registry`, else below a name that is made of the prefix. Two
clusters with different prefixes share no key.
"""

from __future__ import annotations

from collections.abc import Callable

from mooring.errors import StorageError
from mooring.settings.storage import StorageSettings

DEFAULT_PREFIX = "/registry"
_ROOT = "/registry/"


class Keyspace:
    """Translation between keys of the contract and keys in etcd."""

    def __init__(self, prefix: str) -> None:
        # With a prefix like /one/registry all keys have /one in front, and prefixes need no translation of their own.
        self._front: str = prefix.removesuffix(DEFAULT_PREFIX) if prefix.endswith(DEFAULT_PREFIX) else f"{prefix}:"
        self._registry = f"{prefix}/"
        self._is_plain = prefix.endswith(DEFAULT_PREFIX)
        self.offset_key = f"/mooring/revision-offset{prefix}".encode()
        """Key of the number that is added to etcd's revisions. No key of the contract has this name."""

    def encode(self, key: str) -> bytes:
        """Return the key in etcd."""
        if not self._is_plain and key.startswith(_ROOT):
            return (self._registry + key[len(_ROOT) :]).encode()
        return (self._front + key).encode()

    def decode(self, key: bytes) -> str:
        """Return the key of the contract. Bytes that are not text become surrogates, which no key of Mooring has."""
        text = key.decode(errors="surrogateescape")
        if not self._is_plain and text.startswith(self._registry):
            return _ROOT + text[len(self._registry) :]
        return text[len(self._front) :]

    def span(self, prefix: str, after: str = "") -> tuple[bytes, bytes]:
        """Return the first key in etcd and the end of the keys that start with `prefix` and are greater than `after`."""
        if not self._is_plain and _ROOT.startswith(prefix) and prefix != _ROOT:
            raise StorageError(
                "with this --etcd-prefix, keys are read below /registry/ or below /mooring/, not of both"
            )
        start = self.encode(prefix)
        end = _end_of(start)
        if after and after >= prefix:
            start = self.encode(after) + b"\0"
        return start or b"\0", end


def name_in_engine(settings: StorageSettings) -> Callable[[str], bytes]:
    """Return a function from storage keys to their names in the engine of `settings`, which encryption at rest authenticates."""
    return Keyspace(settings.etcd_prefix).encode if settings.storage_url.startswith("etcd:") else str.encode


def _end_of(prefix: bytes) -> bytes:
    """Return the smallest key greater than all with the prefix; `\\0` is etcd's sign for no end."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else b"\0"
