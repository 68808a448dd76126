"""Controllers as plans (law 7): the actions that plans return, the `Controller` interface, and their selection by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from difflib import get_close_matches
from types import MappingProxyType
from typing import Protocol

from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.errors import ConfigError
from mooring.pki.x509.names import IPAddress

# Actions that plans return, and the `Controller` interface (law 7).
#
# Rules kept here:
# * A plan changes nothing itself: the loop applies its actions with preconditions.
# * Every change of an existing object carries the resourceVersion it was planned on: inside `obj` for Update, as a field for
#   Delete. A concurrent edit makes the change fail, and the key is planned again.
# * Time and entropy are arguments.


@dataclass(frozen=True, slots=True)
class Create:
    """Create `obj` in resource `plural`. An object that exists already counts as success, because its event plans again."""

    plural: str
    obj: Obj
    must_be_new: bool = False
    """An object that exists already is a failed precondition: the actions that follow are not applied."""


CommitPrecondition = Callable[[Views, datetime], bool]
"""Returns whether an update may take effect by views and time of its commit."""


@dataclass(frozen=True, slots=True)
class Update:
    """PUT `obj` (with metadata.resourceVersion) to `plural`, or to one subresource of it (`status`, `approval`, `finalize`)."""

    plural: str
    obj: Obj
    subresource: str = ""
    precondition: CommitPrecondition | None = field(default=None, compare=False)
    """Judges the update at its commit; where it returns False the precondition has failed. Between the plan and the commit other
    actions are applied, which wait."""
    announcement: str = field(default="", compare=False)
    """Line for the operator's log once the update is made; empty for none."""
    is_routine: bool = field(default=False, compare=False)
    """True when the line is no warning."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete with a precondition on uid and, when given, on resourceVersion. Not found and conflict are success."""

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
    precondition: CommitPrecondition | None = field(default=None, compare=False)
    """Judges the deletion at its commit, as that of an update. With one, a conflict is a failed precondition: the actions that
    follow are not applied."""

    @classmethod
    def of(
        cls,
        plural: str,
        obj: Obj,
        *,
        propagation: str = "",
        grace_seconds: int | None = None,
        announcement: str = "",
        precondition: CommitPrecondition | None = None,
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
            precondition,
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
class RecordIssuance:
    """Append an entry to the issuance log of certificates. The actions after it are applied only once the entry is stored."""

    entry: Obj
    fresh_key: bool = False
    """An entry of another request with the same key, whose certificate is valid, is a failed precondition. Of two requests that are
    signed at one moment, the chain takes one."""


Action = Create | Update | Delete | RecordIssuance | CheckAccess | Resolve | InThread | Requeue | Retry

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


# `Scope`: the part of a kind that a controller follows in a cluster where it may not read everything.


@dataclass(frozen=True, slots=True, order=True)
class Scope:
    """Objects of one namespace, or of all, that a field selector matches."""

    namespace: str = ""
    field_selector: str = ""

    @property
    def object_name(self) -> str:
        """Name of the one object that the selector allows; "" when it allows more."""
        label, _, value = self.field_selector.partition("=")
        return value if label == "metadata.name" and "," not in value else ""

    def __str__(self) -> str:
        place = f" in {self.namespace}" if self.namespace else ""
        return f"{place} with {self.field_selector}" if self.field_selector else place


EVERYTHING = Scope()


# Selection of controllers by name, as `--controllers` of kube-controller-manager does it.
#
# Rules kept here:
# * A name runs that controller, `-name` leaves it out, and `*` runs those that are on by default. The first item about a
#   controller decides.
# * Names are canonical, or an alias in `ALIASES`: kube-controller-manager's old names, and shorter ones.
# * A list that only leaves controllers out begins with `*`. In kube-controller-manager such a list runs nothing.

EVERY = "*"

ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "bootstrapsigner": "bootstrap-signer-controller",
        "tokencleaner": "token-cleaner-controller",
        "csrapproving": "certificatesigningrequest-approving-controller",
        "csrapprover": "certificatesigningrequest-approving-controller",
        "csrsigning": "certificatesigningrequest-signing-controller",
        "csrsigner": "certificatesigningrequest-signing-controller",
        "csrcleaner": "certificatesigningrequest-cleaner-controller",
        "serving-approver": "kubelet-serving-approver",
        "inventory-approver": "machine-inventory-approver",
        "root-ca-cert-publisher": "root-ca-certificate-publisher-controller",
        "serviceaccount": "serviceaccount-controller",
        "serviceaccount-token": "serviceaccount-token-controller",
        "legacy-service-account-token-cleaner": "legacy-serviceaccount-token-cleaner-controller",
        "namespace": "namespace-controller",
        "garbagecollector": "garbage-collector-controller",
        "podgc": "pod-garbage-collector-controller",
        "nodelifecycle": "node-lifecycle-controller",
        "clusterrole-aggregation": "clusterrole-aggregation-controller",
    }
)
"""Canonical names by alias. `csrapprover`, `csrsigner` and those of approvers that only Mooring has are its own."""


def select(items: Sequence[str], every: Sequence[str], off_by_default: Collection[str] = ()) -> tuple[str, ...]:
    """Return the names of `every` that `items` choose, in the order of `every`. Raises ConfigError for an unknown name."""
    choices: dict[str, bool] = {}
    for item in items:
        if item != EVERY:
            choices.setdefault(_canonical(item.removeprefix("-"), every), not item.startswith("-"))
    others = EVERY in items or not any(choices.values())
    return tuple(name for name in every if choices.get(name, others and name not in off_by_default))


def _canonical(name: str, every: Sequence[str]) -> str:
    canonical = ALIASES.get(name, name)
    if canonical not in every:
        aliases = [alias for alias, meant in ALIASES.items() if meant in every]
        similar = get_close_matches(name, [*every, *aliases], n=1)
        hint = f'; did you mean "{similar[0]}"?' if similar else ""
        raise ConfigError(f'controllers: "{name}" is not one of {", ".join(every)}{hint}')
    return canonical


# Objects that keep somebody out, and are deleted only when the clock has said for a day that they are needed no more.
#
# Rules kept here: a clock that runs years ahead is noticed within hours, because every certificate has ended then. What was
# deleted by such a clock would not come back when it is set right, and a certificate that was kept out would count again. So a
# deletion waits for GRACE after the first time at which it was due. A restart, or another leader, begins again.

GRACE = timedelta(days=1)


@dataclass(slots=True)
class Overdue:
    """Keys that are due, each with the time at which that was seen first."""

    _since: dict[Key, datetime] = field(default_factory=dict)

    def deletable_at(self, key: Key, due: datetime, now: datetime) -> datetime:
        """Return when the object of a key that is due at `due` may be deleted; a moment until `now` means now."""
        if due > now:
            self._since.pop(key, None)
            return due
        since = min(self._since.get(key, now), now)
        self._since[key] = since
        return since + GRACE

    def forget(self, key: Key) -> None:
        self._since.pop(key, None)
