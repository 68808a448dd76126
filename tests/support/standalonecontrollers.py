"""`mooring controllers` as processes against an API server, with exactly the rights that its manifests print.

Rules kept here: the same for a Mooring server and for kube-apiserver; kinds of the manifests that a server does not serve are
left out by its test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.controllers.standalonetable import NAME, STANDALONE, Installation, manifests, watched_kinds
from mooring.controlplane.lifecycle import process_identity
from mooring.trust.kubeconfig import Cluster, Kubeconfig, KubeconfigContext, KubeconfigUser
from mooring.trust.kubeconfigtext import format_kubeconfig
from tests.support import forkserver

T = TypeVar("T")
NAMESPACE = "mooring-system"
REQUESTS = "certificatesigningrequests"
PLURALS = {
    "Namespace": "namespaces",
    "ServiceAccount": "serviceaccounts",
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "Role": "roles",
    "RoleBinding": "rolebindings",
}
"""Kinds of the manifests that a Mooring server serves."""


TOGETHER = tuple(name for name in STANDALONE if name != "silent-node-controller")
"""Controllers of one process. The other one follows another ConfigMap, and runs in a process of its own."""


def printed(names: Collection[str] = TOGETHER) -> tuple[Obj, ...]:
    """Return the manifests of these controllers."""
    installation = Installation(controllers=tuple(names), namespace=NAMESPACE, image="unused:1")
    return manifests(installation, watched_kinds(names))


async def account_token(client: ClusterClient) -> str:
    """Return a token of the ServiceAccount of the manifests."""
    request = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": {}, "spec": {}}
    made = await client.create("serviceaccounts", request, NAMESPACE, name=NAME, subresource="token")
    token: str = made["status"]["token"]
    return token


def write_kubeconfig(path: Path, server: str, ca_pem: bytes, user: KubeconfigUser) -> Path:
    """Write a kubeconfig with one cluster and one user; return its path."""
    clusters, contexts = (Cluster("c", server, ca_pem),), (KubeconfigContext("x", "c", user.name),)
    path.write_text(format_kubeconfig(Kubeconfig(clusters, (user,), contexts, "x")))
    return path


@dataclass
class StandaloneProcesses:
    """Processes that run all controllers with one kubeconfig. `connect` gives the administrator's client."""

    kubeconfig: Path
    connect: Callable[[], AbstractAsyncContextManager[ClusterClient]]
    ca: tuple[Path, Path]
    processes: list[forkserver.Process] = field(default_factory=list)

    def start(self, *flags: str) -> forkserver.Process:
        """Start a process; its log is a file beside the kubeconfig."""
        command = (
            "-m", "mooring", "controllers", "--kubeconfig", str(self.kubeconfig),
            f"--controllers={','.join(TOGETHER)}", f"--leader-elect-resource-namespace={NAMESPACE}",
            "--cluster-signing-cert-file", str(self.ca[0]), "--cluster-signing-key-file", str(self.ca[1]), *flags,
        )  # fmt: skip
        with (self.kubeconfig.parent / f"controllers-{len(self.processes)}.log").open("wb") as log:
            process = forkserver.Process(command, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def kill(self) -> None:
        """Kill every process that still runs."""
        for process in self.processes:
            process.kill()
            process.wait()

    @property
    def logs(self) -> str:
        return "\n".join(file.read_text() for file in sorted(self.kubeconfig.parent.glob("controllers-*.log")))

    def run(self, work: Callable[[ClusterClient], Coroutine[Any, Any, T]]) -> T:
        """Run `work` with the administrator's client."""

        async def call() -> T:
            async with self.connect() as client:
                return await work(client)

        return asyncio.run(call())

    def holder(self) -> str:
        """Return the holder of the Lease; "" when there is none."""

        async def read(client: ClusterClient) -> str:
            leases = await client.list("leases", NAMESPACE)
            return next((str(one["spec"].get("holderIdentity", "")) for one in leases.items), "")

        return self.run(read)

    def leads(self, process: forkserver.Process) -> bool:
        return self.holder() == process_identity(process.pid)

    def issued(self) -> set[str]:
        """Return the names of the requests that have a certificate."""

        async def read(client: ClusterClient) -> set[str]:
            requests = (await client.list(REQUESTS)).items
            return {one["metadata"]["name"] for one in requests if (one.get("status") or {}).get("certificate")}

        return self.run(read)
