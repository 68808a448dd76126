"""What plans may ask for (law 7). The loop applies these with preconditions; a plan never touches anything itself.

Rules kept here: every change of an existing object carries the resourceVersion it was planned on (inside `obj` for
Update, explicit for Delete), so that a concurrent edit makes it fail and be planned again. Time and entropy are given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from mooring.api.view import Views
from mooring.apimachinery.schema import Obj


@dataclass(frozen=True, slots=True)
class Create:
    """Create `obj` in resource `plural`. Already existing is success: the next event plans again."""

    plural: str
    obj: Obj


@dataclass(frozen=True, slots=True)
class Update:
    """PUT `obj` (with metadata.resourceVersion) to `plural`, or to one subresource of it (`status`, `approval`, `finalize`)."""

    plural: str
    obj: Obj
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete with uid and, when given, resourceVersion preconditions. Not found and conflict are success."""

    plural: str
    namespace: str
    name: str
    uid: str
    resource_version: str = ""
    propagation: str = ""
    """`""` (server default), `Background`, `Foreground` or `Orphan`."""
    grace_seconds: int | None = None
    """How long the object may take to go; None: as long as its kind says."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Create a SubjectAccessReview and continue with what `answered(allowed)` plans."""

    review: Obj
    answered: Callable[[bool], Sequence[Action]]


@dataclass(frozen=True, slots=True)
class Requeue:
    """Plan this key again at `at`."""

    at: datetime


@dataclass(frozen=True, slots=True)
class Retry:
    """Plan this key again after the queue's back-off; `why` is for the operator's log."""

    why: str


Action = Create | Update | Delete | Ask | Requeue | Retry

Key = tuple[str, str]
"""(namespace, name) of what is planned; controllers that plan everything at once use ("", "")."""
Entropy = Callable[[int], bytes]
"""n → n unpredictable bytes."""


class Controller(Protocol):
    """One controller: which kinds wake it, which keys an event concerns, and the pure plan for a key."""

    @property
    def name(self) -> str:
        """kube-controller-manager's canonical name, e.g. `token-cleaner-controller`."""

    @property
    def watches(self) -> tuple[str, ...]:
        """Plurals whose events wake it, and whose views `plan` reads."""

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        """Keys to plan because `obj` of `plural` was added, changed or deleted."""

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        """What to do about `key`, given what the views show at `now`. Empty when all is as wanted."""
