"""A program that uses one SQLite store; tests start it with `python storageprocess.py …` and read its lines.

`write PATH NAME COUNT CONCURRENCY`: creates `/<NAME>/<n>` (COUNT 0: without end) and prints `<n> <revision>` for each
acknowledged write at once. `contend PATH COUNT`: raises the number in `/counter` COUNT times by compare-and-swap.
`follow PATH COUNT`: watches everything and prints `<revision> <key>` until COUNT changes were seen.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from pathlib import Path

from mooring.clock import SystemClock
from mooring.storage.contract import KeyExistsError, RevisionMismatchError
from mooring.storage.sqlite.driver import SqliteStorage


def say(text: str) -> None:
    """Write one line to the pipe at once: a killed process must leave no line in a buffer."""
    os.write(1, text.encode() + b"\n")


def value_of(name: str, n: int) -> bytes:
    """Return a value in which a torn write, or a value of another key, is visible."""
    return f"{name}/{n}|".encode() * 80


async def write(store: SqliteStorage, name: str, count: int, concurrency: int) -> None:
    numbers = iter(range(count)) if count else itertools.count()

    async def one() -> None:
        for n in numbers:
            entry = await store.create(f"/{name}/{n}", value_of(name, n))
            say(f"{n} {entry.revision}")

    await asyncio.gather(*(one() for _ in range(concurrency)))


async def contend(store: SqliteStorage, count: int) -> None:
    for _ in range(count):
        while True:
            try:
                current = await store.get("/counter")
                if current is None:
                    await store.create("/counter", b"1")
                else:
                    await store.update("/counter", b"%d" % (int(current.value) + 1), expected=current.revision)
                break
            except (KeyExistsError, RevisionMismatchError):
                continue


async def follow(store: SqliteStorage, count: int) -> None:
    say("watching")
    async for batch in store.watch("", after=1):
        for change in batch:
            say(f"{change.revision} {change.key}")
            count -= 1
        if count <= 0:
            return


async def main(command: str, path: str, *rest: str) -> None:
    store = SqliteStorage(Path(path), SystemClock())
    await store.open()
    if command == "write":
        await write(store, rest[0], int(rest[1]), int(rest[2]))
    elif command == "contend":
        await contend(store, int(rest[0]))
    else:
        await follow(store, int(rest[0]))
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
