"""JoinTokens through the whole server: who may make limited tokens and nothing else.

Source: docs/limit-what-a-token-can-do.md#a-right-that-makes-limited-tokens-only.
"""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mooring.api.mooring import jointoken
from mooring.apimachinery.schema import Obj
from mooring.server.transport.tlsconnection import TlsConnection
from mooring.trust.bootstraptoken.tokensecret import SECRET_TYPE, from_secret
from tests.support.serverroom import Reply, Server, in_server, open_server

JOIN_TOKENS = "/apis/mooring.dev/v1alpha1/jointokens"
SECRETS = "/api/v1/namespaces/kube-system/secrets"
WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


async def maker(server: Server) -> TlsConnection:
    """Return a connection of a user with the right to create JoinTokens, and no other."""
    rule = {"verbs": ["create"], "apiGroups": ["mooring.dev"], "resources": ["jointokens"]}
    await server.create("clusterroles", {"metadata": {"name": "token-maker"}, "rules": [rule]})
    binding = {
        "metadata": {"name": "token-maker"},
        "subjects": [{"kind": "User", "name": "ci", "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"kind": "ClusterRole", "name": "token-maker", "apiGroup": "rbac.authorization.k8s.io"},
    }
    await server.create("clusterrolebindings", binding)
    return server.user("ci")


async def made(server: Server, via: TlsConnection, query: str = "", **spec: Any) -> Reply:
    return await server.post(JOIN_TOKENS + query, {"spec": spec}, via=via)


async def secrets(server: Server) -> dict[str, Obj]:
    listed = (await server.get(SECRETS)).obj["items"]
    return {secret["metadata"]["name"]: secret for secret in listed if secret["type"] == SECRET_TYPE}


@in_server
async def test_a_user_with_that_right_alone_gets_a_token_that_authenticates(server: Server) -> None:
    ci = await maker(server)
    reply = await made(server, ci)
    assert (reply.status, reply.obj["kind"]) == (201, "JoinToken")
    token = reply.obj["status"]["token"]
    found = await server.post(WHO, {}, token=token)
    assert found.obj["status"]["userInfo"]["username"] == f"system:bootstrap:{token[:6]}"
    assert "system:bootstrappers:kubeadm:default-node-token" in found.obj["status"]["userInfo"]["groups"]

    (secret,) = (await secrets(server)).values()
    record = from_secret(secret)
    assert record.token.reveal() == token
    assert record.usages == ("authentication", "signing")
    assert record.expires == server.clock.now().replace(microsecond=0) + timedelta(hours=1)
    assert secret["metadata"]["annotations"] == {"mooring.dev/max-joins": "1", "mooring.dev/created-by": "ci"}


@in_server
async def test_every_limit_of_the_request_is_one_of_the_token(server: Server) -> None:
    ci = await maker(server)
    spec: Obj = {
        "expirationSeconds": 86400,
        "maxJoins": 100,
        "allowedCIDRs": ["10.1.0.0/16", "fd00:1::/64"],
        "nodeName": "ci-*",
        "requireApproval": True,
        "ephemeral": "30m",
        "description": "runners",
        "format": "k3s",
    }
    reply = await made(server, ci, **spec)
    assert reply.status == 201, reply.text
    (secret,) = (await secrets(server)).values()
    assert secret["metadata"]["annotations"] == {
        "mooring.dev/max-joins": "100",
        "mooring.dev/allowed-cidrs": "10.1.0.0/16,fd00:1::/64",
        "mooring.dev/node-name": "ci-*",
        "mooring.dev/require-approval": "true",
        "mooring.dev/ephemeral": "30m0s",
        "mooring.dev/created-by": "ci",
    }
    record = from_secret(secret)
    assert record.groups == ("system:bootstrappers:k3s:default-node-token",)
    assert record.description == "runners"


@pytest.mark.parametrize(
    ("spec", "field", "message"),
    [
        ({"expirationSeconds": 0}, "spec.expirationSeconds", "must be from 60 to 86400"),
        ({"expirationSeconds": 86401}, "spec.expirationSeconds", "must be from 60 to 86400"),
        ({"maxJoins": 0}, "spec.maxJoins", "must be from 1 to 100"),
        ({"maxJoins": 101}, "spec.maxJoins", "must be from 1 to 100"),
        ({"allowedCIDRs": ["10.1.0.1/16"]}, "spec.allowedCIDRs", "not a network"),
        ({"nodeName": "Bad Name"}, "spec.nodeName", "not a node name"),
        ({"ephemeral": "1s"}, "spec.ephemeral", "at least 2m"),
        ({"format": "k0s"}, "spec.format", 'supported values: "kubeadm", "k3s"'),
        ({"description": "é" * 129}, "spec.description", "256 bytes"),
    ],
    ids=str,
)
def test_a_token_without_limits_is_not_made(spec: Obj, field: str, message: str) -> None:
    async def run() -> None:
        async with open_server() as server:
            reply = await made(server, await maker(server), **spec)
            (cause,) = reply.obj["details"]["causes"]
            assert (reply.status, cause["field"]) == (422, field)
            assert message in cause["message"]
            assert "mooring.dev/" not in cause["message"]
            assert not await secrets(server)

    asyncio.run(run())


@in_server
async def test_the_right_gives_no_other(server: Server) -> None:
    ci = await maker(server)
    name = f"bootstrap-token-{(await made(server, ci)).obj['status']['token'][:6]}"
    secret = {"metadata": {"name": "x"}, "type": SECRET_TYPE}
    assert (await server.get(SECRETS, via=ci)).status == 403
    assert (await server.get(f"{SECRETS}/{name}", via=ci)).status == 403
    assert (await server.post(SECRETS, secret, via=ci)).status == 403
    assert (await server.call("DELETE", "/api/v1/nodes/n", via=ci)).status == 403
    assert (await server.get(JOIN_TOKENS, via=ci)).status == 403
    assert (await server.get(JOIN_TOKENS)).status == 405
    assert (await made(server, server.user("other"))).status == 403
    # A token does not make tokens.
    other = (await made(server, ci)).obj["status"]["token"]
    assert (await server.post(JOIN_TOKENS, {"spec": {}}, token=other)).status == 403


@in_server
async def test_a_dry_run_makes_no_token_and_answers_none(server: Server) -> None:
    reply = await made(server, await maker(server), "?dryRun=All")
    assert reply.status == 201
    assert set(reply.obj["status"]) == {"expirationTimestamp"}
    assert not await secrets(server)


def test_so_many_tokens_are_there_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jointoken, "MOST_LIVE", 2)

    async def run() -> None:
        async with open_server() as server:
            ci = await maker(server)
            # A token that an administrator made is none of them.
            await server.bootstrap_token()
            replies = [await made(server, ci, expirationSeconds=seconds) for seconds in (60, 120, 60)]
            assert [reply.status for reply in replies] == [201, 201, 403]
            assert "there are 2 such tokens; wait until some expire" in replies[-1].message
            await server.clock.advance(60)
            assert (await made(server, ci)).status == 201

    asyncio.run(run())


def test_a_token_whose_id_is_taken_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with open_server() as server:
            ci, text = await maker(server), await server.bootstrap_token()
            before = await secrets(server)
            monkeypatch.setattr(
                "mooring.server.endpoints.reviews.generate_token",
                lambda entropy: from_secret(next(iter(before.values()))).token,
            )
            reply = await made(server, ci)
            assert (reply.status, reply.headers["retry-after"]) == (503, "1")
            assert text not in reply.text
            assert await secrets(server) == before

    asyncio.run(run())


def test_no_audit_record_has_the_token(tmp_path: Path) -> None:
    policy, log = tmp_path / "policy.json", tmp_path / "audit.log"
    rules = [{"level": "RequestResponse"}]
    policy.write_text(json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}))

    async def run() -> Any:
        async with open_server(audit_log_path=str(log), audit_policy_file=str(policy)) as server:
            return (await made(server, await maker(server))).obj["status"]["token"]

    token = asyncio.run(run())
    text = log.read_text()
    assert token[7:] not in text
    records = [json.loads(line) for line in text.splitlines()]
    (record,) = (one for one in records if one["requestURI"] == JOIN_TOKENS and one["stage"] == "ResponseComplete")
    assert (record["level"], record["user"]["username"]) == ("Metadata", "ci")
    assert record["objectRef"]["name"] == f"bootstrap-token-{token[:6]}"
