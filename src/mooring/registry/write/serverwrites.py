"""Writes that the server makes itself, as they are passed to the audit log.

Rules kept here:
* A write is passed on when the store has committed it, or when its outcome is not known. An attempt that changed nothing is not.
* A write that a client requests over HTTP is not passed on: the record of its request covers it. `Change.writer` tells them apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from mooring.api.kind import Change, Kind
from mooring.errors import StorageError
from mooring.storage.contract import Entry, KeyExistsError, RevisionMismatchError

Outcome = TypeVar("Outcome", bound=Entry | int)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerWrite:
    """One write of the server itself."""

    verb: str
    """`create`, `update` or `delete`."""
    kind: Kind
    namespace: str
    name: str
    subresource: str = ""
    change: Change
    raw: bytes = b""
    """The object as it was stored; empty for a delete and for a value that could not be read."""
    revision: int = 0
    """Revision of the write; 0 when the outcome is not known."""
    failure: StorageError | None = None
    """Why the outcome is not known."""


Observe = Callable[[ServerWrite], None]


def ignore(write: ServerWrite) -> None:
    """Record nothing: commands on the data directory, and tests."""


async def observed(commit: Awaitable[Outcome], make: Callable[..., ServerWrite], observe: Observe) -> Outcome:
    """Await the commit of a server's write, pass the write on, and return what the store returned. Raises what the store raises.

    `make` returns the write for `revision` or `failure`.
    """
    try:
        result = await commit
    except (KeyExistsError, RevisionMismatchError):
        raise
    except StorageError as failure:
        observe(make(failure=failure))
        raise
    except asyncio.CancelledError:
        observe(make(failure=StorageError("the server stopped before the store answered")))
        raise
    observe(make(revision=result if isinstance(result, int) else result.revision))
    return result
