"""`mooring status`: a whole cluster on one screen, as administrators, users with few rights, and watchers see it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import pty
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from mooring.agent.join import join
from mooring.apimachinery.schema import Obj
from mooring.cli.status.sections import SECTIONS
from mooring.clock import SystemClock, rfc3339_micro
from mooring.controllers import standalonetable
from mooring.pki.keys import generate_key
from mooring.pki.x509.requests import build_request
from mooring.pki.x509.signers import KUBE_APISERVER_CLIENT
from mooring.trust.kubeconfig import KubeconfigUser
from tests.support import forkserver
from tests.support.commandline import CommandLine, mooring, process
from tests.support.joinplans import join_options, join_plan
from tests.support.kubernetespeer import VERSION, KubernetesPeer, Place, kubernetes_peer
from tests.support.liveserver import LiveServer, start_server
from tests.support.polling import eventually
from tests.support.ports import free_port
from tests.support.standalonecontrollers import write_kubeconfig

__all__ = ["mooring"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server with a member that used its token up, a machine that was lost, a request that waits, and a revocation."""
    server = start_server(tmp_path_factory.mktemp("status") / "data", "--node-monitor-grace-period", "1h")
    try:
        admin = ("--kubeconfig", str(server.kubeconfig))
        token = process("token", "create", "--max-joins", "1", *admin).out.strip()
        root = tmp_path_factory.mktemp("member")
        plan = join_plan("member", (server.endpoint,), token, pins=(server.pin,))
        asyncio.run(join(plan, join_options(root=root, certificate_timeout=60.0)))
        lost = {"metadata": {"name": "lost"}, "status": {"conditions": [condition("Unknown", "no heartbeat came")]}}
        server.run(lambda client: client.create("nodes", lost))
        request = build_request(generate_key(), "system:node:waiting", ("system:nodes",))
        csr = {
            "kind": "CertificateSigningRequest",
            "apiVersion": "certificates.k8s.io/v1",
            "metadata": {"name": "csr-waiting"},
            "spec": {
                "request": base64.b64encode(request).decode(),
                "signerName": KUBE_APISERVER_CLIENT,
                "usages": ["digital signature", "client auth"],
            },
        }
        server.run(lambda client: client.create("certificatesigningrequests", csr))
        entry = {"metadata": {"name": f"key-{'c' * 64}"}, "spec": {"publicKey": f"sha256:{'c' * 64}"}}
        server.run(lambda client: client.create("certificaterevocations", entry))
        assert process("snapshot", "save", "--data-dir", str(server.data_dir)).code == 0
        yield server
    finally:
        server.stop()


def condition(status: str, message: str) -> Obj:
    time = "2026-01-01T00:00:00Z"
    return {"type": "Ready", "status": status, "message": message, "reason": "R", "lastTransitionTime": time}


def shown(lines: list[str]) -> dict[str, str]:
    """Return the first line of each section by its label."""
    return {match[1]: match[2] for line in lines if (match := re.fullmatch(r"(\S[\S ]*?) {3,}(.*)", line))}


def test_the_whole_cluster_is_on_one_screen(cluster: LiveServer, mooring: CommandLine) -> None:
    lines = mooring.done("status", "--kubeconfig", str(cluster.kubeconfig)).splitlines()
    found = shown(lines)
    assert set(found) == {section.label for section in SECTIONS.values()} - {"Tombstones"}
    assert len(lines) <= 24, "a terminal of 24 lines"
    assert found["Cluster"] == cluster.url
    assert re.fullmatch(
        rf"{cluster.url}: \S+, 0\.1\.0, 1 worker, serving certificate ends in 36\dd", found["Servers"]
    ), found["Servers"]
    assert found["Controllers"].startswith("on ")
    assert (found["CA"], found["CA rollover"]) == ("ends in 9y", "none")
    assert found["Machines"] == "2: 1 Ready, 1 Lost"
    assert any(re.fullmatch(r" +lost +Lost +no heartbeat came", line) for line in lines)
    assert found["Requests"] == "1 request waiting"
    (request,) = (line for line in lines if "csr-waiting" in line)
    assert request.split()[:3] == ["csr-waiting", "waiting", "127.0.0.1"]
    assert "1 used up" in found["Tokens"]
    assert "1 entry on the denylist" in found["Revocations"]
    assert found["Encryption"] == "stored objects are not encrypted"
    assert re.search(r"ago: on-demand-\S+\.snapshot, .* KiB; no schedule", found["Snapshot"])
    assert re.fullmatch(r"sqlite, .* [KM]iB, revision \d+, serves", found["Store"])


@pytest.mark.parametrize(("form", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_a_document_has_every_section(form: str, load: Any, cluster: LiveServer, mooring: CommandLine) -> None:
    text = mooring.done("status", "-o", form, "--kubeconfig", str(cluster.kubeconfig))
    document = load(text)
    assert document["kind"] == "ClusterStatus"
    assert set(document) == {"kind", "time", *SECTIONS}
    assert document["machines"]["states"] == {"Ready": 1, "Lost": 1}
    (request,) = document["requests"]["waiting"]
    assert (request["machine"], request["from"], request["requester"]) == ("waiting", "127.0.0.1", "kubernetes-admin")
    assert request["reason"]
    assert document["tokens"]["usedUp"] == 1
    assert document["store"]["serves"] is True
    tokens = cluster.run(lambda client: client.list("secrets", "kube-system")).items
    for secret in (
        base64.b64decode(one["data"]["token-secret"]).decode() for one in tokens if "token-secret" in one["data"]
    ):
        assert secret not in text


def test_what_a_user_may_not_read_hides_nothing_else(cluster: LiveServer, mooring: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "few.conf"
    mooring.done("kubeconfig", "user", "few", "--out", str(path), "--kubeconfig", str(cluster.kubeconfig))
    denied = shown(mooring.done("status", "--kubeconfig", str(path)).splitlines())
    assert denied.pop("Controllers").startswith("unknown, because ")
    readable = {name for name, line in denied.items() if line != "not readable for this user"}
    assert readable == {"Cluster", "Health"}
    assert (denied["Cluster"], denied["Health"]) == (cluster.url, "ready")
    rules = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}]
    cluster.run(lambda client: client.create("clusterroles", {"metadata": {"name": "few-nodes"}, "rules": rules}))
    binding = {
        "metadata": {"name": "few-nodes"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "few-nodes"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "few"}],
    }
    cluster.run(lambda client: client.create("clusterrolebindings", binding))
    document = json.loads(mooring.done("status", "-o", "json", "--kubeconfig", str(path)))
    assert document["machines"]["total"] == 2
    assert document["tokens"] == {"unavailable": "not readable for this user"}


def test_another_api_server_shows_what_it_has(mooring: CommandLine, tmp_path: Path) -> None:
    with kubernetes_peer() as peer:
        path = write_kubeconfig(tmp_path / "admin.conf", peer.url, peer.ca_pem, KubeconfigUser("admin"))
        found = shown(mooring.done("status", "--kubeconfig", str(path)).splitlines())
    assert found["Cluster"] == f"{peer.url}, Kubernetes {VERSION}, not Mooring"
    assert found["Cluster-info"].startswith("problem: it is missing")
    for label in ("Servers", "CA", "Store", "Revocations"):
        assert found[label] == "not served by this server"
    assert found["Controllers"].startswith("none found: ")
    assert found["Machines"].startswith("0")
    assert found["Requests"] == "none"


@pytest.mark.parametrize("namespace", ["kube-system", "mooring-system", "elsewhere"])
def test_controllers_beside_another_api_server_are_found(
    mooring: CommandLine, tmp_path: Path, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kubernetes_peer() as peer:
        path = write_kubeconfig(tmp_path / "admin.conf", peer.url, peer.ca_pem, KubeconfigUser("admin"))
        spec = {"holderIdentity": "vm_1", "leaseDurationSeconds": 3600, "renewTime": rfc3339_micro(SystemClock().now())}
        peer.put("leases", {"metadata": {"name": standalonetable.LEASE}, "spec": spec}, namespace)
        found = shown(mooring.done("status", "--kubeconfig", str(path)).splitlines())
        assert found["Controllers"] == f"on vm_1, Lease {namespace}/{standalonetable.LEASE}"
        # a user who may read the Leases of the usual namespaces alone
        listed = KubernetesPeer.answer

        def refused(peer: KubernetesPeer, method: str, place: Place, *rest: Any) -> tuple[int, Obj]:
            is_refused = place.plural == "leases" and place.namespace == ""
            return (
                (403, {"kind": "Status", "reason": "Forbidden"}) if is_refused else listed(peer, method, place, *rest)
            )

        monkeypatch.setattr(KubernetesPeer, "answer", refused)
        unread = "unknown, because this user may not list the Leases of all namespaces"
        screen = mooring.done("status", "--kubeconfig", str(path))
        assert shown(screen.splitlines())["Controllers"] == (
            unread if namespace == "elsewhere" else f"on vm_1, Lease {namespace}/{standalonetable.LEASE}"
        )
        assert unread in screen
        peer.forbidden.add("leases")
        document = json.loads(mooring.done("status", "-o", "json", "--kubeconfig", str(path)))["controllers"]
        assert document == {"holder": "", "leases": [], "unknown": unread.removeprefix("unknown, because ")}


def test_each_server_is_asked_once_and_one_that_is_gone_is_named(mooring: CommandLine, tmp_path: Path) -> None:
    port, gone = free_port(), free_port()
    addresses = (f"127.0.0.1:{port}", f"127.0.0.1:{gone}", f"localhost:{port}")
    flags = [word for one in addresses for word in ("--control-plane-endpoint", one)]
    server = start_server(tmp_path / "data", *flags, port=port)
    try:
        admin = ("--kubeconfig", str(server.kubeconfig))
        first, second = json.loads(mooring.done("status", "-o", "json", *admin))["servers"]["servers"]
        assert (first["address"], first["workers"]) == (server.url, 1)
        assert second["address"] == f"https://127.0.0.1:{gone}"
        assert "refused" in second["problem"]
        check = mooring("certs", "check", *admin)
        assert check.code == 1
        assert f"not checked: the certificates of https://127.0.0.1:{gone}: " in check.err
    finally:
        server.stop()


class Terminal:
    """A terminal of 80 columns in which `mooring status --watch` runs."""

    def __init__(self, server: LiveServer) -> None:
        child, self.descriptor = pty.fork()
        if child == 0:  # pragma: no cover - another process
            words = ["-m", "mooring", "status", "--watch", "--kubeconfig", str(server.kubeconfig)]
            os.execvpe(sys.executable, [sys.executable, *words], os.environ | {"COLUMNS": "80", "LINES": "40"})
        self.child = child
        self.seen = b""

    def read_until(self, text: bytes) -> bytes:
        """Return what was written up to the first screen that has a text."""
        while text not in self.seen:
            self.seen += os.read(self.descriptor, 65536)
        shown, self.seen = self.seen, b""
        return shown

    def end(self) -> int:
        """Press Ctrl-C, and return the exit code."""
        os.write(self.descriptor, b"\x03")
        with suppress(OSError):  # the end of a terminal
            while os.read(self.descriptor, 65536):
                pass
        return os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])


def test_a_terminal_is_drawn_again_until_ctrl_c(cluster: LiveServer) -> None:
    terminal = Terminal(cluster)
    first = terminal.read_until(b"Ctrl-C ends this")
    assert first.startswith(b"\x1b[H\x1b[2J")
    assert b"Machines" in first
    assert max(len(line) for line in first.decode().splitlines()) <= 80 + len("\x1b[H\x1b[2J")
    node = f"n{secrets.token_hex(4)}"
    lost = {"metadata": {"name": node}, "status": {"conditions": [condition("False", "its disk is full")]}}
    cluster.run(lambda client: client.create("nodes", lost))
    again = terminal.read_until(node.encode())
    assert b"\x1b[H\x1b[2J" in again
    cluster.run(lambda client: client.delete("nodes", node))
    assert terminal.end() == 130


@pytest.fixture
def watcher(cluster: LiveServer, tmp_path: Path) -> Iterator[tuple[forkserver.Process, Path]]:
    """Run `mooring status --watch -o json` into a file."""
    path = tmp_path / "watched"
    words = ["-m", "mooring", "status", "-w", "-o", "json", "--kubeconfig", str(cluster.kubeconfig)]
    with path.open("wb") as output:
        running = forkserver.Process(words, stdout=output, stderr=subprocess.DEVNULL)
    yield running, path
    if running.poll() is None:
        running.kill()
    running.wait()


def documents(path: Path) -> list[Obj]:
    """Return the whole documents in a file."""
    found, text, decoder = [], path.read_text(), json.JSONDecoder()
    while text := text.lstrip():
        try:
            document, end = decoder.raw_decode(text)
        except ValueError:
            break
        found.append(document)
        text = text[end:]
    return found


def test_a_watch_ends_when_its_reader_has_gone(cluster: LiveServer) -> None:
    reader, writer = os.pipe()
    words = ["-m", "mooring", "status", "-w", "--kubeconfig", str(cluster.kubeconfig)]
    with os.fdopen(writer, "wb") as output:
        running = forkserver.Process(words, stdout=output, stderr=subprocess.DEVNULL)
    with os.fdopen(reader) as lines:
        assert lines.readline() == f"Cluster        {cluster.url}\n"
    assert running.wait(20) == 141, "as a shell shows a program that SIGPIPE ended"


def test_elsewhere_there_is_a_document_for_each_change(
    cluster: LiveServer, watcher: tuple[forkserver.Process, Path]
) -> None:
    running, path = watcher
    (first,) = eventually(lambda: documents(path))
    entry = {"metadata": {"name": f"key-{'d' * 64}"}, "spec": {"publicKey": f"sha256:{'d' * 64}"}}
    cluster.run(lambda client: client.create("certificaterevocations", entry))
    number = first["revocations"]["entries"]
    found = eventually(lambda: [one for one in documents(path) if one["revocations"]["entries"] == number + 1])
    assert len(found) == 1
    cluster.run(lambda client: client.delete("certificaterevocations", entry["metadata"]["name"]))
    running.send_signal(signal.SIGINT)
    assert running.wait(20) == 130
