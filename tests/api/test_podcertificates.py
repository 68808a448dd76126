"""Pods that may have a certificate by a PodCertificateRequest (docs/protocol/pod-certificate-requests.md#rights)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from mooring.api.certificates.podcertificaterequest import (
    account_problem,
    is_owner,
    is_pod,
    pod_problem,
    volume_signers,
)
from mooring.apimachinery.schema import Obj
from mooring.clock import rfc3339
from tests.support.plans import NOW

SPEC = {
    "podName": "p",
    "podUID": "pod-uid",
    "nodeName": "n1",
    "serviceAccountName": "robot",
    "serviceAccountUID": "robot-uid",
}
OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "pod-uid"}


def pod(metadata: Obj | None = None, phase: str = "Running", **spec: Any) -> Obj:
    """Return a Pod that `SPEC` names. `metadata` is added, and `spec` replaces members of its spec."""
    return {
        "metadata": {"name": "p", "namespace": "ns", "uid": "pod-uid", **(metadata or {})},
        "spec": {"nodeName": "n1", "serviceAccountName": "robot", **spec},
        "status": {"phase": phase},
    }


def deleted(seconds: int) -> Obj:
    """Return the metadata of a Pod whose grace period ends in so many seconds."""
    return {"deletionTimestamp": rfc3339(NOW + timedelta(seconds=seconds)), "deletionGracePeriodSeconds": 30}


@pytest.mark.parametrize(
    ("obj", "problem"),
    [
        pytest.param(pod(), "", id="the Pod that the request names"),
        pytest.param(pod(phase="Pending"), "", id="one whose containers wait for the certificate"),
        pytest.param({**pod(), "status": None}, "", id="one without a status"),
        pytest.param(
            pod({"uid": "later"}),
            'PodCertificateRequest for pod "ns/p" contains pod UID ("pod-uid") which differs from running pod "later"',
            id="a later one of the same name",
        ),
        pytest.param(
            pod(nodeName="n2"),
            'pod "ns/p" is not running on node "n1" named in the PodCertificateRequest',
            id="one on another node",
        ),
        pytest.param(
            {**pod(), "spec": None},
            'pod "ns/p" is not running on node "n1" named in the PodCertificateRequest',
            id="one that is not scheduled",
        ),
        pytest.param(
            pod({"annotations": {"kubernetes.io/config.mirror": ""}}), 'pod "ns/p" is a mirror pod', id="a mirror Pod"
        ),
        pytest.param(
            pod(serviceAccountName="other"),
            'PodCertificateRequest for pod "ns/p" contains serviceAccountName ("robot") that differs from running pod '
            '("other")',
            id="one of another service account",
        ),
        pytest.param(pod(phase="Succeeded"), 'pod "ns/p" has ended', id="one that succeeded"),
        pytest.param(pod(phase="Failed"), 'pod "ns/p" has ended', id="one that failed"),
        pytest.param(pod(deleted(seconds=1)), "", id="a deleted one in its grace period"),
        pytest.param(pod(deleted(seconds=0)), 'pod "ns/p" has ended', id="a deleted one after its grace period"),
    ],
)
def test_pods_that_may_have_a_certificate(obj: Obj, problem: str) -> None:
    assert pod_problem(obj, SPEC, NOW) == problem


@pytest.mark.parametrize(
    ("missing", "member"),
    [
        pytest.param("podUID", {"metadata": {"name": "p", "namespace": "ns"}}, id="the uid"),
        pytest.param("nodeName", {"spec": {"serviceAccountName": "robot"}}, id="the node"),
    ],
)
def test_a_request_that_leaves_out_what_the_pod_does_not_have_is_not_for_it(missing: str, member: Obj) -> None:
    """A kube-apiserver on the same etcd, or a hand in it, may have stored either."""
    spec = {name: value for name, value in SPEC.items() if name != missing}
    assert pod_problem({**pod(), **member}, spec, NOW)


@pytest.mark.parametrize(
    ("uid", "problem"),
    [
        ("robot-uid", ""),
        (
            "later",
            'PodCertificateRequest for pod "ns/p" names service account UID "robot-uid", which differs from the running '
            'service account ("later")',
        ),
    ],
    ids=["the account that the request names", "a later one of the same name"],
)
def test_service_accounts_that_a_request_may_name(uid: str, problem: str) -> None:
    assert account_problem({"metadata": {"name": "robot", "namespace": "ns", "uid": uid}}, SPEC) == problem


def test_a_pod_is_known_by_its_uid() -> None:
    assert is_pod(pod(), SPEC)
    assert not is_pod(pod({"uid": "later"}), SPEC)


@pytest.mark.parametrize(
    ("changes", "owns"),
    [
        ({}, True),
        ({"controller": True}, True),
        ({"blockOwnerDeletion": True}, False),
        ({"kind": "Node"}, False),
        ({"name": "q"}, False),
        ({"uid": "later"}, False),
    ],
    ids=str,
)
def test_the_pod_owns_its_requests(changes: Obj, owns: bool) -> None:
    assert is_owner({**OWNER, **changes}, SPEC) is owns


@pytest.mark.parametrize(
    ("volumes", "signers"),
    [
        pytest.param(None, [], id="no volumes"),
        pytest.param([{"name": "e", "emptyDir": {}}], [], id="no projected volume"),
        pytest.param([{"name": "v", "projected": None}, {"name": "w", "projected": {}}], [], id="no sources"),
        pytest.param(
            [{"name": "v", "projected": {"sources": [{"secret": {}}, {"podCertificate": None}]}}], [], id="no signer"
        ),
        pytest.param(
            [
                {"name": "v", "projected": {"sources": [{"podCertificate": {"signerName": "example.com/a"}}]}},
                {
                    "name": "w",
                    "projected": {
                        "sources": [
                            {"serviceAccountToken": {"path": "t"}},
                            {"podCertificate": {"signerName": "example.com/b"}},
                        ]
                    },
                },
            ],
            ["example.com/a", "example.com/b"],
            id="signers of two volumes",
        ),
    ],
)
def test_signers_of_the_volumes_of_a_pod(volumes: list[Obj] | None, signers: list[str]) -> None:
    assert list(volume_signers(pod(volumes=volumes))) == signers
