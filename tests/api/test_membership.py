"""Membership of a node, from its NodeIdentity and its Node."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from mooring.api.mooring.membership import (
    has_ended,
    is_of_holder,
    may_use_name,
    was_deleted,
    was_made_before_change,
    with_node_recorded,
    with_spec,
)
from mooring.apimachinery.schema import Obj

EIGHT, NINE = "2026-01-01T08:00:00Z", "2026-01-01T09:00:00Z"
KEY, OTHER, CERTIFICATE = ("sha256:" + digit * 64 for digit in "abc")


def node(uid: str, deleted: str = "") -> Obj:
    metadata = {"name": "n1", "uid": uid}
    return {"metadata": {**metadata, "deletionTimestamp": deleted, "finalizers": ["a/b"]} if deleted else metadata}


def identity(**spec: object) -> Obj:
    return {"metadata": {"name": "n1", "resourceVersion": "7"}, "spec": spec}


@pytest.mark.parametrize(
    ("recorded", "present", "ended"),
    [
        pytest.param(None, None, False, id="a name that nobody had"),
        pytest.param(identity(), None, False, id="a machine that has not registered yet"),
        pytest.param(identity(), node("u1"), False, id="a member"),
        pytest.param(identity(nodeUID="u1"), node("u1"), False, id="a Node that is about to be deleted, or was not"),
        pytest.param(identity(nodeUID="u1"), None, True, id="a deleted Node"),
        pytest.param(identity(nodeUID="u1"), node("u2"), True, id="a Node that somebody created again"),
        pytest.param(identity(nodeUID="u1", reregisters=True), None, False, id="a machine that may return"),
        pytest.param(identity(nodeUID="u1"), node("u1", NINE), True, id="a deleted Node that finalizers hold"),
        pytest.param(identity(), node("u1", NINE), True, id="or one whose deletion was not recorded"),
        pytest.param(identity(changedAt=EIGHT), node("u1", NINE), True, id="also after an earlier change"),
        pytest.param(identity(changedAt=NINE), node("u1", NINE), False, id="somebody decided after the deletion"),
        pytest.param(identity(changedAt=NINE), node("u1", "junk"), True, id="a deletion at an unknown time"),
        pytest.param(identity(nodeUID="u1", reregisters=True), node("u1", NINE), False, id="held, but it may return"),
        pytest.param(None, node("u1", NINE), False, id="a deleted Node without an identity"),
    ],
)
def test_when_a_membership_has_ended(recorded: Obj | None, present: Obj | None, ended: bool) -> None:
    assert has_ended(recorded, present) is ended


@pytest.mark.parametrize(
    ("recorded", "certificate", "allowed"),
    [
        pytest.param(None, CERTIFICATE, True, id="without an identity any key"),
        pytest.param(identity(), CERTIFICATE, True, id="without a recorded key any key"),
        pytest.param(identity(keys=[{"publicKey": OTHER}, {"publicKey": KEY}]), CERTIFICATE, True, id="a recorded key"),
        pytest.param(identity(keys=[{"publicKey": OTHER}]), CERTIFICATE, False, id="no other key"),
        pytest.param(
            identity(keys=[{"publicKey": OTHER}], formerCertificate=CERTIFICATE),
            CERTIFICATE,
            True,
            id="the former certificate",
        ),
        pytest.param(identity(keys=[{"publicKey": OTHER}]), "", False, id="no certificate is no former certificate"),
    ],
)
def test_which_certificates_may_use_a_name(recorded: Obj | None, certificate: str, allowed: bool) -> None:
    assert may_use_name(recorded, KEY, certificate) is allowed


def test_a_machine_that_may_return_is_recorded_as_such() -> None:
    recorded = with_node_recorded(identity(nodeUID="u1"), node("u1"), reregisters=True)
    assert recorded == identity(nodeUID="u1", reregisters=True)
    assert was_deleted(recorded, None)
    assert with_node_recorded(recorded, node("u1"), reregisters=True) is None


@pytest.mark.parametrize(
    ("before", "spec"),
    [
        pytest.param(None, {"nodeUID": "u1"}, id="for a name without an identity"),
        pytest.param(identity(token="abcdef"), {"token": "abcdef", "nodeUID": "u1"}, id="in the identity"),
        pytest.param(identity(nodeUID="u0"), {"nodeUID": "u1"}, id="over an earlier one"),
        pytest.param(identity(nodeUID="u1"), None, id="once"),
    ],
)
def test_the_deletion_of_a_node_is_recorded(before: Obj | None, spec: Obj | None) -> None:
    recorded = with_node_recorded(before, node("u1"))
    assert (recorded and recorded["spec"]) == spec
    if recorded and before:
        assert recorded["metadata"] == before["metadata"], "the write is a compare-and-swap"


def test_a_deletion_says_when_the_name_changed_hands() -> None:
    moment = datetime(2026, 1, 1, 9, tzinfo=UTC)
    recorded = with_node_recorded(None, node("u1"), deleted_at=moment)
    assert recorded is not None
    assert recorded["spec"] == {"nodeUID": "u1", "changedAt": NINE}
    assert with_node_recorded(recorded, node("u1", NINE), deleted_at=moment) is None, (
        "the last finalizer changes nothing"
    )
    heir = identity(keys=[{"publicKey": KEY}], changedAt=NINE)
    assert with_node_recorded(heir, node("u1", EIGHT), deleted_at=moment) is None, "it does not end another membership"
    late = with_node_recorded(identity(), node("u1", EIGHT), deleted_at=moment)
    assert late == identity(nodeUID="u1", changedAt=NINE), "a deletion that another server began"


@pytest.mark.parametrize(
    ("made", "changed", "before"),
    [
        pytest.param(EIGHT, NINE, True, id="made before"),
        pytest.param(NINE, NINE, False, id="made then"),
        pytest.param(NINE, EIGHT, False, id="made after"),
        pytest.param("junk", EIGHT, True, id="made at an unknown time"),
        pytest.param(EIGHT, None, False, id="a name that never changed hands"),
    ],
)
def test_what_was_made_before_the_name_changed_hands(made: str, changed: str | None, before: bool) -> None:
    recorded = identity(changedAt=changed) if changed else identity()
    assert was_made_before_change({"metadata": {"creationTimestamp": made}}, recorded) is before
    assert not was_made_before_change({"metadata": {}}, None)
    assert not was_deleted(None, None)


@pytest.mark.parametrize(
    ("recorded_at", "spec", "counts"),
    [
        pytest.param(NINE, {"changedAt": NINE}, True, id="recorded with the change"),
        pytest.param(EIGHT, {"changedAt": NINE}, False, id="recorded before"),
        pytest.param("junk", {"changedAt": NINE}, False, id="recorded at an unknown time"),
        pytest.param(None, {"keys": [{"publicKey": KEY}]}, True, id="a key that has the name"),
        pytest.param(NINE, {"keys": []}, False, id="a key that has it no more"),
    ],
)
def test_whether_a_key_that_was_recorded_is_that_of_the_holder(
    recorded_at: str | None, spec: Obj, counts: bool
) -> None:
    assert is_of_holder(KEY, recorded_at, identity(**spec)) is counts
    assert not is_of_holder(KEY, recorded_at, None)


def test_empty_fields_are_left_out() -> None:
    assert with_spec(identity(token="abcdef", nodeUID="u1"), token="", keys=[])["spec"] == {"nodeUID": "u1"}
