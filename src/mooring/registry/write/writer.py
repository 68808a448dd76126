"""Write objects: create, update, patch, apply and delete, the one way objects change (law 6).

Rules kept here (docs/protocol/objects.md, docs/protocol/patches.md):
* default → strategy → admission → validation → one encoding → compare-and-swap → watch cache. A caller gets its answer once this
  process' cache has the write, and so reads its own write, also through another request to this process.
* A resourceVersion that is not the stored one is 409. Without one the write is repeated on the newest state, a bounded number of
  times; so is a patch.
* A write that changes nothing is not stored: the revision stays, and no event is sent.
* Server-side apply creates or merges. `mooring.registry.write.serversideapply` computes the managedFields of every write.
* generateName is tried eight times; after that 409 with a hint to try again.
* dryRun goes through everything but the store.
* Values that no two objects may share are claimed before the write (`mooring.registry.write.claims`).
* `mooring.registry.write.deletion` decides whether finalizers or a grace period hold an object, and which deletions
  are recorded first.
* An object that cannot be read is deleted by a method of its own, at the revision at which it could not be read.
* A write of a client is judged again at the commit (`mooring.registry.write.commit`), or before its answer when it stores nothing:
  its credential, its right, and the further rights that admission asked for.
* Writes of the server itself are passed to the audit log at their commit (`mooring.registry.write.serversideapply`).
* Large objects are computed beside the event loop, in steps between which admission runs on the loop, because plugins read views.
* Stored objects stay below etcd's request limit with every driver, so that data can move between drivers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from mooring.api.kind import APISERVER, Change, Kind
from mooring.api.objectmeta import prepare_meta_for_create, prepare_meta_for_update, validate_meta, validate_meta_update
from mooring.api.view import Views
from mooring.apimachinery.codec.json import deep_copy
from mooring.apimachinery.codec.zerofields import complete
from mooring.apimachinery.names import uuid4
from mooring.apimachinery.options import DeleteOptions, ListOptions, WriteOptions
from mooring.apimachinery.schema import Obj
from mooring.authz.decision import Authorize
from mooring.errors import (
    AlreadyExistsError,
    ApiError,
    InvalidError,
    MethodNotAllowedError,
    NotFoundError,
    StorageError,
)
from mooring.identity import API_SERVER_USER
from mooring.registry.admission.request import Admission, AdmissionRequest, Operation
from mooring.registry.admission.table import JUDGES_OF_RIGHTS
from mooring.registry.cache.events import Stored, encoded
from mooring.registry.cache.watchcache import WatchCache
from mooring.registry.offload import Offload
from mooring.registry.reader import ListPage, RegistryReader
from mooring.registry.write import commit, deletion, serversideapply
from mooring.registry.write.claims import ClaimedError, Claims, claimed
from mooring.registry.write.deletion import DeletionRecord
from mooring.registry.write.serversideapply import Observe, Outcome, ServerWrite, observed
from mooring.storage.contract import KeyExistsError, RevisionMismatchError, Storage

GENERATE_TRIES = 8
"""Names tried for one generateName."""
PATCH_TRIES = 5
"""Times a patch is applied to a newer state."""
CLAIM_TRIES = 8
"""Times admission chooses another value when another server has taken the chosen one, as often as for a name."""
WRITE_TRIES = 30
"""Times an unconditional PUT or DELETE is repeated on a newer state: far more than contention causes, yet bounded."""
DELETE_WORKERS = 16
"""Concurrent deletes of one deletecollection: enough to fill a group commit, few enough to leave room for other requests."""


Entropy = Callable[[int], bytes]
IsStale = Callable[[str], Awaitable[bool]]
"""Returns whether the value of a storage key has to be written again, although the object stays the same."""

log = logging.getLogger(__name__)

_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True)
class Deleted:
    """Result of a delete. `stored` is the last state; with `gone` False it is marked, and finalizers or a grace period hold it."""

    stored: Stored
    gone: bool


class RegistryWriter:
    """Writer of objects of every kind."""

    def __init__(
        self,
        storage: Storage,
        cache: WatchCache,
        reader: RegistryReader,
        views: Views,
        entropy: Entropy,
        admission: Sequence[Admission],
        authorize: Authorize,
        long_work: Offload,
        deletion_records: Mapping[str, DeletionRecord],
        is_stale: IsStale,
        observe: Observe,
    ) -> None:
        self._observe = observe
        self._storage = storage
        self._cache = cache
        self._reader = reader
        self._views = views
        self._entropy = entropy
        self._admission = tuple(admission)
        self._judges_of_rights = tuple(plugin for plugin in admission if plugin.name in JUDGES_OF_RIGHTS)
        self._authorize = authorize
        self._claims = Claims(storage, reader, entropy)
        self._long_work = long_work
        self._deletion_records = deletion_records
        self._is_stale = is_stale

    def admit(self, request: AdmissionRequest) -> None:
        """Call every admission plugin, in order. Raises ApiError."""
        for plugin in self._admission:
            plugin.admit(request)

    def _admit_write(
        self,
        operation: Operation,
        kind: Kind,
        place: tuple[str, str],
        new: Obj | None,
        old: Obj | None,
        change: Change,
        dry_run: bool,
        subresource: str = "",
    ) -> commit.Admitted:
        """Call every admission plugin. Return what the commit judges again. Raises ApiError."""
        request = AdmissionRequest(
            operation=operation,
            kind=kind,
            subresource=subresource,
            namespace=place[0],
            name=place[1],
            new=new,
            old=old,
            change=change,
            views=self._views,
            authorize=self._authorize,
            dry_run=dry_run,
        )
        # Read before the plugins: the commit asks for the rights again once a view has changed since.
        revision = self._cache.revision
        self.admit(request)
        return commit.Admitted(request, self._judges_of_rights, self._cache, revision)

    def _commit(
        self,
        write: Awaitable[Outcome],
        verb: str,
        kind: Kind,
        place: tuple[str, str],
        change: Change,
        raw: bytes = b"",
        subresource: str = "",
    ) -> Awaitable[Outcome]:
        """Return what performs one write of the store, and passes it to the audit log where no request does."""
        # The audit record of a request covers the write of a client.
        if not change.writer:
            return write
        namespace, name = place
        make = partial(
            ServerWrite,
            verb=verb,
            kind=kind,
            namespace=namespace,
            name=name,
            subresource=subresource,
            change=change,
            raw=raw,
        )
        return observed(write, make, self._observe)

    async def _confirm(self, kind: Kind, change: Change, admitted: commit.Admitted) -> None:
        """Return when a write that stores nothing may be answered: the answer has the stored object. Raises ApiError."""
        await commit.prepare(kind, change, self._reader.fresh)
        commit.check(change, admitted)

    # -- create --------------------------------------------------------------------------------------------------

    async def create(self, kind: Kind, namespace: str, obj: Obj, change: Change, options: WriteOptions) -> Stored:
        """Create an object. Raises AlreadyExistsError, InvalidError, and what admission raises."""
        # Admission reads namespaces and roles, which must not be older than this request.
        await self._reader.fresh()
        generated = not (obj.get("metadata") or {}).get("name")
        error: AlreadyExistsError | None = None
        for _ in range(GENERATE_TRIES if generated else 1):
            try:
                return await self._create(kind, namespace, obj, change, options)
            except AlreadyExistsError as failure:
                error = failure
        assert error is not None  # the loop ran and did not return
        raise commit.no_unique_name(error) if generated else error

    async def _create(
        self,
        kind: Kind,
        namespace: str,
        obj: Obj,
        change: Change,
        options: WriteOptions,
        applied: Sequence[Obj] | None = None,
    ) -> Stored:
        """Create an object, choosing again what admission chose and another server took. `applied`: managedFields of an apply, None
        for another create."""
        taken: ClaimedError | None = None
        # Each try decodes its own copy, because admission and the hooks of the kind change the object in place.
        given = msgspec.json.encode(obj)
        for _ in range(CLAIM_TRIES):
            try:
                return await self._attempt(kind, namespace, given, change, options, applied)
            except ClaimedError as failure:
                taken = failure
            name = (obj.get("metadata") or {}).get("name", "")
            # The name is judged before the claimed value: creating an existing object is 409, whatever it claims.
            present = await self._reader.current(kind, namespace, name)
            if present is not None:
                raise commit.already_exists(kind, present)
            # A value that the request contains is its error, 422. A value that admission chose is chosen again.
            if taken.claim.key in claimed(kind, obj):
                break
        assert taken is not None  # the loop ran and did not return
        raise commit.invalid_value(kind, name, taken.claim.error)

    async def _attempt(
        self,
        kind: Kind,
        namespace: str,
        given: bytes,
        change: Change,
        options: WriteOptions,
        applied: Sequence[Obj] | None,
    ) -> Stored:
        """Create the object encoded in `given`. Raises ClaimedError when another object has a value that this one claims."""
        resource, storage_kind = kind.resource, kind.storage_kind
        size, user, dry_run = len(given), change.user.username, options.dry_run

        def prepare() -> tuple[Obj, Sequence[Obj]]:
            obj: Obj = _decode(given)
            obj["kind"], obj["apiVersion"] = storage_kind.resource.kind, storage_kind.resource.api_version
            complete(obj, storage_kind.resource.schema)
            kind.default(obj)
            uid = uuid4(self._entropy)
            prepare_meta_for_create(obj, kind, namespace, uid, change.now, self._entropy)
            managed = applied if applied is not None else serversideapply.entries_of_new(kind, obj, change, options)
            kind.prepare_for_create(obj, change)
            return obj, managed

        obj, managed = await self._long_work.run(size, user, prepare)
        name = obj["metadata"].get("name", "")
        # Admission runs on the event loop, because plugins read views: no other thread may run them.
        admitted = self._admit_write("CREATE", kind, (namespace, name), obj, None, change, dry_run)

        def validate_and_encode() -> bytes:
            # Validation follows admission, so that a value which admission chose is validated like one of the client.
            found = validate_meta(obj, kind) + kind.validate(obj) + kind.validate_create(obj)
            if found:
                raise InvalidError.of(storage_kind.resource.group, resource.kind, name, found)
            # A second time, for the fields that hooks and admission added.
            complete(obj, storage_kind.resource.schema)
            change.warnings.extend(kind.warnings(obj, None))
            if managed:
                obj["metadata"]["managedFields"] = managed
            return commit.encode_within_limit(storage_kind, obj, is_apply=applied is not None)

        value = await self._long_work.run(size, user, validate_and_encode)
        key = kind.key(namespace, name)
        # A dry run is judged like a write, up to the store. It claims nothing, because it would have to give it back.
        if dry_run:
            present = self._cache.kinds[resource.plural].get(key)
            if present is not None:
                raise commit.already_exists(kind, present)
            await self._confirm(kind, change, admitted)
            return Stored.of(storage_kind, namespace, name, 0, value, is_whole=True)
        # All waiting for fresh views comes before the claims: a write that is refused here has no claims to give back.
        await commit.prepare(kind, change, self._reader.fresh)
        # Values that no two objects may share are claimed before the write. The store lets one server create the claim.
        taken = await self._claims.take(kind, obj, None, change)
        try:
            # Claiming waited for the store. From this check to the call of the store there is no `await`, so a revoked
            # credential cannot commit.
            commit.check(change, admitted)
            with self._cache.expecting(key, value):
                write = self._storage.create(key, value, ttl=storage_kind.life_seconds)
                entry = await self._commit(write, "create", kind, (namespace, name), change, value)
        except ApiError:
            # Only a write that is known to have failed gives its claims back. After an unknown outcome they stay, so
            # that no value is granted twice.
            await self._claims.give_back(taken, obj)
            raise
        except KeyExistsError as failure:
            await self._claims.give_back(taken, obj)
            raise commit.already_exists(kind, self._cache.stored(failure.current), name) from failure
        return await self._wait_for_cache(kind, namespace, name, entry.revision, value)

    async def _wait_for_cache(self, kind: Kind, namespace: str, name: str, revision: int, value: bytes) -> Stored:
        """Return the written object once the cache has it, or once the cache lost its watch and readers use the store."""
        await self._cache.reach(revision)
        present = self._cache.kinds[kind.resource.plural].get(kind.key(namespace, name))
        if present is not None and present.revision == revision:
            return present
        return Stored.of(kind.storage_kind, namespace, name, revision, value, is_whole=True)

    # -- update and patch ----------------------------------------------------------------------------------------

    async def update(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        obj: Obj,
        change: Change,
        options: WriteOptions,
        subresource: str = "",
        may_create: bool = False,
    ) -> tuple[Stored, bool]:
        """Replace an object, or the part that a subresource owns. The flag is True when it was created instead, where the kind and
        `may_create` allow that."""
        commit.check_place(kind, obj, namespace, name)
        uid = obj["metadata"].get("uid", "")
        # Each try decodes its own copy, because admission and the hooks of the kind change the object in place.
        given = msgspec.json.encode(obj)
        for _ in range(WRITE_TRIES):
            old = await self._reader.current(kind, namespace, name)
            # Checked for a missing object too: a client that states a uid must not create another object.
            deletion.check_uid(kind, name, uid, old)
            if old is None:
                if not kind.allow_create_on_update or subresource:
                    raise commit.not_found(kind, name)
                if not may_create:
                    raise commit.may_not_create(kind, name)
                try:
                    fresh = {**obj, "metadata": {**obj["metadata"], "resourceVersion": ""}}
                    return await self._create(kind, namespace, fresh, change, options), True
                except AlreadyExistsError:
                    # Another writer created the object first. The next round updates it.
                    continue
            stored = await self._replace(kind, old, partial(_decode, given), len(given), change, subresource, options)
            if stored is not None:
                return stored, False
        raise commit.stale(kind, name)

    async def patch(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        apply: Callable[[Obj], Obj],
        change: Change,
        options: WriteOptions,
        subresource: str = "",
        size: int = 0,
    ) -> Stored:
        """Change an object by `apply`, which gets a copy of its own and may raise ApiError.

        `apply` is called again after a concurrent write, and for a large object in another thread. `size`: bytes of the patch.
        """
        for _ in range(PATCH_TRIES):
            old = await self._reader.current(kind, namespace, name)
            if old is None:
                raise commit.not_found(kind, name)

            def patched(old: Stored = old) -> Obj:
                # A copy, because the cache and all readers share `old`, and another round needs it unchanged.
                new = apply(deep_copy(old.obj))
                commit.check_place(kind, new, namespace, name)
                return new

            stored = await self._replace(kind, old, patched, size, change, subresource, options)
            if stored is not None:
                return stored
        raise commit.stale(kind, name)

    async def apply(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        config: Obj,
        change: Change,
        options: WriteOptions,
        subresource: str = "",
        may_create: bool = False,
        size: int = 0,
    ) -> tuple[Stored, bool]:
        """Apply a configuration of `size` bytes (server-side apply). The flag is True when the object was created, where
        `may_create` allows that.

        Raises ConflictError for fields that other managers own.
        """
        author = serversideapply.author(kind, change, options, subresource)
        config = serversideapply.effective_configuration(kind, config, subresource)
        uid, version = config["metadata"].get("uid", ""), config["metadata"].get("resourceVersion", "")
        for _ in range(PATCH_TRIES):
            old = await self._reader.current(kind, namespace, name)
            # Checked for a missing object too: a client that states a uid must not create another object.
            deletion.check_uid(kind, name, uid, old)
            live, whole = (old.obj, size + len(old.raw)) if old is not None else ({}, size)
            # Merged again in each round: conflicts between managers depend on the newest state.
            new, entries = await self._long_work.run(
                whole, change.user.username, partial(serversideapply.merge, kind, live, config, author, options.force)
            )
            if old is not None:
                commit.check_place(kind, new, namespace, name)
                stored = await self._replace(kind, old, partial(dict, new), size, change, subresource, options, entries)
                if stored is not None:
                    return stored, False
                continue
            if subresource:
                raise commit.not_found(kind, name)
            # A configuration with a resourceVersion is about an existing object, so it must not create one.
            if version:
                raise commit.stale(kind, name)
            commit.check_place(kind, new, namespace, name)
            if not may_create:
                raise commit.may_not_create(kind, name)
            try:
                return await self._create(kind, namespace, new, change, options, entries), True
            except AlreadyExistsError:
                # Another writer created the object first. The next round merges into it.
                continue
        raise commit.stale(kind, name)

    async def _replace(
        self,
        kind: Kind,
        old: Stored,
        make_new: Callable[[], Obj],
        size: int,
        change: Change,
        subresource: str,
        options: WriteOptions,
        entries: list[Obj] | None = None,
    ) -> Stored | None:
        """Write a new object over `old`. Return None when `old` is no longer the stored state.

        `make_new` returns the object, which then belongs to this call; `size`: bytes of the request from which it is made.
        `entries`: managedFields of an apply; for other writes they follow from the changes, if the object has managedFields at all.
        """
        namespace, name, dry_run = old.namespace, old.name, options.dry_run
        size, user = size + len(old.raw), change.user.username
        policy = kind.subresources.get(subresource) if kind.subresources else None
        if subresource and policy is None:
            raise MethodNotAllowedError()

        def prepare() -> tuple[Obj, Obj, set[str], list[Obj] | None, list[Obj] | None]:
            new = make_new()
            version = new["metadata"].get("resourceVersion")
            if version in (None, "", "0"):
                new["metadata"].pop("resourceVersion", None)
            elif version != str(old.revision):
                raise commit.stale(kind, name)
            # An update here would lose fields that another server stored and this server does not know.
            commit.check_known(kind, old)
            # Read before hooks and admission choose values: later the two kinds cannot be told apart.
            requested = claimed(kind, new)
            # A copy, because hooks may move parts of it into `new`, which admission may change. `old` is in the cache.
            before = deep_copy(old.obj)
            # Hooks and admission never see managedFields: `set_managed_fields` computes them from the result.
            sent = new["metadata"].pop("managedFields", None)
            kept = before["metadata"].pop("managedFields", None)
            new["kind"], new["apiVersion"] = kind.storage_kind.resource.kind, kind.storage_kind.resource.api_version
            complete(new, kind.storage_kind.resource.schema)
            kind.default(new)
            (policy or kind).prepare_for_update(new, before, change)
            prepare_meta_for_update(new, before, kind)
            return new, before, requested, sent, kept

        new, before, requested, sent, kept = await self._long_work.run(size, user, prepare)
        place = (before["metadata"].get("namespace", ""), name)
        # Admission runs on the event loop, because plugins read views: no other thread may run them.
        admitted = self._admit_write("UPDATE", kind, place, new, before, change, dry_run, subresource)
        gone = False

        def validate_and_encode() -> bytes | None:
            nonlocal gone
            found = validate_meta(new, kind) + validate_meta_update(new, before, kind)
            found += kind.validate(new) + (policy or kind).validate_update(new, before)
            if policy is not None:
                found += policy.validate_at(new, before, change.now)
            if found:
                raise InvalidError.of(kind.storage_kind.resource.group, kind.resource.kind, name, found)
            complete(new, kind.storage_kind.resource.schema)
            if policy is None:
                change.warnings.extend(kind.warnings(new, before))
            # The update that removes the last finalizer deletes the object. Admission may have changed finalizers.
            gone = deletion.is_finished(kind, new)
            if entries or sent or kept:
                serversideapply.set_managed_fields(
                    new, old.obj, sent, entries, serversideapply.author(kind, change, options, subresource)
                )
            # Both sides need the same revision: an update that changes nothing must be equal to the stored object.
            new["metadata"]["resourceVersion"] = str(old.revision)
            if new == old.obj and not gone:
                return None
            return commit.encode_within_limit(old.kind, new, is_apply=entries is not None)

        value = await self._long_work.run(size, user, validate_and_encode)
        if value is None:
            # A write that changes nothing is not stored, so watches get no event. It is stored when another key than
            # the current one has encrypted the value.
            if dry_run or not await self._is_stale(old.key):
                # The answer contains the stored object, so the credential and the right are judged as at a commit.
                await self._confirm(kind, change, admitted)
                return old
            value = encoded(old.kind.resource, new)
        if dry_run:
            await self._confirm(kind, change, admitted)
            return Stored.of(old.kind, namespace, name, old.revision, value, is_whole=True)
        # All waiting for fresh views comes before the claims: a write that is refused here has no claims to give back.
        await commit.prepare(kind, change, self._reader.fresh)
        if gone:
            # Checked before the deletion is recorded, too: a revoked credential must not leave a record of a deletion.
            commit.check(change, admitted)
            deletion.check_foreign_content(kind, name, self._cache.foreign)
        # The record is written before the object is deleted: a server that is killed in between leaves the record of an
        # object that still exists.
        if gone and not await self._record_deletion(kind, old, change):
            return None
        try:
            taken = await self._claims.take(kind, new, old.obj, change) if not gone else []
        except ClaimedError as failure:
            # A value that the request contains is its error, 422. A value that admission chose is chosen again.
            if failure.claim.key in requested:
                raise commit.invalid_value(kind, name, failure.claim.error) from None
            return None
        try:
            # Claiming and recording waited for the store. From this check to the call of the store there is no `await`,
            # so a revoked credential cannot commit.
            commit.check(change, admitted)
            at = (namespace, name)
            if gone:
                delete = self._storage.delete(old.key, expected=old.revision)
                revision = await self._commit(delete, "update", kind, at, change, value, subresource)
            else:
                with self._cache.expecting(old.key, value):
                    update = self._storage.update(old.key, value, expected=old.revision, ttl=old.kind.life_seconds)
                    revision = (await self._commit(update, "update", kind, at, change, value, subresource)).revision
        except ApiError:
            # Only a write that is known to have failed gives its claims back. After an unknown outcome they stay, so
            # that no value is granted twice.
            await self._claims.give_back(taken, new)
            raise
        except RevisionMismatchError:
            await self._claims.give_back(taken, new)
            return None
        # Values that the object gave up are released once the new state is stored: the write could have failed.
        await self._claims.settle(kind, old.obj, new if not gone else None)
        if gone:
            await self._delete_companions(kind, old, change)
        # The caller reads its own write, also through another request to this process.
        return await self._wait_for_cache(kind, namespace, name, revision, value)

    # -- delete --------------------------------------------------------------------------------------------------

    async def delete(self, kind: Kind, namespace: str, name: str, options: DeleteOptions, change: Change) -> Deleted:
        """Delete an object, or mark one that finalizers hold. Raises NotFoundError, and ConflictError for failed preconditions."""
        for _ in range(WRITE_TRIES):
            old = await self._reader.current(kind, namespace, name)
            if old is None:
                raise commit.not_found(kind, name)
            deletion.check_preconditions(kind, old, options)
            admitted = self._admit_write("DELETE", kind, (namespace, name), None, old.obj, change, options.dry_run)
            done = await self._delete(kind, old, options, change, admitted)
            if done is not None:
                return done
        raise commit.stale(kind, name)

    async def _delete(
        self, kind: Kind, old: Stored, options: DeleteOptions, change: Change, admitted: commit.Admitted
    ) -> Deleted | None:
        """Delete or mark `old`. Return None when it is no longer the stored state."""
        new = deletion.mark_deleted(kind, old.obj, options.propagation, change.now, options.grace_period_seconds)
        gone = not deletion.is_held(kind, new)
        if not gone and new == old.obj:
            # Nothing is stored, but the answer contains the object: credential and right are judged as at a commit.
            await self._confirm(kind, change, admitted)
            return Deleted(old, False)
        value = encoded(old.kind.resource, new)
        last = (
            Stored.of(old.kind, old.namespace, old.name, old.revision, value, is_whole=True) if kind.graceful else old
        )
        if options.dry_run:
            await self._confirm(kind, change, admitted)
            if gone:
                return Deleted(last, True)
            return Deleted(Stored.of(old.kind, old.namespace, old.name, old.revision, value, is_whole=True), False)
        # All waiting for fresh views comes before the deletion is recorded, so that a refused request leaves no record.
        await commit.prepare(kind, change, self._reader.fresh)
        if gone:
            # Checked before the deletion is recorded, too: a revoked credential must not leave a record of a deletion.
            commit.check(change, admitted)
            deletion.check_foreign_content(kind, old.name, self._cache.foreign)
        is_marked_now = not old.obj["metadata"].get("deletionTimestamp")
        # A held object is recorded when it is marked, and not again by each further DELETE.
        if (gone or is_marked_now) and not await self._record_deletion(kind, old, change):
            return None
        # Recording waited for the store. From this check to the call of the store there is no `await`.
        commit.check(change, admitted)
        try:
            if gone:
                delete = self._storage.delete(old.key, expected=old.revision)
                revision = await self._commit(delete, "delete", kind, (old.namespace, old.name), change)
                # Released after the deletion only: another object could get the value while this one still exists.
                await self._claims.settle(kind, old.obj, None)
                await self._cache.reach(revision)
                # Companions last: while the object exists, they belong to it.
                await self._delete_companions(kind, old, change)
                return Deleted(last.at(revision), True)
            with self._cache.expecting(old.key, value):
                update = self._storage.update(old.key, value, expected=old.revision, ttl=old.kind.life_seconds)
                entry = await self._commit(update, "delete", kind, (old.namespace, old.name), change, value)
        except RevisionMismatchError:
            return None
        return Deleted(await self._wait_for_cache(kind, old.namespace, old.name, entry.revision, value), False)

    async def delete_unreadable(self, kind: Kind, namespace: str, name: str, change: Change, dry_run: bool) -> int:
        """Delete an object that cannot be decrypted or decoded, whatever holds it, and return the revision of the deletion.

        Nothing is known of it: finalizers, admission, claims, deletion records and companions are left out. A dry run is judged in
        the same way, deletes nothing, and returns 0. Raises InvalidError for an object that can be read, or does not exist.
        """
        key = kind.key(namespace, name)
        for _ in range(WRITE_TRIES):
            entry = await self._storage.get(key)
            # Judged again in each round: an object that can be read by now has finalizers and claims, which this path
            # ignores.
            if entry is None or self._cache.stored(entry) is not None:
                raise commit.not_corrupt(kind, name)
            await commit.prepare(kind, change, self._reader.fresh)
            commit.check(change)
            if dry_run:
                return 0
            try:
                delete = self._storage.delete(key, expected=entry.revision)
                revision = await self._commit(delete, "delete", kind, (namespace, name), change)
            except RevisionMismatchError:
                continue
            log.warning("%s could not be read, and was deleted", key)
            await self._cache.reach(revision)
            return revision
        raise commit.stale(kind, name)

    async def _record_deletion(self, kind: Kind, old: Stored, change: Change) -> bool:
        """Record the deletion of `old`, where deletions of its kind are recorded. Return False when `old` is no longer the stored
        state, or the record was changed at the same time."""
        row = self._deletion_records.get(kind.resource.plural)
        if row is None:
            return True
        # The record is read before the object: a record that another writer changes after the deletion then fails this
        # write.
        present = await self._reader.current(row.kind, old.namespace, old.name)
        current = await self._reader.current(kind, old.namespace, old.name)
        if current is None or current.revision != old.revision:
            return False
        record = row.record(present.obj if present is not None else None, old.obj, change.now)
        if record is None:
            return True
        change = Change(API_SERVER_USER, change.now)
        if present is not None:
            make_new = partial(deep_copy, record)
            return await self._replace(row.kind, present, make_new, 0, change, "", WriteOptions()) is not None
        try:
            await self._create(row.kind, old.namespace, record, change, WriteOptions())
        except AlreadyExistsError:
            return False
        return True

    async def _delete_companions(self, kind: Kind, gone: Stored, change: Change) -> None:
        """Delete the objects that go with a deleted one. A failure is logged and not reported: the object was deleted."""
        # The credential was judged for deleting the object, which is done. Its expiry must not leave companions behind.
        change = replace(change, gate=None, writer=APISERVER)
        for plural in kind.cascade_plurals:
            try:
                await self.delete(self._cache.kinds[plural].kind, gone.namespace, gone.name, DeleteOptions(), change)
            except (ApiError, StorageError) as error:
                if isinstance(error, NotFoundError):
                    continue
                log.warning(
                    "%s %s/%s could not be deleted with its owner: %s", plural, gone.namespace, gone.name, error
                )

    async def delete_collection(
        self, kind: Kind, namespace: str, list_options: ListOptions, delete_options: DeleteOptions, change: Change
    ) -> ListPage:
        """Delete every object that a list with these options shows. Objects that another request deletes first count as deleted."""
        listed = await self._reader.list(kind, namespace, list_options)
        queue = iter(listed.items)
        failures: list[ApiError] = []

        async def work() -> None:
            for stored in queue:
                if failures:
                    return
                try:
                    await self.delete(kind, stored.namespace, stored.name, delete_options, change)
                except NotFoundError:
                    continue
                except ApiError as error:
                    failures.append(error)

        await asyncio.gather(*(work() for _ in range(min(DELETE_WORKERS, len(listed.items)))))
        if failures:
            raise failures[0]
        return listed
