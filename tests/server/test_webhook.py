"""A token webhook over real TLS behind a whole server: who comes in, what goes wrong, and what anybody learns of it."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from mooring.apimachinery.schema import Obj
from mooring.authn import webhook as rules
from mooring.server.authentication import deferred
from tests.support.manualclock import ManualClock
from tests.support.serverroom import Reply, Server, open_server
from tests.support.testca import ThrowawayCA
from tests.support.tokenwebhook import Behaviour, SimulatedWebhook, answers, kubeconfig, resets, waits

T = TypeVar("T")
WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
REVIEW = {"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"}
TOKEN = "opaque-token-of-jane-4711"
API = "https://kubernetes.default.svc.cluster.local"
USERS: dict[str, Obj] = {
    TOKEN: {"username": "jane", "uid": "42", "groups": ["dev"], "extra": {"Scopes": ["read"]}},
    "boss": {"username": "boss", "groups": ["system:masters"]},
}


@pytest.fixture
def hook(tmp_path: Path) -> Any:
    with SimulatedWebhook(ThrowawayCA("service"), tmp_path, users=dict(USERS)) as running:
        yield running


def in_server_asking(
    config: Path, test: Callable[[Server], Awaitable[None]], version: str = "v1", ttl: float = 120, **flags: Any
) -> None:
    """Run `test` with a server that asks this webhook."""

    async def run() -> None:
        options = {
            "authentication_token_webhook_config_file": str(config),
            "authentication_token_webhook_version": version,
            "authentication_token_webhook_cache_ttl": timedelta(seconds=ttl),
        }
        async with open_server(**options, **flags) as server:
            await test(server)

    asyncio.run(run())


async def passing(clock: ManualClock, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, while the time of `clock` passes for whoever waits for it."""
    task = asyncio.ensure_future(work)
    while not task.done():
        if clock.sleepers:
            await clock.advance(0.25)
        await asyncio.wait([task], timeout=0.005)
    return await task


async def who(server: Server, token: str = TOKEN) -> Reply:
    return await passing(server.clock, server.post(WHO, REVIEW, token=token))


def of(refused: Reply, server: Server) -> tuple[str, str]:
    """Why the webhook refused, as the operator reads it."""
    kept = server.assembly.http.pipeline.refusals.find(refused.headers["audit-id"])
    assert kept is not None
    told = kept.to_json()
    [step] = [step for step in told["authenticators"] if step["name"] == "webhook"]
    return step.get("reason", ""), step.get("detail", "")


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_whom_the_webhook_knows_comes_in(hook: SimulatedWebhook, version: str) -> None:
    async def test(server: Server) -> None:
        reply = await who(server)
        assert reply.status == 201, reply.text
        assert reply.obj["status"]["userInfo"] == {
            "username": "jane",
            "uid": "42",
            "groups": ["dev", "system:authenticated"],
            "extra": {"Scopes": ["read"]},
        }
        [asked] = hook.requests
        assert asked.path == "/authenticate"
        assert asked.review["apiVersion"] == f"authentication.k8s.io/{version}"
        assert asked.review["spec"] == {"token": TOKEN, "audiences": [API]}

    in_server_asking(hook.kubeconfig(), test, version)


def test_names_of_the_system_are_taken_as_they_come(hook: SimulatedWebhook) -> None:
    async def test(server: Server) -> None:
        reply = await passing(server.clock, server.get("/api/v1/namespaces/kube-system/secrets", token="boss"))
        assert reply.status == 200

    in_server_asking(hook.kubeconfig(), test)


def test_an_acceptance_lives_for_its_time_whatever_the_webhook_thinks_by_now(hook: SimulatedWebhook) -> None:
    async def test(server: Server) -> None:
        assert (await who(server)).status == 201
        del hook.users[TOKEN]
        await server.clock.advance(119)
        assert (await who(server)).status == 201
        assert len(hook.requests) == 1
        await server.clock.advance(1)
        assert (await who(server)).status == 401
        hook.users.update(USERS)
        assert (await who(server)).status == 401, "what it does not know is remembered for that time, too"
        await server.clock.advance(120)
        assert (await who(server)).status == 201
        assert len(hook.requests) == 3

    in_server_asking(hook.kubeconfig(), test)


def test_with_a_time_of_zero_it_is_asked_each_time(hook: SimulatedWebhook) -> None:
    async def test(server: Server) -> None:
        assert (await who(server)).status == 201
        del hook.users[TOKEN]
        assert (await who(server)).status == 401
        assert len(hook.requests) == 2

    in_server_asking(hook.kubeconfig(), test, ttl=0)


def test_what_is_ours_is_revoked_at_once_and_shown_to_nobody(hook: SimulatedWebhook) -> None:
    async def test(server: Server) -> None:
        bootstrap = await server.bootstrap_token()
        accounts = "/api/v1/namespaces/default/serviceaccounts"
        assert (await server.post(accounts, {"metadata": {"name": "robot"}})).status == 201
        issued = await server.post(f"{accounts}/robot/token", {"spec": {}})
        account: str = issued.obj["status"]["token"]
        for token, gone in (
            (bootstrap, "/api/v1/namespaces/kube-system/secrets/bootstrap-token-abcdef"),
            (account, f"{accounts}/robot"),
        ):
            assert (await who(server, token)).status == 201
            assert (await server.call("DELETE", gone)).status == 200
            assert (await who(server, token)).status == 401, "at the very next request"
        expired = account[:-8] + "AAAAAAAA"
        wrong = await server.bootstrap_token("ffffff.0123456789abcdef")
        for token in (expired, wrong[:-1] + "0"):
            assert (await who(server, token)).status == 401
        assert account not in hook.tokens
        assert hook.tokens == [bootstrap], "its id is nobody's any more: it might be another cluster's"

    in_server_asking(hook.kubeconfig(), test)


def test_what_is_ours_and_has_expired_is_shown_to_nobody(hook: SimulatedWebhook) -> None:
    async def test(server: Server) -> None:
        bootstrap = await server.bootstrap_token()
        accounts = "/api/v1/namespaces/default/serviceaccounts"
        assert (await server.post(accounts, {"metadata": {"name": "robot"}})).status == 201
        account: str = (await server.post(f"{accounts}/robot/token", {"spec": {}})).obj["status"]["token"]
        assert [(await who(server, token)).status for token in (bootstrap, account)] == [201, 201]
        await server.clock.advance(3700)  # Kubernetes allows a minute beyond the end of a signed token
        assert [(await who(server, token)).status for token in (bootstrap, account)] == [401, 401]
        assert hook.tokens == []

    in_server_asking(hook.kubeconfig(), test)


def test_a_token_of_our_issuer_is_shown_to_nobody_however_malformed(hook: SimulatedWebhook) -> None:
    async def test(server: Server) -> None:
        accounts = "/api/v1/namespaces/default/serviceaccounts"
        assert (await server.post(accounts, {"metadata": {"name": "robot"}})).status == 201
        account: str = (await server.post(f"{accounts}/robot/token", {"spec": {}})).obj["status"]["token"]
        header, payload, signature = account.split(".")
        none = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
        for token in (
            f"{header}.{payload}",
            f"{header}.{payload}.",
            f"{none}.{payload}.",
            f"{none}.{payload}.{signature}",
            f"{header}.{payload}.{signature}.{signature}",
            f"!.{payload}.{signature}",
            f"{header}.{payload}==.{signature}",
        ):
            assert (await who(server, token)).status == 401
            reviewed = await passing(server.clock, server.post(REVIEWS, {"spec": {"token": token}}))
            assert "authenticated" not in reviewed.obj["status"]
        assert hook.tokens == []

    in_server_asking(hook.kubeconfig(), test)


def test_a_review_of_a_token_asks_for_the_audiences_of_the_review(hook: SimulatedWebhook) -> None:
    async def test(server: Server) -> None:
        async def reviewed(*audiences: str) -> Any:
            spec: dict[str, Any] = {"token": TOKEN} | ({"audiences": audiences} if audiences else {})
            return (await passing(server.clock, server.post(REVIEWS, {"spec": spec}))).obj["status"]

        assert (await reviewed())["audiences"] == [API]
        assert (await reviewed("vault")) == {"user": {}, "error": "invalid bearer token"}
        hook.audiences = ["vault", "other"]
        assert (await reviewed("vault", "x"))["audiences"] == ["vault"]
        assert [one.review["spec"]["audiences"] for one in hook.requests] == [[API], ["vault"], ["vault", "x"]]

    in_server_asking(hook.kubeconfig(), test)


TROUBLE = {
    "500 each time": (answers(500), "webhook-error", "it answers 500 (5 times)", 5),
    "504 each time": (answers(504), "webhook-error", "it answers 504 (5 times)", 5),
    "429 with Retry-After": (answers(429, retry_after="1"), "webhook-error", "it answers 429 (5 times)", 5),
    "503 with Retry-After": (answers(503, retry_after="2"), "webhook-error", "it answers 503 (5 times)", 5),
    "503": (answers(503), "webhook-error", "it answers 503", 1),
    "404": (answers(404, b'{"kind":"Status"}'), "webhook-error", "it answers 404", 1),
    "a redirect": (
        answers(307, location="https://127.0.0.1:1/"),
        "webhook-error",
        "it answers 307, and redirects are not followed",
        1,
    ),
    "garbage": (answers(200, b"<html>hello"), "webhook-bad-answer", "it is not JSON", 1),
    "another kind": (answers(200, b'{"kind":"Status"}'), "webhook-bad-answer", "kind is not TokenReview", 1),
    "an endless answer": (
        answers(200, b" " * (rules.MAX_ANSWER + 2)),
        "webhook-unreachable",
        "the answer is longer than 262144 bytes",
        1,
    ),
    "a connection that is cut": (resets, "webhook-unreachable", "connection reset by peer (5 times)", 5),
}


@pytest.mark.parametrize(("behaviour", "reason", "detail", "tries"), TROUBLE.values(), ids=TROUBLE.keys())
def test_what_goes_wrong_refuses_and_the_operator_learns_why(
    hook: SimulatedWebhook,
    caplog: pytest.LogCaptureFixture,
    behaviour: Behaviour,
    reason: str,
    detail: str,
    tries: int,
) -> None:
    async def test(server: Server) -> None:
        hook.always = behaviour
        refused = await who(server)
        assert (refused.status, refused.message) == (401, "Unauthorized")
        assert of(refused, server) == (reason, detail)
        assert len(hook.requests) == tries
        assert f"{reason}: {detail}" in caplog.text
        assert hook.url in caplog.text
        metrics = (await server.get("/metrics")).text
        assert f'mooring_token_webhook_reviews_total{{result="{reason}"}} 1.0' in metrics
        hook.always = None
        assert (await who(server)).status == 201, "what went wrong is not remembered"
        assert "answers again" in caplog.text

    in_server_asking(hook.kubeconfig(), test)


@pytest.mark.parametrize("cut", [answers(500), answers(429, retry_after="1"), resets], ids=["500", "429", "a reset"])
def test_trouble_that_passes_is_not_noticed(hook: SimulatedWebhook, cut: Behaviour) -> None:
    async def test(server: Server) -> None:
        hook.script = [cut, cut, cut, cut]
        started = server.clock.now()
        assert (await who(server)).status == 201
        assert len(hook.requests) == 5
        assert server.clock.now() - started >= timedelta(seconds=0.8 * (0.5 + 0.75 + 1.125 + 1.6875))

    in_server_asking(hook.kubeconfig(), test)


def test_a_slow_webhook_is_waited_for_and_then_not(hook: SimulatedWebhook, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(server: Server) -> None:
        hook.always = waits
        with monkeypatch.context() as impatient:
            impatient.setattr(rules, "CALL_SECONDS", 0.2)
            refused = await who(server)
        assert refused.status == 401
        assert of(refused, server) == ("webhook-unreachable", "no answer within 0.2 s")
        hook.gate.set()
        assert (await who(server)).status == 201

    in_server_asking(hook.kubeconfig(), test)


def test_everything_together_has_a_deadline(hook: SimulatedWebhook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "DEADLINE", 0.2)

    async def test(server: Server) -> None:
        hook.always = waits
        assert of(await who(server), server) == ("timed-out", "no verdict within 0.2 s")

    in_server_asking(hook.kubeconfig(), test)


def test_a_webhook_that_is_not_there(hook: SimulatedWebhook, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(server: Server) -> None:
        for _ in range(3):
            refused = await who(server)
            assert refused.status == 401
            assert of(refused, server) == ("webhook-unreachable", "connection refused")
        assert caplog.text.count("gives no verdict") == 1, "one line a minute"
        await server.clock.advance(60)
        await who(server)
        assert caplog.text.count("gives no verdict") == 2
        assert "2 more reviews failed since" in caplog.text
        assert (await who(server, await server.bootstrap_token())).status == 201, "others come in as ever"

    config = kubeconfig(
        tmp_path / "gone.yaml", {"server": "https://127.0.0.1:1/", "certificate-authority": str(ca_of(hook))}, {}
    )
    in_server_asking(config, test)


def ca_of(hook: SimulatedWebhook) -> Path:
    return hook.kubeconfig().parent / "webhook-ca.crt"


@pytest.mark.parametrize(
    ("described", "detail"),
    [
        pytest.param({"tls-server-name": "other.example"}, "hostname mismatch", id="a certificate of another name"),
        pytest.param(
            {"certificate-authority": "stranger.crt"},
            "self-signed certificate in certificate chain",
            id="of another CA",
        ),
    ],
)
def test_a_webhook_that_is_somebody_else_is_shown_nothing(
    hook: SimulatedWebhook, tmp_path: Path, described: dict[str, str], detail: str
) -> None:
    (tmp_path / "stranger.crt").write_bytes(ThrowawayCA("stranger").certificate_pem)

    async def test(server: Server) -> None:
        reason, said = of(await who(server), server)
        assert reason == "webhook-unreachable"
        assert detail in said
        assert hook.requests == []

    in_server_asking(hook.kubeconfig(described), test)


def test_a_name_in_the_kubeconfig_stands_for_the_name_in_the_certificate(tmp_path: Path) -> None:
    with SimulatedWebhook(ThrowawayCA("service"), tmp_path, ("authn.example",), dict(USERS)) as hook:

        async def test(server: Server) -> None:
            assert (await who(server)).status == 201

        in_server_asking(hook.kubeconfig({"tls-server-name": "authn.example"}), test)


def test_a_hundred_requests_with_one_token_ask_once(hook: SimulatedWebhook) -> None:
    async def test(server: Server) -> None:
        hook.always = waits
        asking = [asyncio.create_task(server.post(WHO, REVIEW, token=TOKEN)) for _ in range(100)]
        while not hook.requests:
            await asyncio.wait(asking, timeout=0.005)
        hook.gate.set()
        replies = await passing(server.clock, gathered(asking))
        assert {reply.status for reply in replies} == {201}
        assert hook.tokens == [TOKEN]

    in_server_asking(hook.kubeconfig(), test)


async def gathered(tasks: list[asyncio.Task[Reply]]) -> list[Reply]:
    return await asyncio.gather(*tasks)


def test_a_storm_is_refused_beyond_what_may_be_asked_at_once(
    hook: SimulatedWebhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deferred, "MAX_REMOTE", 8)

    async def test(server: Server) -> None:
        hook.always = waits
        tokens = [f"guess-{number}-4711" for number in range(40)]
        hook.users |= {token: {"username": token} for token in tokens}
        asking = [asyncio.create_task(server.post(WHO, REVIEW, token=token)) for token in tokens]
        while len(hook.requests) < 8:
            await asyncio.wait(asking, timeout=0.005)
        bootstrap = await server.bootstrap_token()
        assert (await server.post(WHO, REVIEW, token=bootstrap)).status == 201, "others are not held up"
        hook.gate.set()
        replies = await passing(server.clock, gathered(asking))
        assert len(hook.requests) == 8
        assert sum(reply.status == 201 for reply in replies) == 8
        assert {of(reply, server) for reply in replies if reply.status != 201} == {("too-busy", "")}

    in_server_asking(hook.kubeconfig(), test)


def test_no_token_comes_out(hook: SimulatedWebhook, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    audit = tmp_path / "audit.log"
    caplog.set_level(logging.DEBUG)
    echo = b'{"status":{"error":"no user has %s"}}' % TOKEN.encode()

    async def test(server: Server) -> None:
        outlets = []
        for trouble in (echo, b"?" + TOKEN.encode(), b'{"kind":"%s"}' % TOKEN.encode()):
            hook.always = answers(200, trouble)
            outlets.append(await who(server))
        hook.always = answers(500, echo)
        outlets.append(await who(server))
        hook.always = resets
        outlets.append(await who(server))
        for kind in ("refusals", "explain"):
            path = f"/debug/authentication/{kind}"
            outlets.append(
                await (
                    server.get(path)
                    if kind == "refusals"
                    else passing(server.clock, server.post(path, {"token": TOKEN}))
                )
            )
        outlets.append(await server.get("/metrics"))
        for reply in outlets:
            assert TOKEN not in reply.text
            assert TOKEN[:12] not in reply.text
        assert "no user has [token]" in outlets[5].text, "the rest of what it says is told"

    in_server_asking(hook.kubeconfig(), test, audit_log_path=str(audit))
    for written in (caplog.text, audit.read_text()):
        assert "refused-by-webhook" in written
        assert TOKEN not in written
        assert TOKEN[:12] not in written


# ── this server as somebody else's webhook ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
@pytest.mark.parametrize("names_itself", [True, False], ids=["a whole object", "only a spec"])
def test_a_review_is_answered_in_its_version(version: str, names_itself: bool) -> None:
    async def test(server: Server) -> None:
        api = f"authentication.k8s.io/{version}"
        body: Obj = {"spec": {"token": await server.bootstrap_token(), "audiences": ["theirs", API]}}
        if names_itself:
            body |= {
                "kind": "TokenReview",
                "apiVersion": api,
                "metadata": {"creationTimestamp": None},
                "status": {"user": {}},
            }
        reply = await server.post(f"/apis/{api}/tokenreviews", body)
        assert reply.status == 201
        assert (reply.obj["kind"], reply.obj["apiVersion"]) == ("TokenReview", api)
        assert reply.obj["status"] == {
            "authenticated": True,
            "user": {
                "username": "system:bootstrap:abcdef",
                "groups": ["system:bootstrappers", "system:authenticated"],
            },
            "audiences": [API],
        }

    in_plain_server(test)


def test_who_may_ask_for_reviews_is_system_auth_delegator() -> None:
    async def test(server: Server) -> None:
        body = {"spec": {"token": "x-token"}}
        via = server.user("other-api-server", "delegators")
        assert (await server.post(REVIEWS, body, via=via)).status == 403
        binding = {
            "metadata": {"name": "webhook"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "system:auth-delegator",
            },
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "delegators"}],
        }
        assert (await server.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)).status == 201
        reply = await server.post(REVIEWS.replace("v1", "v1beta1"), body, via=via)
        assert (reply.status, reply.obj["status"].get("authenticated")) == (201, None)

    in_plain_server(test)


def in_plain_server(test: Callable[[Server], Awaitable[None]]) -> None:
    async def run() -> None:
        async with open_server() as server:
            await test(server)

    asyncio.run(run())
