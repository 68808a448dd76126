"""Machines that join by an identity token of a real provider, at a real server.

Source: docs/join-by-identity-token.md.

The provider's own login issues the tokens. An issuer of the test signs those that a provider does not issue.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.client.http.connection import ConnectionPool
from mooring.client.http.tls import trusting
from mooring.pki.keys import PrivateKey, generate_key
from mooring.pki.x509.requests import build_request
from mooring.server.transport.http import Request, Response
from mooring.trust.httpexchange import HttpRequest
from mooring.trust.joinrule import use_of
from tests.compat.openid import flags, refused, review_self, user_of
from tests.support.jwtsigner import key_for, key_set, public, signed
from tests.support.liveserver import LiveServer, running_server
from tests.support.openidprovider import OpenIdProvider
from tests.support.polling import eventually
from tests.support.testca import ThrowawayCA
from tests.support.tlspeer import serving

USERS: dict[str, dict[str, Any]] = {
    "runner": {"email": "runner@example.com", "email_verified": True, "repository": "o/r", "run": 17},
    "fork": {"email": "fork@example.com", "email_verified": True, "repository": "fork/r", "run": 18},
}
RULES = "/apis/mooring.dev/v1alpha1/joinrules"
REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
KEY, NEW_KEY = (key_for("RS256", which) for which in range(2))


@pytest.fixture(scope="module")
def ca() -> ThrowawayCA:
    return ThrowawayCA("provider", datetime.now(UTC))


@pytest.fixture(scope="module")
def provider(ca: ThrowawayCA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenIdProvider]:
    with OpenIdProvider(ca, tmp_path_factory.mktemp("provider"), USERS) as running:
        yield running


@pytest.fixture(scope="module")
def server(provider: OpenIdProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """Start a server that accepts people of the same provider."""
    with running_server(tmp_path_factory.mktemp("joinrules") / "data", *flags(provider)) as running:
        yield running


class Issuer:
    """The pages of an issuer over TLS, and the paths that were requested."""

    def __init__(self) -> None:
        self.url = ""
        self.pages: dict[str, bytes] = {}
        self.paths: list[str] = []

    async def __call__(self, request: Request) -> Response:
        self.paths.append(request.path)
        page = self.pages.get(request.path)
        return Response(404) if page is None else Response(200, page)

    def publish(self, path: str, *keys: Any) -> str:
        """Publish keys for an issuer at a path; return its URL."""
        place = path.rstrip("/")
        document = {"issuer": self.url + path, "jwks_uri": f"{self.url}{place}/jwks"}
        self.pages[f"{place}/.well-known/openid-configuration"] = json.dumps(document).encode()
        self.pages[f"{place}/jwks"] = key_set(*keys)
        return self.url + path


@pytest.fixture(scope="module")
def issuer(ca: ThrowawayCA) -> Iterator[Issuer]:
    handler = Issuer()
    with serving(ca, handler) as served:
        handler.url = f"https://localhost:{served.port}"
        yield handler


def cluster_id(server: LiveServer) -> str:
    async def read(client: ClusterClient) -> Obj:
        return await client.get_path("/api/v1/namespaces/kube-system")

    uid: str = server.run(read)["metadata"]["uid"]
    return uid


def add_rule(server: LiveServer, name: str, url: str, ca: ThrowawayCA, **spec: Any) -> None:
    full = {
        "issuer": {"url": url, "certificateAuthority": ca.certificate_pem.decode()},
        "claims": [{"claim": "repository", "pattern": "o/*"}],
        "nodeName": f"{name}-{{run}}",
        **spec,
    }

    async def create(client: ClusterClient) -> Obj:
        obj = {"apiVersion": "mooring.dev/v1alpha1", "kind": "JoinRule", "metadata": {"name": name}, "spec": full}
        return await client.post_path(RULES, obj)

    server.run(create)


def joins(server: LiveServer, name: str) -> list[Obj]:
    async def read(client: ClusterClient) -> Obj:
        return await client.get_path(f"{RULES}/{name}")

    found: list[Obj] = (server.run(read).get("status") or {}).get("joins", [])
    return found


def own_token(server: LiveServer, url: str, key: Any = KEY, kid: str = "k", **claims: Any) -> str:
    expires = (datetime.now(UTC) + timedelta(hours=1)).timestamp()
    full = {
        "iss": url,
        "aud": cluster_id(server),
        "exp": expires,
        "sub": "s",
        "jti": "j",
        "repository": "o/r",
        "run": 1,
    }
    return signed({**full, **claims}, key, kid=kid)


def ask(server: LiveServer, token: str, obj: Obj) -> tuple[int, Obj]:
    """Return status and body of a creation with this bearer."""

    async def post() -> tuple[int, Obj]:
        connection = ConnectionPool(trusting(server.ca_pem))
        headers = (("authorization", f"Bearer {token}"), ("content-type", "application/json"))
        try:
            request = HttpRequest("", "POST", server.url + REQUESTS, headers, json.dumps(obj).encode())
            async with connection.stream(request) as stream:
                return stream.status, json.loads(await stream.read(1 << 20))
        finally:
            await connection.close()

    return asyncio.run(post())


def request(name: str, node: str, key: PrivateKey) -> Obj:
    pem = build_request(key, f"system:node:{node}", ("system:nodes",))
    spec = {
        "request": base64.b64encode(pem).decode(), "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
        "usages": ["digital signature", "client auth"],
    }  # fmt: skip
    return {
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name}, "spec": spec,
    }  # fmt: skip


def settled(server: LiveServer, name: str) -> tuple[str, str, bool]:
    """Return type and reason of the condition that a request gets, and whether it has a certificate."""

    async def read(client: ClusterClient) -> Obj:
        return await client.get_path(f"{REQUESTS}/{name}")

    def status() -> Obj | None:
        found: Obj = server.run(read).get("status") or {}
        conditions = found.get("conditions") or []
        if not conditions or (conditions[0]["type"] == "Approved" and not found.get("certificate")):
            return None
        return found

    eventually(lambda: status() is not None, server)
    found = status()
    assert found is not None
    (condition, *_) = found["conditions"]
    return condition["type"], condition["reason"], bool(found.get("certificate"))


def test_a_machine_joins_by_a_token_of_a_provider_that_people_use_too(
    provider: OpenIdProvider, server: LiveServer, ca: ThrowawayCA
) -> None:
    add_rule(server, "ci", provider.issuer, ca, maxJoins=1)
    token = provider.id_token("runner", client_id=cluster_id(server))
    user = user_of(server, token)
    assert user["username"] == "system:joinrule:ci"
    assert user["extra"]["join.mooring.dev/node-name"] == ["ci-17"]
    eventually(lambda: review_self(server, provider.id_token("runner"))[0] == 201, server)
    person = user_of(server, provider.id_token("runner"))
    assert person["username"] == "oidc:runner@example.com", "a token for another audience is one of a person"
    code = refused_by_rule(server, provider.id_token("fork", client_id=cluster_id(server)))
    assert code == "claims-not-allowed"

    key = generate_key()
    assert ask(server, token, request("first", "ci-17", key))[0] == 201
    assert settled(server, "first") == ("Approved", "AutoApproved", True)
    assert ask(server, token, request("again", "ci-17", key))[0] == 201
    assert settled(server, "again") == ("Approved", "AutoApproved", True)
    assert ask(server, token, request("stolen", "ci-17", generate_key()))[0] == 201
    assert settled(server, "stolen") == ("Denied", "IdentityTokenUsed", False)
    assert ask(server, token, request("foreign", "ci-18", key))[0] == 403
    assert len(joins(server, "ci")) == 1, "a machine that repeats its request is counted once"


def refused_by_rule(server: LiveServer, token: str) -> str:
    """Send a token that a rule refuses. Return the code in the log."""
    code, _, _ = refused(server, token, "join-rule").partition(" ")
    return code


@pytest.mark.parametrize("path", ["", "/realms/a", "/realms/b/"])
def test_an_issuer_with_a_path_or_a_final_slash(path: str, issuer: Issuer, server: LiveServer, ca: ThrowawayCA) -> None:
    name = f"path-{len(path)}"
    url = issuer.publish(path, public(KEY))
    add_rule(server, name, url, ca)
    document = f"{path.rstrip('/')}/.well-known/openid-configuration"
    assert document not in issuer.paths
    assert user_of(server, own_token(server, url))["username"] == f"system:joinrule:{name}"
    assert issuer.paths.count(document) == 1, "keys are fetched at the first token"
    large = own_token(server, url, jti="large", pad="x" * 11_000)
    assert 14_000 < len(large) < 16_384
    extra = user_of(server, large)["extra"]
    assert extra["join.mooring.dev/use"] == [use_of(url, "large")]
    assert issuer.paths.count(document) == 1


def test_keys_that_were_rotated_are_found_and_an_issuer_that_is_down_locks_nobody_out(
    issuer: Issuer, server: LiveServer, ca: ThrowawayCA
) -> None:
    url = issuer.publish("/rotating", public(KEY))
    add_rule(server, "rotating", url, ca)
    assert user_of(server, own_token(server, url))["username"] == "system:joinrule:rotating"
    issuer.publish("/rotating", public(NEW_KEY, "new"))
    rotated = own_token(server, url, NEW_KEY, "new")
    eventually(lambda: review_self(server, rotated)[0] == 201, server)
    assert refused_by_rule(server, own_token(server, url)) == "unknown-key"
    issuer.pages.clear()
    assert user_of(server, own_token(server, url, NEW_KEY, "new", jti="j2"))["username"] == "system:joinrule:rotating"


def test_an_issuer_under_another_ca_is_not_believed(issuer: Issuer, server: LiveServer) -> None:
    url = issuer.publish("/other-ca", public(KEY))
    add_rule(server, "other-ca", url, ThrowawayCA("other", datetime.now(UTC)))
    assert refused_by_rule(server, own_token(server, url)) == "keys-not-fetched"
    assert not any("other-ca" in path for path in issuer.paths)
