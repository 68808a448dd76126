"""Test `PATCH` with `application/apply-patch+yaml`: authorization, replies and errors.

Source: docs/protocol/server-side-apply.md, docs/protocol/requests.md#options.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.serverroom import Reply, Server, in_server

APPLY = "application/apply-patch+yaml"
MAPS = "/api/v1/namespaces/default/configmaps"


def config(**data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": data}


async def apply(server: Server, body: Any, query: str = "fieldManager=a", **how: Any) -> Reply:
    return await server.call("PATCH", f"{MAPS}/m?{query}", body=body, content_type=APPLY, **how)


@in_server
async def test_what_is_new_is_created_and_what_is_there_is_changed(server: Server) -> None:
    reply = await apply(server, b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata: {x: '1'}\n")
    assert (reply.status, reply.obj["data"]) == (201, {"x": "1"})
    reply = await apply(server, config(x="2"))
    assert (reply.status, reply.obj["data"]) == (200, {"x": "2"})


@in_server
async def test_a_conflict_names_every_field_and_force_wins(server: Server) -> None:
    await apply(server, config(x="1"))
    reply = await apply(server, config(x="2"), "fieldManager=b")
    assert (reply.status, reply.obj["reason"]) == (409, "Conflict")
    assert reply.obj["details"]["causes"] == [
        {"reason": "FieldManagerConflict", "message": 'conflict with "a"', "field": ".data.x"}
    ]
    assert (await apply(server, config(x="2"), "fieldManager=b&force=true")).status == 200


@in_server
async def test_an_opinion_on_one_member_of_an_item_is_none_on_its_required_ones(server: Server) -> None:
    async def apply_status(manager: str, condition: dict[str, str]) -> Reply:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {"conditions": [condition]}}
        return await server.call(
            "PATCH", f"/api/v1/nodes/n/status?fieldManager={manager}", body=node, content_type=APPLY
        )

    await server.post("/api/v1/nodes", {"metadata": {"name": "n"}})
    ready = {"type": "Ready", "status": "True"}
    await apply_status("a", ready)
    reason = {"type": "Ready", "reason": "Waited"}
    reply = await apply_status("b", reason)
    never = {"lastHeartbeatTime": None, "lastTransitionTime": None}
    assert (reply.status, reply.obj["status"]["conditions"]) == (200, [ready | reason | never])
    owned: dict[str, Any] = {
        "f:status": {"f:conditions": {'k:{"type":"Ready"}': {".": {}, "f:reason": {}, "f:type": {}}}}
    }
    assert owned in [entry["fieldsV1"] for entry in reply.obj["metadata"]["managedFields"]]


@in_server
async def test_an_item_of_a_list_needs_its_key(server: Server) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [{"image": "i"}]},
    }
    reply = await server.call("PATCH", "/api/v1/namespaces/default/pods/p?fieldManager=a", body=pod, content_type=APPLY)
    assert reply.status == 400
    assert 'omits all key fields ["name"]' in reply.message


@in_server
async def test_who_names_no_manager_is_known_by_the_program(server: Server) -> None:
    for number, header in enumerate(([("User-Agent", "tool/1.0 (linux)")], [])):
        made = await server.call(
            "POST", MAPS, body=config(x="1") | {"metadata": {"name": f"n{number}"}}, headers=header
        )
        assert [entry["manager"] for entry in made.obj["metadata"]["managedFields"]] == [("tool", "unknown")[number]]
    await apply(server, config(x="1"))
    for number, header in enumerate(([("User-Agent", "tool/1.0 (linux)")], [])):
        await server.call(
            "PATCH",
            f"{MAPS}/m",
            body={"data": {"y": str(number)}},
            content_type="application/merge-patch+json",
            headers=header,
        )
        entry = (await server.get(f"{MAPS}/m")).obj["metadata"]["managedFields"][-1]
        assert (entry["manager"], entry["operation"]) == (("tool", "unknown")[number], "Update")


@pytest.mark.parametrize(
    ("query", "body", "status", "says"),
    [
        pytest.param("", config(), 422, "fieldManager: Required value", id="no manager"),
        pytest.param("fieldManager=a", b"[]", 400, "cannot unmarshal array", id="a list"),
        pytest.param("fieldManager=a", config() | {"spec": 1}, 400, ".spec: field not declared", id="an unknown field"),
        pytest.param(
            "fieldManager=a&fieldValidation=Strict",
            b"{apiVersion: v1, kind: ConfigMap, metadata: {name: m}, data: {a: b, a: c}}",
            400,
            'line 1: key "a" already set in map',
            id="a duplicate key, strictly",
        ),
    ],
)
def test_it_is_refused_for(query: str, body: Any, status: int, says: str) -> None:
    @in_server
    async def refused(server: Server) -> None:
        reply = await apply(server, body, query)
        assert reply.status == status
        assert says in reply.message

    refused()


@in_server
async def test_a_duplicate_key_is_warned_about(server: Server) -> None:
    reply = await apply(server, b"{apiVersion: v1, kind: ConfigMap, metadata: {name: m}, data: {a: b, a: c}}")
    assert reply.status == 201
    assert 'line 1: key \\"a\\" already set in map' in reply.warnings[0]


@in_server
async def test_creating_by_apply_needs_permission_to_create(server: Server) -> None:
    role = {
        "metadata": {"name": "patcher"},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["patch"]}],
    }
    await server.post("/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles", role)
    binding = {
        "metadata": {"name": "patcher"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "patcher"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}],
    }
    await server.post("/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings", binding)
    jane = server.user("jane")
    assert (await apply(server, config(x="1"), via=jane)).status == 403
    await apply(server, config(x="1"))
    assert (await apply(server, config(x="1"), via=jane)).status == 200
