"""Validation of handlers, affinity, spread constraints and host names of Pods."""

from __future__ import annotations

from typing import Any

import pytest

from mooring.api.core.podvalidation import scheduling_and_probe_errors
from mooring.apimachinery.schema import Obj

FIRST = "spec.containers[0]"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def probe(**handler: Any) -> Obj:
    return {"containers": [{"livenessProbe": handler}]}


def preferred(weight: int = 1, **expression: Any) -> Obj:
    term = {"weight": weight, "preference": {"matchExpressions": [{"key": "a", **expression}]}}
    return {"affinity": {"nodeAffinity": {PREFERRED: [term]}}}


def required(**expression: Any) -> Obj:
    terms = [{"matchExpressions": [{"key": "a", **expression}]}]
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}}


def spread(*constraints: Obj) -> Obj:
    usual = {"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"}
    return {"topologySpreadConstraints": [usual | constraint for constraint in constraints]}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({}, [], id="nothing"),
        pytest.param(probe(exec={"command": ["a"]}), [], id="a command"),
        pytest.param(probe(httpGet={"port": "http", "scheme": "HTTP"}), [], id="a request"),
        pytest.param(probe(grpc={"port": 1}), [], id="a call"),
        pytest.param({"containers": [{"lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}]}, [], id="a sleep"),
        pytest.param(probe(), [f"{FIRST}.livenessProbe"], id="no handler"),
        pytest.param(
            probe(exec={"command": ["a"]}, tcpSocket={"port": 1}),
            [f"{FIRST}.livenessProbe.tcpSocket"],
            id="two handlers",
        ),
        pytest.param(probe(exec={}), [f"{FIRST}.livenessProbe.exec.command"], id="no command"),
        pytest.param(
            probe(httpGet={"port": 0, "scheme": "x"}),
            [f"{FIRST}.livenessProbe.httpGet.port", f"{FIRST}.livenessProbe.httpGet.scheme"],
            id="neither port nor scheme",
        ),
        pytest.param(
            probe(tcpSocket={"port": "-"}),
            [f"{FIRST}.livenessProbe.tcpSocket.port"] * 2,
            id="a port that has no letter and ends wrong",
        ),
        pytest.param(
            {"initContainers": [{"lifecycle": {"postStart": {}}}]},
            ["spec.initContainers[0].lifecycle.postStart"],
            id="a hook without handler",
        ),
        pytest.param(preferred(operator="In", values=["b"]), [], id="a preference"),
        pytest.param(preferred(0, operator="Exists"), [f"{PREFERRED}[0].weight"], id="no weight"),
        pytest.param(
            preferred(operator="In"), [f"{PREFERRED}[0].preference.matchExpressions[0].values"], id="in nothing"
        ),
        pytest.param(
            preferred(operator="x", key="-"),
            [
                f"{PREFERRED}[0].preference.matchExpressions[0].operator",
                f"{PREFERRED}[0].preference.matchExpressions[0].key",
            ],
            id="an unknown operator",
        ),
        pytest.param(required(operator="Gt", values=["1"]), [], id="a requirement"),
        pytest.param(
            required(operator="Lt"),
            [f"{REQUIRED}.nodeSelectorTerms[0].matchExpressions[0].values"],
            id="less than nothing",
        ),
        pytest.param(
            required(operator="Exists", values=["1"]),
            [f"{REQUIRED}.nodeSelectorTerms[0].matchExpressions[0].values"],
            id="existence of a value",
        ),
        pytest.param(spread({}, {"topologyKey": "y"}), [], id="spread"),
        pytest.param(
            spread({"maxSkew": 0, "topologyKey": "", "whenUnsatisfiable": "x"}),
            [f"spec.topologySpreadConstraints[0].{name}" for name in ("maxSkew", "topologyKey", "whenUnsatisfiable")],
            id="spread over nothing",
        ),
        pytest.param(
            spread({}, {}), ["spec.topologySpreadConstraints[0].{topologyKey, whenUnsatisfiable}"], id="spread twice"
        ),
        pytest.param(
            {"dnsConfig": {"nameservers": ["1.1.1.1", "x"], "options": [{"name": "a"}, {}]}},
            ["spec.dnsConfig.nameservers[1]", "spec.dnsConfig.options[1]"],
            id="names",
        ),
        pytest.param(
            {"hostAliases": [{"ip": "1.1.1.1", "hostnames": ["a"]}, {"hostnames": ["-"]}]},
            ["spec.hostAliases[1].ip", "spec.hostAliases[1].hostnames[0]"],
            id="aliases",
        ),
    ],
)
def test_errors_of_a_spec(spec: Obj, expected: list[str]) -> None:
    paths = [error.field.removeprefix("spec.affinity.nodeAffinity.") for error in scheduling_and_probe_errors(spec)]
    assert paths == expected
