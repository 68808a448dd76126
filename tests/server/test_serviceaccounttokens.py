"""Test tokens of service accounts through the whole server.

Source: docs/protocol/service-account-tokens.md, docs/protocol/authentication-reviews.md,
docs/protocol/node-authorization.md#noderestriction.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mooring.apimachinery.schema import Obj
from mooring.controlplane.maintenance import record
from mooring.identity import NODES
from mooring.pki.jwt.serviceaccount import LegacyToken
from mooring.pki.jwt.token import TokenSigner, decode_unverified
from tests.support.auditlog import request_records
from tests.support.serverroom import Reply, Server, in_server, open_server
from tests.support.slowkeys import rsa_key

ISSUER = "https://kubernetes.default.svc.cluster.local"
OLD, NEW = "https://old.example", "https://new.example"
WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
REVIEW = {"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"}
TOKEN = "/api/v1/namespaces/default/serviceaccounts/robot/token"
NAME = "system:serviceaccount:default:robot"
YEAR = 365 * 86400


def in_server_with(test: Callable[[Server], Awaitable[None]], audit: str = "", **flags: Any) -> None:
    async def run() -> None:
        options = flags
        async with open_server(**options, audit_log_path=audit) as server:
            await server.create("serviceaccounts", {"metadata": {"name": "robot"}})
            await test(server)

    asyncio.run(run())


async def issued(server: Server, **spec: Any) -> str:
    reply = await server.post(TOKEN, {"spec": spec})
    assert reply.status == 201, reply.text
    token: str = reply.obj["status"]["token"]
    return token


async def who(server: Server, token: str) -> str:
    reply = await server.post(WHO, REVIEW, token=token)
    return str(reply.obj["status"]["userInfo"]["username"]) if reply.status == 201 else str(reply.status)


async def explained(server: Server, token: str) -> dict[str, str]:
    """Return the authenticator that rejects the token, its reason and the detail."""
    found = (await server.post("/debug/authentication/explain", {"token": token})).obj
    refused = [step for step in found["authenticators"] if step["verdict"] == "refused"]
    assert len(refused) == 1, found
    return dict(refused[0])


async def reviewed(server: Server, token: str, *audiences: str) -> Any:
    body = {"kind": "TokenReview", "spec": {"token": token, "audiences": list(audiences)}}
    reply = await server.post("/apis/authentication.k8s.io/v1/tokenreviews", body)
    assert reply.status == 201, reply.text
    return reply.obj["status"]


# -- issuers and audiences ------------------------------------------------------------------------------------------


def test_the_first_issuer_signs_and_tokens_of_all_are_accepted() -> None:
    async def test(server: Server) -> None:
        signer = server.assembly.trust.authentication.tokens.keys.signer
        new = await issued(server)
        claims = decode_unverified(new)[1]
        assert (claims["iss"], claims["aud"]) == (NEW, [NEW, OLD])
        old, strange = (signer.sign({**claims, "iss": one, "aud": [OLD]}) for one in (OLD, "https://x.example"))
        assert [await who(server, token) for token in (new, old, strange)] == [NAME, NAME, "401"]
        document = (await server.get("/.well-known/openid-configuration")).obj
        assert document["issuer"] == NEW

    in_server_with(test, service_account_issuer=(NEW, OLD))


def test_the_issuer_may_be_called_like_that_of_secrets_tokens() -> None:
    async def test(server: Server) -> None:
        both = await issued(server), await held(server)
        assert [await who(server, token) for token in both] == [NAME, NAME]

    in_server_with(test, service_account_issuer=("kubernetes/serviceaccount",))


def test_the_api_has_the_audiences_that_are_said() -> None:
    async def test(server: Server) -> None:
        token = await issued(server)
        assert decode_unverified(token)[1]["aud"] == ["api", "api2"]
        assert await who(server, await issued(server, audiences=["api2"])) == NAME
        other = await issued(server, audiences=[ISSUER])
        assert await who(server, other) == "401"
        assert (await explained(server, other))["detail"] == (f"{NAME}: good for {ISSUER}, wants audience api or api2")
        assert (await reviewed(server, other, ISSUER))["audiences"] == [ISSUER]
        assert (await reviewed(server, token))["audiences"] == ["api", "api2"]

    in_server_with(test, api_audiences=("api", "api2"))


def test_relying_parties_are_sent_where_the_keys_are() -> None:
    async def test(server: Server) -> None:
        document = (await server.get("/.well-known/openid-configuration")).obj
        assert document["jwks_uri"] == "https://keys.example/jwks"
        assert (await server.get("/openid/v1/jwks")).status == 200

    in_server_with(test, service_account_jwks_uri="https://keys.example/jwks")


# -- keys -----------------------------------------------------------------------------------------------------------


@in_server
async def test_keys_change_for_authentication_issue_and_discovery_at_once(server: Server) -> None:
    await server.create("serviceaccounts", {"metadata": {"name": "robot"}})
    followed = server.assembly.trust.authentication.tokens
    first, other = followed.keys.signer, TokenSigner(rsa_key(2048), ISSUER)
    old = await issued(server)
    followed._replace(other, {"sa.pub": (first.public_key,)})
    new = await issued(server)
    assert decode_unverified(new)[0] == {"alg": "RS256", "kid": other.key_id}
    assert [await who(server, token) for token in (old, new)] == [NAME, NAME]
    keys = (await server.get("/openid/v1/jwks")).obj["keys"]
    assert [(key["kid"], key["alg"], key["use"]) for key in keys] == [
        (other.key_id, "RS256", "sig"),
        (first.key_id, "ES256", "sig"),
    ]
    document = (await server.get("/.well-known/openid-configuration")).obj
    assert document["id_token_signing_alg_values_supported"] == ["ES256", "RS256"]
    followed._replace(other, {})
    assert [await who(server, token) for token in (old, new)] == ["401", NAME]
    assert (await explained(server, old))["reason"] == "unknown-key"


# -- TokenRequest ---------------------------------------------------------------------------------------------------

POD = {"spec": {"serviceAccountName": "robot", "containers": [{"name": "c", "image": "i"}]}}


def bound(kind: str, name: str, **more: str) -> Obj:
    return {"boundObjectRef": {"kind": kind, "apiVersion": "v1", "name": name, **more}}


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        pytest.param({"metadata": {"name": "x"}}, 422, "metadata.name", id="another name"),
        pytest.param({"metadata": {"namespace": "x"}}, 422, "metadata.namespace", id="another namespace"),
        pytest.param(
            {"metadata": {"uid": "x"}}, 409, "does not match the UID of the service account", id="another uid"
        ),
        pytest.param({"spec": {"expirationSeconds": 599}}, 422, "less than 10 minutes", id="too short"),
        pytest.param({"spec": {"expirationSeconds": (1 << 32) + 1}}, 422, "larger than 2^32", id="too long"),
        pytest.param({"spec": bound("Pod", "x")}, 404, 'pods "x" not found', id="a Pod that is gone"),
        pytest.param({"spec": bound("Secret", "x")}, 404, 'secrets "x" not found', id="a Secret that is gone"),
        pytest.param({"spec": bound("Node", "x")}, 404, 'nodes "x" not found', id="a Node that is gone"),
        pytest.param({"spec": bound("Pod", "p", uid="x")}, 409, "does not match the UID in record", id="another Pod"),
        pytest.param({"spec": bound("Pod", "d")}, 400, "different serviceaccount", id="a Pod of another account"),
        pytest.param({"spec": bound("ConfigMap", "p")}, 400, "cannot bind token", id="a ConfigMap"),
    ],
)
@in_server
async def test_a_token_is_not_issued(server: Server, body: Obj, code: int, message: str) -> None:
    await server.create("serviceaccounts", {"metadata": {"name": "robot"}})
    await server.create("serviceaccounts", {"metadata": {"name": "default"}})
    await server.create("pods", {"metadata": {"name": "p"}, **POD})
    await server.create("pods", {"metadata": {"name": "d"}, "spec": {**POD["spec"], "serviceAccountName": "default"}})
    reply = await server.post(TOKEN, body)
    assert (reply.status, message in reply.obj["message"]) == (code, True), reply.text


@in_server
async def test_there_is_no_token_of_an_account_that_is_not_there(server: Server) -> None:
    reply = await server.post(TOKEN, {"spec": {}})
    assert (reply.status, reply.obj["message"]) == (404, 'serviceaccounts "robot" not found')


def test_a_longer_life_than_is_allowed_is_shortened_with_a_warning() -> None:
    async def test(server: Server) -> None:
        reply = await server.post(TOKEN, {"spec": {"expirationSeconds": 7200}})
        claims = decode_unverified(reply.obj["status"]["token"])[1]
        assert claims["exp"] - claims["iat"] == reply.obj["spec"]["expirationSeconds"] == 3600
        assert reply.headers["warning"] == '299 - "requested expiration of 7200 seconds shortened to 3600 seconds"'

    in_server_with(test, service_account_max_token_expiration=timedelta(hours=1))


def noted(path: Path, verb: str, resource: str) -> list[dict[str, str]]:
    records = request_records(path)
    return [
        record["annotations"]
        for record in records
        if record["verb"] == verb and record.get("objectRef", {}).get("resource") == resource
    ]


@pytest.mark.parametrize("extend", [True, False], ids=["extended", "as asked"])
def test_the_token_of_every_pod_lives_a_year_and_is_stale_after_its_hour(tmp_path: Path, extend: bool) -> None:
    async def test(server: Server) -> None:
        await server.create("pods", {"metadata": {"name": "p"}, **POD})
        token = await issued(server, expirationSeconds=3607, **bound("Pod", "p"))
        claims = decode_unverified(token)[1]
        assert claims["exp"] - claims["iat"] == (YEAR if extend else 3607)
        await server.clock.advance(3600)
        assert await who(server, token) == NAME
        await server.clock.advance(3600)
        assert await who(server, token) == (NAME if extend else "401")

    log = tmp_path / "audit.log"
    in_server_with(test, str(log), service_account_extend_token_expiration=extend)
    [issue] = noted(log, "create", "serviceaccounts")
    assert issue["authentication.kubernetes.io/issued-credential-id"].startswith("JTI=")
    uses = noted(log, "create", "selfsubjectreviews")
    fresh, stale = (one.get("authentication.k8s.io/stale-token") for one in uses)
    assert fresh is None
    assert stale == (f"subject: {NAME}, seconds after warning threshold: 3593" if extend else None)


# -- what a token is bound to ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "plural", "obj", "shown"),
    [
        pytest.param("Pod", "pods", POD, {"pod-name", "pod-uid"}, id="a Pod"),
        pytest.param("Secret", "secrets", {}, set(), id="a Secret"),
        pytest.param("Node", "nodes", {}, {"node-name", "node-uid"}, id="a Node"),
    ],
)
@in_server
async def test_a_token_ends_with_what_it_is_bound_to(
    server: Server, kind: str, plural: str, obj: Obj, shown: set[str]
) -> None:
    await server.create("serviceaccounts", {"metadata": {"name": "robot"}})
    await server.create(plural, {"metadata": {"name": "b"}, **obj})
    token = await issued(server, **bound(kind, "b"))
    extra = (await server.post(WHO, REVIEW, token=token)).obj["status"]["userInfo"]["extra"]
    prefix = "authentication.kubernetes.io/"
    assert set(extra) == {prefix + name for name in ("credential-id", *shown)}
    await server.delete(plural, "b")
    assert await who(server, token) == "401"
    where = "nodes b" if kind == "Node" else f"{plural} default/b"
    assert await explained(server, token) == {
        "name": "service-account",
        "verdict": "refused",
        "reason": "bound-object-gone",
        "detail": f"{NAME}: {where} is not there any more",
    }
    await server.create(plural, {"metadata": {"name": "b"}, **obj})
    assert (await explained(server, token))["reason"] == "bound-object-replaced"
    fresh = await issued(server, **bound(kind, "b"))
    await server.delete("serviceaccounts", "robot")
    await server.create("serviceaccounts", {"metadata": {"name": "robot"}})
    assert (await explained(server, fresh))["reason"] == "bound-object-replaced"


# -- nodes as callers -----------------------------------------------------------------------------------------------


@in_server
async def test_a_node_gets_tokens_for_the_audiences_of_its_pods(server: Server) -> None:
    await server.create("serviceaccounts", {"metadata": {"name": "robot"}})
    for name in ("n1", "n2"):
        await server.create("nodes", {"metadata": {"name": name}})
    source = {"serviceAccountToken": {"path": "token", "audience": "vault", "expirationSeconds": 3600}}
    volumes = [{"name": "v", "projected": {"sources": [source]}}, {"name": "c", "csi": {"driver": "d"}}]
    spec = {**POD["spec"], "nodeName": "n1", "volumes": volumes, "automountServiceAccountToken": False}
    pod = (await server.create("pods", {"metadata": {"name": "p"}, "spec": spec})).obj
    own, other = (server.user(f"system:node:{name}", NODES) for name in ("n1", "n2"))

    async def asked(audiences: list[str], via: Any = own, **more: str) -> Reply:
        what = {"audiences": audiences, **bound("Pod", "p", **{"uid": pod["metadata"]["uid"], **more})}
        return await server.post(TOKEN, {"spec": what}, via=via)

    assert (await asked(["vault"])).status == 201
    assert (await asked(["vault"], via=other)).status == 403
    assert (await asked([])).status == 403, "no volume asks for the API's"
    refused = await asked(["disks"])
    assert (refused.status, 'csidriver.storage.k8s.io "d" not found' in refused.obj["message"]) == (403, True)
    spec = {"attachRequired": False, "tokenRequests": [{"audience": "disks"}]}
    driver = {"kind": "CSIDriver", "apiVersion": "storage.k8s.io/v1", "metadata": {"name": "d"}, "spec": spec}
    await server.storage.create("/registry/csidrivers/d", json.dumps(driver).encode())  # as kube-apiserver does
    await server.registry.reader.fresh()
    assert (await asked(["disks"])).status == 201
    refused = await asked(["mesh"])
    assert (refused.status, 'is not authorized to request tokens for audience "mesh"' in refused.obj["message"]) == (
        403,
        True,
    )
    assert (await asked(["vault", "mesh"])).status == 403
    assert (await asked(["vault"], uid="x")).status == 403
    verb = "request-serviceaccounts-token-audience"
    rule = {"apiGroups": [""], "resources": ["mesh"], "resourceNames": ["robot"], "verbs": [verb]}
    await server.create("clusterroles", {"metadata": {"name": "mesh"}, "rules": [rule]})
    group = {"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": NODES}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "mesh"}
    await server.create("clusterrolebindings", {"metadata": {"name": "mesh"}, "roleRef": role, "subjects": [group]})
    assert (await asked(["mesh"])).status == 201


# -- tokens that Secrets hold ---------------------------------------------------------------------------------------


async def held(server: Server, **labels: str) -> str:
    """Return the token of the Secret `held`, as the token controller makes it."""
    account = (await server.get("/api/v1/namespaces/default/serviceaccounts/robot")).obj
    says = LegacyToken("default", "held", "robot", account["metadata"]["uid"])
    token = server.assembly.trust.authentication.tokens.keys.signer.sign(says.claims())
    metadata = {"name": "held", "annotations": {"kubernetes.io/service-account.name": "robot"}, "labels": labels}
    data = {"token": base64.b64encode(token.encode()).decode()}
    await server.create("secrets", {"metadata": metadata, "type": "kubernetes.io/service-account-token", "data": data})
    return token


def test_a_secrets_token_is_its_account_until_the_secret_is_gone() -> None:
    async def test(server: Server) -> None:
        token = await held(server)
        assert await who(server, token) == NAME
        status = await reviewed(server, token)
        assert status["user"]["username"] == NAME
        assert status["audiences"] == [ISSUER]
        assert "authenticated" not in await reviewed(server, token, "vault")
        await server.delete("secrets", "held")
        assert await who(server, token) == "401"
        assert (await explained(server, token))["detail"] == f"{NAME}: secrets default/held is not there any more"

    in_server_with(test)


def test_without_lookup_a_secrets_token_outlives_its_secret() -> None:
    async def test(server: Server) -> None:
        token = await held(server)
        await server.delete("secrets", "held")
        assert await who(server, token) == NAME

    in_server_with(test, service_account_lookup=False)


def test_a_generated_token_brings_a_warning_and_the_audit_record_names_it(tmp_path: Path) -> None:
    async def test(server: Server) -> None:
        token = await held(server)
        assert "warning" not in (await server.post(WHO, REVIEW, token=token)).headers
        await server.patch("serviceaccounts", "robot", {"secrets": [{"name": "held"}]})
        reply = await server.post(WHO, REVIEW, token=token)
        assert reply.headers["warning"].startswith('299 - "this service account token was generated by itself')
        assert (await reviewed(server, token))["authenticated"] is True

    log = tmp_path / "audit.log"
    in_server_with(test, str(log))
    plain, generated = noted(log, "create", "selfsubjectreviews")
    assert plain["authentication.k8s.io/legacy-token"] == NAME
    assert "authentication.k8s.io/legacy-token-autogenerated-secret" not in plain
    assert generated["authentication.k8s.io/legacy-token-autogenerated-secret"] == "held"
    [review] = noted(log, "create", "tokenreviews")
    assert review["authentication.k8s.io/legacy-token"] == NAME


def test_the_day_of_the_last_use_is_written_behind_the_request() -> None:
    async def test(server: Server) -> None:
        token, label = await held(server, mine="1"), "kubernetes.io/legacy-token-last-used"
        before = server.registry.cache.revision
        explanation = await server.post("/debug/authentication/explain", {"token": token})
        assert explanation.obj["authenticated"] is True
        assert server.assembly.trust.authentication.last_uses.take() == (), "who only asks does not use it"
        assert await who(server, token) == NAME
        assert server.registry.cache.revision == before, "the request itself writes nothing"
        for _ in range(2):
            await record(server.assembly.trust.authentication.last_uses, server.registry, server.clock)
        assert (await server.get("/api/v1/namespaces/default/secrets/held")).obj["metadata"]["labels"] == {
            "mine": "1",
            label: "2026-01-02",
        }
        written = server.registry.cache.revision
        assert await who(server, token) == NAME
        await record(server.assembly.trust.authentication.last_uses, server.registry, server.clock)
        assert server.registry.cache.revision == written, "once a day"

    in_server_with(test)


def test_a_token_marked_invalid_is_refused_with_a_reason_for_the_operator() -> None:
    async def test(server: Server) -> None:
        token = await held(server, **{"kubernetes.io/legacy-token-invalid-since": "2025-01-01"})
        assert await who(server, token) == "401"
        told = await explained(server, token)
        assert (told["name"], told["reason"]) == ("legacy-service-account", "invalidated")
        assert "marked invalid since 2025-01-01" in told["detail"]

    in_server_with(test)
