"""Requests for certificates of Pods through the whole server, as a kubelet and a signer make them.

Source: docs/protocol/pod-certificate-requests.md#rights.
"""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

from mooring.clock import rfc3339
from mooring.identity import NODES
from mooring.pki import pem
from mooring.pki.keys import generate_key, private_key_pem
from mooring.pki.x509.requests import build_request
from tests.server.test_k3scertificates import controllers_of
from tests.support.manualclock import EPOCH
from tests.support.serverroom import Reply, Server, in_server, open_server
from tests.support.testca import ThrowawayCA

GROUP = "/apis/certificates.k8s.io/v1"
REQUESTS = f"{GROUP}/namespaces/default/podcertificaterequests"
CSRS = f"{GROUP}/certificatesigningrequests"
SIGNER = "example.com/mesh"
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


def stub() -> str:
    (block,) = pem.blocks(build_request(generate_key(), "", []))
    return base64.b64encode(block.der).decode()


async def requested(server: Server) -> Any:
    """Return the spec of a request for the Pod `p` on n1, which is stored with its Node and its account."""
    account = (await server.create("serviceaccounts", {"metadata": {"name": "robot"}})).obj
    node = (await server.create("nodes", {"metadata": {"name": "n1"}})).obj
    await server.create("nodes", {"metadata": {"name": "n2"}})
    source = {"podCertificate": {"signerName": SIGNER, "keyType": "ECDSAP256", "credentialBundlePath": "bundle.pem"}}
    spec = {
        "nodeName": "n1",
        "serviceAccountName": "robot",
        "automountServiceAccountToken": False,
        "containers": [{"name": "c", "image": "i"}],
        "volumes": [{"name": "v", "projected": {"sources": [source]}}],
    }
    pod = (await server.create("pods", {"metadata": {"name": "p"}, "spec": spec})).obj
    return {
        "signerName": SIGNER,
        "podName": "p",
        "podUID": pod["metadata"]["uid"],
        "serviceAccountName": "robot",
        "serviceAccountUID": account["metadata"]["uid"],
        "nodeName": "n1",
        "nodeUID": node["metadata"]["uid"],
        "stubPKCS10Request": stub(),
    }


@in_server
async def test_a_node_requests_the_certificate_of_its_pod_and_reads_what_is_its_own(server: Server) -> None:
    spec = await requested(server)
    own, other = (server.user(f"system:node:{name}", NODES) for name in ("n1", "n2"))
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": spec["podUID"]}
    body = {"metadata": {"generateName": "req-", "ownerReferences": [owner]}, "spec": spec}
    assert (await server.post(REQUESTS, body, via=other)).status == 403, "it runs on n1"
    refused = await server.post(REQUESTS, {**body, "spec": {**spec, "podUID": "earlier"}}, via=own)
    assert (refused.status, refused.obj["reason"]) == (409, "Conflict"), "it may succeed later"
    created = await server.post(REQUESTS, body, via=own)
    assert created.status == 201, created.text
    place = f"{REQUESTS}/{created.obj['metadata']['name']}"

    assert (await server.get(place, via=own)).obj["spec"]["podName"] == "p"
    theirs, missing = await server.get(place, via=other), await server.get(f"{REQUESTS}/missing", via=other)
    assert (theirs.status, missing.status) == (403, 403)
    name = created.obj["metadata"]["name"]
    assert theirs.obj["message"].replace(name, "missing") == missing.obj["message"]
    listed = f"{GROUP}/podcertificaterequests?fieldSelector=spec.nodeName%3Dn1"
    assert len((await server.get(listed, via=own)).obj["items"]) == 1
    assert (await server.get(listed, via=other)).status == 403
    assert (await server.get(REQUESTS, via=own)).status == 403

    denied = {"type": "Denied", "status": "True", "reason": "No", "message": "", "lastTransitionTime": rfc3339(EPOCH)}
    decided = {**created.obj, "status": {"conditions": [denied]}}
    assert (await server.call("PUT", f"{place}/status", body=decided, via=own)).status == 403
    assert (await server.call("DELETE", place, via=own)).status == 403
    assert (await server.call("PUT", f"{place}/status", body=decided)).status == 200


@in_server
async def test_a_status_is_written_with_two_rights(server: Server) -> None:
    body = {"metadata": {"name": "req"}, "spec": await requested(server)}
    assert (await server.post(REQUESTS, body)).status == 201
    jane = server.user("jane")

    async def grant(name: str, **rule: Any) -> None:
        await server.create("clusterroles", {"metadata": {"name": name}, "rules": [rule]})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
        subject = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "jane"}
        await server.create("clusterrolebindings", {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]})

    async def written(status: Any) -> Reply:
        how: Any = {"content_type": "application/merge-patch+json", "via": jane}
        return await server.call("PATCH", f"{REQUESTS}/req/status", body={"status": status}, **how)

    denied = {"type": "Denied", "status": "True", "reason": "No", "message": "", "lastTransitionTime": rfc3339(EPOCH)}
    assert (await written({"conditions": [denied]})).status == 403
    group = ["certificates.k8s.io"]
    await grant("status", apiGroups=group, resources=["podcertificaterequests/status"], verbs=["patch"])
    nothing: list[Any] = [None, {}, {"conditions": []}]
    for status in nothing:
        assert (await written(status)).status == 200, "it changes nothing"
    refused = await written({"conditions": [denied]})
    assert refused.status == 422
    assert refused.obj["message"] == (
        'PodCertificateRequest.certificates.k8s.io "req" is invalid: spec.signerName: Forbidden: User "jane" is not '
        f'permitted to "sign" for signer "{SIGNER}"'
    )
    await grant("sign", apiGroups=group, resources=["signers"], resourceNames=["example.com/*"], verbs=["sign"])
    assert (await written({"conditions": [denied]})).obj["status"]["conditions"][0]["type"] == "Denied"


@in_server
async def test_an_access_review_answers_for_a_node_as_for_its_own_request(server: Server) -> None:
    body = {"metadata": {"name": "req"}, "spec": await requested(server)}
    assert (await server.post(REQUESTS, body)).status == 201
    resource = {"group": "certificates.k8s.io", "resource": "podcertificaterequests", "namespace": "default"}

    async def allowed(node: str, **asked: Any) -> tuple[bool, str]:
        spec = {"user": f"system:node:{node}", "groups": [NODES], "resourceAttributes": {**resource, **asked}}
        status = (await server.post(REVIEWS, {"spec": spec})).obj["status"]
        return status["allowed"], status.get("reason", "")

    assert await allowed("n1", verb="get", name="req") == (True, "")
    theirs = await allowed("n2", verb="get", name="req")
    assert theirs == await allowed("n2", verb="get", name="missing")
    assert theirs == (False, "no relationship found between node 'n2' and this object")
    selector = {"requirements": [{"key": "spec.nodeName", "operator": "In", "values": ["n1"]}]}
    assert await allowed("n1", verb="watch", fieldSelector=selector) == (True, "")
    assert not (await allowed("n2", verb="watch", fieldSelector=selector))[0]


POLICY = "apiVersion: mooring.dev/v1alpha1\nkind: SigningPolicy\nsigners: [{name: example.com/mesh, %s}]\n"


def test_requests_that_wait_are_judged_by_the_policy_that_changed(tmp_path: Path) -> None:
    async def run() -> None:
        policy, pair = tmp_path / "policy.yaml", [tmp_path / "mesh.crt", tmp_path / "mesh.key"]
        policy.write_text(POLICY % "rules: []")
        ca = ThrowawayCA()
        pair[0].write_bytes(ca.certificate_pem)
        pair[1].write_bytes(private_key_pem(ca.key))
        files = f"{SIGNER}={pair[0]},{pair[1]}"
        async with (
            open_server(signer=(files,), cluster_signing_policy_file=str(policy)) as server,
            controllers_of(server),
        ):
            place = f"{REQUESTS}/req"
            body = {"metadata": {"name": "req"}, "spec": await requested(server)}
            assert (await server.post(REQUESTS, body)).status == 201
            request = base64.b64encode(build_request(generate_key(), "jane", [])).decode()
            spec = {"request": request, "signerName": SIGNER, "usages": ["client auth"]}
            assert (await server.post(CSRS, {"metadata": {"name": "csr"}, "spec": spec})).status == 201
            await server.clock.advance(1)
            assert (await server.get(f"{CSRS}/csr")).obj["status"]["conditions"][0]["type"] == "WouldFail"
            assert "conditions" not in (await server.get(place)).obj["status"]
            policy.write_text(POLICY % "rules: [{name: all}], podCertificates: {trustDomain: cluster.example}")
            reloading = server.assembly.trust.authentication.reloading
            await reloading.look()
            await reloading.look()
            await server.clock.advance(1)
            assert (await server.get(place)).obj["status"]["conditions"][0]["type"] == "Issued"
            assert not (await server.get(f"{CSRS}/csr")).obj["status"].get("conditions")

    asyncio.run(run())
