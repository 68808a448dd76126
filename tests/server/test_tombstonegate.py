"""The gate of tombstones in a whole server: what answers 503, and what is not signed."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from mooring.api.mooring import tombstones
from mooring.api.mooring.tombstones import refuse_unsettled
from mooring.errors import ServiceUnavailableError
from mooring.identity import NODES
from mooring.pki.keys import generate_key
from mooring.pki.x509.requests import build_request
from mooring.server.authentication.recheck import CredentialRecheck
from tests.server.test_k3scertificates import CLIENT, SERVING, controllers_of, of_node, supervised
from tests.server.test_k3scertificates import post as k3s_post
from tests.support.loops import until
from tests.support.manualclock import settle
from tests.support.serverroom import Server, in_server

CONFIG_MAP = f"/api/v1/namespaces/{tombstones.NAMESPACE}/configmaps"
CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"


async def wait_for_settling(server: Server) -> None:
    """Let one tombstone wait."""
    entry = {"metadata": {"name": tombstones.NAME}, "data": {"node.gone": tombstones.entry("gone", {"uid": "u"})}}
    assert (await server.post(CONFIG_MAP, entry)).status == 201
    await settle()


@in_server
async def test_what_issues_answers_503_while_a_tombstone_waits(server: Server) -> None:
    review = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {}}
    await server.create("serviceaccounts", {"metadata": {"name": "default"}})
    issues: tuple[tuple[str, dict[str, Any], int], ...] = (
        ("/api/v1/namespaces/default/serviceaccounts/default/token", review, 201),
        ("/mooring/v1/login", {}, 403),
    )
    for path, body, status in issues:
        assert (await server.post(path, body)).status == status, path
    await wait_for_settling(server)
    for path, body, _ in issues:
        refused = await server.post(path, body)
        assert refused.status == 503, path
        assert "nothing is issued: the store is older than what a server remembers" in refused.message
        assert "retry-after" not in refused.headers
    with pytest.raises(ServiceUnavailableError):
        refuse_unsettled(server.registry.views)  # the doors of k3s's way, and the keys for a further server
    ready = await server.get("/readyz?verbose")
    assert (ready.status, "[!]restore-check warning" in ready.text) == (200, True)
    assert "mooring_restore_check_pending 1.0" in (await server.get("/metrics")).text
    assert (await server.get("/api/v1/nodes")).status == 200
    assert (await server.call("DELETE", f"{CONFIG_MAP}/{tombstones.NAME}")).status == 200
    await settle()
    assert (await server.post(*issues[0][:2])).status == 201


@in_server
async def test_a_tombstone_that_comes_while_a_request_waits_refuses_it(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    review = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {}}
    await server.create("serviceaccounts", {"metadata": {"name": "default"}})
    confirm = CredentialRecheck.confirm

    async def after_an_end(self: CredentialRecheck) -> None:
        await wait_for_settling(server)
        await confirm(self)

    monkeypatch.setattr(CredentialRecheck, "confirm", after_an_end)
    refused = await server.post("/api/v1/namespaces/default/serviceaccounts/default/token", review)
    assert (refused.status, "nothing is issued" in refused.message) == (503, True)


@in_server
async def test_no_signer_signs_while_a_tombstone_waits(server: Server) -> None:
    def is_issued(name: str) -> bool:
        found = server.registry.views["certificatesigningrequests"].get(name) or {}
        return bool((found.get("status") or {}).get("certificate"))

    requests = {
        "client": ("kubernetes.io/kube-apiserver-client", "jane", (), ["client auth"]),
        "kubelet": ("kubernetes.io/kube-apiserver-client-kubelet", "system:node:n1", (NODES,), ["client auth"]),
    }
    await wait_for_settling(server)
    async with controllers_of(server):
        for name, (signer, subject, groups, usages) in requests.items():
            pem = base64.b64encode(build_request(generate_key(), subject, groups)).decode()
            spec = {"request": pem, "signerName": signer, "usages": ["digital signature", *usages]}
            assert (await server.post(CSRS, {"metadata": {"name": name}, "spec": spec})).status == 201
            await settle()
            found = (await server.get(f"{CSRS}/{name}")).obj
            found["status"] = {"conditions": [{"type": "Approved", "status": "True", "reason": "test"}]}
            assert (await server.call("PUT", f"{CSRS}/{name}/approval", body=found)).status == 200
        for _ in range(20):
            await server.clock.advance(1)
        assert [name for name in requests if is_issued(name)] == []
        data = {"data": {f"{tombstones.ACCEPTED}node.gone": "{}", "node.gone": None}}
        patched = await server.call(
            "PATCH", f"{CONFIG_MAP}/{tombstones.NAME}", body=data, content_type="application/merge-patch+json"
        )
        assert patched.status == 200, patched.text
        for _ in range(20):
            await server.clock.advance(1)
        assert [name for name in requests if is_issued(name)] == list(requests)


@supervised()
async def test_agents_of_k3s_get_no_certificate_and_no_password_is_stored_while_a_tombstone_waits(
    server: Server,
) -> None:
    await wait_for_settling(server)
    for path in (CLIENT, SERVING):
        refused = await k3s_post(server, path, node=of_node())
        assert (refused.status, "nothing is issued" in refused.text) == (503, True), path
    assert list(server.registry.views["certificatesigningrequests"].list()) == []
    assert server.registry.views["secrets"].get("n1.node-password.k3s", "kube-system") is None
    assert (await server.call("DELETE", f"{CONFIG_MAP}/{tombstones.NAME}")).status == 200
    await settle()
    assert (await k3s_post(server, CLIENT, node=of_node())).status == 200


@in_server
async def test_a_token_of_a_service_account_in_a_secret_is_not_filled_in_while_a_tombstone_waits(
    server: Server,
) -> None:
    await server.create("serviceaccounts", {"metadata": {"name": "builder"}})
    await wait_for_settling(server)
    annotations = {"kubernetes.io/service-account.name": "builder"}
    secret = {"metadata": {"name": "t", "annotations": annotations}, "type": "kubernetes.io/service-account-token"}
    async with controllers_of(server):
        await server.create("secrets", secret)
        for _ in range(20):
            await server.clock.advance(1)
        view = server.registry.views["secrets"]
        assert "token" not in ((view.get("t", "default") or {}).get("data") or {})
        assert (await server.call("DELETE", f"{CONFIG_MAP}/{tombstones.NAME}")).status == 200
        for _ in range(20):
            await server.clock.advance(1)
        assert "token" in (view.get("t", "default") or {})["data"]


@in_server
async def test_a_token_that_came_back_authenticates_nobody_and_its_signature_goes(server: Server) -> None:
    token = await server.bootstrap_token()
    secret = server.registry.views["secrets"].get("bootstrap-token-abcdef", "kube-system")
    assert secret is not None

    def is_signed() -> bool:
        info = server.registry.views["configmaps"].get("cluster-info", "kube-public")
        return info is not None and "jws-kubeconfig-abcdef" in info["data"]

    async with controllers_of(server):
        await until(is_signed)
        assert (await server.get("/apis", token=token)).status == 200
        data = {"token.abcdef": tombstones.entry("abcdef", {"uid": secret["metadata"]["uid"]})}
        await server.create(
            "configmaps", {"metadata": {"name": tombstones.NAME}, "data": data}, namespace=tombstones.NAMESPACE
        )
        await settle()
        assert (await server.get("/apis", token=token)).status == 401
        touched = {**secret, "metadata": {**secret["metadata"], "labels": {"a": "b"}}}
        touched["metadata"].pop("resourceVersion")
        await server.update("secrets", touched, namespace="kube-system")
        await until(lambda: not is_signed())


@in_server
async def test_a_list_of_tombstones_that_cannot_be_read_issues_nothing(server: Server) -> None:
    await wait_for_settling(server)
    key = f"/registry/configmaps/{tombstones.NAMESPACE}/{tombstones.NAME}"
    found = await server.storage.get(key)
    assert found is not None
    await server.storage.update(key, b"junk", expected=found.revision)
    await settle()
    refused = await server.post("/mooring/v1/login", {})
    assert (refused.status, "cannot be read" in refused.message) == (503, True)
