"""List the tombstones that an older store would bring back, and make revocations again that it lacks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mooring.api.mooring import certificaterevocation, tombstones
from mooring.api.mooring.tombstones import Tombstone
from mooring.api.objectmeta import spec_of
from mooring.clock import Clock
from mooring.controlplane.storewatermark.watermarkfile import WatermarkFile
from mooring.errors import AlreadyExistsError, ApiError, ConfigError, ConflictError, StorageError
from mooring.reconcile.registryapi import RegistryApi
from mooring.registry.store import Registry
from mooring.storage.contract import Storage
from mooring.trust.sharedkeys import envelope

# List the tombstones that an older store would bring back, in the ConfigMap of tombstones.
#
# Rules kept here:
# * The ConfigMap (`mooring.api.mooring.tombstones`) closes the gate on every server until it is settled.
# * The list is bounded. While one server remembers more, an entry says so, and nothing of that kind counts.
# * A damaged watermark is a tombstone of its own, which an administrator accepts.

log = logging.getLogger("mooring")

TRIES = 10
"""Attempts to write an object, while other servers do so."""
LISTED = 20
"""Tombstones that the log lists; `mooring restore-check list` lists all."""


class TombstoneList:
    """The part of the list of tombstones that one server writes."""

    def __init__(
        self,
        file: WatermarkFile,
        registry: Registry,
        api: RegistryApi,
        storage: Storage,
        clock: Clock,
        holds_lock: Callable[[], bool],
    ) -> None:
        """`holds_lock`: one of several workers reports what is listed."""
        self._file = file
        self._registry = registry
        self._api = api
        self._storage = storage
        self._clock = clock
        self._holds_lock = holds_lock

    async def update(self) -> Mapping[str, str] | None:
        """List what would come back. Return the entries when no tombstone is left to settle, else None. Raises MooringError."""
        registry = self._registry
        for _ in range(TRIES):
            view = registry.views[tombstones.CONFIG_MAPS]
            if view.problem(tombstones.NAME, tombstones.NAMESPACE):
                return None  # the gate is closed until it can be read
            config_map = view.get(tombstones.NAME, tombstones.NAMESPACE)
            data: dict[str, str] = dict((config_map or {}).get("data") or {})
            wanted = await self._wanted(data)
            watermark = self._file.watermark
            unread = tuple(tombstones.undecided(watermark.tombstones, watermark.head, registry.views))
            added = [one for one in wanted.items() if one[0] not in data]
            room = max(
                0, tombstones.MAX_PENDING - sum(not tombstones.is_more(key) for key in tombstones.pending(config_map))
            )
            listed = dict(added[:room])
            more = self._more((*(tombstones.key_of(kind, "") for kind in unread), *(key for key, _ in added[room:])))
            others = {key: text for key, text in data.items() if not self._is_own_more(key)}
            merged = {**others, **listed, **more}
            if merged != data:
                obj = config_map or {"metadata": {"name": tombstones.NAME, "namespace": tombstones.NAMESPACE}}
                write = self._api.create if config_map is None else self._api.update
                try:
                    await write(tombstones.CONFIG_MAPS, {**obj, "data": merged})
                except (AlreadyExistsError, ConflictError):
                    await registry.reader.fresh()
                    continue
                if listed and self._holds_lock():
                    _report(listed)
            return None if wanted or unread else merged
        raise StorageError(
            "the tombstones of a store that is older could not be written: other servers write them, too"
        )

    def waits(self) -> bool:
        """Return true while tombstones that are listed wait to be settled, and while the list cannot be read."""
        view = self._registry.views[tombstones.CONFIG_MAPS]
        pending = tombstones.pending(view.get(tombstones.NAME, tombstones.NAMESPACE))
        return any(not tombstones.is_more(key) for key in pending) or bool(
            view.problem(tombstones.NAME, tombstones.NAMESPACE)
        )

    def _more(self, keys: Iterable[str]) -> dict[str, str]:
        """Return the entries that stand for tombstones without room in the list, one for each kind."""
        server = self._file.server
        kinds = dict.fromkeys(key.partition(".")[0] for key in keys)
        return {
            tombstones.more_key(kind, server): tombstones.entry(f"{kind}-{server}", {"kind": kind}) for kind in kinds
        }

    def _is_own_more(self, key: str) -> bool:
        return tombstones.is_more(key) and key.endswith(f"-{self._file.server}")

    async def _wanted(self, data: Mapping[str, str]) -> dict[str, str]:
        """Return the entries of tombstones that would come back and were not accepted."""
        file = self._file
        found: dict[str, str] = {}
        if file.damage:
            name = file.directory.name
            found[tombstones.key_of(Tombstone.WATERMARK, name)] = tombstones.entry(name, file.value_of_damage())
        keys = await shared_keys(self._storage)
        try:
            coming = tombstones.returning(
                {kind: values for kind, values in file.watermark.tombstones.items() if kind != Tombstone.REVOCATION},
                file.watermark.head,
                self._registry.views,
                keys["generation"],
                self._clock.now(),
                keys["created"],
            )
            for kind, name, value in coming:
                found[tombstones.key_of(kind, name)] = tombstones.entry(name, value)
        except (ValueError, KeyError, TypeError) as error:
            file.damage = f"{file.path}: a tombstone has no value that can be read ({error!r})"
            found[tombstones.key_of(Tombstone.WATERMARK, "values")] = tombstones.entry("values", file.value_of_damage())
        return {key: text for key, text in found.items() if not tombstones.is_accepted(data, key, text)}


async def shared_keys(storage: Storage) -> dict[str, int]:
    """Return the `generation` of the keys in the store, and when its server token was made (`created`). Raises StorageError.

    Both are 0 when there are no keys, or when they cannot be read.
    """
    entry = await storage.get(envelope.KEY)
    try:
        row = envelope.decode(entry.value) if entry is not None else None
    except ConfigError:
        row = None
    wraps = row.wraps if row is not None else ()
    return {"generation": row.generation if row is not None else 0, "created": wraps[0].created if wraps else 0}


def _report(listed: Mapping[str, str]) -> None:
    keys = list(listed)
    more = f" and {len(keys) - LISTED} more" if len(keys) > LISTED else ""
    log.error(
        "the store is older than what this server remembers. It serves, and issues nothing, until these tombstones are applied or "
        "accepted with `mooring restore-check`: %s%s",
        ", ".join(keys[:LISTED]),
        more,
    )


# Make the revocations again that an older store lacks.
#
# Rules kept here: revocations are made again at once, before anything is listed: that only denies, and depends on no list.

MADE_AT_ONCE = 64
"""Revocations that are written at a time: the store commits them together."""


class RevocationsAgain:
    """Revocations that one process makes again."""

    def __init__(self, file: WatermarkFile, registry: Registry, api: RegistryApi, clock: Clock) -> None:
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

        One that cannot be made is damage of the watermark: nothing is issued until an administrator has accepted it.
        """
        remembered = {str(Tombstone.REVOCATION): self._file.watermark.tombstones.get(Tombstone.REVOCATION, {})}
        try:
            coming = list(tombstones.returning(remembered, None, self._registry.views, 0, self._clock.now()))
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
            if not tombstones.revokes_less(registry.views, name, spec):
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
