"""A real kube-apiserver that trusts kubelets by a root of their own (docs/choose-the-signers.md, docs/adr/0057).

Rules kept here: the peer is a kubelet as kube-apiserver meets it: a TLS server that answers the request for a log.
"""

from __future__ import annotations

import asyncio
import http.server
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.errors import MooringError
from tests.support.kubeapiserver import MISSING, KubeApiServer, running
from tests.support.testca import Pair, ThrowawayCA

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=MISSING or "kube-apiserver is here"),
]
LOG = b"a line of the log\n"


class Kubelet(http.server.BaseHTTPRequestHandler):
    """Answers `GET /containerLogs/...`."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(LOG)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def kubelet(pair: Pair, directory: Path, name: str) -> Iterator[int]:
    """Serve on a free port of 127.0.0.1; yield it."""
    certificate, key = pair.write(directory, name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with http.server.HTTPServer(("127.0.0.1", 0), Kubelet) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


async def log_of(client: ClusterClient, name: str, port: int) -> bytes:
    """Make a Node whose kubelet is at `port`, and a Pod on it; return the log of the Pod."""
    node: Obj = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    await client.create("nodes", node)
    await client.patch("nodes", name, {"status": status}, subresource="status")
    container = {"name": "one", "image": "example.com/one"}
    pod: Obj = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": name, "containers": [container], "automountServiceAccountToken": False},
    }
    await client.create("pods", pod)
    return await client.read(f"/api/v1/namespaces/default/pods/{name}/log")


def test_kube_apiserver_takes_a_kubelet_of_that_root_and_no_other(tmp_path: Path) -> None:
    root = ThrowawayCA("kubelets")
    (tmp_path / "kubelets.crt").write_bytes(root.certificate_pem)
    flags = (
        "--kubelet-certificate-authority", str(tmp_path / "kubelets.crt"), "--disable-admission-plugins=ServiceAccount",
        "--kubelet-client-certificate", str(tmp_path / "admin.crt"), "--kubelet-client-key", str(tmp_path / "admin.key"),
        "--kubelet-preferred-address-types=InternalIP",
    )  # fmt: skip

    def judged(server: KubeApiServer, ca: ThrowawayCA, name: str) -> bytes:
        async def ask() -> bytes:
            async with server.client() as client:
                return await log_of(client, name, port)

        with kubelet(ca.server("127.0.0.1", name), tmp_path, name) as port:
            return asyncio.run(ask())

    with running(tmp_path, *flags) as server:
        assert judged(server, root, "own") == LOG
        with pytest.raises(MooringError, match="certificate signed by unknown authority"):
            judged(server, ThrowawayCA("kubernetes"), "other")
