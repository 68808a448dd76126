"""Actions that plans return, and the `Controller` interface (law 7).

Rules kept here:
* A plan changes nothing itself: the loop applies its actions with preconditions.
* Every change of an existing object carries the resourceVersion it was planned on: inside `obj` for Update, as a field for
  Delete. A concurrent edit makes the change fail, and the key is planned again.
* Time and entropy are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.pki.x509.names import IPAddress


@dataclass(frozen=True, slots=True)
class Create:
    """Create `obj` in resource `plural`. An object that exists already counts as success, because its event plans again."""

    plural: str
    obj: Obj
    must_be_new: bool = False
    """An object that exists already is a failed precondition: the actions that follow are not applied."""


Still = Callable[[Views, datetime], bool]
"""Returns whether an update may take effect by views and time of its commit."""


@dataclass(frozen=True, slots=True)
class Update:
    """PUT `obj` (with metadata.resourceVersion) to `plural`, or to one subresource of it (`status`, `approval`, `finalize`)."""

    plural: str
    obj: Obj
    subresource: str = ""
    still: Still | None = field(default=None, compare=False)
    """Judges the update at its commit; where it returns False the precondition has failed. Between the plan and the commit other
    actions are applied, which wait."""
    announcement: str = field(default="", compare=False)
    """Line for the operator's log once the update is made; empty for none."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete with a precondition on uid and, when given, on resourceVersion. Not found and conflict count as success."""

    plural: str
    namespace: str
    name: str
    uid: str
    resource_version: str = ""
    propagation: str = ""
    """`""` (server default), `Background`, `Foreground` or `Orphan`."""
    grace_seconds: int | None = None
    """gracePeriodSeconds of the request; None leaves it to the kind."""
    announcement: str = field(default="", compare=False)
    """Line for the operator's log once the object is deleted; empty for none."""

    @classmethod
    def of(
        cls,
        plural: str,
        obj: Obj,
        *,
        propagation: str = "",
        grace_seconds: int | None = None,
        announcement: str = "",
    ) -> Delete:
        """Delete `obj` with preconditions on its uid and resourceVersion."""
        metadata = obj["metadata"]
        return cls(
            plural,
            metadata.get("namespace", ""),
            metadata["name"],
            metadata["uid"],
            metadata["resourceVersion"],
            propagation,
            grace_seconds,
            announcement,
        )


@dataclass(frozen=True, slots=True)
class CheckAccess:
    """Create a SubjectAccessReview and continue with the actions that `then(allowed)` returns."""

    review: Obj
    then: Callable[[bool], Sequence[Action]]


Addresses = Mapping[str, frozenset[IPAddress]]
"""Addresses by DNS name. The set is empty when the name has none, or could not be resolved in time."""


@dataclass(frozen=True, slots=True)
class Resolve:
    """Resolve DNS names, each as it is written, and continue with the actions that `then(addresses)` returns.

    `requester` is the user who chose the names. What is resolved for it is bounded.
    """

    names: tuple[str, ...]
    requester: str
    then: Callable[[Addresses], Sequence[Action]]


@dataclass(frozen=True, slots=True)
class InThread:
    """Call `work` in a thread and continue with the actions that it returns.

    For work that waits for a device, or takes long. `work` reads no view, and raises MooringError when the key is to be planned
    again.
    """

    work: Callable[[], Sequence[Action]]


@dataclass(frozen=True, slots=True)
class Requeue:
    """Plan this key again at `at`."""

    at: datetime


@dataclass(frozen=True, slots=True)
class Retry:
    """Plan this key again after the queue's back-off; `reason` is logged once for the operator, unless the plan announced it."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class RecordLineage:
    """Append an entry to the lineage of certificates. The actions after it are applied only once the entry is stored."""

    entry: Obj
    fresh_key: bool = False
    """An entry of another request with the same key, whose certificate is valid, is a failed precondition. Of two requests that are
    signed at one moment, the chain takes one."""


Action = Create | Update | Delete | RecordLineage | CheckAccess | Resolve | InThread | Requeue | Retry

Key = tuple[str, str]
"""(namespace, name) of the object to plan for; ("", "") in controllers that plan for all objects at once."""
Entropy = Callable[[int], bytes]
"""Function that returns n unpredictable bytes for n."""


class Controller(Protocol):
    """One controller: the kinds it watches, the keys that an event enqueues, and the pure plan for a key."""

    @property
    def name(self) -> str:
        """kube-controller-manager's canonical name, e.g. `token-cleaner-controller`."""

    @property
    def watches(self) -> tuple[str, ...]:
        """Plurals of the kinds whose events are passed to `keys` and whose views `plan` reads."""

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        """Return the keys to plan because `obj` of `plural` was added, changed or deleted."""

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        """Return the actions for `key`, given the views at `now`; none when the desired state is reached."""
