"""Entries added to a kubeconfig and removed; everything else stays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mooring.secret import Secret
from mooring.trust.kubeconfig import Cluster, Kubeconfig, KubeconfigContext, KubeconfigError, KubeconfigUser
from mooring.trust.kubeconfigtext import add_entries, load, parse_kubeconfig, remove_entries, set_fields

NEW = Kubeconfig(
    (Cluster("new", "https://new.example"),),
    (KubeconfigUser("new", token=Secret("t")),),
    (KubeconfigContext("new", "new", "new"),),
    "new",
)
OLD = b"""
kind: Config
apiVersion: v1
current-context: a
later: {kept: [1, 2026-01-01, null]}
clusters: [{name: a, cluster: {server: https://a.example, unknown: 1}}, {name: b, cluster: {server: https://b.example}}]
contexts: [{name: a, context: {cluster: a, user: a}}]
users: [{name: a, user: {token: kept, unknown: {x: 1}}}]
"""


def loaded(text: str | bytes) -> Any:
    return load(text)


def named(top: Any) -> dict[str, list[str]]:
    return {key: [entry["name"] for entry in top[key] or ()] for key in ("clusters", "contexts", "users")}


def test_new_entries_are_put_last_and_nothing_else_changes() -> None:
    before, after = loaded(OLD), loaded(add_entries(OLD, replace(NEW, current_context="")))
    assert named(after) == {"clusters": ["a", "b", "new"], "contexts": ["a", "new"], "users": ["a", "new"]}
    assert after["current-context"] == "a"
    assert after["later"] == before["later"]
    for key in ("clusters", "contexts", "users"):
        assert after[key][: len(before[key])] == before[key]


def test_its_context_becomes_the_current_one() -> None:
    assert loaded(add_entries(OLD, NEW))["current-context"] == "new"


@pytest.mark.parametrize(
    ("kind", "name", "fields", "entry"),
    [
        pytest.param("clusters", "a", {"server": "https://c"}, {"server": "https://c", "unknown": 1}, id="a field"),
        pytest.param(
            "clusters", "a", {"unknown": None, "other": None}, {"server": "https://a.example"}, id="fields to remove"
        ),
        pytest.param(
            "users",
            "a",
            {"unknown": {"x": 2, "y": 3}},
            {"token": "kept", "unknown": {"x": 2, "y": 3}},
            id="an object in it",
        ),
        pytest.param(
            "users",
            "a",
            {"exec": {"args": ["b"]}},
            {"token": "kept", "unknown": {"x": 1}, "exec": {"args": ["b"]}},
            id="a new object",
        ),
    ],
)
def test_fields_are_set_in_their_entry_and_nothing_else_changes(kind: str, name: str, fields: Any, entry: Any) -> None:
    before, after = loaded(OLD), loaded(set_fields(OLD, kind, name, fields))
    (changed,) = [one for one in after[kind] if one["name"] == name]
    assert changed == {"name": name, kind.removesuffix("s"): entry}
    changed[kind.removesuffix("s")] = next(one for one in before[kind] if one["name"] == name)[kind.removesuffix("s")]
    assert after == before


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"kind: Config\nusers: null\n"], ids=["nothing", "an object", "empty lists"]
)
def test_an_empty_kubeconfig_becomes_what_is_put_in(text: bytes) -> None:
    assert parse_kubeconfig(add_entries(text, NEW)) == NEW


ALL = {"clusters": ["new"], "contexts": ["new"], "users": ["new"]}


@pytest.mark.parametrize("text", [b"kind: Pod", b"[1]", b"users: {}", b"a: &x 1", b"{"])
def test_what_is_no_kubeconfig_is_refused(text: bytes) -> None:
    with pytest.raises(KubeconfigError):
        add_entries(text, NEW)
    with pytest.raises(KubeconfigError):
        remove_entries(text, ALL)
    with pytest.raises(KubeconfigError):
        set_fields(text, "users", "new", {})


def test_what_was_put_in_can_be_taken_out() -> None:
    kept = add_entries(OLD, replace(NEW, current_context=""))
    assert loaded(remove_entries(kept.encode(), ALL)) == loaded(OLD)


def test_when_the_current_context_goes_there_is_none() -> None:
    after = loaded(remove_entries(add_entries(b"", NEW).encode(), ALL))
    assert (named(after), after["current-context"]) == ({"clusters": [], "contexts": [], "users": []}, "")


def test_a_current_context_of_another_file_stays() -> None:
    assert loaded(remove_entries(b"current-context: elsewhere\nusers: []\n", ALL))["current-context"] == "elsewhere"


def test_names_that_are_not_there_are_no_error() -> None:
    assert loaded(remove_entries(OLD, ALL)) == loaded(OLD)
