"""Validation of updates of a Pod's status (wording as kube-apiserver's)."""

from __future__ import annotations

import pytest

from mooring.api.core.pod import keep_observed_generations, validate_update
from mooring.apimachinery.schema import Obj

MIRROR = "kubernetes.io/config.mirror"
PROFILE = "container.apparmor.security.beta.kubernetes.io/c"
SPEC: Obj = {
    "nodeName": "n1",
    "containers": [{"name": "c", "resources": {"requests": {"example.com/gpu": "1"}}}, {"name": "d"}],
    "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}],
}
MAPPING = {"containerName": "c", "resourceName": "example.com/gpu", "requestName": "r"}


def pod(annotations: Obj | None = None, spec: Obj = SPEC, **status: object) -> Obj:
    return {"metadata": {"name": "p", "annotations": annotations or {}}, "spec": spec, "status": status}


def extended(**changes: object) -> Obj:
    return pod(extendedResourceClaimStatus={"resourceClaimName": "x", "requestMappings": [MAPPING], **changes})


@pytest.mark.parametrize(
    ("old", "new", "path", "detail"),
    [
        pytest.param(
            pod(), pod({MIRROR: "h"}), f"metadata.annotations[{MIRROR}]", "may not add mirror pod annotation", id="mirror added"
        ),
        pytest.param(
            pod({MIRROR: "h"}),
            pod(),
            f"metadata.annotations[{MIRROR}]",
            "may not remove or update mirror pod annotation",
            id="mirror removed",
        ),
        pytest.param(
            pod({MIRROR: "h"}),
            pod({MIRROR: "i"}),
            f"metadata.annotations[{MIRROR}]",
            "may not remove or update mirror pod annotation",
            id="mirror changed",
        ),
        pytest.param(
            pod(), pod({PROFILE: "x"}), f"metadata.annotations[{PROFILE}]", "may not add AppArmor annotations", id="profile added"
        ),
        pytest.param(
            pod({PROFILE: "x"}),
            pod(),
            f"metadata.annotations[{PROFILE}]",
            "may not remove or update AppArmor annotations",
            id="profile removed",
        ),
        pytest.param(pod(spec={}), pod(spec={}, nominatedNodeName="N"), "status.nominatedNodeName", "lowercase", id="no name"),
        pytest.param(
            pod(),
            pod(nominatedNodeName="n2"),
            "status.nominatedNodeName",
            "may not be set on pods that are already bound to a node",
            id="nominated too late",
        ),
        pytest.param(
            pod(), pod(observedGeneration=-1), "status.observedGeneration", "must be a non-negative integer", id="below zero"
        ),
        pytest.param(pod(qosClass="Burstable"), pod(qosClass="Guaranteed"), "status.qosClass", "immutable", id="class"),
        pytest.param(
            pod(),
            pod(resourceClaimStatuses=[{"name": "other"}]),
            "status.resourceClaimStatuses[0].name",
            "must match the name of an entry in `spec.resourceClaims`",
            id="a claim that the spec does not have",
        ),
        pytest.param(
            pod(),
            pod(resourceClaimStatuses=[{"name": "gpu"}, {"name": "gpu"}]),
            "status.resourceClaimStatuses[1].name",
            "",
            id="a claim twice",
        ),
        pytest.param(
            pod(),
            pod(resourceClaimStatuses=[{"name": "gpu", "resourceClaimName": "A/b"}]),
            "status.resourceClaimStatuses[0].resourceClaimName",
            "lowercase",
            id="a claim that can have no such name",
        ),
        pytest.param(
            pod(),
            extended(requestMappings=[]),
            "status.extendedResourceClaimStatus.requestMappings",
            "at least one request mapping is required",
            id="no mapping",
        ),
        pytest.param(
            pod(),
            extended(requestMappings=[MAPPING | {"containerName": "e"}]),
            "status.extendedResourceClaimStatus.requestMappings[0].containerName",
            "must match the name",
            id="a mapping of no container",
        ),
        pytest.param(
            pod(),
            extended(requestMappings=[MAPPING | {"containerName": "d"}]),
            "status.extendedResourceClaimStatus.requestMappings[0].resourceName",
            "must match the extended resource name",
            id="a mapping of nothing requested",
        ),
        pytest.param(
            pod(),
            extended(requestMappings=[MAPPING | {"requestName": "A"}]),
            "status.extendedResourceClaimStatus.requestName",
            "lowercase",
            id="a request that can have no such name",
        ),
        pytest.param(
            pod(),
            extended(resourceClaimName=""),
            "status.extendedResourceClaimStatus.resourceClaimName",
            "",
            id="no claim's name",
        ),
        pytest.param(
            pod(),
            extended(resourceClaimName="A"),
            "status.extendedResourceClaimStatus.resourceClaimName",
            "lowercase",
            id="a claim's name that can be none",
        ),
    ],
)  # fmt: skip
def test_a_refused_status_update(old: Obj, new: Obj, path: str, detail: str) -> None:
    (error,) = validate_update(new, old)
    assert error.field == path
    assert detail in error.detail


def test_an_accepted_status_update() -> None:
    annotated = {MIRROR: "h", PROFILE: "x"}
    old = pod(annotated, qosClass="Burstable", nominatedNodeName="n1")
    new = pod(
        annotated | {"free": "1"},
        qosClass="Burstable",
        nominatedNodeName="n1",
        observedGeneration=2,
        resourceClaimStatuses=[{"name": "gpu", "resourceClaimName": "p-gpu"}],
        extendedResourceClaimStatus={"resourceClaimName": "x", "requestMappings": [MAPPING]},
    )
    assert validate_update(new, old) == []
    assert validate_update(pod(spec={}, nominatedNodeName="n1"), pod(spec={})) == []


def test_a_missing_observed_generation_is_kept() -> None:
    ready, other = {"type": "Ready", "status": "True"}, {"type": "Other", "status": "True"}
    old = pod(observedGeneration=3, conditions=[ready | {"observedGeneration": 2}, ready | {"observedGeneration": 3}])
    new = pod(conditions=[dict(ready), ready | {"observedGeneration": 4}, dict(ready), other])
    keep_observed_generations(new, old)
    assert new["status"]["observedGeneration"] == 3
    assert [one.get("observedGeneration") for one in new["status"]["conditions"]] == [2, 4, None, None]
    newer = pod(observedGeneration=4)
    keep_observed_generations(newer, old)
    assert newer["status"] == {"observedGeneration": 4}
    bare: Obj = {"metadata": {"name": "p"}}
    keep_observed_generations(bare, {"metadata": {"name": "p"}})
    assert bare == {"metadata": {"name": "p"}}
