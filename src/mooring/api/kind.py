"""What a kind is: its wire facts plus its policy (strategy, in kube-apiserver's words).

Rules kept here: every hook is pure and synchronous; it gets dicts that it may change in place only where the docstring
says so. A new kind is one file that builds one `Kind`, and one row in `mooring.api.table.KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from mooring.apimachinery.resource import Resource
from mooring.apimachinery.schema import Obj
from mooring.errors import FieldError
from mooring.identity import UserInfo


@dataclass(frozen=True, slots=True)
class Change:
    """Who changes an object, and when: what strategies may look at."""

    user: UserInfo
    now: datetime
    warnings: list[str] = field(default_factory=list)
    """Filled in by the registry: what the client should know about what it wrote, though it is allowed."""


def _nothing(obj: Obj) -> None:
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


def _no_update_warnings(new: Obj, old: Obj) -> list[str]:
    return []


def _no_fields(obj: Obj) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class Claim:
    """Something that no two objects may have: while an object has it, the store has `key`, with `value` beneath.

    `error` is what a second object is refused with. The registry adds to `value` who claimed it and when.
    """

    key: str
    value: Obj
    error: FieldError


def _no_claims(obj: Obj) -> Sequence[Claim]:
    return ()


def _no_grace(obj: Obj, asked: int | None) -> int:
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SubresourcePolicy:
    """How PUT/PATCH of one subresource changes the stored object (`/status`, `/approval`, `/finalize`).

    `prepare_update(new, old, change)` changes `new` in place so that only what this subresource owns differs from `old`.
    """

    prepare_update: Callable[[Obj, Obj, Change], None]
    validate_update: Callable[[Obj, Obj], list[FieldError]] = _no_update_errors
    warnings: Callable[[Obj, Obj], list[str]] = _no_update_warnings


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """Says that the objects of a kind are those of another, in another form: one key space, one revision, one watch cache.

    Both functions are pure, return a new dict and keep what is absent absent: they also get configurations to apply.
    """

    of: Kind
    """As which they are stored."""
    inward: Callable[[Obj], Obj]
    """From the form that clients see to the stored one."""
    outward: Callable[[Obj], Obj]
    """And back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind: `resource` says what it looks like on the wire, the rest how it is stored and what may change.

    Order on create: `default(obj)` → `prepare_create(obj, change)` → admission → `validate(obj)`.
    Order on update: `default(new)` → `prepare_update(new, old, change)` → admission → `validate(new)` + `validate_update(…)`.
    Metadata (names, labels, finalizers, owner references, immutability) is prepared and checked by the registry through
    `mooring.api.meta.objectmeta` for every kind alike; hooks here see to the rest. Validation errors carry paths like
    `spec.request`.
    With an `alias`, hooks that prepare and judge writes get the stored form; `fields` and columns get what clients see.
    """

    resource: Resource
    storage: str
    """Key prefix without trailing slash, kube-apiserver's layout, e.g. `/registry/secrets`. Empty for virtual kinds."""
    name_errors: Callable[[str], list[str]]
    """Why a name is not allowed (empty list = allowed); see `mooring.apimachinery.names`."""
    default: Callable[[Obj], None] = _nothing
    prepare_create: Callable[[Obj, Change], None] = _create_unchanged
    prepare_update: Callable[[Obj, Obj, Change], None] = _update_unchanged
    validate: Callable[[Obj], list[FieldError]] = _no_errors
    validate_create: Callable[[Obj], list[FieldError]] = _no_errors
    """What is asked of new objects beyond `validate`, and forgiven those that are there already."""
    validate_update: Callable[[Obj, Obj], list[FieldError]] = _no_update_errors
    warnings: Callable[[Obj, Obj | None], list[str]] = _no_warnings
    """What the client should know about an object that it created (the second is None) or updated, though it is allowed; each
    goes into a Warning header."""
    deprecation: str = ""
    """A warning about the kind itself, sent with the answer to every request for it."""
    fields: Callable[[Obj], Mapping[str, str]] = _no_fields
    """Selectable fields besides metadata.name and metadata.namespace: every supported label present, "" when unset."""
    selectable: tuple[str, ...] = ()
    """The labels `fields` yields; any other field label is refused with 400."""
    subresources: Mapping[str, SubresourcePolicy] | None = None
    has_generation: bool = False
    unconditional_update: bool = True
    """PUT without resourceVersion allowed (docs/protocol/objects.md)."""
    create_on_update: bool = False
    """PUT to a missing name creates (docs/protocol/objects.md)."""
    grace_seconds: Callable[[Obj, int | None], int] = _no_grace
    """How long an object stays after its first delete, for whoever has to finish with it; `asked` is the caller's
    gracePeriodSeconds. 0: it goes at once, finalizers permitting."""
    claims: Callable[[Obj], Sequence[Claim]] = _no_claims
    """What the object has and no other may have, asked before and after admission; each key once."""
    finalizers_need_domain: bool = True
    """Finalizers without a domain must be standard ones; kinds whose Kubernetes validation does not ask this say False."""
    collected: bool = True
    """The garbage collector looks at these objects: only then may a delete leave it a finalizer to remove."""
    takes_along: tuple[str, ...] = ()
    """Plurals whose object of the same name goes with this one."""
    alias: Alias | None = None
    """Set when this is another form of a kind that is stored; `storage` is then that kind's."""

    @property
    def graceful(self) -> bool:
        """Objects may stay for some time after their delete; what a delete answers then shows that it came."""
        return self.grace_seconds is not _no_grace

    @property
    def virtual(self) -> bool:
        """Answered at once and never stored (reviews, TokenRequest)."""
        return not self.storage

    @property
    def at_rest(self) -> Kind:
        """As which its objects are stored: itself, unless it is an alias."""
        return self.alias.of if self.alias else self

    @property
    def kept(self) -> bool:
        """Whether it has objects of its own in storage: neither virtual nor an alias."""
        return bool(self.storage) and self.alias is None

    def inward(self, obj: Obj) -> Obj:
        """What a client sent, in the form in which it is stored."""
        return self.alias.inward(obj) if self.alias else obj

    def outward(self, obj: Obj) -> Obj:
        """What is stored, in the form that a client of this kind sees."""
        return self.alias.outward(obj) if self.alias else obj

    def key(self, namespace: str, name: str) -> str:
        """Storage key of one object (design: kube-apiserver's layout)."""
        return f"{self.storage}/{namespace}/{name}" if self.resource.namespaced else f"{self.storage}/{name}"

    def key_prefix(self, namespace: str = "") -> str:
        """Storage prefix of the collection, or of one namespace of it."""
        return f"{self.storage}/{namespace}/" if namespace else f"{self.storage}/"
