"""Requests with ID tokens, and the flags and files of a server that accepts them.

Rules kept here: the reason of a refusal is read from the server's log; the response must not contain it, and the log must not
contain the token.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import yaml

from mooring.client.http.connection import ConnectionPool
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


def review_self(server: LiveServer, token: str, path: str = REVIEWS) -> tuple[int, Any]:
    """Return status and body of a SelfSubjectReview with this bearer, or of a GET of another path."""

    async def ask() -> tuple[int, Any]:
        connection = ConnectionPool(trusting(server.ca_pem))
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


def user_of(server: LiveServer, token: str) -> Any:
    status, body = review_self(server, token)
    assert status == 201, (body, server.log[-4000:])
    return body["status"]["userInfo"]


def refused(server: LiveServer, token: str, authenticator: str = "oidc") -> str:
    """Send a token that an authenticator refuses. Return the reason from the log; the response must not contain it."""
    seen, answer = len(server.log), review_self(server, token)
    while answer[0] == 429:  # the limit on guesses is reached: the server answers 429 with Retry-After of one second
        time.sleep(1)
        seen, answer = len(server.log), review_self(server, token)
    assert answer == (401, UNAUTHORIZED)
    line = next(line for line in server.log[seen:].splitlines() if "authentication refused" in line)
    reason = line.partition(f"{authenticator}: ")[2]
    assert len(token) < 50 or token[-8:] not in line, "the log must not contain the token"
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
