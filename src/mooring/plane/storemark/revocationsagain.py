"""Make the revocations again that an older store lacks.

Rules kept here: revocations are made again at once, before anything is listed: that only denies, and depends on no list.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from mooring.api.meta.printcolumns import spec_of
from mooring.api.mooring import certificaterevocation, ends
from mooring.api.mooring.ends import End
from mooring.clock import Clock
from mooring.errors import AlreadyExistsError, ApiError, ConflictError
from mooring.plane.storemark.endslist import TRIES
from mooring.plane.storemark.markfile import MarkFile
from mooring.reconcile.registryapi import RegistryApi
from mooring.registry.store import Registry

log = logging.getLogger("mooring")

MADE_AT_ONCE = 64
"""Revocations that are written at a time: the store commits them together."""


class RevocationsAgain:
    """Revocations that one process makes again."""

    def __init__(self, file: MarkFile, registry: Registry, api: RegistryApi, clock: Clock) -> None:
        self._file = file
        self._registry = registry
        self._api = api
        self._clock = clock
        self._made: set[str] = set()
        """Revocations that this process made again: one that an administrator deletes after that stays deleted."""
        self.are_made = False
        """True once all revocations that the store lacked were made again."""

    def begin_again(self) -> None:
        """The store was restored once more: every revocation that it lacks is made again."""
        self._made.clear()
        self.are_made = False

    async def make(self) -> None:
        """Make the revocations again that the store lacks. Raises StorageError.

        One that cannot be made is damage of the mark: nothing is issued until an administrator has waived it.
        """
        remembered = {str(End.REVOCATION): self._file.mark.ends.get(End.REVOCATION, {})}
        try:
            coming = list(ends.returning(remembered, None, self._registry.views, 0, self._clock.now()))
        except (ValueError, KeyError, TypeError) as error:
            self._file.damage = f"{self._file.path}: a revocation has no value that can be read ({error!r})"
            coming = []
        missing = [(name, spec) for _, name, spec in coming if name not in self._made]
        for first in range(0, len(missing), MADE_AT_ONCE):
            some = (self._revoke(*one) for one in missing[first : first + MADE_AT_ONCE])
            for outcome in await asyncio.gather(*some, return_exceptions=True):
                if outcome is not None:
                    raise outcome
        self.are_made = True
        if missing:
            log.error(
                "the store is older than what this server remembers: %d revocations that it lacked were made again. To take one "
                "back, delete it",
                len(missing),
            )

    async def _revoke(self, name: str, spec: Mapping[str, Any]) -> None:
        """Make a revocation again, and before it one of each certificate that it was certain to revoke.

        What was known when the entry of a node was written cannot be known again: it revokes certificates whatever the clock said.
        """
        known = certificaterevocation.known_serial_numbers(dict(spec)) if spec.get("nodeName") else ()
        shared = {field: spec[field] for field in ("reason", "message", "expiresAt") if spec.get(field)}
        try:
            for serial_number in known:
                entry = certificaterevocation.serial_entry(serial_number)
                await self._create(entry, {"serialNumber": serial_number, **shared})
            await self._create(name, spec)
        except ApiError as error:
            log.error("the revocation %s, which the store lacks, could not be made again: %s", name, error)
            self._file.damage = f"{self._file.path}: the revocation {name} cannot be made again"
        self._made.add(name)

    async def _create(self, name: str, spec: Mapping[str, Any]) -> None:
        registry, plural = self._registry, certificaterevocation.PLURAL
        for _ in range(TRIES):
            if not ends.revokes_less(registry.views, name, spec):
                return
            present = registry.views[plural].get(name)
            try:
                if present is None:
                    await self._api.create(plural, {"metadata": {"name": name}, "spec": dict(spec)})
                else:  # it revokes up to an earlier moment
                    await self._api.update(plural, {**present, "spec": {**spec_of(present), **spec}})
                return
            except (AlreadyExistsError, ConflictError):
                await registry.reader.fresh()  # another process does the same
        raise ConflictError("other processes write it, too")
