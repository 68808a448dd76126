"""Certificates of k3s's agents from a server of two worker processes: the one that answers need not run the controllers."""

from __future__ import annotations

import base64
import http.client
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from tests.support.liveserver import LiveServer, start_server

TOKEN = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
PATHS = ("serving-kubelet", "client-kubelet", "client-kube-proxy", "client-k3s-controller")
DEADLINE = 30.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    extra = ("--apiserver-cert-extra-sans", "api.example.com")
    flags = ("--workers", "2", "--k3s-supervisor", "--server-token", TOKEN, *extra)
    started = start_server(tmp_path_factory.mktemp("k3s") / "data", *flags)
    yield started
    started.stop()


def der(key: ec.EllipticCurvePrivateKey | None = None) -> bytes:
    """Return a request that another implementation makes, with the subject that k3s's agents send: none."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    return x509.CertificateSigningRequestBuilder(x509.Name([])).sign(key, SHA256()).public_bytes(Encoding.DER)


def post(server: LiveServer, path: str, name: str, body: bytes, pair: Path | None = None) -> tuple[int, bytes]:
    """Send a request as an agent does: over a connection of its own, which is given up after ten seconds.

    `pair`: file with the client certificate of the kubelet and its key, once there is one.
    """
    context = ssl.create_default_context(cadata=server.ca_pem.decode())
    if pair is not None and pair.exists():
        context.load_cert_chain(pair)
    caller = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=10, context=context)
    try:
        caller.request("POST", f"/v1-k3s/{path}.crt", body, {
            "Authorization": "Basic " + base64.b64encode(f"node:{TOKEN}".encode()).decode(),
            "k3s-Node-Name": name, "k3s-Node-Password": "a" * 32, "k3s-Node-IP": "127.0.0.1", "Connection": "close",
        })  # fmt: skip
        answer = caller.getresponse()
        return answer.status, answer.read()
    finally:
        caller.close()


def listed(server: LiveServer, plural: str, namespace: str = "") -> list[Obj]:
    async def read(client: ClusterClient) -> list[Obj]:
        return list((await client.list(plural, namespace)).items)

    return server.run(read)


def test_both_workers_give_a_machine_its_four_certificates(server: LiveServer, tmp_path: Path) -> None:
    before = [len(listed(server, plural)) for plural in ("certificatesigningrequests", "nodeidentities")]
    for number in range(3):  # twelve connections, which the kernel spreads over the workers
        key, pair = ec.generate_private_key(ec.SECP256R1()), tmp_path / f"n{number}.pem"
        for path in PATHS:
            status, body = post(server, path, f"n{number}", der(key), pair)
            assert status == 200, body
            if path == "client-kubelet":
                text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
                pair.write_bytes(body + text)
            assert len(x509.load_pem_x509_certificates(body)) == 2
    after = [len(listed(server, plural)) for plural in ("certificatesigningrequests", "nodeidentities")]
    assert [now - then for now, then in zip(after, before, strict=True)] == [12, 3]


@pytest.mark.parametrize(
    "name",
    [
        "kubernetes",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "localhost",
        "api.example.com",
        "127.0.0.1",
    ],
)
def test_a_token_is_no_permission_to_be_the_api_server(server: LiveServer, name: str) -> None:
    status, body = post(server, "serving-kubelet", name, der())
    assert status in (400, 503), body
    assert b"CERTIFICATE" not in body


def test_each_server_publishes_the_names_of_its_certificate(server: LiveServer) -> None:
    found = [one for one in listed(server, "configmaps", "kube-system") if "serving-names" in one["metadata"]["name"]]
    assert [
        set(one["data"]["names"].split()) >= {"api.example.com", "127.0.0.1", "kubernetes.default.svc"} for one in found
    ] == [True]


def test_a_server_that_is_killed_after_the_password_was_stored_goes_on_where_it_was(
    server: LiveServer, tmp_path: Path
) -> None:
    body = der()

    def ask() -> None:
        try:
            post(server, "client-kubelet", "killed", body)
        except (OSError, http.client.HTTPException):
            return  # the server was killed

    asking = threading.Thread(target=ask)
    asking.start()
    deadline = time.monotonic() + DEADLINE
    secret = "killed.node-password.k3s"
    while not any(one["metadata"]["name"] == secret for one in listed(server, "secrets", "kube-system")):
        assert time.monotonic() < deadline
    server.kill()
    asking.join(DEADLINE)
    server.restart()
    status, answer = post(server, "client-kubelet", "killed", body)
    assert status == 200, answer
    named = [one for one in listed(server, "certificatesigningrequests") if "killed" in str(one["spec"].get("extra"))]
    assert len(named) == 1
