"""Credentials that end while a request waits: for its body, for a seat, for the commit. Nothing is written, and the answer is 401.

Source: docs/adr/0058-credentials-are-judged-at-the-commit.md.
"""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from mooring.api.mooring.certificaterevocation import KIND as REVOCATION
from mooring.api.mooring.certificaterevocation import entry_name
from mooring.authn.custom import CustomAuthenticator
from mooring.authn.k3stoken import K3sTokenAuthenticator
from mooring.authn.oidc.authenticator import JwtIssuer, OidcAuthenticator
from mooring.authn.plugin import NotMine, Offered, Rejected, User
from mooring.authn.verdictcache import VerdictCache
from mooring.clock import rfc3339
from mooring.identity import AUTHENTICATED, MASTERS, NODES, UNAUTHENTICATED
from mooring.pki import pem
from mooring.pki.keys import generate_key, public_key_fingerprint
from mooring.pki.x509.requests import build_request
from mooring.secret import Secret
from mooring.server.authentication.recheck import RENEWED_AFTER, CredentialRecheck
from mooring.server.flowcontrol import FlowControl
from mooring.server.transport.http import Request, Response
from mooring.server.transport.tlsconnection import TlsConnection
from mooring.storage.contract import Storage
from mooring.storage.memory import MemoryStorage
from mooring.trust.k3s.acceptedtokens import AcceptedTokens, digest
from tests.authn.test_oidc import KEY, NEW_KEY, claims, config, published
from tests.authn.test_passwordfile import hashed
from tests.registry.test_commit import Late
from tests.server.test_revocation import revoke, serial_number
from tests.server.test_unreadable import damage, member
from tests.support.http2peer import peer as http2_peer
from tests.support.jwtsigner import public, signed
from tests.support.manualclock import EPOCH, settle
from tests.support.servedroom import served_room
from tests.support.serverroom import Reply, Server, connection, open_server, reply
from tests.support.testca import Pair, ThrowawayCA
from tests.support.tlspeer import PATIENCE, Served
from tests.support.tlspeer import reply as http1_reply
from tests.support.tlspeer import request as http1_request

BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
POD_REQUESTS = "/apis/certificates.k8s.io/v1/namespaces/default/podcertificaterequests"
SECRETS = "/api/v1/namespaces/kube-system/secrets"
GRANT = {
    "metadata": {"name": "backdoor"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "thief"}],
}
EVERYBODY = {
    "metadata": {"name": "everybody"},
    "roleRef": GRANT["roleRef"],
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": AUTHENTICATED}],
}
PROXIES = ThrowawayCA("proxies", EPOCH)
End = Callable[[Server], Awaitable[None]]
Scenario = Callable[[Server, Path], Awaitable["Offer"]]


@dataclass
class Offer:
    """A credential, and how it ends."""

    end: End
    via: TlsConnection = field(default_factory=connection)
    token: str = ""
    headers: tuple[tuple[str, str], ...] = ()


class Unfinished:
    """A request whose body has not arrived."""

    def __init__(self, server: Server, path: str, body: Any, offer: Offer, method: str = "POST") -> None:
        self._arrived = asyncio.Event()
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = [(name.lower().encode(), value.encode()) for name, value in offer.headers]
        sent.append((b"content-type", b"application/json"))
        if offer.token:
            sent.append((b"authorization", b"Bearer " + offer.token.encode()))

        async def receive() -> tuple[bytes, bool]:
            await self._arrived.wait()
            return data, False

        request = Request(method, path, b"", sent, offer.via, receive)
        self.answer = asyncio.ensure_future(server.handle(request))

    def arrive(self) -> None:
        """Let the body arrive."""
        self._arrived.set()

    async def finish(self) -> Reply:
        self.arrive()
        return reply(await self.answer)


async def by_serial_number(server: Server, directory: Path) -> Offer:
    pair = server.ca.client("jane")

    async def end(server: Server) -> None:
        await revoke(server, **serial_number(pair))

    return Offer(end, connection([pair.der]))


async def by_key(server: Server, directory: Path) -> Offer:
    pair = server.ca.client("jane")

    async def end(server: Server) -> None:
        await revoke(server, publicKey=f"sha256:{public_key_fingerprint(pair.key)}")

    return Offer(end, connection([pair.der]))


async def a_node_by_name(server: Server, directory: Path) -> Offer:
    pair = server.ca.client("system:node:n1", NODES)

    async def end(server: Server) -> None:
        await server.clock.advance(600)
        await revoke(server, nodeName="n1")

    return Offer(end, connection([pair.der]))


async def an_expired_certificate(server: Server, directory: Path) -> Offer:
    pair = server.ca.client("jane")

    async def end(server: Server) -> None:
        left = pair.certificate.not_valid_after_utc - server.clock.now()
        await server.clock.advance(left.total_seconds() + 1)

    return Offer(end, connection([pair.der]))


async def behind_a_revoked_impersonator(server: Server, directory: Path) -> Offer:
    pair = server.ca.client("jane", MASTERS)

    async def end(server: Server) -> None:
        await revoke(server, **serial_number(pair))

    return Offer(end, connection([pair.der]), headers=(("Impersonate-User", "boss"), ("Impersonate-Group", MASTERS)))


async def behind_a_revoked_proxy(server: Server, directory: Path) -> Offer:
    pair = PROXIES.client("front")

    async def end(server: Server) -> None:
        await revoke(server, **serial_number(pair))

    return Offer(end, connection([pair.der]), headers=(("X-Remote-User", "jane"),))


async def behind_a_proxy_on_a_crl(server: Server, directory: Path) -> Offer:
    pair = PROXIES.client("front")

    async def end(server: Server) -> None:
        (directory / "proxies.crl").write_bytes(PROXIES.crl(pair))
        await server.files_changed()

    return Offer(end, connection([pair.der]), headers=(("X-Remote-User", "jane"),))


async def a_deleted_bootstrap_token(server: Server, directory: Path) -> Offer:
    token = await server.bootstrap_token()

    async def end(server: Server) -> None:
        assert (await server.call("DELETE", f"{SECRETS}/bootstrap-token-abcdef")).status == 200
        await settle()

    return Offer(end, token=token)


async def an_expired_bootstrap_token(server: Server, directory: Path) -> Offer:
    token = await server.bootstrap_token()

    async def end(server: Server) -> None:
        await server.clock.advance(3601)

    return Offer(end, token=token)


async def issued(server: Server, **spec: Any) -> str:
    await server.create("serviceaccounts", {"metadata": {"name": "robot"}})
    made = await server.post("/api/v1/namespaces/default/serviceaccounts/robot/token", {"spec": spec})
    assert made.status == 201, made.text
    return str(made.obj["status"]["token"])


async def a_deleted_service_account(server: Server, directory: Path) -> Offer:
    token = await issued(server)

    async def end(server: Server) -> None:
        assert (await server.call("DELETE", "/api/v1/namespaces/default/serviceaccounts/robot")).status == 200
        await settle()

    return Offer(end, token=token)


async def a_deleted_secret_of_a_token(server: Server, directory: Path) -> Offer:
    bound = await server.create("secrets", {"metadata": {"name": "holder"}, "type": "Opaque"})
    reference = {"kind": "Secret", "apiVersion": "v1", "name": "holder", "uid": bound.obj["metadata"]["uid"]}
    token = await issued(server, boundObjectRef=reference)

    async def end(server: Server) -> None:
        assert (await server.call("DELETE", "/api/v1/namespaces/default/secrets/holder")).status == 200
        await settle()

    return Offer(end, token=token)


async def an_expired_service_account_token(server: Server, directory: Path) -> Offer:
    token = await issued(server, expirationSeconds=600)

    async def end(server: Server) -> None:
        await server.clock.advance(661)

    return Offer(end, token=token)


async def a_token_that_left_its_file(server: Server, directory: Path) -> Offer:
    async def end(server: Server) -> None:
        write(directory / "tokens.csv", "tok-2,joe,43\n")
        await server.files_changed()

    return Offer(end, token="tok-1")


async def a_token_that_is_of_another_user_now(server: Server, directory: Path) -> Offer:
    async def end(server: Server) -> None:
        write(directory / "tokens.csv", "tok-1,joe,43\n")
        await server.files_changed()

    return Offer(end, token="tok-1")


async def a_password_that_left_its_file(server: Server, directory: Path) -> Offer:
    async def end(server: Server) -> None:
        write(directory / "passwords.csv", "other,jane,42\n")
        await server.files_changed()

    basic = base64.b64encode(b"jane:secret").decode()
    return Offer(end, headers=(("Authorization", f"Basic {basic}"),))


JANES = base64.b64encode(b"jane:secret").decode()


def a_hashed_password_that(was: str, becomes: str) -> Scenario:
    # another hash stays in the file

    async def scenario(server: Server, directory: Path) -> Offer:
        other = f"{hashed('other')},joe,43\n"
        write(directory / "passwords.csv", f"{hashed('secret')},jane,42\n{other}")
        await server.files_changed()
        headers = (("Authorization", f"Basic {JANES}"),)
        assert (await server.get("/api", via=connection(), headers=headers)).status == 200

        async def end(server: Server) -> None:
            write(directory / "passwords.csv", becomes + other)
            await server.files_changed()

        return Offer(end, headers=headers)

    scenario.__name__ = f"a_hashed_password_that_{was}"
    return scenario


async def an_id_token_whose_key_was_withdrawn(server: Server, directory: Path) -> Offer:
    issuer = JwtIssuer(config(), "oidc/1", server.assembly.http.open_watches._changed.set)
    issuer.learn(published(), server.clock.now())
    provider = OidcAuthenticator()
    provider.replace([issuer])
    server.pipeline._authenticators = (*server.pipeline._authenticators, provider)
    token = signed(claims(exp=(server.clock.now() + timedelta(hours=1)).timestamp()), KEY)

    async def end(server: Server) -> None:
        issuer.learn(published(public(NEW_KEY)), server.clock.now())

    return Offer(end, token=token)


def write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o600)


ENDS = (
    by_serial_number,
    by_key,
    a_node_by_name,
    an_expired_certificate,
    behind_a_revoked_impersonator,
    behind_a_revoked_proxy,
    behind_a_proxy_on_a_crl,
    a_deleted_bootstrap_token,
    an_expired_bootstrap_token,
    a_deleted_service_account,
    a_deleted_secret_of_a_token,
    an_expired_service_account_token,
    a_token_that_left_its_file,
    a_token_that_is_of_another_user_now,
    a_password_that_left_its_file,
    a_hashed_password_that("left_its_file", ""),
    a_hashed_password_that("was_changed", f"{hashed('new')},jane,42\n"),
    a_hashed_password_that("got_other_groups", f"{hashed('secret')},jane,42,more\n"),
    an_id_token_whose_key_was_withdrawn,
)


class Stranger:
    """A custom authenticator that knows nobody."""

    async def authenticate(self, offered: Offered) -> NotMine:
        return NotMine()


@asynccontextmanager
async def scene(directory: Path, scenario: Scenario, **flags: Any) -> AsyncIterator[tuple[Server, Offer]]:
    """Run a server that knows credentials of every kind, each with all rights, beside a service that would have to be asked."""
    write(directory / "tokens.csv", "tok-1,jane,42\n")
    write(directory / "passwords.csv", "secret,jane,42\n")
    (directory / "proxies.crt").write_bytes(PROXIES.certificate_pem)
    (directory / "proxies.crl").write_bytes(PROXIES.crl())
    options = {
        "token_auth_file": str(directory / "tokens.csv"),
        "basic_auth_file": str(directory / "passwords.csv"),
        "requestheader_client_ca_file": str(directory / "proxies.crt"),
        "requestheader_username_headers": ("X-Remote-User",),
        "client_crl_file": (str(directory / "proxies.crl"),),
        **flags,
    }
    async with open_server(**options) as server:
        outside = CustomAuthenticator(
            "stranger", Stranger().authenticate, timedelta(seconds=5), VerdictCache(bytes(32), timedelta(0))
        )
        server.pipeline._authenticators = (*server.pipeline._authenticators, outside)
        await server.create("clusterrolebindings", EVERYBODY)
        yield server, await scenario(server, directory)


def refused(answer: Reply) -> tuple[int, str]:
    return answer.status, answer.message


async def has_grant(server: Server) -> bool:
    return (await server.get(f"{BINDINGS}/backdoor")).status == 200


@pytest.mark.parametrize("scenario", ENDS)
def test_a_credential_that_ends_while_the_body_is_awaited_grants_nothing(scenario: Scenario, tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path, scenario) as (server, offer):
            request = Unfinished(server, BINDINGS, GRANT, offer)
            await settle()
            assert not request.answer.done(), "the credential was good"
            await offer.end(server)
            assert refused(await request.finish()) == (401, "Unauthorized")
            assert not await has_grant(server)

    asyncio.run(body())


@pytest.mark.parametrize("scenario", ENDS)
def test_a_credential_that_ends_while_the_request_is_queued_grants_nothing(scenario: Scenario, tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path, scenario) as (server, offer):
            if scenario is behind_a_revoked_impersonator:
                offer.headers = (("Impersonate-User", "boss"),)  # system:masters waits in no queue
            flow = server.pipeline.flow = FlowControl(server.clock, seats=1)
            assert flow.try_enter("busy")
            request = Unfinished(server, BINDINGS, GRANT, offer)
            finished = asyncio.ensure_future(request.finish())
            await settle()
            assert (request.answer.done(), flow.queued) == (False, 1)
            await offer.end(server)
            flow.leave()
            assert refused(await finished) == (401, "Unauthorized")
            assert not await has_grant(server)
            assert flow.free_seats == 1, "the seat was given back"

    asyncio.run(body())


IMPERSONATE = {"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"]}
IMPERSONATE_CONSTRAINED = (
    {"apiGroups": ["authentication.k8s.io"], "resources": ["users"], "verbs": ["impersonate:user-info"]},
    {
        "apiGroups": ["rbac.authorization.k8s.io"],
        "resources": ["clusterrolebindings"],
        "verbs": ["impersonate-on:user-info:create"],
    },
)


@pytest.mark.parametrize("awaited", ["body", "seat"])
@pytest.mark.parametrize("rules", [(IMPERSONATE,), IMPERSONATE_CONSTRAINED], ids=("every-release", "constrained"))
def test_who_may_no_longer_impersonate_after_a_wait_does_nothing(rules: tuple[Any, ...], awaited: str) -> None:
    async def body() -> None:
        async with open_server() as server:
            await server.create("clusterroles", {"metadata": {"name": "deputy"}, "rules": list(rules)})
            for user, role in (("jane", "deputy"), ("boss", "cluster-admin")):
                subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
                reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
                binding = {"roleRef": reference, "subjects": [subject]}
                await server.create("clusterrolebindings", {"metadata": {"name": user}, **binding})
            flow = server.pipeline.flow = FlowControl(server.clock, seats=1)
            offer = Offer(nothing, connection([server.ca.client("jane").der]), headers=(("Impersonate-User", "boss"),))
            before = {**GRANT, "metadata": {"name": "before"}}
            assert (await Unfinished(server, BINDINGS, before, offer).finish()).status == 201
            request = Unfinished(server, BINDINGS, GRANT, offer)
            if awaited == "seat":
                assert flow.try_enter("busy")
                request.arrive()
            await settle()
            assert (request.answer.done(), flow.queued) == (False, int(awaited == "seat"))
            assert (await server.call("DELETE", f"{BINDINGS}/jane")).status == 200
            await settle()
            if awaited == "seat":
                flow.leave()
            answer = await request.finish()
            assert answer.status == 403
            assert 'User "jane" cannot impersonate' in answer.message
            assert not await has_grant(server)
            assert flow.free_seats == 1, "the seat was given back"

    asyncio.run(body())


@pytest.mark.parametrize("scenario", ENDS)
def test_a_credential_that_ends_before_the_commit_grants_nothing(scenario: Scenario, tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path, scenario) as (server, offer):
            begun, goes_on, work = asyncio.Event(), asyncio.Event(), server.registry.long_work.run

            async def run(size: int, user: str, function: Callable[[], Any]) -> Any:
                begun.set()
                await goes_on.wait()
                return await work(size, user, function)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(server.registry.long_work, "run", run)
                request = Unfinished(server, BINDINGS, GRANT, offer)
                finished = asyncio.ensure_future(request.finish())
                await begun.wait()
            await offer.end(server)
            goes_on.set()
            assert refused(await finished) == (401, "Unauthorized")
            assert not await has_grant(server)

    asyncio.run(body())


WRITES_OF_JANE: dict[str, tuple[str, Any, bool]] = {
    "a grant": (BINDINGS, GRANT, True),
    "another object": ("/api/v1/namespaces/default/configmaps", {"metadata": {"name": "made"}}, True),
    "a token": ("/api/v1/namespaces/default/serviceaccounts/made/token", {"spec": {}}, False),
}


@pytest.mark.parametrize("case", WRITES_OF_JANE)
def test_a_right_that_ends_before_the_commit_takes_no_effect(case: str, tmp_path: Path) -> None:
    path, content, is_stored = WRITES_OF_JANE[case]

    async def body() -> None:
        async with scene(tmp_path, by_serial_number) as (server, offer):
            await server.create("serviceaccounts", {"metadata": {"name": "made"}}, namespace="default")
            await settle()
            standing, goes_on, begun = CredentialRecheck, asyncio.Event(), asyncio.Event()
            prepare = standing.prepare

            async def wait(self: CredentialRecheck) -> None:
                begun.set()
                await goes_on.wait()
                await prepare(self)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(standing, "prepare", wait)
                finished = asyncio.ensure_future(Unfinished(server, path, content, offer).finish())
                await begun.wait()
            await server.delete("clusterrolebindings", "everybody")
            await settle()
            goes_on.set()
            assert (await finished).status == 403
            if is_stored:
                assert (await server.get(f"{path}/{content['metadata']['name']}")).status == 404

    asyncio.run(body())


RBAC = "rbac.authorization.k8s.io"
CONFIG_MAP = "/api/v1/namespaces/default/configmaps/owned"
WORK_OF_JANE = [
    {
        "apiGroups": ["certificates.k8s.io"],
        "resources": ["certificatesigningrequests/approval", "certificatesigningrequests/status"],
        "verbs": ["update"],
    },
    {"apiGroups": ["certificates.k8s.io"], "resources": ["podcertificaterequests/status"], "verbs": ["update"]},
    {"apiGroups": ["certificates.k8s.io"], "resources": ["clustertrustbundles"], "verbs": ["create"]},
    {"apiGroups": [RBAC], "resources": ["clusterrolebindings"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["update"]},
]
"""Rights of requests whose admission asks for a further one."""


@dataclass(frozen=True)
class AdmittedWrite:
    """A write, and the right that admission asks for. `change` makes the new object of the stored one."""

    group: str
    resource: str
    verb: str
    method: str
    path: str
    change: Callable[[Any], Any]
    refusal: int = 403

    @property
    def rule(self) -> Any:
        return {"apiGroups": [self.group], "resources": [self.resource], "verbs": [self.verb]}


def with_condition(kind: str) -> Callable[[Any], Any]:
    condition = {"type": kind, "status": "True", "reason": "ByHand", "message": "ok"}
    return lambda obj: {**obj, "status": {"conditions": [condition]}}


def with_owner(obj: Any) -> Any:
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "1"}
    return {**obj, "metadata": {**obj["metadata"], "ownerReferences": [owner]}}


def denied(obj: Any) -> Any:
    condition = {"type": "Denied", "status": "True", "reason": "ByHand", "lastTransitionTime": rfc3339(EPOCH)}
    return {**obj, "status": {"conditions": [condition]}}


def pod_request() -> Any:
    """Return a request for the certificate of a Pod."""
    (block,) = pem.blocks(build_request(generate_key(), "", []))
    named = {f"{kind}{part}": "x" for kind in ("pod", "serviceAccount", "node") for part in ("Name", "UID")}
    spec = {**named, "signerName": "example.com/one", "stubPKCS10Request": base64.b64encode(block.der).decode()}
    return {"metadata": {"name": "fresh"}, "spec": spec}


def bundle(_: Any) -> Any:
    spec = {"signerName": "example.com/one", "trustBundle": PROXIES.certificate_pem.decode()}
    return {"metadata": {"name": "example.com:one:a"}, "spec": spec}


def versions(found: Any) -> set[str]:
    """Return the resource versions of an object, or of the objects of a list."""
    return {one["metadata"]["resourceVersion"] for one in found.get("items", [found])}


CERTIFICATES = "certificates.k8s.io"
ADMITTED: dict[str, AdmittedWrite] = {
    "an approval": AdmittedWrite(
        CERTIFICATES, "signers", "approve", "PUT", f"{CSRS}/fresh/approval", with_condition("Approved")
    ),
    "a denial": AdmittedWrite(
        CERTIFICATES, "signers", "approve", "PUT", f"{CSRS}/fresh/approval", with_condition("Denied")
    ),
    "a failure": AdmittedWrite(
        CERTIFICATES, "signers", "sign", "PUT", f"{CSRS}/fresh/status", with_condition("Failed")
    ),
    "a denial of a Pod's certificate": AdmittedWrite(
        CERTIFICATES, "signers", "sign", "PUT", f"{POD_REQUESTS}/fresh/status", denied, refusal=422
    ),
    "a bundle": AdmittedWrite(
        CERTIFICATES, "signers", "attest", "POST", "/apis/certificates.k8s.io/v1beta1/clustertrustbundles", bundle
    ),
    "a binding": AdmittedWrite(RBAC, "clusterroles", "bind", "POST", BINDINGS, lambda _: GRANT),
    "an owner": AdmittedWrite("", "configmaps", "delete", "PUT", CONFIG_MAP, with_owner),
}


@pytest.mark.parametrize("is_taken", [True, False], ids=["taken away", "kept"])
@pytest.mark.parametrize("case", ADMITTED)
def test_a_right_that_admission_asked_for_is_judged_at_the_commit(case: str, is_taken: bool, tmp_path: Path) -> None:
    write = ADMITTED[case]

    async def body() -> None:
        async with open_server() as server:
            for name, rules in (("work", WORK_OF_JANE), ("further", [write.rule])):
                subject = {"apiGroup": RBAC, "kind": "User", "name": "jane"}
                role = {"apiGroup": RBAC, "kind": "ClusterRole", "name": name}
                await server.create("clusterroles", {"metadata": {"name": name}, "rules": rules})
                binding = {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]}
                await server.create("clusterrolebindings", binding)
            assert (await server.post(CSRS, csr())).status == 201
            assert (await server.post(POD_REQUESTS, pod_request())).status == 201
            for name in ("owned", "other"):
                await server.create("configmaps", {"metadata": {"name": name}})
            target = write.path.removesuffix("/approval").removesuffix("/status")
            before = (await server.get(target)).obj
            offer = Offer(nothing, server.user("jane"))
            goes_on, begun, prepare = asyncio.Event(), asyncio.Event(), CredentialRecheck.prepare

            async def wait(self: CredentialRecheck) -> None:
                begun.set()
                await goes_on.wait()
                await prepare(self)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(CredentialRecheck, "prepare", wait)
                request = Unfinished(server, write.path, write.change(before), offer, write.method)
                finished = asyncio.ensure_future(request.finish())
                for _ in range(5):
                    await settle()
                assert begun.is_set(), (await finished).text
            await server.delete("clusterrolebindings" if is_taken else "configmaps", "further" if is_taken else "other")
            await settle()
            goes_on.set()
            if is_taken:
                assert (await finished).status == write.refusal
                assert versions((await server.get(target)).obj) <= versions(before), "nothing was written"
            else:
                assert (await finished).status in (200, 201)

    asyncio.run(body())


@pytest.mark.parametrize("scenario", ENDS)
def test_a_credential_that_goes_on_counts_after_every_wait(scenario: Scenario, tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path, scenario) as (server, offer):
            request = Unfinished(server, BINDINGS, GRANT, offer)
            await settle()
            await server.clock.advance(30)
            assert (await request.finish()).status == 201

    asyncio.run(body())


REVOKED = (by_serial_number, by_key, a_node_by_name)


@pytest.mark.parametrize("scenario", REVOKED)
def test_a_revoked_key_gets_no_certificate_for_another_key(scenario: Scenario, tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path, scenario) as (server, offer):
            request = Unfinished(server, CSRS, csr(), offer)
            await settle()
            await offer.end(server)
            assert refused(await request.finish()) == (401, "Unauthorized")
            assert (await server.get(f"{CSRS}/fresh")).status == 404

    asyncio.run(body())


def csr() -> Any:
    pem = build_request(generate_key(), "system:node:n1", [NODES])
    return {
        "metadata": {"name": "fresh"},
        "spec": {
            "request": base64.b64encode(pem).decode(),
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            "usages": ["digital signature", "client auth"],
        },
    }


OTHER_DOORS: dict[str, tuple[str, str, Any]] = {
    "a token of a service account": (
        "POST",
        "/api/v1/namespaces/default/serviceaccounts/default/token",
        {"spec": {}},
    ),
    "a login": ("POST", "/mooring/v1/login", {}),
    "a review of a token": ("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": "tok-1"}}),
    "an approval": ("PUT", f"{CSRS}/fresh/approval", {"metadata": {"name": "fresh"}}),
    "a review of a right": (
        "POST",
        "/apis/authorization.k8s.io/v1/subjectaccessreviews",
        {"spec": {"user": "joe", "nonResourceAttributes": {"path": "/", "verb": "get"}}},
    ),
    "a change": ("PUT", f"{BINDINGS}/everybody", {**EVERYBODY, "subjects": GRANT["subjects"]}),
    "a deletion": ("DELETE", f"{BINDINGS}/everybody", {}),
    "a deletion of many": ("DELETE", BINDINGS, {}),
}


@pytest.mark.parametrize("door", OTHER_DOORS)
def test_no_door_takes_a_credential_that_ended_while_the_body_was_awaited(door: str, tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path, by_serial_number) as (server, offer):
            method, path, content = OTHER_DOORS[door]
            await server.create("serviceaccounts", {"metadata": {"name": "default"}})
            request = Unfinished(server, path, content, offer, method)
            await settle()
            await offer.end(server)
            assert refused(await request.finish()) == (401, "Unauthorized")

    asyncio.run(body())


def test_a_credential_that_becomes_unreadable_is_503_and_grants_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path, by_serial_number) as (server, _):
            _, via = await member(server, "n1")
            request = Unfinished(server, BINDINGS, GRANT, Offer(nothing, via))
            await settle()
            await damage(server, "nodeidentities", "n1")
            assert (await request.finish()).status == 503
            assert not await has_grant(server)

    asyncio.run(body())


def test_a_reviewed_token_is_judged_at_the_time_of_its_review(tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path, an_expired_bootstrap_token) as (server, offer):
            path = "/apis/authentication.k8s.io/v1/tokenreviews"
            review = Unfinished(server, path, {"spec": {"token": offer.token}}, Offer(nothing, server.user("jane")))
            await settle()
            await offer.end(server)
            assert (await review.finish()).obj["status"].get("authenticated") is not True

    asyncio.run(body())


ASKING = {
    "/apis/authentication.k8s.io/v1/tokenreviews": {"spec": {"token": "tok-1"}},
    "/debug/authentication/explain": {"token": "tok-1"},
}


@pytest.mark.parametrize("path", ASKING)
@pytest.mark.parametrize("end", ["the credential", "the right"])
def test_who_may_not_ask_any_more_gets_no_answer_to_a_review_that_waited(end: str, path: str, tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path, by_serial_number) as (server, offer):
            begun, goes_on = asyncio.Event(), asyncio.Event()
            stage = server.assembly.trust.authentication.deferred_authentication
            settled = stage.settle

            async def slowly(*how: Any) -> Any:
                answer = await settled(*how)
                begun.set()
                await goes_on.wait()
                return answer

            request = Unfinished(server, path, ASKING[path], offer)
            await settle()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(stage, "settle", slowly)
                finished = asyncio.ensure_future(request.finish())
                await begun.wait()
            if end == "the credential":
                await offer.end(server)
            else:
                await server.delete("clusterrolebindings", "everybody")
                await settle()
            goes_on.set()
            assert (await finished).status == (401 if end == "the credential" else 403)

    asyncio.run(body())


def test_the_operator_sees_why_a_request_ended(tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path, by_serial_number) as (server, offer):
            request = Unfinished(server, BINDINGS, GRANT, offer)
            await settle()
            await offer.end(server)
            answer = await request.finish()
            found = await server.get(f"/debug/authentication/refusals/{answer.headers['audit-id']}")
            assert (found.obj["why"], found.obj["user"]["username"]) == ("certificate-revoked", "jane")

    asyncio.run(body())


PUBLIC: Any = {
    "metadata": {"name": "public"},
    "roleRef": GRANT["roleRef"],
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": UNAUTHENTICATED}],
}


async def anonymous(server: Server, directory: Path) -> Offer:
    async def end(server: Server) -> None:
        assert (await server.call("DELETE", f"{BINDINGS}/public")).status == 200
        await settle()

    await server.create("clusterrolebindings", PUBLIC)
    return Offer(end)


def test_a_request_that_is_refused_after_the_queue_gives_its_seat_back(tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path, anonymous) as (server, offer):
            flow = server.pipeline.flow = FlowControl(server.clock, seats=1)
            assert flow.try_enter("busy")
            waiting = asyncio.ensure_future(server.get(BINDINGS, via=offer.via))
            await settle()
            await offer.end(server)
            flow.leave()
            assert (await waiting).status == 403
            assert flow.free_seats == 1

    asyncio.run(body())


# ── k3s's way ────────────────────────────────────────────────────────────────────────────────────────────────────

KUBELET, SERVER_TOKEN = "/v1-k3s/client-kubelet.crt", "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
AGENT = (("k3s-Node-Name", "n1"), ("k3s-Node-Password", "0123456789abcdef0123456789abcdef"))


async def a_revoked_node(server: Server, directory: Path) -> Offer:
    await server.create("nodes", {"metadata": {"name": "n1"}})
    offer = await a_node_by_name(server, directory)
    return replace(offer, headers=AGENT)


async def a_deleted_token_of_an_agent(server: Server, directory: Path) -> Offer:
    offer = await a_deleted_bootstrap_token(server, directory)
    return replace(offer, headers=AGENT)


async def a_replaced_server_token(server: Server, directory: Path) -> Offer:
    async def end(server: Server) -> None:
        assert server.assembly.http.supervisor is not None
        judge = next(
            one for one in server.assembly.http.supervisor.supervisor.authenticators if one.name == "k3s-token"
        )
        cast(K3sTokenAuthenticator, judge).accepted = AcceptedTokens(digest(Secret(b"another-token-of-the-server")))

    basic = base64.b64encode(f"node:{SERVER_TOKEN}".encode()).decode()
    return Offer(end, headers=(*AGENT, ("Authorization", f"Basic {basic}")))


K3S = (a_revoked_node, a_deleted_token_of_an_agent, a_replaced_server_token)


@pytest.mark.parametrize("waits_for", ["the body", "a seat"])
@pytest.mark.parametrize("scenario", K3S)
def test_a_credential_that_ends_while_an_agent_of_k3s_waits_gets_no_certificate(
    scenario: Scenario, waits_for: str, tmp_path: Path
) -> None:
    async def body() -> None:
        async with scene(tmp_path, scenario, k3s_supervisor=True, server_token=SERVER_TOKEN) as (server, offer):
            flow = server.pipeline.flow = FlowControl(server.clock, seats=1)
            request = Unfinished(server, KUBELET, der(), offer)
            finished = None
            if waits_for == "a seat":
                assert flow.try_enter("busy")
                finished = asyncio.ensure_future(request.finish())
            await settle()
            assert not request.answer.done()
            await offer.end(server)
            if waits_for == "a seat":
                flow.leave()
            assert refused(await (finished or request.finish())) == (401, "not authorized")
            assert (await server.get(CSRS)).obj["items"] == []
            assert flow.free_seats == 1
            assert server.assembly.http.supervisor is not None
            await server.assembly.http.supervisor.passwords.close()

    asyncio.run(body())


def der() -> bytes:
    (block,) = pem.blocks(build_request(generate_key(), "any", []))
    return block.der


# ── verdicts of services outside ─────────────────────────────────────────────────────────────────────────────────


class Directory:
    """A custom authenticator that asks a directory: each time, or as often as its acceptances are remembered."""

    def __init__(self) -> None:
        self.users = {"ticket": "jane"}
        self.calls = 0

    async def authenticate(self, offered: Offered) -> User | Rejected:
        self.calls += 1
        text = (offered.token or offered.credential or Secret(b"")).reveal().decode()
        return User(self.users[text]) if text in self.users else Rejected("unknown")


OUTSIDE = {
    "at once, nothing remembered": (0, 0.0, True, 1),
    "after a moment, nothing remembered": (0, RENEWED_AFTER.total_seconds(), True, 2),
    "at once, but it ended": (0, 0.0, False, 1),
    "after a moment, and it ended": (0, RENEWED_AFTER.total_seconds(), False, 2),
    "within the time that it is remembered": (60, 50.0, False, 1),
    "after the time that it is remembered": (60, 61.0, True, 2),
    "after the time that it is remembered, and it ended": (60, 61.0, False, 2),
}


@pytest.mark.parametrize("case", OUTSIDE)
def test_a_verdict_from_outside_counts_for_as_long_as_it_is_remembered(case: str, tmp_path: Path) -> None:
    remembered, seconds, stays, calls = OUTSIDE[case]

    async def body() -> None:
        directory = Directory()
        async with scene(tmp_path, by_serial_number) as (server, _):
            cache = VerdictCache(bytes(32), timedelta(seconds=remembered))
            outside = CustomAuthenticator("directory", directory.authenticate, timedelta(seconds=5), cache)
            server.pipeline._authenticators = (*server.pipeline._authenticators, outside)
            request = Unfinished(server, BINDINGS, GRANT, Offer(nothing, token="ticket"))
            await settle()
            if not stays:
                directory.users.clear()
            await server.clock.advance(seconds)
            expected = 401 if not stays and calls == 2 else 201
            assert ((await request.finish()).status, directory.calls) == (expected, calls)

    asyncio.run(body())


def test_whom_a_service_outside_knows_goes_on_beside_a_file_that_would_have_to_be_computed(tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path, a_hashed_password_that("stays", "")) as (server, _):
            outside = CustomAuthenticator(
                "directory", Everybody().authenticate, timedelta(seconds=5), VerdictCache(bytes(32), timedelta(hours=1))
            )
            server.pipeline._authenticators = (*server.pipeline._authenticators, outside)
            basic = base64.b64encode(b"ann:secret").decode()
            offer = Offer(nothing, headers=(("Authorization", f"Basic {basic}"),))
            watch = await server.follow(SECRETS + "?watch=1", via=offer.via, headers=offer.headers)
            request = Unfinished(server, BINDINGS, GRANT, offer)
            await settle()
            await server.clock.advance(RENEWED_AFTER.total_seconds() * 3)
            assert ((await request.finish()).status, watch.ended) == (201, False)
            await watch.end()

    asyncio.run(body())


class Everybody:
    async def authenticate(self, offered: Offered) -> User:
        return User(offered.user)


def test_a_credential_for_one_use_is_not_asked_about_again(tmp_path: Path) -> None:
    async def body() -> None:
        directory = Directory()
        async with scene(tmp_path, by_serial_number) as (server, _):
            cache = VerdictCache(bytes(32), timedelta(0))
            outside = CustomAuthenticator(
                "directory", directory.authenticate, timedelta(seconds=5), cache, ("negotiate",)
            )
            server.pipeline._authenticators = (*server.pipeline._authenticators, outside)
            server.pipeline._schemes = {**server.pipeline._schemes, "negotiate": "Negotiate"}
            request = Unfinished(
                server, BINDINGS, GRANT, Offer(nothing, headers=(("Authorization", "Negotiate ticket"),))
            )
            await settle()
            directory.users.clear()
            await server.clock.advance(50)
            assert ((await request.finish()).status, directory.calls) == (201, 1)

    asyncio.run(body())


async def nothing(server: Server) -> None:
    return None


# ── over a socket ────────────────────────────────────────────────────────────────────────────────────────────────

STREAMS = 8


@pytest.mark.parametrize("protocol", ["HTTP/1.1", "HTTP/2"])
def test_unfinished_requests_on_a_connection_end_with_its_key(protocol: str, tmp_path: Path) -> None:
    content = json.dumps(csr()).encode()
    accepted = threading.Semaphore(0)

    async def handle(request: Request) -> Response:
        receive = request._receive

        async def noted() -> tuple[bytes, bool] | None:
            accepted.release()  # the body is awaited, so that the credential was good
            request._receive = receive
            return await receive()

        request._receive = noted
        return await server.handle(request)

    with served_room() as (served, server):
        served.application.handler = handle
        served.run(lambda: server.create("clusterrolebindings", EVERYBODY))
        pair = server.ca.client("system:node:n1", NODES)

        def revoked() -> None:
            for _ in range(1 if protocol == "HTTP/1.1" else STREAMS):
                assert accepted.acquire(timeout=PATIENCE)
            served.run(lambda: revoke(server, publicKey=f"sha256:{public_key_fingerprint(pair.key)}"))

        send = over_http1 if protocol == "HTTP/1.1" else over_http2
        statuses = send(served, pair, content, revoked, tmp_path)
        assert set(statuses) == {401}
        assert served.run(lambda: server.get(CSRS)).obj["items"] == []


def over_http1(served: Served, pair: Pair, content: bytes, revoked: Callable[[], None], directory: Path) -> list[int]:
    with served.client(directory, pair) as plain:
        whole = http1_request(CSRS, "POST", ("Content-Type: application/json",), content)
        plain.sendall(whole[:-10])
        revoked()
        plain.sendall(whole[-10:])
        return [http1_reply(plain)[0]]


def over_http2(served: Served, pair: Pair, content: bytes, revoked: Callable[[], None], directory: Path) -> list[int]:
    """Send the beginning of each body, and the ends once the key is revoked; the streams before the last are then open, too."""
    with http2_peer(served, directory, pair) as client:
        streams = [client.begin(CSRS, "POST", [("content-type", "application/json")]) for _ in range(STREAMS)]
        for stream in streams:
            client.send(stream, content[:-10], end=False)
        revoked()
        for stream in streams:
            client.send(stream, content[-10:])
        return [client.reply(stream).status for stream in streams]


def test_a_read_that_waited_for_newer_views_counts_by_them() -> None:
    lates: list[Late] = []

    def around(storage: MemoryStorage) -> Storage:
        lates.append(Late(storage))
        return cast(Storage, lates[0])

    async def body() -> None:
        async with open_server(around=around) as server:
            pair = server.ca.client("jane", MASTERS)
            via, spec = connection([pair.der]), serial_number(pair)
            assert (await server.get(SECRETS, via=via)).status == 200
            lates[0].open.clear()
            key, of = REVOCATION.key("", entry_name(spec)), REVOCATION.resource
            metadata = {"name": entry_name(spec), "uid": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
            entry = {"apiVersion": of.api_version, "kind": of.kind, "metadata": metadata, "spec": spec}
            await server.storage.create(key, json.dumps(entry).encode())  # as another server does
            reading = asyncio.ensure_future(server.get(SECRETS, via=via))
            await settle()
            assert not reading.done(), "the views lack the revocation"
            lates[0].open.set()
            assert refused(await reading) == (401, "Unauthorized")

    asyncio.run(body())
