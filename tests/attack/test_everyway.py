"""Every authenticator at one server: each accepts its credentials, in order, and none accepts those of another (5.1 to 5.15).

Rules kept here: one server has all of them turned on; each test reads the user from a SelfSubjectReview.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mooring.apimachinery.codec.json import MAX_BODY
from mooring.authn.serviceaccountsettings import DEFAULT_ISSUER
from mooring.server.transport.http import Request
from tests.support.everyway import FILE_TOKEN, PASSWORD, EveryWay, every_way
from tests.support.refused import KUBECONFIG, Answering, reviewed
from tests.support.serverroom import Reply, Server, connection, open_server

WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
SELF = {"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"}
ROBOT = "system:serviceaccount:default:robot"
SPOOFED = (("X-Remote-User", "root"), ("X-Remote-Group", "system:masters"), ("X-Remote-Extra-Team", "all"))
USERS = {
    "token file": "filed",
    "bootstrap token": "system:bootstrap:abcdef",
    "bound service account token": ROBOT,
    "legacy service account token": ROBOT,
    "login token": "jane",
    "ID token": "https://idp.example#jane",
}
Test = Callable[[EveryWay], Awaitable[None]]


def at_every_way(test: Test, directory: Path) -> None:
    async def body() -> None:
        async with every_way(directory) as way:
            await test(way)

    asyncio.run(body())


def basic(user: str, password: str) -> tuple[str, str]:
    return "Authorization", f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


async def who(server: Server, **how: Any) -> Any:
    """Return the user info of the request, or the status of its refusal."""
    via = how.pop("via", None) or connection()
    reply: Reply = await server.post(WHO, SELF, via=via, **how)
    return reply.obj["status"]["userInfo"] if reply.status == 201 else reply.status


@pytest.mark.parametrize("kind", USERS)
def test_every_kind_of_token_authenticates_its_user(kind: str, tmp_path: Path) -> None:
    async def test(way: EveryWay) -> None:
        found = await who(way.server, token=way.tokens[kind])
        assert found["username"] == USERS[kind]
        assert found["groups"].count("system:authenticated") == 1

    at_every_way(test, tmp_path)


@pytest.mark.parametrize("kind", USERS)
def test_a_token_review_runs_the_chain_for_every_kind_of_token(kind: str, tmp_path: Path) -> None:
    async def test(way: EveryWay) -> None:
        spec = {"token": way.tokens[kind]}
        review = {"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "spec": spec}
        reply = await way.server.post(REVIEWS, review)
        status = reply.obj["status"]
        assert (reply.status, status["authenticated"], status["user"]["username"]) == (201, True, USERS[kind])
        assert status["user"]["groups"].count("system:authenticated") == 1
        assert status["audiences"] == [DEFAULT_ISSUER]
        elsewhere = {**review, "spec": {**spec, "audiences": ["elsewhere"]}}
        status = (await way.server.post(REVIEWS, elsewhere)).obj["status"]
        assert status == {"user": {}, "error": "invalid bearer token"}
        both = {**review, "spec": {**spec, "audiences": ["elsewhere", DEFAULT_ISSUER]}}
        assert (await way.server.post(REVIEWS, both)).obj["status"]["audiences"] == [DEFAULT_ISSUER]

    at_every_way(test, tmp_path)


@pytest.mark.parametrize(("user", "password"), [("plain", PASSWORD), ("slow", "tr0ub4dor-and-three")])
def test_every_kind_of_password_authenticates_its_user(user: str, password: str, tmp_path: Path) -> None:
    async def test(way: EveryWay) -> None:
        assert (await who(way.server, headers=[basic(user, password)]))["username"] == user

    at_every_way(test, tmp_path)


def test_the_order_is_that_of_kube_apiserver(tmp_path: Path) -> None:
    async def test(way: EveryWay) -> None:
        names = [one.name for one in way.server.assembly.trust.authentication.authenticators]
        assert names == [
            "request-header", "client-certificate", "node-recovery", "token-file", "legacy-service-account",
            "service-account", "bootstrap-token", "join-rule", "user-token", "oidc", "webhook", "password-file", "keystone",
            "guest", "anonymous",
        ]  # fmt: skip
        certificate = connection([way.client.der])
        assert (await who(way.server, via=certificate, token=FILE_TOKEN))["username"] == "jane", (
            "a certificate is before"
        )
        proxied = connection([way.proxy.der])
        found = await who(way.server, via=proxied, token=FILE_TOKEN, headers=[("X-Remote-User", "ann")])
        assert found["username"] == "ann", "a proxy is before tokens"
        for kind in ("bound service account token", "bootstrap token", "ID token"):
            token_file = next(
                one for one in way.server.assembly.trust.authentication.authenticators if one.name == "token-file"
            )
            token_file.replace(f"{way.tokens[kind]},first,1\n".encode())  # type: ignore[attr-defined] # the token file
            assert (await who(way.server, token=way.tokens[kind]))["username"] == "first", (
                "the file is before the others"
            )

    at_every_way(test, tmp_path)


def test_headers_of_a_proxy_are_ignored_unless_the_proxy_sends_them(tmp_path: Path) -> None:
    async def test(way: EveryWay) -> None:
        server = way.server
        assert await who(server, headers=SPOOFED) == 403, "nobody is anonymous, who may not ask"
        found = await who(server, via=connection([way.client.der]), headers=SPOOFED)
        assert (found["username"], "system:masters" in found["groups"]) == ("jane", False)
        assert (await who(server, token=FILE_TOKEN, headers=SPOOFED))["username"] == "filed"
        other = server.ca.client("front")
        found = await who(server, via=connection([other.der]), headers=SPOOFED)
        assert found["username"] == "front", "the name is right, the authority is not"
        found = await who(server, via=connection([way.proxy.der]), headers=SPOOFED)
        assert (found["username"], found["extra"]) == ("root", {"team": ["all"]})

    at_every_way(test, tmp_path)


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param((("X-Remote-User", "M\xfcller"),), id="a user"),
        pytest.param((("X-Remote-User", "jane"), ("X-Remote-Group", "\xfc")), id="a group"),
        pytest.param((("X-Remote-User", "jane"), ("X-Remote-Extra-%FC", "1")), id="a key of an extra"),
    ],
)
def test_a_proxy_that_sends_names_in_latin_1_is_refused_with_the_reason(
    headers: tuple[tuple[str, str], ...], tmp_path: Path
) -> None:
    async def test(way: EveryWay) -> None:
        proxy = connection([way.proxy.der])
        reply = await way.server.post(WHO, SELF, via=proxy, headers=headers)
        assert (reply.status, reply.obj["message"]) == (401, "Unauthorized")
        kept = way.server.pipeline.refusals.find(reply.headers["audit-id"])
        assert kept is not None
        assert "name-not-utf8" in str(kept)
        # the token of another user, and a good name afterwards: the proxy is not locked out
        assert await who(way.server, via=proxy, headers=headers, token=FILE_TOKEN) == 401
        found = await who(way.server, via=proxy, headers=[("X-Remote-User", "M\xc3\xbcller")])
        assert found["username"] == "Müller"

    at_every_way(test, tmp_path)


@pytest.mark.parametrize(
    "headers",
    [
        (("Impersonate-User", "M\xfcller"),),
        (("Impersonate-User", "jane"), ("Impersonate-Group", "M\xf6ller")),
        (("Impersonate-User", "jane"), ("Impersonate-Extra-%FC", "1")),
    ],
)
def test_impersonation_in_latin_1_is_a_bad_request(headers: tuple[tuple[str, str], ...], tmp_path: Path) -> None:
    async def test(way: EveryWay) -> None:
        reply = await way.server.post(WHO, SELF, headers=headers)
        assert reply.status == 400
        assert "is not UTF-8: send the Impersonate headers in UTF-8" in reply.obj["message"]

    at_every_way(test, tmp_path)


@pytest.mark.parametrize("name", ["Authorization", "User-Agent", "Accept", "Content-Type", "Origin", "Audit-Id"])
def test_no_header_in_latin_1_is_an_error_of_the_server(name: str, tmp_path: Path) -> None:
    async def test(way: EveryWay) -> None:
        for value in ("Bearer t\xfcken", "Basic \xfc", "m\xfcller \xf6/1"):
            reply = await way.server.post(WHO, SELF, headers=[(name, value)])
            assert reply.status < 500, reply.text

    at_every_way(test, tmp_path)


def test_a_user_of_many_groups_comes_in_by_every_way(tmp_path: Path) -> None:
    groups = [f"CN=Group-{number},DC=example" for number in range(900)]

    async def test(way: EveryWay) -> None:
        named = [("X-Remote-User", "ann"), *(("X-Remote-Group", name) for name in groups)]
        proxied = await who(way.server, via=connection([way.proxy.der]), headers=named)
        assert proxied["groups"] == [*groups, "system:authenticated"]
        sent = [("Impersonate-User", "ann"), *(("Impersonate-Group", name) for name in groups)]
        assert (await who(way.server, via=way.server.admin, headers=sent))["groups"] == proxied["groups"]

    at_every_way(test, tmp_path)


def test_endpoints_receive_no_credential(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(way: EveryWay) -> None:
        seen: list[tuple[bytes, bytes]] = []
        real = Request.load

        async def load(request: Request, limit: int = MAX_BODY) -> bool:
            seen.extend(request.headers)
            return await real(request, limit)

        monkeypatch.setattr(Request, "load", load)
        attempts: list[dict[str, Any]] = [{"token": token} for token in way.tokens.values()]
        attempts += [{"headers": [basic("plain", PASSWORD)]}, {"via": connection([way.proxy.der]), "headers": SPOOFED}]
        for attempt in attempts:
            attempt["headers"] = [*attempt.get("headers", ()), *SPOOFED, ("User-Agent", "me")]
            assert isinstance(await who(way.server, **attempt), dict)
        assert {name for name, _ in seen} == {b"user-agent", b"content-type"}

    at_every_way(test, tmp_path)


@pytest.mark.parametrize(
    ("kind", "plural", "namespace", "name"),
    [
        pytest.param("bootstrap token", "secrets", "kube-system", "bootstrap-token-abcdef", id="a bootstrap token"),
        pytest.param(
            "legacy service account token", "secrets", "default", "old", id="the Secret of a service account token"
        ),
        pytest.param(
            "legacy service account token", "serviceaccounts", "default", "robot", id="the account of such a token"
        ),
        pytest.param(
            "bound service account token", "serviceaccounts", "default", "robot", id="the account of a bound token"
        ),
    ],
)
def test_a_deleted_credential_is_refused_at_once_on_an_open_connection(
    kind: str, plural: str, namespace: str, name: str, tmp_path: Path
) -> None:
    async def test(way: EveryWay) -> None:
        kept = connection(source="192.0.2.77")
        assert (await who(way.server, via=kept, token=way.tokens[kind]))["username"] == USERS[kind]
        gone = await way.server.call("DELETE", f"/api/v1/namespaces/{namespace}/{plural}/{name}")
        assert gone.status == 200
        assert await who(way.server, via=kept, token=way.tokens[kind]) == 401

    at_every_way(test, tmp_path)


def test_a_forged_id_token_is_not_sent_to_the_webhook(tmp_path: Path) -> None:
    async def test(way: EveryWay) -> None:
        hook = Counting(reviewed(authenticated=True, user={"username": "hooked"}))
        way.server.assembly.trust.authentication.host.targets["webhook"] = hook
        head, claims, signature = way.tokens["ID token"].split(".")
        for forged in (f"{head}.{claims}.{'A' * len(signature)}", f"{head}.{claims}.{'B' * len(signature)}"):
            assert await who(way.server, token=forged) == 401, "the first makes the keys be asked for again"
        assert hook.asked == 0
        assert (await who(way.server, token="theirs"))["username"] == "hooked"

    at_every_way(test, tmp_path)


class Counting(Answering):
    """A webhook that counts its requests."""

    asked = 0

    async def send(self, call: Any) -> Any:
        self.asked += 1
        return await super().send(call)


@pytest.mark.parametrize(("ttl", "asked"), [(0, 3), (120, 1)], ids=["remembered for no time", "remembered"])
def test_a_ttl_of_zero_sends_every_token_to_the_webhook(ttl: int, asked: int, tmp_path: Path) -> None:
    (tmp_path / "hook").write_text(KUBECONFIG)
    options = {
        "authentication_token_webhook_config_file": str(tmp_path / "hook"),
        "authentication_token_webhook_cache_ttl": timedelta(seconds=ttl),
    }

    async def body() -> None:
        async with open_server(**options) as server:
            hook = Counting(reviewed(authenticated=True, user={"username": "hooked"}))
            server.assembly.trust.authentication.host.targets["webhook"] = hook
            for _ in range(3):
                assert (await who(server, token="theirs"))["username"] == "hooked"
            assert hook.asked == asked

    asyncio.run(body())


@pytest.mark.parametrize(
    ("path", "status"),
    [
        pytest.param("/livez", 200, id="a path that is named"),
        pytest.param("/livez?verbose", 200, id="the same with a query"),
        pytest.param("/livez/", 401, id="the same with a slash"),
        pytest.param("/livez/ping", 401, id="what is below it"),
        pytest.param("/readyz", 401, id="another path"),
        pytest.param("/%6civez", 401, id="the same in other letters"),
        pytest.param("/version", 401, id="what anonymous may otherwise read"),
    ],
)
def test_anonymous_where_paths_are_named(path: str, status: int, tmp_path: Path) -> None:
    file = tmp_path / "authentication.yaml"
    file.write_text(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"
        "anonymous: {enabled: true, conditions: [{path: /livez}]}\n"
    )

    async def body() -> None:
        async with open_server(authentication_config=str(file)) as server:
            assert (await server.get(path, via=connection())).status == status
            assert (await server.get("/livez", token="bad", via=connection())).status == 401

    asyncio.run(body())


def test_a_self_review_has_uid_and_extra_of_the_impersonated_user(tmp_path: Path) -> None:
    async def test(way: EveryWay) -> None:
        headers = [("Impersonate-User", "ann"), ("Impersonate-Uid", "7"), ("Impersonate-Group", "dev"),
                   ("Impersonate-Extra-Example.com%2fTeam", "a"), ("Impersonate-Extra-Example.com%2fTeam", "b")]  # fmt: skip
        found = await who(way.server, via=way.server.admin, headers=headers)
        assert found == {
            "username": "ann",
            "uid": "7",
            "groups": ["dev", "system:authenticated"],
            "extra": {"example.com/team": ["a", "b"]},
        }
        assert await who(way.server, via=way.server.admin, headers=headers[1:]) == 400

    at_every_way(test, tmp_path)


@pytest.mark.parametrize("configured", [False, True], ids=["by default", "although the file says so"])
def test_always_allow_turns_anonymous_requests_off(configured: bool, tmp_path: Path) -> None:
    file = tmp_path / "authentication.yaml"
    file.write_text(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\nanonymous: {enabled: true}\n"
    )
    options = {"authentication_config": str(file) if configured else ""}

    async def body() -> None:
        async with open_server(authorization_mode="AlwaysAllow", **options) as server:
            assert (await server.get("/version", via=connection())).status == 401
            assert (await server.get("/api/v1/secrets", via=server.user("bob"))).status == 200

    asyncio.run(body())


@pytest.mark.parametrize(
    "value", ["Bearer  ", "Bearer   ", "Bearer", "Negotiate YWJj", "Digest username=jane", "bearer:x"]
)
def test_a_request_without_a_credential_is_anonymous(value: str, tmp_path: Path) -> None:
    async def test(way: EveryWay) -> None:
        assert (await way.server.get("/version", via=connection(), headers=[("Authorization", value)])).status == 200
        assert await who(way.server, headers=[("Authorization", f"Bearer  {FILE_TOKEN}")]) == 403, "two spaces"
        after = [("Authorization", f"Bearer {FILE_TOKEN} and more")]
        assert (await who(way.server, headers=after))["username"] == "filed", (
            "what follows a second space is not looked at"
        )
        second = [("Authorization", "Negotiate x"), ("Authorization", f"Bearer {FILE_TOKEN}")]
        assert await who(way.server, headers=second) == 403, "only the first header counts"

    at_every_way(test, tmp_path)
