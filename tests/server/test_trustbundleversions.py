"""Test ClusterTrustBundles that two versions of a group serve from the same objects, stored as v1beta1."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mooring.api.certificates.clustertrustbundle import KIND, KIND_V1
from mooring.apimachinery.codec.protobuf import decode_envelope, decode_message, encode_envelope, encode_object
from mooring.apimachinery.metav1 import list_of
from mooring.apimachinery.schema import Obj
from tests.support.manualclock import settle
from tests.support.protobufwatch import decode_watch_frame
from tests.support.serverroom import Server, in_server
from tests.support.testca import ThrowawayCA

GROUP = "/apis/certificates.k8s.io"
V1, BETA = f"{GROUP}/v1/clustertrustbundles", f"{GROUP}/v1beta1/clustertrustbundles"
VERSIONS = {V1: "certificates.k8s.io/v1", BETA: "certificates.k8s.io/v1beta1"}
KINDS = {V1: KIND_V1, BETA: KIND}
KEY = "/registry/clustertrustbundles/example.com:web:a"
NAME = "example.com:web:a"
SPEC = {"signerName": "example.com/web", "trustBundle": ThrowawayCA().certificate_pem.decode()}
PROTOBUF = "application/vnd.kubernetes.protobuf"
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
INITIAL = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
both = pytest.mark.parametrize("path", [pytest.param(V1, id="v1"), pytest.param(BETA, id="v1beta1")])


def bundle(path: str, **metadata: Any) -> Obj:
    metadata = {"name": NAME, **metadata}
    return {"kind": "ClusterTrustBundle", "apiVersion": VERSIONS[path], "metadata": metadata, "spec": SPEC}


async def stored(server: Server) -> Obj:
    entry = await server.storage.get(KEY)
    assert entry is not None
    obj: Obj = json.loads(entry.value)
    return obj


@both
@in_server
async def test_what_one_version_takes_both_show_and_v1beta1_is_stored(server: Server, path: str) -> None:
    made = await server.post(path, bundle(path))
    assert (made.status, made.obj["apiVersion"]) == (201, VERSIONS[path])
    for each, version in VERSIONS.items():
        shown = (await server.get(f"{each}/{NAME}")).obj
        assert shown == made.obj | {"apiVersion": version}
        listed = (await server.get(f"{each}?fieldSelector=spec.signerName%3Dexample.com/web")).obj
        assert (listed["apiVersion"], [item["spec"] for item in listed["items"]]) == (version, [SPEC])
        none = (await server.get(f"{each}?fieldSelector=spec.signerName%3Dexample.com/other")).obj
        assert none["items"] == []
    assert (await stored(server))["apiVersion"] == "certificates.k8s.io/v1beta1"


@both
@in_server
async def test_both_versions_change_and_delete_one_object(server: Server, path: str) -> None:
    other = BETA if path == V1 else V1
    made = (await server.post(other, bundle(other))).obj
    changed = await server.call(
        "PATCH", f"{path}/{NAME}", body={"metadata": {"labels": {"a": "b"}}}, content_type=MERGE
    )
    assert (changed.status, changed.obj["apiVersion"]) == (200, VERSIONS[path])
    changed.obj["metadata"]["labels"] = {"a": "c"}
    put = await server.call("PUT", f"{path}/{NAME}", body=changed.obj)
    assert (put.status, put.obj["metadata"]["uid"], put.obj["apiVersion"]) == (
        200, made["metadata"]["uid"], VERSIONS[path],
    )  # fmt: skip
    moved = await server.call(
        "PATCH", f"{path}/{NAME}", body={"spec": {"signerName": "example.com/x"}}, content_type=MERGE
    )
    assert (moved.status, "spec.signerName: Invalid value" in moved.message) == (422, True)
    assert (await server.call("DELETE", f"{path}/{NAME}")).status == 200
    assert (await server.get(f"{other}/{NAME}")).status == 404


@both
@in_server
async def test_a_body_is_of_the_version_in_the_path(server: Server, path: str) -> None:
    other = BETA if path == V1 else V1
    refused = await server.post(path, bundle(other))
    assert (refused.status, refused.message) == (
        400,
        f"the API version in the data ({VERSIONS[other]}) does not match the expected API version ({VERSIONS[path]})",
    )


@in_server
async def test_each_watch_has_its_version_bookmarks_too(server: Server) -> None:
    watches = {path: await server.follow(f"{path}?watch=1&{INITIAL}") for path in VERSIONS}
    await server.post(V1, bundle(V1))
    await server.call("DELETE", f"{BETA}/{NAME}")
    await settle()
    for path, watch in watches.items():
        assert watch.event_names == ["BOOKMARK", f"ADDED {NAME}", f"DELETED {NAME}"]
        assert {event["object"]["apiVersion"] for event in watch.events} == {VERSIONS[path]}
        await watch.end()


@both
@in_server
async def test_protobuf(server: Server, path: str) -> None:
    kind = KINDS[path]
    body = encode_object(bundle(path), kind.resource.schema)
    made = await server.call("POST", path, body=body, content_type=PROTOBUF, headers=[("Accept", PROTOBUF)])
    assert (made.status, decode_envelope(made.body)[:2]) == (201, (VERSIONS[path], "ClusterTrustBundle"))
    listed = await server.get(path, headers=[("Accept", PROTOBUF)])
    api_version, _, raw = decode_envelope(listed.body)
    assert api_version == VERSIONS[path]
    assert [item["spec"] for item in decode_message(raw, list_of(kind.resource.schema))["items"]] == [SPEC]
    watch = await server.follow(f"{path}?watch=1", headers=[("Accept", PROTOBUF)])
    _, frame = decode_watch_frame(watch.raw)
    api_version, _, raw = decode_envelope(frame)
    assert (api_version, decode_message(raw, kind.resource.schema)["spec"]) == (VERSIONS[path], SPEC)
    await watch.end()


@both
@in_server
async def test_tables(server: Server, path: str) -> None:
    await server.post(path, bundle(path))
    shown = (await server.get(path, headers=[("Accept", TABLE)])).obj
    assert [row["cells"] for row in shown["rows"]] == [[NAME, "example.com/web"]]


@in_server
async def test_server_side_apply_names_the_version_of_each_request(server: Server) -> None:
    async def apply(path: str, manager: str, **metadata: Any) -> Any:
        target = f"{path}/{NAME}?fieldManager={manager}"
        return await server.call("PATCH", target, body=bundle(path, **metadata), content_type=APPLY)

    def entries(obj: Obj) -> list[tuple[str, str]]:
        return [(one["manager"], one["apiVersion"].rpartition("/")[2]) for one in obj["metadata"]["managedFields"]]

    made = await apply(V1, "one", labels={"a": "b"})
    assert (made.status, entries(made.obj)) == (201, [("one", "v1")])
    shared = await apply(BETA, "two", labels={"a": "b"})
    assert sorted(entries(shared.obj)) == [("one", "v1"), ("two", "v1beta1")]
    conflict = await apply(BETA, "three", labels={"a": "c"})
    assert conflict.status == 409
    assert {cause["message"] for cause in conflict.obj["details"]["causes"]} == {
        'conflict with "one"', 'conflict with "two"',
    }  # fmt: skip
    dropped = await apply(BETA, "one")
    assert sorted(entries(dropped.obj)) == [("one", "v1beta1"), ("two", "v1beta1")], "one manager, in any version"
    assert dropped.obj["metadata"]["labels"] == {"a": "b"}, "the other manager still has it"
    gone = await apply(V1, "two")
    assert "labels" not in gone.obj["metadata"]
    label = {"metadata": {"labels": {"x": "y"}}}
    patched = await server.call("PATCH", f"{V1}/{NAME}?fieldManager=four", body=label, content_type=MERGE)
    assert sorted(entries(patched.obj)) == [("four", "v1"), ("one", "v1beta1"), ("two", "v1")]


@in_server
async def test_an_apply_takes_over_what_kubectl_applied_in_the_other_version(server: Server) -> None:
    made = bundle(BETA, labels={"a": "b"})
    last = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(made)}
    await server.post(BETA, bundle(BETA, labels={"a": "b"}, annotations=last))
    applied = await server.call(
        "PATCH", f"{V1}/{NAME}?fieldManager=kubectl", body=bundle(V1, labels={"a": "c"}), content_type=APPLY
    )
    assert (applied.status, applied.obj["metadata"]["labels"]) == (200, {"a": "c"})


def of_v1(obj: Obj, form: str) -> bytes:
    """Return a value as a server that stores v1 writes it."""
    obj = {**obj, "apiVersion": VERSIONS[V1]}
    if form == "JSON":
        return json.dumps(obj).encode()
    return encode_object(obj, KIND_V1.resource.schema)


@pytest.mark.parametrize("form", ["JSON", "protobuf"])
@in_server
async def test_an_object_that_is_stored_as_v1_is_served_and_keeps_its_owners(server: Server, form: str) -> None:
    made = await server.call("PATCH", f"{V1}/{NAME}?fieldManager=one", body=bundle(V1), content_type=APPLY)
    assert made.status == 201
    entry = await server.storage.get(KEY)
    assert entry is not None
    await server.storage.update(KEY, of_v1(await stored(server), form), expected=entry.revision)
    for path, version in VERSIONS.items():
        shown = await server.get(f"{path}/{NAME}")
        assert (shown.status, shown.obj["apiVersion"], shown.obj["spec"]) == (200, version, SPEC)
    label = {"metadata": {"labels": {"a": "b"}}}
    changed = await server.call("PATCH", f"{BETA}/{NAME}?fieldManager=two", body=label, content_type=MERGE)
    owners = [(one["manager"], one["apiVersion"]) for one in changed.obj["metadata"]["managedFields"]]
    assert owners == [("one", VERSIONS[V1]), ("two", VERSIONS[BETA])]
    assert (await stored(server))["apiVersion"] == VERSIONS[BETA]


@in_server
async def test_an_unknown_version_in_the_store_is_not_read(server: Server) -> None:
    await server.storage.create(KEY, encode_envelope("certificates.k8s.io/v9", "ClusterTrustBundle", b""))
    assert (await server.get(f"{V1}/{NAME}")).status == 500


@in_server
async def test_discovery_and_openapi_prefer_v1(server: Server) -> None:
    group = (await server.get(GROUP)).obj
    assert [one["version"] for one in group["versions"]] == ["v1", "v1beta1"]
    assert group["preferredVersion"]["version"] == "v1"
    found = [
        next(one for one in (await server.get(f"{GROUP}/{version}")).obj["resources"] if one["name"] == KIND.resource.plural)
        for version in ("v1", "v1beta1")
    ]  # fmt: skip
    assert found[0] == found[1], "also the storageVersionHash: both are stored as the same"
    for version in ("v1", "v1beta1"):
        document = (await server.get(f"/openapi/v3/apis/certificates.k8s.io/{version}")).obj
        schema = document["components"]["schemas"][f"io.k8s.api.certificates.{version}.ClusterTrustBundle"]
        assert schema["x-kubernetes-group-version-kind"] == [
            {"group": "certificates.k8s.io", "version": version, "kind": "ClusterTrustBundle"}
        ]
    definitions = (await server.get("/openapi/v2")).obj["definitions"]
    assert {f"io.k8s.api.certificates.{version}.ClusterTrustBundleList" for version in ("v1", "v1beta1")} <= set(
        definitions
    )
