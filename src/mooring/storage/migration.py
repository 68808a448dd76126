"""Move of a cluster from one store to another, with every server stopped.

Rules kept here:
* The source is read and copied; then it is read again and compared with the copy. A change of the source in between is an error,
  and leaves the target incomplete.
* A server that still runs is noticed: on SQLite by its locks (`mooring.storage.presence.refuse_used`), elsewhere because the leader
  renews its Lease. `quiet_seconds` is the time for which the source must not change, at least.
* The revisions of the target continue after those of the source. The source is not changed.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing
from typing import Any, cast

from mooring.clock import Clock
from mooring.errors import StorageError
from mooring.storage.contract import CompactedError, Storage
from mooring.storage.copying import Copied, Report, copy, refuse_incomplete
from mooring.storage.keyspace import PREFIXES, pages

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
            if await source.revision() > frozen:  # a difference has this cause, then
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
