"""[sig-auth] SelfSubjectReview and SubjectReview: test/e2e/auth.

Source: docs/protocol/e2e-tests.md#teste2eauth.
"""

from __future__ import annotations

import pytest

from tests.support.typedclient import Client

AUTHENTICATION = "authentication.k8s.io"
AUTHORIZATION = "/apis/authorization.k8s.io/v1"


@pytest.mark.parametrize("version", ["v1alpha1", "v1beta1", "v1"])
def test_testing_ssr_in_different_api_groups(dynamic: Client, version: str) -> None:
    """Find each version in discovery: upstream skips missing ones, Mooring must serve them."""
    group = dynamic.call("GET", f"/apis/{AUTHENTICATION}")
    if version not in [served["version"] for served in group["versions"]]:
        assert version != "v1"
        pytest.skip("upstream skips a version that is not served")
    resources = dynamic.call("GET", f"/apis/{AUTHENTICATION}/{version}")["resources"]
    assert "selfsubjectreviews" in [resource["name"] for resource in resources]
    asked = {"kind": "SelfSubjectReview", "apiVersion": f"{AUTHENTICATION}/{version}"}
    answer = dynamic.call("POST", f"/apis/{AUTHENTICATION}/{version}/selfsubjectreviews", asked)
    assert answer["apiVersion"] == f"{AUTHENTICATION}/{version}"
    assert answer["status"]["userInfo"]["username"]


def test_should_support_self_subject_review_api_operations(client: Client) -> None:
    jane = client.as_user(
        "jane-doe",
        ["system:authenticated", "developers"],
        "uniq-id",
        known_languages=["python", "javascript"],
    )
    api_version = f"{AUTHENTICATION}/v1"
    asked = {"kind": "SelfSubjectReview", "apiVersion": api_version}
    user = jane.call("POST", f"/apis/{api_version}/selfsubjectreviews", asked)["status"]["userInfo"]
    jane.close()
    assert (user["username"], user["uid"]) == ("jane-doe", "uniq-id")
    assert user["groups"] == ["system:authenticated", "developers"]
    assert user["extra"]["known-languages"] == ["python", "javascript"]


def test_should_support_subject_review_api_operations(client: Client, space: str) -> None:
    account = client.create("serviceaccounts", space, {"metadata": {"name": "e2e"}})
    user, uid = f"system:serviceaccount:{space}:e2e", account["metadata"]["uid"]
    groups = ["system:authenticated", "system:serviceaccounts", f"system:serviceaccounts:{space}"]
    attributes = {"verb": "list", "resource": "configmaps", "namespace": space, "version": "v1"}
    review = {
        "kind": "SubjectAccessReview",
        "apiVersion": "authorization.k8s.io/v1",
        "spec": {"resourceAttributes": attributes, "user": user, "groups": groups, "uid": uid},
    }
    expected = client.call("POST", f"{AUTHORIZATION}/subjectaccessreviews", review)["status"].get("allowed", False)
    impersonated = client.as_user(user, groups, uid)
    refused = impersonated.refusal("GET", f"/api/v1/namespaces/{space}/configmaps")
    impersonated.close()
    assert refused in (0, 403)
    assert (refused == 0) == expected

    local = {
        "kind": "LocalSubjectAccessReview",
        "apiVersion": "authorization.k8s.io/v1",
        "metadata": {"namespace": space},
        "spec": {"resourceAttributes": attributes, "user": "e2e", "groups": groups, "uid": uid},
    }
    answer = client.call("POST", f"{AUTHORIZATION}/namespaces/{space}/localsubjectaccessreviews", local)
    assert answer["status"].get("allowed", False) == expected
