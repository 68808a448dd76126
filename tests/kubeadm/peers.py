"""Clients of a join, kubeadm and the kubelet, byte for byte.

Source: docs/protocol/discovery-and-join.md, docs/protocol/kubelet-certificates.md, docs/protocol/negotiation.md.

Rules kept here:
* Both use typed clients: bodies are protobuf, answers may be protobuf or JSON, and a refused body is not sent again as JSON.
* Only the administrator presents the administrator's certificate: a peer presents a token, a certificate of its own, or nothing.
"""

from __future__ import annotations

import base64
import http.client
import ssl
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mooring.api.kinds import BY_PLURAL
from mooring.apimachinery.schema import Obj
from mooring.pki.keys import PrivateKey, generate_key, private_key_pem
from mooring.pki.x509.requests import build_request
from tests.support.liveserver import LiveServer
from tests.support.typedclient import PATIENCE, STRATEGIC, TYPED, WATCH_LIST, Client, RefusedError, path_of, typed

KUBELET_CLIENT = "kubernetes.io/kube-apiserver-client-kubelet"
CLIENT_USAGES = ("digital signature", "client auth")
GROUP = "system:bootstrappers:kubeadm:default-node-token"
AGENTS = {
    "kubeadm": "kubeadm/v1.36.2 (linux/amd64) kubernetes/0123456",
    "kubelet": "kubelet/v1.36.2 (linux/amd64) kubernetes/0123456",
}
CSRS = "certificatesigningrequests"


class Peer(Client):
    """A typed client with a token, a certificate (PEM of key and chain), or no credential at all."""

    def __init__(
        self, server: LiveServer, program: str, token: str = "", pem: bytes = b"", verify: bool = True
    ) -> None:
        headers = {"User-Agent": AGENTS[program]}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        super().__init__(server, TYPED, headers)
        self._peer_context = _context(server, pem, verify)

    def _connect(self) -> http.client.HTTPSConnection:
        port = self._server.port
        return http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE, context=self._peer_context)

    def patch_status(self, plural: str, name: str, patch: Obj) -> Obj:
        """Patch a cluster-scoped object's status by strategic merge, as the kubelet does."""
        return self.patch(plural, "", name, patch, STRATEGIC, "status")


def _context(server: LiveServer, pem: bytes, verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=server.ca_pem.decode())
    if not verify:  # discovery begins without trust (2.2 step 1)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if pem:
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "identity.pem"
            file.write_bytes(pem)
            context.load_cert_chain(file)
    return context


def create_or_update(client: Client, plural: str, obj: Obj) -> Obj:
    """Create the object, or replace it without a resourceVersion when it exists, as kubeadm does."""
    kind, namespace = BY_PLURAL[plural], obj["metadata"].get("namespace", "")
    try:
        return client.create(plural, namespace, obj)
    except RefusedError as refused:
        if refused.status["reason"] != "AlreadyExists":
            raise
    assert "resourceVersion" not in obj["metadata"]
    return client.call("PUT", path_of(kind, namespace, obj["metadata"]["name"]), typed(kind, obj))


def encoded(**data: str) -> dict[str, str]:
    """Encode data of a Secret; underscores in names stand for dashes."""
    return {name.replace("_", "-"): base64.b64encode(value.encode()).decode() for name, value in data.items()}


def node_request(node: str, key: PrivateKey, name: str = "", generate: str = "") -> Obj:
    """Return a kubelet's CertificateSigningRequest: without host names, without a lifetime."""
    pem = build_request(key, f"system:node:{node}", ("system:nodes",))
    return {
        "metadata": {"name": name} if name else {"generateName": generate},
        "spec": {
            "request": base64.b64encode(pem).decode(),
            "signerName": KUBELET_CLIENT,
            "usages": list(CLIENT_USAGES),
        },
    }


def await_certificate(client: Client, csr: Obj) -> bytes:
    """Wait as client-go's csr.WaitForCertificate does: a LIST to see that the API answers, then an informer of this name."""
    name, uid = csr["metadata"]["name"], csr["metadata"]["uid"]
    selector = f"metadata.name={name}"
    listed = client.list(CSRS, fieldSelector=selector)
    assert [item["metadata"]["uid"] for item in listed["items"]] == [uid]
    with client.watch(CSRS, **WATCH_LIST, fieldSelector=selector, timeoutSeconds="60") as watching:
        while True:
            event = watching.next()
            if event.type == "BOOKMARK":
                continue
            assert event.type in ("ADDED", "MODIFIED")
            assert event.object["metadata"]["uid"] == uid
            status = event.object.get("status") or {}
            conditions: Sequence[Obj] = status.get("conditions") or ()
            for condition in conditions:
                if condition["type"] in ("Denied", "Failed"):
                    raise RefusedError(0, condition)
            if status.get("certificate") and any(one["type"] == "Approved" for one in conditions):
                return base64.b64decode(status["certificate"])


def kubelet_identity(bootstrap: Client, node: str) -> bytes:
    """Return key and certificate of a node, requested as the certificate manager does."""
    key = generate_key()
    made = bootstrap.create(CSRS, "", node_request(node, key, generate="csr-"))
    return private_key_pem(key) + await_certificate(bootstrap, made)
