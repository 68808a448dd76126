"""Commit of a write, and the errors of one that fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from mooring.api.kind import Change, Kind
from mooring.apimachinery.codec.json import MAX_VALUES, count_values
from mooring.apimachinery.codec.zerofields import has_unknown_fields
from mooring.apimachinery.options import IGNORE_STORE_READ_ERROR
from mooring.apimachinery.schema import Obj
from mooring.errors import (
    STALE,
    AlreadyExistsError,
    BadRequestError,
    ConflictError,
    Details,
    FieldError,
    ForbiddenError,
    InternalServerError,
    InvalidError,
    NotFoundError,
    RequestEntityTooLargeError,
    ServiceUnavailableError,
    invalid,
)
from mooring.registry.admission.request import Admission, AdmissionRequest
from mooring.registry.cache.events import Stored, encoded
from mooring.registry.cache.watchcache import WatchCache

# The commit of a write that a client requested: its credential is judged once more, on views of now.
#
# Rules kept here:
# * `check` runs directly before the store is called, with no `await` in between.
# * A write that grants a right, or ends one, first waits for views as fresh as a linearizable read: a revocation that any server
#   has acknowledged is then seen. Where that takes too long the write is refused, and nothing is stored.
# * A right that admission asked for, such as that to approve for a signer, is judged once more, too, where a view has changed
#   since.
# * A write of the server itself has no credential and passes.

GRANTING_GROUPS = frozenset({"rbac.authorization.k8s.io", "certificates.k8s.io", "mooring.dev"})
"""Groups whose objects give rights, certificates or membership, or end them."""
GRANTING_PLURALS = frozenset({"secrets", "serviceaccounts", "nodes"})
"""Further kinds whose objects are credentials, or end one when they are deleted."""
BEHIND = "this server has not read the newest writes of the store yet; try again"


def grants(kind: Kind) -> bool:
    """Return true when objects of the kind give a right, or end one."""
    return kind.resource.group in GRANTING_GROUPS or (
        not kind.resource.group and kind.resource.plural in GRANTING_PLURALS
    )


async def prepare(kind: Kind, change: Change, fresh: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what `check` needs. Raises ApiError when the write may not take effect."""
    if change.gate is None:
        return
    await change.gate.prepare()
    # A revocation that any server has acknowledged must be seen before a right is granted.
    if grants(kind) and not await fresh():
        raise ServiceUnavailableError(BEHIND, Details(retry_after=1))


@dataclass(frozen=True, slots=True)
class Admitted:
    """A write that admission let pass. `judges`: the plugins that asked for rights. `revision`: that of the views by then."""

    request: AdmissionRequest
    judges: Sequence[Admission]
    cache: WatchCache
    revision: int

    def check(self) -> None:
        """Return when the rights that admission asked for are still there. Raises ApiError."""
        if self.cache.revision != self.revision:
            for plugin in self.judges:
                plugin.admit(self.request)


def check(change: Change, admitted: Admitted | None = None) -> None:
    """Return when the write may take effect now. Raises ApiError. `admitted`: None for a write without admission."""
    if change.gate is None:
        return
    change.gate.check()
    if admitted is not None:
        admitted.check()


# Errors of writes that are the same for every kind, and the checks that raise them.
#
# Source: docs/protocol/errors.md, docs/protocol/patches.md, docs/protocol/requests.md#limits.

MAX_OBJECT = 1536 * 1024
"""Bytes of one stored object: etcd's default request limit."""


def check_size(value: bytes) -> bytes:
    """Return the bytes of an object that is to be stored. Raises RequestEntityTooLargeError.

    A patch can make an object larger than any request body, so that values are counted here again.
    """
    if len(value) > MAX_OBJECT:
        raise RequestEntityTooLargeError(f"Request entity too large: limit is {MAX_OBJECT}")
    if len(value) > MAX_VALUES and count_values(value) > MAX_VALUES:
        raise RequestEntityTooLargeError(
            f"Request entity too large: the object would have more than {MAX_VALUES} values; split it into several objects"
        )
    return value


def encode_within_limit(kind: Kind, obj: Obj, *, is_apply: bool) -> bytes:
    """Return the bytes to store for `obj`. Raises RequestEntityTooLargeError.

    An object that only its managedFields make too large loses them, in place, as in kube-apiserver. An apply is refused, as
    there.
    """
    try:
        return check_size(encoded(kind.resource, obj))
    except RequestEntityTooLargeError:
        if is_apply or obj["metadata"].pop("managedFields", None) is None:
            raise
        return check_size(encoded(kind.resource, obj))


def check_place(kind: Kind, obj: Obj, namespace: str, name: str) -> None:
    """Raise BadRequestError unless name and namespace of the object are those of the URL."""
    metadata = obj.setdefault("metadata", {})
    if kind.resource.namespaced and metadata.get("namespace", namespace) not in ("", namespace):
        raise BadRequestError("the namespace of the provided object does not match the namespace sent on the request")
    given = metadata.get("name")
    if not given:
        raise BadRequestError(f"the name of the object ({name} based on URL) was undeterminable: name must be provided")
    if given != name:
        raise BadRequestError(f"the name of the object ({given}) does not match the name on the URL ({name})")


def check_known(kind: Kind, old: Stored) -> None:
    """Raise InternalServerError when `old` has fields that this server does not know: an update would lose them.

    An object that is being deleted may be updated, so that its finalizers can be removed.
    """
    if not old.is_partly_known and not has_unknown_fields(old.obj, old.kind.resource.schema):
        return
    if "deletionTimestamp" in old.obj["metadata"]:
        return
    resource = kind.resource.plural + (f".{kind.resource.group}" if kind.resource.group else "")
    raise InternalServerError(
        f'{resource} "{old.name}" was stored by another server with fields that this server does not know, which an update '
        "here would lose; update it through that server, or delete and create it"
    )


def not_found(kind: Kind, name: str) -> NotFoundError:
    """Return 404 for an object that does not exist."""
    return NotFoundError.of(kind.resource.group, kind.resource.plural, name)


def may_not_create(kind: Kind, name: str) -> ForbiddenError:
    """Return 403 for an update that would create an object which the user may not create."""
    reason = "it is not there yet, and this user may not create it"
    return ForbiddenError.of(kind.resource.group, kind.resource.plural, name, reason)


def no_unique_name(error: AlreadyExistsError) -> AlreadyExistsError:
    """Return 409 after every generated name was taken. It tells the client to try again, with other names."""
    return AlreadyExistsError(
        f"{error.message}, the server was not able to generate a unique name for the object",
        Details(error.details.name, error.details.group, error.details.kind, retry_after=1),
    )


def invalid_value(kind: Kind, name: str, error: FieldError) -> InvalidError:
    """Return 422 for one field."""
    return InvalidError.of(kind.resource.group, kind.resource.kind, name, [error])


def not_corrupt(kind: Kind, name: str) -> InvalidError:
    """Return 422 for an unsafe delete of an object that can be read, or does not exist."""
    reason = "is exclusively used to delete corrupt object(s), try again by removing this option"
    error = invalid(IGNORE_STORE_READ_ERROR, True, reason)
    return InvalidError.of(kind.resource.group, kind.resource.plural, name, [error])


def stale(kind: Kind, name: str) -> ConflictError:
    """Return 409 for a write based on a state that is no longer the newest."""
    return ConflictError.of(kind.resource.group, kind.resource.plural, name, STALE)


def already_exists(kind: Kind, present: Stored | None, name: str = "") -> AlreadyExistsError:
    """Return 409 for creating an object that exists; the message says when it is being deleted."""
    name = present.name if present is not None else name
    error = AlreadyExistsError.of(kind.resource.group, kind.resource.plural, name)
    if present is not None and present.obj["metadata"].get("deletionTimestamp"):
        return AlreadyExistsError(f"object is being deleted: {error.message}", error.details)
    return error
