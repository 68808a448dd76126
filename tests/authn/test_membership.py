"""Check of membership: which certificates of nodes are rejected, and why."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from mooring.api.kinds import BY_PLURAL
from mooring.api.mooring import tombstones
from mooring.api.view import FixedView, Views
from mooring.apimachinery.schema import Obj
from mooring.authn.revocations import ended_or_replaced
from mooring.pki.keys import generate_key
from mooring.pki.x509 import names, profiles
from mooring.pki.x509.authority import self_signed_ca
from mooring.pki.x509.verify import ClientTrust, VerifiedPeer

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CA = self_signed_ca(generate_key(), "kubernetes", NOW, 1)


def peer(common_name: str) -> VerifiedPeer:
    template = profiles.client(generate_key().public_key(), NOW, common_name, ("system:nodes",))
    return ClientTrust([CA.certificate]).verify([CA.sign(template, NOW, 3).der], NOW)


N1 = peer("system:node:n1")
OWN = {"publicKey": N1.public_key}
OTHER = {"publicKey": "sha256:" + "0" * 64}


def seen(spec: Obj | None = None, node: str = "", **metadata: object) -> Views:
    objects: dict[str, list[Obj]] = {
        "nodeidentities": [] if spec is None else [{"metadata": {"name": "n1"}, "spec": spec}],
        "nodes": [{"metadata": {"name": "n1", "uid": node, **metadata}}] if node else [],
    }
    return {plural: FixedView(objects.get(plural, ())) for plural in BY_PLURAL}


@pytest.mark.parametrize(
    ("views", "reason"),
    [
        pytest.param(seen(), None, id="a name without an identity"),
        pytest.param(seen({"keys": [OTHER, OWN]}), None, id="a key of the name"),
        pytest.param(seen({"keys": [OTHER, OWN], "nodeUID": "u1"}, "u1"), None, id="a key of a member"),
        pytest.param(seen({"keys": [OTHER]}), "node-key-replaced", id="another key"),
        pytest.param(
            seen({"keys": [OTHER], "formerCertificate": f"sha256:{N1.fingerprint}"}), None, id="the former one"
        ),
        pytest.param(seen({"keys": [OWN], "nodeUID": "u1"}), "node-deleted", id="a deleted Node"),
        pytest.param(seen({"keys": [OWN], "nodeUID": "u1"}, "u2"), "node-deleted", id="a Node created again by hand"),
        pytest.param(
            seen(
                {"keys": [OWN], "nodeUID": "u1"}, "u1", deletionTimestamp="2026-01-01T00:00:00Z", finalizers=["a.b/c"]
            ),
            "node-deleted",
            id="a deleted Node that a finalizer holds",
        ),
        pytest.param(
            seen({"keys": [OWN]}, "u1", deletionTimestamp="2026-01-01T00:00:00Z", finalizers=["a.b/c"]),
            "node-deleted",
            id="also when the deletion was not recorded",
        ),
        pytest.param(seen({"nodeUID": "u1"}), "node-deleted", id="a deleted Node whose key was never recorded"),
        pytest.param(seen({"keys": [OTHER], "nodeUID": "u1"}), "node-deleted", id="the end comes before the key"),
    ],
)
def test_a_certificate_of_a_node(views: Views, reason: str | None) -> None:
    rejected = ended_or_replaced(N1, views, NOW)
    assert (rejected and rejected.reason) == reason


def companion(common_name: str = "system:kube-proxy", unit: str = "system:node:n1") -> VerifiedPeer:
    """Return a certificate of a user that all machines share, bound to one of them."""
    key = generate_key().public_key()
    template = replace(profiles.client(key, NOW, common_name), subject=names.subject(common_name, unit=unit))
    return ClientTrust([CA.certificate]).verify([CA.sign(template, NOW, 4).der], NOW)


PROXY = companion()
PROXY_KEY = {"publicKey": PROXY.public_key}


@pytest.mark.parametrize(
    ("views", "reason"),
    [
        pytest.param(
            seen({"keys": [OTHER], "companions": [OTHER, PROXY_KEY]}, "u1"), None, id="recorded with its machine"
        ),
        pytest.param(seen({"companions": [PROXY_KEY]}), None, id="before the machine registers its Node"),
        pytest.param(seen(), "node-key-replaced", id="a machine without a record"),
        pytest.param(seen({"keys": [PROXY_KEY]}, "u1"), "node-key-replaced", id="a key of the name is no companion"),
        pytest.param(seen({"keys": [OTHER]}, "u1"), "node-key-replaced", id="after another machine got the name"),
        pytest.param(
            seen({"companions": [PROXY_KEY], "nodeUID": "u1"}), "node-deleted", id="after the Node was deleted"
        ),
    ],
)
def test_a_certificate_of_a_shared_user(views: Views, reason: str | None) -> None:
    rejected = ended_or_replaced(PROXY, views, NOW)
    assert (rejected and rejected.reason) == reason


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(peer("system:kube-proxy"), id="issued before machines were named"),
        pytest.param(companion(unit="proxies"), id="another unit"),
        pytest.param(companion("jane"), id="another user"),
    ],
)
def test_a_certificate_that_is_bound_to_no_machine(other: VerifiedPeer) -> None:
    assert ended_or_replaced(other, seen({"nodeUID": "u1"}), NOW) is None


def test_other_users_are_not_concerned() -> None:
    views = seen({"nodeUID": "u1", "keys": [OTHER]})
    for name in ("n1", "jane", "system:node:n2", "system:nodes:n1"):
        assert ended_or_replaced(peer(name), views, NOW) is None


@pytest.mark.parametrize(
    ("plural", "name", "is_undecided"),
    [
        pytest.param("nodeidentities", "n1", True, id="the identity of the node"),
        pytest.param("nodes", "n1", True, id="the Node of the node"),
        pytest.param("nodeidentities", "n2", False, id="the identity of another node"),
        pytest.param("nodes", "n2", False, id="the Node of another node"),
    ],
)
def test_what_cannot_be_read_leaves_the_certificates_of_its_own_name_undecided(
    plural: str, name: str, is_undecided: bool
) -> None:
    views = dict(seen(None if plural == "nodeidentities" and name == "n1" else {"keys": [OWN], "nodeUID": "u1"}, "u1"))
    if (plural, name) == ("nodes", "n1"):
        views["nodes"] = FixedView()
    known = views[plural]
    views[plural] = FixedView(known.list(), unreadable={("", name): "damaged"})
    rejected = ended_or_replaced(N1, views, NOW)
    assert (rejected is not None) is is_undecided
    if rejected is not None:
        assert (rejected.reason, rejected.is_undecided) == ("object-unreadable", True)
        assert rejected.detail == f"{plural}/n1 cannot be read: damaged"


DAMAGED = FixedView(unreadable={(tombstones.NAMESPACE, tombstones.NAME): "damaged"})
MORE = FixedView(
    [
        {
            "metadata": {"name": tombstones.NAME, "namespace": tombstones.NAMESPACE},
            "data": {tombstones.more_key("node", "s1"): "{}"},
        }
    ]
)


@pytest.mark.parametrize("waiting", [DAMAGED, MORE], ids=["cannot be read", "is not complete"])
def test_no_certificate_of_a_node_counts_while_the_list_of_deleted_nodes(waiting: FixedView) -> None:
    for store in (seen({"keys": [OWN]}, "u1"), seen(None, "u1"), seen(None, "")):
        rejected = ended_or_replaced(N1, {**store, "configmaps": waiting}, NOW)
        assert rejected is not None
        assert (rejected.reason, rejected.is_undecided) == ("object-unreadable", True)
        assert ended_or_replaced(peer("jane"), {**store, "configmaps": waiting}, NOW) is None
    gone = ended_or_replaced(N1, {**seen({"nodeUID": "u1"}), "configmaps": waiting}, NOW)
    assert gone is not None
    assert gone.reason == "node-deleted", "what is known does not wait"


@pytest.mark.parametrize(
    "store",
    [
        pytest.param(seen({"keys": [OWN]}, "u1"), id="with its Node"),
        pytest.param(seen({"keys": [OWN]}, ""), id="with its NodeIdentity alone"),
        pytest.param(seen(None, ""), id="with neither"),
    ],
)
def test_a_node_that_came_back_with_a_restored_store_is_no_member(store: dict[str, FixedView]) -> None:
    data = {tombstones.key_of(tombstones.Tombstone.NODE, "n1"): tombstones.entry("n1", {"uid": "u1"})}
    config_map = {"metadata": {"name": tombstones.NAME, "namespace": tombstones.NAMESPACE}, "data": data}
    rejected = ended_or_replaced(N1, {**store, "configmaps": FixedView([config_map])}, NOW)
    assert rejected is not None
    assert rejected.reason == "node-deleted"
