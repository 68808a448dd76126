"""Storage keys: validity, order, the end of a prefix, and the keys that belong to a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from mooring.errors import StorageError
from mooring.storage.contract import Entry, Storage, UnreadableEntry

# Storage keys: validity, order and the end of a prefix.
#
# Rules kept here: keys are ordered by their UTF-8 bytes, which for valid text is the order of its code points, so comparing
# `str` gives the right order and no driver needs a collation of its own. A key that has no UTF-8 form is refused before any driver
# sees it.

_LAST = "\U0010ffff"
_BEFORE_SURROGATES, _AFTER_SURROGATES = "\ud7ff", "\ue000"


def check_key(key: str) -> None:
    """Raise StorageError unless `key` can be stored. The message does not repeat the key."""
    if not key:
        raise StorageError("a key must not be empty")
    if not key.isascii():
        try:
            key.encode()
        except UnicodeEncodeError:
            # `from None`: the error of the codec contains the key
            raise StorageError("a key must be valid Unicode text") from None


def end_of_prefix(prefix: str) -> str | None:
    """Return the smallest text greater than every text that starts with `prefix`; None when there is none."""
    stem = prefix.rstrip(_LAST)
    if not stem:
        return None
    last = stem[-1]
    following = _AFTER_SURROGATES if last == _BEFORE_SURROGATES else chr(ord(last) + 1)
    return stem[:-1] + following


# Keys of a store that belong to a cluster: the objects, and what Mooring keeps beside them.
#
# Rules kept here: a store may hold keys of other programs, which are never read, copied or deleted. A walk over the entries is
# paged, so that a store of any size needs the memory of one page.

OWN_PREFIX = "/mooring/"
"""Prefix of what Mooring keeps beside the objects."""
PREFIXES = (OWN_PREFIX, "/registry/")
"""Prefixes of every key of a cluster, in order."""
INCOMPLETE = "/mooring/incomplete"
"""Key of a store that a copy is being written to (`mooring.storage.copying`)."""
FORMAT_LEVEL = "/mooring/format/level"
"""Key of the level of the format (`mooring.storage.formatlevel`)."""
FORMAT_SERVERS = "/mooring/format/servers/"
"""Beginning of the keys of the processes that live, and the levels that they support. They belong to that store."""
RESTORES = "/mooring/restores"
"""Key of the records of restores (`mooring.storage.restores`)."""
SERVER_EPOCHS = "/mooring/witnesses/"
"""Beginning of the keys of the epochs of servers (`mooring.storage.restores`)."""
REVISION_OFFSETS = "/mooring/revision-offset"
"""Beginning of the keys in which the driver of etcd keeps the offset of its revisions. They belong to that etcd."""
PAGE_ENTRIES = 256
"""Entries read at a time. At 1.5 MiB each, the limit of etcd, they take 400 MiB; ordinary objects take 1 MiB."""


async def pages(storage: Storage, revision: int = 0) -> AsyncIterator[Sequence[Entry]]:
    """Yield the entries at `revision` in order of their keys, in parts that are not empty. 0 reads each page as it is now.

    Raises CompactedError when the revision is compacted meanwhile, and StorageError for a record whose bytes have changed: a copy
    without it would seem to be whole.
    """
    for prefix in PREFIXES:
        after, more = "", True
        while more:
            page = await storage.range(prefix, after=after, limit=PAGE_ENTRIES, revision=revision, counted=False)
            if page.entries:
                after = page.entries[-1].key
            entries = [entry for entry in page.entries if is_copied(entry.key)]
            if any(isinstance(entry, UnreadableEntry) for entry in entries):
                raise StorageError(
                    "a record of the store is damaged, and is not copied: `mooring store verify` names it"
                )
            if entries:
                yield entries
            more = page.more


async def between(storage: Storage, after: str, last: str | None) -> AsyncIterator[Entry]:
    """Yield the entries whose key is greater than `after` and at most `last`; None: all greater ones."""
    for prefix in PREFIXES:
        start, more = after, last is None or prefix <= last
        while more:
            page = await storage.range(prefix, after=start, limit=PAGE_ENTRIES, counted=False)
            more = page.more
            for entry in page.entries:
                if last is not None and entry.key > last:
                    more = False
                    break
                start = entry.key
                if is_copied(entry.key):
                    yield entry


async def is_empty(storage: Storage) -> bool:
    """Return whether no key of a cluster is there."""
    async for _ in between(storage, "", None):
        return False
    return True


async def count(storage: Storage) -> int:
    """Return the number of entries now."""
    found = 0
    for prefix in PREFIXES:
        page = await storage.range(prefix, limit=1)
        found += len(page.entries) + page.remaining
    return found


def is_copied(key: str) -> bool:
    """Return whether a key is one of a cluster, and part of a copy. Raises StorageError for one that is not text."""
    check_key(key)
    return key.startswith(PREFIXES) and key != INCOMPLETE and not key.startswith((REVISION_OFFSETS, FORMAT_SERVERS))
