"""The three-way merge of ConfigMaps that administrators may edit."""

from __future__ import annotations

import json

import pytest

from mooring.apimachinery.schema import Obj
from mooring.controlplane.publishing.configmaps import merged
from mooring.trust.discovery.editedclusterinfo import LAST_KEPT, LAST_WRITTEN


def wanted(**data: str) -> Obj:
    return {"kind": "ConfigMap", "metadata": {"name": "info", "namespace": "kube-public"}, "data": data}


def stored(written: dict[str, str], **now: str) -> Obj:
    """A ConfigMap that a server wrote as `written`, and that holds `now`."""
    first = merged(None, wanted(**written)).obj
    assert first is not None
    return {**first, "data": now}


@pytest.mark.parametrize(
    ("written", "now", "ours", "after", "edited"),
    [
        pytest.param({"a": "1"}, {"a": "1"}, {"a": "1"}, None, (), id="nothing changed"),
        pytest.param({"a": "1"}, {"a": "1"}, {"a": "2"}, {"a": "2"}, (), id="only the server's changed"),
        pytest.param({"a": "1"}, {"a": "x"}, {"a": "1"}, None, ("a",), id="only the administrator's changed"),
        pytest.param({"a": "1"}, {"a": "x"}, {"a": "2"}, None, ("a",), id="both changed"),
        pytest.param({"a": "1"}, {"a": "2"}, {"a": "2"}, {"a": "2"}, (), id="both changed to the same"),
        pytest.param({"a": "1"}, {}, {"a": "2"}, None, ("a",), id="the administrator removed it"),
        pytest.param({"a": "1"}, {"a": "1"}, {"a": "1", "b": "2"}, {"a": "1", "b": "2"}, (), id="the server adds a key"),
        pytest.param({"a": "1", "b": "2"}, {"a": "1", "b": "2"}, {"a": "1"}, {"a": "1"}, (), id="it wants one no more"),
        pytest.param(
            {"a": "1", "b": "2"}, {"a": "1", "b": "x"}, {"a": "1"}, {"a": "1", "b": "x"}, (),
            id="it wants one no more that was edited",
        ),
        pytest.param({"a": "1"}, {"a": "1", "jws": "s"}, {"a": "2"}, {"a": "2", "jws": "s"}, (), id="keys of others stay"),
        pytest.param({}, {"a": "x"}, {"a": "1"}, None, ("a",), id="never written by a server"),
    ],
)  # fmt: skip
def test_each_key_is_merged_by_itself(
    written: dict[str, str], now: dict[str, str], ours: dict[str, str], after: dict[str, str] | None,
    edited: tuple[str, ...],
) -> None:  # fmt: skip
    found = merged(stored(written, **now), wanted(**ours))
    assert found.edited == edited
    assert (found.obj["data"] if found.obj else None) == after
    if found.obj:
        again = merged(found.obj, wanted(**ours))
        assert (again.obj, again.edited) == (None, edited)


@pytest.mark.parametrize("annotation", ["not JSON", "[]", '{"a": 1}'])
def test_an_annotation_that_no_server_wrote_counts_for_nothing(annotation: str) -> None:
    existing = stored({"a": "1"}, a="1")
    existing["metadata"] = {**existing["metadata"], "annotations": {LAST_WRITTEN: annotation, "note": "kept"}}
    assert merged(existing, wanted(a="2")).edited == ("a",)
    adopted = merged(existing, wanted(a="1")).obj
    assert adopted is not None
    assert adopted["metadata"]["annotations"]["note"] == "kept"
    assert set(json.loads(adopted["metadata"]["annotations"][LAST_WRITTEN])) == {"a"}


def test_what_follows_in_an_edited_value_is_changed_and_the_edit_is_new_once() -> None:
    follow = {"a": lambda value: value.replace("old", "new")}
    existing = stored({"a": "old", "b": "1"}, a="old # mine", b="x")
    found = merged(existing, wanted(a="new", b="2"), follow=follow)
    assert (found.edited, found.new) == (("a", "b"), ("a",))
    assert found.obj is not None
    assert found.obj["data"] == {"a": "new # mine", "b": "x"}
    assert set(json.loads(found.obj["metadata"]["annotations"][LAST_KEPT])) == {"a"}
    again = merged(found.obj, wanted(a="new", b="2"), follow=follow)
    assert (again.obj, again.edited, again.new) == (None, ("a", "b"), ())
    for text in ("new # other", None):
        changed = {**found.obj, "data": {"b": "x"} if text is None else {"a": text, "b": "x"}}
        assert merged(changed, wanted(a="new", b="2"), follow=follow).new == ("a",)


def test_a_value_that_equals_the_servers_once_it_follows_is_not_edited_any_more() -> None:
    existing = stored({"a": "old"}, a="older")
    found = merged(existing, wanted(a="new"), follow={"a": lambda value: "new"})
    assert (found.edited, found.new) == ((), ())
    assert found.obj is not None
    assert LAST_KEPT not in found.obj["metadata"]["annotations"]
    assert merged(found.obj, wanted(a="newest")).obj is not None
