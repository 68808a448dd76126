"""A k3s supervisor of a test's own: HTTPS on 127.0.0.1 in a thread, which issues real certificates.

Rules kept here: it judges credentials, node passwords and paths as `docs/protocol/k3s.md` says, records each request, and takes
faults as fields. A client certificate counts when the CA signed it and its node is not in `deleted_nodes`. The API behind it has
Nodes only.
"""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from mooring.pki.keys import PublicKey, accepted_public_key, signature_hash
from mooring.pki.x509 import names
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.names import IPAddress
from mooring.trust.k3s import identity
from mooring.trust.k3s.cahash import ca_hash
from tests.support.httphandler import HttpHandler
from tests.support.testca import Pair, ThrowawayCA, read

PASSWORD = "0123456789abcdef"
BOOTSTRAP = "abcdef.0123456789abcdef"
SUBJECTS = {
    identity.CLIENT_KUBE_PROXY: ("system:kube-proxy", ()),
    identity.CLIENT_CONTROLLER: ("system:k3s-controller", ()),
}


@dataclass(frozen=True)
class Asked:
    """One request as it arrived. `user` is the common name of the client certificate, or empty."""

    method: str
    path: str
    user: str
    authorization: str
    node_name: str
    node_password: str
    node_ip: str
    body: bytes = field(repr=False)

    @property
    def line(self) -> str:
        """The request with its credential: `-` for none, the certificate's name, `basic` or `bearer`."""
        credential = self.user or self.authorization.partition(" ")[0].lower() or "-"
        return f"{self.method} {self.path} {credential}"


Answer = tuple[int, bytes]


@dataclass
class SupervisorPeer:
    """A running supervisor. `override` returns the answer to a request instead, or None."""

    ca: ThrowawayCA
    port: int = 0
    tokens: set[str] = field(default_factory=lambda: {f"node:{PASSWORD}", BOOTSTRAP})
    passwords: dict[str, str] = field(default_factory=dict)
    deleted_nodes: set[str] = field(default_factory=set)
    apiservers: list[str] = field(default_factory=list)
    lifetime: timedelta = timedelta(days=365)
    names_addresses: bool = True
    """False: serving certificates have no address."""
    passed: Callable[[], timedelta] = timedelta
    """Time by which certificates end later; they begin in the past, because TLS here reads the real time."""
    asked: list[Asked] = field(default_factory=list)
    issued: list[Certificate] = field(default_factory=list)
    override: Callable[[Asked], Answer | None] = lambda asked: None

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def token(self) -> str:
        return f"K10{ca_hash(self.ca.certificate_pem)}::server:{PASSWORD}"

    @property
    def bootstrap_token(self) -> str:
        return f"K10{ca_hash(self.ca.certificate_pem)}::{BOOTSTRAP}"

    @property
    def lines(self) -> list[str]:
        return [one.line for one in self.asked]

    def posted(self, path: str) -> list[Asked]:
        return [one for one in self.asked if (one.method, one.path) == ("POST", path)]

    def answer(self, asked: Asked) -> Answer:
        overridden = self.override(asked)
        if overridden is not None:
            return overridden
        if asked.path == identity.CACERTS:
            return 200, self.ca.certificate_pem
        if asked.path.startswith("/api/"):
            return _status(404 if self._is_node(asked) else 401, "no such object")
        if not (self._is_node(asked) or self._has_token(asked)):
            return _status(401 if asked.user or asked.authorization else 403, "not authorized")
        return self._agent_route(asked)

    def _agent_route(self, asked: Asked) -> Answer:
        if asked.method == "POST":
            return self._issue(asked)
        bodies = {
            identity.CONFIG: b'{"HTTPSPort": 6443, "SupervisorPort": 6443, "ClusterDomain": "cluster.local"}',
            identity.CLIENT_CA: self.ca.certificate_pem,
            identity.SERVER_CA: self.ca.certificate_pem,
            identity.APISERVERS: json.dumps(self.apiservers or [f"127.0.0.1:{self.port}"]).encode(),
            identity.READYZ: b"ok",
        }
        return (200, bodies[asked.path]) if asked.path in bodies else _status(404, "not found")

    def _is_node(self, asked: Asked) -> bool:
        name = asked.user.removeprefix("system:node:")
        return asked.user.startswith("system:node:") and name not in self.deleted_nodes

    def _has_token(self, asked: Asked) -> bool:
        kind, _, credential = asked.authorization.partition(" ")
        if kind == "Basic":
            credential = base64.b64decode(credential).decode()
        return credential in self.tokens

    def _issue(self, asked: Asked) -> Answer:
        request = x509.load_der_x509_csr(asked.body)
        assert request.is_signature_valid
        if asked.path not in SUBJECTS:
            if not asked.node_name or not asked.node_password:
                return _status(400, "node name and password are needed")
            if self.passwords.setdefault(asked.node_name, asked.node_password) != asked.node_password:
                return _status(403, f"unable to verify password for node {asked.node_name}: hash does not match")
        serves = asked.path == identity.SERVING_KUBELET
        if asked.path == identity.CLIENT_KUBELET:
            self.deleted_nodes.discard(asked.node_name)
        default = (asked.node_name, ()) if serves else (f"system:node:{asked.node_name}", ("system:nodes",))
        common_name, groups = SUBJECTS.get(asked.path, default)
        addresses = (
            [ip_address(one) for one in asked.node_ip.split(",") if one] if serves and self.names_addresses else []
        )
        issued = self._signed(accepted_public_key(request.public_key()), common_name, groups, addresses, serves=serves)
        self.issued.append(issued)
        return 200, Pair(issued, self.ca.key).certificate_pem + self.ca.certificate_pem

    def _signed(
        self, key: PublicKey, common_name: str, groups: tuple[str, ...], addresses: Sequence[IPAddress], *, serves: bool
    ) -> Certificate:
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if serves else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = x509.CertificateBuilder()
        if addresses:
            builder = builder.add_extension(x509.SubjectAlternativeName(list(map(x509.IPAddress, addresses))), False)
        return read(
            builder.subject_name(names.subject(common_name, groups).for_builder())
            .issuer_name(self.ca.certificate.subject.for_builder())
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self.ca.now - timedelta(minutes=5))
            .not_valid_after(self.ca.now + self.passed() + self.lifetime)
            .add_extension(x509.ExtendedKeyUsage([purpose]), False)
            .sign(self.ca.key, signature_hash(self.ca.key))
        )


def _status(code: int, message: str) -> Answer:
    return code, json.dumps({"kind": "Status", "apiVersion": "v1", "code": code, "message": message}).encode()


@contextlib.contextmanager
def supervisor_peer(ca: ThrowawayCA | None = None, serving: Pair | None = None) -> Iterator[SupervisorPeer]:
    """Serve a supervisor. `serving` is its certificate, by default one of its CA."""
    peer = SupervisorPeer(ca or ThrowawayCA("k3s-server-ca"))

    class Handler(HttpHandler):
        def handle_any(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            asked = Asked(
                self.command,
                self.path,
                _user_of(self.connection),
                self.headers.get("Authorization", ""),
                self.headers.get(identity.NODE_NAME, ""),
                self.headers.get(identity.NODE_PASSWORD, ""),
                self.headers.get(identity.NODE_IP, ""),
                self.rfile.read(length),
            )
            peer.asked.append(asked)
            status, body = peer.answer(asked)
            with contextlib.suppress(OSError):
                self.send_response(status)
                self.send_header("Audit-Id", str(uuid.uuid4()))
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Content-Type", "application/json" if body[:1] in (b"{", b"[") else "text/plain")
                self.end_headers()
                self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815 - the base class looks for these names

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Write no error: tests also close connections early."""

    server = Server(("127.0.0.1", 0), Handler)
    peer.port = server.server_address[1]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_verify_locations(cadata=peer.ca.certificate_pem.decode())
    with TemporaryDirectory() as directory:
        context.load_cert_chain(*(serving or peer.ca.server()).write(Path(directory), "peer"))
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield peer
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _user_of(connection: object) -> str:
    assert isinstance(connection, ssl.SSLSocket)
    connection.do_handshake()
    subject: Any = (connection.getpeercert() or {}).get("subject", ())
    return next((value for rdn in subject for key, value in rdn if key == "commonName"), "")
