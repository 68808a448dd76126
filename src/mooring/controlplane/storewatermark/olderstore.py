"""Find out whether a store is older than what this server remembers of it, and remember what ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from mooring.api.kinds import BY_PLURAL
from mooring.api.mooring import certificaterevocation, lineagerecord, nodeidentity, tombstones
from mooring.api.mooring.membership import is_terminating
from mooring.api.mooring.tombstones import ROLLOVERS, Tombstone
from mooring.api.objectmeta import spec_of
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.clock import Clock, rfc3339
from mooring.controllers.bootstrap import expiration_of, is_token
from mooring.controlplane.storewatermark.watermarkfile import WatermarkFile
from mooring.errors import StorageError
from mooring.registry.cache.events import Event
from mooring.storage.contract import CompactedError, Storage
from mooring.storage.restores import read_epoch, read_restores, record_restore
from mooring.trust.bootstraptoken import tokensecret
from mooring.trust.issuancelog import Checkpoint, checkpoint_of, record_name
from mooring.trust.storewatermark import Watermark, make_room

# Remember what ended, and the end of the issuance log, from the events of the watch cache.
#
# Rules kept here:
# * What is remembered has the state of the watch cache, so it comes after the commit. It may lag and never leads.
# * The number of tombstones of a kind is bounded (`mooring.trust.storewatermark.make_room`).
# * A revocation that an administrator took back is not remembered, also when that happened while this server was stopped.

log = logging.getLogger("mooring")

FOLLOWED = (certificaterevocation.PLURAL, "secrets", "nodes", nodeidentity.PLURAL, ROLLOVERS, tombstones.CONFIG_MAPS)
"""Plurals of the kinds of whose objects every event is noted, beside the records of the issuance log."""
RECORDED = "recorded"
"""Field of a deleted Node whose NodeIdentity said so when the watermark was written."""


class RememberedTombstones:
    """Tombstones that one process knows, at first those of the watermark."""

    def __init__(
        self, watermark: Watermark, views: Views, clock: Clock, changed: asyncio.Event, directory: Path
    ) -> None:
        """`changed` is set when there is something to write. `directory`: the data directory, for the log."""
        self._views = views
        self._clock = clock
        self._changed = changed
        self._directory = directory
        self._tombstones: dict[str, dict[str, Mapping[str, Any]]] = {
            kind: dict(found) for kind, found in watermark.tombstones.items()
        }
        self._evidence: tuple[Checkpoint, ...] = watermark.issuance_log[:-1]
        """Records that the store once had, and has no more."""
        self._head = watermark.head

    @property
    def tombstones(self) -> dict[str, dict[str, Mapping[str, Any]]]:
        """A copy of the tombstones, by kind and name."""
        return {kind: dict(found) for kind, found in self._tombstones.items() if found}

    @property
    def issuance_log(self) -> tuple[Checkpoint, ...]:
        """End of the issuance log, the newest last, behind the evidence of records that went missing."""
        return self._evidence if self._head is None else (*self._evidence, self._head)

    def note(self, plural: str, event: Event) -> None:
        """Note the event of an object of a kind in FOLLOWED, or of a record of the issuance log."""
        is_deleted = event.type == "DELETED"
        if plural == "nodes" and not is_deleted and not _is_terminating(event):
            return  # most events by far: the object is not decoded for them
        if plural == nodeidentity.PLURAL and not is_deleted:
            return
        obj = event.obj
        name = obj["metadata"]["name"]
        if plural == lineagerecord.PLURAL:
            if not is_deleted:
                self._note_record(obj)
        elif plural == certificaterevocation.PLURAL:
            self._set(Tombstone.REVOCATION, name, None if is_deleted else _spec(obj))
        elif plural == "secrets":
            self._note_secret(obj, is_deleted)
        elif plural == "nodes":
            self._note_node(obj)
        elif plural == nodeidentity.PLURAL:
            known = self._tombstones.get(Tombstone.NODE, {}).get(name, {})
            if known.get(RECORDED):
                self._set(Tombstone.NODE, name, {key: known[key] for key in known if key != RECORDED})
        elif plural == ROLLOVERS:
            if not is_deleted:
                phase = str((obj.get("status") or {}).get("phase", ""))
                value = {"uid": obj["metadata"]["uid"], "phase": phase, "reached": tombstones.reached(obj)}
                self._set(
                    Tombstone.ROLLOVER,
                    name,
                    tombstones.after_acceptance(self._listed(), Tombstone.ROLLOVER, name, value),
                )
        elif (name, obj["metadata"].get("namespace")) == (tombstones.NAME, tombstones.NAMESPACE):
            self._changed.set()

    def _note_node(self, node: Obj) -> None:
        """Note a Node whose deletion has begun, or ended: finalizers do not prolong the membership."""
        name, uid = node["metadata"]["name"], node["metadata"]["uid"]
        known = self._tombstones.get(Tombstone.NODE, {}).get(name)
        value = tombstones.after_acceptance(self._listed(), Tombstone.NODE, name, {"uid": uid})
        if (
            known is not None
            and known.get("uid") == uid
            and known.get(tombstones.ACCEPTANCES) == value.get(tombstones.ACCEPTANCES)
        ):
            return
        identity = self._views[nodeidentity.PLURAL].get(name)
        reregisters = identity is not None and bool(spec_of(identity).get("reregisters"))
        moment = node["metadata"].get("deletionTimestamp") or rfc3339(self._clock.now())
        value |= {} if reregisters else {tombstones.DELETED_AT: moment, RECORDED: identity is not None}
        self._set(Tombstone.NODE, name, tombstones.after_another(value, known))

    def _note_secret(self, secret: Obj, is_deleted: bool) -> None:
        if secret["metadata"].get("namespace") != tokensecret.NAMESPACE or not is_token(secret):
            return
        name = secret["metadata"]["name"].removeprefix(tokensecret.NAME_PREFIX)
        uid = secret["metadata"]["uid"]
        is_deleted = is_deleted or bool(secret["metadata"].get("deletionTimestamp"))
        joins = tombstones.joins_of(secret)
        data = self._listed()
        counted = tombstones.after_acceptance(data, Tombstone.JOINS, name, {"uid": uid, "joins": joins})
        self._set(Tombstone.JOINS, name, counted if joins and not is_deleted else None)
        if is_deleted:  # one that had expired, too: in an older store its expiration may be later
            expiry = expiration_of(secret)
            value = tombstones.after_acceptance(
                data, Tombstone.TOKEN, name, {"uid": uid, **({"expiry": rfc3339(expiry)} if expiry else {})}
            )
            self._set(
                Tombstone.TOKEN,
                name,
                tombstones.after_another(value, self._tombstones.get(Tombstone.TOKEN, {}).get(name)),
            )

    def _note_record(self, record: Obj) -> None:
        found = checkpoint_of(record)
        if found is not None and (self._head is None or found.sequence > self._head.sequence):
            self._head = found
            self._changed.set()

    def note_keys(self, keys: Mapping[str, int]) -> None:
        """Note the generation of the shared keys, and when their server token was made, where there are keys."""
        if keys["generation"]:
            value = {field: number for field, number in keys.items() if number}
            self._tombstones[Tombstone.SERVER_TOKEN] = {
                "keys": tombstones.after_acceptance(self._listed(), Tombstone.SERVER_TOKEN, "keys", value)
            }

    def _listed(self) -> Mapping[str, str]:
        """Return the entries of the ConfigMap of tombstones."""
        config_map = self._views[tombstones.CONFIG_MAPS].get(tombstones.NAME, tombstones.NAMESPACE)
        return (config_map or {}).get("data") or {}

    def _set(self, kind: Tombstone, name: str, value: Mapping[str, Any] | None) -> None:
        found = self._tombstones.setdefault(kind, {})
        before = found.pop(name, None)
        if value is not None:
            found[name] = value
            make_room(found, rfc3339(self._clock.now()))
        if value != before:
            self._changed.set()

    # -- the whole state ---------------------------------------------------------------------------------------------

    def take_over(self, known: Watermark) -> None:
        """Add what the process that wrote the watermark before knows of tokens and Nodes that were deleted."""
        for kind in (Tombstone.TOKEN, Tombstone.NODE):
            self._tombstones[kind] = {**known.tombstones.get(kind, {}), **self._tombstones.get(kind, {})}

    def read_state(self) -> None:
        """Take over the revocations of the store, and compare the end of the issuance log; a record that is gone is evidence.

        A revocation that an administrator took back while this server was stopped must not be remembered.
        """
        denylist = self._views[certificaterevocation.PLURAL]
        known = self._tombstones.get(Tombstone.REVOCATION, {})
        lost = {name: known[name] for _, name in denylist.unreadable() if name in known}
        # The oldest first, as they were noted: by their names, those of keys and of nodes would make room for serial numbers.
        entries = sorted(denylist.list(), key=lambda obj: str(obj["metadata"].get("creationTimestamp")))
        self._tombstones[Tombstone.REVOCATION] = {
            **lost,
            **{obj["metadata"]["name"]: _spec(obj) for obj in entries},
        }
        make_room(self._tombstones[Tombstone.REVOCATION], rfc3339(self._clock.now()))
        self._note_identities()
        view, last = self._views[lineagerecord.PLURAL], self._head
        if last is not None and not view.problem(record_name(last.sequence)):
            record = view.get(record_name(last.sequence))
            if lineagerecord.is_lost(view, last):
                log.error(
                    "records of the issuance log are missing or were changed: the store has no record %s; "
                    "run mooring issuance verify --data-dir %s",
                    last,
                    self._directory,
                )
                self._evidence, self._head = (*self._evidence, last), None
            elif record is None:
                self._head = None  # other servers have trimmed the log since
        if self._head is None:
            for record in view.list():
                self._note_record(record)

    def _note_identities(self) -> None:
        """Note which deleted Nodes have a NodeIdentity that says so: earlier versions did not."""
        for name, value in tuple(self._tombstones.get(Tombstone.NODE, {}).items()):
            identity = self._views[nodeidentity.PLURAL].get(name)
            if tombstones.DELETED_AT in value and not value.get(RECORDED) and identity is not None:
                self._tombstones[Tombstone.NODE][name] = {
                    **value,
                    RECORDED: spec_of(identity).get("nodeUID") == value.get("uid"),
                }

    def forget_accepted(self, data: Mapping[str, str]) -> None:
        """Forget the deleted tokens and Nodes that were accepted, by the entries of the ConfigMap of tombstones."""
        for kind in (Tombstone.TOKEN, Tombstone.NODE):
            for name, remembered in tuple(self._tombstones.get(kind, {}).items()):
                self._set(kind, name, self._without_accepted(kind, name, remembered, data))

    def _without_accepted(
        self, kind: Tombstone, name: str, remembered: Mapping[str, Any], data: Mapping[str, str]
    ) -> Mapping[str, Any] | None:
        """Return what stays remembered of one name: objects that had it beside the one that was accepted."""
        try:
            coming = list(tombstones.returning({kind: {name: remembered}}, None, self._views, 0, self._clock.now()))
        except (ValueError, KeyError, TypeError):
            return None  # damage, which was accepted
        for _, _, value in coming:
            if tombstones.is_accepted(data, tombstones.key_of(kind, name), tombstones.entry(name, value)):
                return tombstones.without(remembered, value["uid"])
        return remembered


def _is_terminating(event: Event) -> bool:
    return event.stored is not None and b'"deletionTimestamp"' in event.stored.raw and is_terminating(event.obj)


def _spec(revocation: Obj) -> Obj:
    """Return what a revocation says, without empty fields, and with known serial numbers only where it revokes all of them."""
    found = {name: value for name, value in spec_of(revocation).items() if value is not None}
    if not certificaterevocation.revokes_known(revocation):
        found.pop("knownSerialNumbers", None)
    return found


# Find out whether a store is older than what this server remembers of it.
#
# Rules kept here:
# * A store is older than the watermark when its newest revision is lower, when a restore left out the revision of the watermark,
#   when its count of what this server remembered is lower (`mooring.storage.restores`: other servers have written to the copy
#   since), or when it is another cluster. Revisions then go on beyond those that were seen, so that none has two meanings: the jump
#   is larger than what a server writes between two watermarks. Watches from before end as compacted, and clients read everything
#   again.
# * A store that lacks a revocation of the watermark, or the NodeIdentity of a deleted Node although no server deleted it, is older
#   in the same way: damage takes rows, too.
# * A revision that is further ahead of the store than servers write is damage, and moves no revisions.

JUMP = 1_000_000_000
"""Revisions that are left out: more than a server writes between two watermarks, as many as a restored snapshot leaves out."""
MAX_AHEAD = 1 << 44
"""Revisions that a store may be behind: 55 years of 10 000 writes a second. No server has written more."""
TRIES = 10
"""Attempts to advance, while other servers do so."""
LOOK_BACK = 1000
"""Changes before the revision of the watermark that are read, too: it is taken a little later than what the watermark has."""
READ_WITHIN = 10.0
"""Seconds in which the store gives the next of the changes since the watermark. On a slow disk all of them take longer."""
KUBE_SYSTEM = "kube-system"


async def continue_beyond(file: WatermarkFile, storage: Storage) -> bool:
    """Let the revisions of a store that is older than the watermark go on beyond those that were seen. Raises StorageError.

    Return False for a store that was restored from an older copy, emptied or replaced.
    """
    watermark = file.watermark
    seen = watermark.revision
    floor = max((one.floor for one in await read_restores(storage) if one.lost(seen)), default=0)
    newest = await storage.revision()
    if seen - newest > MAX_AHEAD and not floor:
        file.watermark = replace(watermark, revision=0)
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
    elif not floor and watermark.epoch > await read_epoch(storage, watermark.server):
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


def is_another(watermark: Watermark, cluster: str | None) -> bool:
    """Return true for a cluster that can be read, and is not the one of the watermark."""
    return bool(watermark.cluster) and cluster not in (None, watermark.cluster)


async def is_older(watermark: Watermark, views: Views, storage: Storage) -> bool:
    """Return whether the store is older than the watermark, or is another one. Raises StorageError."""
    return (
        any(restore.lost(watermark.revision) for restore in await read_restores(storage))
        or is_another(watermark, cluster_of(views))
        or await _has_lost(watermark, views, storage)
    )


async def _has_lost(watermark: Watermark, views: Views, storage: Storage) -> bool:
    """Return true when the store lacks revocations or identities of the watermark, and not because they were deleted.

    Raises StorageError.

    It cannot be told for a watermark that is older than the oldest change in the store: other servers may have deleted them. A
    damaged change is left out. Damage takes several records at a time, and must not hide that one of them is missing. So it is
    with changes that are not read: what is missing counts as lost.
    """
    nodes = watermark.tombstones.get(Tombstone.NODE, {})
    missing = {
        BY_PLURAL[plural].key_prefix() + name
        for plural, names in (
            (certificaterevocation.PLURAL, list(watermark.tombstones.get(Tombstone.REVOCATION, {}))),
            (nodeidentity.PLURAL, [name for name, value in nodes.items() if value.get(RECORDED)]),
        )
        for name in names
        if views[plural].get(name) is None and not views[plural].problem(name)
    }
    first, newest = await storage.compacted(), await storage.revision()
    if not missing or first > watermark.revision:
        return False
    deleted: set[str] = set()
    after = max(first, watermark.revision - LOOK_BACK)
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
        log.error("the changes since the watermark cannot be read: the store gave none within %d s", READ_WITHIN)
    except StorageError as error:  # changes are lost, too; what the watermark has is known
        log.error("the changes since the watermark cannot be read: %s", error)
    lost = missing - deleted
    if lost:
        log.error(
            "the store has lost %d objects that deny access and were not deleted: see `mooring store verify`",
            len(lost),
        )
    return bool(lost)
