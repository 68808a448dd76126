"""Issuance check of bootstrap tokens: names, networks, and joins that are counted by compare-and-swap on the Secret."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import Any

import pytest

from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import CheckAccess, Controller, Update
from mooring.controllers.certificates.approval import CsrApprover, InventoryApprover, SupervisorApprover
from mooring.controllers.certificates.issuance import CheckResult, Hold, PendingIssue, Reservation
from mooring.controllers.certificates.requester import BootstrapTokenCheck
from mooring.controllers.certificates.signing.signer import CsrSigner
from mooring.pki.keys import generate_key
from mooring.pki.x509.requests import build_request, parse_request
from mooring.pki.x509.signers import (
    CREDENTIAL,
    KUBE_APISERVER_CLIENT_KUBELET,
    NODE_NAME,
    NODE_PASSWORD,
    NODE_SIGNERS,
    usages_of,
)
from mooring.settings.signing import SIGNING_DURATION
from mooring.trust.bootstraptoken.restrictions import join_record, joined_keys
from tests.support.plans import NOW, plan, thing, views
from tests.support.testca import ThrowawayCA

PEM = build_request(generate_key(), "system:node:worker-1", ("system:nodes",))
REQUEST = parse_request(PEM)
KEY = join_record(REQUEST.key_fingerprint, "system:node:worker-1")
OTHER_KEYS = ("a" * 64, "b" * 64)
USER = "system:bootstrap:abcdef"


def token(of_type: str = "bootstrap.kubernetes.io/token", deleting: str = "", **annotations: str) -> Obj:
    named = {f"mooring.dev/{name.replace('_', '-')}": value for name, value in annotations.items()}
    metadata = {
        "namespace": "kube-system",
        "annotations": named,
        **({"deletionTimestamp": deleting} if deleting else {}),
    }
    return thing("bootstrap-token-abcdef", type=of_type, metadata=metadata)


BY_A_PERSON = token(require_approval="true")
EXPIRED = {**token(), "data": {"expiration": base64.b64encode(b"2020-01-01T00:00:00Z").decode()}}


def tombstone_list(*keys: str) -> list[Obj]:
    """Return the ConfigMap of the tombstones that wait to be settled."""
    return (
        [thing("mooring-ends", metadata={"namespace": "kube-system"}, data=dict.fromkeys(keys, "{}"))] if keys else []
    )


def found(
    *secrets: Obj,
    source: str = "10.1.2.3",
    user: str = USER,
    pem: bytes = PEM,
    trusts: bool = True,
    person: bool = False,
    pending_tombstones: Sequence[str] = (),
) -> CheckResult | None:
    annotations = {"mooring.dev/source-address": source} if source else {}
    csr = thing(
        "join",
        metadata={"annotations": annotations},
        spec={"request": base64.b64encode(pem).decode(), "username": user, "signerName": "x.example/y"},
    )
    pending = PendingIssue(csr=csr, request=parse_request(pem), now=NOW, automatic=not person)
    check = BootstrapTokenCheck(trusts)
    assert check.watches == ("secrets",)
    return check.check(pending, views(secrets=secrets, configmaps=tombstone_list(*pending_tombstones)))


def counted(finding: CheckResult | None) -> tuple[str, ...]:
    """Return the keys that a reservation records."""
    assert isinstance(finding, Reservation)
    (update,) = finding.actions
    assert isinstance(update, Update)
    assert update.plural == "secrets"
    assert update.obj["metadata"]["resourceVersion"] == token()["metadata"]["resourceVersion"]
    return joined_keys(update.obj)


@pytest.mark.parametrize(
    ("secrets", "changes"),
    [
        pytest.param([], {"user": "jane"}, id="another user"),
        pytest.param([token()], {}, id="a token without restrictions"),
        pytest.param([EXPIRED], {}, id="a token that has expired since"),
        pytest.param([token(node_name="worker-*")], {}, id="a name that matches"),
        pytest.param([token(allowed_cidrs="10.0.0.0/8")], {}, id="a network that matches"),
        pytest.param([token(max_joins="1", joined_keys=KEY)], {}, id="a key that is counted already"),
        pytest.param([token(max_joins="1", joined_keys=OTHER_KEYS[0])], {"person": True}, id="a person goes beyond"),
        pytest.param([token(node_name="master-*")], {"person": True}, id="a person takes another name"),
        pytest.param([token(allowed_cidrs="192.0.2.0/24")], {"person": True}, id="a person takes another network"),
        pytest.param([token(require_approval="true")], {"person": True}, id="a person approves, as the token requires"),
        pytest.param([token(require_approval="false")], {}, id="a token that requires no approval"),
        pytest.param([token(max_joins="x")], {"person": True}, id="a person overlooks an unreadable limit"),
        pytest.param([], {"person": True}, id="a person overlooks that the token is gone"),
    ],
)
def test_nothing_stands_in_the_way_of(secrets: list[Obj], changes: dict[str, Any]) -> None:
    assert found(*secrets, **changes) is None


@pytest.mark.parametrize(
    ("secrets", "changes", "reason", "denies", "message"),
    [
        pytest.param([], {}, "TokenDeleted", False, "was deleted", id="the token is gone"),
        pytest.param([token(deleting="x")], {}, "TokenDeleted", False, "was deleted", id="the token is being deleted"),
        pytest.param([token(of_type="Opaque")], {}, "TokenDeleted", False, "was deleted", id="the Secret is no token"),
        pytest.param([token(max_joins="x")], {}, "TokenUnreadable", False, "from 1 to", id="an unreadable limit"),
        pytest.param(
            [token(max_joins="1", joined_keys="x")],
            {},
            "TokenUnreadable",
            False,
            "delete the token",
            id="unreadable keys",
        ),
        pytest.param(
            [token(require_approval="yes")], {}, "TokenUnreadable", False, "neither true", id="neither true nor false"
        ),
        pytest.param([BY_A_PERSON], {}, "TokenRequiresApproval", False, "abcdef .* node", id="a person is required"),
        pytest.param(
            [BY_A_PERSON],
            {"pem": build_request(generate_key(), "jane")},
            "TokenRequiresApproval",
            False,
            'user "jane"',
            id="a person is required, and no node asks",
        ),
        pytest.param(
            [token(require_approval="true", max_joins="1", joined_keys=KEY)],
            {},
            "TokenRequiresApproval",
            False,
            "worker-1",
            id="a person is required again for a key that joined",
        ),
        pytest.param(
            [token(require_approval="true", max_joins="1", joined_keys=OTHER_KEYS[0])],
            {},
            "TokenUsedUp",
            True,
            "1 machine ",
            id="used up, so that no person decides",
        ),
        pytest.param(
            [token(require_approval="true", node_name="master-*")],
            {},
            "NodeNameNotAllowed",
            True,
            "only for nodes",
            id="another name, so that no person decides",
        ),
        pytest.param([token(node_name="master-*")], {}, "NodeNameNotAllowed", True, '"master-\\*"', id="another name"),
        pytest.param(
            [token(node_name="*")],
            {"pem": build_request(generate_key(), "jane")},
            "NodeNameNotAllowed",
            True,
            "only for nodes",
            id="no node",
        ),
        pytest.param(
            [token(allowed_cidrs="192.0.2.0/24")],
            {},
            "NetworkNotAllowed",
            True,
            "came from 10.1.2.3",
            id="another network",
        ),
        pytest.param(
            [token(allowed_cidrs="10.0.0.0/8")], {"source": ""}, "SourceUnknown", False, "not known", id="no address"
        ),
        pytest.param(
            [token(allowed_cidrs="10.0.0.0/8")],
            {"trusts": False},
            "SourceUnknown",
            False,
            "not known",
            id="another server",
        ),
        pytest.param(
            [token(max_joins="2", joined_keys=",".join(OTHER_KEYS))],
            {},
            "TokenUsedUp",
            True,
            "2 machines",
            id="used up",
        ),
        pytest.param(
            [token(max_joins="1", joined_keys=OTHER_KEYS[0])],
            {},
            "TokenUsedUp",
            True,
            "1 machine ",
            id="used up by one",
        ),
    ],
)
def test_an_automatic_approval_meets_a_hold(
    secrets: list[Obj], changes: dict[str, Any], reason: str, denies: bool, message: str
) -> None:
    finding = found(*secrets, **changes)
    assert isinstance(finding, Hold)
    assert (finding.reason, finding.denies) == (reason, denies)
    assert re.search(message, finding.message)


def test_the_hold_names_what_a_person_compares_and_the_command() -> None:
    finding = found(BY_A_PERSON)
    assert isinstance(finding, Hold)
    assert finding.message == (
        "the bootstrap token abcdef lets no machine in without a person (mooring.dev/require-approval): compare node "
        f'"worker-1" and the key sha256:{REQUEST.key_fingerprint} with the machine, then run mooring csr approve join'
    )


def test_a_join_is_counted_when_a_person_approves_it() -> None:
    limited = token(max_joins="1", require_approval="true")
    assert isinstance(found(limited), Hold)
    assert counted(found(limited, person=True)) == (KEY,)


# -- one gate for every approver and signer --------------------------------------------------------------------------------

CA = ThrowawayCA(now=NOW)
CHECKS = (BootstrapTokenCheck(trusts_source_address=True),)
LISTED = thing("m1", spec={"nodeName": "worker-1", "keyFingerprint": f"sha256:{REQUEST.key_fingerprint}"}, status={})


def stored(signer: str = KUBE_APISERVER_CLIENT_KUBELET, *conditions: Obj) -> Obj:
    """Return the request of a machine that joins with the token, kubeadm's way or k3s's way."""
    is_k3s = signer in NODE_SIGNERS
    spec = {
        "request": base64.b64encode(PEM).decode(),
        "signerName": signer,
        "usages": list(usages_of(signer, is_rsa=False)) if is_k3s else ["digital signature", "client auth"],
        "username": USER,
        "groups": ["system:bootstrappers"],
        "extra": {CREDENTIAL: ["bootstrap-token"], NODE_NAME: ["worker-1"], NODE_PASSWORD: ["uid"]} if is_k3s else {},
    }
    return thing("join", spec=spec, status={"conditions": list(conditions)} if conditions else {})


def approved(reason: str) -> Obj:
    return {"type": "Approved", "status": "True", "reason": reason}


def outcome(controller: Controller, csr: Obj, secret: Obj) -> tuple[str, str]:
    """Return type and reason of the condition that a controller writes, where the requester has every right."""
    seen = views(certificatesigningrequests=[csr], secrets=[secret], authorizedmachines=[LISTED])
    actions = plan(controller, ("", "join"), seen)
    if isinstance(actions[0], CheckAccess):
        actions = list(actions[0].then(True))
    update = actions[0]
    assert isinstance(update, Update)
    condition = update.obj["status"]["conditions"][-1]
    return condition["type"], condition["reason"]


@pytest.mark.parametrize(
    ("approver", "csr", "reason"),
    [
        pytest.param(CsrApprover(CHECKS), stored(), "AutoApproved", id="kubeadm's way"),
        pytest.param(InventoryApprover(CHECKS), stored(), "AutoApprovedMachine", id="an authorized machine"),
        *(
            pytest.param(
                SupervisorApprover(CHECKS), stored(signer), "AutoApprovedSupervisor", id=f"k3s's way: {signer}"
            )
            for signer in NODE_SIGNERS
        ),
    ],
)
def test_no_approver_approves_where_a_person_is_required(approver: Controller, csr: Obj, reason: str) -> None:
    assert outcome(approver, csr, token()) == ("Approved", reason)
    assert outcome(approver, csr, BY_A_PERSON) == ("NeedsApproval", "TokenRequiresApproval")


@pytest.mark.parametrize("signer", [KUBE_APISERVER_CLIENT_KUBELET, *NODE_SIGNERS])
def test_where_a_person_is_required_only_the_approval_of_a_person_is_signed(signer: str) -> None:
    """kube-controller-manager approves by a reason of the same form, and does not read the annotation."""
    controller = CsrSigner(
        CA.cluster_ca.for_signer, checks=CHECKS, signing_duration=SIGNING_DURATION, guards_extra=True
    )
    assert outcome(controller, stored(signer, approved("AutoApproved")), BY_A_PERSON) == (
        "Failed",
        "TokenRequiresApproval",
    )
    by_person = stored(signer, approved("ApprovedByHand"))
    actions = plan(controller, ("", "join"), views(certificatesigningrequests=[by_person], secrets=[BY_A_PERSON]))
    (update,) = (one for one in actions if isinstance(one, Update))
    assert update.obj["status"]["certificate"]


def test_an_approval_is_judged_at_its_commit_by_a_token_that_requires_a_person_by_then() -> None:
    (check,) = plan(CsrApprover(CHECKS), ("", "join"), views(certificatesigningrequests=[stored()], secrets=[token()]))
    assert isinstance(check, CheckAccess)
    (update,) = check.then(True)
    assert isinstance(update, Update)
    assert update.precondition is not None
    assert update.precondition(views(secrets=[token()]), NOW)
    assert not update.precondition(views(secrets=[BY_A_PERSON]), NOW)


def test_a_second_name_for_a_key_is_another_join() -> None:
    key = generate_key()
    first, second = (build_request(key, f"system:node:{name}", ("system:nodes",)) for name in ("n1", "n2"))
    (joined,) = counted(found(token(max_joins="1"), pem=first))
    assert found(token(max_joins="1", joined_keys=joined), pem=first) is None
    assert isinstance(found(token(max_joins="1", joined_keys=joined), pem=second), Hold)


def test_a_new_key_is_counted_before_its_approval() -> None:
    assert counted(found(token(max_joins="2"))) == (KEY,)
    assert counted(found(token(max_joins="2", joined_keys=OTHER_KEYS[0]))) == (OTHER_KEYS[0], KEY)
    assert counted(found(token(max_joins="1"), person=True)) == (KEY,)


def test_no_join_is_counted_while_a_restored_store_may_have_forgotten_others() -> None:
    limited = token(max_joins="3", joined_keys=OTHER_KEYS[0])
    held = found(limited, pending_tombstones=["joins.abcdef"])
    assert isinstance(held, Hold)
    assert (held.reason, held.denies) == ("TombstonesUnsettled", False)
    assert "`mooring restore-check list`" in held.message
    assert found(token(max_joins="3", joined_keys=KEY), pending_tombstones=["joins.abcdef"]) is None, (
        "it has joined before"
    )
    assert counted(found(limited, pending_tombstones=["waived.joins.abcdef"])) == (OTHER_KEYS[0], KEY)


def test_a_join_is_not_counted_by_a_plan_from_before_the_tombstones_were_listed() -> None:
    finding = found(token(max_joins="3"))
    assert isinstance(finding, Reservation)
    (update,) = finding.actions
    assert isinstance(update, Update)
    assert update.precondition is not None
    assert update.precondition(views(configmaps=[]), NOW)
    assert not update.precondition(views(configmaps=tombstone_list("node.n2")), NOW)
