"""The pages about other clusters: every command as it is written, against a real kube-apiserver 1.36.

Rules kept here: blocks are taken from the pages, and each page fails here when it gets a block that no test runs. Only places,
addresses and tokens are translated. kubeadm's objects are those of clusterinfo.yaml. In a cluster, Mooring's controllers run as the
ServiceAccount of the printed manifests, with the arguments of the printed Deployment, and nothing more.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import yaml

from mooring.pki.keys import PrivateKey, generate_key, public_key_fingerprint
from mooring.pki.x509.requests import build_request
from mooring.secret import Secret
from mooring.trust.kubeconfig import KubeconfigUser
from tests.citations import FENCE
from tests.kubeadm.peers import node_request
from tests.support import etcd
from tests.support.kubeapiserver import (
    MISSING,
    MISSING_MANAGER,
    KubeApiServer,
    running,
    running_controller_manager,
)
from tests.support.liveserver import LiveServer, start_server
from tests.support.pagecommands import Machines, blocks
from tests.support.polling import eventually
from tests.support.ports import free_port

KUBECTL = shutil.which("kubectl")
pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=MISSING or "kube-apiserver is here"),
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed"),
]
NEEDS_MANAGER = pytest.mark.skipif(bool(MISSING_MANAGER), reason=MISSING_MANAGER or "kube-controller-manager is here")
HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
CONTROLLERS_PAGE = DOCS / "controllers-for-any-cluster.md"
KUBERNETES_PAGE = DOCS / "with-real-kubernetes.md"
TAKEOVER_PAGE = DOCS / "take-over-an-etcd.md"
WEBHOOK_PAGE = DOCS / "authentication" / "webhook.md"
ETCD_FLAGS = ("--etcd-cafile", "--etcd-certfile", "--etcd-keyfile")
HERE_ADDRESS = "10.0.0.1"
TOKEN = "abcdef.0123456789abcdef"
DENYLIST = "certificaterevocations"
OF_KINDS = ("kubelet-serving-approver", "machine-inventory-approver", "node-identity-controller")
"""Controllers that run by default and need kinds of mooring.dev."""


@dataclass(frozen=True)
class Administrator:
    """The machine of an administrator, whose /etc/kubernetes/admin.conf is that of the server."""

    server: KubeApiServer
    machines: Machines

    @property
    def directory(self) -> Path:
        return self.machines.directory(HERE_ADDRESS)

    def run(self, block: str) -> str:
        return self.machines.run(f"cd {self.server.directory}\n{block}", HERE_ADDRESS)

    def fails(self, block: str) -> str:
        """Run a block that must fail; return its output and errors."""
        return self.run(f"if {block} >told 2>&1; then exit 9; fi; cat told")

    def start(self, block: str, name: str) -> None:
        self.machines.start(block, HERE_ADDRESS, name)

    def log(self, name: str) -> str:
        return self.machines.log(name)

    def apply(self, *objects: object) -> None:
        document = self.server.directory / "applied.json"
        document.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))
        self.run("kubectl apply -f applied.json")

    def get(self, *arguments: str) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.run(f"kubectl get {' '.join(arguments)} -o json"))
        return found


@contextmanager
def administrator(server: KubeApiServer, directory: Path) -> Iterator[Administrator]:
    machines = Machines(directory / "machines", {}, {"KUBECONFIG": str(server.kubeconfig)})
    admin = Administrator(server, machines)
    try:
        (admin.directory / "etc/kubernetes").mkdir(parents=True)
        shutil.copy(server.kubeconfig, admin.directory / "etc/kubernetes/admin.conf")
        yield admin
    finally:
        machines.end_all()


def discovery_document(server: KubeApiServer) -> str:
    """Return the address and the CA of the server as a kubeconfig without a user."""
    cluster = yaml.safe_load(server.kubeconfig.read_text())["clusters"][0]["cluster"]
    document: str = yaml.safe_dump(
        {"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "", "cluster": cluster}]}
    )
    return document


def publish_cluster_info(admin: Administrator) -> None:
    """Create what kubeadm init leaves for machines that join."""
    admin.run(f"kubectl apply -f {HERE / 'clusterinfo.yaml'}")
    admin.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "cluster-info", "namespace": "kube-public"},
            "data": {"kubeconfig": discovery_document(admin.server)},
        }
    )


def is_signed(admin: Administrator, token_id: str) -> bool:
    data = admin.get("configmap", "cluster-info", "-n", "kube-public")["data"]
    return f"jws-kubeconfig-{token_id}" in str(data)


def await_line(admin: Administrator, name: str, line: str) -> None:
    eventually(lambda: line in admin.log(name))


# -- controllers for any cluster -------------------------------------------------------------------------------------------


def test_controllers_for_any_cluster(tmp_path: Path) -> None:
    page = blocks(CONTROLLERS_PAGE)
    (first,), (choices,) = page.pop(""), page.pop("Which controllers")
    install, delete_old, signer_secret = page.pop("In a cluster")
    assert not any(page.values()), "this test runs every block"
    with ExitStack() as program:
        server = program.enter_context(running(tmp_path))
        with administrator(server, tmp_path) as admin:
            _run_page(admin, first, choices, install, delete_old, signer_secret)
            port = _check_account(admin, install.splitlines()[0])
            # an API server that is away is not mended by a restart of the Pod
            program.close()
            eventually(lambda: _health(port, "/readyz") != 200)
            assert _health(port, "/livez") == 200


def _run_page(
    admin: Administrator, first: str, choices: str, install: str, delete_old: str, signer_secret: str
) -> None:
    publish_cluster_info(admin)
    # the first line, on a server without the kinds
    admin.start(first, "first")
    await_line(admin, "first", "running bootstrap-signer-controller")
    for name in OF_KINDS:
        await_line(admin, "first", f"{name} does not run: the server does not serve ")
        assert admin.log("first").count(f"{name} does not run") == 1
    admin.run(f"mooring token create {TOKEN}")
    eventually(lambda: is_signed(admin, "abcdef"))
    # the kinds come while it runs
    install_all, install_chosen = install.splitlines()
    admin.run(install_all)
    await_line(admin, "first", f"running bootstrap-signer-controller, {', '.join(OF_KINDS)}")
    # what a person is told about such a server
    _check_promises(admin)
    admin.machines.end("first")
    # the choices of the page
    for number, line in enumerate(choices.splitlines()):
        admin.start(line, f"choice-{number}")
        await_line(admin, f"choice-{number}", "running ")
        admin.machines.end(f"choice-{number}")
    assert "certificatesigningrequest-cleaner-controller" in admin.log("choice-1")
    # a second installation, roles of an earlier version, and the Secret of the signer
    chosen = json.loads(admin.run(install_chosen))
    (admin.server.directory / "chosen.json").write_text(json.dumps(chosen))
    admin.run("kubectl apply -f chosen.json")
    for line in delete_old.splitlines():
        _make_old(admin, line)
    admin.run(delete_old)
    admin.run(signer_secret)


def _check_promises(admin: Administrator) -> None:
    told = admin.fails("mooring certs revoke --node m1")
    assert "does not read the denylist" in told
    assert "add --force" in told
    assert "recorded" in admin.run("mooring certs revoke --node m1 --force 2>&1")
    admin.run(f"kubectl delete {DENYLIST} node-m1")
    limits = "--max-joins 1 --node-name n1 --allow-cidr 10.0.0.0/8"
    told = admin.run(f"mooring token create {limits} 2>&1")
    assert "does not enforce --max-joins, --allow-cidr and --node-name" in told
    assert "The CA of that cluster belongs to the program that made it" in admin.fails("mooring ca rollover start")


def _make_old(admin: Administrator, line: str) -> None:
    """Create what a line of the page deletes."""
    namespace = line.partition("--namespace ")[2]
    scope = f"--namespace {namespace}" if namespace else ""
    kinds = ("role", "rolebinding") if namespace else ("clusterrole", "clusterrolebinding")
    admin.run(f"kubectl create {kinds[0]} mooring-controllers --verb=get --resource=leases {scope}")
    admin.run(f"kubectl create {kinds[1]} mooring-controllers --{kinds[0]}=mooring-controllers --user=nobody {scope}")


def _check_account(admin: Administrator, install: str) -> int:
    """Run the Deployment's arguments as its ServiceAccount, and take a kind away and back. Return the port of its health."""
    name = "mooring-controllers"
    container = _container(admin, name)
    token = admin.run(f"kubectl -n mooring-system create token {name}").strip()
    account = admin.server.write_kubeconfig("account.conf", KubeconfigUser("account", token=Secret(token.encode())))
    port = free_port()
    arguments = " ".join(container["args"]).replace("$(POD_IP)", "127.0.0.1").replace("=10290", f"={port}")
    admin.start(f"mooring {arguments} --kubeconfig {account}", name)
    everything = f"running bootstrap-signer-controller, {', '.join(OF_KINDS)}"
    await_line(admin, name, everything)
    admin.run("mooring token create bcdefg.0123456789abcdef")
    eventually(lambda: is_signed(admin, "bcdefg"))
    assert _health(port, "/livez") == 200
    # an authorized machine is approved, once
    key = generate_key()
    admin.run(f"mooring machine authorize rack-1 --key-fingerprint {_fingerprint(key)}")
    _request(admin, "rack-1", key)
    eventually(lambda: "Approved" in _conditions(admin, "rack-1"))
    # the denylist goes: nothing is approved, and the log says so
    admin.run(f"kubectl delete crd {DENYLIST}.mooring.dev")
    await_line(admin, name, "machine-inventory-approver does not run: ")
    key = generate_key()
    admin.run(f"mooring machine authorize rack-2 --key-fingerprint {_fingerprint(key)}")
    _request(admin, "rack-2", key)
    assert _conditions(admin, "rack-2") == []
    assert _health(port, "/livez") == 200
    admin.run(install)
    eventually(lambda: "Approved" in _conditions(admin, "rack-2"))
    _check_serving_certificate(admin, "rack-1")
    assert "forbidden" not in admin.log(name)
    return port


def _check_serving_certificate(admin: Administrator, node: str) -> None:
    """Request a serving certificate as a node; it is approved when its names are those of the Node."""
    address = "192.0.2.77"
    admin.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
    status = json.dumps({"status": {"addresses": [{"type": "InternalIP", "address": address}]}})
    admin.run(f"kubectl patch node {node} --subresource=status --type=merge -p '{status}'")
    for name, wanted in ((f"{node}-serving", address), (f"{node}-stolen", "127.0.0.1")):
        pem = build_request(
            generate_key(), f"system:node:{node}", ("system:nodes",), dns=(node,), ips=(ip_address(wanted),)
        )
        spec = {
            "request": base64.b64encode(pem).decode(),
            "signerName": "kubernetes.io/kubelet-serving",
            "usages": ["digital signature", "server auth"],
        }
        obj = {"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest"}
        (admin.server.directory / "serving.json").write_text(
            json.dumps({**obj, "metadata": {"name": name}, "spec": spec})
        )
        admin.run(f"kubectl --as system:node:{node} --as-group system:nodes create -f serving.json")
    eventually(lambda: _conditions(admin, f"{node}-serving") == ["Approved"])
    eventually(lambda: _conditions(admin, f"{node}-stolen") == ["Denied"])


def _container(admin: Administrator, name: str) -> dict[str, list[str]]:
    deployment: dict[str, dict[str, dict[str, dict[str, list[dict[str, list[str]]]]]]] = json.loads(
        admin.run(f"kubectl -n mooring-system get deployment {name} -o json")
    )
    return deployment["spec"]["template"]["spec"]["containers"][0]


def _health(port: int, path: str) -> int:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


def _fingerprint(key: PrivateKey) -> str:
    return f"sha256:{public_key_fingerprint(key)}"


def _request(admin: Administrator, node: str, key: PrivateKey) -> None:
    """Request the client certificate of a node, with the bootstrap token."""
    user = KubeconfigUser("joiner", token=Secret(TOKEN.encode()))
    joiner = admin.server.write_kubeconfig("joiner.conf", user)
    obj = {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        **node_request(node, key, name=node),
    }
    (admin.server.directory / "request.json").write_text(json.dumps(obj))
    admin.run(f"kubectl --kubeconfig {joiner} create -f request.json")


def _conditions(admin: Administrator, name: str) -> list[str]:
    status = admin.get("csr", name).get("status")
    assert isinstance(status, dict)
    return [condition["type"] for condition in status.get("conditions") or ()]


# -- with real Kubernetes --------------------------------------------------------------------------------------------------


@pytest.fixture
def kubeadm_cluster(tmp_path: Path) -> Iterator[Administrator]:
    """A cluster as kubeadm makes it: kube-apiserver, kube-controller-manager, and what machines need to join."""
    with running(tmp_path) as server, running_controller_manager(server), administrator(server, tmp_path) as admin:
        publish_cluster_info(admin)
        yield admin


@NEEDS_MANAGER
def test_with_real_kubernetes(kubeadm_cluster: Administrator) -> None:
    admin, page = kubeadm_cluster, blocks(KUBERNETES_PAGE)
    (choose,), (user,) = page.pop("Kubeconfig and timeout"), page.pop("A user for a cluster")
    join, balancer, join_by_kubeadm = page.pop("Join a machine to a kubeadm cluster")
    page.pop("kubeadm against a Mooring server")  # tests/kubeadm
    assert not any(page.values()), "this test runs every block"
    # tokens and requests, with each way to name the cluster
    home = admin.machines.root / ".kube/config"
    home.parent.mkdir(exist_ok=True)
    home.write_text(admin.server.kubeconfig.read_text())
    admin.run(f"kubectl --kubeconfig {home} config rename-context x production")
    admin.run(f"mooring token create {TOKEN} && mooring token list | grep abcdef")
    _request(admin, "by-hand", generate_key())
    user_request = build_request(generate_key(), "robot")
    admin.apply(_user_request("robot", user_request), _user_request("stranger", user_request))
    listed = admin.run(choose)
    assert "abcdef" in listed
    assert "stranger" in listed
    admin.run("mooring csr show robot && mooring csr approve robot && mooring csr deny stranger")
    eventually(lambda: "certificate" in str(admin.get("csr", "robot")["status"]))
    assert _conditions(admin, "stranger") == ["Denied"]
    # a machine joins, and another one by a discovery file
    line = admin.run(join).strip()
    assert line.startswith("mooring join 127.0.0.1:")
    admin.run(f"{line} --root {admin.directory}/m1 --node-name m1")
    assert "system:node:m1" in admin.run(
        f"kubectl --kubeconfig {admin.directory}/m1/etc/kubernetes/kubelet.conf auth whoami"
    )
    admin.run("kubectl get node m1")
    (admin.server.directory / "balancer.conf").write_text(discovery_document(admin.server))
    eventually(lambda: is_signed(admin, "abcdef"))
    admin.run(f"{balancer.strip()} --root {admin.directory}/m2 --node-name m2")
    admin.run("kubectl get node m2")
    assert (admin.directory / "m2/etc/kubernetes/pki/ca.crt").read_bytes().strip() == admin.server.ca[
        0
    ].read_bytes().strip()
    assert admin.run(join_by_kubeadm).startswith("kubeadm join 127.0.0.1:")
    # a user, by the signer of kube-controller-manager
    admin.run(user)
    assert "jane" in admin.run("kubectl --kubeconfig jane.conf auth whoami")
    # what such a server does not have
    admin.run("mooring token delete abcdef")
    for command in (
        "certs list",
        "certs show m1",
        "certs revoke --node m1 --force",
        "ca rollover start",
        "auth explain x",
    ):
        assert "Error: " in admin.fails(f"mooring {command}")
        told = admin.run("cat told")
        assert "not Mooring" in told or "Mooring server" in told, command


def _user_request(name: str, pem: bytes) -> dict[str, object]:
    spec = {
        "request": base64.b64encode(pem).decode(),
        "signerName": "kubernetes.io/kube-apiserver-client",
        "usages": ["client auth"],
    }
    obj = {"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest"}
    return {**obj, "metadata": {"name": name}, "spec": spec}


# -- an etcd changes hands -------------------------------------------------------------------------------------------------


@pytest.mark.skipif(bool(etcd.MISSING), reason=etcd.MISSING or "etcd is here")
def test_take_over_an_etcd(tmp_path: Path) -> None:
    text = re.sub(r"(?m)^   ", "", TAKEOVER_PAGE.read_text())  # blocks below an item of a list
    (tmp_path / "page.md").write_text(text)
    page = blocks(tmp_path / "page.md")
    copy, serve = page.pop("From kube-apiserver to Mooring")
    assert not any(page.values()), "this test runs every block"
    (snapshot,) = re.findall(r"`(etcdctl [^`]*)`", text)
    range_and_issuer = re.findall(r"(--service-\S+) (\S+)", serve)
    for name in ("etcd", "kubernetes"):
        (tmp_path / name).mkdir()
    certificates = etcd.Certificates.make(tmp_path / "etcd")
    with etcd.running(tmp_path / "etcd", certificates=certificates, client_certificates=True) as store:
        files = (str(certificates.ca), *map(str, certificates.client))
        flags = [word for flag, file in zip(ETCD_FLAGS, files, strict=True) for word in (flag, file)]
        flags += [word for pair in range_and_issuer for word in pair]
        with running(tmp_path / "kubernetes", *flags, store=store.endpoints) as server:
            _kubectl(
                server.kubeconfig,
                "kubectl create configmap before --from-literal=a=b; kubectl create serviceaccount robot",
            )
            token = _kubectl(server.kubeconfig, "kubectl create token robot").strip()
        port, store_port = free_port(), int(store.endpoints.rpartition(":")[2])
        environment = {f"ETCDCTL_{name}": value for name, value in zip(("CACERT", "CERT", "KEY"), files, strict=True)}
        environment |= {"ETCDCTL_API": "3", "ETCDCTL_ENDPOINTS": store.endpoints}
        machines = Machines(tmp_path / "machines", {2379: store_port}, environment)
        try:
            _place_files_of_kubeadm(machines, server, files)
            machines.environment["MOORING_DATA_DIR"] = str(machines.directory(HERE_ADDRESS) / "var/lib/mooring")
            machines.run(f"cd {tmp_path}\n{snapshot}", HERE_ADDRESS)
            machines.run(copy, HERE_ADDRESS)
            serve = serve.replace("0.0.0.0", "127.0.0.1").replace("--secure-port 6443", f"--secure-port {port}")
            machines.start(serve, HERE_ADDRESS, "mooring")
            taken_over = KubeApiServer(server.directory, port)
            as_robot = taken_over.write_kubeconfig("robot.conf", KubeconfigUser("robot", token=Secret(token.encode())))
            eventually(lambda: _answers(as_robot))
            assert "system:serviceaccount:default:robot" in _kubectl(as_robot, "kubectl auth whoami")
            files_of_admin = (str(server.directory / "admin.crt"), str(server.directory / "admin.key"))
            admin = taken_over.write_kubeconfig(
                "here.conf", KubeconfigUser("admin", certificate_file=files_of_admin[0], key_file=files_of_admin[1])
            )
            assert _kubectl(admin, "kubectl get configmap before -o jsonpath={.data.a}") == "b"
            _kubectl(admin, "kubectl create configmap after --from-literal=a=c")
        finally:
            machines.end_all()
        with running(tmp_path / "kubernetes", *flags, store=store.endpoints) as server:
            assert _kubectl(server.kubeconfig, "kubectl get configmap after -o jsonpath={.data.a}") == "c"


def _place_files_of_kubeadm(machines: Machines, server: KubeApiServer, of_etcd: tuple[str, ...]) -> None:
    """Place keys where kubeadm has them, and a sudo that is not needed."""
    pki = machines.directory(HERE_ADDRESS) / "etc/kubernetes/pki"
    (pki / "etcd").mkdir(parents=True)
    for name in ("ca.crt", "ca.key", "sa.key", "sa.pub"):
        shutil.copy(server.directory / name, pki / name)
    for name, file in zip(
        ("etcd/ca.crt", "apiserver-etcd-client.crt", "apiserver-etcd-client.key"), of_etcd, strict=True
    ):
        shutil.copy(file, pki / name)
    sudo = machines.root / "bin/sudo"
    sudo.write_text('#!/bin/sh\nexec "$@"\n')
    sudo.chmod(0o755)


def _answers(kubeconfig: Path) -> bool:
    try:
        return bool(_kubectl(kubeconfig, "kubectl auth whoami"))
    except AssertionError:
        return False


# -- Mooring as the webhook of a kube-apiserver ----------------------------------------------------------------------------


@pytest.fixture
def mooring_server(tmp_path: Path) -> Iterator[LiveServer]:
    server = start_server(tmp_path / "mooring")
    yield server
    server.stop()


def test_this_server_as_a_webhook(mooring_server: LiveServer, tmp_path: Path) -> None:
    section = WEBHOOK_PAGE.read_text().partition("## This server as a webhook")[2].partition("\n## ")[0]
    (give_right,) = [block for language, block in FENCE.findall(section) if language == "sh"]
    (configuration,) = [block for language, block in FENCE.findall(section) if language == "yaml"]
    directory = tmp_path / "kubernetes"
    directory.mkdir()
    token = _kubectl(mooring_server.kubeconfig, give_right).splitlines()[-1]
    (directory / "mooring-token").write_text(token)
    (directory / "mooring-ca.crt").write_bytes(mooring_server.ca_pem)
    file = directory / "mooring.yaml"
    file.write_text(configuration.replace("mooring.example.com:6443", mooring_server.endpoint))
    flags = (f"--authentication-token-webhook-config-file={file}", "--authentication-token-webhook-version=v1")
    with running(directory, *flags) as server:
        robot = "kubectl create serviceaccount robot >&2; kubectl create token robot --audience https://kubernetes.default.svc"
        token = _kubectl(mooring_server.kubeconfig, robot).strip()
        as_robot = server.write_kubeconfig("robot.conf", KubeconfigUser("robot", token=Secret(token.encode())))
        assert "system:serviceaccount:default:robot" in _kubectl(as_robot, "kubectl auth whoami")
        stranger = _kubectl(mooring_server.kubeconfig, "kubectl create token robot").strip()
        refused = server.write_kubeconfig("stranger.conf", KubeconfigUser("robot", token=Secret(stranger.encode())))
        with pytest.raises(AssertionError, match=r"Unauthorized|must be logged in"):
            _kubectl(refused, "kubectl auth whoami")


def _kubectl(kubeconfig: Path, block: str) -> str:
    environment = {
        "PATH": str(Path(str(KUBECTL)).parent) + ":/usr/bin:/bin",
        "KUBECONFIG": str(kubeconfig),
        "HOME": "/nonexistent",
    }
    done = subprocess.run(["bash", "-euc", block], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout
