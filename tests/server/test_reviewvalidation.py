"""Test the validation of reviews before they are answered.

Source: docs/protocol/service-account-tokens.md, docs/protocol/authentication-reviews.md,
docs/protocol/authorization.md#access-reviews.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.serverroom import Server, in_server

AUTHORIZATION = "/apis/authorization.k8s.io/v1"
PODS = {"verb": "get", "resource": "pods", "namespace": "default"}
LOCAL = f"{AUTHORIZATION}/namespaces/default/localsubjectaccessreviews"


@pytest.mark.parametrize(
    ("target", "body", "code", "message"),
    [
        pytest.param(
            f"{AUTHORIZATION}/subjectaccessreviews",
            {"spec": {"resourceAttributes": PODS}},
            422,
            '.authorization.k8s.io "" is invalid: spec.user: Invalid value: "": at least one of user or '
            "group must be specified",
            id="about nobody",
        ),
        pytest.param(
            f"{AUTHORIZATION}/selfsubjectaccessreviews",
            {"metadata": {"name": "x"}, "spec": {"resourceAttributes": PODS}},
            422,
            '.authorization.k8s.io "" is invalid: metadata: Invalid value: {"name":"x"}: must be empty',
            id="with a name",
        ),
        pytest.param(
            LOCAL,
            {"spec": {"user": "u", "resourceAttributes": {**PODS, "namespace": "other"}}},
            422,
            '.authorization.k8s.io "" is invalid: spec.resourceAttributes.namespace: Invalid value: '
            '"other": must match metadata.namespace',
            id="about another namespace",
        ),
        pytest.param(
            LOCAL,
            {"metadata": {"namespace": "other"}, "spec": {"user": "u", "resourceAttributes": PODS}},
            400,
            "the namespace of the provided object does not match the namespace sent on the request",
            id="for another namespace",
        ),
        pytest.param(
            f"{AUTHORIZATION}/selfsubjectrulesreviews",
            {"spec": {}},
            400,
            "no namespace on request",
            id="rules of no namespace",
        ),
        pytest.param(
            "/apis/authentication.k8s.io/v1/tokenreviews",
            {"spec": {}},
            400,
            "token is required for TokenReview in authentication",
            id="no token",
        ),
        pytest.param(
            "/api/v1/namespaces/default/serviceaccounts/robot/token",
            {"spec": {"expirationSeconds": 1}},
            422,
            'TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: Invalid value: 1: may not specify a '
            "duration less than 10 minutes",
            id="a token for a second",
        ),
    ],
)
@in_server
async def test_bad_questions_are_told(
    server: Server, target: str, body: dict[str, Any], code: int, message: str
) -> None:
    await server.create("serviceaccounts", {"metadata": {"name": "robot"}})
    answer = await server.post(target, body)
    assert (answer.status, answer.message) == (code, message)


@pytest.mark.parametrize("metadata", [{}, {"namespace": "default"}], ids=["from the path", "said twice"])
@in_server
async def test_a_local_review_is_about_the_namespace_it_is_posted_to(server: Server, metadata: dict[str, Any]) -> None:
    answer = await server.post(LOCAL, {"metadata": metadata, "spec": {"user": "u", "resourceAttributes": PODS}})
    assert (answer.status, answer.obj["status"]["allowed"]) == (201, False)


@in_server
async def test_a_token_request_passes_admission(server: Server) -> None:
    """6.7: even a node that RBAC lets ask for tokens gets only those bound to its own pods."""
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    await server.post("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "builder"}})
    rule = {"apiGroups": [""], "resources": ["serviceaccounts/token"], "verbs": ["create"]}
    await server.post(f"{rbac}/clusterroles", {"metadata": {"name": "tokens"}, "rules": [rule]})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "tokens"}
    nodes = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes"}
    binding = {"metadata": {"name": "tokens"}, "roleRef": reference, "subjects": [nodes]}
    assert (await server.post(f"{rbac}/clusterrolebindings", binding)).status == 201
    target = "/api/v1/namespaces/default/serviceaccounts/builder/token"
    refused = await server.post(target, {"spec": {}}, via=server.user("system:node:n1", "system:nodes"))
    assert refused.status == 403
    assert refused.message.endswith("node requested token not bound to a pod")
    assert (await server.post(target, {"spec": {}})).status == 201
