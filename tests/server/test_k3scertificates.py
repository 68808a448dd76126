"""Certificates and node passwords of k3s's agents, by raw requests to a whole server (docs/protocol/k3s.md#certificates)."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from mooring.api.kind import Change
from mooring.api.kinds import BY_PLURAL
from mooring.api.mooring.certificaterevocation import entry_name
from mooring.apimachinery.options import WriteOptions
from mooring.apimachinery.schema import Obj
from mooring.errors import UnauthorizedError
from mooring.identity import MASTERS, NODES, UserInfo
from mooring.pki import pem
from mooring.pki.keys import PrivateKey, generate_key, public_key_fingerprint
from mooring.pki.x509 import bundles, names, profiles
from mooring.pki.x509.bundles import key_identities
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.requests import build_request
from mooring.registry.admission.request import AdmissionRequest
from mooring.secret import Secret
from mooring.server.authentication.recheck import CredentialRecheck
from mooring.server.endpoints.supervisor.certificates import MAX_NODE_IPS, REPEATED_FOR
from mooring.server.endpoints.supervisor.nodepasswords import (
    MAX_PER_NAME,
    MAX_PER_SOURCE,
    RETRY_SECONDS,
    THREADS,
    WRONG_OF_NAME,
    WRONG_OF_NAME_PER_SECOND,
    WRONG_OF_SOURCE,
    NodePasswords,
)
from mooring.server.transport.tlsconnection import TlsConnection
from mooring.trust.bootstraptoken.token import parse_token
from mooring.trust.bootstraptoken.tokensecret import TokenRecord, to_secret
from mooring.trust.k3s import nodepassword
from mooring.trust.k3s.nodepassword import hash_password, new_secret
from tests.server.test_unreadable import damage
from tests.support.loops import until
from tests.support.manualclock import settle
from tests.support.serverroom import Reply, Server, connection, open_server
from tests.support.testca import by_library

SERVER_TOKEN, AGENT_TOKEN = "0f1e2d3c4b5a69788796a5b4c3d2e1f0", "agent-agent-agent-agent"
BOOTSTRAP_TOKEN = "abcdef.0123456789abcdef"
PASSWORD, OTHER_PASSWORD = "0123456789abcdef0123456789abcdef", "f" * 32
KEY = generate_key()
HERE = "198.51.100.7"
SERVING, CLIENT = "/v1-k3s/serving-kubelet.crt", "/v1-k3s/client-kubelet.crt"
PROXY, CONTROLLER = "/v1-k3s/client-kube-proxy.crt", "/v1-k3s/client-k3s-controller.crt"
Case = Callable[[Server], Awaitable[None]]


@pytest.fixture(autouse=True)
def _cheap_scrypt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodepassword, "LN", 4)


def der_of(key: PrivateKey = KEY) -> bytes:
    """Return a request whose every part is hostile: names, groups, usages, and a claim to be a CA."""
    hostile = x509.SubjectAlternativeName(
        [
            x509.DNSName("kubernetes.default.svc"),
            x509.IPAddress(ip_address("10.96.0.1")),
            x509.RFC822Name("a@example.com"),
        ]
    )
    builder = x509.CertificateSigningRequestBuilder(
        names.subject("kubernetes-admin", ("system:masters",)).for_builder()
    )
    for extension in (
        hostile,
        x509.BasicConstraints(ca=True, path_length=None),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING, ExtendedKeyUsageOID.SERVER_AUTH]),
    ):
        builder = builder.add_extension(extension, critical=True)
    return builder.sign(key, SHA256()).public_bytes(Encoding.DER)


@asynccontextmanager
async def controllers_of(server: Server) -> AsyncIterator[None]:
    """Run the controllers of a server, as on the leader."""
    task = asyncio.ensure_future(server.assembly.controllers.elector.run(server.assembly.controllers.reconciler.run))
    await until(lambda: server.assembly.controllers.elector.leading)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def supervised(*, controllers: bool = True, **flags: Any) -> Callable[[Case], Callable[[], None]]:
    """Run an async test with a server that serves the supervisor API, and its controllers."""

    def decorate(test: Case) -> Callable[[], None]:
        def run() -> None:
            async def body() -> None:
                settings = {"k3s_supervisor": True, "server_token": SERVER_TOKEN, "agent_token": AGENT_TOKEN, **flags}
                async with open_server(**settings) as server:
                    assert server.assembly.http.supervisor is not None
                    try:
                        if controllers:
                            async with controllers_of(server):
                                await test(server)
                        else:
                            await test(server)
                    finally:
                        await server.assembly.http.supervisor.passwords.close()

            asyncio.run(body())

        run.__name__ = test.__name__
        return run

    return decorate


def of_node(name: str = "n1", password: str = PASSWORD, ips: str = "") -> dict[str, str]:
    """Return the headers of an agent; empty ones are left out."""
    found = {"k3s-Node-Name": name, "k3s-Node-Password": password, "k3s-Node-IP": ips}
    return {header: value for header, value in found.items() if value}


async def post(
    server: Server,
    path: str,
    *,
    node: dict[str, str] | None = None,
    key: PrivateKey = KEY,
    body: bytes | None = None,
    token: str = "",
    via: TlsConnection | None = None,
    method: str = "POST",
) -> Reply:
    """Send a request of an agent with the agent token, unless it has another token or a certificate."""
    headers = dict(of_node() if node is None else node)
    if not token and (via is None or not via.chain):
        headers["Authorization"] = "Basic " + base64.b64encode(f"node:{AGENT_TOKEN}".encode()).decode()
    return await server.call(
        method,
        path,
        headers=headers.items(),
        token=token,
        via=via or connection(source=HERE),
        body=der_of(key) if body is None else body,
        content_type="",
    )


def agent_from(source: str) -> TlsConnection:
    """Return a connection from another network, on which the agent token is sent."""
    return connection(source=source)


def chain(reply: Reply) -> tuple[Certificate, ...]:
    assert reply.status == 200, reply.text
    return bundles.certificates(reply.body)


def leaf(reply: Reply) -> Certificate:
    return chain(reply)[0]


def node_of(name: str = "n1", **metadata: Any) -> Obj:
    return {"metadata": {"name": name, **metadata}}


def stored(server: Server, plural: str, name: str, namespace: str = "") -> Obj | None:
    return server.registry.views[plural].get(name, namespace)


def password_secret(server: Server, name: str = "n1") -> Obj:
    found = stored(server, "secrets", f"{name}.node-password.k3s", "kube-system")
    assert found is not None
    return found


def requests(server: Server) -> list[Obj]:
    return list(server.registry.views["certificatesigningrequests"].list())


async def token_of(server: Server, text: str = BOOTSTRAP_TOKEN, **limits: str) -> str:
    """Create a bootstrap token as kubeadm and k3s do."""
    token = parse_token(text)
    groups = ("system:bootstrappers:kubeadm:default-node-token",)
    secret = to_secret(TokenRecord(token, usages=("signing", "authentication"), groups=groups))
    named = {f"mooring.dev/{name.replace('_', '-')}": value for name, value in limits.items()}
    secret["metadata"]["annotations"] = {**secret["metadata"].get("annotations", {}), **named}
    await server.create("secrets", secret, namespace="kube-system")
    return text


@supervised()
async def test_each_path_issues_the_names_of_the_server_whatever_the_request_says(server: Server) -> None:
    """A DER request with a hostile subject, hostile names and an organization of administrators."""
    ca, mine = server.ca.certificate, None
    for path, subject, alternatives in (
        (SERVING, "CN=n1,OU=system:node:n1", ("n1", "localhost", "127.0.0.1", HERE, "2001:db8::7")),
        (CLIENT, "CN=system:node:n1,O=system:nodes", ()),
        (PROXY, "CN=system:kube-proxy,OU=system:node:n1", ()),
        (CONTROLLER, "CN=system:k3s-controller,OU=system:node:n1", ()),
    ):
        via = None if path in (SERVING, CLIENT) else mine
        reply = await post(server, path, node=of_node("N1", ips=f"{HERE},2001:DB8::7,{HERE}"), via=via)
        first, *cas = chain(reply)
        if path == CLIENT:
            mine = connection([first.der], source=HERE)
        assert first.subject.rfc4514_string() == subject
        listed = names.alternative_names(first.extensions)
        assert (*listed.dns, *map(str, listed.ips)) == alternatives
        assert first.public_key() == KEY.public_key()
        assert cas == [ca]
        usage = by_library(first).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        expected = "serverAuth" if path == SERVING else "clientAuth"
        assert [one._name for one in usage] == [expected]
        assert not by_library(first).extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        assert b"PRIVATE KEY" not in reply.body


@supervised()
async def test_requests_are_objects_that_say_who_asked_and_why_they_were_approved(server: Server) -> None:
    reply = await post(server, CLIENT, node=of_node(ips=HERE))
    (csr,) = requests(server)
    spec = csr["spec"]
    assert csr["metadata"]["name"].startswith("k3s-kubelet-client-")
    assert csr["metadata"]["annotations"]["mooring.dev/source-address"] == HERE
    assert (spec["username"], spec["groups"]) == ("node", ["k3s:agent", "system:authenticated"])
    assert spec["extra"] == {
        "mooring.io/k3s-credential": ["k3s-token"],
        "mooring.io/k3s-node-name": ["n1"],
        "mooring.io/k3s-node-password": [password_secret(server)["metadata"]["uid"]],
    }
    (condition,) = csr["status"]["conditions"]
    assert (condition["type"], condition["reason"]) == ("Approved", "AutoApprovedSupervisor")
    (record,) = server.registry.views["lineagerecords"].list()
    (entry,) = record["spec"]["entries"]
    assert (entry["node"], entry["serialNumber"]) == ("n1", f"{leaf(reply).serial_number:x}")
    (identity,) = server.registry.views["nodeidentities"].list()
    assert identity["spec"]["nodePasswordUID"] == password_secret(server)["metadata"]["uid"]


@supervised()
async def test_the_same_request_again_makes_no_other_object(server: Server) -> None:
    first = leaf(await post(server, CLIENT))
    assert leaf(await post(server, CLIENT)) == first
    assert len(requests(server)) == 1
    await server.clock.advance(REPEATED_FOR.total_seconds() + 1)
    later = leaf(await post(server, CLIENT))
    assert later.serial_number != first.serial_number
    assert len(requests(server)) == 1
    assert leaf(await post(server, CLIENT, key=generate_key())).public_key() != first.public_key()
    assert len(requests(server)) == 2


@pytest.mark.parametrize("path", [CLIENT, SERVING])
def test_a_revoked_key_gets_neither_a_certificate_nor_the_one_of_before(path: str) -> None:
    @supervised()
    async def test(server: Server) -> None:
        assert (await post(server, path)).status == 200
        spec = {"publicKey": f"sha256:{public_key_fingerprint(KEY)}"}
        await server.create("certificaterevocations", {"metadata": {"name": entry_name(spec)}, "spec": spec})
        answer = await post(server, path)
        assert answer.status == 403
        assert "the public key of the request is revoked" in answer.message

    test()


@pytest.mark.parametrize("with_issuer", [False, True], ids=["any issuer", "its issuer"])
@pytest.mark.parametrize("path", [CLIENT, SERVING])
def test_a_certificate_that_was_revoked_by_its_number_is_not_repeated(path: str, with_issuer: bool) -> None:
    @supervised()
    async def test(server: Server) -> None:
        first, ca = chain(await post(server, path))[:2]
        spec = {"serialNumber": f"{first.serial_number:x}"}
        if with_issuer:
            spec["issuer"] = key_identities(ca)[0]
        await server.create("certificaterevocations", {"metadata": {"name": entry_name(spec)}, "spec": spec})
        answer = await post(server, path)
        assert answer.status == 200, answer.text
        assert leaf(answer).serial_number != first.serial_number

    test()


@pytest.mark.parametrize("path", [CLIENT, SERVING])
def test_a_revoked_node_gets_no_certificate_of_before(path: str) -> None:
    @supervised()
    async def test(server: Server) -> None:
        first = leaf(await post(server, path))
        await by_a_revocation(server)
        await server.clock.advance(2)
        answer = await post(server, path)
        assert answer.status == 200, answer.text
        assert leaf(answer).serial_number != first.serial_number

    test()


@supervised()
async def test_two_of_the_same_request_at_once_are_one(server: Server) -> None:
    replies = await asyncio.gather(*(post(server, CLIENT) for _ in range(3)))
    assert len({leaf(reply).serial_number for reply in replies}) == 1
    assert len(requests(server)) == 1


@pytest.mark.parametrize("path", [SERVING, CLIENT, PROXY, CONTROLLER])
def test_what_is_no_request_for_a_certificate_is_400(path: str) -> None:
    @supervised(controllers=False)
    async def test(server: Server) -> None:
        good = der_of()
        damaged = bytearray(good)
        damaged[-1] ^= 1  # the signature
        bodies = [b"", b"garbage", good[:-1], good + b"\0", bytes(damaged), pem.encode("CERTIFICATE REQUEST", good)]
        for body in bodies:
            reply = await post(server, path, body=body)
            assert (reply.status, b"PRIVATE KEY" in reply.body) == (400, False), reply.text
            assert "DER" in reply.message or "key it carries" in reply.message
        reply = await post(server, path, method="GET", body=b"")
        assert reply.status == 400
        assert "no private keys" in reply.message
        assert (await post(server, path, body=bytes(11 << 10))).status == 400
        assert (await post(server, path, body=bytes(65 << 10))).status == 413
        assert requests(server) == []

    test()


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        pytest.param({"k3s-Node-Password": PASSWORD}, "node name not set", id="no name"),
        pytest.param({"k3s-Node-Name": "n1"}, "node password not set", id="no password"),
        pytest.param(of_node("n_1"), "must be a DNS name", id="a name no Node can have"),
        pytest.param(of_node("n" * 250), "must be a DNS name", id="a name that is too long"),
        pytest.param(of_node(password="x" * 257), "more than 256 bytes", id="a long password"),
        pytest.param(of_node("n\xfc"), "must be a DNS name", id="a name that is not UTF-8"),
        pytest.param(of_node("\xe2\x84\xaate"), "must be a DNS name", id="a name whose lower case alone is ASCII"),
        pytest.param(of_node(ips="192.0.2.1,n1"), "invalid node IP", id="a name as address"),
        pytest.param(of_node(ips="192.0.2.1,"), "invalid node IP", id="an empty address"),
        pytest.param(of_node(ips=",".join(["192.0.2.1"] * (MAX_NODE_IPS + 1))), "more than", id="many addresses"),
    ],
)
def test_headers_of_a_kubelet_are_checked(headers: dict[str, str], message: str) -> None:
    @supervised(controllers=False)
    async def test(server: Server) -> None:
        for path in (SERVING, CLIENT):
            reply = await post(server, path, node=headers)
            assert reply.status == 400
            assert message in reply.message
            assert PASSWORD not in reply.text
        assert list(server.registry.views["secrets"].list("kube-system")) == []

    test()


async def member(server: Server, name: str = "n1", *, key: PrivateKey = KEY, token: str = "") -> TlsConnection:
    """Return a connection with the client certificate of a machine that has just joined."""
    joined = leaf(await post(server, CLIENT, node=of_node(name), key=key, token=token))
    return connection([joined.der], source=HERE)


@supervised()
async def test_kube_proxy_and_controller_need_the_certificate_of_a_machine_and_no_headers(server: Server) -> None:
    mine = await member(server)
    for path in (PROXY, CONTROLLER):
        basic = base64.b64encode(f"node:{AGENT_TOKEN}".encode()).decode()
        both = {"Authorization": f"Basic {basic}"}  # as agents send it
        assert (await post(server, path, node=both, via=mine)).status == 200
        refused = await post(server, path, node={}, key=generate_key())
        assert refused.status == 403
        assert "request the client certificate of the kubelet first" in refused.message
    (identity,) = server.registry.views["nodeidentities"].list()
    assert len(identity["spec"]["companions"]) == 2
    records = server.registry.views["lineagerecords"].list()
    first, *others = [entry for record in records for entry in record["spec"]["entries"]]
    proved = "X509SHA256=" + first["certificate"].removeprefix("sha256:")
    assert [entry["credential"] for entry in others] == [proved, proved], "they descend from the token of the join"
    assert len(requests(server)) == 3


async def answer_of(server: Server, via: TlsConnection) -> int:
    return (await server.call("GET", "/apis", via=via)).status


def with_certificate(reply: Reply) -> TlsConnection:
    return connection([leaf(reply).der], source=HERE)


async def by_the_node(server: Server) -> None:
    await server.create("nodes", node_of())
    await until(lambda: bool(password_secret(server)["metadata"].get("ownerReferences")))
    await server.delete("nodes", "n1")


async def by_a_revocation(server: Server) -> None:
    await server.create("certificaterevocations", {"metadata": {"name": "node-n1"}, "spec": {"nodeName": "n1"}})


async def by_the_record(server: Server) -> None:
    await server.delete("nodeidentities", "n1")


async def by_another_owner(server: Server) -> None:
    await token_of(server, node_name="n1")
    secret = password_secret(server)["metadata"]
    await server.delete("secrets", secret["name"], namespace="kube-system")
    await post(server, CLIENT, node=of_node(password=OTHER_PASSWORD), key=generate_key(), token=BOOTSTRAP_TOKEN)


@pytest.mark.parametrize("end", [by_the_node, by_a_revocation, by_the_record, by_another_owner])
def test_kube_proxy_s_certificate_ends_with_its_machine(end: Callable[[Server], Awaitable[None]]) -> None:
    @supervised()
    async def test(server: Server) -> None:
        mine = await member(server)
        other = await member(server, "n2", key=generate_key())
        bound = with_certificate(await post(server, PROXY, node={}, via=mine))
        beside = with_certificate(await post(server, PROXY, node={}, via=other, key=generate_key()))
        assert [await answer_of(server, one) for one in (bound, beside)] == [200, 200]
        await end(server)
        assert [await answer_of(server, one) for one in (bound, beside)] == [401, 200]

    test()


@supervised()
async def test_a_certificate_from_before_machines_were_named_runs_out_by_itself(server: Server) -> None:
    template = profiles.client(KEY.public_key(), server.clock.now(), "system:kube-proxy")
    older = server.ca.authority.sign(template, server.clock.now(), 77).der
    assert await answer_of(server, connection([older], source=HERE)) == 200


@supervised()
async def test_headers_count_in_any_case(server: Server) -> None:
    headers = {name.lower(): value for name, value in of_node("Node-A").items()}
    assert leaf(await post(server, CLIENT, node=headers)).subject.rfc4514_string().startswith("CN=system:node:node-a")
    assert password_secret(server, "node-a")["type"] == "k3s.cattle.io/node-password"


@supervised()
async def test_the_first_password_of_a_name_is_the_one_that_counts(server: Server) -> None:
    assert (await post(server, SERVING)).status == 200
    secret = password_secret(server)
    assert (secret["immutable"], list(secret["data"])) == (True, ["hash"])
    line = base64.b64decode(secret["data"]["hash"]).decode()
    assert line.startswith("$1:")
    assert f":{nodepassword.LN}:8:1:" in line
    assert (await post(server, CLIENT)).status == 200
    wrong = await post(server, CLIENT, node=of_node(password=OTHER_PASSWORD))
    assert wrong.status == 403
    assert "unable to verify password for node n1" in wrong.message
    assert OTHER_PASSWORD not in wrong.text
    assert line not in wrong.text
    assert password_secret(server) == secret


@supervised()
async def test_passwords_are_compared_byte_by_byte(server: Server) -> None:
    assert (await post(server, CLIENT, node=of_node(password="p\xfc" * 16))).status == 200
    other = await post(server, CLIENT, node=of_node(password="p\xf6" * 16))
    assert "unable to verify password for node n1" in other.message
    assert (await post(server, CLIENT, node=of_node(password="p\xfc" * 16))).status == 200


@supervised()
async def test_of_two_first_passwords_at_once_one_wins(server: Server) -> None:
    replies = await asyncio.gather(
        *(post(server, CLIENT, node=of_node(password=one), key=generate_key()) for one in (PASSWORD, OTHER_PASSWORD))
    )
    assert sorted(reply.status for reply in replies) == [200, 403]


@supervised()
async def test_a_machine_that_proves_its_password_may_have_a_new_key(server: Server) -> None:
    await post(server, CLIENT)
    await server.create("nodes", node_of())
    another = await post(server, CLIENT, key=generate_key())
    assert another.status == 200
    (identity,) = server.registry.views["nodeidentities"].list()
    assert len(identity["spec"]["keys"]) == 2


@supervised()
async def test_a_name_of_a_machine_that_joined_by_kubeadms_way_is_not_given_away(server: Server) -> None:
    await server.create("nodes", node_of())
    for path in (SERVING, CLIENT):
        refused = await post(server, path)
        assert refused.status == 403
        assert "belongs to another machine" in refused.message
    assert requests(server) == []
    assert stored(server, "secrets", "n1.node-password.k3s", "kube-system") is None


def kubeadm_request(name: str = "n1") -> Obj:
    request = build_request(generate_key(), f"system:node:{name}", (NODES,))
    return {
        "metadata": {"name": "by-kubeadm"},
        "spec": {
            "request": base64.b64encode(request).decode(),
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            "usages": ["digital signature", "client auth"],
        },
    }


@supervised()
async def test_a_name_of_a_machine_that_joined_by_k3ss_way_is_not_given_to_kubeadms(server: Server) -> None:
    """Not even between the serving certificate and the client certificate, when the server knows no key yet."""
    assert (await post(server, SERVING)).status == 200
    token = await token_of(server)
    created = await server.post(
        "/apis/certificates.k8s.io/v1/certificatesigningrequests", kubeadm_request(), token=token
    )
    assert created.status == 201
    await until(lambda: bool((stored(server, "certificatesigningrequests", "by-kubeadm") or {}).get("status")))
    (condition,) = (stored(server, "certificatesigningrequests", "by-kubeadm") or {})["status"]["conditions"]
    assert (condition["type"], condition["reason"]) == ("NeedsApproval", "NodeNameTaken")


@supervised()
async def test_a_node_asks_for_itself_and_while_its_node_exists(server: Server) -> None:
    key = generate_key()
    joined = leaf(await post(server, CLIENT, key=key))
    mine = connection([joined.der], source=HERE)
    early = await post(server, CLIENT, via=mine)
    assert (early.status, "valid token" in early.message) == (401, True)
    await server.create("nodes", node_of())
    await until(lambda: bool(password_secret(server)["metadata"].get("ownerReferences")))
    other = await post(server, CLIENT, node=of_node("n2"), via=mine)
    assert (other.status, other.message) == (400, "header node name does not match auth node name")
    for path in (SERVING, CLIENT, PROXY, CONTROLLER):
        assert (await post(server, path, via=mine)).status == 200
    await server.delete("nodes", "n1")
    gone = await post(server, CLIENT, via=mine)
    assert gone.status == 401


@supervised()
async def test_a_member_needs_no_token_and_a_deleted_one_needs_a_valid_one(server: Server) -> None:
    token = await token_of(server)
    joined = leaf(await post(server, CLIENT, token=token))
    await server.create("nodes", node_of())
    await until(lambda: bool(password_secret(server)["metadata"].get("ownerReferences")))
    await server.delete("secrets", "bootstrap-token-abcdef", namespace="kube-system")
    mine = connection([joined.der], source=HERE)
    assert (await post(server, CLIENT, via=mine)).status == 200
    await server.delete("nodes", "n1")
    await until(lambda: stored(server, "secrets", "n1.node-password.k3s", "kube-system") is None)
    assert (await post(server, CLIENT, via=mine)).status == 401
    assert (await post(server, CLIENT, token=token)).status == 401, "the token is gone"
    again = await token_of(server, "fedcba.0123456789abcdef")
    back = await post(server, CLIENT, token=again, node=of_node(password=OTHER_PASSWORD), key=generate_key())
    assert leaf(back).subject.rfc4514_string() == "CN=system:node:n1,O=system:nodes"
    (identity,) = server.registry.views["nodeidentities"].list()
    assert identity["spec"]["token"] == "fedcba"


@supervised()
async def test_a_machine_that_gets_the_name_of_another_by_its_own_password_takes_nothing_over(server: Server) -> None:
    """An agent requests its serving certificate first: the former key ends, and what the former machine was certified for."""
    former = await member(server)
    await server.create("nodes", node_of())
    assert (await server.get("/api/v1/nodes/n1", via=former)).status == 200
    identity = stored(server, "nodeidentities", "n1")
    assert identity is not None
    names = [{"name": "vault.example.com", "notAfter": "2999-01-01T00:00:00Z"}]
    changed = {**identity, "spec": {**identity["spec"], "certifiedNames": names}}
    assert (await server.call("PUT", "/apis/mooring.dev/v1alpha1/nodeidentities/n1", body=changed)).status == 200
    await server.delete("secrets", "n1.node-password.k3s", namespace="kube-system")
    for path in (SERVING, CLIENT):
        asked = asyncio.ensure_future(post(server, path, node=of_node(password=OTHER_PASSWORD), key=generate_key()))
        while not asked.done():
            await server.clock.advance(0.1)  # two checks write the record of the name, and one of them a moment later
            await asyncio.sleep(0.001)
        assert (await asked).status == 200, (await asked).text
    identity = stored(server, "nodeidentities", "n1")
    assert identity is not None
    assert [one["name"] for one in identity["spec"]["certifiedNames"]] == ["n1"]
    assert (await server.get("/api/v1/nodes/n1", via=former)).status == 401


@supervised()
async def test_a_join_counts_once_for_a_token(server: Server) -> None:
    token = await token_of(server, max_joins="1", node_name="n*")
    for path in (SERVING, CLIENT):
        assert (await post(server, path, token=token, key=generate_key())).status == 200
    mine = await member(server, key=generate_key(), token=token)
    for path in (PROXY, CONTROLLER):
        assert (await post(server, path, via=mine, key=generate_key())).status == 200
    second = await post(server, CLIENT, token=token, node=of_node("n2"), key=generate_key())
    assert second.status == 403
    assert "was for 1 machine" in second.message
    other_name = await post(server, CLIENT, token=token, node=of_node("w1"), key=generate_key())
    assert other_name.status == 403
    assert "only for nodes named" in other_name.message
    assert [
        name for name in ("n2", "w1") if stored(server, "secrets", f"{name}.node-password.k3s", "kube-system")
    ] == []
    elsewhere = await post(server, PROXY, token=token, via=connection(source="198.51.100.8"), key=generate_key())
    assert elsewhere.status == 403
    assert "bound to a machine" in elsewhere.message


@supervised()
async def test_an_address_of_another_node_waits_for_a_person_and_an_approval_is_enough(server: Server) -> None:
    other = node_of("n2") | {"status": {"addresses": [{"type": "InternalIP", "address": HERE}]}}
    await server.create("nodes", other)
    asked = of_node(ips=HERE)
    held = await post(server, SERVING, node=asked)
    assert held.status == 503
    assert "Node n2 has it" in held.message
    (csr,) = requests(server)
    await approve(server, csr)
    assert HERE in [
        str(one) for one in names.alternative_names(leaf(await post(server, SERVING, node=asked)).extensions).ips
    ]


async def approve(server: Server, csr: Obj) -> None:
    approved = {"type": "Approved", "status": "True", "reason": "ByHand", "message": ""}
    changed = {**csr, "status": {"conditions": [*csr["status"]["conditions"], approved]}}
    path = f"/apis/certificates.k8s.io/v1/certificatesigningrequests/{csr['metadata']['name']}/approval"
    assert (await server.call("PUT", path, body=changed)).status == 200


def listed(name: str = "n1", **spec: Any) -> Obj:
    return {"metadata": {"name": name}, "spec": {"nodeName": name, **spec}}


@pytest.mark.parametrize("path", [SERVING, CLIENT])
def test_a_stranger_whose_request_waits_for_the_inventory_keeps_no_name_from_the_listed_machine(path: str) -> None:
    @supervised(machine_inventory="required")
    async def test(server: Server) -> None:
        await server.create("authorizedmachines", listed(allowedCIDRs=["203.0.113.0/24"]))
        stranger = await post(server, path, node=of_node(password=OTHER_PASSWORD), key=generate_key())
        assert stranger.status == 503
        assert "no authorized machine fits" in stranger.message
        assert list(server.registry.views["secrets"].list("kube-system")) == []
        there = agent_from("203.0.113.1")
        for own in (SERVING, CLIENT):
            assert (await post(server, own, via=there)).status == 200
        stranger = await post(server, path, node=of_node(password=OTHER_PASSWORD), key=generate_key())
        assert stranger.status == 403

    test()


@supervised()
async def test_a_request_that_is_denied_stores_no_password(server: Server) -> None:
    denied = await post(server, SERVING, node=of_node("localhost"))
    assert denied.status == 400
    assert list(server.registry.views["secrets"].list("kube-system")) == []


@supervised()
async def test_a_token_whose_machines_wait_for_a_person_stores_no_password_before(server: Server) -> None:
    await server.delete("clusterrolebindings", "kubeadm:node-autoapprove-bootstrap")
    token = await token_of(server)
    assert (await post(server, CLIENT, token=token)).status == 503
    assert stored(server, "secrets", "n1.node-password.k3s", "kube-system") is None
    assert (await post(server, CLIENT, node=of_node(password=OTHER_PASSWORD), key=generate_key())).status == 200


@supervised(machine_inventory="required")
async def test_a_machine_that_a_person_approved_joins_and_keeps_its_password_afterwards(server: Server) -> None:
    for path in (SERVING, CLIENT):
        assert (await post(server, path)).status == 503
        (csr,) = [one for one in requests(server) if not one["status"].get("certificate")]
        await approve(server, csr)
        reply = await post(server, path)
        assert reply.status == 200
    mine = connection([leaf(reply).der], source=HERE)
    await server.create("nodes", node_of())
    renewed = asyncio.ensure_future(post(server, SERVING, via=mine, key=generate_key()))
    await until_async(lambda: any(one["spec"]["username"] != "node" for one in requests(server)))
    await server.clock.advance(1.0)  # the record of the Node came between
    assert (await renewed).status == 200
    assert password_secret(server)
    stranger = await post(server, CLIENT, node=of_node(password=OTHER_PASSWORD), key=generate_key())
    assert stranger.status == 403


@supervised()
async def test_a_machine_whose_token_requires_approval_joins_once_both_requests_are_approved(server: Server) -> None:
    token = await token_of(server, require_approval="true")
    for path in (SERVING, CLIENT):
        held = await post(server, path, token=token)
        assert held.status == 503
        assert "the bootstrap token abcdef lets no machine in without a person" in held.message
        assert stored(server, "secrets", "n1.node-password.k3s", "kube-system") is None
        (csr,) = [one for one in requests(server) if not one["status"].get("certificate")]
        assert reasons_of(csr) == ["TokenRequiresApproval"]
        await approve(server, csr)
        assert (await post(server, path, token=token)).status == 200
    unreadable = await token_of(server, "fedcba.0123456789abcdef", require_approval="yes")
    assert (await post(server, CLIENT, token=unreadable)).status == 401


@supervised(machine_inventory="required")
async def test_an_approval_that_comes_late_is_fetched_by_the_machine_that_waits(server: Server) -> None:
    assert (await post(server, CLIENT)).status == 503
    await server.clock.advance(REPEATED_FOR.total_seconds() * 60)
    (csr,) = requests(server)
    await approve(server, csr)
    await until(lambda: bool(requests(server)[0]["status"].get("certificate")))
    assert (await post(server, CLIENT)).status == 200


@supervised(machine_inventory="required")
async def test_a_machine_that_waits_joins_once_it_is_listed(server: Server) -> None:
    assert (await post(server, SERVING)).status == 503
    (held,) = requests(server)
    await server.create("authorizedmachines", listed())
    for path in (SERVING, CLIENT):
        assert (await post(server, path)).status == 200
    assert password_secret(server)
    assert held["metadata"]["name"] not in [one["metadata"]["name"] for one in requests(server)], (
        "a proven one is there"
    )


API_ADDRESS = "192.0.2.10"


@supervised()
async def test_a_stranger_that_waits_gets_no_serving_certificate_by_a_grant(server: Server) -> None:
    """The entry is for the machine that has the name, and a request that proves no password has none."""
    stranger, machine = generate_key(), of_node("cp-1", ips=API_ADDRESS)
    waiting = {**machine, "k3s-Node-Password": OTHER_PASSWORD}
    for key, headers in ((stranger, waiting), (KEY, machine)):
        held = await post(server, SERVING, node=headers, key=key)
        assert (held.status, "clients reach the API server there" in held.message) == (503, True)
    await server.create("authorizedmachines", listed("cp-1", servingNames=[API_ADDRESS]))
    await server.clock.advance(31.0)
    await until_async(lambda: [reasons_of(one) for one in requests(server)] == [["NodePasswordMissing"]] * 2)
    assert (await post(server, SERVING, node=machine)).status == 200
    await server.clock.advance(31.0)
    assert (await post(server, SERVING, node=waiting, key=stranger)).status == 403
    assert [reasons_of(one) for one in requests(server) if not one["status"].get("certificate")] == [["NodeNameTaken"]]


@supervised()
async def test_a_serving_certificate_is_given_to_the_machine_that_claims_the_name(server: Server) -> None:
    """The cause for which a request waits goes away, and the request still claims nothing."""
    other = node_of("n2") | {"status": {"addresses": [{"type": "InternalIP", "address": HERE}]}}
    await server.create("nodes", other)
    assert (await post(server, SERVING, node=of_node(ips=HERE))).status == 503
    await server.delete("nodes", "n2")
    await server.clock.advance(31.0)
    await until_async(lambda: [reasons_of(one) for one in requests(server)] == [["NodePasswordMissing"]])
    assert (await post(server, SERVING, node=of_node(ips=HERE))).status == 200
    identity = stored(server, "nodeidentities", "n1")
    assert identity is not None
    assert identity["spec"]["nodePasswordUID"] == password_secret(server)["metadata"]["uid"]


def reasons_of(csr: Obj) -> list[str]:
    """Return the reasons for which a request is held."""
    return [one["reason"] for one in csr.get("status", {}).get("conditions", ()) if one["type"] == "NeedsApproval"]


@supervised()
async def test_a_client_cannot_make_such_a_request_itself(server: Server) -> None:
    request = kubeadm_request()
    request["spec"]["signerName"] = "mooring.io/k3s-kubelet-client"
    request["spec"]["extra"] = {"mooring.io/k3s-credential": ["k3s-token"], "mooring.io/k3s-node-name": ["n1"]}
    path = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
    impersonated = [
        ("Impersonate-User", "node"), ("Impersonate-Group", "k3s:agent"),
        ("Impersonate-Extra-mooring.io%2fk3s-credential", "k3s-token"),
        ("Impersonate-Extra-mooring.io%2fk3s-node-name", "n1"),
    ]  # fmt: skip
    for headers in ([], impersonated):
        refused = await server.post(path, request, headers=headers)
        assert refused.status == 403, "not even an administrator"
        assert "/v1-k3s/" in refused.message or "cannot create" in refused.message


@supervised(controllers=False)
async def test_attributes_of_the_supervisor_come_from_no_user(server: Server) -> None:
    """An identity provider, too, may name any attribute."""
    extra = {"mooring.io/k3s-credential": ("k3s-token",), "mooring.io/k3s-node-name": ("n1",), "scopes": ("a",)}
    jane = UserInfo("jane", groups=(MASTERS,), extra=extra)
    csr = kubeadm_request()
    kind = BY_PLURAL["certificatesigningrequests"]
    await server.registry.writer.create(kind, "", csr, Change(jane, server.clock.now()), WriteOptions())
    (stored_csr,) = requests(server)
    assert stored_csr["spec"]["extra"] == {"scopes": ["a"]}


@supervised(controllers=False)
async def test_a_request_that_nobody_decides_is_answered_in_time(server: Server) -> None:
    """The object stays, so that the answer is there when the client asks again."""
    first = asyncio.ensure_future(post(server, CLIENT))
    await until_async(lambda: bool(requests(server)))
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    async with controllers_of(server):
        assert (await post(server, CLIENT)).status == 200
    assert len(requests(server)) == 1


async def until_async(condition: Callable[[], bool]) -> None:
    """Wait for work in a thread."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


@supervised()
async def test_a_join_that_was_cut_off_after_the_password_goes_on(server: Server) -> None:
    """The Secret is there, and no request: a server was killed between the two writes."""
    await post(server, CLIENT)
    for csr in requests(server):
        await server.delete("certificatesigningrequests", csr["metadata"]["name"])
    identity = stored(server, "nodeidentities", "n1")
    assert identity is not None
    await server.delete("nodeidentities", "n1")
    assert (await post(server, CLIENT)).status == 200


@supervised()
async def test_a_machine_that_became_no_node_keeps_its_name(server: Server) -> None:
    """It may be on its way for longer than ten minutes: a holder of the shared token does not get its name meanwhile."""
    assert (await post(server, CLIENT)).status == 200
    await server.clock.advance(11 * 60.0)
    await server.clock.advance(60.0)
    assert stored(server, "secrets", "n1.node-password.k3s", "kube-system") is not None
    stranger = await post(server, CLIENT, node=of_node(password=OTHER_PASSWORD), key=generate_key())
    assert stranger.status == 403
    await server.delete("nodeidentities", "n1")  # as the refusal says
    await until(lambda: stored(server, "secrets", "n1.node-password.k3s", "kube-system") is None)
    replaced = await post(server, CLIENT, node=of_node(password=OTHER_PASSWORD), key=generate_key())
    assert replaced.status == 200


@supervised()
async def test_a_password_that_obtained_no_client_certificate_is_forgotten_after_ten_minutes(server: Server) -> None:
    assert (await post(server, SERVING)).status == 200
    await server.clock.advance(11 * 60.0)
    await until(lambda: stored(server, "secrets", "n1.node-password.k3s", "kube-system") is None)
    replaced = await post(server, CLIENT, node=of_node(password=OTHER_PASSWORD), key=generate_key())
    assert replaced.status == 200


@supervised()
async def test_a_secret_without_a_hash_refuses_and_says_what_to_do(server: Server) -> None:
    secret = {"metadata": {"name": "n1.node-password.k3s"}, "type": "k3s.cattle.io/node-password"}
    await server.create("secrets", secret, namespace="kube-system")
    refused = await post(server, CLIENT)
    assert refused.status == 403
    assert "delete it" in refused.message


@supervised(controllers=False)
async def test_so_many_passwords_of_one_source_are_verified_at_a_time(server: Server) -> None:
    sent = [asyncio.ensure_future(post(server, SERVING, node=of_node(f"n{one}"))) for one in range(MAX_PER_SOURCE + 1)]
    elsewhere = asyncio.ensure_future(post(server, SERVING, node=of_node("m1"), via=agent_from("203.0.113.1")))
    await until_async(lambda: any(task.done() for task in sent))
    (refused,) = [task.result() for task in sent if task.done()]
    assert refused.status == 429
    assert not elsewhere.done()
    for task in (*sent, elsewhere):
        task.cancel()
    await asyncio.gather(*sent, elsewhere, return_exceptions=True)


@supervised()
async def test_the_second_certificate_of_a_kubelet_waits_for_no_other_password(server: Server) -> None:
    assert (await post(server, SERVING)).status == 200
    assert server.assembly.http.supervisor is not None
    passwords, released = server.assembly.http.supervisor.passwords, threading.Event()
    for _ in range(THREADS):
        passwords._threads.submit(released.wait)
    others = [
        asyncio.ensure_future(post(server, SERVING, node=of_node(f"n{one}"))) for one in range(2, 2 + MAX_PER_SOURCE)
    ]
    try:
        await until_async(lambda: sum(passwords._computing.values()) == MAX_PER_SOURCE)
        wrong = post(server, CLIENT, node=of_node(password=OTHER_PASSWORD))
        replies = await asyncio.gather(post(server, CLIENT), wrong)
        assert [reply.status for reply in replies] == [200, 429]
    finally:
        released.set()
    await asyncio.gather(*others)


@supervised(controllers=False, k3s_node_password_fail_open=True)
async def test_no_password_is_set_for_a_name_whose_record_cannot_be_read(server: Server) -> None:
    """What cannot be read is not a free name."""
    owner = {"publicKey": "sha256:" + "0" * 64, "notAfter": "2030-01-01T00:00:00Z"}
    await server.create("nodeidentities", {"metadata": {"name": "n1"}, "spec": {"keys": [owner]}})
    await damage(server, "nodeidentities", "n1")
    refused = await post(server, SERVING)
    assert refused.status == 503
    assert "cannot be read" in refused.message
    assert list(server.registry.views["secrets"].list("kube-system")) == []


@supervised(controllers=False, k3s_node_password_fail_open=True)
async def test_a_name_whose_password_cannot_be_read_is_not_free(server: Server) -> None:
    """A cluster that was moved from k3s has the passwords of names, and no other record of them."""
    secret = new_secret("n1", hash_password(Secret(OTHER_PASSWORD.encode()), bytes(8)))
    await server.create("secrets", secret, namespace="kube-system")
    assert (await post(server, CLIENT)).status == 403
    key = "/registry/secrets/kube-system/n1.node-password.k3s"
    found = await server.storage.get(key)
    assert found is not None
    await server.storage.update(key, found.value[:-3], expected=found.revision)
    await settle()
    refused = await post(server, CLIENT)
    assert (refused.status, requests(server)) == (503, [])
    assert "cannot be read" in refused.message


@supervised()
async def test_no_password_is_stored_for_a_credential_that_ends_while_it_is_computed(server: Server) -> None:
    def ended(self: CredentialRecheck) -> None:
        raise UnauthorizedError

    compute = NodePasswords._compute
    with pytest.MonkeyPatch.context() as patch:

        async def and_revoke(self: NodePasswords, *arguments: Any) -> Any:
            patch.setattr(CredentialRecheck, "check", ended)
            return await compute(self, *arguments)

        patch.setattr(NodePasswords, "_compute", and_revoke)
        assert (await post(server, SERVING)).status == 401
    assert list(server.registry.views["secrets"].list("kube-system")) == []


@supervised()
async def test_wrong_passwords_count_as_guesses(server: Server) -> None:
    """By name and source, and by source. Neither other sources nor first passwords wait, and the owner of another name does not."""
    assert (await post(server, SERVING)).status == 200
    wrong = of_node(password=OTHER_PASSWORD)
    answers = [(await post(server, SERVING, node=wrong)).status for _ in range(WRONG_OF_NAME + 3)]
    assert answers == [403] * WRONG_OF_NAME + [429] * 3
    assert (await post(server, SERVING, node=of_node("n2"))).status == 200
    assert (await post(server, SERVING, node=wrong, via=agent_from("203.0.113.1"))).status == 403
    await server.clock.advance(1 / WRONG_OF_NAME_PER_SECOND)
    assert (await post(server, SERVING, node=wrong)).status == 403
    assert (await post(server, SERVING, node=wrong)).status == 429


@supervised()
async def test_wrong_passwords_of_many_names_count_as_guesses(server: Server) -> None:
    names = [f"n{number}" for number in range(1, 2 + WRONG_OF_SOURCE // WRONG_OF_NAME)]
    for name in names:
        assert (await post(server, SERVING, node=of_node(name), key=generate_key())).status == 200
    answers = [
        (await post(server, SERVING, node=of_node(name, OTHER_PASSWORD))).status
        for name in names
        for _ in range(WRONG_OF_NAME)
    ]
    assert answers == [403] * WRONG_OF_SOURCE + [429] * (len(answers) - WRONG_OF_SOURCE)
    assert (await post(server, SERVING, node=of_node("n1"), via=agent_from("203.0.113.1"))).status == 200


@supervised()
async def test_guesses_of_one_name_from_many_sources_hold_two_places(server: Server) -> None:
    """Each is the first wrong password of its source. Joins under other names go on meanwhile."""
    assert (await post(server, SERVING)).status == 200
    assert server.assembly.http.supervisor is not None
    passwords, released = server.assembly.http.supervisor.passwords, threading.Event()
    for _ in range(THREADS):
        passwords._threads.submit(released.wait)
    wrong = of_node(password=OTHER_PASSWORD)
    guesses = [
        asyncio.ensure_future(post(server, SERVING, node=wrong, via=agent_from(f"203.0.113.{host}")))
        for host in range(1, 17)
    ]
    try:
        await until_async(lambda: sum(guess.done() for guess in guesses) == len(guesses) - MAX_PER_NAME)
        assert sum(passwords._comparing.values()) == MAX_PER_NAME
        other = asyncio.ensure_future(post(server, SERVING, node=of_node("n2")))
    finally:
        released.set()
    assert (await other).status == 200
    answers = [reply.status for reply in await asyncio.gather(*guesses)]
    assert (answers.count(403), answers.count(429)) == (MAX_PER_NAME, len(guesses) - MAX_PER_NAME)


class RefusesSecrets:
    """An admission plugin that lets nobody store a Secret, until it is opened."""

    name = "refuses"
    is_open = False

    def admit(self, request: AdmissionRequest) -> None:
        if request.resource == "secrets" and request.operation == "CREATE" and not self.is_open:
            raise request.forbidden("not now")


def with_refused_secrets(server: Server) -> RefusesSecrets:
    plugin = RefusesSecrets()
    writer = server.registry.writer
    writer._admission = (*writer._admission, plugin)
    return plugin


@supervised()
async def test_a_password_that_cannot_be_stored_is_refused(server: Server) -> None:
    with_refused_secrets(server)
    refused = await post(server, CLIENT)
    assert refused.status == 503
    assert "cannot be stored now" in refused.message
    assert requests(server) == []


def events(server: Server) -> list[str]:
    """Return the reasons of the Events about node passwords."""
    reasons = (str(event["reason"]) for event in server.registry.views["events"].list())
    return [reason for reason in reasons if reason.startswith("NodePassword")]


@pytest.mark.parametrize(
    ("password", "reason"),
    [
        pytest.param(PASSWORD, "NodePasswordValidationComplete", id="the same password"),
        pytest.param(OTHER_PASSWORD, "NodePasswordValidationFailed", id="another machine set another one meanwhile"),
    ],
)
def test_it_is_let_through_where_the_operator_says_so_and_verified_later(password: str, reason: str) -> None:
    @supervised(k3s_node_password_fail_open=True, notify_url="http://127.0.0.1:1")
    async def test(server: Server) -> None:
        plugin = with_refused_secrets(server)
        assert (await post(server, CLIENT)).status == 200
        assert (await post(server, CLIENT, key=generate_key())).status == 403, "the name has an owner now"
        await server.clock.advance(RETRY_SECONDS)
        await server.clock.advance(RETRY_SECONDS)
        assert events(server) == []
        plugin.is_open = True
        if password != PASSWORD:
            hashed = hash_password(Secret(password.encode()), bytes(8))
            await server.create("secrets", new_secret("n1", hashed), namespace="kube-system")
        await server.clock.advance(RETRY_SECONDS)
        await until_async(lambda: bool(events(server)))
        assert events(server) == [reason]
        notifier = server.assembly.controllers.notifier
        assert notifier is not None
        assert reason in {json.loads(notice.body)["reason"] for notice in notifier._queue}

    test()
