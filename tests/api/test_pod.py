"""Pod: defaults, status, quality of service, grace period, protobuf form.

Source: docs/protocol/selectors.md, docs/protocol/negotiation.md#field-numbers, docs/protocol/patches.md.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from mooring.api.core.poddefaults import is_latest, qos_class
from mooring.api.kinds import BY_PLURAL
from mooring.apimachinery.codec.protobuf import decode_message, encode_message
from mooring.apimachinery.codec.unmarshal import unmarshal
from mooring.apimachinery.patch import strategic_merge_patch
from mooring.apimachinery.schema import ListOf, MapOf, Message, Scalar, Type
from mooring.clock import rfc3339
from mooring.errors import BadRequestError, InvalidError
from tests.support.changes import NOW, created, updated
from tests.support.shapes import objects

POD = BY_PLURAL["pods"]

Obj = dict[str, Any]

C = {"name": "c", "image": "i:1"}


def spec_of(given: Obj) -> Obj:
    """Return the spec after a create, which must be valid."""
    obj, errors = created(POD, {"spec": {"containers": [C], **copy.deepcopy(given)}})
    assert errors == []
    spec: Obj = obj["spec"]
    return spec


def test_a_small_pod_gets_its_defaults() -> None:
    obj, errors = created(POD, {"spec": {"containers": [C]}})
    assert errors == []
    assert obj["spec"] == {
        "containers": [
            {
                "name": "c",
                "image": "i:1",
                "imagePullPolicy": "IfNotPresent",
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
            }
        ],
        "restartPolicy": "Always",
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "terminationGracePeriodSeconds": 30,
        "enableServiceLinks": True,
        "securityContext": {},
    }
    assert obj["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    assert obj["metadata"]["generation"] == 1


@pytest.mark.parametrize(
    ("container", "made"),
    [
        pytest.param(
            {"ports": [{"containerPort": 80}]},
            {"ports": [{"containerPort": 80, "protocol": "TCP"}]},
            id="ports speak TCP",
        ),
        pytest.param(
            {"ports": [{"containerPort": 53, "protocol": "UDP"}]},
            {"ports": [{"containerPort": 53, "protocol": "UDP"}]},
            id="unless they say otherwise",
        ),
        pytest.param(
            {"resources": {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}},
            {"resources": {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}}},
            id="requests are limits",
        ),
        pytest.param(
            {"resources": {"requests": {"cpu": "1"}}},
            {"resources": {"requests": {"cpu": "1"}}},
            id="but limits no requests",
        ),
        pytest.param(
            {
                "env": [
                    {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                    {"name": "B", "value": "b"},
                ]
            },
            {
                "env": [
                    {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name", "apiVersion": "v1"}}},
                    {"name": "B", "value": "b"},
                ]
            },
            id="fields are those of v1",
        ),
        pytest.param(
            {"livenessProbe": {"httpGet": {"port": 80}}, "readinessProbe": {"grpc": {"port": 1}, "periodSeconds": 5}},
            {
                "livenessProbe": {
                    "httpGet": {"port": 80, "path": "/", "scheme": "HTTP"},
                    "timeoutSeconds": 1,
                    "periodSeconds": 10,
                    "successThreshold": 1,
                    "failureThreshold": 3,
                },
                "readinessProbe": {
                    "grpc": {"port": 1, "service": ""},
                    "timeoutSeconds": 1,
                    "periodSeconds": 5,
                    "successThreshold": 1,
                    "failureThreshold": 3,
                },
            },
            id="probes have a rhythm",
        ),
        pytest.param(
            {"lifecycle": {"preStop": {"httpGet": {"port": "x"}}, "stopSignal": "SIGTERM"}},
            {
                "lifecycle": {
                    "preStop": {"httpGet": {"port": "x", "path": "/", "scheme": "HTTP"}},
                    "stopSignal": "SIGTERM",
                }
            },
            id="hooks ask for the root",
        ),
    ],
)
def test_defaults_of_containers(container: Obj, made: Obj) -> None:
    spec = spec_of({"containers": [C | container]})
    assert {name: spec["containers"][0][name] for name in made} == made


@pytest.mark.parametrize(
    ("image", "latest"),
    [
        ("nginx", True),
        ("nginx:latest", True),
        ("r.example:5000/nginx", True),
        ("r.example:5000/nginx:1", False),
        ("nginx:1", False),
        ("nginx@sha256:ab", False),
        ("nginx:latest@sha256:ab", True),
    ],
)
def test_the_default_image_pull_policy(image: str, latest: bool) -> None:
    assert is_latest(image) is latest
    container = spec_of({"containers": [{"name": "c", "image": image}]})["containers"][0]
    assert container["imagePullPolicy"] == ("Always" if latest else "IfNotPresent")


@pytest.mark.parametrize(
    ("volume", "made"),
    [
        pytest.param({}, {"emptyDir": {}}, id="no source is an empty directory"),
        pytest.param({"emptyDir": {"medium": "Memory"}}, {"emptyDir": {"medium": "Memory"}}, id="a source is kept"),
        pytest.param(
            {"hostPath": {"path": "/p"}}, {"hostPath": {"path": "/p", "type": ""}}, id="a host path checks nothing"
        ),
        pytest.param(
            {"secret": {"secretName": "s"}},
            {"secret": {"secretName": "s", "defaultMode": 420}},
            id="files have mode 0644",
        ),
        pytest.param(
            {"configMap": {"name": "s", "defaultMode": 256}},
            {"configMap": {"name": "s", "defaultMode": 256}},
            id="or the one they were given",
        ),
        pytest.param(
            {"downwardAPI": {"items": [{"path": "p", "fieldRef": {"fieldPath": "f"}}, {"path": "q"}]}},
            {
                "downwardAPI": {
                    "items": [{"path": "p", "fieldRef": {"fieldPath": "f", "apiVersion": "v1"}}, {"path": "q"}],
                    "defaultMode": 420,
                }
            },
            id="facts are fields of v1",
        ),
        pytest.param(
            {
                "projected": {
                    "sources": [{"serviceAccountToken": {"path": "t"}}, {"downwardAPI": {}}, {"secret": {"name": "s"}}]
                }
            },
            {
                "projected": {
                    "sources": [
                        {"serviceAccountToken": {"path": "t", "expirationSeconds": 3600}},
                        {"downwardAPI": {}},
                        {"secret": {"name": "s"}},
                    ],
                    "defaultMode": 420,
                }
            },
            id="tokens live for an hour",
        ),
        pytest.param(
            {"iscsi": {"targetPortal": "t", "iqn": "q", "lun": 0}},
            {"iscsi": {"targetPortal": "t", "iqn": "q", "lun": 0, "iscsiInterface": "default"}},
            id="the usual interface",
        ),
        pytest.param(
            {"rbd": {"monitors": ["m"], "image": "i", "pool": "p"}},
            {"rbd": {"monitors": ["m"], "image": "i", "pool": "p", "user": "admin", "keyring": "/etc/ceph/keyring"}},
            id="the usual pool and user",
        ),
        pytest.param(
            {"azureDisk": {"diskName": "d", "diskURI": "u"}},
            {
                "azureDisk": {
                    "diskName": "d",
                    "diskURI": "u",
                    "cachingMode": "ReadWrite",
                    "kind": "Shared",
                    "fsType": "ext4",
                    "readOnly": False,
                }
            },
            id="the usual disk",
        ),
        pytest.param(
            {"scaleIO": {"gateway": "g", "system": "s", "volumeName": "v", "secretRef": {"name": "n"}}},
            {
                "scaleIO": {
                    "gateway": "g",
                    "system": "s",
                    "volumeName": "v",
                    "secretRef": {"name": "n"},
                    "storageMode": "ThinProvisioned",
                    "fsType": "xfs",
                }
            },
            id="the usual file system",
        ),
    ],
)
def test_defaults_of_volumes(volume: Obj, made: Obj) -> None:
    assert spec_of({"volumes": [{"name": "v", **volume}]})["volumes"] == [{"name": "v", **made}]


@pytest.mark.parametrize(
    "given", [{"serviceAccountName": "a"}, {"serviceAccount": "a"}, {"serviceAccountName": "a", "serviceAccount": "b"}]
)
def test_the_service_account_has_two_names(given: Obj) -> None:
    spec = spec_of(given)
    assert (spec["serviceAccountName"], spec["serviceAccount"]) == ("a", "a")


def test_a_container_without_an_image_is_not_latest() -> None:
    assert not is_latest("")


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"volumes": [{"emptyDir": []}]}, "Volume.spec.volumes.VolumeSource.emptyDir of type v1.EmptyDirVolumeSource"),
        (
            {"containers": [{"livenessProbe": {"httpGet": {"path": []}}}]},
            "HTTPGetAction.spec.containers.livenessProbe.ProbeHandler.httpGet.path of type string",
        ),
        (
            {"ephemeralContainers": [{"image": []}]},
            "EphemeralContainer.spec.ephemeralContainers.EphemeralContainerCommon.image of type string",
        ),
    ],
)
def test_errors_name_the_structs_that_go_embeds(spec: Obj, field: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        unmarshal({"spec": spec}, POD.resource.schema)
    assert caught.value.message == f"json: cannot unmarshal array into Go struct field {field}"


def test_with_host_network_the_host_port_is_the_container_port() -> None:
    container = C | {"ports": [{"containerPort": 80}, {"containerPort": 81, "hostPort": 81}]}
    ports = spec_of({"hostNetwork": True, "containers": [container]})["containers"][0]["ports"]
    assert [(port["containerPort"], port["hostPort"]) for port in ports] == [(80, 80), (81, 81)]


def test_the_server_sets_the_status_of_a_new_pod() -> None:
    gated = {
        "spec": {"containers": [C], "schedulingGates": [{"name": "g"}]},
        "status": {"phase": "Running", "podIP": "10.0.0.1"},
    }
    obj, errors = created(POD, gated)
    assert errors == []
    assert obj["status"]["phase"] == "Pending"
    assert "podIP" not in obj["status"]
    names = ("type", "status", "reason", "lastTransitionTime")
    assert [tuple(one[name] for name in names) for one in obj["status"]["conditions"]] == [
        ("PodScheduled", "False", "SchedulingGated", rfc3339(NOW))
    ]


def test_a_pod_never_starts_with_ephemeral_containers() -> None:
    with pytest.raises(InvalidError) as caught:
        created(
            POD, {"metadata": {"name": "p"}, "spec": {"containers": [C], "ephemeralContainers": [C | {"name": "e"}]}}
        )
    assert caught.value.message == 'Pod "p" is invalid: spec.ephemeralContainers: Forbidden: cannot be set on create'


BOTH = {"cpu": "1", "memory": "1Gi"}


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        pytest.param({"containers": [{}]}, "BestEffort", id="nothing asked"),
        pytest.param(
            {"containers": [{"resources": {"requests": {"cpu": "0", "ephemeral-storage": "1"}}}]},
            "BestEffort",
            id="or nothing that counts",
        ),
        pytest.param({"containers": [{"resources": {"requests": {"cpu": "1"}}}]}, "Burstable", id="something asked"),
        pytest.param(
            {"containers": [{"resources": {"limits": BOTH, "requests": {"cpu": "1000m", "memory": "1024Mi"}}}]},
            "Guaranteed",
            id="exactly the limits asked, however written",
        ),
        pytest.param(
            {"containers": [{"resources": {"limits": BOTH, "requests": {"cpu": "0.5", "memory": "1Gi"}}}]},
            "Burstable",
            id="less than the limits asked",
        ),
        pytest.param(
            {"containers": [{"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}}]},
            "Burstable",
            id="only one of the two limited",
        ),
        pytest.param(
            {"containers": [{"resources": {"limits": BOTH, "requests": BOTH}}, {}]},
            "Burstable",
            id="only one of the containers limited",
        ),
        pytest.param(
            {"containers": [{"resources": {"limits": BOTH, "requests": BOTH}}], "initContainers": [{}]},
            "Burstable",
            id="init containers count",
        ),
        pytest.param(
            {"containers": [{}], "resources": {"limits": BOTH, "requests": BOTH}},
            "Guaranteed",
            id="the Pod's own resources come first",
        ),
    ],
)
def test_quality_of_service_class(spec: Obj, wanted: str) -> None:
    assert qos_class(spec) == wanted


@pytest.mark.parametrize(
    ("status", "made"),
    [
        pytest.param(
            {"podIP": "1.1.1.1", "podIPs": [{"ip": "2.2.2.2"}]},
            {"podIP": "1.1.1.1", "podIPs": [{"ip": "1.1.1.1"}]},
            id="one wins when they differ",
        ),
        pytest.param(
            {"podIPs": [{"ip": "1.1.1.1"}, {"ip": "::1"}]},
            {"podIP": "1.1.1.1", "podIPs": [{"ip": "1.1.1.1"}, {"ip": "::1"}]},
            id="a list makes one",
        ),
        pytest.param(
            {"podIP": "1.1.1.1", "podIPs": [{"ip": "1.1.1.1"}, {"ip": "::1"}]},
            {"podIP": "1.1.1.1", "podIPs": [{"ip": "1.1.1.1"}, {"ip": "::1"}]},
            id="equal ones stay",
        ),
        pytest.param(
            {"hostIP": "1.1.1.1"}, {"hostIP": "1.1.1.1", "hostIPs": [{"ip": "1.1.1.1"}]}, id="as for the host"
        ),
    ],
)
def test_singular_and_plural_address_fields_agree(status: Obj, made: Obj) -> None:
    stored = created(POD, {"spec": {"containers": [C]}})[0]
    assert updated(POD, {"status": status}, stored, "status")[0]["status"] == made | {"qosClass": "BestEffort"}


def test_selectable_fields() -> None:
    obj = created(POD, {"spec": {"containers": [C], "nodeName": "n", "hostNetwork": True, "serviceAccountName": "a"}})[
        0
    ]
    obj["status"] |= {"podIP": "1.1.1.1", "podIPs": [{"ip": "1.1.1.1"}, {"ip": "::1"}], "nominatedNodeName": "m"}
    assert POD.selectable_fields(obj) == {
        "spec.nodeName": "n",
        "spec.restartPolicy": "Always",
        "spec.schedulerName": "default-scheduler",
        "spec.serviceAccountName": "a",
        "spec.hostNetwork": "true",
        "status.phase": "Pending",
        "status.podIP": "1.1.1.1",
        "status.podIPs": "1.1.1.1,::1",
        "status.nominatedNodeName": "m",
    }


def test_patches_merge_containers_by_name() -> None:
    obj = {
        "spec": {
            "containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}],
            "volumes": [{"name": "v", "emptyDir": {}}],
        }
    }
    patch = {
        "spec": {
            "containers": [{"name": "b", "image": "2", "env": [{"name": "E", "value": "e"}]}],
            "volumes": [{"name": "v", "$retainKeys": ["name", "secret"], "secret": {"secretName": "s"}}],
        }
    }
    assert strategic_merge_patch(obj, patch, POD.resource.schema) == {
        "spec": {
            "containers": [
                {"name": "a", "image": "1"},
                {"name": "b", "image": "2", "env": [{"name": "E", "value": "e"}]},
            ],
            "volumes": [{"name": "v", "secret": {"secretName": "s"}}],
        }
    }


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(objects(POD.resource.schema))
def test_every_pod_survives_json_and_protobuf(obj: Obj) -> None:
    again = copy.deepcopy(obj)
    assert unmarshal(again, POD.resource.schema) == []
    assert again == obj
    back = decode_message(encode_message(obj, POD.resource.schema), POD.resource.schema)
    assert without_empty_messages(back, POD.resource.schema) == without_empty_messages(obj, POD.resource.schema)


def without_empty_messages(value: Any, kind: Type) -> Any:
    """Return the value without empty messages, the only difference between JSON and protobuf."""
    match kind:
        case Message():
            shown = {
                field.name: without_empty_messages(value[field.name], field.type)
                for field in kind.fields
                if field.name in value
            }
            return {name: part for name, part in shown.items() if part not in ({}, [])}
        case ListOf():
            return [without_empty_messages(item, kind.item) for item in value]
        case MapOf():
            return {name: without_empty_messages(item, kind.value) for name, item in value.items()}
        case Scalar():
            return value


def test_a_pod_as_client_go_writes_it() -> None:
    """Vector built by hand from generated.proto: spec{volumes{name, volumeSource{secret{secretName}}}, nodeName}."""
    secret = b"\x0a\x01s"
    source = b"\x32" + bytes([len(secret)]) + secret
    volume = b"\x0a\x01v" + b"\x12" + bytes([len(source)]) + source
    spec = b"\x0a" + bytes([len(volume)]) + volume + b"\x52\x01n"
    message = b"\x12" + bytes([len(spec)]) + spec
    assert decode_message(message, POD.resource.schema) == {
        "spec": {"volumes": [{"name": "v", "secret": {"secretName": "s"}}], "nodeName": "n"}
    }


LEGACY: dict[str, Obj] = {
    "awsElasticBlockStore": {"volumeID": "v", "partition": 1},
    "gcePersistentDisk": {"pdName": "d", "readOnly": True},
    "azureDisk": {
        "diskName": "d",
        "diskURI": "u",
        "cachingMode": "None",
        "kind": "Managed",
        "fsType": "",
        "readOnly": False,
    },
    "azureFile": {"secretName": "s", "shareName": "n"},
    "cephfs": {"monitors": ["m1", "m2"], "secretRef": {"name": "s"}, "path": "/p"},
    "cinder": {"volumeID": "v", "secretRef": {"name": "s"}},
    "fc": {"targetWWNs": ["w"], "lun": 0, "wwids": ["i"]},
    "flexVolume": {"driver": "a/b", "options": {"k": "v"}},
    "flocker": {"datasetName": "d"},
    "gitRepo": {"repository": "r", "revision": "c", "directory": "d"},
    "glusterfs": {"endpoints": "e", "path": "p"},
    "iscsi": {"targetPortal": "t", "iqn": "q", "lun": 0, "iscsiInterface": "i", "portals": ["p"], "initiatorName": ""},
    "nfs": {"server": "s", "path": "/p"},
    "photonPersistentDisk": {"pdID": "d", "fsType": "ext4"},
    "portworxVolume": {"volumeID": "v"},
    "quobyte": {"registry": "r", "volume": "v", "tenant": "t"},
    "rbd": {"monitors": ["m"], "image": "i", "pool": "p", "user": "u", "keyring": "k"},
    "scaleIO": {
        "gateway": "g",
        "system": "s",
        "volumeName": "v",
        "storageMode": "m",
        "fsType": "f",
        "sslEnabled": True,
    },
    "storageos": {"volumeName": "v", "volumeNamespace": "n"},
    "vsphereVolume": {"volumePath": "p", "storagePolicyID": "i"},
    "image": {"reference": "i", "pullPolicy": "Never"},
}


@pytest.mark.parametrize("source", LEGACY)
def test_in_tree_volume_sources_keep_their_fields(source: str) -> None:
    volume = {"name": "v", source: LEGACY[source]}
    assert spec_of({"volumes": [volume]})["volumes"] == [volume]
    obj = {"spec": {"volumes": [volume]}}
    assert unmarshal(copy.deepcopy(obj), POD.resource.schema) == []
    assert decode_message(encode_message(obj, POD.resource.schema), POD.resource.schema) == obj


@pytest.mark.parametrize("source", sorted(LEGACY.keys() - {"fc", "flocker", "image"}))
def test_required_fields_of_in_tree_volume_sources(source: str) -> None:
    _, errors = created(POD, {"spec": {"containers": [C], "volumes": [{"name": "v", source: {}}]}})
    assert errors
    assert all(
        error.startswith(f"spec.volumes[0].{source}.") and error.endswith(": Required value") for error in errors
    )


@pytest.mark.parametrize(
    ("phase", "bound", "asked", "seconds"),
    [
        pytest.param("Running", True, None, 45, id="the spec decides where the request does not"),
        pytest.param("Running", True, 5, 5, id="the request decides"),
        pytest.param("Running", True, 0, 0, id="the request may ask for none"),
        pytest.param("Running", True, -1, 1, id="a negative period is one second"),
        pytest.param("Pending", True, None, 45, id="a Pod that its node has not started"),
        pytest.param("Pending", False, 5, 0, id="a Pod without a node goes at once"),
        pytest.param("Succeeded", True, 5, 0, id="a Pod that succeeded goes at once"),
        pytest.param("Failed", True, None, 0, id="a Pod that failed goes at once"),
    ],
)
def test_grace_period_of_a_delete(phase: str, bound: bool, asked: int | None, seconds: int) -> None:
    spec = {"terminationGracePeriodSeconds": 45} | ({"nodeName": "n1"} if bound else {})
    assert POD.graceful
    assert POD.grace_seconds({"spec": spec, "status": {"phase": phase}}, asked) == seconds
