"""`mooring doctor` against simulated peers, each with one fault, and against a real server before and after a membership."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mooring.agent.doctor import probes
from mooring.agent.doctor.run import AT_ONCE
from mooring.agent.join import join
from mooring.agent.pairfiles import Pair
from mooring.agent.state import NodeState
from mooring.agent.steps import JoinError
from mooring.cli.main import SECRET_OPTIONS
from mooring.secret import Secret
from mooring.trust.bootstraptoken.token import BootstrapToken
from mooring.trust.discovery import clusterinfo
from mooring.trust.doctor import SILENT, STEPS, TcpAttempt
from mooring.trust.kubeconfig import Cluster, KubeconfigUser, cluster_info_kubeconfig, user_kubeconfig
from mooring.trust.kubeconfigtext import format_kubeconfig
from tests.scenarios.test_renewal import joined
from tests.support import reissue
from tests.support.apiserverpeer import TOKEN, api_server, closed_port, pin
from tests.support.commandline import CommandLine, Outcome, mooring, process
from tests.support.connectproxy import connect_proxy
from tests.support.joinplans import join_options, join_plan
from tests.support.kubernetespeer import VERSION as VERSION_OF_PEER
from tests.support.kubernetespeer import kubernetes_peer
from tests.support.liveserver import LiveServer, live_server, manual_approval
from tests.support.peer import Answer, ReceivedRequest, Reply, byte_peer, http_peer
from tests.support.supervisorpeer import PASSWORD, supervisor_peer
from tests.support.testca import ThrowawayCA

__all__ = ["live_server", "manual_approval", "mooring"]
Doctor = Callable[..., dict[str, Any]]


@pytest.fixture
def doctor(mooring: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Doctor:
    """Return a function that runs the command and returns its document; its steps by name are the entry `by`."""
    for name in [*probes_variables(), "MOORING_TOKEN"]:
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str, root: Path = tmp_path / "root", timeout: str = "5s") -> dict[str, Any]:
        outcome = mooring("doctor", *arguments, "--root", str(root), "--timeout", timeout, "-o", "json")
        return document(outcome)

    return run


def probes_variables() -> list[str]:
    return [one for one in os.environ if one.lower() in ("https_proxy", "http_proxy", "no_proxy", "all_proxy")]


def document(outcome: Outcome) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(outcome.out)
    found["by"] = {one["name"]: one for one in found["steps"]}
    assert found["exitCode"] == outcome.code
    assert found["healthy"] is (outcome.code == 0)
    assert (outcome.err == "") is found["healthy"], outcome.err
    assert len(outcome.err.splitlines()) <= 1
    return found


def check(found: dict[str, Any], step: str, code: int, *texts: str) -> None:
    """Check the first broken step, its exit code, and parts of its sentences."""
    assert (found["firstFailure"], found["exitCode"]) == (step, code), found["summary"]
    for text in texts:
        assert text in found["summary"]


# ── the network ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_port_that_refuses(doctor: Doctor) -> None:
    found = doctor(f"127.0.0.1:{closed_port()}")
    check(found, "tcp", 11, "refuses the connection", "no program listens at that port")
    assert found["by"]["tls"]["result"] == "skipped"
    assert found["by"]["tls"]["message"] == found["by"]["node"]["message"] == "tcp failed"


def test_a_name_that_does_not_exist(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(host: str, port: int) -> probes.Addresses:
        raise probes.UnresolvedError("name or service not known", is_final=True)

    monkeypatch.setattr(probes, "resolve", resolve)
    check(doctor("nowhere.test:6443"), "names", 11, "nowhere.test cannot be resolved", "check the spelling")


def test_ipv6_that_is_advertised_and_dead(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    ca = ThrowawayCA()

    async def resolve(host: str, port: int) -> probes.Addresses:
        return ((6, "::1"), (4, "127.0.0.1"))

    async def connect_to(address: str, port: int, seconds: float) -> TcpAttempt:
        if address == "::1":
            return TcpAttempt(6, address, SILENT)
        return await connect(address, port, seconds)

    connect = probes.connect_to
    monkeypatch.setattr(probes, "resolve", resolve)
    monkeypatch.setattr(probes, "connect_to", connect_to)
    with http_peer(api_server(ca), ca.server()) as peer:
        found = doctor(f"localhost:{peer.port}")
    assert found["healthy"]
    assert found["by"]["tcp"]["result"] == "warning"
    assert "IPv6 is advertised and dead: ::1 does not answer" in found["by"]["tcp"]["message"]


def test_the_address_that_passes_is_used(doctor: Doctor) -> None:
    ca, port = ThrowawayCA(), closed_port()
    with http_peer(api_server(ca), ca.server()) as peer:
        found = doctor(f"127.0.0.1:{port}", peer.endpoint)
    assert found["healthy"]
    assert found["address"] == peer.endpoint
    assert [(one["address"], one["step"]) for one in found["otherAddresses"]] == [(f"127.0.0.1:{port}", "tcp")]


def test_addresses_are_examined_a_few_at_a_time(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    ca, connect = ThrowawayCA(), probes.connect_to
    silent = [f"192.0.2.{number}:6443" for number in range(1, AT_ONCE + 3)]
    waiting, together, released = list[str](), list[int](), asyncio.Event()

    async def connect_to(address: str, port: int, seconds: float) -> TcpAttempt:
        if address == "127.0.0.1":
            return await connect(address, port, seconds)
        waiting.append(address)
        together.append(len(waiting))
        if len(waiting) == AT_ONCE:
            released.set()
        # It ends early where as many wait at the same time.
        try:
            async with asyncio.timeout(seconds):
                await released.wait()
        finally:
            waiting.remove(address)
        return TcpAttempt(4, address, SILENT)

    monkeypatch.setattr(probes, "connect_to", connect_to)
    with http_peer(api_server(ca), ca.server()) as peer:
        found = doctor(*silent, peer.endpoint, timeout="2s")
    assert (found["healthy"], found["address"]) == (True, peer.endpoint)
    assert [(one["address"], one["step"]) for one in found["otherAddresses"]] == [(one, "tcp") for one in silent]
    assert max(together) == AT_ONCE


def test_addresses_behind_the_one_that_passes_are_dropped(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    ca, connect, ends = ThrowawayCA(), probes.connect_to, list[str]()

    async def connect_to(address: str, port: int, seconds: float) -> TcpAttempt:
        if address == "127.0.0.1":
            return await connect(address, port, seconds)
        try:
            await asyncio.Event().wait()
        finally:
            ends.append(address)
        raise AssertionError

    monkeypatch.setattr(probes, "connect_to", connect_to)
    with http_peer(api_server(ca), ca.server()) as peer:
        found = doctor(peer.endpoint, "192.0.2.1:6443", "192.0.2.2:6443")
    assert (found["healthy"], found["address"], found["otherAddresses"]) == (True, peer.endpoint, [])
    assert ends == ["192.0.2.1", "192.0.2.2"]


def test_a_proxy_that_does_not_listen(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    port = closed_port()
    monkeypatch.setenv("HTTPS_PROXY", f"http://joe:verysecretword@127.0.0.1:{port}")
    found = doctor("192.0.2.1:6443")
    check(
        found,
        "tcp",
        11,
        f"the proxy (http://127.0.0.1:{port}): no connection to port {port}",
        "NO_PROXY excepts servers",
    )
    assert found["by"]["proxy"]["facts"] == {"proxy": f"http://127.0.0.1:{port}", "source": "HTTPS_PROXY"}
    assert "verysecretword" not in json.dumps(found)


def test_a_way_through_a_proxy(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    ca = ThrowawayCA()
    with (
        http_peer(api_server(ca, TOKEN), ca.server("api.test")) as peer,
        connect_proxy(peer.port) as proxy,
        connect_proxy(refusal=b"HTTP/1.1 403 Forbidden by policy\r\n\r\n") as refusing,
    ):
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        found = doctor("api.test:6443", "--discovery-token-ca-cert-hash", pin(ca))
        assert found["healthy"], found["summary"]
        # This machine resolves and connects the proxy, which connects the server.
        assert found["by"]["names"]["facts"]["host"] == "127.0.0.1"
        assert "api.test" in found["by"]["tls"]["facts"]["names"]
        assert {head.split(" ")[1] for head in proxy.heads if head} == {"api.test:6443"}
        monkeypatch.setenv("HTTPS_PROXY", refusing.url)
        check(doctor("api.test:6443"), "tcp", 11, "refuses: HTTP/1.1 403 Forbidden by policy", "NO_PROXY")
        monkeypatch.setenv("HTTPS_PROXY", refusing.url.replace("http://", "http://joe:verysecretword@"))
        check(doctor("api.test:6443"), "tcp", 11, "refuses", "403 Forbidden by policy", "NO_PROXY")
        monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("http:", "socks4:"))
        check(doctor("api.test:6443"), "proxy", 11, "HTTPS_PROXY", "NO_PROXY")
        monkeypatch.setenv("NO_PROXY", "127.0.0.0/8")
        excepted = doctor(peer.endpoint)["by"]["proxy"]
        assert excepted["message"] == "HTTPS_PROXY is set, and NO_PROXY excepts 127.0.0.1"


# ── the program that answers ─────────────────────────────────────────────────────────────────────────────────────────


def test_plain_http_on_the_port(doctor: Doctor) -> None:
    with http_peer() as peer:
        check(doctor(peer.endpoint, timeout="300ms"), "tls", 12, "speaks plain HTTP and not TLS", "HTTPS address")


def test_another_protocol_on_the_port(doctor: Doctor) -> None:
    with byte_peer(lambda peer: peer.sendall(b"SSH-2.0-OpenSSH_9.9\r\n")) as peer:
        check(doctor(peer.endpoint), "tls", 12, "its answer begins with 'SSH-2.0-OpenSSH")


def test_tls_that_hangs_behind_client_hello(doctor: Doctor) -> None:
    def swallow(peer: socket.socket) -> None:
        while peer.recv(1 << 16):
            pass

    with byte_peer(swallow) as peer:
        found = doctor(peer.endpoint, timeout="300ms")
    check(found, "tls", 12, "hangs behind ClientHello", "MTU")
    assert found["by"]["api"]["message"] == "tls failed"


def test_a_connection_that_is_closed_at_client_hello(doctor: Doctor) -> None:
    def close(peer: socket.socket) -> None:
        peer.recv(1 << 16)

    with byte_peer(close) as peer:
        check(doctor(peer.endpoint), "tls", 12, "the TLS handshake failed", "load balancer")


def test_a_captive_portal(doctor: Doctor) -> None:
    ca = ThrowawayCA("portal")
    login = Reply(302, b"<html><title>Welcome</title></html>", {"Location": "https://login.hotel.test/?t=1"})
    with http_peer(lambda asked: login, ca.server()) as peer:
        found = doctor(peer.endpoint)
    check(found, "api", 12, "a captive portal", "redirects to https://login.hotel.test", "log in at the portal")


def test_a_load_balancer_that_answers_401(doctor: Doctor) -> None:
    ca = ThrowawayCA()
    page = Reply(401, b"<html><title>401 Authorization Required</title></html>", {"Content-Type": "text/html"})
    with http_peer(lambda asked: page, ca.server()) as peer:
        found = doctor(peer.endpoint)
    check(found, "api", 12, "a load balancer or proxy answers in place of", "status 401 without a Kubernetes Status")


def test_a_server_that_drips(doctor: Doctor) -> None:
    ca, stop = ThrowawayCA(), threading.Event()

    def drip(peer: socket.socket) -> None:
        if peer.recv(1 << 16):
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n")
            while not stop.wait(0.02):
                peer.sendall(b"{")

    with byte_peer(drip, ca.server()) as peer:
        try:
            found = doctor(peer.endpoint, timeout="400ms")
        finally:
            stop.set()
    check(found, "api", 12, "no answer in time", "0.4 s")


# ── the clock ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("days", "side"), [(365, "behind"), (-365, "ahead of")])
def test_a_clock_that_is_a_year_off(doctor: Doctor, days: int, side: str) -> None:
    ca = ThrowawayCA()
    with http_peer(api_server(ca, now=datetime.now(UTC) + timedelta(days=days)), ca.server()) as peer:
        found = doctor(peer.endpoint)
    check(found, "clock", 13, side, "set the clocks by NTP")
    assert abs(found["by"]["clock"]["facts"]["offsetSeconds"] + days * 86400) < 60


def test_a_certificate_that_expired_by_both_clocks(doctor: Doctor) -> None:
    ca = ThrowawayCA(now=datetime.now(UTC) - timedelta(days=800))
    with http_peer(api_server(ca), ca.server()) as peer:
        check(doctor(peer.endpoint), "tls", 12, "expired at", "renew the certificate of the server")


# ── trust ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_interception(doctor: Doctor) -> None:
    ca, inspector = ThrowawayCA(), ThrowawayCA("Acme TLS Inspection")
    with http_peer(api_server(ca, TOKEN), inspector.server()) as peer:
        found = doctor(peer.endpoint, "--token", TOKEN, "--discovery-token-ca-cert-hash", pin(ca))
        check(found, "tls", 12, "another machine answers", 'issued by "CN=Acme TLS Inspection"')
        assert not any("authorization" in map(str.lower, one.headers) for one in peer.requests)


def test_a_wrong_pin(doctor: Doctor) -> None:
    ca = ThrowawayCA()
    with http_peer(api_server(ca, TOKEN), ca.server()) as peer:
        found = doctor(peer.endpoint, "--token", TOKEN, "--discovery-token-ca-cert-hash", f"sha256:{'ab' * 32}")
    check(found, "pin", 14, "no CA of the cluster has a pinned public key")
    assert found["by"]["token"]["message"] == "pin failed"


def test_a_wrong_secret_of_the_token(doctor: Doctor) -> None:
    ca, other = ThrowawayCA(), "abcdef.9999999999999999"
    with http_peer(api_server(ca, TOKEN), ca.server()) as peer:
        found = doctor(peer.endpoint, "--token", other)
    check(found, "signature", 14, 'for token id "abcdef" is wrong')
    assert "9999999999" not in json.dumps(found)


def test_an_unknown_token_id(doctor: Doctor) -> None:
    ca = ThrowawayCA()
    with http_peer(api_server(ca, TOKEN, "fedcba.1123456789abcdef"), ca.server()) as peer:
        found = doctor(peer.endpoint, "--token", "zzzzzz.1123456789abcdef")
    check(found, "signature", 14, 'no signature for token id "zzzzzz"', "tokens that sign: abcdef, fedcba")


def test_a_cluster_info_by_which_no_machine_can_join(doctor: Doctor, tmp_path: Path) -> None:
    ca, texts = ThrowawayCA(), [""]

    def answer(asked: ReceivedRequest) -> Reply:
        data = {"kubeconfig": texts[0].replace("SERVER", "https://" + asked.headers["Host"])}
        found = json.dumps({**clusterinfo.config_map("", b""), "data": data}).encode()
        return Reply(200, found) if asked.path == clusterinfo.PATH else api_server(ca)(asked)

    with http_peer(answer, ca.server()) as peer:
        texts[0] = "not: [yaml"
        check(doctor(peer.endpoint), "cluster-info", 14, "ask the cluster's administrator to repair it")
        document = tmp_path / "discovery.conf"
        document.write_text(format_kubeconfig(cluster_info_kubeconfig(peer.url, ca.certificate_pem)))
        found = doctor("--discovery-file", str(document))
        assert (found["healthy"], found["by"]["cluster-info"]["result"]) == (True, "warning")
        texts[0] = format_kubeconfig(cluster_info_kubeconfig("SERVER", b""))
        found = doctor(peer.endpoint)
        assert (found["healthy"], found["by"]["cluster-info"]["message"]) == (True, "cluster-info names no CA")
        user = KubeconfigUser("x", token=Secret("verysecretword"))
        texts[0] = format_kubeconfig(user_kubeconfig("SERVER", ca.certificate_pem, user))
        found = doctor(peer.endpoint)
    assert (found["healthy"], found["by"]["cluster-info"]["result"]) == (True, "warning")
    assert 'user "x" has a token' in found["by"]["cluster-info"]["message"]
    assert "verysecretword" not in json.dumps(found)


def test_a_token_that_the_server_does_not_accept(doctor: Doctor) -> None:
    ca = ThrowawayCA()
    with http_peer(api_server(ca, TOKEN), ca.server()) as peer:
        found = doctor(peer.endpoint, "--token", TOKEN, "--discovery-token-ca-cert-hash", pin(ca))
    check(found, "token", 15, 'does not accept token id "abcdef"', "mooring token list")


def status(code: int, reason: str) -> Reply:
    body = {"kind": "Status", "apiVersion": "v1", "code": code, "reason": reason, "message": f"it is {reason}"}
    return Reply(code, json.dumps(body).encode())


def reviews(*, allowed: bool) -> Answer:
    """Answer as kube-apiserver does to the reviews of a token, which may look up no Node."""

    def answer(asked: ReceivedRequest) -> Reply:
        if asked.path.endswith("/selfsubjectreviews"):
            user = {"username": "system:bootstrap:abcdef", "groups": ["system:bootstrappers"]}
            return Reply(201, json.dumps({"kind": "SelfSubjectReview", "status": {"userInfo": user}}).encode())
        if asked.path.endswith("/selfsubjectaccessreviews"):
            return Reply(201, json.dumps({"kind": "SelfSubjectAccessReview", "status": {"allowed": allowed}}).encode())
        return status(403, "Forbidden")

    return answer


@pytest.mark.parametrize(
    ("more", "step", "code", "text"),
    [
        (reviews(allowed=True), "", 0, "nothing is broken"),
        # A server before Kubernetes 1.28.
        (lambda asked: status(404, "NotFound"), "", 0, "nothing is broken"),
        (reviews(allowed=False), "token", 15, "does not let it request certificates; bind its groups"),
        (lambda asked: status(500, "InternalError"), "token", 15, "it is InternalError"),
    ],
)
def test_the_answer_to_a_token(doctor: Doctor, more: Answer, step: str, code: int, text: str) -> None:
    ca = ThrowawayCA()
    with http_peer(api_server(ca, TOKEN, more=more), ca.server()) as peer:
        found = doctor(peer.endpoint, "--token", TOKEN, "--discovery-token-ca-cert-hash", pin(ca))
        check(found, step, code, text)
        unpinned = doctor(peer.endpoint, "--token", TOKEN)
    assert unpinned["firstFailure"] == step
    assert unpinned["by"]["pin"]["result"] == "warning"


def test_a_server_that_hangs_at_the_token(doctor: Doctor) -> None:
    ca, stop = ThrowawayCA(), threading.Event()

    def hang(asked: ReceivedRequest) -> Reply:
        stop.wait(60)
        return Reply(500)

    with http_peer(api_server(ca, TOKEN, more=hang), ca.server()) as peer:
        try:
            found = doctor(peer.endpoint, "--token", TOKEN, timeout="400ms")
        finally:
            stop.set()
    check(found, "token", 15, "no answer within 0.4 s", "--timeout")


@pytest.mark.parametrize(
    ("uid", "answer", "result", "text"),
    [
        ("1-2-3", status(404, "NotFound"), "failed", "the Node worker-1 was deleted"),
        ("", status(404, "NotFound"), "warning", "there is no Node worker-1"),
        ("", status(403, "Forbidden"), "skipped", "does not let this node read its Node"),
    ],
)
def test_a_node_that_the_cluster_does_not_have(
    doctor: Doctor, uid: str, answer: Reply, result: str, text: str, tmp_path: Path
) -> None:
    ca, state = ThrowawayCA(), NodeState(tmp_path)
    pair = ca.node("worker-1")
    state.client.write_pair(Pair((pair.certificate,), pair.key), ca.now)
    state.record.write("nodeUID", uid)
    with http_peer(api_server(ca, more=lambda asked: answer), ca.server()) as peer:
        state.write_kubeconfig((Cluster("", peer.url, ca.certificate_pem),))
        found = doctor(root=tmp_path)
    assert found["by"]["certificate"]["result"] == "ok"
    assert found["by"]["node"]["result"] == result
    assert text in found["by"]["node"]["message"]
    assert found["exitCode"] == (17 if result == "failed" else 0)


def test_a_resolver_that_hangs(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(host: str, port: int) -> probes.Addresses:
        await asyncio.Event().wait()
        return ()

    monkeypatch.setattr(probes, "resolve", resolve)
    found = doctor("api.test:6443", timeout="200ms")
    check(found, "names", 11, "cannot be resolved: no answer within 0.2 s", "/etc/resolv.conf")


# ── a real server ────────────────────────────────────────────────────────────────────────────────────────────────────


def flags(server: LiveServer, token: BootstrapToken) -> list[str]:
    secret = token.reveal()
    return [server.endpoint, "--token", secret, "--discovery-token-ca-cert-hash", server.pin]


def test_before_a_join(doctor: Doctor, live_server: LiveServer, tmp_path: Path) -> None:
    token = live_server.create_token()
    found = doctor(*flags(live_server, token), "--node-name", "examined")
    assert found["healthy"], found["summary"]
    assert found["by"]["api"]["facts"]["server"] == "Mooring"
    assert found["by"]["token"]["facts"]["username"] == f"system:bootstrap:{token.id}"
    assert {one["result"] for one in found["steps"]} <= {"ok", "skipped"}
    assert not (tmp_path / "root").exists()


def test_after_a_join_and_after_the_node_was_deleted(doctor: Doctor, live_server: LiveServer, tmp_path: Path) -> None:
    token, root = live_server.create_token(), tmp_path / "member"
    root.mkdir()
    plan = join_plan("healed", (live_server.endpoint,), token.reveal(), pins=(live_server.pin,))
    asyncio.run(join(plan, join_options(root=root, certificate_timeout=60.0)))
    before = tree(root)
    found = doctor(root=root)
    assert found["healthy"], found["summary"]
    assert found["by"]["certificate"]["result"] == "ok"
    assert "no program keeps it so" in found["by"]["node"]["message"]
    elsewhere = doctor(f"localhost:{live_server.port}", root=root)
    assert elsewhere["by"]["certificate"]["result"] == "ok", elsewhere["summary"]
    assert doctor(*flags(live_server, token), root=root)["by"]["certificate"]["result"] == "ok"
    assert found["by"]["files"]["facts"]["nodeName"] == "healed"
    assert tree(root) == before
    other = ThrowawayCA()
    with http_peer(api_server(other, TOKEN), other.server()) as peer:
        moved = doctor(peer.endpoint, "--token", TOKEN, "--discovery-token-ca-cert-hash", pin(other), root=root)
        check(moved, "pin", 14, f"the files here are of another cluster ({live_server.url})", "mooring leave")
        check(doctor(peer.endpoint, root=root), "tls", 12, "another machine answers")
    kubeconfig = NodeState(root).kubeconfig
    written = kubeconfig.read_text()
    own, foreign = (base64.b64encode(one).decode() for one in (live_server.ca_pem, other.certificate_pem))
    kubeconfig.write_text(written.replace(own, foreign))
    check(
        doctor(*flags(live_server, token), root=root), "pin", 14, "another CA for this cluster", "run this mooring join"
    )
    asyncio.run(join(plan, join_options(root=root)))
    assert (kubeconfig.read_text(), doctor(root=root)["healthy"]) == (written, True)
    kubeconfig.write_text(written.replace(live_server.url, "https://127.0.0.1:1"))
    check(doctor(root=root), "tcp", 11, "the address is that in the files of this machine", "mooring join ADDRESS")
    kubeconfig.write_text(written)
    before = tree(root)
    live_server.run(lambda client: client.delete("nodes", "healed"))
    check(doctor(root=root), "certificate", 17, "system:node:healed", "join again with a token")
    assert tree(root) == before


def test_an_agent_with_another_address_and_a_certificate_that_ended(
    doctor: Doctor, live_server: LiveServer, tmp_path: Path
) -> None:
    root = tmp_path / "member"
    state = joined(live_server, "strayed", root)
    state.kubeconfig.write_text(state.kubeconfig.read_text().replace(live_server.url, "https://127.0.0.1:1"))
    spec = {"holderIdentity": "strayed", "leaseDurationSeconds": 40, "renewTime": "2020-01-01T00:00:00.000000Z"}
    lease = {"metadata": {"name": "strayed"}, "spec": spec}
    live_server.run(lambda client: client.create("leases", lease, "kube-node-lease"))
    found = doctor(live_server.endpoint, root=root)
    check(
        found,
        "node",
        17,
        f"name 127.0.0.1:1 and not {live_server.endpoint}",
        f"mooring join {live_server.endpoint} --token",
    )
    reissue.place(live_server, state, timedelta(minutes=-4), timedelta(minutes=-1))
    check(
        doctor(live_server.endpoint, root=root),
        "certificate",
        17,
        "ended at",
        "without a token",
        "mooring agent install",
    )


def test_a_name_that_another_machine_has(doctor: Doctor, live_server: LiveServer, tmp_path: Path) -> None:
    token, root = live_server.create_token(), tmp_path / "member"
    root.mkdir()
    plan = join_plan("taken", (live_server.endpoint,), token.reveal(), pins=(live_server.pin,))
    asyncio.run(join(plan, join_options(root=root, certificate_timeout=60.0)))
    found = doctor(*flags(live_server, token), "--node-name", "taken")
    check(found, "name", 16, 'a node in use of the name "taken"', "--node-name")


def test_a_name_whose_node_is_there_and_not_in_use(doctor: Doctor, live_server: LiveServer) -> None:
    token = live_server.create_token()
    live_server.run(lambda client: client.create("nodes", {"metadata": {"name": "gone"}}))
    found = doctor(*flags(live_server, token), "--node-name", "gone")
    assert found["by"]["name"]["result"] == "warning"
    assert 'a Node "gone", which is not in use' in found["by"]["name"]["message"]
    assert "kubectl delete node gone" in found["by"]["name"]["remedy"]
    assert found["summary"].endswith("; look at: name")


def test_a_request_that_waits_for_a_person(doctor: Doctor, manual_approval: LiveServer, tmp_path: Path) -> None:
    token = manual_approval.create_token(groups=("system:bootstrappers:manual",))
    root = tmp_path / "waiting"
    root.mkdir()
    plan = join_plan("waiting", (manual_approval.endpoint,), token.reveal(), pins=(manual_approval.pin,))
    with pytest.raises(JoinError):
        asyncio.run(join(plan, join_options(root=root, certificate_timeout=0.2)))
    before = tree(root)
    found = doctor(*flags(manual_approval, token), "--node-name", "waiting", root=root)
    check(found, "request", 16, "waits for a person", "mooring csr approve node-csr-")
    assert found["by"]["files"]["result"] == "warning"
    assert tree(root) == before


def test_the_address_of_another_cluster(doctor: Doctor, live_server: LiveServer) -> None:
    found = doctor(live_server.endpoint, "--token", TOKEN, "--discovery-token-ca-cert-hash", pin(ThrowawayCA()))
    check(found, "signature", 14, f"another cluster answers at {live_server.endpoint}", "check the address")


def test_a_discovery_document(doctor: Doctor, live_server: LiveServer, tmp_path: Path) -> None:
    file, token = tmp_path / "discovery.conf", live_server.create_token()
    file.write_text(format_kubeconfig(cluster_info_kubeconfig(live_server.url, live_server.ca_pem)))
    found = doctor("--discovery-file", str(file), "--token", token.reveal())
    assert found["healthy"], found["summary"]
    assert (found["address"], found["by"]["token"]["result"]) == (live_server.endpoint, "ok")
    file.write_text(format_kubeconfig(cluster_info_kubeconfig(live_server.url, ThrowawayCA().certificate_pem)))
    check(doctor("--discovery-file", str(file)), "tls", 12, "another machine answers")


def test_a_discovery_document_behind_a_url(
    doctor: Doctor, mooring: CommandLine, live_server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, roots = ThrowawayCA("public"), tmp_path / "roots.pem"
    roots.write_bytes(site.certificate_pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(roots))
    document = format_kubeconfig(cluster_info_kubeconfig(live_server.url, live_server.ca_pem)).encode()
    answers = {"/found?key=verysecretword": Reply(200, document)}
    with http_peer(lambda asked: answers.get(asked.path, Reply(404)), site.server()) as peer:
        found = doctor("--discovery-file", f"{peer.url}/found?key=verysecretword")
        assert found["healthy"], found["summary"]
        assert found["address"] == live_server.endpoint
        missing = mooring("doctor", "--discovery-file", f"{peer.url}/missing?key=verysecretword")
        named = format_kubeconfig(cluster_info_kubeconfig(live_server.url, b"")).replace(
            "server:", "certificate-authority: /etc/passwd\n    server:"
        )
        answers["/named"] = Reply(200, named.encode())
        reading = mooring("doctor", "--discovery-file", f"{peer.url}/named")
    assert (missing.code, reading.code) == (1, 1)
    assert "/missing (step 1): the server answered with status 404" in missing.err
    assert "verysecretword" not in missing.all
    assert "files named by this document are not read" in reading.err


def test_a_discovery_document_that_vouches_for_no_server(doctor: Doctor, tmp_path: Path) -> None:
    file, ca = tmp_path / "discovery.conf", ThrowawayCA()
    with http_peer(api_server(ca), ca.server()) as peer:
        config = cluster_info_kubeconfig(peer.url, b"")
        insecure = replace(config.clusters[0], insecure_skip_tls_verify=True)
        file.write_text(format_kubeconfig(replace(config, clusters=(insecure,))))
        outcome = process("doctor", "--discovery-file", str(file), "--token", TOKEN, "--root", str(tmp_path))
        assert (outcome.code, peer.requests) == (1, [])
    assert "insecure-skip-tls-verify" in outcome.err


def test_a_kube_apiserver(doctor: Doctor) -> None:
    with kubernetes_peer() as peer:
        found = doctor(peer.url.removeprefix("https://"))
    check(found, "cluster-info", 14, "404")
    assert found["by"]["api"]["facts"] == {"status": 200, "server": "Kubernetes", "version": VERSION_OF_PEER}


def tree(root: Path) -> dict[str, tuple[int, int]]:
    """Return every file below a directory with its inode and the time of its last change."""
    return {str(one): (one.lstat().st_ino, one.lstat().st_mtime_ns) for one in sorted(root.rglob("*"))}


# ── k3s's way ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_supervisor_of_k3s(doctor: Doctor) -> None:
    with supervisor_peer() as peer:
        found = doctor("--server", peer.url, "--token", peer.token)
        assert found["firstFailure"] == "", found["summary"]
        assert [found["by"][one]["result"] for one in ("cluster-info", "signature", "pin", "token")] == [
            "ok",
            "skipped",
            "ok",
            "ok",
        ]
        wrong = doctor(peer.url, "--token", peer.token[:-1] + "x")
        check(wrong, "token", 15, "the token: it is unknown, has expired")
        foreign = f"K10{'ab' * 32}::node:{PASSWORD}"
        check(doctor("--server", peer.url, "--token", foreign), "pin", 14, "token CA hash does not match")
        unproved = doctor("--server", peer.url, "--token", PASSWORD)
        assert (unproved["by"]["pin"]["result"], unproved["by"]["token"]["result"]) == ("warning", "skipped")
        assert doctor("--server", peer.url)["by"]["token"]["message"] == "no token is given"


def test_a_supervisor_behind_a_firewall_that_inspects_tls(doctor: Doctor) -> None:
    inspector = ThrowawayCA("Acme TLS Inspection")
    with supervisor_peer(serving=inspector.server()) as peer:
        check(doctor("--server", peer.url, "--token", peer.token), "tls", 12, 'issued by "CN=Acme TLS Inspection"')


def test_a_server_without_supervisor(doctor: Doctor, live_server: LiveServer) -> None:
    found = doctor(live_server.endpoint, "--token", f"K10{'ab' * 32}::node:{PASSWORD}")
    check(found, "cluster-info", 14, "no supervisor of k3s answers there")


# ── values from a file ───────────────────────────────────────────────────────────────────────────────────────────────


def test_the_configuration_file_of_a_join(doctor: Doctor, live_server: LiveServer, tmp_path: Path) -> None:
    file, token = tmp_path / "agent.yaml", live_server.create_token()
    lines = (
        f"address: {live_server.endpoint}",
        f"token: {token.reveal()}",
        f"discovery-token-ca-cert-hash: {live_server.pin}",
    )
    file.write_text("\n".join(lines))
    file.chmod(0o600)
    found = doctor("--config", str(file))
    assert found["healthy"], found["summary"]
    assert found["by"]["token"]["result"] == found["by"]["pin"]["result"] == "ok"


@pytest.mark.parametrize(("tls_token", "code", "result"), [("", 0, "ok"), ("zzzzzz.1123456789abcdef", 15, "failed")])
def test_the_tokens_of_discovery_and_of_the_request(
    doctor: Doctor, live_server: LiveServer, monkeypatch: pytest.MonkeyPatch, tls_token: str, code: int, result: str
) -> None:
    token = live_server.create_token()
    monkeypatch.setenv("MOORING_DISCOVERY_TOKEN", token.reveal())
    monkeypatch.setenv("MOORING_TLS_BOOTSTRAP_TOKEN", tls_token or token.reveal())
    found = doctor(live_server.endpoint, "--discovery-token-ca-cert-hash", live_server.pin)
    assert found["exitCode"] == code, found["summary"]
    assert (found["by"]["signature"]["result"], found["by"]["token"]["result"]) == ("ok", result)


def test_variables_of_k3s(mooring: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They win over Mooring's, as in a join."""
    wrong, file, gone = f"K10{'ab' * 32}::node:{PASSWORD}", tmp_path / "token", tmp_path / "gone"
    with supervisor_peer() as peer:
        file.write_text(peer.token)
        for variables, code in (
            ({"K3S_TOKEN": peer.token}, 0),
            ({"K3S_TOKEN": peer.token, "MOORING_TOKEN": wrong}, 0),
            ({"K3S_TOKEN": wrong, "K3S_TOKEN_FILE": str(file)}, 0),
            ({"K3S_TOKEN": wrong, "MOORING_TOKEN": peer.token}, 14),
            ({"K3S_TOKEN_FILE": str(gone)}, 1),
        ):
            with monkeypatch.context() as environment:
                for name, value in ({"K3S_URL": peer.url, "K3S_NODE_NAME": "given"} | variables).items():
                    environment.setenv(name, value)
                outcome = mooring("doctor", "--root", str(tmp_path), "-o", "json")
            assert outcome.code == code, outcome.all
            if code == 0:
                assert [one["result"] for one in json.loads(outcome.out)["steps"] if one["name"] == "token"] == ["ok"]
    ca, state = ThrowawayCA(), NodeState(tmp_path)
    pair = ca.node("worker-1")
    state.client.write_pair(Pair((pair.certificate,), pair.key), datetime.now(UTC))
    state.write_kubeconfig((Cluster("", "https://127.0.0.1:1", ca.certificate_pem),))
    outcome = process("doctor", "--root", str(tmp_path), K3S_URL="https://127.0.0.1:1", K3S_NODE_NAME="given")
    assert (outcome.code, 'the name "given" was given' in outcome.err) == (10, True)


def test_a_configuration_file_that_this_user_may_not_read(
    mooring: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, access = tmp_path / "etc/mooring/agent.yaml", os.access
    file.parent.mkdir(parents=True)
    file.write_text("no: flag")
    monkeypatch.setattr(os, "access", lambda path, mode: path != file and access(path, mode))
    outcome = mooring("doctor", f"127.0.0.1:{closed_port()}", "--root", str(tmp_path))
    assert outcome.code == 11
    assert outcome.err.startswith(f"Warning: {file} is not used: this user may not read it\nError: tcp: ")


# ── the command ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_without_an_address_and_without_files(mooring: CommandLine, tmp_path: Path) -> None:
    outcome = mooring("doctor", "--root", str(tmp_path))
    assert outcome.code == 2
    assert "give ADDRESS" in outcome.err


def test_a_certificate_is_not_sent_to_a_server_that_nothing_proves(doctor: Doctor, tmp_path: Path) -> None:
    ca, root = ThrowawayCA(), tmp_path / "root"
    state, pair = NodeState(root), ca.node("worker-1")
    state.client.write_pair(Pair((pair.certificate,), pair.key), datetime.now(UTC))
    with http_peer(api_server(ca), ThrowawayCA("another").server()) as peer:
        state.write_kubeconfig((Cluster("", peer.url, insecure_skip_tls_verify=True),))
        check(doctor(), "certificate", 17, "insecure-skip-tls-verify", "the certificate is not sent")
        assert not any("/nodes/" in one.path for one in peer.requests)


def test_files_of_a_member_that_name_no_ca(doctor: Doctor, tmp_path: Path) -> None:
    ca, root = ThrowawayCA(), tmp_path / "root"
    state, pair = NodeState(root), ca.node("worker-1")
    state.client.write_pair(Pair((pair.certificate,), pair.key), datetime.now(UTC))
    with http_peer(api_server(ca), ca.server()) as peer:
        state.write_kubeconfig((Cluster("", peer.url),))
        found = doctor()
    check(found, "certificate", 17, "the files here name no CA", "join again with a token")
    assert "another machine" not in found["summary"]
    assert (found["by"]["files"]["result"], "names no CA" in found["by"]["files"]["message"]) == ("warning", True)


@pytest.mark.parametrize("text", ["{", None])
def test_files_of_a_member_that_name_no_server(doctor: Doctor, tmp_path: Path, text: str | None) -> None:
    ca, state = ThrowawayCA(), NodeState(tmp_path / "root")
    pair = ca.node("worker-1")
    state.client.write_pair(Pair((pair.certificate,), pair.key), datetime.now(UTC))
    if text is not None:
        state.kubeconfig.parent.mkdir(parents=True)
        state.kubeconfig.write_text(text)
    found = doctor()
    check(found, "files", 10, "join again with a token")
    assert (found["address"], len(found["steps"])) == ("", len(STEPS))
    assert found["by"]["tcp"]["message"] == "the files here name no server, and no ADDRESS is given"


def test_no_secret_is_printed(live_server: LiveServer, tmp_path: Path) -> None:
    token = live_server.create_token().reveal()
    secret = token.partition(".")[2]
    for form in ("text", "json", "yaml"):
        for arguments, variables in ((("--token", token), {}), ((), {"MOORING_TOKEN": token})):
            for address in (live_server.endpoint, f"127.0.0.1:{closed_port()}"):
                place = ("doctor", address, "--root", str(tmp_path), "-o", form)
                outcome = process(*place, *arguments, **variables)
                assert outcome.code in (0, 11)
                assert secret not in outcome.all
    assert "--token" in SECRET_OPTIONS


def test_text(live_server: LiveServer, tmp_path: Path) -> None:
    outcome = process("doctor", live_server.endpoint, "--root", str(tmp_path))
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[0].split() == ["STEP", "RESULT", "TIME", "FOUND"]
    assert lines[-1] == f"Nothing is broken between this machine and {live_server.endpoint}."
