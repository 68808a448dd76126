"""Laws of the garbage collector over random owners: a small cluster without I/O applies its plans until it is at rest.

Rules kept here: deleting and updating follow mooring.registry.write.deletion, as the registry does; keys are planned in an order
that hypothesis chooses, because a real loop works on many side by side.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from hypothesis import example, given
from hypothesis import strategies as st

from mooring.api.kinds import BY_PLURAL
from mooring.api.view import AllReadable, FixedView, View, Views
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, Delete, Key, Update
from mooring.controllers.garbagecollector import GarbageCollector, OwnerIndex, references
from mooring.registry.write import deletion
from tests.support.plans import NOW, entropy, thing, with_metadata

PLURAL = "configmaps"
KIND = BY_PLURAL[PLURAL]
MOST_STEPS = 5000
"""Plans after which the test fails, because the collector does not terminate."""

Owners = list[tuple[int, bool]]
"""Owners of one object: (number, blockOwnerDeletion)."""


class LiveView(AllReadable):
    """View of the current objects."""

    def __init__(self) -> None:
        self.objects: dict[str, Obj] = {}
        self.revision = 0

    def get(self, name: str, namespace: str = "") -> Obj | None:
        return self.objects.get(name)

    def list(self, namespace: str = "") -> Iterable[Obj]:
        return list(self.objects.values())

    def changed(self, since: int) -> Iterable[tuple[str, str]] | None:
        return () if since == self.revision else None


class Cluster:
    """ConfigMaps, one collector, and the queued keys."""

    def __init__(self, graph: list[Owners], order: Random) -> None:
        self.view = LiveView()
        self.views: Views = {plural: FixedView() for plural in BY_PLURAL} | {PLURAL: self._viewed()}
        self.collector = GarbageCollector()
        self.waiting: list[Key] = []
        self.order = order
        for number, owners in enumerate(graph):
            refs = [
                {"apiVersion": "v1", "kind": "ConfigMap", "name": f"n{owner}", "uid": f"uid-of-n{owner}"}
                | ({"blockOwnerDeletion": True} if block else {})
                for owner, block in owners
            ]
            self.store(thing(f"n{number}", "a", metadata={"ownerReferences": refs} if refs else {}))

    def _viewed(self) -> View:
        return self.view

    def store(self, obj: Obj) -> None:
        self.view.revision += 1
        name = obj["metadata"]["name"]
        if deletion.is_finished(KIND, obj):
            self.remove(name)
            return
        stored = with_metadata(obj, resourceVersion=str(self.view.revision))
        self.view.objects[name] = stored
        self.waiting += self.collector.keys(PLURAL, stored, False, self.views)

    def remove(self, name: str) -> None:
        gone = self.view.objects.pop(name)
        self.waiting += self.collector.keys(PLURAL, gone, True, self.views)

    def delete(self, name: str, propagation: str) -> None:
        obj = self.view.objects[name]
        marked = deletion.mark_deleted(KIND, obj, propagation, NOW)
        if not deletion.is_held(KIND, marked):
            self.remove(name)
        elif marked != obj:
            self.store(marked)

    def apply(self, action: Action) -> bool:
        """Apply one action; return false when its precondition failed."""
        if isinstance(action, Delete):
            obj = self.view.objects.get(action.name)
            if obj is not None and obj["metadata"]["resourceVersion"] == action.resource_version:
                self.delete(action.name, action.propagation)
            return True
        assert isinstance(action, Update)
        metadata = action.obj["metadata"]
        found = self.view.objects.get(metadata["name"])
        if found is None:
            return True
        if found["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
            return False
        if action.obj != found:
            self.store(action.obj)
        return True

    def rest(self) -> None:
        """Plan and apply until nothing waits."""
        for _ in range(MOST_STEPS):
            if not self.waiting:
                return
            key = self.waiting.pop(self.order.randrange(len(self.waiting)))
            for action in self.collector.plan(key, self.views, NOW, entropy):
                if not self.apply(action):
                    self.waiting.append(key)
                    break
        raise AssertionError("the collector does not come to rest")

    @property
    def left(self) -> set[int]:
        return {int(name[1:]) for name in self.view.objects}


def graphs(circles: bool) -> st.SearchStrategy[list[Owners]]:
    """Up to eight objects; without circles, an object is owned only by those before it."""

    def owners(number: int, count: int) -> st.SearchStrategy[Owners]:
        last = count - 1 if circles else number - 1
        if last < 0:
            return st.just([])
        one = st.tuples(st.integers(0, last), st.booleans())
        return st.lists(one, max_size=3, unique_by=lambda owner: owner[0])

    return st.integers(1, 8).flatmap(
        lambda count: st.tuples(*(owners(number, count) for number in range(count))).map(list)
    )


RANDOM = st.integers(0, 2**32).map(Random)


@given(graphs(circles=False), st.sampled_from(["", "Background", "Foreground"]), st.data(), RANDOM)
def test_exactly_the_objects_without_owners_or_with_a_present_owner_stay(
    graph: list[Owners], propagation: str, data: st.DataObject, order: Random
) -> None:
    cluster = Cluster(graph, order)
    cluster.rest()
    assert cluster.left == set(range(len(graph))), "nothing goes while every owner stands"
    victims = data.draw(st.sets(st.integers(0, len(graph) - 1), min_size=1))
    for victim in victims:
        cluster.delete(f"n{victim}", propagation)
    cluster.rest()
    stay: set[int] = set()
    for number, owners in enumerate(graph):
        if number not in victims and (not owners or any(owner in stay for owner, _ in owners)):
            stay.add(number)
    assert cluster.left == stay
    for obj in cluster.view.list():
        assert all(int(reference["name"][1:]) in stay for reference in references(obj)), "no reference to what is gone"


@given(graphs(circles=True), st.sampled_from(["Background", "Foreground"]), st.integers(0, 7), RANDOM)
@example([[(1, True)], [(0, True)]], "Foreground", 0, Random(0))
@example([[(2, True)], [(0, True)], [(1, True)]], "Foreground", 0, Random(0))
@example([[(2, True)], [(0, True)], [(1, True)]], "Foreground", 0, Random(1))
@example([[(0, True)]], "Foreground", 0, Random(0))
def test_circles_of_owners_terminate(graph: list[Owners], propagation: str, number: int, order: Random) -> None:
    cluster = Cluster(graph, order)
    cluster.rest()
    victim = number % len(graph)
    cluster.delete(f"n{victim}", propagation)
    cluster.rest()
    assert victim not in cluster.left
    assert not any(obj["metadata"].get("deletionTimestamp") for obj in cluster.view.list())


@given(graphs(circles=True), st.data(), RANDOM)
def test_orphan_deletes_one_object_and_every_reference_to_it(
    graph: list[Owners], data: st.DataObject, order: Random
) -> None:
    cluster = Cluster(graph, order)
    victim = data.draw(st.integers(0, len(graph) - 1))
    cluster.delete(f"n{victim}", "Orphan")
    cluster.rest()
    assert cluster.left == set(range(len(graph))) - {victim}
    assert not any(reference["name"] == f"n{victim}" for obj in cluster.view.list() for reference in references(obj))


@given(st.lists(st.tuples(st.integers(0, 4), st.lists(st.integers(0, 4), max_size=3))))
def test_the_index_equals_a_full_search(changes: list[tuple[int, list[int]]]) -> None:
    index, truth = OwnerIndex(), dict[int, list[int]]()
    for number, owners in changes:
        index.put((PLURAL, "a", f"n{number}"), [{"uid": str(owner)} for owner in owners])
        truth[number] = owners
    for owner in range(5):
        found = {key[2] for key in index.keys(str(owner))}
        assert found == {f"n{number}" for number, owners in truth.items() if owner in owners}
