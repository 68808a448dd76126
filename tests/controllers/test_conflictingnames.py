"""Machines that got certificates for names before an API server had them are found, apart from those that run one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from mooring.apimachinery.schema import Obj
from mooring.controllers.certificates.sanpolicy.evidence import Conflict, conflicts
from mooring.pki.x509.canonicalnames import canonical
from tests.support.plans import HOUR, NOW, moment, thing, views

SERVER = ("api.example.com", "192.0.2.82", "2001:db8::82")
LABEL = {"node-role.kubernetes.io/control-plane": ""}


def identity(*names: str, until: timedelta = HOUR, **spec: Any) -> Obj:
    return thing("n1", spec={**spec, "certifiedNames": [{"name": one, "notAfter": moment(until)} for one in names]})


def entry(*names: str, node: str = "n1", **spec: Any) -> Obj:
    return thing("m1", spec={"nodeName": node, "servingNames": list(names), **spec})


def found(one: Obj, *names: str, **more: list[Obj]) -> list[Conflict]:
    return list(conflicts(list(map(canonical, names or SERVER)), views(nodeidentities=[one], **more), NOW))


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        pytest.param(identity("n1", "192.0.2.82"), ("192.0.2.82",), id="an address"),
        pytest.param(identity("api.example.com", "2001:db8::82"), ("2001:db8::82", "api.example.com"), id="two names"),
        pytest.param(identity("192.0.2.82", nodeUID="u0"), ("192.0.2.82",), id="of a Node that was deleted"),
    ],
)
def test_a_certificate_for_a_name_of_an_api_server_is_found(one: Obj, expected: tuple[str, ...]) -> None:
    assert found(one) == [Conflict("n1", expected, moment(HOUR))]


@pytest.mark.parametrize(
    ("one", "known"),
    [
        pytest.param(identity("n1", "192.0.2.1"), {}, id="other names"),
        pytest.param(thing("n1", spec={}), {}, id="no certificate"),
        pytest.param(identity("192.0.2.82", until=-HOUR), {}, id="a certificate that has ended"),
        pytest.param(
            identity("192.0.2.82"), {"nodes": [thing("n1", metadata={"labels": LABEL})]}, id="a labelled Node"
        ),
        pytest.param(
            identity("api.example.com"), {"authorizedmachines": [entry("API.example.com")]}, id="an entry with the name"
        ),
        pytest.param(
            identity("api.example.com"),
            {"authorizedmachines": [entry("api.example.com")], "nodes": [thing("n1", metadata={"labels": LABEL})]},
            id="an entry for a labelled Node",
        ),
    ],
)
def test_a_machine_without_such_a_name_or_that_runs_a_server_is_not(one: Obj, known: dict[str, list[Obj]]) -> None:
    assert found(one, **known) == []


@pytest.mark.parametrize(
    ("one", "known"),
    [
        pytest.param(
            identity("api.example.com"), {"nodes": [thing("n1", metadata={"labels": LABEL})]},
            id="a name that the label does not stand for",
        ),
        pytest.param(identity("192.0.2.82"), {"nodes": [thing("n1")]}, id="a Node without the label"),
        pytest.param(identity("192.0.2.82"), {"authorizedmachines": [entry("192.0.2.83")]}, id="an entry with another name"),
        pytest.param(identity("192.0.2.82"), {"authorizedmachines": [entry("192.0.2.82", node="n*")]}, id="of many machines"),
        pytest.param(
            identity("192.0.2.82", changedAt=moment(-HOUR)),
            {"authorizedmachines": [entry("192.0.2.82", keyFingerprint="sha256:0")]}, id="whose proof was not given",
        ),
    ],
)  # fmt: skip
def test_what_an_administrator_did_not_grant_is_found(one: Obj, known: dict[str, list[Obj]]) -> None:
    assert [conflict.node for conflict in found(one, **known)] == ["n1"]


def test_the_name_of_a_labelled_node_is_its_own() -> None:
    nodes = [thing("n1", metadata={"labels": LABEL})]
    assert found(identity("n1"), "n1", nodes=nodes) == []
    (other,) = found(identity("n1"), "n1")
    assert f"Node n1 may have a serving certificate, until {moment(HOUR)}, for n1, where" in str(other)
