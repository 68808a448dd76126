"""What tests ask a server about ID tokens, and the flags and files that make it take them.

Rules kept here: a refusal is read from the server's log, where the operator reads it; the caller must have been told nothing, and
the log nothing of the token.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import yaml

from mooring.client.http.connection import Connection
from mooring.client.http.tls import trusting
from mooring.trust.httpexchange import HttpRequest
from tests.support.liveserver import LiveServer
from tests.support.openidprovider import OpenIdProvider
from tests.support.testca import ThrowawayCA

WHOAMI = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
UNAUTHORIZED = {
    "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure", "message": "Unauthorized",
    "reason": "Unauthorized", "code": 401,
}  # fmt: skip


def asked(server: LiveServer, token: str, path: str = REVIEWS) -> tuple[int, Any]:
    """Status and body of asking who one is with this bearer; a GET of another path."""

    async def ask() -> tuple[int, Any]:
        connection = Connection(trusting(server.ca_pem))
        headers = (("authorization", f"Bearer {token}"), ("content-type", "application/json"))
        method, body = ("POST", json.dumps(WHOAMI).encode()) if path == REVIEWS else ("GET", None)
        try:
            async with connection.stream(
                HttpRequest("", method, server.url + path, headers if token else (), body)
            ) as stream:
                answer = await stream.read(1 << 20)
                return stream.status, json.loads(answer) if answer[:1] == b"{" else answer
        finally:
            await connection.close()

    return asyncio.run(ask())


def until(happened: Callable[[], bool], server: LiveServer | None = None) -> None:
    """Ask again until it is so."""
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline, server.log[-4000:] if server else "it did not come to that"
        time.sleep(0.05)


def user_of(server: LiveServer, token: str) -> Any:
    status, body = asked(server, token)
    assert status == 201, (body, server.log[-4000:])
    return body["status"]["userInfo"]


def refused(server: LiveServer, token: str) -> str:
    """Why, as the operator reads it in the log; the caller must have been told nothing."""
    seen, answer = len(server.log), asked(server, token)
    while (
        answer[0] == 429
    ):  # so many wrong credentials in so short a time: the server wants us to come back in a second
        time.sleep(1)
        seen, answer = len(server.log), asked(server, token)
    assert answer == (401, UNAUTHORIZED)
    line = next(line for line in server.log[seen:].splitlines() if "authentication refused" in line)
    reason = line.partition("oidc: ")[2]
    assert len(token) < 50 or token[-8:] not in line, "a token is told to nobody"
    return reason


def flags(provider: OpenIdProvider) -> list[str]:
    return [
        *("--oidc-issuer-url", provider.issuer, "--oidc-client-id", "kubernetes"),
        *("--oidc-ca-file", str(provider.ca_file), "--oidc-username-claim", "email", "--oidc-username-prefix", "oidc:"),
        *("--oidc-groups-claim", "groups", "--oidc-groups-prefix", "oidc:"),
    ]


def issuer(url: str, ca: ThrowawayCA, **mappings: Any) -> dict[str, Any]:
    return {
        "issuer": {"url": url, "audiences": ["kubernetes"], "certificateAuthority": ca.certificate_pem.decode()},
        "claimMappings": {"username": {"claim": "sub", "prefix": "a:"}, **mappings},
    }


def configuration(*jwt: Any, **more: Any) -> str:
    anonymous = {"enabled": True, "conditions": [{"path": "/livez"}, {"path": "/readyz"}]}
    return yaml.safe_dump(
        {
            "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration", "jwt": list(jwt),
            "anonymous": anonymous, **more,
        }
    )  # fmt: skip
