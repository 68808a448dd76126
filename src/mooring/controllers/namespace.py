"""The life of namespaces: their phase, and the deletion of what is in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from mooring.api.core.namespace import FINALIZER, TERMINATING
from mooring.api.kinds import BY_PLURAL
from mooring.api.view import Views, readable
from mooring.apimachinery.schema import Obj
from mooring.clock import rfc3339
from mooring.controllers.actions import Action, Delete, Entropy, Key, Update

# Phase of a namespace: active or terminating.
#
# Rules kept here (docs/protocol/namespaces.md): nothing can be created in a Terminating namespace, so controllers skip it.

NAMESPACES = "namespaces"


def is_terminating(namespace: Obj) -> bool:
    """Return true when the namespace is being deleted."""
    if namespace["metadata"].get("deletionTimestamp"):
        return True
    return bool((namespace.get("status") or {}).get("phase") == TERMINATING)


def is_active(name: str, views: Views) -> bool:
    """Return true when the namespace exists and is not being deleted."""
    namespace = views[NAMESPACES].get(name)
    return namespace is not None and not is_terminating(namespace)


# namespace-controller: deletes the content of a terminating namespace, then removes its finalizer.
#
# Rules kept here (docs/protocol/namespaces.md#life-of-a-namespace):
# * In a namespace with deletionTimestamp every object of every namespaced kind is deleted. Objects with finalizers keep the
#   namespace waiting, and each event about them plans again. When no object is left, `/finalize` removes `kubernetes` from
#   spec.finalizers.
# * Pods are deleted first, and everything else after the last Pod is gone. Roles, RoleBindings and ServiceAccounts are
#   deleted last.
# * The five status conditions explain the wait, with the reasons of kube-controller-manager. They are written only when no delete
#   is left to do, and updated before a namespace is left to other finalizers. Discovery, group versions and deletes never fail
#   here: the kinds are known, and the loop retries a failed delete.
# * The views must show the whole cluster at one revision, as the registry's do: content missing from them would not be deleted.

PODS = ("pods",)
RIGHTS = ("rolebindings", "roles", "serviceaccounts")
CONTENT = tuple(sorted(plural for plural, kind in BY_PLURAL.items() if kind.resource.namespaced))
STAGES = (PODS, tuple(plural for plural in CONTENT if plural not in (*PODS, *RIGHTS)), RIGHTS)


@dataclass(frozen=True, slots=True)
class NamespaceController:
    """Deletes the content of terminating namespaces."""

    name: str = "namespace-controller"
    watches: tuple[str, ...] = (*CONTENT, NAMESPACES)

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        metadata = obj["metadata"]
        if plural == NAMESPACES:
            return (("", metadata["name"]),) if not deleted and metadata.get("deletionTimestamp") else ()
        namespace = views[NAMESPACES].get(metadata["namespace"])
        terminating = namespace is not None and namespace["metadata"].get("deletionTimestamp")
        return (("", metadata["namespace"]),) if terminating else ()

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        name = key[1]
        namespace = views[NAMESPACES].get(name)
        if namespace is None or not namespace["metadata"].get("deletionTimestamp"):
            return ()
        finalizers = (namespace.get("spec") or {}).get("finalizers") or []
        if FINALIZER not in finalizers:
            return ()
        # Pods first, because a terminating Pod still needs its Secrets. Roles last, because a controller that finishes
        # other objects may get its permissions through them.
        for stage in STAGES:
            content = [(plural, obj) for plural in stage for obj in readable(views[plural]).list(name)]
            if content:
                return _deletes(content) or _update_conditions(namespace, content, now)
        others = [finalizer for finalizer in finalizers if finalizer != FINALIZER]
        # Other finalizers may hold the namespace for long, so the conditions must explain the wait from now on.
        if others or namespace["metadata"].get("finalizers"):
            updates = _update_conditions(namespace, (), now)
            if updates:
                return updates
        spec = {**namespace["spec"], "finalizers": others}
        return (Update(NAMESPACES, {**namespace, "spec": spec}, "finalize"),)


def _deletes(content: Sequence[tuple[str, Obj]]) -> Sequence[Action]:
    """Return deletes of the objects that are not being deleted yet."""
    return [
        Delete(plural, metadata["namespace"], metadata["name"], metadata["uid"])
        for plural, metadata in ((plural, obj["metadata"]) for plural, obj in content)
        if not metadata.get("deletionTimestamp")
    ]


def _update_conditions(namespace: Obj, content: Sequence[tuple[str, Obj]], now: datetime) -> Sequence[Action]:
    """Return the update of the namespace's conditions, or nothing when they are current."""
    status = namespace.get("status") or {}
    present = {condition.get("type"): condition for condition in status.get("conditions") or ()}
    changed = dict(present)
    for condition in _conditions(content):
        before = present.get(condition["type"], {})
        since = before.get("lastTransitionTime") if before.get("status") == condition["status"] else None
        changed[condition["type"]] = {**condition, "lastTransitionTime": since or rfc3339(now)}
    if changed == present:
        return ()
    status = {**status, "phase": TERMINATING, "conditions": list(changed.values())}
    return (Update(NAMESPACES, {**namespace, "status": status}, "status"),)


def _conditions(content: Sequence[tuple[str, Obj]]) -> Iterator[Obj]:
    """Yield the conditions of a namespace whose remaining content is all being deleted."""
    kinds = Counter(plural for plural, _ in content)
    holders = Counter(holder for _, obj in content for holder in obj["metadata"].get("finalizers") or ())
    yield _condition("DeletionDiscoveryFailure", False, "ResourcesDiscovered", "Every kind was looked through")
    yield _condition("DeletionGroupVersionParsingFailure", False, "ParsedGroupVersions", "Every kind is known")
    yield _condition("DeletionContentFailure", False, "ContentDeleted", "All content was told to go")
    if kinds:
        message = f"Waiting for content to go: {_joined_counts(kinds)}"
        yield _condition("ContentRemaining", True, "SomeResourcesRemain", message)
    else:
        yield _condition("ContentRemaining", False, "ContentRemoved", "No content is left")
    if holders:
        message = f"Waiting for finalizers: {_joined_counts(holders)}"
        yield _condition("FinalizersRemaining", True, "SomeFinalizersRemain", message)
    else:
        yield _condition("FinalizersRemaining", False, "ContentHasNoFinalizers", "No content waits for finalizers")


def _condition(about: str, status: bool, reason: str, message: str) -> Obj:
    return {"type": f"Namespace{about}", "status": str(status), "reason": reason, "message": message}


def _joined_counts(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(numbers.items()))
