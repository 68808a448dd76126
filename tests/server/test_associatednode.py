"""Test requests of a Pod that acts as the node on which it runs, through the whole server.

Source: docs/protocol/impersonation.md; KEP-5284.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.serverroom import Server, in_server

RULES = [
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["impersonate-on:associated-node:get"]},
    {
        "apiGroups": ["authentication.k8s.io"],
        "resources": ["nodes"],
        "resourceNames": ["*"],
        "verbs": ["impersonate:associated-node"],
    },
]


async def token_of_a_pod_on(server: Server, node: str) -> str:
    """Return a token of the ServiceAccount `robot`, which may act as the node on which it runs."""
    for name in ("n1", "n2"):
        await server.create("nodes", {"metadata": {"name": name}})
    await server.create("serviceaccounts", {"metadata": {"name": "robot"}})
    await server.create("clusterroles", {"metadata": {"name": "robot"}, "rules": RULES})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "robot"}
    subject = {"kind": "ServiceAccount", "namespace": "default", "name": "robot"}
    binding = {"metadata": {"name": "robot"}, "roleRef": reference, "subjects": [subject]}
    await server.create("clusterrolebindings", binding)
    spec = {"nodeName": node, "serviceAccountName": "robot", "containers": [{"name": "c", "image": "i"}]}
    await server.create("pods", {"metadata": {"name": "p"}, "spec": spec})
    asked = {"spec": {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p"}}}
    issued = await server.post("/api/v1/namespaces/default/serviceaccounts/robot/token", asked)
    token: str = issued.obj["status"]["token"]
    return token


@pytest.mark.parametrize(
    ("node", "more", "refusal"),
    [
        pytest.param("n1", [], "", id="its own node"),
        pytest.param("n2", [], "impersonate-on:arbitrary-node:get", id="not another one"),
        pytest.param(
            "n1", [("Impersonate-Group", "system:nodes")], "cannot impersonate resource", id="nor by more than its name"
        ),
    ],
)
@in_server
async def test_a_pod_may_act_as_the_node_it_runs_on(
    server: Server, node: str, more: list[tuple[str, str]], refusal: str
) -> None:
    token = await token_of_a_pod_on(server, "n1")
    headers: Any = [("Impersonate-User", f"system:node:{node}"), *more]
    answer = await server.get(f"/api/v1/nodes/{node}", token=token, headers=headers)
    assert (answer.status, refusal in answer.obj.get("message", "")) == (403 if refusal else 200, True), answer.text
    assert (await server.get(f"/api/v1/nodes/{node}", token=token)).status == 403, "by itself it may not"
