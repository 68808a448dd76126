"""Token webhooks with real programs: kubectl's `--token`, and a server with another server as its webhook.

Source: docs/protocol/authentication.md#webhook.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mooring.client.cluster import ClusterClient
from mooring.client.http.connection import ConnectionPool
from mooring.client.http.tls import trusting
from mooring.trust.httpexchange import HttpRequest
from tests.compat.kubectl import Kubectl, Program
from tests.support.liveserver import LiveServer, start_server
from tests.support.testca import ThrowawayCA
from tests.support.tokenwebhook import SimulatedWebhook, kubeconfig

AUTHENTICATION = "/apis/authentication.k8s.io/v1"
ISSUER = "https://kubernetes.default.svc.cluster.local"
"""Issuer of the server with the webhook, and so the audience that it requests."""
OTHER_ISSUER = "https://other.example"


def review_self(server: LiveServer, token: str) -> tuple[int, Any]:
    """Return status and body of a SelfSubjectReview with this bearer."""

    async def ask() -> tuple[int, Any]:
        connection = ConnectionPool(trusting(server.ca_pem))
        headers = (("authorization", f"Bearer {token}"), ("content-type", "application/json"))
        try:
            async with connection.stream(
                HttpRequest("", "POST", f"{server.url}{AUTHENTICATION}/selfsubjectreviews", headers, b"{}")
            ) as stream:
                return stream.status, json.loads(await stream.read(1 << 20))
        finally:
            await connection.close()

    return asyncio.run(ask())


def username(server: LiveServer, token: str) -> str:
    status, body = review_self(server, token)
    assert status == 201, (body, server.log[-2000:])
    name: str = body["status"]["userInfo"]["username"]
    return name


# ── kubectl ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def hook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedWebhook]:
    users = {"jane-opaque-4711": {"username": "jane", "groups": ["system:masters"]}}
    with SimulatedWebhook(
        ThrowawayCA("service", datetime.now(UTC)), tmp_path_factory.mktemp("hook"), users=users
    ) as running:
        yield running


@pytest.fixture(scope="module")
def server(hook: SimulatedWebhook, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    running = start_server(
        tmp_path_factory.mktemp("webhook-server") / "data",
        *("--authentication-token-webhook-config-file", str(hook.kubeconfig())),
        *("--authentication-token-webhook-cache-ttl", "1h"),
    )
    yield running
    assert running.stop() == 0, running.log


def test_kubectl_authenticates_with_a_token_that_only_the_webhook_accepts(
    program: Program, server: LiveServer, hook: SimulatedWebhook, tmp_path: Path
) -> None:
    cluster = {"server": server.url, "certificate-authority-data": base64.b64encode(server.ca_pem).decode()}
    kubectl = Kubectl(program, kubeconfig(tmp_path / "nobody.conf", cluster, {}), tmp_path)
    name = f"made-{program.version.replace('.', '-')}"
    assert kubectl.ok("--token=jane-opaque-4711", "create", "namespace", name) == f"namespace/{name} created\n"
    assert hook.tokens.count("jane-opaque-4711") == 1, "it is asked once in an hour"
    assert hook.requests[0].review["apiVersion"] == "authentication.k8s.io/v1beta1", (
        "the version unless another is said"
    )


# ── two servers ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def webhook_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """Start the server that acts as the webhook."""
    flags = ("--service-account-issuer", OTHER_ISSUER, "--api-audiences", f"{OTHER_ISSUER},{ISSUER}")
    running = start_server(tmp_path_factory.mktemp("other") / "data", *flags)
    yield running
    running.stop()


async def account(client: ClusterClient, name: str) -> None:
    await client.create("serviceaccounts", {"metadata": {"name": name, "namespace": "default"}})


async def token_of(client: ClusterClient, name: str, *audiences: str) -> str:
    path = f"/api/v1/namespaces/default/serviceaccounts/{name}/token"
    issued = await client.post_path(path, {"spec": {"audiences": audiences} if audiences else {}})
    token: str = issued["status"]["token"]
    return token


@pytest.fixture(scope="module")
def relying_server(webhook_server: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """Start the server with the webhook; its ServiceAccount in the other one may only create TokenReviews."""
    directory = tmp_path_factory.mktemp("relying-server")

    async def prepared(client: ClusterClient) -> str:
        await account(client, "webhook")
        await client.create(
            "clusterrolebindings",
            {
                "metadata": {"name": "webhook"},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": "system:auth-delegator",
                },
                "subjects": [{"kind": "ServiceAccount", "name": "webhook", "namespace": "default"}],
            },
        )
        return await token_of(client, "webhook")

    (directory / "token").write_text(webhook_server.run(prepared))
    (directory / "ca.crt").write_bytes(webhook_server.ca_pem)
    described = {
        "server": f"{webhook_server.url}/apis/authentication.k8s.io/v1beta1/tokenreviews",
        "certificate-authority": "ca.crt",
    }
    config = kubeconfig(directory / "webhook.yaml", described, {"tokenFile": "token"})
    running = start_server(
        directory / "data",
        *("--authentication-token-webhook-config-file", str(config)),
        *("--authentication-token-webhook-cache-ttl", "0s"),
    )
    yield running
    assert running.stop() == 0, running.log


def test_a_service_account_of_another_cluster_authenticates_with_a_token_for_this_one(
    relying_server: LiveServer, webhook_server: LiveServer
) -> None:
    async def tokens(client: ClusterClient) -> tuple[str, str]:
        await account(client, "robot")
        return await token_of(client, "robot", ISSUER), await token_of(client, "robot", OTHER_ISSUER)

    for_us, for_them = webhook_server.run(tokens)
    assert username(relying_server, for_us) == "system:serviceaccount:default:robot"
    assert review_self(relying_server, for_them)[0] == 401, "a token of the other cluster for itself is not for us"
    webhook_server.run(lambda client: client.delete("serviceaccounts", "robot", "default"))
    assert review_self(relying_server, for_us)[0] == 401, (
        "with a memory of zero it is refused as soon as it is gone there"
    )


def test_a_bootstrap_token_of_another_cluster_authenticates(
    relying_server: LiveServer, webhook_server: LiveServer
) -> None:
    token = webhook_server.create_token(signed=False)
    text = token.reveal()
    assert username(relying_server, text) == f"system:bootstrap:{token.id}"
    webhook_server.run(lambda client: client.delete("secrets", f"bootstrap-token-{token.id}", "kube-system"))
    assert review_self(relying_server, text)[0] == 401


def test_a_cluster_that_is_down_refuses_and_the_log_says_why(
    relying_server: LiveServer, webhook_server: LiveServer
) -> None:
    webhook_server.stop()
    assert review_self(relying_server, "opaque-token-4711")[0] == 401
    assert f"the token webhook {webhook_server.url}" in relying_server.log
    assert "gives no verdict" in relying_server.log
    assert "webhook-unreachable: connection refused" in relying_server.log
    assert "opaque-token" not in relying_server.log
    webhook_server.restart()
    assert review_self(relying_server, "opaque-token-4711")[0] == 401
    assert "answers again" in relying_server.log
