"""Test the reply of a DELETE that removes the object at once, also one that cannot be read.

Source: docs/protocol/errors.md#successful-deletions, docs/protocol/requests.md#objects-that-cannot-be-read.
"""

from __future__ import annotations

import pytest

from mooring.apimachinery.options import IGNORE_STORE_READ_ERROR
from tests.support.serverroom import Server, in_server

SECRETS = "/api/v1/namespaces/default/secrets"
UNSAFE = f"{IGNORE_STORE_READ_ERROR}=true"
VERB = "unsafe-delete-ignore-read-errors"


@in_server
async def test_an_object_that_is_gone_is_told_by_a_status_with_its_uid(server: Server) -> None:
    made = await server.post("/api/v1/namespaces/default/configmaps", {"metadata": {"name": "a"}})
    tried = await server.call("DELETE", "/api/v1/namespaces/default/configmaps/a?dryRun=All")
    gone = await server.call("DELETE", "/api/v1/namespaces/default/configmaps/a")
    for reply in (tried, gone):
        assert (reply.status, reply.obj["kind"], reply.obj["status"]) == (200, "Status", "Success")
        assert reply.obj["details"] == {"name": "a", "kind": "configmaps", "uid": made.obj["metadata"]["uid"]}
    assert tried.obj["metadata"] == {}


@in_server
async def test_a_status_has_the_revision_of_the_deletion(server: Server) -> None:
    await server.post("/api/v1/namespaces/default/configmaps", {"metadata": {"name": "a"}})
    gone = await server.call("DELETE", "/api/v1/namespaces/default/configmaps/a")
    revision = gone.obj["metadata"]["resourceVersion"]
    for at, names in ((int(revision) - 1, ["a"]), (int(revision), [])):
        exact = f"resourceVersion={at}&resourceVersionMatch=Exact"
        listed = await server.get(f"/api/v1/namespaces/default/configmaps?fieldSelector=metadata.name=a&{exact}")
        assert [item["metadata"]["name"] for item in listed.obj["items"]] == names


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


async def lose_the_key(server: Server) -> None:
    """Store a Secret that no key decrypts."""
    sealed = b"k8s:enc:aesgcm:v1:lost:x"
    await server.storage.create("/registry/secrets/default/a", sealed)
    await server.registry.reader.fresh()


@in_server
async def test_an_object_that_cannot_be_read_is_deleted_on_request(server: Server) -> None:
    await lose_the_key(server)
    listed = await server.get(SECRETS)
    assert (listed.status, listed.obj["reason"]) == (500, "StorageReadError")
    assert [cause["field"] for cause in listed.obj["details"]["causes"]] == ["/registry/secrets/default/a"]
    assert (await server.call("DELETE", f"{SECRETS}/a")).status == 500
    tried = await server.call("DELETE", f"{SECRETS}/a?{UNSAFE}&dryRun=All")
    assert (await server.get(SECRETS)).status == 500, "a dry run deletes nothing"
    before = server.registry.cache.revision
    gone = await server.call("DELETE", f"{SECRETS}/a?{UNSAFE}")
    assert tried.obj == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {"name": "a", "kind": "Secret"},
        "code": 200,
    }
    assert int(gone.obj["metadata"]["resourceVersion"]) > before
    assert {**gone.obj, "metadata": {}} == tried.obj
    assert (await server.get(SECRETS)).obj["items"] == []


@pytest.mark.parametrize("method", ["body", "query"])
@in_server
async def test_that_needs_a_verb_of_its_own(server: Server, method: str) -> None:
    await lose_the_key(server)
    rules = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["delete", "list"]}]
    role = (
        await server.post(
            "/apis/rbac.authorization.k8s.io/v1/clusterroles", {"metadata": {"name": "r"}, "rules": rules}
        )
    ).obj
    subject = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "jane"}
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"}
    bindings = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings"
    await server.post(bindings, {"metadata": {"name": "r"}, "subjects": [subject], "roleRef": ref})
    jane = server.user("jane")

    async def delete(**dry: list[str]) -> tuple[int, str]:
        how = {"body": {IGNORE_STORE_READ_ERROR: True, **dry}} if method == "body" else {}
        target = f"{SECRETS}/a" + ("" if how else f"?{UNSAFE}" + ("&dryRun=All" if dry else ""))
        reply = await server.call("DELETE", target, via=jane, **how)
        return reply.status, reply.obj.get("message", "")

    refused = (403, f'secrets "a" is forbidden: not permitted to do "{VERB}", reason: ')
    assert [await delete(dryRun=["All"]), await delete()] == [refused, refused]
    rules[0]["verbs"].append(VERB)
    await server.call("PUT", "/apis/rbac.authorization.k8s.io/v1/clusterroles/r", body={**role, "rules": rules})
    assert [await delete(dryRun=["All"]), await delete()] == [(200, ""), (200, "")]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        pytest.param(
            f"{SECRETS}/b?{UNSAFE}",
            f'secrets "b" is invalid: {IGNORE_STORE_READ_ERROR}: Invalid value: true: is exclusively used to delete corrupt '
            "object(s), try again by removing this option",
            id="an object that can be read",
        ),
        pytest.param(
            f"{SECRETS}/b?{UNSAFE}&dryRun=All",
            f'secrets "b" is invalid: {IGNORE_STORE_READ_ERROR}: Invalid value: true: is exclusively used to delete corrupt '
            "object(s), try again by removing this option",
            id="an object that can be read, in a dry run",
        ),
        pytest.param(
            f"{SECRETS}?{UNSAFE}",
            f'DeleteOptions.meta.k8s.io "" is invalid: {IGNORE_STORE_READ_ERROR}: Invalid value: true: is not allowed with '
            "DELETECOLLECTION, try again after removing the option",
            id="a collection",
        ),
    ],
)
@in_server
async def test_it_is_refused_for(server: Server, target: str, message: str) -> None:
    await server.post(SECRETS, {"metadata": {"name": "b"}})
    refused = await server.call("DELETE", target)
    assert (refused.status, refused.message) == (422, message)
    assert (await server.get(f"{SECRETS}/b")).status == 200
