"""Requests of an agent of k3s, recorded from k3s's own client, byte for byte to a live server.

Rules kept here (docs/protocol/k3s.md#requests-of-an-agent): what the client sent is sent again as it was, with its credential, its
keys and its header lines. Only the cases that say so change a header. The answers are read as k3s reads them.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import json
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from mooring.client.cluster import ClusterClient
from mooring.clock import SystemClock
from mooring.pki.keys import public_key_der
from mooring.secret import Secret
from mooring.trust.bootstraptoken import tokensecret
from mooring.trust.bootstraptoken.token import USAGES, BootstrapToken
from tests.support.liveserver import LiveServer, running_server

VECTORS = Path(__file__).parents[1] / "vectors/k3s/agent.json"
RECORDED: dict[str, Any] = json.loads(VECTORS.read_text())
SERVER_TOKEN = RECORDED["sequences"]["server token"]["credential"]
BOOTSTRAP_TOKEN = RECORDED["sequences"]["bootstrap token"]["credential"]
NODE = RECORDED["node"]
SEQUENCES = ("server token", "bootstrap token")
CLIENT_SECONDS = 10.0
"""Seconds after which k3s gives up a request."""


@dataclass(frozen=True)
class Answer:
    """A response as k3s's client reads it: status, headers, and the body up to the end of the connection."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Sent:
    """A recorded request."""

    head: tuple[str, ...]
    body: bytes
    certificate: bool

    @property
    def path(self) -> str:
        return self.head[0].split(" ")[1]

    @property
    def octets(self) -> bytes:
        return "\r\n".join((*self.head, "", "")).encode() + self.body

    def with_header(self, name: str, value: str | None) -> Sent:
        """Return the request with another value of one header, or without it."""
        changed = [f"{name}: {value}" if line.startswith(f"{name}: ") else line for line in self.head]
        assert changed != [*self.head] or value is None
        return Sent(tuple(line for line in changed if line != f"{name}: None"), self.body, self.certificate)


def recorded(sequence: str) -> list[Sent]:
    requests = RECORDED["sequences"][sequence]["requests"]
    return [
        Sent(tuple(one["head"]), base64.b64decode(one.get("body", "")), one.get("certificate", False))
        for one in requests
    ]


def request_of(sequence: str, path: str) -> Sent:
    return next(one for one in recorded(sequence) if one.path == path)


class Agent:
    """What an agent keeps between its requests: the CAs, the certificates, and where the server is."""

    def __init__(self, server: LiveServer, sequence: str, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.key = RECORDED["sequences"][sequence]["key"]
        self.ca_pem = b""
        self.certificates: dict[str, bytes] = {}

    def send(self, request: Sent) -> Answer:
        """Send the octets of a request over a connection of its own."""
        context = ssl.create_default_context()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_verify_locations(cadata=(self.ca_pem or self.server.ca_pem).decode())
        if request.certificate:
            certificate, key = self.folder / "kubelet.crt", self.folder / "kubelet.key"
            certificate.write_bytes(self.certificates["/v1-k3s/client-kubelet.crt"])
            key.write_text(self.key)
            context.load_cert_chain(certificate, key)
        address = ("127.0.0.1", self.server.port)
        plain = socket.create_connection(address, CLIENT_SECONDS)
        with plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
            connection.sendall(request.octets)
            return read_answer(connection, ends="Connection: close" in request.head)

    def take(self, request: Sent) -> Answer:
        """Send a request that must succeed, and keep what it brings."""
        answer = self.send(request)
        assert answer.status == 200, (request.path, answer)
        CHECKS[request.path](self, request, answer.body)
        return answer


def read_answer(connection: ssl.SSLSocket, *, ends: bool) -> Answer:
    """Read a response. `ends`: the server ends the connection behind it."""
    reader = connection.makefile("rb")
    version, status, _ = reader.readline().split(b" ", 2)
    assert version == b"HTTP/1.1"
    headers = {}
    while line := reader.readline().strip():
        name, _, value = line.decode().partition(":")
        headers[name.lower()] = value.strip()
    assert "content-encoding" not in headers, "none of these answers is long enough to be compressed"
    body = reader.read(int(headers["content-length"]))
    if ends:
        assert headers["connection"] == "close"
        assert reader.read() == b""
    return Answer(int(status), headers, body)


# ── what k3s does with each answer ───────────────────────────────────────────────────────────────────────────────────


def check_cacerts(agent: Agent, request: Sent, body: bytes) -> None:
    """A bundle that verifies the server; the hash of a token covers its bytes."""
    token = (agent.server.data_dir / "server/token").read_text()
    assert token.startswith(f"K10{hashlib.sha256(body).hexdigest()}::server:")
    agent.ca_pem = body


def check_config(agent: Agent, request: Sent, body: bytes) -> None:
    """Fields of k3s's Go struct with the types that it decodes into; other types would be an error of the agent."""
    config = json.loads(body)
    assert config["HTTPSPort"] == config["SupervisorPort"] == agent.server.port, "there is no second port to ask about"
    ipaddress.ip_address(config["ClusterDNS"])
    for one in config["ClusterDNSs"]:
        ipaddress.ip_address(one)
    for field in ("ClusterIPRange", "ServiceIPRange"):
        check_range(config[field])
        assert config[field] in config[f"{field}s"]
    assert isinstance(config["ClusterDomain"], str)
    assert config["ClusterDomain"]
    assert config["FlannelBackend"] == "none", "the agent looks for flannel's programs otherwise"
    assert config["EgressSelectorMode"] in ("agent", "cluster", "pod", "disabled")
    assert config["DisableNPC"] or config["ServiceNodePortRange"]["Size"] > 0, "the agent calls the server too old"
    for field in ("DisableCCM", "DisableKubeProxy", "EmbeddedRegistry", "FlannelIPv6Masq", "FlannelExternalIP"):
        assert isinstance(config.get(field, False), bool)
    assert "Token" not in config
    assert "AgentToken" not in config
    assert SERVER_TOKEN.encode() not in body


def check_range(text: dict[str, str]) -> None:
    """An address range as Go's encoding/json writes net.IPNet."""
    address, mask = ipaddress.ip_address(text["IP"]), base64.b64decode(text["Mask"])
    assert len(mask) == address.max_prefixlen // 8


def check_bundle(agent: Agent, request: Sent, body: bytes) -> None:
    """CAs as PEM."""
    assert x509.load_pem_x509_certificates(body)
    agent.certificates[request.path] = body


def check_certificate(agent: Agent, request: Sent, body: bytes) -> None:
    """A certificate for the key of the request, with its CAs behind it and no key, of the subject that the server chose."""
    assert b"PRIVATE KEY" not in body, "the agent would take it instead of its own"
    leaf, *issuers = x509.load_pem_x509_certificates(body)
    wanted = x509.load_der_x509_csr(request.body)
    assert wanted.subject == x509.Name([]), "k3s asks without a subject"
    assert public_key_der(leaf.public_key()) == public_key_der(wanted.public_key())  # type: ignore[arg-type]  # a P-256 key
    leaf.verify_directly_issued_by(issuers[0])
    bundle = "/v1-k3s/server-ca.crt" if request.path == "/v1-k3s/serving-kubelet.crt" else "/v1-k3s/client-ca.crt"
    assert issuers[0] in x509.load_pem_x509_certificates(agent.certificates[bundle])
    assert leaf.not_valid_before_utc <= datetime.now(UTC) < leaf.not_valid_after_utc
    assert subject(leaf) == SUBJECTS[request.path]
    agent.certificates[request.path] = body


def subject(certificate: x509.Certificate) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Return the subject, the names and the addresses."""
    found = ",".join(sorted(part.rfc4514_string() for part in certificate.subject.rdns))
    try:
        sans = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return found, (), ()
    addresses = tuple(sorted(str(one) for one in sans.get_values_for_type(x509.IPAddress)))
    return found, tuple(sorted(sans.get_values_for_type(x509.DNSName))), addresses


SUBJECTS = {
    "/v1-k3s/serving-kubelet.crt": (
        f"CN={NODE},OU=system:node:{NODE}",
        (NODE, "localhost"),
        ("127.0.0.1", "192.0.2.11", "2001:db8::11"),
    ),
    "/v1-k3s/client-kubelet.crt": (f"CN=system:node:{NODE},O=system:nodes", (), ()),
    "/v1-k3s/client-kube-proxy.crt": (f"CN=system:kube-proxy,OU=system:node:{NODE}", (), ()),
    "/v1-k3s/client-k3s-controller.crt": (f"CN=system:k3s-controller,OU=system:node:{NODE}", (), ()),
}


def check_ready(agent: Agent, request: Sent, body: bytes) -> None:
    assert body == b"ok"


def check_apiservers(agent: Agent, request: Sent, body: bytes) -> None:
    """Addresses for the load balancer."""
    assert json.loads(body) == [agent.server.endpoint]


CHECKS: dict[str, Callable[[Agent, Sent, bytes], None]] = {
    "/cacerts": check_cacerts,
    "/v1-k3s/config": check_config,
    "/v1-k3s/client-ca.crt": check_bundle,
    "/v1-k3s/server-ca.crt": check_bundle,
    **dict.fromkeys(SUBJECTS, check_certificate),
    "/v1-k3s/readyz": check_ready,
    "/v1-k3s/apiservers": check_apiservers,
}


# ── the server ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("k3s")
    (folder / "token").write_text(SERVER_TOKEN)
    flags = ("--k3s-supervisor", "--server-token-file", str(folder / "token"))
    with running_server(folder / "data", *flags) as running:
        running.run(create_bootstrap_token)
        yield running


async def create_bootstrap_token(client: ClusterClient) -> None:
    token_id, _, secret = BOOTSTRAP_TOKEN.partition(".")
    groups = ("system:bootstrappers:k3s:default-node-token",)
    record = tokensecret.new_record(
        BootstrapToken(token_id, Secret(secret)),
        SystemClock().now(),
        ttl=timedelta(hours=1),
        usages=USAGES,
        groups=groups,
    )
    await client.create("secrets", tokensecret.to_secret(record))


@cache
def paths(sequence: str) -> tuple[str, ...]:
    return tuple(one.path for one in recorded(sequence))


def test_the_recorded_sequence_is_that_of_the_reference() -> None:
    for sequence in SEQUENCES:
        assert tuple(dict.fromkeys(paths(sequence))) == tuple(CHECKS)
    first = recorded("server token")[0]
    assert first.octets == (
        b"GET /cacerts HTTP/1.1\r\nHost: 127.0.0.1:26443\r\nUser-Agent: Go-http-client/1.1\r\nAccept-Encoding: gzip\r\n\r\n"
    )
    posted = request_of("bootstrap token", "/v1-k3s/client-kubelet.crt")
    assert f"Authorization: Bearer {BOOTSTRAP_TOKEN}" in posted.head
    assert {"K3s-Node-Name: agent-1", "K3s-Node-Ip: 192.0.2.11,2001:db8::11", "Connection: close"} < {*posted.head}


# ── the sequences ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_an_agent_of_k3s_joins(server: LiveServer, sequence: str, tmp_path: Path) -> None:
    agent = Agent(server, sequence, tmp_path)
    for request in recorded(sequence):
        agent.take(request)


def test_an_agent_that_starts_again_needs_no_token(server: LiveServer, tmp_path: Path) -> None:
    agent = joined(server, "server token", tmp_path, KUBELET)
    with a_node(server):
        for request in recorded("server token"):
            if request.path == "/cacerts":
                agent.take(request)
            else:
                agent.take(with_a_token_of_the_past(request))


def joined(server: LiveServer, sequence: str, folder: Path, until: str = "/v1-k3s/apiservers") -> Agent:
    """Return an agent after the requests of a sequence, up to the first one for the path `until`."""
    agent = Agent(server, sequence, folder)
    for request in recorded(sequence):
        agent.take(request)
        if request.path == until:
            break
    return agent


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Refused:
    says: str
    path: str
    header: tuple[str, str | None]
    status: int
    certificate: bool = False

    def __str__(self) -> str:
        return self.says


CONFIG, KUBELET, PROXY = "/v1-k3s/config", "/v1-k3s/client-kubelet.crt", "/v1-k3s/client-kube-proxy.crt"
SERVING = "/v1-k3s/serving-kubelet.crt"
GARBAGE = ("Authorization", "Basic bm9kZTpnYXJiYWdl")
NOTHING = ("Authorization", None)
REFUSED = (
    Refused("a garbage token gets no configuration", CONFIG, GARBAGE, 401),
    Refused("a garbage token gets no certificate", PROXY, GARBAGE, 401),
    Refused("a bootstrap token that does not exist gets nothing", CONFIG, ("Authorization", "Bearer aaaaaa.0123456789abcdef"), 401),
    Refused("without a credential there is no configuration", CONFIG, NOTHING, 403),
    Refused("without a credential there is no certificate", PROXY, NOTHING, 403),
    Refused("a wrong node password is refused", KUBELET, ("K3s-Node-Password", "ffeeddccbbaa99887766554433221100"), 403),
    Refused("a wrong node password gets no serving certificate", SERVING, ("K3s-Node-Password", "wrong"), 403),
    Refused("without a node name there is no certificate", KUBELET, ("K3s-Node-Name", None), 400),
    Refused("without a node password there is no certificate", SERVING, ("K3s-Node-Password", None), 400),
    Refused("a node asks for no other one", KUBELET, ("K3s-Node-Name", "agent-2"), 400, certificate=True),
)  # fmt: skip


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_what_is_refused(server: LiveServer, case: Refused, tmp_path: Path) -> None:
    needs_node = case.certificate or case.header[0] == "K3s-Node-Password"
    agent = joined(server, "server token", tmp_path, KUBELET if needs_node else "/v1-k3s/server-ca.crt")
    request = request_of("server token", case.path)
    sent = with_a_token_of_the_past(request) if case.certificate else replace(request, certificate=False)
    answer = agent.send(sent.with_header(*case.header))
    assert answer.status == case.status, answer
    status = json.loads(answer.body)
    assert status["kind"] == "Status", "k3s prints its message"
    assert status["code"] == case.status
    assert SERVER_TOKEN not in json.dumps(status)


def test_a_deleted_node_needs_a_valid_token(server: LiveServer, tmp_path: Path) -> None:
    agent = joined(server, "server token", tmp_path, KUBELET)
    request = request_of("server token", KUBELET)
    with a_node(server):
        agent.take(with_a_token_of_the_past(request))
    assert agent.send(with_a_token_of_the_past(request)).status == 401
    assert agent.send(request.with_header(*GARBAGE)).status == 401, "nor does the token alone let it in"
    agent.take(Sent(request.head, request.body, certificate=True))


@contextmanager
def a_node(server: LiveServer) -> Iterator[None]:
    """Create the Node, as the kubelet does, and delete it at the end of the block."""
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
    server.run(lambda client: client.create("nodes", node))
    try:
        yield
    finally:
        server.run(lambda client: client.delete("nodes", NODE))


def with_a_token_of_the_past(request: Sent) -> Sent:
    """Return the request with the certificate of the node, and a token that is valid no more."""
    return Sent(request.head, request.body, certificate=True).with_header(*GARBAGE)
