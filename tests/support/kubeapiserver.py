"""A real kube-apiserver with its etcd, and a kube-controller-manager, for tests of what runs against any Kubernetes.

Rules kept here: the programs are found on PATH; MOORING_TEST_KUBE_APISERVER names another kube-apiserver, and the
kube-controller-manager beside it is used. Where one is missing, tests are skipped with the reason. Certificates are made by
`mooring certs`, and the processes end with the block.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from mooring.client.cluster import ClusterClient, connect
from mooring.client.kubeconfigfiles import load
from mooring.errors import MooringError
from mooring.pki.keys import generate_key, private_key_pem, public_key_pem
from mooring.trust.kubeconfig import KubeconfigUser
from tests.support.commandline import process
from tests.support.ports import free_port
from tests.support.standalonecontrollers import write_kubeconfig

APISERVER = os.environ.get("MOORING_TEST_KUBE_APISERVER") or shutil.which("kube-apiserver")
CONTROLLER_MANAGER = shutil.which("kube-controller-manager", path=str(Path(APISERVER).parent) if APISERVER else None)
ETCD = shutil.which("etcd")
MISSING = "" if APISERVER and ETCD else "needs kube-apiserver and etcd on PATH, or MOORING_TEST_KUBE_APISERVER"
MISSING_MANAGER = MISSING or ("" if CONTROLLER_MANAGER else "needs kube-controller-manager beside kube-apiserver")
START_SECONDS = 120.0
ISSUER = "--service-account-issuer"
"""A flag that adds up: one of a test replaces that of `running`. Of other flags the last counts."""


@dataclass(frozen=True)
class KubeApiServer:
    """One running API server. The CA signs clients and the serving certificate."""

    directory: Path
    port: int
    store: str = ""
    """URL of etcd."""

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def kubeconfig(self) -> Path:
        return self.directory / "admin.conf"

    @property
    def ca(self) -> tuple[Path, Path]:
        """Certificate and key of the CA."""
        return self.directory / "ca.crt", self.directory / "ca.key"

    def client(self) -> ClusterClient:
        return connect(load(str(self.kubeconfig)))

    def write_kubeconfig(self, name: str, user: KubeconfigUser) -> Path:
        """Write a kubeconfig of `user` and return its path."""
        return write_kubeconfig(self.directory / name, self.url, self.ca[0].read_bytes(), user)


@contextmanager
def running_etcd(directory: Path) -> Iterator[str]:
    """Start an etcd whose data lies in `directory`; yield its URL."""
    assert ETCD is not None
    store, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    command = [
        ETCD, "--data-dir", str(directory / "etcd"), "--listen-client-urls", store, "--advertise-client-urls", store,
        "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}",
        "--unsafe-no-fsync",
    ]  # fmt: skip
    with _process(directory, command):
        yield store


@contextmanager
def running(directory: Path, *flags: str, store: str = "") -> Iterator[KubeApiServer]:
    """Start kube-apiserver with further `flags`, on the etcd at `store` or on one of its own; yield when it is ready.

    A second one in `directory` uses the certificates of the first.
    """
    assert APISERVER is not None
    with ExitStack() as stack:
        store = store or stack.enter_context(running_etcd(directory))
        server = KubeApiServer(directory, free_port(), store)
        if not server.ca[0].exists():
            _make_certificates(server)
        _write_admin_kubeconfig(server)
        command = [
            APISERVER, "--etcd-servers", store, "--secure-port", str(server.port), "--bind-address", "127.0.0.1",
            "--client-ca-file", str(server.ca[0]), "--tls-cert-file", str(directory / "server.crt"),
            "--tls-private-key-file", str(directory / "server.key"), "--authorization-mode", "Node,RBAC",
            *(() if ISSUER in flags else (ISSUER, "https://kubernetes.default.svc")), "--service-cluster-ip-range", "10.96.0.0/16",
            "--service-account-key-file", str(directory / "sa.pub"), "--enable-bootstrap-token-auth",
            "--service-account-signing-key-file", str(directory / "sa.key"), *flags,
        ]  # fmt: skip
        _await_ready(server, stack.enter_context(_process(directory, command)))
        yield server


@contextmanager
def running_controller_manager(server: KubeApiServer, *flags: str) -> Iterator[None]:
    """Run kube-controller-manager with the controllers that kubeadm enables, and the CA as its signer."""
    assert CONTROLLER_MANAGER is not None
    command = [
        CONTROLLER_MANAGER, "--kubeconfig", str(server.kubeconfig),
        "--controllers=*,bootstrap-signer-controller,token-cleaner-controller",
        "--cluster-signing-cert-file", str(server.ca[0]), "--cluster-signing-key-file", str(server.ca[1]), "--leader-elect=false",
        "--root-ca-file", str(server.ca[0]), "--service-account-private-key-file", str(server.directory / "sa.key"),
        "--bind-address", "127.0.0.1", "--secure-port", str(free_port()), "--cert-dir", str(server.directory / "manager"), *flags,
    ]  # fmt: skip
    with _process(server.directory, command):
        yield


@contextmanager
def _process(directory: Path, command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    with (directory / f"{Path(command[0]).name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _make_certificates(server: KubeApiServer) -> None:
    directory = str(server.directory)
    issued_by = ("--ca-cert", str(server.ca[0]), "--ca-key", str(server.ca[1]), "--out-dir", directory)
    for arguments in (
        ("ca", "--out-dir", directory),
        ("server", *issued_by, "--ip", "127.0.0.1,10.96.0.1", "--dns", "localhost,kubernetes"),
        ("client", *issued_by, "--common-name", "admin", "--organization", "system:masters", "--name", "admin"),
    ):
        outcome = process("certs", *arguments)
        assert outcome.code == 0, outcome.err
    key = generate_key()
    (server.directory / "sa.key").write_bytes(private_key_pem(key))
    (server.directory / "sa.pub").write_bytes(public_key_pem(key))


def _write_admin_kubeconfig(server: KubeApiServer) -> None:
    files = (str(server.directory / "admin.crt"), str(server.directory / "admin.key"))
    server.write_kubeconfig("admin.conf", KubeconfigUser("admin", certificate_file=files[0], key_file=files[1]))


def _await_ready(server: KubeApiServer, process: subprocess.Popen[bytes]) -> None:
    async def is_ready() -> bool:
        async with server.client() as client:
            try:
                return await client.read("/readyz") == b"ok"
            except MooringError:
                return False

    deadline = time.monotonic() + START_SECONDS
    while not asyncio.run(is_ready()):
        assert process.poll() is None, "kube-apiserver ended; see its log"
        assert time.monotonic() < deadline, "kube-apiserver did not get ready"
        time.sleep(0.2)
