"""Test what the client takes for an object of Kubernetes."""

from __future__ import annotations

from typing import Any

import pytest

from mooring.client.objectshape import is_list, is_object

NAMED = {"name": "x"}


@pytest.mark.parametrize(
    "obj",
    [
        None,
        5,
        [],
        {},
        {"metadata": None},
        {"metadata": {}},
        {"metadata": {"name": None}},
        {"metadata": {"name": ""}},
        {"metadata": {"name": 5}},
        {"metadata": NAMED | {"creationTimestamp": 5}},
        {"metadata": NAMED | {"creationTimestamp": "soon"}},
        {"metadata": NAMED | {"deletionTimestamp": ""}},
        {"metadata": NAMED | {"labels": []}},
        {"metadata": NAMED | {"labels": {"a": 5}}},
        {"metadata": NAMED | {"annotations": {"a": {}}}},
        {"metadata": NAMED | {"finalizers": [None]}},
        {"metadata": NAMED | {"ownerReferences": ["x"]}},
        {"metadata": NAMED, "kind": 5},
        {"metadata": NAMED, "spec": []},
        {"metadata": NAMED, "status": "x"},
        {"metadata": NAMED, "status": {"conditions": 5}},
        {"metadata": NAMED, "status": {"conditions": [None]}},
        {"metadata": NAMED, "status": {"conditions": [{"type": []}]}},
        {"metadata": NAMED, "status": {"conditions": [{"type": "Ready", "status": True}]}},
        {"metadata": NAMED, "status": {"conditions": [{"type": "Ready"}, {"type": "Denied", "message": 5}]}},
        {"metadata": NAMED, "data": 5},
    ],
    ids=str,
)
def test_no_object(obj: Any) -> None:
    assert not is_object(obj)
    assert not is_list({"items": [obj]})


def test_null_is_the_same_as_absent() -> None:
    metadata = {"name": "x", "creationTimestamp": None, "labels": None, "ownerReferences": None}
    obj = {"metadata": metadata, "spec": None, "status": {"conditions": None}, "data": None}
    assert is_object(obj)
    assert obj == {"metadata": {"name": "x"}, "status": {}}
    condition = {"type": "Ready", "reason": None}
    assert is_object({"metadata": {"name": "x"}, "status": {"conditions": [condition]}})
    assert condition == {"type": "Ready"}


@pytest.mark.parametrize(
    ("page", "is_one"),
    [
        ({"items": None}, True),
        ({"items": [], "metadata": None}, True),
        ({"items": [{"metadata": {"name": "x", "labels": {"a": "b"}}}], "metadata": {"continue": None}}, True),
        ({}, False),
        ({"items": {}}, False),
        ({"items": [], "metadata": []}, False),
        ({"items": [], "metadata": {"continue": 5}}, False),
        ({"items": [], "metadata": {"resourceVersion": 5}}, False),
    ],
    ids=str,
)
def test_a_list(page: dict[str, Any], *, is_one: bool) -> None:
    assert is_list(page) == is_one
