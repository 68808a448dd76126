"""The rule by which a machine whose certificate expired gets another one."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, CheckAccess, Requeue, Update
from mooring.controllers.certificates.approval import CsrApprover
from mooring.controllers.certificates.issuance import HELD_FOR
from mooring.controllers.certificates.noderecovery import NodeRecovery
from mooring.pki.keys import generate_key, public_key_fingerprint
from mooring.pki.x509.requests import build_request
from mooring.pki.x509.signers import KUBE_APISERVER_CLIENT_KUBELET
from tests.support.plans import HOUR, NOW, moment, plan, thing, views

KEY = generate_key()
OLD_KEY = f"sha256:{'1' * 64}"
RULE = NodeRecovery(timedelta(days=30))
PROOF = {"recovery.mooring.dev/public-key": [OLD_KEY], "recovery.mooring.dev/not-after": [moment(-72 * HOUR)]}
NODE = thing("n1")
HELD = thing("n1", metadata={"deletionTimestamp": moment(-HOUR), "finalizers": ["a.b/c"]})


def csr(cn: str = "system:node:n1", source: str = "192.0.2.77", **spec: Any) -> Obj:
    asked = {
        "request": base64.b64encode(build_request(KEY, cn, ("system:nodes",))).decode(),
        "signerName": KUBE_APISERVER_CLIENT_KUBELET,
        "usages": ["digital signature", "client auth"],
        "username": "system:recovering-node:n1",
        "groups": ["system:recovering-nodes", "system:authenticated"],
        "extra": PROOF,
        **spec,
    }
    return thing("back", spec=asked, metadata={"annotations": {"mooring.dev/source-address": source} if source else {}})


def identity(address: str = "192.0.2.1", key: str = OLD_KEY, **spec: Any) -> Obj:
    newest = {"publicKey": key, "serialNumber": "0ab", "notAfter": moment(-72 * HOUR)}
    keys = [{"publicKey": key}, {"publicKey": f"sha256:{'3' * 64}", "serialNumber": "1"}, newest]
    return thing("n1", spec={"keys": keys, "sourceAddress": address, **spec})


def planned(
    obj: Obj,
    rule: NodeRecovery | None = RULE,
    identities: Sequence[Obj] = (identity(),),
    nodes: Sequence[Obj] = (NODE,),
    revoked: str = "",
) -> list[Action]:
    denylist = [thing(revoked)] if revoked else []
    seen = views(
        certificatesigningrequests=[obj], nodeidentities=identities, nodes=nodes, certificaterevocations=denylist
    )
    return plan(CsrApprover((), rule), ("", "back"), seen, NOW)


def outcome(actions: Sequence[Action]) -> tuple[str, str]:
    update = actions[0]
    assert isinstance(update, Update)
    condition = update.obj["status"]["conditions"][-1]
    assert condition["message"]
    assert list(actions[1:]) == ([Requeue(NOW + HELD_FOR)] if condition["type"] == "NeedsApproval" else [])
    return condition["type"], condition["reason"]


@pytest.mark.parametrize(
    ("source", "known"),
    [
        pytest.param("192.0.2.77", "192.0.2.1", id="the same /24"),
        pytest.param("::ffff:192.0.2.77", "192.0.2.1", id="IPv4 mapped into IPv6"),
        pytest.param("2001:db8::1", "2001:db8::ffff:1", id="the same /64"),
    ],
)
def test_a_machine_that_comes_back_from_its_network_is_approved(source: str, known: str) -> None:
    assert outcome(planned(csr(source=source), identities=[identity(known)])) == ("Approved", "AutoApproved")


@pytest.mark.parametrize(
    "obj",
    [
        pytest.param(csr("system:node:n2"), id="another name"),
        pytest.param(csr(username="n1"), id="a user who is no recovering node, in the group"),
    ],
)
def test_another_name_is_denied(obj: Obj) -> None:
    assert outcome(planned(obj)) == ("Denied", "RecoveryOfAnotherNode")


@pytest.mark.parametrize(
    ("obj", "more", "reason"),
    [
        pytest.param(csr(extra={}), {}, "RecoveryNotProven", id="no proof"),
        pytest.param(
            csr(extra={**PROOF, "recovery.mooring.dev/not-after": ["yesterday"]}), {}, "RecoveryNotProven", id="no time"
        ),
        pytest.param(csr(), {"rule": NodeRecovery(None)}, "RecoveryNeedsApproval", id="a person decides"),
        pytest.param(csr(), {"rule": NodeRecovery(71 * HOUR)}, "ExpiredTooLongAgo", id="expired too long ago"),
        pytest.param(csr(), {"identities": []}, "KeyNotOfNode", id="a name that is not recorded"),
        pytest.param(csr(), {"identities": [identity(key=f"sha256:{'2' * 64}")]}, "KeyNotOfNode", id="another key"),
        pytest.param(csr(), {"revoked": "node-n1"}, "Revoked", id="its node was revoked meanwhile"),
        pytest.param(csr(), {"revoked": f"key-{'1' * 64}"}, "Revoked", id="its key was revoked meanwhile"),
        pytest.param(csr(), {"revoked": "serial-ab"}, "Revoked", id="its certificate was revoked meanwhile"),
        pytest.param(csr(), {"nodes": []}, "NodeMissing", id="its Node was deleted"),
        pytest.param(csr(), {"identities": [identity(nodeUID="old")]}, "NodeMissing", id="its Node was replaced"),
        pytest.param(csr(), {"nodes": [HELD]}, "NodeMissing", id="its Node was deleted, and finalizers hold it"),
        pytest.param(csr(source="198.51.100.1"), {}, "AnotherNetwork", id="another network"),
        pytest.param(csr(source=""), {}, "AnotherNetwork", id="an unknown address"),
        pytest.param(csr(), {"identities": [identity("")]}, "AnotherNetwork", id="no address from before"),
    ],
)
def test_every_other_fault_holds_the_request_for_a_person(obj: Obj, more: dict[str, Any], reason: str) -> None:
    assert outcome(planned(obj, **more)) == ("NeedsApproval", reason)


def test_a_name_that_was_claimed_for_the_key_of_the_request_is_its_own() -> None:
    own = identity(
        key=f"sha256:{public_key_fingerprint(KEY)}", keys=[{"publicKey": f"sha256:{public_key_fingerprint(KEY)}"}]
    )
    assert outcome(planned(csr(), identities=[own])) == ("Approved", "AutoApproved")


def test_the_recorded_node_may_be_there() -> None:
    assert outcome(planned(csr(), identities=[identity(nodeUID="uid-of-n1")])) == ("Approved", "AutoApproved")


def test_without_the_rule_rbac_decides() -> None:
    (ask,) = planned(csr(), None)
    assert isinstance(ask, CheckAccess)
    assert CsrApprover().watches == ("certificatesigningrequests",)
    assert CsrApprover((), RULE).watches == (
        "certificatesigningrequests", "nodeidentities", "certificaterevocations", "nodes"
    )  # fmt: skip


def test_a_request_for_another_certificate_is_left_alone() -> None:
    assert planned(csr(usages=["server auth"])) == []
