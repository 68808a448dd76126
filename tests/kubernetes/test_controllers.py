"""`mooring controllers` beside a real kube-apiserver: its manifests, cluster-info, tokens, certificates, and a dead leader."""

from __future__ import annotations

import asyncio
import base64
import shutil
import signal
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509

from mooring.apimachinery.codec.yaml import encode_yaml
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient, connect
from mooring.clock import SystemClock, rfc3339
from mooring.errors import NotFoundError
from mooring.pki.keys import generate_key
from mooring.secret import Secret
from mooring.trust.bootstraptoken import tokensecret
from mooring.trust.bootstraptoken.token import BootstrapToken
from mooring.trust.kubeconfig import Cluster, KubeconfigUser, Selected
from tests.kubeadm.peers import GROUP, node_request
from tests.support.kubeapiserver import MISSING, KubeApiServer, running
from tests.support.polling import eventually
from tests.support.standalonecontrollers import REQUESTS, StandaloneProcesses, account_token, printed

KUBECTL = shutil.which("kubectl")
pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=MISSING or "kube-apiserver is here"),
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed"),
]
TOKEN = BootstrapToken("abcdef", Secret(b"0123456789abcdef"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeApiServer]:
    with running(tmp_path_factory.mktemp("kubernetes")) as server:
        yield server


def kubectl(server: KubeApiServer, *arguments: str, stdin: bytes = b"") -> str:
    command = (str(KUBECTL), "--kubeconfig", str(server.kubeconfig), *arguments)
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.fixture(scope="module")
def applied(server: KubeApiServer) -> str:
    """Apply what `mooring controllers manifests` prints; return what the server says to it the second time, as a dry run."""
    documents = b"---\n".join(map(encode_yaml, printed()))
    kubectl(server, "apply", "-f", "-", stdin=documents)
    return kubectl(server, "apply", "--dry-run=server", "-f", "-", stdin=documents)


@pytest.fixture
def controllers(server: KubeApiServer, applied: str, tmp_path: Path) -> Iterator[StandaloneProcesses]:
    assert applied

    async def token(client: ClusterClient) -> str:
        return await account_token(client)

    processes = StandaloneProcesses(tmp_path / "account.conf", server.client, server.ca)
    user = KubeconfigUser("account", token=Secret(processes.run(token).encode()))
    processes.kubeconfig.write_bytes(server.write_kubeconfig("account.conf", user).read_bytes())
    yield processes
    processes.kill()


def test_the_manifests_are_applied_as_they_are(applied: str) -> None:
    lines = applied.splitlines()
    assert len(lines) == len(printed())
    assert [line for line in lines if not line.endswith(" unchanged (server dry run)")] == []


def test_an_immutable_field_of_a_custom_resource_stays(server: KubeApiServer, applied: str) -> None:
    assert applied

    async def change(client: ClusterClient) -> str:
        spec = {"serialNumber": "ab", "reason": "keyCompromise"}
        obj: Obj = {"kind": "CertificateRevocation", "apiVersion": "mooring.dev/v1alpha1", "spec": spec}
        await client.create("certificaterevocations", obj | {"metadata": {"name": "serial-ab"}})
        try:
            await client.patch("certificaterevocations", "serial-ab", {"spec": {"serialNumber": "cd"}})
        except Exception as error:
            return str(error)
        return ""

    async def run() -> str:
        async with server.client() as client:
            return await change(client)

    assert "serialNumber is immutable" in asyncio.run(run())
    assert "keyCompromise" in kubectl(server, "get", "certificaterevocations")


async def prepare(client: ClusterClient, server: KubeApiServer) -> None:
    """Create cluster-info, a token that may sign it, an expired one, and what kubeadm lets tokens do."""
    now = SystemClock().now()
    record = tokensecret.new_record(TOKEN, now, ttl=timedelta(hours=1), groups=(GROUP,))
    await client.create("secrets", tokensecret.to_secret(record))
    expired = tokensecret.to_secret(
        tokensecret.new_record(BootstrapToken("expire", TOKEN.secret), now, ttl=timedelta(hours=1))
    )
    past = base64.b64encode(rfc3339(now - timedelta(minutes=1)).encode()).decode()
    await client.create("secrets", {**expired, "data": {**expired["data"], "expiration": past}})
    cluster = f'{{"kind": "Config", "apiVersion": "v1", "clusters": [{{"name": "", "cluster": {{"server": "{server.url}"}}}}]}}'
    info = {"metadata": {"name": "cluster-info", "namespace": "kube-public"}, "data": {"kubeconfig": cluster}}
    await client.create("configmaps", {"kind": "ConfigMap", "apiVersion": "v1", **info})
    for role in ("system:node-bootstrapper", "system:certificates.k8s.io:certificatesigningrequests:nodeclient"):
        binding = {
            "kind": "ClusterRoleBinding",
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "metadata": {"name": f"test:{role}"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": GROUP}],
        }
        await client.create("clusterrolebindings", binding)


def test_tokens_certificates_and_a_dead_leader(server: KubeApiServer, controllers: StandaloneProcesses) -> None:
    controllers.run(lambda client: prepare(client, server))
    first = controllers.start()
    eventually(lambda: controllers.leads(first))
    second = controllers.start()
    eventually(lambda: "jws-kubeconfig-abcdef" in controllers.run(cluster_info))
    eventually(lambda: not controllers.run(has_expired_token))

    machine = Cluster("", server.url, server.ca[0].read_bytes())
    user = KubeconfigUser("", token=Secret(TOKEN.reveal()))

    async def request(name: str) -> None:
        async with connect(Selected(machine, user, "")) as client:
            obj = node_request(name, generate_key(), name=name)
            await client.create(
                REQUESTS, {"kind": "CertificateSigningRequest", "apiVersion": "certificates.k8s.io/v1", **obj}
            )

    asyncio.run(request("m1"))
    eventually(lambda: controllers.issued() == {"m1"})
    asyncio.run(request("m2"))
    first.kill()
    first.wait()
    asyncio.run(request("m3"))
    eventually(lambda: controllers.issued() == {"m1", "m2", "m3"})
    assert controllers.leads(second)
    controllers.run(lambda client: check_certificate(client, server))
    second.send_signal(signal.SIGTERM)
    assert second.wait(30) == 0
    assert controllers.holder() == ""
    assert "forbidden" not in controllers.logs
    assert "does not run" not in controllers.logs


async def cluster_info(client: ClusterClient) -> Obj:
    data: Obj = (await client.get("configmaps", "cluster-info", "kube-public"))["data"]
    return data


async def has_expired_token(client: ClusterClient) -> bool:
    try:
        await client.get("secrets", "bootstrap-token-expire", "kube-system")
    except NotFoundError:
        return False
    return True


async def check_certificate(client: ClusterClient, server: KubeApiServer) -> None:
    status = (await client.get(REQUESTS, "m3"))["status"]
    certificate = x509.load_pem_x509_certificate(base64.b64decode(status["certificate"]))
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(server.ca[0].read_bytes()))
    assert [one.rfc4514_string() for one in certificate.subject.rdns] == ["O=system:nodes", "CN=system:node:m3"]
