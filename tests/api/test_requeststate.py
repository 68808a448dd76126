"""Test the state of certificate requests, and copies with a changed status."""

from __future__ import annotations

import base64

import pytest

from mooring.api.certificates.requestrecords import APPROVED, DENIED, FAILED
from mooring.api.certificates.requeststate import (
    is_approved_and_unsigned,
    is_undecided,
    parsed_request,
    requested_node,
    with_condition,
    without_condition,
)
from mooring.apimachinery.schema import Obj
from mooring.pki.keys import generate_key
from mooring.pki.x509.requests import build_request
from mooring.pki.x509.signers import KUBELET_SERVING, NODE_NAME

KEY = generate_key()


def request(user: str = "jane", **spec: object) -> Obj:
    text = base64.b64encode(build_request(KEY, user, ())).decode()
    return {"spec": {"request": text, **spec}, "status": {}}


def in_state(*conditions: tuple[str, str], certificate: str = "") -> Obj:
    listed = [{"type": name, "status": status} for name, status in conditions]
    return {"status": {"conditions": listed, "certificate": certificate}}


@pytest.mark.parametrize(
    ("csr", "undecided", "unsigned"),
    [
        pytest.param({}, True, False, id="one without a status waits for a decision"),
        pytest.param(in_state(("NeedsApproval", "True")), True, False, id="a held one waits for a decision"),
        pytest.param(in_state((APPROVED, "True")), False, True, id="an approved one waits for the signer"),
        pytest.param(in_state((APPROVED, "False")), False, True, id="an approval counts by its presence"),
        pytest.param(in_state((APPROVED, "True"), (DENIED, "True")), False, False, id="a denial outweighs an approval"),
        pytest.param(in_state((DENIED, "False")), False, False, id="a denial counts by its presence"),
        pytest.param(in_state((APPROVED, "True"), (FAILED, "True")), False, False, id="a failed one is not signed"),
        pytest.param(
            in_state((APPROVED, "True"), (FAILED, "False")), False, True, id="a failure counts when it is true"
        ),
        pytest.param(
            in_state((APPROVED, "True"), certificate="MQ=="), False, False, id="an issued one waits for nothing"
        ),
        pytest.param(in_state(certificate="MQ=="), False, False, id="a certificate without an approval is one, too"),
    ],
)
def test_states(csr: Obj, undecided: bool, unsigned: bool) -> None:
    assert (is_undecided(csr), is_approved_and_unsigned(csr)) == (undecided, unsigned)


@pytest.mark.parametrize(
    ("csr", "node"),
    [
        pytest.param(request("system:node:n1"), "n1", id="the subject names the node"),
        pytest.param(request(), "", id="that of a user names none"),
        pytest.param(request(extra={NODE_NAME: ["n2"]}), "n2", id="what the server stated outweighs the subject"),
        pytest.param({"spec": {"request": "MQ=="}}, "", id="a request that cannot be read names none"),
        pytest.param({"spec": {"request": "?"}}, "", id="a request that is not base64 names none"),
        pytest.param({}, "", id="one without a spec names none"),
    ],
)
def test_the_node_of_a_request(csr: Obj, node: str) -> None:
    assert requested_node(csr) == node


def test_a_parsed_request_has_the_names_that_its_signer_decides() -> None:
    assert parsed_request(request("system:node:n1", signerName=KUBELET_SERVING)).common_name == "system:node:n1"


def test_a_condition_replaces_that_of_its_type_and_the_request_stays_as_it_was() -> None:
    csr = in_state((APPROVED, "True"), ("NeedsApproval", "True"))
    changed = with_condition(csr, "NeedsApproval", "NameTaken", "delete the Node")
    assert changed["status"]["conditions"] == [
        {"type": APPROVED, "status": "True"},
        {"type": "NeedsApproval", "status": "True", "reason": "NameTaken", "message": "delete the Node"},
    ]
    assert csr == in_state((APPROVED, "True"), ("NeedsApproval", "True"))


def test_a_condition_that_is_not_there_is_not_removed() -> None:
    csr = in_state((APPROVED, "True"))
    assert without_condition(csr, DENIED) is csr
    assert without_condition(csr, APPROVED)["status"]["conditions"] == []
