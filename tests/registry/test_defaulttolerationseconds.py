"""Test the admission plugin DefaultTolerationSeconds (Kubernetes documentation "Taints and Tolerations")."""

from __future__ import annotations

from typing import Any

import pytest

from mooring.api.kind import Change
from mooring.api.kinds import BY_PLURAL
from mooring.apimachinery.schema import Obj
from mooring.identity import UserInfo
from mooring.registry.admission.request import AdmissionRequest
from mooring.registry.admission.table import ADMISSION
from tests.support.manualclock import EPOCH
from tests.support.registryroom import masters_only

NOT_READY, UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"


def admitted(pod: Obj, **more: Any) -> Obj:
    """Return the Pod that admission makes of `pod`."""
    plural = more.pop("plural", "pods")
    settings: dict[str, Any] = {"operation": "CREATE", "old": None, "new": pod, "subresource": ""} | more
    ADMISSION["DefaultTolerationSeconds"]().admit(
        AdmissionRequest(
            kind=BY_PLURAL[plural],
            namespace="x",
            name="p",
            change=Change(UserInfo("jane"), EPOCH),
            views={},
            authorize=masters_only,
            **settings,
        )
    )
    return pod


def added(key: str) -> Obj:
    return {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}


@pytest.mark.parametrize(
    ("given", "keys"),
    [
        pytest.param(None, [NOT_READY, UNREACHABLE], id="a Pod without tolerations gets both"),
        pytest.param([{"key": "dedicated"}], [NOT_READY, UNREACHABLE], id="another taint does not count"),
        pytest.param([{"key": NOT_READY, "effect": "NoSchedule"}], [NOT_READY, UNREACHABLE], id="nor another effect"),
        pytest.param([{"key": NOT_READY, "effect": "NoExecute"}], [UNREACHABLE], id="one that it names stays its own"),
        pytest.param([{"key": UNREACHABLE}], [NOT_READY], id="no effect means every effect"),
        pytest.param([{"operator": "Exists"}], [], id="no key means every taint"),
    ],
)
@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
def test_missing_tolerations_are_added(given: list[Obj] | None, keys: list[str], operation: str) -> None:
    pod = {"spec": {"tolerations": given}} if given is not None else {}
    found = admitted(pod, operation=operation)
    assert found["spec"].get("tolerations") == [*(given or []), *map(added, keys)]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"subresource": "status"}, id="a subresource"),
        pytest.param({"plural": "configmaps"}, id="another kind"),
        pytest.param({"operation": "DELETE", "new": None}, id="a delete"),
    ],
)
def test_other_requests_are_not_changed(other: dict[str, Any]) -> None:
    pod: Obj = {}
    admitted(pod, **({"new": pod} | other))
    assert pod == {}
