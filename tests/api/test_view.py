"""`FixedView`, the view of given objects."""

from __future__ import annotations

from mooring.api.view import FixedView

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
