"""Test the admission plugin ServiceAccount (Kubernetes documentation "Configure Service Accounts for Pods")."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from mooring.api.kind import Change
from mooring.api.kinds import BY_PLURAL
from mooring.api.view import FixedView
from mooring.apimachinery.schema import Obj
from mooring.errors import ForbiddenError
from mooring.identity import UserInfo
from mooring.registry.admission.pods import ENFORCE, MOUNT_PATH
from mooring.registry.admission.request import AdmissionRequest
from mooring.registry.admission.table import ADMISSION
from tests.support.manualclock import EPOCH
from tests.support.registryroom import Room, in_room, masters_only

PLUGIN = ADMISSION["ServiceAccount"]()
DEFAULT: Obj = {"metadata": {"name": "default", "namespace": "x"}}
MIRROR = {"annotations": {"kubernetes.io/config.mirror": "h"}}
CONTAINER: Obj = {"name": "c", "image": "i"}
AT_HOME: Obj = {**CONTAINER, "volumeMounts": [{"name": "mine", "mountPath": MOUNT_PATH}]}
NAME = "kube-api-access-"


def request(spec: Obj, *accounts: Obj, metadata: Obj | None = None, **more: Any) -> AdmissionRequest:
    pod = {
        "metadata": {"name": "p", "namespace": "x", "uid": "u-1", **(metadata or {})},
        "spec": {"containers": [CONTAINER], **spec},
    }
    asked: dict[str, Any] = {"operation": "CREATE", "new": copy.deepcopy(pod), "old": None, "subresource": "", **more}
    return AdmissionRequest(
        kind=BY_PLURAL["pods"],
        namespace="x",
        name="p",
        change=Change(UserInfo("jane"), EPOCH),
        views={"serviceaccounts": FixedView(accounts)},
        authorize=masters_only,
        **asked,
    )


def admitted(spec: Obj, *accounts: Obj, **more: Any) -> Obj:
    """Return the spec that admission makes of `spec`."""
    asked = request(spec, *(accounts or (DEFAULT,)), **more)
    PLUGIN.admit(asked)
    assert asked.new is not None
    found: Obj = asked.new["spec"]
    return found


def account(name: str = "default", **more: Any) -> Obj:
    return {"metadata": {"name": name, "namespace": "x", **more.pop("metadata", {})}, **more}


def test_a_pod_runs_as_the_default_account_with_its_token_at_the_usual_place() -> None:
    spec = admitted({})
    assert (spec["serviceAccountName"], spec["serviceAccount"]) == ("default", "default")
    (volume,) = spec["volumes"]
    assert volume["name"].startswith(NAME)
    assert len(volume["name"]) == len(NAME) + 5
    assert volume["projected"] == {
        "sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {
                "downwardAPI": {
                    "items": [
                        {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
                    ]
                }
            },
        ],
        "defaultMode": 0o644,
    }
    (container,) = spec["containers"]
    assert container["volumeMounts"] == [{"name": volume["name"], "readOnly": True, "mountPath": MOUNT_PATH}]


def test_the_name_of_the_volume_follows_from_the_uid() -> None:
    first, second, third = (admitted({}, metadata={"uid": uid})["volumes"][0]["name"] for uid in ("u-1", "u-1", "u-2"))
    assert first == second != third


@pytest.mark.parametrize(
    ("of_pod", "of_account", "mounted"),
    [
        pytest.param(None, None, True, id="nobody says: mounted"),
        pytest.param(None, False, False, id="the account is against it"),
        pytest.param(None, True, True, id="the account is for it"),
        pytest.param(True, False, True, id="the pod is for it, which counts more"),
        pytest.param(False, True, False, id="the pod is against it, which counts more"),
    ],
)
def test_who_decides_whether_the_token_is_mounted(of_pod: bool | None, of_account: bool | None, mounted: bool) -> None:
    spec = {} if of_pod is None else {"automountServiceAccountToken": of_pod}
    decided: Obj = {} if of_account is None else {"automountServiceAccountToken": of_account}
    owner = account(**decided)
    assert ("volumes" in admitted(spec, owner)) is mounted


@pytest.mark.parametrize(
    ("given", "volumes", "mounts"),
    [
        pytest.param({"containers": [AT_HOME]}, [], [["mine"]], id="a mount at the usual place is left alone"),
        pytest.param(
            {"containers": [AT_HOME, CONTAINER], "volumes": [{"name": "v"}]},
            ["v", "new"],
            [["mine"], ["new"]],
            id="while the other container gets one",
        ),
        pytest.param(
            {"initContainers": [CONTAINER], "containers": [AT_HOME]},
            ["new"],
            [["new"], ["mine"]],
            id="as init containers do",
        ),
        pytest.param(
            {"volumes": [{"name": "kube-api-access-own"}]},
            ["kube-api-access-own"],
            [["kube-api-access-own"]],
            id="a volume of that name is used instead of a new one",
        ),
        pytest.param(
            {"containers": [{**CONTAINER, "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]},
            ["new"],
            [["v", "new"]],
            id="mounts elsewhere stay",
        ),
    ],
)
def test_what_is_mounted_where(given: Obj, volumes: list[str], mounts: list[list[str]]) -> None:
    generated = admitted({})["volumes"][0]["name"]
    spec = admitted(given)

    def told(names: list[Obj]) -> list[str]:
        return ["new" if named["name"] == generated else named["name"] for named in names]

    assert told(spec.get("volumes", [])) == volumes
    containers = [*spec.get("initContainers", ()), *spec["containers"]]
    assert [told(container["volumeMounts"]) for container in containers] == mounts


@pytest.mark.parametrize(
    ("given", "pulling"),
    [
        pytest.param({}, [{"name": "a"}, {"name": "b"}], id="none named: the account's"),
        pytest.param({"imagePullSecrets": []}, [{"name": "a"}, {"name": "b"}], id="an empty list is none"),
        pytest.param({"imagePullSecrets": [{"name": "c"}]}, [{"name": "c"}], id="the pod's own, if it names any"),
    ],
)
def test_images_are_pulled_with_the_secrets_of_the_account(given: Obj, pulling: list[Obj]) -> None:
    owner = account(imagePullSecrets=[{"name": "a"}, {"name": "b"}])
    assert admitted(given, owner)["imagePullSecrets"] == pulling


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        pytest.param(
            {}, 'error looking up service account x/default: serviceaccount "default" not found', id="not even default"
        ),
        pytest.param(
            {"serviceAccountName": "robot"},
            'error looking up service account x/robot: serviceaccount "robot" not found',
            id="the one named",
        ),
    ],
)
def test_a_pod_of_an_account_that_is_not_there_is_refused(spec: Obj, why: str) -> None:
    elsewhere = [{"metadata": {"name": name, "namespace": "y"}} for name in ("default", "robot")]
    with pytest.raises(ForbiddenError) as refused:
        PLUGIN.admit(request(spec, *elsewhere))
    assert refused.value.message == f'pods "p" is forbidden: {why}'


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"operation": "UPDATE"}, id="an update"),
        pytest.param({"operation": "DELETE", "new": None}, id="a delete"),
        pytest.param({"subresource": "status"}, id="a status"),
        pytest.param({"metadata": MIRROR, "spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}, id="a mirror pod"),
    ],
)
def test_what_is_left_alone(changes: dict[str, Any]) -> None:
    asked = request(changes.pop("spec", {}), DEFAULT, **changes)
    before = copy.deepcopy(asked.new)
    PLUGIN.admit(asked)
    assert asked.new == before


def projecting(source: Obj) -> Obj:
    return {"volumes": [{"name": "v", "projected": {"sources": [source]}}]}


def in_container(part: Obj, place: str = "containers") -> Obj:
    return {place: [{**CONTAINER, **part}]}


SECRETS = {
    "a volume": {"volumes": [{"name": "v", "secret": {"secretName": "s"}}]},
    "one source of a volume": projecting({"secret": {"name": "s"}}),
    "a volume's driver": {"volumes": [{"name": "v", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "s"}}}]},
    "all variables": in_container({"envFrom": [{"configMapRef": {"name": "m"}}, {"secretRef": {"name": "s"}}]}),
    "one variable": in_container(
        {"env": [{"name": "a"}, {"name": "e", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}
    ),
    "an init container": in_container({"envFrom": [{"secretRef": {"name": "s"}}]}, "initContainers"),
    "pulling images": {"imagePullSecrets": [{"name": "s"}]},
}


@pytest.mark.parametrize("spec", SECRETS.values(), ids=SECRETS)
def test_a_mirror_pod_may_use_no_secret(spec: Obj) -> None:
    with pytest.raises(ForbiddenError, match="a mirror pod may not reference secrets"):
        PLUGIN.admit(request(spec, DEFAULT, metadata=MIRROR))


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        pytest.param({"serviceAccountName": "a"}, "a mirror pod may not reference service accounts", id="an account"),
        pytest.param(
            projecting({"serviceAccountToken": {"path": "t"}}),
            "a mirror pod may not use ServiceAccountToken volume projections",
            id="its token",
        ),
    ],
)
def test_a_mirror_pod_is_nobody(spec: Obj, why: str) -> None:
    with pytest.raises(ForbiddenError, match=why):
        PLUGIN.admit(request(spec, DEFAULT, metadata=MIRROR))


@pytest.mark.parametrize("spec", SECRETS.values(), ids=SECRETS)
@pytest.mark.parametrize("enforced", ["true", "false", None])
def test_an_account_may_limit_its_pods_to_the_secrets_it_lists(spec: Obj, enforced: str | None) -> None:
    metadata = {"annotations": {ENFORCE: enforced}} if enforced else {}
    listing = account(secrets=[{"name": "s"}], imagePullSecrets=[{"name": "s"}], metadata=metadata)
    other = account(secrets=[{"name": "t"}], imagePullSecrets=[{"name": "t"}], metadata=metadata)
    PLUGIN.admit(request(spec, listing))
    if enforced != "true":
        PLUGIN.admit(request(spec, other))
        return
    with pytest.raises(ForbiddenError, match=r'secret "s" is not among the .*[sS]ecrets of service account default, '):
        PLUGIN.admit(request(spec, other))


def test_a_secret_to_pull_images_with_is_not_one_to_mount() -> None:
    pulling = account(imagePullSecrets=[{"name": "s"}], metadata={"annotations": {ENFORCE: "true"}})
    with pytest.raises(ForbiddenError, match='secret "s" is not among the secrets of '):
        PLUGIN.admit(request(SECRETS["a volume"], pulling))


@in_room
async def test_what_admission_adds_is_valid_and_stored(room: Room) -> None:
    await room.create("serviceaccounts", {"metadata": {"name": "default"}})
    pod = (await room.create("pods", {"metadata": {"generateName": "p-"}, "spec": {"containers": [CONTAINER]}})).obj
    assert pod["spec"]["volumes"][0]["name"] == pod["spec"]["containers"][0]["volumeMounts"][0]["name"]
    with pytest.raises(ForbiddenError, match=r"error looking up service account kube-system/default: "):
        await room.create("pods", {"metadata": {"name": "p"}, "spec": {"containers": [CONTAINER]}}, "kube-system")
