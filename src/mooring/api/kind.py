"""`Kind`: the declaration of one resource type, its wire form and its registry strategy.

Rules kept here:
* Hooks are pure and synchronous. A hook changes the dict that it is given only where its description says "in place".
* A new kind builds one `Kind` in a file of its own or of its group, and has a row in `mooring.api.kinds` and `mooring.api.paths`.
* The hooks carry the names of kube-apiserver's registry strategies (k8s.io/apiserver pkg/registry/rest).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import Protocol

from mooring.apimachinery.resource import Resource
from mooring.apimachinery.schema import Message, Obj, message
from mooring.errors import FieldError
from mooring.identity import UserInfo
from mooring.pki.x509.clientcertificate import ClientCertificate

_NOTHING: Mapping[str, tuple[str, ...]] = MappingProxyType({})


class Gate(Protocol):
    """Judges at the commit whether a write may still take effect: its requester may have lost the right since."""

    async def prepare(self) -> None:
        """Gather what `check` needs and the views do not have, such as the answer of a service outside."""

    def check(self) -> None:
        """Return when the write may take effect now. Raises ApiError. The writer calls it with no `await` before the write."""


APISERVER = "apiserver"
"""Writer of a change that names no other part of the server."""


@dataclass(frozen=True, slots=True)
class Change:
    """Context of one write: the user, the time, the client's address, and the warnings collected so far."""

    user: UserInfo
    now: datetime
    warnings: list[str] = field(default_factory=list)
    """Warnings for the client about an accepted object; the registry appends them."""
    source: str = ""
    """IP address of the client; "" for a write within the server."""
    attested: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _NOTHING)
    """Attributes that the server itself states about the requester of a certificate, beside those of the user. No client sets
    them."""
    certificate: ClientCertificate | None = None
    """Client certificate with which the write was requested, if there is one."""
    gate: Gate | None = None
    """Judges the write once more when it is committed; None for a write within the server."""
    writer: str = APISERVER
    """Part of the server that writes, for the audit record of the write. "" when the record of a request covers the write."""


def _default_nothing(obj: Obj) -> None:
    return None


def _create_unchanged(obj: Obj, change: Change) -> None:
    return None


def _update_unchanged(new: Obj, old: Obj, change: Change) -> None:
    return None


def _no_errors(obj: Obj) -> list[FieldError]:
    return []


def _no_update_errors(new: Obj, old: Obj) -> list[FieldError]:
    return []


def _no_warnings(new: Obj, old: Obj | None) -> list[str]:
    return []


def _no_errors_at(new: Obj, old: Obj, now: datetime) -> list[FieldError]:
    return []


def _no_selectable_fields(obj: Obj) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class ValueClaim:
    """A value that at most one object may have, such as a cluster IP: the store keeps `key` while an object has it.

    A second object with the same key is refused with `error`. `value` is the record stored under the key; the registry adds
    the claiming object and the time.
    """

    key: str
    value: Obj
    error: FieldError
    bit: tuple[str, int] | None = None
    """Key of the bitmap in which a kube-apiserver on the same store keeps such values, and the bit of this one."""


def _no_claims(obj: Obj) -> Sequence[ValueClaim]:
    return ()


def _is_tracked(obj: Obj) -> bool:
    return True


def is_untracked(obj: Obj) -> bool:
    """`Kind.tracks_creator` of kinds that no tool applies."""
    return False


def _no_grace(obj: Obj, requested: int | None) -> int:
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SubresourceStrategy:
    """Strategy for PUT and PATCH of one subresource (`/status`, `/approval`, `/finalize`).

    `prepare_for_update(new, old, change)` resets, in place, every field of `new` that the subresource may not change.
    """

    prepare_for_update: Callable[[Obj, Obj, Change], None]
    validate_update: Callable[[Obj, Obj], list[FieldError]] = _no_update_errors
    validate_at: Callable[[Obj, Obj, datetime], list[FieldError]] = _no_errors_at
    """Validate what depends on the time of the write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """Storage conversion of a kind whose objects are stored as another kind: one key space, one revision, one watch cache.

    Both conversions are pure and return a new dict. They also convert apply configurations, so absent fields stay absent.
    """

    of: Kind
    """The kind that is stored."""
    to_storage: Callable[[Obj], Obj]
    """Convert from the form that clients see to the stored form."""
    from_storage: Callable[[Obj], Obj]
    """Convert from the stored form to the form that clients see."""
    field_labels: Mapping[str, str] = field(default_factory=dict)
    """Field labels of the stored kind by the field labels that clients use."""
    keeps_fields: bool = False
    """The two forms have the same fields: managedFields name the version of each request, and those of either version are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind: `resource` declares its wire form, the other fields declare storage, defaulting, validation and printing.

    Order on create: `default(obj)` → `prepare_for_create(obj, change)` → admission → `validate(obj)`.
    Order on update: `default(new)` → `prepare_for_update(new, old, change)` → admission → `validate(new)` + `validate_update(…)`.
    The registry prepares and validates metadata (names, labels, finalizers, owner references, immutability) for all kinds
    through `mooring.api.objectmeta`; hooks handle the rest. Validation errors carry paths like `spec.request`.
    With an `alias`, hooks of the write path get the stored form, and columns get the client's form.
    """

    resource: Resource
    storage: str
    """Key prefix without trailing slash, kube-apiserver's layout, e.g. `/registry/secrets`. Empty for virtual kinds."""
    name_errors: Callable[[str], list[str]]
    """Reasons to refuse a name; an empty list accepts it. See `mooring.apimachinery.names`."""
    default: Callable[[Obj], None] = _default_nothing
    """Fill in defaults, in place."""
    prepare_for_create: Callable[[Obj, Change], None] = _create_unchanged
    """Set, in place, the fields that the server owns in a new object."""
    prepare_for_update: Callable[[Obj, Obj, Change], None] = _update_unchanged
    """Reset, in place, the fields of the new object that the main resource may not change."""
    validate: Callable[[Obj], list[FieldError]] = _no_errors
    """Validate an object on create and on update."""
    validate_create: Callable[[Obj], list[FieldError]] = _no_errors
    """Validate what only new objects must fulfil; stored objects that break it may still be updated."""
    validate_update: Callable[[Obj, Obj], list[FieldError]] = _no_update_errors
    """Validate the difference between a new and a stored object."""
    warnings: Callable[[Obj, Obj | None], list[str]] = _no_warnings
    """Warnings about an accepted object, each sent in a Warning header. The stored object is None on create."""
    deprecation_warning: str = ""
    """A warning about the kind itself, sent with the response to every request for it."""
    selectable_fields: Callable[[Obj], Mapping[str, str]] = _no_selectable_fields
    """Field selector values besides metadata.name and metadata.namespace: every label present, "" when unset."""
    field_labels: tuple[str, ...] = ()
    """The labels that `selectable_fields` returns, or those of the `alias`; any other field label is refused with 400."""
    subresources: Mapping[str, SubresourceStrategy] | None = None
    has_generation: bool = False
    allow_unconditional_update: bool = True
    """PUT without resourceVersion is allowed (docs/protocol/objects.md)."""
    allow_create_on_update: bool = False
    """PUT to a missing name creates the object (docs/protocol/objects.md)."""
    grace_seconds: Callable[[Obj, int | None], int] = _no_grace
    """Seconds between the first delete of an object and its removal; the second argument is the request's gracePeriodSeconds.
    0 removes the object at once, finalizers permitting."""
    claims: Callable[[Obj], Sequence[ValueClaim]] = _no_claims
    """Return the claims of an object, each key once. Called before and after admission."""
    finalizers_need_domain: bool = True
    """Finalizers without a domain must be standard ones. Kinds whose Kubernetes validation omits this check say False."""
    garbage_collected: bool = True
    """The garbage collector processes these objects: only then may a delete add a finalizer for it to remove."""
    is_exact: bool = False
    """The objects say who may come in. A stored one with a field that the kind does not have is unreadable: what the damaged name
    of a field leaves is its absence, which may grant what the field took away."""
    is_known_by_uid: bool = False
    """The uid of an object decides who may come in. A stored object without one is unreadable."""
    tracks_creator: Callable[[Obj], bool] = _is_tracked
    """Return whether managedFields of a new object record the client that creates it (docs/adr/0013). Kinds that no tool applies
    have `is_untracked`: their objects stay small."""
    cascade_plurals: tuple[str, ...] = ()
    """Plurals of kinds whose object of the same name is deleted together with an object of this kind."""
    is_stored_whole: bool = False
    """Protobuf values in storage have the message of the schema's name, while the `resource` declares free-form parts."""
    read_only_reason: str = ""
    """Why the kind has no verb that writes; "" for a kind that has one."""
    life_seconds: int = 0
    """Seconds from its last write after which a store may delete an object; 0 keeps it for ever."""
    alias: Alias | None = None
    """Set when the objects are stored as another kind; `storage` is then that kind's prefix."""

    @property
    def graceful(self) -> bool:
        """True when objects may stay after their delete; the response to a delete then shows the deletion fields."""
        return self.grace_seconds is not _no_grace

    @property
    def virtual(self) -> bool:
        """True for kinds that are answered and never stored (reviews, TokenRequest)."""
        return not self.storage

    @property
    def storage_kind(self) -> Kind:
        """The kind under which the objects are stored: the alias's target, or this kind."""
        return self.alias.of if self.alias else self

    @property
    def stored(self) -> bool:
        """True when the kind has its own objects in storage: neither virtual nor an alias."""
        return bool(self.storage) and self.alias is None

    @property
    def storage_schema(self) -> Message:
        """Schema of protobuf values in storage. Messages that only storage has are made when a value is first read."""
        schema = self.resource.schema
        return message(schema.name) if self.is_stored_whole else schema

    def to_storage(self, obj: Obj) -> Obj:
        """Convert an object from the client's form to the stored form."""
        return self.alias.to_storage(obj) if self.alias else obj

    def from_storage(self, obj: Obj) -> Obj:
        """Convert an object from the stored form to the client's form."""
        return self.alias.from_storage(obj) if self.alias else obj

    def key(self, namespace: str, name: str) -> str:
        """Return the storage key of one object, in kube-apiserver's layout."""
        return f"{self.storage}/{namespace}/{name}" if self.resource.namespaced else f"{self.storage}/{name}"

    def key_prefix(self, namespace: str = "") -> str:
        """Return the storage prefix of the collection, or of one namespace of it."""
        return f"{self.storage}/{namespace}/" if namespace else f"{self.storage}/"


def _shown_whole(obj: Obj) -> Obj:
    return obj


def in_version(kind: Kind, version: str, schema: Message, show: Callable[[Obj], Obj] = _shown_whole) -> Kind:
    """Return a stored kind in another version, with the same fields apart from those that `show` takes out of an object."""
    resource = kind.resource
    shown = replace(
        resource, version=version, schema=schema, stored_as=(resource.group, resource.version, resource.kind)
    )
    alias = Alias(
        of=kind,
        to_storage=lambda obj: {**obj, "apiVersion": resource.api_version},
        from_storage=lambda obj: {**show(obj), "apiVersion": shown.api_version},
        field_labels={label: label for label in kind.field_labels},
        keeps_fields=True,
    )
    return replace(kind, resource=shown, alias=alias)
