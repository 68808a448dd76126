"""Entries added to a kubeconfig and removed; everything else stays."""

from __future__ import annotations

from typing import Any

import pytest

from mooring.secret import Secret
from mooring.trust.kubeconfig.edit import add_entries, remove_entries
from mooring.trust.kubeconfig.model import (
    Cluster,
    Kubeconfig,
    KubeconfigContext,
    KubeconfigError,
    KubeconfigUser,
    user_kubeconfig,
)
from mooring.trust.kubeconfig.text import load, parse_kubeconfig

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
    before, after = loaded(OLD), loaded(add_entries(OLD, NEW, use=False))
    assert named(after) == {"clusters": ["a", "b", "new"], "contexts": ["a", "new"], "users": ["a", "new"]}
    assert after["current-context"] == "a"
    assert after["later"] == before["later"]
    for key in ("clusters", "contexts", "users"):
        assert after[key][: len(before[key])] == before[key]


def test_its_context_becomes_the_current_one_when_that_is_wanted() -> None:
    assert loaded(add_entries(OLD, NEW, use=True))["current-context"] == "new"


def test_entries_of_the_same_name_are_replaced_in_their_place() -> None:
    once = add_entries(OLD, NEW, use=True)
    other = user_kubeconfig("https://other.example", b"", KubeconfigUser("a", token=Secret("other")), "a")
    after = loaded(add_entries(once.encode(), other, use=False))
    assert named(after)["clusters"] == ["a", "b", "new"]
    assert after["users"][0] == {"name": "a", "user": {"token": "other"}}
    assert add_entries(once.encode(), NEW, use=True) == once


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"kind: Config\nusers: null\n"], ids=["nothing", "an object", "empty lists"]
)
def test_an_empty_kubeconfig_becomes_what_is_put_in(text: bytes) -> None:
    assert parse_kubeconfig(add_entries(text, NEW, use=False)) == NEW


@pytest.mark.parametrize("text", [b"kind: Pod", b"[1]", b"users: {}", b"a: &x 1", b"{"])
def test_what_is_no_kubeconfig_is_refused(text: bytes) -> None:
    with pytest.raises(KubeconfigError):
        add_entries(text, NEW, use=True)
    with pytest.raises(KubeconfigError):
        remove_entries(text, ["new"])


def test_what_was_put_in_can_be_taken_out() -> None:
    assert loaded(remove_entries(add_entries(OLD, NEW, use=False).encode(), ["new"])) == loaded(OLD)


def test_when_the_current_context_goes_there_is_none() -> None:
    after = loaded(remove_entries(add_entries(b"", NEW, use=True).encode(), ["new"]))
    assert (named(after), after["current-context"]) == ({"clusters": [], "contexts": [], "users": []}, "")


def test_a_cluster_that_somebody_else_uses_stays() -> None:
    text = add_entries(OLD, NEW, use=False).encode()
    shared = Kubeconfig(
        users=(KubeconfigUser("me"),), contexts=(KubeconfigContext("mine", "new", "me"),), current_context="mine"
    )
    after = loaded(remove_entries(add_entries(text, shared, use=True).encode(), ["new"]))
    assert named(after) == {"clusters": ["a", "b", "new"], "contexts": ["a", "mine"], "users": ["a", "me"]}


def test_a_context_that_says_nothing_is_kept() -> None:
    assert named(loaded(remove_entries(b"contexts: [{name: x}]\nusers: []\nclusters: []", ["new"])))["contexts"] == [
        "x"
    ]


def test_names_that_are_not_there_are_no_error() -> None:
    assert loaded(remove_entries(OLD, ["nobody"])) == loaded(OLD)
