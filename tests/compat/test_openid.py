"""ID tokens of a real provider at a real server: accepted tokens, and every kind of refusal.

Source: docs/protocol/openid-connect.md.

The provider's own login issues the tokens. The attacks change them, or sign them with keys that are not the provider's.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import RSAKey

from mooring.client.cluster import ClusterClient
from mooring.server.transport.http import Request, Response
from tests.compat.kubectl import Kubectl, Program
from tests.compat.openid import REVIEWS, configuration, flags, issuer, refused, review_self, user_of
from tests.support.jwtsigner import encoded, key_for, signed, signed_with_secret, unsigned
from tests.support.liveserver import LiveServer, running_server, start_server
from tests.support.openidprovider import OpenIdProvider
from tests.support.polling import eventually
from tests.support.testca import ThrowawayCA
from tests.support.tlspeer import serving

JANE = {"email": "jane@example.com", "email_verified": True, "groups": ["dev", "ops"], "department": "ships"}
USERS: dict[str, dict[str, Any]] = {
    "jane": JANE,
    "one-group": {"email": "one@example.com", "email_verified": True, "groups": "dev"},
    "unverified": {"email": "unverified@example.com", "email_verified": False},
    "unsaid": {"email": "unsaid@example.com"},
    "numbers": {"email": "numbers@example.com", "groups": [1, 2]},
    "groups-of-far": {"groups": ["from", "afar"]},
}


def payload(token: str) -> dict[str, Any]:
    segment = token.split(".")[1]
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(segment + "=" * (-len(segment) % 4)))
    return found


@pytest.fixture(scope="module")
def ca() -> ThrowawayCA:
    return ThrowawayCA("provider", datetime.now(UTC))


@pytest.fixture(scope="module")
def provider(ca: ThrowawayCA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenIdProvider]:
    with OpenIdProvider(ca, tmp_path_factory.mktemp("provider"), USERS) as running:
        yield running


@pytest.fixture(scope="module")
def short_lived(ca: ThrowawayCA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenIdProvider]:
    """Run a provider with tokens that have expired when they are issued."""
    with OpenIdProvider(ca, tmp_path_factory.mktemp("short"), USERS, life=-90) as running:
        yield running


@pytest.fixture(scope="module")
def server(provider: OpenIdProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """Start a server that accepts the provider's tokens, configured by flags."""
    with running_server(tmp_path_factory.mktemp("openid") / "data", *flags(provider)) as running:
        eventually(lambda: review_self(running, provider.id_token("jane"))[0] == 201, running)
        yield running


@pytest.mark.parametrize(
    ("sub", "username", "groups"),
    [
        pytest.param("jane", "oidc:jane@example.com", ["oidc:dev", "oidc:ops"], id="groups in a list"),
        pytest.param("one-group", "oidc:one@example.com", ["oidc:dev"], id="one group in a text"),
        pytest.param("unsaid", "oidc:unsaid@example.com", [], id="nothing said of the address"),
    ],
)
def test_a_user_of_the_provider_has_the_names_in_its_claims(
    sub: str, username: str, groups: list[str], provider: OpenIdProvider, server: LiveServer
) -> None:
    user = user_of(server, provider.id_token(sub))
    assert (user["username"], user["groups"]) == (username, [*groups, "system:authenticated"])


def test_the_operator_sees_which_issuers_are_not_ready(server: LiveServer, configured: LiveServer) -> None:
    for running, unready in ((server, 0), (configured, 2)):

        async def metrics(client: ClusterClient) -> str:
            return (await client.read("/metrics")).decode()

        assert f"mooring_oidc_issuers_unready {unready}.0" in running.run(metrics)


def test_an_id_token_can_be_reviewed(provider: OpenIdProvider, server: LiveServer) -> None:
    async def review(client: ClusterClient) -> Any:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        return await client.post_path("/apis/authentication.k8s.io/v1/tokenreviews", body)

    token = provider.id_token("jane")
    status = server.run(review)["status"]
    assert status["authenticated"] is True
    assert status["user"]["username"] == "oidc:jane@example.com"


def test_authorization_is_for_the_names_that_claims_gave(provider: OpenIdProvider, server: LiveServer) -> None:
    status, body = review_self(server, provider.id_token("jane"), "/api/v1/namespaces/default/secrets")
    assert status == 403
    assert 'User "oidc:jane@example.com" cannot list resource "secrets"' in body["message"]


Attack = Callable[[OpenIdProvider], str]


def changed(provider: OpenIdProvider, **claims: Any) -> str:
    """Return the token of jane with other claims under its old signature."""
    header, _, signature = (good := provider.id_token("jane")).split(".")
    return f"{header}.{encoded(json.dumps({**payload(good), **claims}).encode())}.{signature}"


def public_pem(provider: OpenIdProvider) -> bytes:
    return RSAKey.import_key(provider.get("/jwks")["keys"][0]).as_pem(private=False)


ATTACKS: list[Any] = [
    pytest.param(lambda p: unsigned(payload(p.id_token("jane"))), "unsupported-algorithm", id="alg none"),
    pytest.param(
        lambda p: unsigned(payload(p.id_token("jane")))[:-2],
        "unsupported-algorithm", id="alg none and no signature at all",
    ),
    pytest.param(
        lambda p: signed_with_secret(payload(p.id_token("jane")), public_pem(p)),
        "unsupported-algorithm", id="HS256 with the public key",
    ),
    pytest.param(lambda p: changed(p, email="admin@example.com"), "bad-signature", id="other claims, old signature"),
    pytest.param(lambda p: p.id_token("jane")[:-8] + "AAAAAAAA", "bad-signature", id="a changed signature"),
    pytest.param(
        lambda p: signed(payload(p.id_token("jane")), key_for("RS256"), kid=None), "bad-signature", id="a stranger's key"
    ),
    pytest.param(
        lambda p: signed(payload(p.id_token("jane")), key_for("RS256"), kid="made-up"), "unknown-key", id="an unknown kid"
    ),
    pytest.param(
        lambda p: signed(payload(p.id_token("jane")), key_for("RS256"), kid=p.get("/jwks")["keys"][0]["kid"]),
        "bad-signature", id="a stranger's key under the provider's kid",
    ),
    pytest.param(
        lambda p: signed(payload(p.id_token("jane")), key_for("RS256"), jwk=key_for("RS256").as_dict(private=False)),
        "unknown-key", id="the key in the header",
    ),
    pytest.param(
        lambda p: signed(payload(p.id_token("jane")), key_for("RS256"), jku="https://attacker.example/jwks", kid="a"),
        "unknown-key", id="where to get the key in the header",
    ),
    pytest.param(
        lambda p: signed(payload(p.id_token("jane")), key_for("PS256"), "PS256"), "unsupported-algorithm", id="PS256"
    ),
    pytest.param(lambda p: p.id_token("jane", client_id="dashboard"), "wrong-audience", id="for another client"),
    pytest.param(lambda p: p.id_token("unverified"), "email-not-verified", id="an address that was not verified"),
    pytest.param(lambda p: p.id_token("jane", scope="openid"), "missing-claim", id="no address at all"),
    pytest.param(lambda p: p.id_token("numbers"), "malformed-claim", id="groups that are numbers"),
    pytest.param(lambda p: changed(p, iss="https://elsewhere.example"), None, id="another issuer"),
    pytest.param(lambda p: "a.b.c", None, id="three letters"),
    pytest.param(lambda p: p.id_token("jane") + "." + "A" * 40_000, "too-large", id="four segments, very long"),
]  # fmt: skip


@pytest.mark.parametrize(("attack", "reason"), ATTACKS)
def test_attacks(attack: Attack, reason: str | None, provider: OpenIdProvider, server: LiveServer) -> None:
    why = refused(server, attack(provider))
    assert why.startswith(reason) if reason else not why, why


def test_made_up_key_ids_do_not_make_the_server_flood_the_provider(ca: ThrowawayCA, tmp_path: Path) -> None:
    with OpenIdProvider(ca, tmp_path, USERS) as provider:
        server = start_server(tmp_path / "data", *flags(provider))
        try:
            eventually(lambda: "are known" in server.log, server)
            claims = payload(provider.id_token("jane"))
            tokens = [signed(claims, key_for("RS256"), kid=f"made-up-{number}") for number in range(24)]
            before = provider.log.count("GET /jwks")
            assert before
            with ThreadPoolExecutor(8) as threads:
                answers = {status for status, _ in threads.map(lambda token: review_self(server, token), tokens)}
            assert answers <= {401, 429}, "each is refused, and the guesser is slowed down"
            assert provider.log.count("GET /jwks") - before <= 2, "one in ten seconds"
            assert review_self(server, provider.id_token("jane"))[0] == 201
        finally:
            assert server.stop() == 0


def test_a_token_that_has_expired(short_lived: OpenIdProvider, tmp_path: Path) -> None:
    server = start_server(tmp_path / "data", *flags(short_lived))
    try:
        eventually(lambda: "are known" in server.log, server)
        assert refused(server, short_lived.id_token("jane")).startswith("expired (issuer")
    finally:
        server.stop()


def test_kubectl_with_an_id_token(
    program: Program, provider: OpenIdProvider, server: LiveServer, tmp_path: Path
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps({"apiVersion": "v1", "kind": "Config"}))
    kubectl = Kubectl(program, kubeconfig, tmp_path)
    (tmp_path / "ca.crt").write_bytes(server.ca_pem)
    there = (f"--server={server.url}", f"--certificate-authority={tmp_path / 'ca.crt'}")
    good = provider.id_token("jane")
    assert "gitVersion" in kubectl.ok(*there, f"--token={good}", "get", "--raw", "/version")
    output = kubectl.fails(*there, f"--token={good}", "get", "secrets")
    assert 'User "oidc:jane@example.com" cannot list resource "secrets"' in output
    if program.release >= (1, 28):
        assert "oidc:jane@example.com" in kubectl.ok(*there, f"--token={good}", "auth", "whoami")
    output = kubectl.fails(
        *there, f"--token={changed(provider, email='admin@example.com')}", "get", "--raw", "/version"
    )
    assert "Unauthorized" in output or "must be logged in" in output


def test_a_provider_that_comes_late_goes_away_and_comes_back_with_another_key(ca: ThrowawayCA, tmp_path: Path) -> None:
    provider = OpenIdProvider(ca, tmp_path, USERS)
    server = start_server(tmp_path / "data", *flags(provider))
    try:
        eventually(lambda: "does not give its keys" in server.log, server)
        with provider:
            first = provider.id_token("jane")
            assert refused(server, first).startswith("provider-not-ready") or review_self(server, first)[0] == 201
            eventually(lambda: review_self(server, first)[0] == 201, server)
            second = provider.id_token("one-group")
        assert review_self(server, first)[0] == 201, (
            "a token that was verified before is good while the provider is down"
        )
        assert review_self(server, second)[0] == 201, "and so is one that was not: the keys are known"
        with provider:
            tokens = [provider.id_token(sub) for sub in ("jane", "one-group", "unsaid")]
            with ThreadPoolExecutor(3) as threads:
                answers = [status for status, _ in threads.map(lambda token: review_self(server, token), tokens)]
            assert answers == [201, 201, 201], "a new key is found at once, for all who come with it"
            assert refused(server, first).startswith("bad-signature"), "and an old one is gone"
    finally:
        provider.stop()
        server.stop()


class Fetched:
    """A TLS server with invalid or hostile provider documents."""

    def __init__(self) -> None:
        self.url = ""
        self.pages: dict[str, bytes] = {}
        self.slow: set[str] = set()
        self.waiting = 0

    async def __call__(self, request: Request) -> Response:
        self.waiting += 1
        while request.path in self.slow:
            await asyncio.sleep(0.02)
        self.waiting -= 1
        page = self.pages.get(request.path)
        return Response(404) if page is None else Response(200, page)


@pytest.fixture(scope="module")
def elsewhere(ca: ThrowawayCA) -> Iterator[Fetched]:
    handler = Fetched()
    with serving(ca, handler) as served:
        handler.url = f"https://localhost:{served.port}"
        yield handler
        handler.slow.clear()
        eventually(lambda: not handler.waiting)


@pytest.fixture(scope="module")
def configured(
    ca: ThrowawayCA,
    provider: OpenIdProvider,
    short_lived: OpenIdProvider,
    elsewhere: Fetched,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LiveServer]:
    """Start a server with a configuration file: two working issuers and two broken ones."""
    for name in ("huge", "slow"):
        document = {"issuer": f"{elsewhere.url}/{name}", "jwks_uri": f"{elsewhere.url}/{name}/jwks"}
        elsewhere.pages[f"/{name}/.well-known/openid-configuration"] = json.dumps(document).encode()
    elsewhere.pages["/huge/jwks"] = b'{"keys": [' + b" " * (300 << 10) + b"]}"
    elsewhere.slow.add("/slow/jwks")
    with_rules = issuer(
        provider.issuer, ca,
        username={"expression": "claims.?email.orValue(claims.sub).split('@')[0]"},
        groups={"expression": "type(claims.?groups.orValue('')) == string ? [] : claims.groups.map(g, 'cel:' + g)"},
        extra=[{"key": "example.com/department", "valueExpression": "claims.?department.orValue('')"}],
    )  # fmt: skip
    with_rules["claimValidationRules"] = [
        {"expression": "claims.?email_verified.orValue(true) == true", "message": "the address must be verified"}
    ]
    with_rules["userValidationRules"] = [{"expression": "user.username != 'unsaid'", "message": "not this one"}]
    file = tmp_path_factory.mktemp("configuration") / "authentication.yaml"
    file.write_text(
        configuration(
            with_rules,
            issuer(short_lived.issuer, ca),
            *(issuer(f"{elsewhere.url}/{name}", ca) for name in ("huge", "slow")),
        )
    )
    data_dir = tmp_path_factory.mktemp("configured") / "data"
    with running_server(data_dir, "--authentication-config", str(file)) as running:
        eventually(lambda: running.log.count("are known") == 2, running)
        yield running


def test_expressions_name_the_user(provider: OpenIdProvider, configured: LiveServer) -> None:
    user = user_of(configured, provider.id_token("jane"))
    assert user["username"] == "jane"
    assert user["groups"] == ["cel:dev", "cel:ops", "system:authenticated"]
    assert user["extra"]["example.com/department"] == ["ships"]


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        pytest.param(lambda p: p.id_token("unverified"), "claim-rule (issuer", id="a rule about claims"),
        pytest.param(lambda p: p.id_token("unsaid"), "user-rule (issuer", id="a rule about the user"),
        pytest.param(lambda p: p.id_token("jane", client_id="dashboard"), "wrong-audience", id="for another client"),
    ],
)
def test_rules_refuse(attack: Attack, reason: str, provider: OpenIdProvider, configured: LiveServer) -> None:
    assert refused(configured, attack(provider)).startswith(reason)


def test_a_token_of_one_issuer_is_not_good_for_another(
    provider: OpenIdProvider, short_lived: OpenIdProvider, configured: LiveServer
) -> None:
    assert refused(configured, short_lived.id_token("jane")).startswith("expired")
    stolen = changed(provider, iss=short_lived.issuer)
    assert refused(configured, stolen).startswith("bad-signature")


@pytest.mark.parametrize("name", ["huge", "slow"])
def test_a_provider_that_misbehaves_harms_only_itself(name: str, elsewhere: Fetched, configured: LiveServer) -> None:
    claims = {"iss": f"{elsewhere.url}/{name}", "aud": "kubernetes", "exp": time.time() + 60, "sub": "x"}
    told = "longer than 262144 bytes" if name == "huge" else "no answer within 5 s"
    eventually(lambda: told in configured.log, configured)
    told_at_once = refused(configured, signed(claims, key_for("RS256")))
    assert told_at_once.startswith("provider-not-ready"), "who shows such a token waits for nobody"


@pytest.mark.parametrize(
    ("path", "status"), [("/livez", 200), ("/readyz", 200), ("/version", 401), ("/livez/ping", 401), (REVIEWS, 401)]
)
def test_anonymous_access_is_for_the_named_paths_only(path: str, status: int, configured: LiveServer) -> None:
    assert review_self(configured, "", path)[0] == status


def test_groups_that_are_elsewhere(
    ca: ThrowawayCA, provider: OpenIdProvider, elsewhere: Fetched, tmp_path: Path
) -> None:
    """Read distributed claims: the provider's token names the endpoint of the groups, which returns a token of the provider."""
    pointing = {
        "_claim_names": {"groups": "src"},
        "_claim_sources": {"src": {"endpoint": f"{elsewhere.url}/groups", "access_token": "opaque"}},
    }
    users = {**USERS, "far": {"email": "far@example.com", **pointing}}
    with ExitStack() as stack:
        pointed = stack.enter_context(OpenIdProvider(ca, tmp_path, users))
        server = start_server(tmp_path / "data", *flags(pointed))
        stack.callback(server.stop)
        eventually(lambda: review_self(server, pointed.id_token("jane"))[0] == 201, server)
        assert refused(server, pointed.id_token("far")).startswith("distributed-claim")
        elsewhere.pages["/groups"] = pointed.id_token("groups-of-far").encode()
        assert user_of(server, pointed.id_token("far"))["groups"] == ["oidc:from", "oidc:afar", "system:authenticated"]
        elsewhere.pages["/groups"] = provider.id_token("groups-of-far").encode()
        assert user_of(server, pointed.id_token("far", scope="openid email"))["groups"][0] == "oidc:from"
        elsewhere.pages["/groups"] = unsigned(payload(pointed.id_token("groups-of-far"))).encode()
        assert refused(server, pointed.id_token("far", scope="email openid")).startswith("distributed-claim")


def test_a_changed_file_takes_over_when_it_works_and_not_before(
    ca: ThrowawayCA, provider: OpenIdProvider, short_lived: OpenIdProvider, tmp_path: Path
) -> None:
    token = provider.id_token("jane")
    file = tmp_path / "authentication.yaml"
    file.write_text(configuration(issuer(provider.issuer, ca), issuer(short_lived.issuer, ca)))
    server = start_server(tmp_path / "data", "--authentication-config", str(file))
    try:
        eventually(lambda: review_self(server, token)[0] == 201, server)
        good = issuer(provider.issuer, ca, username={"claim": "sub", "prefix": "b:"})
        for text, told in (
            (configuration(good, speling=1), "speling: unknown field"),
            (
                configuration({**good, "claimMappings": {"username": {"expression": "claims."}}}),
                "expression: Invalid value",
            ),
            (configuration(good, anonymous={"enabled": True}), "anonymous: it cannot change while the server runs"),
        ):
            file.write_text(text)
            eventually(lambda told=told: told in server.log, server)  # type: ignore[misc] # mypy cannot infer a default's type
            assert user_of(server, token)["username"] == "a:jane"
        file.write_text(configuration(good))
        eventually(lambda: user_of(server, token)["username"] == "b:jane", server)
        eventually(lambda: "authentication configuration is in force: 1 issuers" in server.log, server)
        assert refused(server, short_lived.id_token("jane")) == "", "its issuer is nobody's now"
    finally:
        assert server.stop() == 0
