"""Bodies of kinds that are not the one wanted, in the words of kube-apiserver 1.36."""

from __future__ import annotations

import pytest

from mooring.apimachinery.resource import unexpected_kind

UNKNOWN = 'is registered for version "{}" in scheme "pkg/api/legacyscheme/scheme.go:30"'


@pytest.mark.parametrize(
    ("api_version", "kind", "message"),
    [
        ("v1", "Wrong", 'no kind "Wrong" ' + UNKNOWN.format("v1")),
        ("v2", "ConfigMap", 'no kind "ConfigMap" ' + UNKNOWN.format("v2")),
        ("apps/v1", "ConfigMap", 'no kind "ConfigMap" ' + UNKNOWN.format("apps/v1")),
        ("apps/v1", "Status", 'no kind "Status" ' + UNKNOWN.format("apps/v1")),
        ("policy/v1", "EvictionList", 'no kind "EvictionList" ' + UNKNOWN.format("policy/v1")),
        ("v1", "ConfigMapList", "converting (v1.ConfigMapList) to (core.ConfigMap): unknown conversion"),
        ("v1", "List", "converting (v1.List) to (core.ConfigMap): unknown conversion"),
        ("v1", "Status", "converting (v1.Status) to (core.ConfigMap): unknown conversion"),
        ("v1", "DeleteOptions", "converting (v1.DeleteOptions) to (core.ConfigMap): unknown conversion"),
        ("apps/v1", "Deployment", "converting (v1.Deployment) to (core.ConfigMap): unknown conversion"),
    ],
)
def test_another_kind(api_version: str, kind: str, message: str) -> None:
    assert unexpected_kind(api_version, kind, "", "ConfigMap") == message


@pytest.mark.parametrize("given", ["certificates.k8s.io/v1", "certificates.k8s.io/v1beta1"])
def test_versions_of_a_group_are_one_kind(given: str) -> None:
    assert unexpected_kind(given, "ClusterTrustBundle", "certificates.k8s.io", "ClusterTrustBundle") == ""


def test_events_of_both_groups_are_one_kind() -> None:
    assert unexpected_kind("v1", "Event", "events.k8s.io", "Event") == ""
