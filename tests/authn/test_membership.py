"""Check of membership: which certificates of nodes are rejected, and why."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from mooring.api.kinds import BY_PLURAL
from mooring.api.view import FixedView, Views
from mooring.apimachinery.schema import Obj
from mooring.authn.x509.membership import ended_or_replaced
from mooring.pki.keys import generate_key
from mooring.pki.x509 import profiles
from mooring.pki.x509.authority import self_signed_ca
from mooring.pki.x509.verify import ClientTrust, VerifiedPeer

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CA = self_signed_ca(generate_key(), "kubernetes", NOW, 1)


def peer(common_name: str) -> VerifiedPeer:
    template = profiles.client(generate_key().public_key(), NOW, common_name, ("system:nodes",))
    return ClientTrust([CA.certificate]).verify([CA.sign(template, NOW, 3).public_bytes(Encoding.DER)], NOW)


N1 = peer("system:node:n1")
OWN = {"publicKey": N1.public_key}
OTHER = {"publicKey": "sha256:" + "0" * 64}


def seen(spec: Obj | None = None, node: str = "") -> Views:
    objects: dict[str, list[Obj]] = {
        "nodeidentities": [] if spec is None else [{"metadata": {"name": "n1"}, "spec": spec}],
        "nodes": [{"metadata": {"name": "n1", "uid": node}}] if node else [],
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
        pytest.param(seen({"nodeUID": "u1"}), "node-deleted", id="a deleted Node whose key was never recorded"),
        pytest.param(seen({"keys": [OTHER], "nodeUID": "u1"}), "node-deleted", id="the end comes before the key"),
    ],
)
def test_a_certificate_of_a_node(views: Views, reason: str | None) -> None:
    rejected = ended_or_replaced(N1, views, NOW)
    assert (rejected and rejected.reason) == reason


def test_other_users_are_not_concerned() -> None:
    views = seen({"nodeUID": "u1", "keys": [OTHER]})
    for name in ("n1", "jane", "system:node:n2", "system:nodes:n1"):
        assert ended_or_replaced(peer(name), views, NOW) is None
