"""Copies of the entries of a cluster into an empty store, and the move of a cluster between stores."""

from __future__ import annotations

import asyncio
import hashlib
import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Any, cast

from mooring.clock import Clock
from mooring.errors import ConfigError, StorageError
from mooring.storage.contract import CompactedError, Entry, KeyExistsError, RevisionMismatchError, Storage
from mooring.storage.keyspace import INCOMPLETE, PREFIXES, between, is_empty, pages

# Copies of the entries of a cluster into an empty store, by a move from another store or from a snapshot.
#
# Rules kept here:
# * No server starts on a store with the key INCOMPLETE.
# * A copy that was killed is repeated: the next run makes the target equal to its source, whatever the last one left.
# * Every revision of the target is greater than the `floor` that the caller gives, also that of an entry which an earlier run
#   copied. Older revisions are compacted, so that watches and lists of clients begin again.
# * The copies of Events live no longer than Events do, on a driver with leases.
# * Errors contain counts, and no keys or values.

Source = Callable[[], AsyncIterator[Sequence[Entry]]]
"""Yields the entries of the source in order of their keys, in parts that are not empty; called once for each reading."""
Report = Callable[[str, int], None]
"""Is told the phase, COPYING or VERIFYING, and the number of entries done."""

COPYING, VERIFYING = "copying", "verifying"
CONCURRENT_WRITES = 128
"""Writes under way at a time: enough to fill a commit of SQLite, or a round trip to etcd."""
EVENTS = "/registry/events/"
EVENT_SECONDS = 3600
"""Life of an Event, kube-apiserver's --event-ttl."""
_LENGTHS = struct.Struct(">II")


@dataclass(frozen=True, slots=True)
class Copied:
    """A copy that was compared with its source."""

    entries: int
    digest: str
    """`sha256:` and the digest of all keys and values, the same on both sides."""
    revision: int
    """Newest revision of the target."""
    resumed: bool
    """An earlier run had begun."""


async def refuse_incomplete(storage: Storage) -> None:
    """Raise ConfigError when a copy into the store did not end."""
    marker = await storage.get(INCOMPLETE)
    if marker is not None:
        command = _fields(marker).get("command", "command")
        raise ConfigError(f"the store is incomplete: mooring {command} into it has not ended; run it again to its end")


async def confirm_at_once() -> None:
    """Confirm that the source did not change: it cannot."""


async def copy(
    source: Source,
    target: Storage,
    *,
    floor: int,
    command: str,
    identity: str,
    report: Report,
    confirm: Callable[[], Awaitable[None]] = confirm_at_once,
) -> Copied:
    """Copy every entry of the source into `target`, which is open, and compare both sides.

    `floor`: every revision of the target is greater. `command`: the command, for messages. `identity`: unique to this run.
    `confirm` is called before the target counts as complete, and raises an error when the source has changed.
    Raises ConfigError for a target that is not empty, StorageError.
    """
    # The mark is there before the first entry, so that no server starts on a part of the cluster.
    resumed = await _mark(target, command, identity)
    # Before any entry: all of them get revisions beyond those that clients have seen.
    await target.advance(floor)
    # Read after the advance, which changes revisions on etcd. The mark is removed at this revision only: an earlier run
    # that is still at work fails at its end, and the store stays incomplete until the last run has ended.
    marker = await _own_marker(target, identity)
    await _Writing(target, floor, report).run(source())
    # Both sides are read again: this finds what another process changed in the target, too.
    entries, digest = await _compare(source(), target, report)
    # After the comparison, right before the target counts as complete: a source that changed up to here is noticed.
    await confirm()
    await _unmark(target, marker)
    return Copied(entries, digest, await target.revision(), resumed)


async def _mark(target: Storage, command: str, identity: str) -> bool:
    """Mark the target as incomplete and in the hands of this run. Return whether an earlier run had marked it."""
    value = json.dumps({"command": command, "run": identity}).encode()
    try:
        found = await target.get(INCOMPLETE)
        if found is None:
            # Only without a mark: entries beside a mark are those of a run that was killed.
            if not await is_empty(target):
                raise ConfigError(
                    "the target is not empty: name a new database file, or an etcd or an --etcd-prefix without objects"
                )
            await target.create(INCOMPLETE, value)
            return False
        await target.update(INCOMPLETE, value, expected=found.revision)
    except (KeyExistsError, RevisionMismatchError):
        raise StorageError("another process copies into the target at the same time; run one of them") from None
    return True


async def _own_marker(target: Storage, identity: str) -> Entry:
    marker = await target.get(INCOMPLETE)
    if marker is None or _fields(marker).get("run") != identity:
        raise StorageError("another process copies into the target at the same time; run one of them")
    return marker


def _fields(marker: Entry) -> dict[str, str]:
    try:
        found = json.loads(marker.value)
    except (ValueError, RecursionError):
        return {}
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


async def _unmark(target: Storage, marker: Entry) -> None:
    try:
        await target.delete(INCOMPLETE, expected=marker.revision)
    except RevisionMismatchError:
        raise StorageError("another process copies into the target at the same time; run one of them") from None


class _Writing:
    """Makes the target equal to a source."""

    def __init__(self, target: Storage, floor: int, report: Report) -> None:
        self._target = target
        self._floor = floor
        self._report = report

    async def run(self, source: AsyncIterator[Sequence[Entry]]) -> None:
        after, done = "", 0
        async for entries in source:
            last = entries[-1].key
            await self._make_equal(entries, after, last)
            after, done = last, done + len(entries)
            self._report(COPYING, done)
        # Removes what an earlier run has left after the last key of the source.
        await self._make_equal((), after, None)

    async def _make_equal(self, entries: Sequence[Entry], after: str, last: str | None) -> None:
        """Make the range of the target between two keys equal to that of the source."""
        present = {entry.key: entry async for entry in between(self._target, after, last)}
        writes: list[Callable[[], Awaitable[object]]] = []
        for entry in entries:
            current = present.pop(entry.key, None)
            if current is None:
                writes.append(_create(self._target, entry))
            # An equal entry of an earlier run is written again when its revision is one that clients may have seen.
            elif current.value != entry.value or current.revision <= self._floor:
                writes.append(_update(self._target, current, entry.value))
        writes += [_delete(self._target, extra) for extra in present.values()]
        try:
            for start in range(0, len(writes), CONCURRENT_WRITES):
                await asyncio.gather(*(write() for write in writes[start : start + CONCURRENT_WRITES]))
        except (KeyExistsError, RevisionMismatchError):
            raise StorageError("another process writes to the target; stop it, and run the command again") from None


def _create(target: Storage, entry: Entry) -> Callable[[], Awaitable[object]]:
    return lambda: target.create(entry.key, entry.value, ttl=_life(entry.key))


def _update(target: Storage, current: Entry, value: bytes) -> Callable[[], Awaitable[object]]:
    return lambda: target.update(current.key, value, expected=current.revision, ttl=_life(current.key))


def _delete(target: Storage, extra: Entry) -> Callable[[], Awaitable[object]]:
    return lambda: target.delete(extra.key, expected=extra.revision)


def _life(key: str) -> int:
    """Return the seconds for which the copy of a key lives; 0: for ever. The value may be encrypted, and does not tell its age."""
    return EVENT_SECONDS if key.startswith(EVENTS) else 0


class _Digest:
    """Digest of keys and values in order."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.entries = 0

    def add(self, entry: Entry) -> None:
        key = entry.key.encode()
        self._hash.update(_LENGTHS.pack(len(key), len(entry.value)) + key + entry.value)
        self.entries += 1

    def __str__(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


async def _compare(source: AsyncIterator[Sequence[Entry]], target: Storage, report: Report) -> tuple[int, str]:
    """Read both sides again, and return the number of entries and their digest. Raises StorageError when they differ."""
    wanted, found = _Digest(), _Digest()
    different, after = 0, ""
    async for entries in source:
        last = entries[-1].key
        there = {entry.key: entry async for entry in between(target, after, last)}
        for entry in entries:
            wanted.add(entry)
            copied = there.get(entry.key)
            different += copied is None or copied.value != entry.value
        for entry in there.values():
            found.add(entry)
        after = last
        report(VERIFYING, wanted.entries)
    async for entry in between(target, after, None):
        found.add(entry)
    if different or str(wanted) != str(found):
        raise StorageError(
            f"the copy differs from its source: {wanted.entries} entries were to be copied, {found.entries} are there, "
            f"{different} are missing or have another value; run the command again"
        )
    return wanted.entries, str(wanted)


# Move of a cluster from one store to another, with every server stopped.
#
# Rules kept here:
# * The source is read and copied; then it is read again and compared with the copy. A change of the source in between is an
#   error, and leaves the target incomplete.
# * A server that still runs is noticed: on SQLite by its locks (`mooring.storage.drivers.refuse_used`), elsewhere because the
#   leader renews its Lease. `quiet_seconds` is the time for which the source must not change, at least.
# * The revisions of the target continue after those of the source. The source is not changed.

COMMAND = "datastore migrate"
WAITING = "waiting"
"""Phase in which only the time passes in which a server would have written to the source."""


SOURCE_CHANGED = (
    "the source changed while it was copied: a server still uses it; stop every server, and run the command again"
)


async def migrate(
    source: Storage, target: Storage, clock: Clock, *, quiet_seconds: float, identity: str, report: Report
) -> Copied:
    """Copy the cluster in `source` to the empty `target`; both are open. Raises ConfigError, StorageError."""
    began = clock.monotonic()
    await refuse_incomplete(source)
    frozen = await source.revision()
    async with AsyncExitStack() as stack:
        changed = asyncio.Event()
        for prefix in PREFIXES:
            # Watched from the revision before the copy, so that a write at any moment is seen.
            following = asyncio.create_task(_follow(source, prefix, frozen, changed))
            stack.push_async_callback(_cancel, following)

        async def confirm() -> None:
            left = began + quiet_seconds - clock.monotonic()
            if left > 0 and not changed.is_set():
                report(WAITING, 0)
                waiting = [asyncio.ensure_future(work) for work in (changed.wait(), clock.sleep(left))]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in waiting:
                    task.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)
            if changed.is_set():
                raise StorageError(SOURCE_CHANGED)

        try:
            return await copy(
                lambda: pages(source),
                target,
                floor=frozen + 1,
                command=COMMAND,
                identity=identity,
                report=report,
                confirm=confirm,
            )
        except StorageError as error:
            # A difference has this cause, then.
            if await source.revision() > frozen:
                raise StorageError(SOURCE_CHANGED) from error
            raise


async def _follow(source: Storage, prefix: str, after: int, changed: asyncio.Event) -> None:
    """Set `changed` after the first change."""
    while not changed.is_set():
        try:
            async with aclosing(cast("Any", source.watch(prefix, after=after))) as watch:
                async for batch in watch:
                    if not all(change.is_progress for change in batch):
                        changed.set()
                        return
            return
        except CompactedError:
            # another cluster in the same etcd; a change before is found by the comparison of both sides
            after = await source.revision()


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
