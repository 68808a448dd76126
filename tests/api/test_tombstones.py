"""The gate of tombstones: what a store would bring back, what waits, and when nothing is issued."""

from __future__ import annotations

import base64
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any

import pytest

from mooring.api.mooring import tombstones
from mooring.api.mooring.tombstones import Tombstone
from mooring.api.view import FixedView, Views
from mooring.errors import ServiceUnavailableError
from mooring.trust.issuancelog import Checkpoint, new_record, record_name

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HEAD = Checkpoint(2, "sha256:" + "2" * 64)
TOKEN = {"metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system", "uid": "u1"}}
NODE = {"metadata": {"name": "n1", "uid": "u1"}}


def used(count: int) -> dict[str, Any]:
    keys = ",".join(f"{number:064x}" for number in range(count))
    return {"metadata": {**TOKEN["metadata"], "annotations": {"mooring.dev/joined-keys": keys}}}


def until(moment: str) -> dict[str, Any]:
    return {**TOKEN, "data": {"expiration": base64.b64encode(moment.encode()).decode()}}


def revocation(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "node-n1"}, "spec": spec}


def rollover(uid: str, reached: int) -> dict[str, Any]:
    return {"metadata": {"name": "cluster-ca", "uid": uid}, "status": {"transitions": [{}] * reached}}


def record(digest: str) -> dict[str, Any]:
    return {"metadata": {"name": record_name(2)}, "spec": {"hash": digest}}


def going(obj: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {**obj["metadata"], "deletionTimestamp": NODE_GONE, "finalizers": ["example.com/hold"]}}


def identity(**spec: str) -> dict[str, FixedView]:
    return {"nodeidentities": FixedView([{"metadata": {"name": "n1"}, "spec": spec}])}


NODE_GONE = "2025-12-01T00:00:00Z"
GONE = {"uid": "u1", "deletedAt": NODE_GONE}
NODE_BACK = {"name": "n1", "uid": "u1"}
LOST_NODE = FixedView(unreadable={("", "n1"): "damaged"})
EMPTY: dict[str, FixedView] = {
    plural: FixedView()
    for plural in (
        "certificaterevocations",
        "secrets",
        "nodes",
        "nodeidentities",
        "configmaps",
        tombstones.ROLLOVERS,
        "lineagerecords",
    )
}
BEFORE, AFTER = {"issuedBefore": "2026-01-01T00:00:00Z"}, {"issuedBefore": "2026-02-01T00:00:00Z"}
LOST_ENTRY = {"certificaterevocations": FixedView(unreadable={("", "node-n1"): "damaged"})}
LOST_TOKEN = {"secrets": FixedView(unreadable={("kube-system", "bootstrap-token-abcdef"): "damaged"})}
LOST_ROLLOVER = {tombstones.ROLLOVERS: FixedView(unreadable={("", "cluster-ca"): "damaged"})}
TRIM = new_record(Checkpoint(8, HEAD.hash), [{"event": "Trimmed", "checkpoint": str(HEAD)}], None)[0]
LOST_RECORD = {"lineagerecords": FixedView(unreadable={("", record_name(2)): "damaged"})}


@pytest.mark.parametrize(
    ("kind", "name", "value", "store", "returns"),
    [
        pytest.param("revocation", "node-n1", AFTER, {}, True, id="a revocation that is gone"),
        pytest.param("revocation", "node-n1", AFTER, LOST_ENTRY, False, id="one that cannot be read is there"),
        pytest.param(
            "revocation",
            "node-n1",
            AFTER,
            {"certificaterevocations": FixedView([revocation(**AFTER)])},
            False,
            id="the same",
        ),
        pytest.param(
            "revocation",
            "node-n1",
            AFTER,
            {"certificaterevocations": FixedView([revocation(**BEFORE)])},
            True,
            id="an older moment",
        ),
        pytest.param(
            "revocation",
            "node-n1",
            {},
            {"certificaterevocations": FixedView([revocation()])},
            False,
            id="without a moment",
        ),
        pytest.param("token", "abcdef", {"uid": "u1"}, {"secrets": FixedView([TOKEN])}, True, id="a deleted token"),
        pytest.param(
            "token", "abcdef", {"uid": "u2"}, {"secrets": FixedView([TOKEN])}, False, id="another token of this id"
        ),
        pytest.param("token", "abcdef", {"uid": "u1"}, {}, False, id="a token that stays deleted"),
        pytest.param(
            "token",
            "abcdef",
            {"uid": "u1"},
            {"secrets": FixedView([until("2026-01-01T00:00:00Z")])},
            False,
            id="a token at its end",
        ),
        pytest.param(
            "token",
            "abcdef",
            {"uid": "u1", "expiry": "2026-01-01T00:00:00Z"},
            {"secrets": FixedView([until("2026-01-01T00:00:01Z")])},
            True,
            id="before its end, which was moved forward in the store that is gone",
        ),
        pytest.param(
            "joins", "abcdef", {"uid": "u1", "joins": 2}, {"secrets": FixedView([used(1)])}, True, id="fewer joins"
        ),
        pytest.param(
            "joins", "abcdef", {"uid": "u1", "joins": 2}, {"secrets": FixedView([used(2)])}, False, id="as many joins"
        ),
        pytest.param(
            "joins",
            "abcdef",
            {"uid": "u2", "joins": 2},
            {"secrets": FixedView([used(1)])},
            False,
            id="of another token",
        ),
        pytest.param("joins", "abcdef", {"uid": "u1", "joins": 2}, {}, False, id="of a token that is gone"),
        pytest.param("joins", "abcdef", {"uid": "u1", "joins": 2}, LOST_TOKEN, True, id="joins that cannot be read"),
        pytest.param("token", "abcdef", {"uid": "u1"}, LOST_TOKEN, True, id="a token that cannot be read"),
        pytest.param("token", "abcdef", {"uid": "u1", "earlier": ["u0"]}, LOST_TOKEN, True, id="whichever it is"),
        pytest.param("node", "n1", {"uid": "u1"}, {"nodes": FixedView([NODE])}, True, id="a deleted Node"),
        pytest.param("node", "n1", {"uid": "u2"}, {"nodes": FixedView([NODE])}, False, id="another Node of this name"),
        pytest.param("node", "n1", {"uid": "u1"}, {}, False, id="a Node that stays deleted"),
        pytest.param(
            "node", "n1", {"uid": "u1"}, {"nodes": FixedView([going(NODE)])}, False, id="a Node that is going"
        ),
        pytest.param("node", "n1", GONE, {}, True, id="a Node of which the store knows nothing"),
        pytest.param("node", "n1", GONE, {"nodes": LOST_NODE}, True, id="a Node that cannot be read may come back"),
        pytest.param("node", "n1", GONE, {"nodeidentities": LOST_NODE}, True, id="so may a NodeIdentity"),
        pytest.param(
            "node", "n1", {"uid": "u1"}, {"nodeidentities": LOST_NODE}, False, id="of a machine that may return"
        ),
        pytest.param(
            "node", "n1", {"uid": "u1", "earlier": ["u0"]}, {"nodes": LOST_NODE}, True, id="whichever Node it is"
        ),
        pytest.param("node", "n1", GONE, identity(nodeUID="u0"), False, id="a NodeIdentity that records a deletion"),
        pytest.param("node", "n1", GONE, identity(), True, id="a NodeIdentity without a moment"),
        pytest.param("node", "n1", GONE, identity(changedAt=NODE_GONE), True, id="from before the deletion"),
        pytest.param("node", "n1", GONE, identity(changedAt="2025-12-01T00:00:01Z"), False, id="of a later machine"),
        pytest.param("token", "abcdef", {"uid": "u1"}, {"secrets": FixedView([going(TOKEN)])}, False, id="going, too"),
        pytest.param("rollover", "cluster-ca", {"uid": "u1", "reached": 2}, {}, True, id="a rollover that is gone"),
        pytest.param(
            "rollover", "cluster-ca", {"uid": "u1", "reached": 2}, LOST_ROLLOVER, False, id="that cannot be read"
        ),
        pytest.param(
            "rollover",
            "cluster-ca",
            {"uid": "u1", "reached": 2},
            {tombstones.ROLLOVERS: FixedView([rollover("u1", 1)])},
            True,
            id="an earlier phase",
        ),
        pytest.param(
            "rollover",
            "cluster-ca",
            {"uid": "u1", "reached": 2},
            {tombstones.ROLLOVERS: FixedView([rollover("u2", 3)])},
            True,
            id="another rollover",
        ),
        pytest.param(
            "rollover",
            "cluster-ca",
            {"uid": "u1", "reached": 2},
            {tombstones.ROLLOVERS: FixedView([rollover("u1", 2)])},
            False,
            id="the phase",
        ),
        pytest.param("server-token", "keys", {"generation": 4}, {}, True, id="an earlier generation of the keys"),
        pytest.param("server-token", "keys", {"generation": 3}, {}, False, id="the generation of the keys"),
        pytest.param("server-token", "keys", {"generation": 3, "created": 51}, {}, True, id="an earlier server token"),
        pytest.param("server-token", "keys", {"generation": 3, "created": 50}, {}, False, id="the server token"),
    ],
)
def test_what_a_store_would_bring_back(
    kind: str, name: str, value: dict[str, Any], store: dict[str, FixedView], returns: bool
) -> None:
    found = list(tombstones.returning({kind: {name: value}}, None, {**EMPTY, **store}, 3, NOW, 50))
    assert found == ([(Tombstone(kind), name, value)] if returns else [])


@pytest.mark.parametrize(
    ("kind", "name", "plural", "obj"),
    [
        pytest.param("node", "n1", "nodes", NODE, id="a Node"),
        pytest.param("token", "abcdef", "secrets", TOKEN, id="a token"),
    ],
)
def test_every_deleted_object_of_a_name_is_remembered(kind: str, name: str, plural: str, obj: dict[str, Any]) -> None:
    value: dict[str, Any] = {"uid": "u0"}
    for uid in ("u1", "u2", "u2", "u3"):
        value = tombstones.after_another({"uid": uid}, value)
    assert value == {"uid": "u3", "earlier": ["u2", "u1", "u0"]}
    assert tombstones.after_another({"uid": "u1"}, None) == {"uid": "u1"}
    for edited in ({}, {"earlier": 7}, {"uid": None, "earlier": [None]}):
        assert tombstones.after_another({"uid": "u1"}, edited) == {"uid": "u1"}
    found = list(tombstones.returning({kind: {name: value}}, None, {**EMPTY, plural: FixedView([obj])}, 3, NOW))
    assert found == [(Tombstone(kind), name, {"uid": "u1"})]
    other = FixedView([{"metadata": {**obj["metadata"], "uid": "u9"}}])
    assert not list(tombstones.returning({kind: {name: value}}, None, {**EMPTY, plural: other}, 3, NOW))


def test_of_many_deleted_objects_of_a_name_the_newest_are_remembered() -> None:
    value: dict[str, Any] = {"uid": "u0"}
    for number in range(1, 30):
        value = tombstones.after_another({"uid": f"u{number}"}, value)
    assert value["earlier"] == [f"u{number}" for number in range(28, 28 - tombstones.MAX_EARLIER, -1)]


@pytest.mark.parametrize(
    ("key", "value", "after", "store", "is_withdrawn"),
    [
        pytest.param("node.n1", NODE_BACK, {}, {"nodes": FixedView([NODE])}, True, id="while the Node is there"),
        pytest.param("node.n1", NODE_BACK, {}, {}, False, id="when the Node is gone"),
        pytest.param("node.n1", {"name": "n1", **GONE}, {}, {}, True, id="a Node of which the store knows nothing"),
        pytest.param(
            "node.n1", {"name": "n1", **GONE}, {}, identity(nodeUID="u1"), False, id="its deletion is recorded"
        ),
        pytest.param("node.n1", NODE_BACK, {}, {"nodes": LOST_NODE}, True, id="while the Node cannot be read"),
        pytest.param("token.abcdef", {"name": "abcdef", "uid": "u1"}, {}, LOST_TOKEN, True, id="nor the token"),
        pytest.param(
            "node.n1", NODE_BACK, {"node.n1": "{}"}, {"nodes": FixedView([NODE])}, True, id="with another value"
        ),
        pytest.param(
            "node.n1",
            NODE_BACK,
            {"waived.node.n1": tombstones.entry("n1", {"uid": "u1"})},
            {"nodes": FixedView([NODE])},
            False,
            id="accepted",
        ),
        pytest.param(
            "node.n1",
            NODE_BACK,
            {"waived.node.n1": "{}"},
            {"nodes": FixedView([NODE])},
            True,
            id="accepted with another",
        ),
        pytest.param(
            "waived.node.n1", NODE_BACK, {}, {"nodes": FixedView([NODE])}, False, id="what was accepted before"
        ),
        pytest.param("revocation.node-n1", {"name": "node-n1", **AFTER}, {}, {}, True, id="a revocation that is gone"),
        pytest.param(
            "revocation.node-n1",
            {"name": "node-n1", **AFTER},
            {},
            {"certificaterevocations": FixedView([revocation(**AFTER)])},
            False,
            id="a revocation that is there again",
        ),
        pytest.param("rollover.cluster-ca", {"name": "cluster-ca"}, {}, {}, True, id="what a person settles"),
        pytest.param("unknown.x", {"name": "x"}, {}, {}, True, id="of a later version"),
        pytest.param("token.abcdef", {"name": "abcdef"}, {}, {"secrets": FixedView([TOKEN])}, True, id="without a uid"),
    ],
)
def test_an_entry_is_withdrawn(
    key: str, value: dict[str, Any], after: dict[str, str], store: dict[str, FixedView], is_withdrawn: bool
) -> None:
    before = {key: tombstones.entry(value["name"], value)}
    assert tombstones.withdrawn(before, after, {**EMPTY, **store}, NOW) == ([key] if is_withdrawn else [])
    assert tombstones.withdrawn(before, before, {**EMPTY, **store}, NOW) == []


@pytest.mark.parametrize(
    ("store", "returns"),
    [
        pytest.param({}, True, id="the record is gone"),
        pytest.param({"lineagerecords": FixedView([record(HEAD.hash)])}, False, id="the record is there"),
        pytest.param({"lineagerecords": FixedView([record("sha256:" + "3" * 64)])}, True, id="it is another one"),
        pytest.param(LOST_RECORD, False, id="it cannot be read"),
        pytest.param({"lineagerecords": FixedView([TRIM])}, False, id="other servers have trimmed it"),
    ],
)
def test_the_end_of_the_issuance_log(store: dict[str, FixedView], returns: bool) -> None:
    found = [kind for kind, _, _ in tombstones.returning({}, HEAD, {**EMPTY, **store}, 0, NOW)]
    assert found == ([Tombstone.LINEAGE] if returns else [])


@pytest.mark.parametrize(
    ("remembered", "store", "kinds"),
    [
        pytest.param(
            {"rollover": {"cluster-ca": {"uid": "u1", "reached": 2}}},
            LOST_ROLLOVER,
            [Tombstone.ROLLOVER],
            id="rollover",
        ),
        pytest.param({}, LOST_ROLLOVER, [], id="a rollover that is not remembered"),
        pytest.param({}, LOST_RECORD, [Tombstone.LINEAGE], id="the newest record"),
        pytest.param({"token": {"abcdef": {"uid": "u1"}}}, LOST_TOKEN, [], id="what a command applies is listed"),
    ],
)
def test_what_no_command_applies_is_undecided_while_it_cannot_be_read(
    remembered: dict[str, Any], store: dict[str, FixedView], kinds: list[Tombstone]
) -> None:
    assert list(tombstones.undecided(remembered, HEAD, {**EMPTY, **store})) == kinds
    assert list(tombstones.undecided(remembered, None, EMPTY)) == []


@pytest.mark.parametrize(
    ("value", "uids"),
    [
        pytest.param({}, (), id="none"),
        pytest.param({"uid": "u1"}, ("u1",), id="one"),
        pytest.param({"uid": "u1", "earlier": ["u0"]}, ("u1", "u0"), id="with those before"),
        pytest.param({"uid": "u1", "earlier": 7}, ("u1",), id="edited by a person"),
    ],
)
def test_the_uids_that_an_entry_names(value: dict[str, Any], uids: tuple[str, ...]) -> None:
    assert tombstones.uids_of(value) == uids


def with_entries(**data: str) -> Views:
    return {
        "configmaps": FixedView(
            [{"metadata": {"name": tombstones.NAME, "namespace": tombstones.NAMESPACE}, "data": data}]
        )
    }


@pytest.mark.parametrize(
    ("views", "is_open"),
    [
        pytest.param({}, True, id="a cluster whose ConfigMaps are not followed"),
        pytest.param({"configmaps": FixedView()}, True, id="nothing waits"),
        pytest.param(with_entries(), True, id="an empty list"),
        pytest.param(with_entries(**{"waived.node.n1": "{}"}), True, id="what waited was accepted"),
        pytest.param(with_entries(**{"node.n1": "{}"}), False, id="a tombstone waits"),
        pytest.param(with_entries(junk="junk"), False, id="an entry that no server wrote"),
        pytest.param(
            {"configmaps": FixedView(unreadable={(tombstones.NAMESPACE, tombstones.NAME): "damaged"})},
            False,
            id="it cannot be read",
        ),
    ],
)
def test_nothing_is_issued_while(views: Views, is_open: bool) -> None:
    assert (tombstones.refusal(views) == "") is is_open
    with nullcontext() if is_open else pytest.raises(ServiceUnavailableError, match=r"^nothing is issued: "):
        tombstones.refuse_unsettled(views)


def test_an_entry_that_stands_for_others_is_known_by_its_key() -> None:
    assert tombstones.is_more(tombstones.more_key("node", "s1"))
    assert not tombstones.is_more(tombstones.key_of(Tombstone.NODE, "more.n1"))


@pytest.mark.parametrize(
    ("views", "why"),
    [
        pytest.param({}, "", id="a cluster whose ConfigMaps are not followed"),
        pytest.param({"configmaps": FixedView()}, "", id="nothing waits"),
        pytest.param(with_entries(**{"node.n1": "{}"}), "", id="all that waits is listed"),
        pytest.param(with_entries(**{tombstones.more_key("token", "s1"): "{}"}), "", id="more of another kind"),
        pytest.param(
            with_entries(**{tombstones.more_key("node", "s1"): "{}"}),
            "more tombstones of the kind node wait than configmaps/mooring-ends holds",
            id="more of this kind",
        ),
        pytest.param(
            {"configmaps": FixedView(unreadable={(tombstones.NAMESPACE, tombstones.NAME): "damaged"})},
            "configmaps/mooring-ends cannot be read: damaged",
            id="it cannot be read",
        ),
    ],
)
def test_the_tombstones_of_a_kind_are_known_unless(views: Views, why: str) -> None:
    assert tombstones.unknown(views, Tombstone.NODE) == why


@pytest.mark.parametrize(
    ("text", "value"),
    [('{"uid":"u1"}', {"uid": "u1"}), ("junk", {}), ("[]", {}), ("[" * 100_000, {})],
    ids=["a value", "no JSON", "no object", "too deep"],
)
def test_a_tombstone_that_waits_is_ended(text: str, value: dict[str, Any]) -> None:
    assert tombstones.ended(with_entries(**{"node.n1": text}), Tombstone.NODE, "n1") == value
    assert tombstones.ended(with_entries(**{"node.n1": text}), Tombstone.NODE, "n2") is None
    assert tombstones.ended({}, Tombstone.NODE, "n1") is None


def test_a_name_that_is_too_long_for_a_key_is_hashed() -> None:
    name = "node-" + "a" * 248
    key = tombstones.key_of(Tombstone.REVOCATION, name)
    assert key.startswith("revocation.sha256-")
    assert len(tombstones.ACCEPTED + key) <= 253
    assert tombstones.ended(with_entries(**{key: tombstones.entry(name, {})}), Tombstone.REVOCATION, name) == {
        "name": name
    }
    assert tombstones.key_of(Tombstone.REVOCATION, "node-a") == "revocation.node-a"


@pytest.mark.parametrize(
    ("accepted", "value", "is_accepted"),
    [
        pytest.param(None, {"uid": "u1"}, False, id="nothing was accepted"),
        pytest.param({"uid": "u1"}, {"uid": "u1"}, True, id="the same"),
        pytest.param({"uid": "u1"}, {"uid": "u2"}, False, id="another object"),
        pytest.param(
            {"uid": "u1"}, {"uid": "u1", "waivers": 1}, False, id="the object ended again after the acceptance"
        ),
        pytest.param(
            {"uid": "u1", "waivers": 1}, {"uid": "u1"}, True, id="the first tombstone of one that was accepted twice"
        ),
        pytest.param({"uid": "u1", "waivers": 1}, {"uid": "u2"}, False, id="another object, earlier"),
        pytest.param({"uid": "u1", "waivers": "1"}, {"uid": "u1"}, False, id="a count that is not a number"),
        pytest.param(GONE, {"uid": "u1", "deletedAt": "2025-12-01T00:00:01Z"}, True, id="as another server saw it"),
        pytest.param({"uid": "u1"}, GONE, True, id="as a server saw it that found the Node"),
    ],
)
def test_an_acceptance_covers_what_had_ended_before_it(
    accepted: dict[str, Any] | None, value: dict[str, Any], is_accepted: bool
) -> None:
    data = {} if accepted is None else {"waived.node.n1": tombstones.entry("n1", accepted)}
    assert tombstones.is_accepted(data, "node.n1", tombstones.entry("n1", value)) is is_accepted


def test_a_tombstone_counts_the_acceptances_before_it() -> None:
    data: dict[str, str] = {}
    value: dict[str, Any] = {"uid": "u1"}
    for count in (0, 1, 2):
        value = tombstones.after_acceptance(data, Tombstone.NODE, "n1", {"uid": "u1"})
        assert value.get("waivers", 0) == count
        data["waived.node.n1"] = tombstones.entry("n1", value)


@pytest.mark.parametrize(
    ("uid", "left"),
    [
        ("u3", {"uid": "u2", "waivers": 1, "earlier": ["u1"]}),
        ("u1", {"uid": "u3", "deletedAt": NODE_GONE, "waivers": 1, "earlier": ["u2"]}),
    ],
)
def test_the_other_objects_of_a_name_stay_remembered(uid: str, left: dict[str, Any]) -> None:
    value = {"uid": "u3", "deletedAt": NODE_GONE, "waivers": 1, "earlier": ["u2", "u1"]}
    assert tombstones.without(value, uid) == left


@pytest.mark.parametrize(
    ("value", "left"), [({"uid": "u1"}, None), ({"uid": "u1", "earlier": ["u0"]}, {"uid": "u0"})], ids=str
)
def test_the_accepted_object_of_a_name_is_not_remembered(value: dict[str, Any], left: dict[str, Any] | None) -> None:
    assert tombstones.without(value, "u1") == left


@pytest.mark.parametrize(
    ("kind", "plural", "obj", "name"), [("token", "secrets", TOKEN, "abcdef"), ("node", "nodes", NODE, "n1")]
)
def test_an_earlier_object_comes_back_with_the_count_of_acceptances(
    kind: str, plural: str, obj: dict[str, Any], name: str
) -> None:
    remembered = {kind: {name: {"uid": "u2", "earlier": ["u1"], "waivers": 1}}}
    store: Views = {**EMPTY, plural: FixedView([obj])}
    assert list(tombstones.returning(remembered, None, store, 0, NOW)) == [(kind, name, {"uid": "u1", "waivers": 1})]
