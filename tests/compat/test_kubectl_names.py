"""What kubectl takes for the name of the API server: the forms of `test_names_of_verifiers`, by the Go verifier of a real client.

kubectl 1.27 to 1.29 take the wildcard `*` for every name of one label, and all of 1.27 to 1.33 take an IPv4-mapped address for the
IPv4 address. A newer Go takes neither, so that only the bounds are verified here: the recorded forms of the newest Go, and at most
those of an older one.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.kubectl import SECONDS, programs
from tests.pki.test_names_of_verifiers import FORMS, GO, OLDER_GO, Form, Root
from tests.support.ports import free_port

OLDEST = programs()[:1]
"""The laxest one that is installed."""
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"


class FalseServer:
    """A server on loopback that presents one certificate after the other."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", free_port()))
        self.port: int = self._socket.getsockname()[1]
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def present(self, leaf: Path) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(leaf)

    def _serve(self) -> None:
        while True:
            try:
                accepted, _ = self._socket.accept()
            except OSError:
                return
            accepted.settimeout(SECONDS)
            with contextlib.suppress(OSError), self.context.wrap_socket(accepted, server_side=True) as connection:
                connection.recv(1 << 14)
                connection.sendall(ANSWER)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(SECONDS)


@pytest.fixture(scope="module")
def server() -> Iterator[FalseServer]:
    started = FalseServer()
    yield started
    started.close()


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> tuple[Root, Root]:
    """The root of the cluster, and one of the same name and another key."""
    return Root(tmp_path_factory.mktemp("cluster")), Root(tmp_path_factory.mktemp("kubelets"))


def kubectl_takes(server: FalseServer, trusted: Root, leaf: Path, asked: str, home: Path) -> bool:
    server.present(leaf)
    config = home / "config"
    config.write_text("{apiVersion: v1, kind: Config}")
    done = subprocess.run(
        [
            str(OLDEST[0].path),
            f"--server=https://127.0.0.1:{server.port}",
            f"--certificate-authority={trusted.file}",
            f"--tls-server-name={asked}",
            "--token=secret",
            "get",
            "--raw=/",
        ],
        env={"PATH": os.defpath, "HOME": str(home), "KUBECONFIG": str(config), "GOGC": "off"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0 or "x509" in done.stderr, done.stderr
    return done.returncode == 0


@pytest.mark.skipif(not OLDEST, reason="no kubectl is installed on this machine")
def test_kubectl_takes_the_recorded_forms_for_the_server_and_no_other_root(
    server: FalseServer, roots: tuple[Root, Root], tmp_path: Path
) -> None:
    own, other = roots

    def taken(forms: tuple[Form, ...], root: Root) -> set[str]:
        return {form.meaning for form in forms if kubectl_takes(server, own, root.leaves[form], form.asked, tmp_path)}

    found = taken(FORMS, own)
    assert {form.meaning for form in FORMS if GO in form.taken_by} <= found
    assert found <= {form.meaning for form in FORMS if not form.taken_by.isdisjoint({GO, OLDER_GO})}
    assert taken(tuple(form for form in FORMS if form.meaning in found)[:3], other) == set()
