"""The exchange at the server: who gets what, for how long, and what is written down about it (docs/adr/0020)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from mooring.authn.login import MAX_NAMES
from mooring.pki import pem
from mooring.pki.keys import ALGORITHMS, generate_key
from mooring.pki.x509 import bundles, names
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.requests import build_request
from mooring.server.endpoints.tokens import MAX_REQUEST
from mooring.server.transport.tlsconnection import TlsConnection
from tests.support.manualclock import EPOCH
from tests.support.serverroom import Reply, Server, connection, open_server
from tests.support.testca import ThrowawayCA

PATH = "/mooring/v1/login"
WHOAMI = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
KEY = generate_key()
REQUEST = build_request(KEY, "root", ["system:masters"]).decode()
"""Asks to be somebody else: only the key counts."""
JANE = (("x-remote-user", "jane"), ("x-remote-group", "dev"), ("x-remote-group", "ops"), ("x-remote-uid", "42"))
EXTRA = (("x-remote-extra-scopes", "a"),)


class Room:
    """A server with an authenticating proxy before it."""

    def __init__(self, server: Server, proxy: TlsConnection, audit_log: Path) -> None:
        self.server = server
        self.proxy = proxy
        self.audit_log = audit_log

    async def login(self, body: Any, headers: tuple[tuple[str, str], ...] = JANE, **how: Any) -> Reply:
        return await self.server.post(PATH, body, headers=headers, **{"via": self.proxy, **how})

    async def certificate(self, headers: tuple[tuple[str, str], ...] = JANE, **how: Any) -> Reply:
        return await self.login({"certificateRequest": REQUEST}, headers, **how)

    async def whoami(self, **how: Any) -> Any:
        answer = await self.server.post(REVIEWS, WHOAMI, **how)
        assert answer.status == 201, answer.text
        return answer.obj["status"]["userInfo"]


def in_room(test: Callable[[Room], Awaitable[None]], **options: Any) -> Callable[[Path], None]:
    """Run an async test with a room of its own."""

    def run(tmp_path: Path) -> None:
        async def body() -> None:
            ca = ThrowawayCA("proxies", EPOCH)
            bundle = tmp_path / "proxies.crt"
            bundle.write_bytes(ca.certificate_pem)
            authentication = dict(
                requestheader_client_ca_file=str(bundle),
                requestheader_username_headers=("X-Remote-User",),
                requestheader_group_headers=("X-Remote-Group",),
                requestheader_uid_headers=("X-Remote-Uid",),
                requestheader_extra_headers_prefix=("X-Remote-Extra-",),
                **{"login_from_request_header": True, **options},
            )
            log = tmp_path / "audit.log"
            async with open_server(**authentication, audit_log_path=str(log)) as server:
                await test(Room(server, connection([ca.client("proxy").der]), log))

        asyncio.run(body())

    return run


def in_room_with(**options: Any) -> Callable[[Callable[[Room], Awaitable[None]]], Callable[[Path], None]]:
    return lambda test: in_room(test, **options)


def leaf(answer: Reply) -> Certificate:
    assert answer.status == 201, answer.text
    (found,) = bundles.certificates(answer.obj["certificate"].encode())
    return found


def shown(answer: Reply) -> TlsConnection:
    """A connection with the certificate of a login."""
    return connection([leaf(answer).der])


@in_room
async def test_a_certificate_names_who_was_authenticated_and_not_who_is_in_the_request(room: Room) -> None:
    answer = await room.certificate((*JANE, *EXTRA))
    found = leaf(answer)
    assert names.common_name(found.subject) == "jane"
    assert set(names.organizations(found.subject)) == {"dev", "ops"}
    assert names.values(found.subject, names.UID_ATTRIBUTE) == ("42",)
    assert found.public_key() == KEY.public_key()
    assert found.not_valid_after_utc == EPOCH + timedelta(hours=1)
    assert answer.obj == {
        "kind": "Login",
        "apiVersion": "mooring.dev/v1",
        "user": {"username": "jane", "uid": "42", "groups": ["dev", "ops"], "extra": {"scopes": ["a"]}},
        "expirationTimestamp": "2026-01-02T04:04:05Z",
        "certificate": answer.obj["certificate"],
    }


@in_room
async def test_the_certificate_is_its_user_until_it_expires(room: Room) -> None:
    answer = await room.certificate()
    assert await room.whoami(via=shown(answer)) == {
        "username": "jane",
        "uid": "42",
        "groups": [*names.organizations(leaf(answer).subject), "system:authenticated"],
        "extra": {"authentication.kubernetes.io/credential-id": [f"X509SHA256={leaf(answer).fingerprint}"]},
    }
    await room.server.clock.advance(3601)
    assert (await room.server.post(REVIEWS, WHOAMI, via=shown(answer))).status == 401


@in_room
async def test_the_certificate_is_revoked_as_any_other(room: Room) -> None:
    answer = await room.certificate()
    number = f"{leaf(answer).serial_number:x}"
    entry = {"metadata": {"name": f"serial-{number}"}, "spec": {"serialNumber": number, "reason": "keyCompromise"}}
    await room.server.create("certificaterevocations", entry)
    assert (await room.server.post(REVIEWS, WHOAMI, via=shown(answer))).status == 401


@in_room
async def test_a_token_is_its_user_with_extra_until_it_expires(room: Room) -> None:
    answer = await room.login({}, (*JANE, *EXTRA))
    assert answer.status == 201
    assert answer.obj["expirationTimestamp"] == "2026-01-02T04:04:05Z"
    assert "certificate" not in answer.obj
    user = await room.whoami(token=answer.obj["token"])
    credential_id = user["extra"].pop("authentication.kubernetes.io/credential-id")
    assert credential_id[0].startswith("JTI=")
    assert user == {
        "username": "jane",
        "uid": "42",
        "groups": ["dev", "ops", "system:authenticated"],
        "extra": {"scopes": ["a"]},
    }
    await room.server.clock.advance(3661)
    assert (await room.server.post(REVIEWS, WHOAMI, token=answer.obj["token"])).status == 401


@in_room
async def test_without_a_body_it_is_a_token(room: Room) -> None:
    assert "token" in (await room.login(None)).obj


@in_room_with(login_ttl=timedelta(minutes=1))
async def test_it_lives_as_long_as_the_operator_says(room: Room) -> None:
    assert leaf(await room.certificate()).not_valid_after_utc == EPOCH + timedelta(minutes=1)


@in_room_with(login_ttl=timedelta(0))
async def test_without_a_life_of_logins_there_is_no_such_path(room: Room) -> None:
    assert (await room.certificate()).status == 404


@in_room
async def test_an_hour_does_not_renew_itself(room: Room) -> None:
    certificate, token = await room.certificate(), await room.login({})
    for how in ({"via": shown(certificate)}, {"token": token.obj["token"], "via": None}):
        for body in ({}, {"certificateRequest": REQUEST}):
            again = await room.login(body, (), **how)
            assert (again.status, again.obj["reason"]) == (403, "Forbidden")
            assert "is a credential of a cluster already" in again.message


@in_room
async def test_who_comes_with_what_a_cluster_gives_out_is_refused(room: Room) -> None:
    server = room.server
    await server.create("serviceaccounts", {"metadata": {"name": "robot"}}, namespace="default")
    made = await server.post(
        "/api/v1/namespaces/default/serviceaccounts/robot/token",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
    )
    bootstrap = await server.bootstrap_token()
    for how in (
        {"via": server.user("ann")},
        {"via": server.admin},
        {"via": None, "token": made.obj["status"]["token"]},
        {"via": None, "token": bootstrap},
    ):
        assert (await room.login({}, (), **how)).status == 403
    assert (await room.login({}, (), via=connection())).status == 403  # anonymous: RBAC says so


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        pytest.param((("x-remote-user", "system:admin"),), 'the user "system:admin"', id="a user of the system"),
        pytest.param(
            (*JANE, ("x-remote-group", "system:masters")), 'the group "system:masters"', id="a group of the system"
        ),
    ],
)
@pytest.mark.parametrize("body", [{}, {"certificateRequest": REQUEST}], ids=["token", "certificate"])
def test_a_name_of_the_system_is_refused(
    tmp_path: Path, headers: tuple[tuple[str, str], ...], message: str, body: Any
) -> None:
    async def test(room: Room) -> None:
        answer = await room.login(body, headers)
        assert answer.status == 403
        assert message in answer.message

    in_room(test)(tmp_path)


@in_room
async def test_nobody_logs_in_as_somebody_else(room: Room) -> None:
    await room.server.create(
        "clusterroles",
        {"metadata": {"name": "i"}, "rules": [{"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"]}]},
    )
    binding = {
        "metadata": {"name": "i"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "i"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}],
    }
    await room.server.create("clusterrolebindings", binding)
    answer = await room.login({}, (*JANE, ("impersonate-user", "ann")))
    assert answer.status == 403
    assert "leave out impersonation" in answer.message


@in_room
async def test_an_administrator_can_take_the_login_away(room: Room) -> None:
    await room.server.call("DELETE", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/mooring:login")
    answer = await room.login({})
    assert answer.status == 403
    assert 'cannot post path "/mooring/v1/login"' in answer.message


@pytest.mark.parametrize(
    ("headers", "body", "status", "message"),
    [
        pytest.param(
            (("x-remote-user", "jane"), ("x-remote-group", "g" * MAX_NAMES)),
            {"certificateRequest": REQUEST},
            403,
            "join fewer groups",
            id="groups that fit no certificate",
        ),
        pytest.param(
            (("x-remote-user", "jane"), ("x-remote-group", "g" * 14000)),
            {},
            403,
            "do not fit into 16384 bytes",
            id="groups that fit no token",
        ),
        pytest.param(JANE, {"certificateRequest": "x"}, 400, "certificateRequest: ", id="a request that is none"),
        pytest.param(JANE, {"certificateRequest": "\ud800"}, 400, "", id="half a character"),
        pytest.param(JANE, {"certificateRequest": ""}, 400, "leave it out for a token", id="an empty request"),
        pytest.param(JANE, {"certificateRequest": 1}, 400, "leave it out for a token", id="a request that is no text"),
        pytest.param(JANE, {"lifetime": "1y"}, 400, 'at most "certificateRequest"', id="a field that is unknown"),
        pytest.param(JANE, [1], 400, 'at most "certificateRequest"', id="a list"),
        pytest.param(JANE, b"{", 400, "", id="no JSON"),
        pytest.param(JANE, b" " * (MAX_REQUEST + 1), 400, "longer than 65536 bytes", id="too long a body"),
    ],
)
def test_what_cannot_be_had(
    tmp_path: Path, headers: tuple[tuple[str, str], ...], body: Any, status: int, message: str
) -> None:
    async def test(room: Room) -> None:
        answer = await room.login(body, headers)
        assert answer.status == status
        assert message in answer.message

    in_room(test)(tmp_path)


@in_room
async def test_a_request_that_its_key_did_not_sign_is_refused(room: Room) -> None:
    block = next(pem.blocks(REQUEST.encode()))
    forged = pem.encode(pem.CERTIFICATE_REQUEST, block.der[:-4] + bytes(4)).decode()
    answer = await room.login({"certificateRequest": forged})
    assert answer.status == 400


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_kind_of_key_that_clients_may_have_is_certified(tmp_path: Path, algorithm: str) -> None:
    async def test(room: Room) -> None:
        key = generate_key(algorithm)
        answer = await room.login({"certificateRequest": build_request(key, "").decode()})
        assert leaf(answer).public_key() == key.public_key()
        assert (await room.whoami(via=shown(answer)))["username"] == "jane"

    in_room(test)(tmp_path)


def test_a_server_that_does_not_believe_its_own_ca_offers_tokens_only(tmp_path: Path) -> None:
    clients = tmp_path / "clients.crt"
    clients.write_bytes(ThrowawayCA("clients", EPOCH).certificate_pem)

    async def test(room: Room) -> None:
        answer = await room.certificate()
        assert answer.status == 403
        assert "ask for a token" in answer.message
        assert (await room.login({})).status == 201

    in_room(test, client_ca_file=str(clients))(tmp_path)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_only_post_logs_in(tmp_path: Path, method: str) -> None:
    async def test(room: Room) -> None:
        assert (await room.server.call(method, PATH)).status == 405

    in_room(test)(tmp_path)


def test_what_was_issued_is_in_the_audit_record_and_the_credential_is_not(tmp_path: Path) -> None:
    issued: list[Reply] = []

    async def test(room: Room) -> None:
        issued.append(await room.certificate())
        issued.append(await room.login({}))
        issued.append(await room.login({}, (("x-remote-user", "system:admin"),)))
        text = generate_latest(room.server.assembly.base.metrics.registry).decode()
        for result in ("certificate", "token", "refused"):
            assert f'mooring_logins_total{{result="{result}"}} 1.0' in text

    in_room(test)(tmp_path)
    records = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    ids = [
        record["annotations"].get("authentication.kubernetes.io/issued-credential-id", "")
        for record in records
        if record["requestURI"] == PATH
    ]
    assert ids[0] == f"X509SHA256={leaf(issued[0]).fingerprint}"
    assert ids[1].startswith("JTI=")
    assert ids[2] == ""
    assert issued[1].obj["token"] not in (tmp_path / "audit.log").read_text()


def test_the_operator_can_learn_why_a_login_was_refused(tmp_path: Path) -> None:
    async def test(room: Room) -> None:
        refused = await room.login({}, (("x-remote-user", "system:admin"),))
        kept = await room.server.get(f"/debug/authentication/refusals/{refused.headers['audit-id']}")
        assert kept.obj["why"] == "system-name"

    in_room(test)(tmp_path)


@in_room_with(login_from_request_header=False)
async def test_whom_a_proxy_names_gets_nothing_that_goes_past_it(room: Room) -> None:
    for answer in (await room.certificate(), await room.login({})):
        assert answer.status == 403
        assert "login-from-request-header is false" in answer.message
