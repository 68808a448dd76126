"""garbage-collector-controller (docs/protocol/objects.md#owner-references): owners, dependents, propagation."""

from __future__ import annotations

import pytest

from mooring.api.kinds import BY_PLURAL
from mooring.api.paths import GROUP
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, Delete, Key, Update
from mooring.controllers.garbagecollector import COLLECTED, GarbageCollector, OwnerIndex, references
from tests.support.plans import HOUR, enqueued, moment, plan, thing, views

FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"


def owned_by(name: str, kind: str = "ConfigMap", version: str = "v1", block: bool = False, uid: str = "") -> Obj:
    reference = {"apiVersion": version, "kind": kind, "name": name, "uid": uid or f"uid-of-{name}"}
    return {**reference, "blockOwnerDeletion": True} if block else reference


def item(name: str, *owners: Obj, namespace: str = "a", deleted: bool = False, finalizers: tuple[str, ...] = ()) -> Obj:
    metadata: Obj = {"ownerReferences": list(owners)} if owners else {}
    if deleted:
        metadata["deletionTimestamp"] = moment(-HOUR)
    if finalizers:
        metadata["finalizers"] = list(finalizers)
    return thing(name, namespace, metadata=metadata)


def waiting(name: str, *owners: Obj) -> Obj:
    """Return an object that is being deleted in the foreground."""
    return item(name, *owners, deleted=True, finalizers=(FOREGROUND,))


def planned(plural: str, name: str, seen: Views, namespace: str = "a") -> list[Action]:
    """Return the plan for one object, after the index received every object."""
    collector = GarbageCollector()
    enqueued(collector, seen)
    return plan(collector, (namespace, f"{plural}/{name}"), seen)


def delete(name: str, propagation: str = "Background", plural: str = "secrets", namespace: str = "a") -> list[Action]:
    return [Delete(plural, namespace, name, f"uid-of-{name}", "7", propagation)]


TRUST = {plural for plural, kind in BY_PLURAL.items() if kind.resource.group == GROUP}


def test_every_kind_except_events_read_only_kinds_and_those_of_trust_is_collected() -> None:
    only_read = {plural for plural, kind in BY_PLURAL.items() if "create" not in kind.resource.verbs}
    assert set(COLLECTED) == set(BY_PLURAL) - {"events"} - only_read - TRUST


@pytest.mark.parametrize("plural", sorted(TRUST))
def test_what_says_which_machines_may_come_in_is_never_collected(plural: str) -> None:
    """Not even with an owner that does not exist, which a right to patch is enough to write."""
    entry = thing("e", metadata={"ownerReferences": [owned_by("gone", "Node")]})
    seen = views(**{plural: [entry]})
    collector = GarbageCollector()
    assert enqueued(collector, seen) == []
    assert plural not in collector.watches


# -- owners --------------------------------------------------------------------------------------------------------------

OWNER = item("o")
LEASE = "coordination.k8s.io/v1"


@pytest.mark.parametrize(
    ("owners", "seen"),
    [
        pytest.param([owned_by("o")], {}, id="there is none of that name"),
        pytest.param([owned_by("o", uid="another")], {"configmaps": [OWNER]}, id="its name was taken by another"),
        pytest.param([owned_by("o")], {"configmaps": [item("o", namespace="b")]}, id="it is in another namespace"),
        pytest.param([owned_by("o")], {"secrets": [OWNER]}, id="only another kind has that name"),
        pytest.param([owned_by("o"), owned_by("p")], {}, id="all of several are gone"),
        pytest.param([owned_by("n", "Node")], {}, id="a cluster-wide owner is gone"),
    ],
)
def test_a_dependent_is_deleted_when_its_owner_is_absent(owners: list[Obj], seen: dict[str, list[Obj]]) -> None:
    dependent = item("d", *owners)
    assert planned("secrets", "d", views(**{**seen, "secrets": [*seen.get("secrets", []), dependent]})) == delete("d")


@pytest.mark.parametrize(
    ("dependent", "seen"),
    [
        pytest.param(item("d"), {}, id="it has no owner"),
        pytest.param(item("d", owned_by("o")), {"configmaps": [OWNER]}, id="its owner stands"),
        pytest.param(
            item("d", owned_by("n", "Node")), {"nodes": [item("n", namespace="")]}, id="its cluster-wide owner stands"
        ),
        pytest.param(
            item("d", owned_by("l", "Lease", LEASE)), {"leases": [item("l")]}, id="its owner of a group stands"
        ),
        pytest.param(item("d", owned_by("w", "Widget", "example.com/v1")), {}, id="its owner's kind is unknown"),
        pytest.param(item("d", owned_by("l", "Lease")), {}, id="its owner's kind is unknown in that group"),
        pytest.param(
            item("d", owned_by("r", "ReplicaSet", "apps/v1")),
            {},
            id="nobody can create its owner here: it is elsewhere",
        ),
        pytest.param(
            item("d", owned_by("o")),
            {"configmaps": [item("o", deleted=True, finalizers=("example.com/f",))]},
            id="its owner is being deleted, but not in the foreground",
        ),
        pytest.param(item("d", owned_by("gone"), deleted=True), {}, id="it is being deleted already"),
    ],
)
def test_a_dependent_stays_as_it_is_when(dependent: Obj, seen: dict[str, list[Obj]]) -> None:
    assert planned("secrets", "d", views(secrets=[dependent], **seen)) == []


def test_a_namespaced_owner_of_a_cluster_scoped_object_counts_as_present() -> None:
    assert planned("nodes", "n", views(nodes=[item("n", owned_by("o"), namespace="")]), "") == []


def test_a_cluster_scoped_dependent_is_deleted_with_its_cluster_scoped_owner() -> None:
    seen = views(clusterroles=[item("d", owned_by("n", "Node"), namespace="")])
    assert planned("clusterroles", "d", seen, "") == delete("d", plural="clusterroles", namespace="")


@pytest.mark.parametrize("other", [[], [waiting("p")]], ids=["absent", "waiting for its dependents"])
def test_while_one_owner_is_present_references_to_the_others_are_removed(other: list[Obj]) -> None:
    seen = views(configmaps=[OWNER, *other], secrets=[item("d", owned_by("p"), owned_by("o"))])
    assert planned("secrets", "d", seen) == [Update("secrets", item("d", owned_by("o")))]


@pytest.mark.parametrize(("finalizer", "propagation"), [(FOREGROUND, "Foreground"), (ORPHAN, "Orphan")])
def test_a_finalizer_of_a_dependent_determines_the_propagation(finalizer: str, propagation: str) -> None:
    seen = views(secrets=[item("d", owned_by("o"), finalizers=(finalizer, "example.com/f"))])
    assert planned("secrets", "d", seen) == delete("d", propagation)


# -- foreground ----------------------------------------------------------------------------------------------------------


def test_a_foreground_deletion_deletes_dependents() -> None:
    seen = views(configmaps=[waiting("o")], secrets=[item("d", owned_by("o", block=True))])
    assert planned("secrets", "d", seen) == delete("d")
    assert planned("configmaps", "o", seen) == []


def test_dependents_with_dependents_are_deleted_in_the_foreground() -> None:
    seen = views(
        configmaps=[waiting("o")],
        secrets=[item("d", owned_by("o", block=True)), item("e", owned_by("d", "Secret"))],
    )
    assert planned("secrets", "d", seen) == delete("d", "Foreground")


@pytest.mark.parametrize(
    "dependents",
    [
        pytest.param([], id="nothing depends on it"),
        pytest.param([item("d", owned_by("o"))], id="no dependent blocks it"),
        pytest.param([item("d", owned_by("o", block=True, uid="another"))], id="a dependent blocks its namesake"),
        pytest.param([item("d", owned_by("o", block=True), namespace="b")], id="one of another namespace names it"),
        pytest.param([item("d", owned_by("x", block=True, uid="uid-of-o"))], id="a dependent names its uid alone"),
        pytest.param([item("d", owned_by("o", "Secret", block=True))], id="a dependent names another kind"),
    ],
)
def test_the_foreground_finalizer_is_removed_when(dependents: list[Obj]) -> None:
    owner = item("o", deleted=True, finalizers=("example.com/f", FOREGROUND))
    seen = views(configmaps=[owner], secrets=dependents)
    left = item("o", deleted=True, finalizers=("example.com/f",))
    assert planned("configmaps", "o", seen) == [Update("configmaps", left)]


def test_the_last_finalizer_leaves_no_empty_list() -> None:
    assert planned("configmaps", "o", views(configmaps=[waiting("o")])) == [
        Update("configmaps", item("o", deleted=True))
    ]


def test_an_object_that_owns_itself_does_not_wait() -> None:
    own = owned_by("o", block=True)
    seen = views(configmaps=[waiting("o", own)])
    assert planned("configmaps", "o", seen) == [Update("configmaps", item("o", own, deleted=True))]


def test_a_circle_of_owners_stops_blocking_and_is_deleted() -> None:
    first, second = waiting("o", owned_by("d", "Secret", block=True)), item("d", owned_by("o", block=True))
    freed = item("d", {**owned_by("o"), "blockOwnerDeletion": False})
    assert planned("secrets", "d", views(configmaps=[first], secrets=[second])) == [Update("secrets", freed)]
    after = views(configmaps=[first], secrets=[freed])
    assert planned("secrets", "d", after) == delete("d", "Foreground")
    assert planned("configmaps", "o", after) == [
        Update("configmaps", item("o", owned_by("d", "Secret", block=True), deleted=True))
    ]


# -- orphan --------------------------------------------------------------------------------------------------------------


def test_orphan_removes_the_references_before_the_finalizer() -> None:
    owner = item("o", deleted=True, finalizers=(ORPHAN,))
    seen = views(
        configmaps=[owner, item("p")],
        secrets=[item("d", owned_by("o")), item("e", owned_by("p"), owned_by("o")), item("f", owned_by("p"))],
    )
    assert planned("configmaps", "o", seen) == [
        Update("secrets", item("d")),
        Update("secrets", item("e", owned_by("p"))),
        Update("configmaps", item("o", deleted=True)),
    ]


def test_orphan_leaves_an_object_of_another_namespace_alone() -> None:
    owner = item("o", deleted=True, finalizers=(ORPHAN,))
    seen = views(configmaps=[owner], secrets=[item("d", owned_by("o"), namespace="b")])
    assert planned("configmaps", "o", seen) == [Update("configmaps", item("o", deleted=True))]


# -- keys of events ------------------------------------------------------------------------------------------------------


def keys(seen: Views, plural: str, obj: Obj, deleted: bool = False) -> set[Key]:
    """Return the keys that one event enqueues, after the index received every object."""
    collector = GarbageCollector()
    enqueued(collector, seen)
    return set(collector.keys(plural, obj, deleted, seen))


def test_an_unowned_object_enqueues_nothing() -> None:
    assert keys(views(), "secrets", item("x")) == set()


def test_a_change_of_an_owned_object_enqueues_it_and_its_deletion_does_not() -> None:
    seen = views(configmaps=[OWNER], secrets=[item("d", owned_by("o"))])
    assert keys(seen, "secrets", item("d", owned_by("o"))) == {("a", "secrets/d")}
    assert keys(seen, "secrets", item("d", owned_by("o")), deleted=True) == set()


def test_a_deletion_of_an_owner_enqueues_its_dependents() -> None:
    seen = views(secrets=[item("d", owned_by("o")), item("x", owned_by("p"))])
    assert keys(seen, "configmaps", OWNER, deleted=True) == {("a", "secrets/d")}
    assert keys(seen, "configmaps", waiting("o")) == {("a", "secrets/d"), ("a", "configmaps/o")}
    assert keys(seen, "configmaps", OWNER) == set()


def test_an_orphan_deletion_enqueues_only_the_owner() -> None:
    seen = views(secrets=[item("d", owned_by("o"))])
    owner = item("o", deleted=True, finalizers=(ORPHAN,))
    assert keys(seen, "configmaps", owner) == {("a", "configmaps/o")}


@pytest.mark.parametrize(
    ("after", "deleted"),
    [
        pytest.param(item("d", owned_by("o", block=True)), True, id="goes"),
        pytest.param(item("d"), False, id="gives up its owner"),
        pytest.param(item("d", owned_by("o")), False, id="stops blocking"),
    ],
)
def test_an_owner_in_foreground_deletion_is_planned_when_its_dependent(after: Obj, deleted: bool) -> None:
    seen = views(configmaps=[waiting("o")], secrets=[item("d", owned_by("o", block=True))])
    assert ("a", "configmaps/o") in keys(seen, "secrets", after, deleted)


def test_an_owner_of_unknown_kind_enqueues_nothing() -> None:
    dependent = item("d", owned_by("w", "Widget", "example.com/v1"))
    assert keys(views(secrets=[dependent]), "secrets", dependent, deleted=True) == set()


def test_a_deleted_object_needs_no_action() -> None:
    assert planned("secrets", "d", views()) == []


# -- the index -----------------------------------------------------------------------------------------------------------


def test_the_index_drops_places_of_missing_objects() -> None:
    index = OwnerIndex()
    index.put(("secrets", "a", "d"), [owned_by("o")])
    assert list(index.dependents("uid-of-o", views())) == []
    assert index.keys("uid-of-o") == ()


def test_the_index_returns_only_dependents_that_the_view_confirms() -> None:
    index = OwnerIndex()
    index.put(("secrets", "a", "d"), [owned_by("o")])
    changed = item("d", owned_by("p"))
    assert list(index.dependents("uid-of-o", views(secrets=[changed]))) == []
    assert references(changed) == [owned_by("p")]


def test_the_index_keeps_other_dependents_of_the_same_owner() -> None:
    index = OwnerIndex()
    for name in ("d", "e"):
        index.put(("secrets", "a", name), [owned_by("o"), owned_by("o")])
    assert index.put(("secrets", "a", "d"), []) == [owned_by("o"), owned_by("o")]
    assert index.keys("uid-of-o") == (("secrets", "a", "e"),)
    assert index.put(("secrets", "a", "d"), []) == []
