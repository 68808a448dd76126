"""Test PodCertificateRequests over the API: two versions of one object, `/status`, tables, selectors."""

from __future__ import annotations

import json
from datetime import UTC

import pytest

from mooring.apimachinery.schema import Obj
from tests.support.podrequests import condition, issued_status, pod_request, spec_of_pod
from tests.support.serverroom import Server, in_server
from tests.support.testca import ThrowawayCA

GROUP = "/apis/certificates.k8s.io"
V1, BETA = (f"{GROUP}/{version}/namespaces/default/podcertificaterequests" for version in ("v1", "v1beta1"))
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
both = pytest.mark.parametrize("path", [pytest.param(V1, id="v1"), pytest.param(BETA, id="v1beta1")])


async def stored(server: Server) -> Obj:
    entry = await server.storage.get("/registry/podcertificaterequests/default/r1")
    assert entry is not None
    obj: Obj = json.loads(entry.value)
    return obj


@both
@in_server
async def test_what_one_version_takes_both_show_and_v1beta1_is_stored(server: Server, path: str) -> None:
    made = await server.post(path, pod_request(maxExpirationSeconds=None))
    assert (made.status, made.obj["spec"]["maxExpirationSeconds"]) == (201, 86_400)
    assert (await stored(server))["apiVersion"] == "certificates.k8s.io/v1beta1"
    for each, version in ((V1, "v1"), (BETA, "v1beta1")):
        shown = (await server.get(f"{each}/r1")).obj
        assert shown == made.obj | {"apiVersion": f"certificates.k8s.io/{version}"}
        for name, value in (("nodeName", "n1"), ("podName", "p"), ("signerName", "example.com/mesh")):
            assert len((await server.get(f"{each}?fieldSelector=spec.{name}%3D{value}")).obj["items"]) == 1
            assert (await server.get(f"{each}?fieldSelector=spec.{name}%3Dx")).obj["items"] == []


@both
@in_server
async def test_a_signer_decides_once(server: Server, path: str) -> None:
    now = server.clock.now().astimezone(UTC)
    made = (await server.post(path, pod_request() | {"status": {"conditions": [condition("Issued", now)]}})).obj
    assert "status" not in made or not made["status"]
    status = issued_status(ThrowawayCA(now=now), now.replace(microsecond=0))
    issued = await server.call(
        "PUT", f"{path}/r1/status", body=made | {"status": status, "spec": spec_of_pod(podName="x")}
    )
    assert (issued.status, issued.obj["status"], issued.obj["spec"]) == (200, status, made["spec"])
    again = await server.call("PATCH", f"{path}/r1/status", body={"status": {"conditions": []}}, content_type=MERGE)
    assert (again.status, "immutable after PodCertificateRequest is issued" in again.message) == (422, True)
    table = (await server.get(path, headers=[("Accept", TABLE)])).obj
    assert table["rows"][0]["cells"][:6] == ["r1", "p", "default", "n1", "example.com/mesh", "Issued"]


@in_server
async def test_a_denial_by_a_strategic_merge_patch(server: Server) -> None:
    await server.post(V1, pod_request())
    body = {"status": {"conditions": [condition("Denied", server.clock.now(), reason="UnsupportedKeyType")]}}
    denied = await server.call("PATCH", f"{V1}/r1/status", body=body, content_type=STRATEGIC)
    assert (denied.status, denied.obj["status"]) == (200, body["status"])


@in_server
async def test_the_main_resource_changes_metadata_only(server: Server) -> None:
    made = (await server.post(V1, pod_request())).obj
    made["metadata"]["labels"] = {"a": "b"}
    labelled = await server.call("PUT", f"{V1}/r1", body=made | {"status": {"certificateChain": "x"}})
    assert (labelled.status, labelled.obj["metadata"]["labels"]) == (200, {"a": "b"})
    assert not labelled.obj.get("status")
    moved = await server.call("PATCH", f"{V1}/r1", body={"spec": {"podName": "x"}}, content_type=MERGE)
    assert (moved.status, moved.message.endswith("field is immutable")) == (422, True)
    without = {**made, "metadata": {"name": "r1"}}
    assert (await server.call("PUT", f"{V1}/r1", body=without)).status == 422
    assert (await server.call("PUT", f"{V1}/other", body=pod_request(name="other"))).status in (404, 422)


@in_server
async def test_both_versions_can_be_applied_in_turn(server: Server) -> None:
    spec = spec_of_pod()
    for path, version in ((V1, "v1"), (BETA, "v1beta1"), (V1, "v1")):
        body = {
            "apiVersion": f"certificates.k8s.io/{version}",
            "kind": "PodCertificateRequest",
            "metadata": {"name": "r1", "labels": {"by": version}},
            "spec": spec,
        }
        applied = await server.call("PATCH", f"{path}/r1?fieldManager=m&force=true", body=body, content_type=APPLY)
        assert applied.status in (200, 201), applied.message
        assert applied.obj["metadata"]["labels"] == {"by": version}
