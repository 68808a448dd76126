"""Ends of the errors of `mooring join` and `mooring agent`: the line of the doctor, when it says more."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mooring.agent.doctor import probes
from mooring.cli.join import diagnosis
from mooring.trust.doctor import SILENT, TcpAttempt
from mooring.trust.kubeconfig import cluster_info_kubeconfig
from mooring.trust.kubeconfigtext import format_kubeconfig
from tests.support.apiserverpeer import TOKEN, api_server, closed_port, pin
from tests.support.commandline import CommandLine, Outcome, mooring, process
from tests.support.liveserver import LiveServer, live_server, manual_approval
from tests.support.peer import Reply, http_peer
from tests.support.supervisorpeer import supervisor_peer
from tests.support.testca import ThrowawayCA

__all__ = ["live_server", "manual_approval", "mooring"]
Join = Callable[..., Outcome]
PORTAL = Reply(302, b"<html><title>Welcome</title></html>", {"Location": "https://login.hotel.test/?t=1"})
DOCTOR = "; mooring doctor: "


@pytest.fixture
def join(mooring: CommandLine, tmp_path: Path) -> Join:
    """Return a function that runs a join with a token and a pin, which ends soon."""

    def run(address: str, ca: ThrowawayCA, *more: str, command: str = "join") -> Outcome:
        pins = ("--discovery-token-ca-cert-hash", pin(ca))
        rest = ("--discovery-timeout", "200ms", "--root", str(tmp_path), *more)
        return mooring(command, address, "--token", TOKEN, *pins, *rest)

    return run


def check(outcome: Outcome, *texts: str) -> None:
    """Check the end of the one line of a failed join."""
    assert outcome.code == 1
    line = outcome.err.splitlines()[-1]
    error, found, doctor = line.partition(DOCTOR)
    assert error.startswith("Error: join failed at step "), outcome.err
    assert found, outcome.err
    for text in texts:
        assert text in doctor
    assert TOKEN not in outcome.all


@pytest.mark.parametrize("command", ["join", "agent"])
def test_a_captive_portal(join: Join, command: str) -> None:
    ca = ThrowawayCA("portal")
    with http_peer(lambda asked: PORTAL, ca.server()) as peer:
        check(join(peer.endpoint, ca, command=command), "api: a captive portal", "; log in at the portal")


def test_interception(join: Join) -> None:
    ca, inspector = ThrowawayCA(), ThrowawayCA("Acme TLS Inspection")
    with http_peer(api_server(ca, TOKEN), inspector.server()) as peer:
        check(join(peer.endpoint, ca), "tls: another machine answers in place of the cluster", "Acme TLS Inspection")
        assert not any("authorization" in map(str.lower, one.headers) for one in peer.requests)


@pytest.mark.parametrize(("days", "side"), [(365, "behind"), (-365, "ahead of")])
def test_a_clock_that_is_a_year_off(join: Join, days: int, side: str) -> None:
    now = datetime.now(UTC) + timedelta(days=days)
    ca = ThrowawayCA(now=now)
    with http_peer(api_server(ca, TOKEN, now=now), ca.server()) as peer:
        outcome = join(peer.endpoint, ca)
    assert outcome.code == 1
    assert f"s {side} the server's" in outcome.err
    assert "mooring doctor" not in outcome.err, "the error says it already"


def test_ipv6_that_is_advertised_and_dead(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(host: str, port: int) -> probes.Addresses:
        return ((6, "::1"), (4, "127.0.0.1"))

    async def connect_to(address: str, port: int, seconds: float) -> TcpAttempt:
        return TcpAttempt(6, address, SILENT) if address == "::1" else await connect(address, port, seconds)

    connect = probes.connect_to
    monkeypatch.setattr(probes, "resolve", resolve)
    monkeypatch.setattr(probes, "connect_to", connect_to)
    check(join(f"localhost:{closed_port()}", ThrowawayCA()), "tcp: ", "::1 does not answer")


def test_a_supervisor_of_k3s(mooring: CommandLine, tmp_path: Path) -> None:
    inspector = ThrowawayCA("Acme TLS Inspection")
    with supervisor_peer(serving=inspector.server()) as peer:
        flags = ("--server", peer.url, "--token", peer.token, "--disable-apiserver-lb")
        outcome = mooring("agent", *flags, "--discovery-timeout", "200ms", "--root", str(tmp_path))
        secret = peer.token.rpartition(":")[2]
    check(outcome, "tls: another machine answers in place of the cluster")
    assert secret not in outcome.all


def test_a_discovery_document(mooring: CommandLine, tmp_path: Path) -> None:
    ca, file = ThrowawayCA("portal"), tmp_path / "discovery.conf"
    flags = ("--token", TOKEN, "--discovery-timeout", "200ms", "--root", str(tmp_path))
    with http_peer(lambda asked: PORTAL, ca.server()) as peer:
        content = format_kubeconfig(cluster_info_kubeconfig(peer.url, ca.certificate_pem))
        file.write_text(content)
        check(mooring("join", "--discovery-file", str(file), *flags), "api: a captive portal")
        piped = process("join", "--discovery-file", "-", *flags, stdin=content)
    assert piped.code == 1
    assert DOCTOR not in piped.err


def test_a_document_for_programs(join: Join) -> None:
    ca = ThrowawayCA("portal")
    with http_peer(lambda asked: PORTAL, ca.server()) as peer:
        outcome = join(peer.endpoint, ca, "-o", "json")
    document: dict[str, Any] = json.loads(outcome.out)
    doctor = document["error"]["doctor"]
    assert list(doctor) == ["step", "class", "message", "remedy"]
    assert (doctor["step"], doctor["class"]) == ("api", "server")
    assert "a captive portal" in doctor["message"]
    assert "log in at the portal" in doctor["remedy"]
    assert "mooring doctor" not in document["error"]["message"]
    check(outcome, "api: a captive portal")


# ── nothing is added ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("status", [401, 404, 503])
def test_another_program_that_answers(join: Join, status: int) -> None:
    ca = ThrowawayCA()
    with http_peer(lambda asked: Reply(status, b"<html><title>No</title></html>"), ca.server()) as peer:
        outcome = join(peer.endpoint, ca)
    assert f"status {status} without a Kubernetes Status" in outcome.err
    assert DOCTOR not in outcome.err


def test_a_token_that_the_cluster_does_not_know(join: Join) -> None:
    ca = ThrowawayCA()
    with http_peer(api_server(ca, "fedcba.1123456789abcdef"), ca.server()) as peer:
        outcome = join(peer.endpoint, ca)
    assert 'no signature for token id "abcdef"' in outcome.err
    assert DOCTOR not in outcome.err


def test_the_same_cause(join: Join) -> None:
    outcome = join(f"127.0.0.1:{closed_port()}", ThrowawayCA(), "-o", "json")
    assert "connection refused" in outcome.err
    assert "mooring doctor" not in outcome.err
    assert "doctor" not in json.loads(outcome.out)["error"]


def test_a_diagnosis_that_takes_too_long(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "SECONDS", 0.0)
    ca = ThrowawayCA("portal")
    with http_peer(lambda asked: PORTAL, ca.server()) as peer:
        outcome = join(peer.endpoint, ca)
    assert outcome.code == 1
    assert "mooring doctor" not in outcome.err


@pytest.mark.parametrize("fault", [ValueError, KeyboardInterrupt])
def test_a_diagnosis_that_fails(join: Join, monkeypatch: pytest.MonkeyPatch, fault: type[BaseException]) -> None:
    async def diagnose(*arguments: object) -> None:
        raise fault

    monkeypatch.setattr(diagnosis, "diagnose", diagnose)
    outcome = join(f"127.0.0.1:{closed_port()}", ThrowawayCA())
    assert outcome.code == 1
    assert outcome.err.startswith("Error: join failed at step discovery: ")
    assert "mooring doctor" not in outcome.err


def test_a_request_that_was_denied(
    mooring: CommandLine, manual_approval: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def diagnose(*arguments: object) -> None:
        raise AssertionError("a join that was denied is not diagnosed")

    monkeypatch.setattr(diagnosis, "diagnose", diagnose)
    token = manual_approval.create_token(groups=("system:bootstrappers:manual",))
    flags = ("--token", token.reveal(), "--discovery-token-ca-cert-hash", manual_approval.pin, "--node-name", "denied")
    arguments = ("join", manual_approval.endpoint, *flags, "--root", str(tmp_path), "--tls-bootstrap-timeout")
    waiting = mooring(*arguments, "1ms").err
    assert "was not approved within" in waiting
    name = waiting.partition("the request ")[2].split()[0]
    mooring.done("csr", "deny", name, "--kubeconfig", str(manual_approval.kubeconfig))
    denied = mooring(*arguments, "60s")
    assert denied.code == 1
    assert "was denied" in denied.err
    assert "mooring doctor" not in waiting + denied.err
