"""K3sControllerRestriction: what the user that all agents of k3s share may change."""

from __future__ import annotations

from typing import Any

import pytest

from mooring.api.kind import Change
from mooring.api.kinds import BY_PLURAL
from mooring.apimachinery.schema import Obj
from mooring.authz.decision import Decision, Ruling
from mooring.errors import ForbiddenError
from mooring.identity import NODE_NAME, UserInfo
from mooring.registry.admission.request import AdmissionRequest
from mooring.registry.admission.table import ADMISSION, ALWAYS_ENABLED

BOUND = UserInfo("system:k3s-controller", extra={NODE_NAME: ("n1",)})
UNBOUND = UserInfo("system:k3s-controller")
OLD: Obj = {
    "metadata": {"name": "n1", "labels": {"a": "b"}, "annotations": {"x": "y"}},
    "spec": {"taints": [{"key": "t", "effect": "NoSchedule"}]},
    "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}], "conditions": []},
}


def changed(**parts: Obj) -> Obj:
    return {**OLD, **{name: {**OLD[name], **part} for name, part in parts.items()}}


def admit(new: Obj | None, *, user: UserInfo = BOUND, old: Obj | None = OLD, **more: Any) -> None:
    request: dict[str, Any] = {"name": "n1", "subresource": "status", "kind": BY_PLURAL["nodes"], **more}
    ADMISSION["K3sControllerRestriction"]().admit(
        AdmissionRequest(
            operation="CREATE" if old is None else "UPDATE" if new is not None else "DELETE",
            namespace="",
            new=new,
            old=old,
            change=Change(user, None),  # type: ignore[arg-type]  # no plugin reads the time
            views={},
            authorize=lambda attributes: Decision(Ruling.ALLOW),
            **request,
        )
    )


@pytest.mark.parametrize(
    ("new", "more"),
    [
        pytest.param(OLD, {}, id="nothing"),
        pytest.param(changed(metadata={"annotations": {"flannel.alpha.coreos.com/public-ip": "192.0.2.1"}}), {}, id="annotations"),
        pytest.param(changed(status={"conditions": [{"type": "NetworkUnavailable"}]}), {}, id="conditions"),
        pytest.param(changed(metadata={"finalizers": [], "ownerReferences": []}), {}, id="empty instead of missing"),
        pytest.param(changed(metadata={"labels": {}}), {"user": UserInfo("jane")}, id="another user is not concerned"),
        pytest.param(OLD, {"kind": BY_PLURAL["pods"], "user": UNBOUND}, id="another kind is not concerned"),
    ],
)  # fmt: skip
def test_what_it_may_change(new: Obj, more: dict[str, Any]) -> None:
    admit(new, **more)


@pytest.mark.parametrize(
    ("new", "more", "message"),
    [
        pytest.param(changed(metadata={"labels": {"a": "c"}}), {}, "modify metadata.labels", id="a label"),
        pytest.param(changed(metadata={"labels": None}), {}, "modify metadata.labels", id="no labels"),
        pytest.param(changed(metadata={"finalizers": ["a/b"]}), {}, "modify metadata.finalizers", id="a finalizer"),
        pytest.param(
            changed(metadata={"ownerReferences": [{"name": "x"}]}), {}, "modify metadata.ownerReferences", id="an owner"
        ),
        pytest.param(changed(spec={"taints": []}), {}, "modify spec", id="taints"),
        pytest.param(changed(status={"addresses": []}), {}, "modify status.addresses", id="its addresses"),
        pytest.param(changed(status={"addresses": []}), {"subresource": ""}, "status.addresses", id="by the Node itself"),
        pytest.param(OLD, {"name": "n2"}, 'node "n1" is not allowed to modify node "n2"', id="another Node"),
        pytest.param(OLD, {"user": UNBOUND}, "names no machine: restart the agent", id="a certificate of before"),
        pytest.param(OLD, {"old": None, "subresource": ""}, "neither create nor delete", id="a new Node"),
        pytest.param(None, {"subresource": ""}, "neither create nor delete", id="a deletion"),
    ],
)  # fmt: skip
def test_what_it_may_not_change(new: Obj | None, more: dict[str, Any], message: str) -> None:
    with pytest.raises(ForbiddenError, match=message):
        admit(new, **more)


def test_it_cannot_be_turned_off() -> None:
    assert "K3sControllerRestriction" in ALWAYS_ENABLED
