"""Validation of Pods (wording as kube-apiserver's; Kubernetes API reference, core/v1 Pod)."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from mooring.api.kinds import BY_PLURAL
from mooring.apimachinery.names import dns1123_label_errors
from tests.support.changes import created, updated

POD = BY_PLURAL["pods"]

Obj = dict[str, Any]

C = {"name": "c", "image": "i:1"}
D = {"name": "d", "image": "i:1"}
(NO_LABEL,) = dns1123_label_errors("A")
NO_SYSCTL = (
    "must have at most 253 characters and match regex "
    r"^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$"
)


@pytest.mark.parametrize(
    ("spec", "errors"),
    [
        ({"containers": []}, ["spec.containers: Required value"]),
        (
            {"containers": [{}]},
            ["spec.containers[0].name: Required value", "spec.containers[0].image: Required value"],
        ),
        ({"containers": [C | {"name": "A"}]}, [f'spec.containers[0].name: Invalid value: "A": {NO_LABEL}']),
        ({"initContainers": [C]}, ['spec.containers[0].name: Duplicate value: "c"']),
        (
            {"containers": [C | {"image": " i"}]},
            ['spec.containers[0].image: Invalid value: " i": must not have leading or trailing whitespace'],
        ),
        (
            {"containers": [C | {"imagePullPolicy": "Sometimes"}]},
            [
                'spec.containers[0].imagePullPolicy: Unsupported value: "Sometimes": supported values: "Always", '
                '"IfNotPresent", "Never"'
            ],
        ),
        (
            {"containers": [C | {"env": [{"value": "x"}, {"name": "E", "value": "x", "valueFrom": {"fieldRef": {}}}]}]},
            [
                "spec.containers[0].env[0].name: Required value",
                'spec.containers[0].env[1].valueFrom: Invalid value: "": may not be specified when `value` is not empty',
            ],
        ),
        (
            {
                "containers": [
                    C
                    | {
                        "env": [
                            {"name": "E", "valueFrom": {}},
                            {"name": "F", "valueFrom": {"secretKeyRef": {"name": "s"}}},
                            {"name": "G", "valueFrom": {"secretKeyRef": {"name": "x" * 254, "key": "%"}}},
                            {"name": "H", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}, "fieldRef": {}}},
                        ]
                    }
                ]
            },
            [
                'spec.containers[0].env[0].valueFrom: Invalid value: "": must specify one of: `fieldRef`, `resourceFieldRef`, '
                "`configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
                "spec.containers[0].env[1].valueFrom.secretKeyRef.key: Required value",
                f'spec.containers[0].env[2].valueFrom.secretKeyRef.name: Invalid value: "{"x" * 254}": must be no more than '
                "253 characters",
                'spec.containers[0].env[2].valueFrom.secretKeyRef.key: Invalid value: "%": a valid config key must consist of '
                "alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for "
                "validation is '[-._a-zA-Z0-9]+')",
                'spec.containers[0].env[3].valueFrom: Invalid value: "": may not have more than one field specified at a time',
            ],
        ),
        (
            {"containers": [C | {"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "2", "memory": "-1"}}}]},
            [
                'spec.containers[0].resources.requests[memory]: Invalid value: "-1": must be greater than or equal to 0',
                'spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1',
            ],
        ),
        (
            {"containers": [C | {"ports": [{}, {"containerPort": 70000, "protocol": "X"}]}]},
            [
                "spec.containers[0].ports[0].containerPort: Required value",
                "spec.containers[0].ports[1].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
                'spec.containers[0].ports[1].protocol: Unsupported value: "X": supported values: "SCTP", "TCP", "UDP"',
            ],
        ),
        (
            {
                "containers": [
                    C
                    | {"ports": [{"name": "n", "containerPort": 1, "hostPort": 9}, {"name": "n", "containerPort": 2}]},
                    D
                    | {
                        "ports": [
                            {"containerPort": 2, "hostPort": 9},
                            {"containerPort": 2, "hostPort": 9, "protocol": "UDP"},
                        ]
                    },
                ]
            },
            [
                'spec.containers[0].ports[1].name: Duplicate value: "n"',
                'spec.containers[1].ports[0].hostPort: Duplicate value: "TCP//9"',
            ],
        ),
        (
            {"hostNetwork": True, "containers": [C | {"ports": [{"containerPort": 1, "hostPort": 2}]}]},
            [
                "spec.containers[0].ports[0].containerPort: Invalid value: 1: must match `hostPort` when `hostNetwork` is true"
            ],
        ),
        (
            {
                "volumes": [{"name": "v"}],
                "containers": [
                    C
                    | {
                        "volumeMounts": [
                            {"name": "v", "mountPath": "/v", "subPath": "a", "subPathExpr": "b"},
                            {"name": "w", "mountPath": "/v"},
                            {},
                        ]
                    }
                ],
            },
            [
                "spec.containers[0].volumeMounts[0].subPathExpr: Forbidden: subPathExpr and subPath are mutually exclusive",
                'spec.containers[0].volumeMounts[1].name: Not found: "w"',
                'spec.containers[0].volumeMounts[1].mountPath: Invalid value: "/v": must be unique',
                "spec.containers[0].volumeMounts[2].name: Required value",
                "spec.containers[0].volumeMounts[2].mountPath: Required value",
            ],
        ),
    ],
    ids=[
        "a pod has a container",
        "a container has a name and an image",
        "names are labels",
        "names are unique over all lists",
        "images have no spaces around",
        "choices are known",
        "a variable has a name and one value",
        "the value of a variable has one source, with its name and key",
        "requests are not above limits, and nothing is negative",
        "ports are in range",
        "ports are not taken twice",
        "the host's network has no other ports",
        "mounts name volumes and paths of their own",
    ],
)
def test_container_validation(spec: Obj, errors: list[str]) -> None:
    assert created(POD, {"spec": copy.deepcopy({"containers": [C], **spec})})[1] == errors


@pytest.mark.parametrize(
    ("volumes", "errors"),
    [
        (
            [{"emptyDir": {}}, {"name": "v"}, {"name": "v"}, {"name": "A"}],
            [
                "spec.volumes[0].name: Required value",
                'spec.volumes[2].name: Duplicate value: "v"',
                f'spec.volumes[3].name: Invalid value: "A": {NO_LABEL}',
            ],
        ),
        (
            [{"name": "v", "emptyDir": {}, "secret": {"secretName": "s"}}],
            ["spec.volumes[0].secret: Forbidden: may not specify more than 1 volume type"],
        ),
        (
            [{"name": "v", "secret": {}}, {"name": "w", "nfs": {"server": "s"}}],
            ["spec.volumes[0].secret.secretName: Required value", "spec.volumes[1].nfs.path: Required value"],
        ),
        (
            [{"name": "v", "projected": {"sources": [{"secret": {}, "configMap": {"name": "c"}}]}}],
            [
                "spec.volumes[0].projected.sources[0]: Forbidden: may not specify more than 1 volume type per source",
                "spec.volumes[0].projected.sources[0].secret.name: Required value",
            ],
        ),
        (
            [
                {
                    "name": "v",
                    "projected": {
                        "sources": [
                            {"serviceAccountToken": {"path": "t", "expirationSeconds": seconds}}
                            for seconds in (599, 600, 2**32, 2**32 + 1)
                        ]
                    },
                }
            ],
            [
                "spec.volumes[0].projected.sources[0].serviceAccountToken.expirationSeconds: Invalid value: 599: may not "
                "specify a duration less than 10 minutes",
                "spec.volumes[0].projected.sources[3].serviceAccountToken.expirationSeconds: Invalid value: 4294967297: may "
                "not specify a duration larger than 2^32 seconds",
            ],
        ),
    ],
    ids=["names", "a volume has one source", "sources say what they need", "so do projected ones", "tokens' lives"],
)
def test_volume_validation(volumes: list[Obj], errors: list[str]) -> None:
    assert created(POD, {"spec": {"containers": [C], "volumes": copy.deepcopy(volumes)}})[1] == errors


SOURCE = "spec.volumes[0].projected.sources[0].podCertificate"
GOOD_SOURCE = {"signerName": "example.com/mesh", "keyType": "ED25519", "credentialBundlePath": "a/b.pem"}


@pytest.mark.parametrize(
    ("changed", "errors"),
    [
        ({}, []),
        ({"maxExpirationSeconds": 3600, "userAnnotations": {"a.b/c": "d"}}, []),
        ({"signerName": "mesh", "keyType": "RSA2048"}, [
            f"{SOURCE}.signerName: Invalid value: \"mesh\": must be a fully qualified domain and path of the form "
            "'example.com/signer-name'",
            f'{SOURCE}.keyType: Unsupported value: "RSA2048": supported values: "RSA3072", "RSA4096", "ECDSAP256", '
            '"ECDSAP384", "ECDSAP521", "ED25519"',
        ]),
        ({"signerName": "", "keyType": ""}, [f"{SOURCE}.signerName: Required value", f"{SOURCE}.keyType: Required value"]),
        ({"userAnnotations": {"a": "b"}}, [
            f'{SOURCE}.userAnnotations: Invalid value: "a": must be a domain-prefixed key (such as "acme.io/foo")'
        ]),
        ({"maxExpirationSeconds": 3599}, [
            f"{SOURCE}.maxExpirationSeconds: Invalid value: 3599: if provided, maxExpirationSeconds must be >= 3600"
        ]),
        ({"maxExpirationSeconds": 7_862_401}, [
            f"{SOURCE}.maxExpirationSeconds: Invalid value: 7862401: if provided, maxExpirationSeconds must be <= 7862400"
        ]),
        ({"signerName": "kubernetes.io/a", "maxExpirationSeconds": 86_401}, [
            f"{SOURCE}.maxExpirationSeconds: Invalid value: 86401: if provided, maxExpirationSeconds must be <= 86400"
        ]),
        ({"credentialBundlePath": "/a", "keyPath": "a/../b", "certificateChainPath": "..a"}, [
            f'{SOURCE}.credentialBundlePath: Invalid value: "/a": must be a relative path',
            f"{SOURCE}.keyPath: Invalid value: \"a/../b\": must not contain '..'",
            f"{SOURCE}.certificateChainPath: Invalid value: \"..a\": must not start with '..'",
        ]),
        ({"credentialBundlePath": ""}, [
            f"{SOURCE}: Required value: specify at least one of credentialBundlePath, keyPath, and certificateChainPath"
        ]),
    ],
)  # fmt: skip
def test_a_source_of_a_certificate(changed: Obj, errors: list[str]) -> None:
    volume = {"name": "v", "projected": {"sources": [{"podCertificate": GOOD_SOURCE | changed}]}}
    assert created(POD, {"spec": {"containers": [C], "volumes": [volume]}})[1] == errors


def test_a_stored_pod_keeps_a_source_that_a_new_one_must_not_have() -> None:
    volume = {"name": "v", "projected": {"sources": [{"podCertificate": GOOD_SOURCE | {"keyType": "RSA2048"}}]}}
    stored, errors = created(POD, {"spec": {"containers": [C], "volumes": [volume]}})
    assert errors
    assert updated(POD, stored, stored)[1] == []


@pytest.mark.parametrize(
    ("spec", "errors"),
    [
        (
            {"restartPolicy": "Maybe"},
            ['spec.restartPolicy: Unsupported value: "Maybe": supported values: "Always", "OnFailure", "Never"'],
        ),
        (
            {"dnsPolicy": "Maybe"},
            [
                'spec.dnsPolicy: Unsupported value: "Maybe": supported values: "ClusterFirstWithHostNet", "ClusterFirst", '
                '"Default", "None"'
            ],
        ),
        ({"dnsPolicy": "None"}, ["spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None"]),
        ({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["10.0.0.1"]}}, []),
        (
            {"activeDeadlineSeconds": 0},
            ["spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive"],
        ),
        ({"hostname": "A"}, [f'spec.hostname: Invalid value: "A": {NO_LABEL}']),
        (
            {"nodeName": "n", "schedulingGates": [{"name": "g"}]},
            ["spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared"],
        ),
        (
            {"schedulingGates": [{"name": "g"}, {"name": "g"}, {"name": "/g"}]},
            [
                'spec.schedulingGates[1]: Duplicate value: "g"',
                'spec.schedulingGates[2]: Invalid value: "/g": prefix part must be non-empty',
            ],
        ),
        (
            {
                "securityContext": {
                    "sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}, {"name": "net/ipv4/x-y"}]
                }
            },
            [],
        ),
        (
            {
                "securityContext": {
                    "sysctls": [{}, {"name": "foo-"}, {"name": "a.b"}, {"name": "bar.."}, {"name": "a.b"}]
                }
            },
            [
                "spec.securityContext.sysctls[0].name: Required value",
                f'spec.securityContext.sysctls[1].name: Invalid value: "foo-": {NO_SYSCTL}',
                f'spec.securityContext.sysctls[3].name: Invalid value: "bar..": {NO_SYSCTL}',
                'spec.securityContext.sysctls[4].name: Duplicate value: "a.b"',
            ],
        ),
        (
            {"securityContext": {"sysctls": [{"name": "a" * 253}, {"name": "a" * 254}]}},
            [f'spec.securityContext.sysctls[1].name: Invalid value: "{"a" * 254}": {NO_SYSCTL}'],
        ),
        ({"nodeSelector": {"/k": "v"}}, ['spec.nodeSelector: Invalid value: "/k": prefix part must be non-empty']),
        (
            {"tolerations": [{}, {"key": "/k"}, {"operator": "Exists", "value": "v"}]},
            [
                'spec.tolerations[0].operator: Invalid value: "": operator must be Exists when `key` is empty, which means '
                '"match all values and all keys"',
                'spec.tolerations[1].key: Invalid value: "/k": prefix part must be non-empty',
                "spec.tolerations[2].operator: Invalid value: \"v\": value must be empty when `operator` is 'Exists'",
            ],
        ),
        (
            {
                "tolerations": [
                    {"key": "k", "tolerationSeconds": 1},
                    {"key": "k", "operator": "Is", "effect": "Nothing"},
                ]
            },
            [
                "spec.tolerations[0].effect: Invalid value: \"\": effect must be 'NoExecute' when `tolerationSeconds` is set",
                'spec.tolerations[1].operator: Unsupported value: "Is": supported values: "Equal", "Exists"',
                'spec.tolerations[1].effect: Unsupported value: "Nothing": supported values: "NoSchedule", '
                '"PreferNoSchedule", "NoExecute"',
            ],
        ),
    ],
    ids=[
        "a known restart policy",
        "a known DNS policy",
        "no DNS policy without servers",
        "or with them",
        "deadlines are positive",
        "host names are labels",
        "no node before the gates are open",
        "gates are unique qualified names",
        "kernel parameters have names with dots or slashes",
        "each its own, and only such names",
        "of 253 characters at most",
        "selectors are labels",
        "tolerations name what they tolerate",
        "in known words",
    ],
)
def test_spec_validation(spec: Obj, errors: list[str]) -> None:
    assert created(POD, {"spec": copy.deepcopy({"containers": [C], **spec})})[1] == errors


def test_a_mirror_pod_names_its_node() -> None:
    metadata = {"name": "p", "annotations": {"kubernetes.io/config.mirror": "h"}}
    assert created(POD, {"metadata": metadata, "spec": {"containers": [C]}})[1] == [
        'metadata.annotations[kubernetes.io/config.mirror]: Invalid value: "h": must set spec.nodeName if mirror pod '
        "annotation is set"
    ]
    assert created(POD, {"metadata": metadata, "spec": {"containers": [C], "nodeName": "n"}})[1] == []
