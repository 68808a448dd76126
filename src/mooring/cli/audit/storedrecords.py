"""Records of a store that is read itself, and not through its server.

A running server answers from its memory: what somebody changes in the database under it shows only at its next start.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from mooring.api.kinds import BY_PLURAL
from mooring.api.mooring.lineagerecord import PLURAL
from mooring.api.mooring.nodeidentity import PLURAL as NODE_IDENTITIES
from mooring.apimachinery.schema import Obj
from mooring.cli.audit.records import REQUESTS
from mooring.clock import SystemClock
from mooring.errors import ConfigError, StorageError
from mooring.plane.encryption import EncryptionAtRest
from mooring.registry.cache.events import Stored
from mooring.settings.storage import EncryptionSettings, StorageSettings
from mooring.storage import table
from mooring.storage.contract import Entry, Storage, UnreadableEntry
from mooring.storage.etcd.keyspace import name_in_engine

PAGE_ENTRIES = 256
"""Objects read at a time, as many as a walk over a store reads."""


@dataclass(frozen=True, slots=True)
class StoredObjects:
    """Objects that a verification needs, all of one revision."""

    requests: Sequence[Obj]
    records: Sequence[Obj]
    identities: Sequence[Obj]


def read_stored(settings: StorageSettings, encryption: EncryptionSettings) -> StoredObjects:
    """Read a store, also beside a running server. Raises ConfigError, StorageError."""
    table.check_existence(settings.storage_url)
    return asyncio.run(_read(settings, encryption))


async def _read(settings: StorageSettings, encryption: EncryptionSettings) -> StoredObjects:
    clock = SystemClock()
    inner = table.open_storage(settings.storage_url, clock, settings=settings)
    at_rest = EncryptionAtRest(encryption, inner, clock, secrets.token_bytes, name_in_engine(settings))
    storage: Storage = at_rest.storage
    await storage.open()
    try:
        revision = await storage.revision()
        found = [await _listed(storage, plural, revision) for plural in (REQUESTS, PLURAL, NODE_IDENTITIES)]
        return StoredObjects(*found)
    finally:
        await at_rest.close()
        await storage.close()


async def _listed(storage: Storage, plural: str, revision: int) -> Sequence[Obj]:
    prefix, found, after, more = BY_PLURAL[plural].key_prefix(), list[Obj](), "", True
    while more:
        page = await storage.range(prefix, after=after, limit=PAGE_ENTRIES, revision=revision, counted=False)
        for entry in page.entries:
            found.append(_object(plural, entry))
            after = entry.key
        more = page.more
    return found


def _object(plural: str, entry: Entry) -> Obj:
    """Return the object of an entry. Raises ConfigError for one that cannot be read."""
    name = entry.key.rpartition("/")[2]
    problem = entry.problem if isinstance(entry, UnreadableEntry) else ""
    if not problem:
        try:
            return Stored.of(BY_PLURAL[plural], "", name, entry.revision, entry.value, key=entry.key).obj
        except StorageError as error:
            problem = str(error)
    raise ConfigError(
        f"{plural} {name} in the store cannot be read: {problem}; where it is encrypted, give --encryption-provider-config"
    )
