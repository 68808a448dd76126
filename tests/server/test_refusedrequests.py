"""Test the record of refused requests under their Audit-Id, and dry runs, which leave no record."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import generate_latest

from mooring.authn.chain import ChainStep
from mooring.authn.verdict import Accepted, NotMine, Rejected
from mooring.identity import UserInfo
from mooring.pki import pem
from mooring.pki.x509.bundles import certificates_pem
from mooring.server.refusedrequests import Refusals, RefusedRequest
from tests.support.costlycertificates import chain
from tests.support.serverroom import Reply, Server, connection, in_server
from tests.support.testca import ThrowawayCA

PATH = "/debug/authentication"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECRETS = "/api/v1/namespaces/kube-system/secrets"


async def why(server: Server, refused: Reply) -> Any:
    """Return the record of this refusal."""
    told = await server.get(f"{PATH}/refusals/{refused.headers['audit-id']}")
    assert told.status == 200, told.text
    return told.obj


@in_server
async def test_a_refused_token_is_told_step_by_step_to_the_operator_alone(server: Server) -> None:
    await server.bootstrap_token("abcdef.0123456789abcdef")
    refused = await server.get(SECRETS, token="abcdef.fedcba9876543210")
    assert (refused.status, refused.message) == (401, "Unauthorized")
    told = await why(server, refused)
    assert (told["code"], told["why"], told["path"], told["method"]) == (401, "wrong-secret", SECRETS, "GET")
    assert [(step["name"], step["verdict"], step.get("reason")) for step in told["authenticators"]] == [
        ("client-certificate", "not-mine", None),
        ("node-recovery", "not-mine", None),
        ("legacy-service-account", "not-mine", None),
        ("service-account", "not-mine", None),
        ("bootstrap-token", "refused", "wrong-secret"),
        ("join-rule", "not-mine", None),
        ("user-token", "not-mine", None),
    ]
    assert "fedcba9876543210" not in json.dumps(told)
    for path in (f"{PATH}/refusals", f"{PATH}/refusals/{refused.headers['audit-id']}"):
        assert (await server.get(path, via=server.user("jane", "dev"))).status == 403
        assert (await server.get(path, via=connection())).status == 403


@in_server
async def test_an_unknown_token_and_a_wrong_one_look_the_same_from_outside(server: Server) -> None:
    await server.bootstrap_token("abcdef.0123456789abcdef")
    replies = [
        await server.get(SECRETS, token=token, headers=[("Audit-ID", "same")])
        for token in ("abcdef.fedcba9876543210", "ffffff.fedcba9876543210", "what.is.this", "x")
    ]
    assert len({(reply.status, reply.body, tuple(reply.every_header)) for reply in replies}) == 1


@in_server
async def test_a_forbidden_request_is_told_with_who_asked_and_what_decided(server: Server) -> None:
    refused = await server.get(SECRETS, via=server.user("jane", "dev"))
    assert refused.status == 403
    told = await why(server, refused)
    assert (told["code"], told["reason"], told["user"]["username"]) == (403, "Forbidden", "jane")
    assert told["user"]["groups"] == ["dev", "system:authenticated"]
    assert told["authenticators"][-1] == {"name": "client-certificate", "verdict": "accepted", "detail": "jane"}
    assert told["why"] == refused.obj["message"]


@in_server
async def test_a_request_that_admission_refuses_is_told_with_the_reason_that_the_client_got(server: Server) -> None:
    node = server.user("system:node:n1", "system:nodes")
    refused = await server.post("/api/v1/nodes", {"metadata": {"name": "n2"}}, via=node)
    assert refused.status == 403
    told = await why(server, refused)
    assert told["why"] == refused.obj["message"]


@in_server
async def test_a_refused_impersonation_names_who_tried_and_the_right_that_every_client_knows(server: Server) -> None:
    refused = await server.get(SECRETS, via=server.user("jane"), headers=[("Impersonate-User", "root")])
    assert refused.status == 403
    told = await why(server, refused)
    assert told["user"]["username"] == "jane"
    assert told["why"] == (
        'users "root" is forbidden: User "jane" cannot impersonate resource "users" in API group "" at the cluster scope'
    )


@in_server
async def test_impersonation_that_was_allowed_leaves_no_refusal_behind(server: Server) -> None:
    allowed = await server.get("/api", headers=[("Impersonate-User", "jane")])
    assert allowed.status == 200
    assert (await server.get(f"{PATH}/refusals/{allowed.headers['audit-id']}")).status == 404


@in_server
async def test_the_newest_are_listed_first(server: Server) -> None:
    for number in range(3):
        await server.get(SECRETS, token=f"x{number}", headers=[("Audit-ID", f"id-{number}")])
        await server.clock.advance(1)
    listed = (await server.get(f"{PATH}/refusals?limit=2")).obj
    assert [one["auditID"] for one in listed["items"]] == ["id-2", "id-1"]


@pytest.mark.parametrize("limit", ["0", "-1", "many", "501", "9" * 40, "²"])
def test_a_limit_is_a_number_in_reach(limit: str) -> None:
    @in_server
    async def test(server: Server) -> None:
        assert (await server.get(f"{PATH}/refusals?limit={limit}")).status == 400

    test()


@in_server
async def test_what_nobody_was_refused_is_not_found_with_a_hint(server: Server) -> None:
    reply = await server.get(f"{PATH}/refusals/nothing")
    assert (reply.status, reply.obj["kind"]) == (404, "Status")
    assert "each server keeps its own" in reply.message


def refusal(audit_id: str, code: int = 401, age: int = 0) -> RefusedRequest:
    return RefusedRequest(audit_id, NOW - timedelta(seconds=age), code, "r", "GET", "/", "192.0.2.1", (), "why")


def test_the_record_is_bounded_and_a_storm_pushes_out_only_its_own_kind() -> None:
    kept = Refusals(most=2)
    kept.keep(refusal("honest", 403))
    for number in range(100):
        kept.keep(refusal(f"guess-{number}", 429))
    assert kept.find("honest") is not None
    assert [kept.find(f"guess-{number}") is not None for number in (97, 98, 99)] == [False, True, True]
    assert len(kept.newest(10)) == 3


def test_a_refusal_takes_little_memory_whatever_was_sent() -> None:
    long = "\xff" * 60_000
    steps = (
        ChainStep("request-header", Accepted(UserInfo(long, groups=(long,), extra={long: (long,)}))),
        ChainStep("oidc", Rejected("wrong-issuer", long)),
        ChainStep("token-file", NotMine()),
    )
    refusals = Refusals()
    refusals.keep(
        RefusedRequest("one", NOW, 401, "Unauthorized", long, long, "192.0.2.1", steps, long, long, (long,) * 5000)
    )
    kept = refusals.find("one")
    assert kept is not None
    assert len(json.dumps(kept.to_json(), ensure_ascii=False)) < 20_000
    assert kept.to_json()["path"].endswith("...(59488 more characters)")
    assert [step["verdict"] for step in kept.to_json()["authenticators"]] == ["accepted", "refused", "not-mine"]


def test_an_id_that_was_answered_keeps_its_first_refusal() -> None:
    kept = Refusals()
    kept.keep(refusal("earlier", 401))
    first = refusal("chosen", 403)
    for one in (first, refusal("chosen", 401), refusal("chosen", 403, age=5)):
        kept.keep(one)
    assert kept.find("chosen") == first
    assert len(kept.newest(10)) == 2


@in_server
async def test_a_dry_run_tells_who_a_credential_would_be(server: Server) -> None:
    token = await server.bootstrap_token("abcdef.0123456789abcdef")
    told = (await server.post(f"{PATH}/explain", {"token": token})).obj
    assert (told["authenticated"], told["user"]["username"]) == (True, "system:bootstrap:abcdef")
    assert told["authenticators"][-1]["verdict"] == "accepted"
    jane = certificates_pem([server.ca.client("jane", "dev").certificate]).decode()
    told = (await server.post(f"{PATH}/explain", {"certificate": jane})).obj
    assert told["user"]["groups"] == ["dev", "system:authenticated"]
    stranger = certificates_pem([ThrowawayCA(now=server.clock.now()).client("jane").certificate]).decode()
    told = (await server.post(f"{PATH}/explain", {"certificate": stranger})).obj
    assert told["authenticators"][0]["verdict"] == "refused"
    assert told["why"] == told["authenticators"][0]["reason"]


@in_server
async def test_a_dry_run_reads_a_chain_as_a_connection_does(server: Server) -> None:
    """The refusal of what is too large is part of the answer, and the text is not read as a bundle of CAs before."""
    for form, reason in (("policies", "too-large"), ("one policy of a long kind", "not-yet-valid")):
        text = b"".join(pem.encode(pem.CERTIFICATE, one) for one in chain(form, above=True)).decode()
        told = (await server.post(f"{PATH}/explain", {"certificate": text})).obj
        assert (told["authenticated"], told["why"]) == (False, reason)


@in_server
async def test_a_dry_run_is_no_guess_and_leaves_no_trace(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        for number in range(200):
            reply = await server.post(f"{PATH}/explain", {"token": f"abcdef.{number:016d}"})
            assert (reply.status, reply.obj["authenticated"]) == (200, False)
    assert (await server.get(f"{PATH}/refusals")).obj["items"] == []
    assert b"mooring_refused_guesses_total 0.0" in generate_latest(server.assembly.base.metrics.registry)
    assert "0000000000000007" not in caplog.text


@pytest.mark.parametrize(
    ("body", "told"),
    [
        pytest.param([], "not a JSON object", id="a list"),
        pytest.param({}, "give token, or user and password, or certificate", id="nothing"),
        pytest.param({"user": "a"}, "give token, or user and password", id="a user alone"),
        pytest.param({"token": 5}, "token: give a text", id="a number"),
        pytest.param({"token": ""}, "token: give a text", id="an empty token"),
        pytest.param({"certificate": "x"}, "certificate: the text holds no CERTIFICATE", id="no certificate"),
        pytest.param(
            {"certificate": "-----BEGIN KEY-----\nAA==\n-----END KEY-----\n"},
            "certificate: only CERTIFICATE",
            id="a key",
        ),
        pytest.param(b"{", "unexpected end of JSON input", id="half an object"),
        pytest.param(b'{"token":"' + b"x" * 300_000 + b'"}', "longer than 262144 bytes", id="too much"),
    ],
)
def test_what_cannot_be_explained(body: Any, told: str) -> None:
    @in_server
    async def test(server: Server) -> None:
        reply = await server.call("POST", f"{PATH}/explain", body=body)
        assert (reply.status, reply.obj["kind"]) == (400, "Status")
        assert told in reply.message

    test()


@pytest.mark.parametrize(("method", "path"), [("GET", "explain"), ("POST", "refusals")])
def test_each_path_has_its_method(method: str, path: str) -> None:
    @in_server
    async def test(server: Server) -> None:
        assert (await server.call(method, f"{PATH}/{path}", body={})).status == 405

    test()


@in_server
async def test_a_password_can_be_explained_too(server: Server) -> None:
    told = (await server.post(f"{PATH}/explain", {"user": "jane", "password": "hunter2"})).obj
    assert (told["authenticated"], told["why"]) == (False, "unknown-password")
