"""Test the reply of a DELETE that removes the object at once.

Source: docs/protocol/errors.md#successful-deletions.
"""

from __future__ import annotations

from tests.support.serverroom import Server, in_server


@in_server
async def test_an_object_that_is_gone_is_told_by_a_status_with_its_uid(server: Server) -> None:
    made = await server.post("/api/v1/namespaces/default/configmaps", {"metadata": {"name": "a"}})
    gone = await server.call("DELETE", "/api/v1/namespaces/default/configmaps/a")
    assert (gone.status, gone.obj["kind"], gone.obj["status"]) == (200, "Status", "Success")
    assert gone.obj["details"] == {"name": "a", "kind": "configmaps", "uid": made.obj["metadata"]["uid"]}


@in_server
async def test_a_namespace_is_told_by_itself_even_when_nothing_holds_it(server: Server) -> None:
    made = await server.post("/api/v1/namespaces", {"metadata": {"name": "a"}})
    freed = await server.call("PUT", "/api/v1/namespaces/a/finalize", body={**made.obj, "spec": {}})
    assert (freed.status, freed.obj.get("spec")) == (200, {})
    gone = await server.call("DELETE", "/api/v1/namespaces/a")
    assert (gone.status, gone.obj["kind"], gone.obj["metadata"]["uid"]) == (
        200,
        "Namespace",
        made.obj["metadata"]["uid"],
    )
    assert (await server.get("/api/v1/namespaces/a")).status == 404
