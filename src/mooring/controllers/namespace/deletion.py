"""namespace-controller: empties a namespace that is to go, then lets it go.

Rules kept here (docs/protocol/namespaces.md#life-of-a-namespace):
* Once deletion was asked for, everything of every namespaced kind is deleted; what finalizers hold keeps the namespace waiting,
  and each event about it plans again. When nothing is left, `/finalize` takes `kubernetes` out of spec.finalizers.
* Pods go first, and everything else waits until they are gone: a Pod that is ending still needs its Secrets and ConfigMaps.
* Roles, RoleBindings and ServiceAccounts go last: whoever has to finish the rest may hold its right through them.
* Who waits can read why: the five conditions that upstream writes, by its reasons. They are written only when nothing else can be
  done, and made right before a namespace is left to others that hold it. Discovery, group versions and deletes cannot
  fail here: kinds are known, and a delete that fails is tried again by the loop.
* The views must show one moment of the whole cluster, as the registry's do: a kind that is not seen cannot be emptied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from mooring.api.core.namespace import FINALIZER, TERMINATING
from mooring.api.kinds import BY_PLURAL
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.clock import rfc3339
from mooring.controllers.actions import Action, Delete, Entropy, Key, Update
from mooring.controllers.namespace.phase import NAMESPACES

PODS = ("pods",)
RIGHTS = ("rolebindings", "roles", "serviceaccounts")
CONTENT = tuple(sorted(plural for plural, kind in BY_PLURAL.items() if kind.resource.namespaced))
STAGES = (PODS, tuple(plural for plural in CONTENT if plural not in (*PODS, *RIGHTS)), RIGHTS)


@dataclass(frozen=True, slots=True)
class Namespaces:
    """Finishes terminating namespaces."""

    name: str = "namespace-controller"
    watches: tuple[str, ...] = (*CONTENT, NAMESPACES)

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        metadata = obj["metadata"]
        if plural == NAMESPACES:
            return (("", metadata["name"]),) if not deleted and metadata.get("deletionTimestamp") else ()
        namespace = views[NAMESPACES].get(metadata["namespace"])
        going = namespace is not None and namespace["metadata"].get("deletionTimestamp")
        return (("", metadata["namespace"]),) if going else ()

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        name = key[1]
        namespace = views[NAMESPACES].get(name)
        if namespace is None or not namespace["metadata"].get("deletionTimestamp"):
            return ()
        finalizers = (namespace.get("spec") or {}).get("finalizers") or []
        if FINALIZER not in finalizers:
            return ()
        for stage in STAGES:
            content = [(plural, obj) for plural in stage for obj in views[plural].list(name)]
            if content:
                return _deletes(content) or _told(namespace, content, now)
        others = [finalizer for finalizer in finalizers if finalizer != FINALIZER]
        if others or namespace["metadata"].get("finalizers"):
            told = _told(namespace, (), now)
            if told:
                return told
        spec = {**namespace["spec"], "finalizers": others}
        return (Update(NAMESPACES, {**namespace, "spec": spec}, "finalize"),)


def _deletes(content: Sequence[tuple[str, Obj]]) -> Sequence[Action]:
    """Deletes of what nobody deleted so far."""
    return [
        Delete(plural, metadata["namespace"], metadata["name"], metadata["uid"])
        for plural, metadata in ((plural, obj["metadata"]) for plural, obj in content)
        if not metadata.get("deletionTimestamp")
    ]


def _told(namespace: Obj, content: Sequence[tuple[str, Obj]], now: datetime) -> Sequence[Action]:
    """The namespace's conditions, when they do not say yet what it waits for."""
    status = namespace.get("status") or {}
    present = {condition.get("type"): condition for condition in status.get("conditions") or ()}
    changed = dict(present)
    for condition in _conditions(content):
        before = present.get(condition["type"], {})
        since = before.get("lastTransitionTime") if before.get("status") == condition["status"] else None
        changed[condition["type"]] = {**condition, "lastTransitionTime": since or rfc3339(now)}
    if changed == present:
        return ()
    told = {**status, "phase": TERMINATING, "conditions": list(changed.values())}
    return (Update(NAMESPACES, {**namespace, "status": told}, "status"),)


def _conditions(content: Sequence[tuple[str, Obj]]) -> Iterator[Obj]:
    """What is to be said of a namespace that has this content left, which was all asked to go."""
    kinds = Counter(plural for plural, _ in content)
    holders = Counter(holder for _, obj in content for holder in obj["metadata"].get("finalizers") or ())
    yield _condition("DeletionDiscoveryFailure", False, "ResourcesDiscovered", "Every kind was looked through")
    yield _condition("DeletionGroupVersionParsingFailure", False, "ParsedGroupVersions", "Every kind is known")
    yield _condition("DeletionContentFailure", False, "ContentDeleted", "All content was told to go")
    if kinds:
        message = f"Waiting for content to go: {_counted(kinds)}"
        yield _condition("ContentRemaining", True, "SomeResourcesRemain", message)
    else:
        yield _condition("ContentRemaining", False, "ContentRemoved", "No content is left")
    if holders:
        message = f"Waiting for finalizers: {_counted(holders)}"
        yield _condition("FinalizersRemaining", True, "SomeFinalizersRemain", message)
    else:
        yield _condition("FinalizersRemaining", False, "ContentHasNoFinalizers", "No content waits for finalizers")


def _condition(about: str, status: bool, reason: str, message: str) -> Obj:
    return {"type": f"Namespace{about}", "status": str(status), "reason": reason, "message": message}


def _counted(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(numbers.items()))
