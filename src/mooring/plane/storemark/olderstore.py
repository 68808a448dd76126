"""Find out whether a store is older than what this server remembers of it.

Rules kept here:
* A store is older than the mark when its newest revision is lower, when a restore left out the revision of the mark, when its count
  of what this server remembered is lower (`mooring.storage.restores`: other servers have written to the copy since), or when it is
  another cluster. Revisions then go on beyond those that were seen, so that none has two meanings: the jump is larger than what a
  server writes between two marks. Watches from before end as compacted, and clients read everything again.
* A store that lacks a revocation of the mark, or the NodeIdentity of a deleted Node although no server deleted it, is older in the
  same way: damage takes rows, too.
* A revision that is further ahead of the store than servers write is damage, and moves no revisions.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from dataclasses import replace
from typing import Any, cast

from mooring.api.kinds import BY_PLURAL
from mooring.api.mooring import certificaterevocation, nodeidentity
from mooring.api.mooring.ends import End
from mooring.api.view import Views
from mooring.errors import StorageError
from mooring.plane.storemark.markfile import MarkFile
from mooring.plane.storemark.rememberedends import RECORDED
from mooring.storage.contract import CompactedError, Storage
from mooring.storage.restores import read_restores, read_witness, record_restore
from mooring.trust.endsmark import Mark

log = logging.getLogger("mooring")

JUMP = 1_000_000_000
"""Revisions that are left out: more than a server writes between two marks, as many as a restored snapshot leaves out."""
MAX_AHEAD = 1 << 44
"""Revisions that a store may be behind: 55 years of 10 000 writes a second. No server has written more."""
TRIES = 10
"""Attempts to advance, while other servers do so."""
LOOK_BACK = 1000
"""Changes before the revision of the mark that are read, too: it is taken a little later than what the mark has."""
READ_WITHIN = 10.0
"""Seconds in which the store gives the next of the changes since the mark. On a slow disk all of them take longer."""
KUBE_SYSTEM = "kube-system"


async def continue_beyond(file: MarkFile, storage: Storage) -> bool:
    """Let the revisions of a store that is older than the mark go on beyond those that were seen. Raises StorageError.

    Return False for a store that was restored from an older copy, emptied or replaced.
    """
    mark = file.mark
    seen = mark.revision
    floor = max((one.floor for one in await read_restores(storage) if one.lost(seen)), default=0)
    newest = await storage.revision()
    if seen - newest > MAX_AHEAD and not floor:
        file.mark = replace(mark, revision=0)
        file.report_damage(f"{file.path}: its revision {seen} is further ahead of the store than servers write")
        return True
    is_continued = newest >= seen and not floor
    if newest < seen and not floor:
        log.error(
            "the store is at revision %d, and this server has seen revision %d: the store was restored from an older copy, "
            "emptied, or replaced by another one. What was written in between is lost, and clients read everything again",
            newest,
            seen,
        )
        floor = seen + JUMP
        await record_restore(storage, newest, floor)  # before the jump: a start that is killed in between finds it
    elif not floor and mark.witness > await read_witness(storage, mark.server):
        is_continued = False
        log.error(
            "the store was restored from an older copy, emptied, or replaced by another one, and other servers have written to "
            "it since: it is at revision %d, and lacks what this server has seen. Clients read everything again",
            newest,
        )
        floor = newest + JUMP
        await record_restore(storage, 0, floor)  # which revision was restored is not known
    for attempt in range(1, TRIES + 1):
        if await storage.revision() >= floor:
            break
        try:
            await storage.advance(floor)
        except StorageError:
            if attempt == TRIES:
                raise
    return is_continued


def cluster_of(views: Views) -> str | None:
    """Return the uid that identifies the cluster; "" before its first boot, None when it cannot be read."""
    if views["namespaces"].problem(KUBE_SYSTEM):
        return None
    namespace = views["namespaces"].get(KUBE_SYSTEM)
    return str(namespace["metadata"].get("uid", "")) if namespace is not None else ""


def is_another(mark: Mark, cluster: str | None) -> bool:
    """Return true for a cluster that can be read, and is not the one of the mark."""
    return bool(mark.cluster) and cluster not in (None, mark.cluster)


async def is_older(mark: Mark, views: Views, storage: Storage) -> bool:
    """Return whether the store is older than the mark, or is another one. Raises StorageError."""
    return (
        any(restore.lost(mark.revision) for restore in await read_restores(storage))
        or is_another(mark, cluster_of(views))
        or await _has_lost(mark, views, storage)
    )


async def _has_lost(mark: Mark, views: Views, storage: Storage) -> bool:
    """Return true when the store lacks revocations or identities of the mark, and not because they were deleted.

    Raises StorageError.

    It cannot be told for a mark that is older than the oldest change in the store: other servers may have deleted them. A
    damaged change is left out. Damage takes several records at a time, and must not hide that one of them is missing. So it is
    with changes that are not read: what is missing counts as lost.
    """
    nodes = mark.ends.get(End.NODE, {})
    missing = {
        BY_PLURAL[plural].key_prefix() + name
        for plural, names in (
            (certificaterevocation.PLURAL, list(mark.ends.get(End.REVOCATION, {}))),
            (nodeidentity.PLURAL, [name for name, value in nodes.items() if value.get(RECORDED)]),
        )
        for name in names
        if views[plural].get(name) is None and not views[plural].problem(name)
    }
    first, newest = await storage.compacted(), await storage.revision()
    if not missing or first > mark.revision:
        return False
    deleted: set[str] = set()
    after = max(first, mark.revision - LOOK_BACK)
    try:
        while after < newest:
            try:
                async with aclosing(cast("Any", storage.watch("/", after=after))) as batches:
                    while after < newest:
                        async with asyncio.timeout(READ_WITHIN):
                            changes = await anext(batches)
                        for change in changes:
                            after = change.revision
                            (deleted.add if change.entry is None else deleted.discard)(change.key)
            except CompactedError:
                if await storage.compacted() > after:
                    return False
                after += 1  # the next change is damaged
    except TimeoutError:
        log.error("the changes since the mark cannot be read: the store gave none within %d s", READ_WITHIN)
    except StorageError as error:  # changes are lost, too; what the mark has is known
        log.error("the changes since the mark cannot be read: %s", error)
    lost = missing - deleted
    if lost:
        log.error(
            "the store has lost %d objects that deny access and were not deleted: see `mooring store verify`",
            len(lost),
        )
    return bool(lost)
