"""`FixedView`, the view of given objects, and `ViewFollower`, which returns the changes of a view."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from mooring.api.view import AllReadable, FixedView, NamespacedName, View, ViewFollower, guarded, readable
from mooring.errors import UnreadableObjectError

OBJECTS = [
    {"metadata": {"name": "b", "namespace": "ns"}},
    {"metadata": {"name": "a", "namespace": "ns"}},
    {"metadata": {"name": "z", "namespace": "an"}},
    {"metadata": {"name": "n1"}},
]


def names(view: FixedView, namespace: str = "") -> list[str]:
    return [obj["metadata"]["name"] for obj in view.list(namespace)]


def test_objects_are_found_by_name_and_namespace() -> None:
    view = FixedView(OBJECTS)
    assert view.get("a", "ns") is OBJECTS[1]
    assert view.get("n1") is OBJECTS[3]
    assert view.get("a") is None


def test_objects_are_listed_in_key_order() -> None:
    view = FixedView(OBJECTS)
    assert names(view) == ["n1", "z", "a", "b"]
    assert names(view, "ns") == ["a", "b"]


def test_a_view_has_a_revision() -> None:
    assert FixedView().revision == 1
    assert FixedView(revision=7).revision == 7


def test_given_objects_never_change() -> None:
    view = FixedView(OBJECTS)
    assert view.changed(view.revision) == ()
    assert view.changed(view.revision - 1) is None


class HistoryView(FixedView):
    """View whose objects and changes the test sets."""

    history: Iterable[NamespacedName] | None = ()

    def change(self, revision: int, history: Iterable[NamespacedName] | None) -> None:
        self._revision, self.history = revision, history

    def changed(self, since: int) -> Iterable[NamespacedName] | None:
        return self.history


def followed(follower: ViewFollower, view: View) -> tuple[bool, list[NamespacedName]] | None:
    changes = follower.changes(view)
    return None if changes is None else (changes[0], [key for key, _ in changes[1]])


ALL = [("", "n1"), ("an", "z"), ("ns", "a"), ("ns", "b")]


def test_a_follower_returns_all_objects_first_and_then_changes() -> None:
    follower, view = ViewFollower(), HistoryView(OBJECTS)
    assert followed(follower, view) == (True, ALL)
    assert followed(follower, view) is None, "the revision is unchanged"
    view.change(2, [("ns", "a"), ("ns", "gone")])
    changes = follower.changes(view)
    assert changes is not None
    assert (changes[0], list(changes[1])) == (False, [(("ns", "a"), OBJECTS[1]), (("ns", "gone"), None)])


def test_a_follower_starts_over_without_history_and_with_another_view() -> None:
    follower, view = ViewFollower(), HistoryView(OBJECTS)
    follower.changes(view)
    view.change(2, None)
    assert followed(follower, view) == (True, ALL)
    assert followed(follower, FixedView(OBJECTS[:1], revision=2)) == (True, [("ns", "b")])


def test_a_follower_of_guarded_views_goes_on_with_the_view_beneath() -> None:
    follower, view = ViewFollower(), HistoryView(OBJECTS)
    assert followed(follower, guarded({"things": view})["things"]) == (True, ALL)
    assert followed(follower, guarded({"things": view})["things"]) is None, "each plan has guarded views of its own"
    lost = FixedView(OBJECTS, 1, LOST)
    assert follower.changes(lost) is not None
    for _ in range(2):
        with pytest.raises(UnreadableObjectError):
            follower.changes(guarded({"things": lost})["things"])


LOST = {("ns", "lost"): "damaged", ("an", "gone"): "damaged", ("", "n2"): "damaged"}


def test_an_object_that_cannot_be_read_is_absent_with_its_problem() -> None:
    view = FixedView(OBJECTS, unreadable=LOST)
    assert view.get("lost", "ns") is None
    assert (view.problem("lost", "ns"), view.problem("a", "ns"), view.problem("none")) == ("damaged", "", "")
    assert list(view.unreadable("ns")) == [("ns", "lost")]
    assert set(view.unreadable()) == set(LOST)


def test_a_guarded_view_raises_for_what_a_plan_needs_and_cannot_read() -> None:
    view = guarded({"things": FixedView(OBJECTS, 3, LOST)})["things"]
    assert view.get("a", "ns") == OBJECTS[1]
    assert view.get("none", "ns") is None
    with pytest.raises(UnreadableObjectError, match="things ns/lost cannot be read: damaged"):
        view.get("lost", "ns")
    with pytest.raises(UnreadableObjectError, match="things n2 cannot be read: damaged"):
        view.get("n2")
    with pytest.raises(UnreadableObjectError):
        view.list()
    assert list(view.list("other")) == []
    assert (view.revision, view.changed(3), view.changed(2)) == (3, (), None)
    assert (view.problem("n2"), set(view.unreadable())) == ("damaged", set(LOST))
    assert len(list(readable(view).list())) == len(OBJECTS)
    assert readable(readable(view)) is readable(view)


def test_a_view_without_objects_that_cannot_be_read() -> None:
    assert (AllReadable().problem("a"), AllReadable().unreadable()) == ("", {})
