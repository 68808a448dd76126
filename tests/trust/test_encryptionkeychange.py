"""Change of the keys of an EncryptionConfiguration: each step, and which servers are behind."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mooring.clock import rfc3339_micro
from mooring.errors import ConfigError
from mooring.trust.encryption import keychange
from mooring.trust.encryption.configuration import parse
from tests.support.encryption import IDENTITY, entry, file, kms, local

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
DOCUMENT = json.loads(
    file(
        entry("secrets", local("aescbc", "a"), local("secretbox", "old"), IDENTITY),
        entry("configmaps", local("secretbox", "b")),
        entry("leases", kms("unix:///run/kms.sock")),
        entry("events", IDENTITY),
    )
)


def names(document: Any) -> list[list[str]]:
    return [
        [key["name"] for key in provider[kind]["keys"]]
        for one in document["resources"]
        for provider in one["providers"]
        for kind in ("aescbc", "secretbox")
        if kind in provider
    ]


def test_a_key_is_added_promoted_and_left_alone() -> None:
    before = json.dumps(DOCUMENT)
    name = keychange.key_name(NOW)
    assert name == "key-20260102030405"
    added = keychange.added(DOCUMENT, name, bytes)
    assert names(added) == [["a", name], ["old"], ["b", name]]
    assert keychange.added(added, name, bytes) == added
    assert keychange.names_first(added) == ("a", "b")
    assert keychange.reduced(added, name) == added, "a key that does not write yet removes no other"
    promoted = keychange.promoted(added, name)
    assert names(promoted) == [[name, "a"], ["old"], [name, "b"]]
    assert keychange.names_first(promoted) == (name, name)
    assert keychange.promoted(promoted, name) == promoted
    reduced = keychange.reduced(promoted, name)
    assert names(reduced) == [[name], ["old"], [name]]
    for one in (added, promoted, reduced):
        parse(json.dumps(one).encode(), "f")
    assert json.dumps(DOCUMENT) == before


def test_a_file_without_keys_of_its_own_gets_none() -> None:
    with pytest.raises(ConfigError, match="replaced in its key service"):
        keychange.added(json.loads(file(entry("secrets", kms("unix:///run/kms.sock")))), "new", bytes)


def lease(holder: str, age: int, config_hash: str, reloads: str = "true") -> Any:
    notes = {keychange.HASH_ANNOTATION: config_hash, keychange.RELOAD_ANNOTATION: reloads}
    renewed = rfc3339_micro(NOW - timedelta(seconds=age))
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 90, "renewTime": renewed}
    return {"metadata": {"name": "lease", "annotations": notes}, "spec": spec}


def test_servers_that_ended_are_not_waited_for() -> None:
    ended = ({"metadata": {"name": "x"}}, lease("a", 91, "h"), lease("b", 90, "h"))
    assert [one["spec"]["holderIdentity"] for one in keychange.live_servers(ended, NOW)] == ["b"]


def test_leases_of_servers_that_ended_long_ago_or_are_known_to_have_ended_are_abandoned() -> None:
    labelled = {"metadata": {"name": "x", "labels": {keychange.SERVER_LABEL: "server"}}}
    others = (
        lease("a", 10_000, "h"),
        lease("b", 600, "h") | labelled,
        lease("c", 691, "h") | labelled,
        lease("gone", 1, "h") | labelled,
        lease("gone", 1, "h"),
        labelled,
    )
    found = keychange.abandoned(others[:-1], NOW, "gone".__eq__)
    assert [one["spec"]["holderIdentity"] for one in found] == ["c", "gone"]
    assert keychange.abandoned(others[-1:], NOW, lambda holder: holder != "") == (labelled,), "without a time"


def test_servers_with_another_file_are_behind() -> None:
    leases = (lease("c", 0, "old", "false"), lease("a", 0, "new"), lease("b", 0, "old"), {"metadata": {"name": "x"}})
    assert keychange.servers_behind(leases, "new") == (
        "b",
        "c (it does not reload the file: restart it)",
        "x (it does not reload the file: restart it)",
    )
