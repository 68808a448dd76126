"""ID tokens of a real provider at a real server: who comes in, and every way of not coming in (reference/kubernetes.md 5.8)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from mooring.client.connection import Ask, Connection
from mooring.client.tls import trusting
from tests.support.liveserver import LiveServer, start_server
from tests.support.openidprovider import OpenIdProvider
from tests.support.testca import ThrowawayCA

WHOAMI = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
USERS: dict[str, dict[str, Any]] = {
    "jane": {"email": "jane@example.com", "email_verified": True, "groups": ["dev", "ops"], "department": "ships"},
    "one-group": {"email": "one@example.com", "email_verified": True, "groups": "dev"},
    "unverified": {"email": "unverified@example.com", "email_verified": False},
    "unsaid": {"email": "unsaid@example.com"},
}


@pytest.fixture(scope="module")
def ca() -> ThrowawayCA:
    return ThrowawayCA("provider", datetime.now(UTC))


@pytest.fixture(scope="module")
def provider(ca: ThrowawayCA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenIdProvider]:
    with OpenIdProvider(ca, tmp_path_factory.mktemp("provider"), USERS) as running:
        yield running


@pytest.fixture(scope="module")
def server(provider: OpenIdProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    running = start_server(
        tmp_path_factory.mktemp("openid") / "data",
        *(
            "--oidc-issuer-url",
            provider.issuer,
            "--oidc-client-id",
            "kubernetes",
            "--oidc-ca-file",
            str(provider.ca_file),
        ),
        *("--oidc-username-claim", "email", "--oidc-username-prefix", "oidc:"),
        *("--oidc-groups-claim", "groups", "--oidc-groups-prefix", "oidc:"),
    )
    until(lambda: asked(running, provider.id_token("jane"))[0] == 201)
    yield running
    running.stop()


def asked(server: LiveServer, token: str) -> tuple[int, Any]:
    """Status and body of asking who one is with this bearer."""

    async def ask() -> tuple[int, Any]:
        connection = Connection(trusting(server.ca_pem))
        headers = (("authorization", f"Bearer {token}"), ("content-type", "application/json"))
        try:
            async with connection.stream(
                Ask("POST", server.url + REVIEWS, headers, json.dumps(WHOAMI).encode())
            ) as stream:
                return stream.status, json.loads(await stream.read(1 << 20))
        finally:
            await connection.close()

    return asyncio.run(ask())


def until(happened: Callable[[], bool], seconds: float = 60.0) -> None:
    """Ask again until it is so."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.05)


def user_of(server: LiveServer, token: str) -> Any:
    status, body = asked(server, token)
    assert status == 201, (body, server.log[-2000:])
    return body["status"]["userInfo"]


def test_who_logs_in_at_the_provider_is_known_by_its_claims(provider: OpenIdProvider, server: LiveServer) -> None:
    user = user_of(server, provider.id_token("jane"))
    assert user["username"] == "oidc:jane@example.com"
    assert user["groups"] == ["oidc:dev", "oidc:ops", "system:authenticated"]
