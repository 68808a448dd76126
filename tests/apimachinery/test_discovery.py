"""Discovery documents, legacy and aggregated.

Source: docs/protocol/discovery.md.
"""

from __future__ import annotations

import hashlib

import pytest

from mooring.apimachinery import discovery
from mooring.apimachinery.discovery import groups, version_order
from mooring.apimachinery.resource import ALL_VERBS
from tests.support.shapes import RESOURCES, WIDGETS

VERBS = list(ALL_VERBS)


@pytest.mark.parametrize(
    ("group", "kind", "hash_"),
    [
        ("", "Pod", "xPOwRZ+Yhw8="),
        ("", "ConfigMap", "qFsyl6wFWjQ="),
        ("", "Secret", "S6u1pOWzb84="),
        ("", "Namespace", "Q3oi5N2YM8M="),
    ],
)
def test_storage_version_hashes_are_those_of_kube_apiserver(group: str, kind: str, hash_: str) -> None:
    """Vectors: `kubectl get --raw /api/v1` of any Kubernetes server."""
    assert discovery.storage_version_hash(group, "v1", kind) == hash_


def test_versions_go_from_stable_to_unstable() -> None:
    given = ["v1alpha1", "v1beta1", "v10", "other", "v2", "v1beta2", "v1"]
    assert sorted(given, key=version_order) == ["v10", "v2", "v1", "v1beta2", "v1beta1", "v1alpha1", "other"]


def test_core_comes_first_and_the_others_as_given() -> None:
    assert groups(RESOURCES[::-1]) == ["", "auth.k8s.io", "tools.k8s.io"]


def test_each_group_and_version_has_a_path() -> None:
    tools = "/apis/tools.k8s.io"
    auth = "/apis/auth.k8s.io"
    assert discovery.group_paths(RESOURCES) == [
        *("/api", "/api/v1"),
        *(tools, f"{tools}/v1", f"{tools}/v1beta1"),
        *(auth, f"{auth}/v1"),
    ]


def test_api() -> None:
    assert discovery.api_versions("10.0.0.1:6443") == {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": "10.0.0.1:6443"}],
    }


TOOLS = {
    "name": "tools.k8s.io",
    "versions": [
        {"groupVersion": "tools.k8s.io/v1", "version": "v1"},
        {"groupVersion": "tools.k8s.io/v1beta1", "version": "v1beta1"},
    ],
    "preferredVersion": {"groupVersion": "tools.k8s.io/v1", "version": "v1"},
}


def test_apis_lists_every_group_but_core() -> None:
    document = discovery.group_list(RESOURCES)
    assert (document["kind"], document["apiVersion"]) == ("APIGroupList", "v1")
    assert [group["name"] for group in document["groups"]] == ["tools.k8s.io", "auth.k8s.io"]
    assert document["groups"][0] == TOOLS


def test_one_group() -> None:
    assert discovery.group(RESOURCES, "tools.k8s.io") == {"kind": "APIGroup", "apiVersion": "v1"} | TOOLS
    assert discovery.group(RESOURCES, "none.k8s.io") is None
    assert discovery.group(RESOURCES, "") is None


def test_resources_of_the_core_version() -> None:
    assert discovery.resource_list(RESOURCES, "", "v1") == {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [
            {
                "name": "widgets",
                "singularName": "widget",
                "namespaced": True,
                "kind": "Widget",
                "verbs": VERBS,
                "shortNames": ["wd"],
                "categories": ["all"],
                "storageVersionHash": discovery.storage_version_hash("", "v1", "Widget"),
            },
            {
                "name": "widgets/status",
                "singularName": "",
                "namespaced": True,
                "kind": "Widget",
                "verbs": ["get", "patch", "update"],
            },
            {
                "name": "widgets/token",
                "singularName": "",
                "namespaced": True,
                "group": "parts.example.io",
                "version": "v1",
                "kind": "PartRequest",
                "verbs": ["create"],
            },
        ],
    }


def test_a_kind_that_is_not_stored_has_no_storage_version() -> None:
    document = discovery.resource_list(RESOURCES, "auth.k8s.io", "v1")
    assert document is not None
    assert document["groupVersion"] == "auth.k8s.io/v1"
    assert document["resources"] == [
        {"name": "reviews", "singularName": "review", "namespaced": False, "kind": "Review", "verbs": ["create"]}
    ]


def test_an_unknown_group_version_has_no_resources() -> None:
    assert discovery.resource_list(RESOURCES, "tools.k8s.io", "v3") is None


def test_aggregated_core() -> None:
    assert discovery.aggregated(RESOURCES, core=True) == {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": [
            {
                "metadata": {},
                "versions": [
                    {
                        "version": "v1",
                        "resources": [
                            {
                                "resource": "widgets",
                                "responseKind": {"group": "", "version": "v1", "kind": "Widget"},
                                "scope": "Namespaced",
                                "singularResource": "widget",
                                "verbs": VERBS,
                                "shortNames": ["wd"],
                                "categories": ["all"],
                                "subresources": [
                                    {
                                        "subresource": "status",
                                        "responseKind": {"group": "", "version": "v1", "kind": "Widget"},
                                        "verbs": ["get", "patch", "update"],
                                    },
                                    {
                                        "subresource": "token",
                                        "responseKind": {
                                            "group": "parts.example.io",
                                            "version": "v1",
                                            "kind": "PartRequest",
                                        },
                                        "verbs": ["create"],
                                    },
                                ],
                            }
                        ],
                        "freshness": "Current",
                    }
                ],
            }
        ],
    }


def test_aggregated_groups_carry_their_versions_in_order() -> None:
    items = discovery.aggregated(RESOURCES, core=False)["items"]
    assert [item["metadata"] for item in items] == [{"name": "tools.k8s.io"}, {"name": "auth.k8s.io"}]
    assert [version["version"] for version in items[0]["versions"]] == ["v1", "v1beta1"]
    gadgets = items[0]["versions"][0]["resources"][0]
    assert gadgets["scope"] == "Cluster"
    assert gadgets["subresources"][0]["responseKind"] == {"group": "tools.k8s.io", "version": "v1", "kind": "Gadget"}
    assert "shortNames" not in gadgets


def test_a_server_without_core_resources_has_an_empty_core_document() -> None:
    assert discovery.aggregated(RESOURCES[1:], core=True)["items"] == []
    assert discovery.aggregated([WIDGETS], core=False)["items"] == []


def test_the_etag_is_the_quoted_upper_case_sha_512() -> None:
    assert discovery.etag(b"{}") == '"' + hashlib.sha512(b"{}").hexdigest().upper() + '"'
