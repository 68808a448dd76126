"""`mooring datastore migrate`: move a cluster from one store to another."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import AsyncExitStack
from typing import Any

import click

from mooring.cli.options.flags import REPORTED, output_option, usage
from mooring.cli.options.server import ETCD_ACCESS, etcd_options
from mooring.cli.printing.output import echo, print_document
from mooring.cli.printing.progressbar import progress_bar
from mooring.clock import Clock, SystemClock
from mooring.errors import ConfigError
from mooring.reconcile.leaderelection import LEASE_SECONDS
from mooring.settings.storage import StorageSettings
from mooring.storage import table
from mooring.storage.contract import Storage
from mooring.storage.copying import Copied
from mooring.storage.copying import migrate as move
from mooring.storage.keyspace import count

QUIET_SECONDS = LEASE_SECONDS + 2.0
"""Time in which the servers of a cluster write at least once: the leader renews its Lease, or another one takes it."""


@click.command("migrate")
@click.argument("source", metavar="SOURCE")
@click.argument("target", metavar="TARGET")
@etcd_options
@output_option(*REPORTED)
def migrate(source: str, target: str, output: str, **values: Any) -> None:
    """Copy a cluster from the store SOURCE to the empty store TARGET, and compare both.

    Stores are named as in --storage, for example sqlite:/var/lib/mooring/mooring.db or etcd:https://10.0.0.1:2379. The flags of
    etcd count for both. Stop every server first. SOURCE is not changed. When the command is interrupted, run it again: until it
    ends, no server starts on TARGET. Revisions continue.
    """
    clock = SystemClock()
    with usage():
        settings = StorageSettings.read({name: value for name, value in values.items() if name in ETCD_ACCESS})
        stores = [table.open_storage(url, clock, settings=settings) for url in (source, target)]
        if any(url.startswith("memory:") for url in (source, target)):
            raise ConfigError("memory: is lost when its process ends; name a store that stays")
    quiet_seconds = 0.0 if table.refuse_used(source) else QUIET_SECONDS
    copied = asyncio.run(_migrate(stores[0], stores[1], clock, quiet_seconds))
    if output != "text":
        document = {
            "kind": "DatastoreMigration",
            "source": source,
            "target": target,
            "entries": copied.entries,
            "digest": copied.digest,
            "revision": copied.revision,
            "resumed": copied.resumed,
        }
        print_document(document, output)
        return
    echo(
        f"{copied.entries} entries were copied, and are the same on both sides ({copied.digest}).",
        f"Start the servers with --storage {target}",
        f"Start none on {source} any more: its changes would be lost.",
    )


async def _migrate(source: Storage, target: Storage, clock: Clock, quiet_seconds: float) -> Copied:
    async with AsyncExitStack() as stack:
        for store in (source, target):
            await store.open()
            stack.push_async_callback(store.close)
        report = stack.enter_context(progress_bar(await count(source)))
        identity = secrets.token_hex(8)
        return await move(source, target, clock, quiet_seconds=quiet_seconds, identity=identity, report=report)
