"""The process of `mooring controllers`, on the event loop of the test, against a Mooring server."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import pytest

from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.client.kubeconfigfiles import load
from mooring.clock import SystemClock
from mooring.controlplane.controllersprocess import (
    ClockError,
    LeaseApi,
    StandaloneConfig,
    manifests_command,
    running,
    serve,
)
from mooring.errors import ConfigError
from mooring.settings.controllers import StandaloneSettings
from mooring.settings.signing import ApprovalSettings, SigningSettings
from mooring.trust.kubeconfig import Cluster, KubeconfigUser, Selected
from mooring.trust.notices import NoticeSettings
from tests.support.kubernetespeer import KubernetesPeer, kubernetes_peer
from tests.support.liveserver import LiveServer
from tests.support.manualclock import EPOCH
from tests.support.ports import free_port

SECONDS = 30.0


def config(server: LiveServer, **values: Any) -> StandaloneConfig:
    name = f"test-{secrets.token_hex(4)}"
    settings = StandaloneSettings.read({"leader_elect_resource_name": name, "controllers": ("tokencleaner",)} | values)
    return StandaloneConfig(
        settings=settings,
        signing=SigningSettings(),
        approval=ApprovalSettings(),
        notices=NoticeSettings(),
        cluster=load(str(server.kubeconfig)),
    )


async def fetched(port: int, path: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    try:
        return (await reader.read()).decode()
    finally:
        writer.close()


def served(server: LiveServer, path: str, until: Callable[[str], bool], **values: Any) -> str:
    """Run the process until the health endpoint answers as expected; return the answer."""

    async def run() -> str:
        port = free_port()
        async with running(config(server, healthz_port=port, **values), SystemClock(), secrets.token_bytes):
            while not until(answer := await fetched(port, path)):
                await asyncio.sleep(0.02)
            return answer

    return asyncio.run(asyncio.wait_for(run(), SECONDS))


@pytest.mark.parametrize("elected", [True, False], ids=["with a Lease", "without one"])
def test_health_and_metrics_of_a_process_that_works(live_server: LiveServer, elected: bool) -> None:
    running_line = 'mooring_controller_running{controller="token-cleaner-controller"} 1.0'
    text = served(live_server, "/metrics", lambda answer: running_line in answer, leader_elect=elected)
    assert f"leader_election_master_status {float(elected)}" in text


@pytest.mark.parametrize(
    ("elected", "check"),
    [
        pytest.param(True, "leaderElection", id="with a Lease"),
        pytest.param(False, "apiServer", id="without one"),
    ],
)
def test_a_process_whose_api_server_is_away_is_alive_and_not_ready(elected: bool, check: str) -> None:
    """A restart does not bring the API server back, and the process waits for it."""

    async def run(peer: KubernetesPeer) -> None:
        port = free_port()
        selected = Selected(Cluster("kubernetes", peer.url, peer.ca_pem), KubeconfigUser("admin"), "")
        settings = {
            "leader_elect_resource_name": "test", "controllers": ("bootstrapsigner",), "healthz_port": port,
            "leader_elect": elected,
        }  # fmt: skip
        given = StandaloneConfig(
            settings=StandaloneSettings.read(settings),
            signing=SigningSettings(),
            approval=ApprovalSettings(),
            notices=NoticeSettings(),
            cluster=selected,
        )
        async with running(given, SystemClock(), secrets.token_bytes):
            while not (await fetched(port, "/metrics")).count('controller="bootstrap-signer-controller"} 1.0'):
                await asyncio.sleep(0.02)
            assert (await fetched(port, "/readyz")).startswith("HTTP/1.1 200 ")
            peer.is_away = True
            peer.tear_down_watches()
            while not (answer := await fetched(port, "/readyz")).startswith("HTTP/1.1 500 "):
                await asyncio.sleep(0.02)
            assert f"[-]{check} failed: " in answer
            alive = await fetched(port, "/livez")
            assert alive.startswith("HTTP/1.1 200 ")
            assert "[-]" not in alive
            assert (await fetched(port, "/healthz")).startswith("HTTP/1.1 500 ")

    with kubernetes_peer() as peer:
        asyncio.run(asyncio.wait_for(run(peer), SECONDS))


class Answering:
    """A client of a server that tells its time with every response, as kube-apiserver does."""

    def __init__(self, ahead: timedelta | None) -> None:
        self.server_time = None if ahead is None else (EPOCH, EPOCH + ahead)

    async def get(self, *arguments: str) -> Obj:
        return {"kind": "Lease"}


@pytest.mark.parametrize(
    ("ahead", "failure"),
    [
        (timedelta(hours=2), "this machine's clock is 7200 s ahead of the server's: set it by NTP; "),
        (-timedelta(seconds=61), "this machine's clock is 61 s behind the server's: set it by NTP; "),
        (timedelta(seconds=60), ""),
        (None, ""),
    ],
    ids=["ahead", "behind", "a little", "a server that does not tell its time"],
)
def test_a_process_with_a_wrong_clock_does_not_lead(ahead: timedelta | None, failure: str) -> None:
    async def run() -> str:
        try:
            await LeaseApi(cast(ClusterClient, Answering(ahead))).get("leases", "kube-system", "x")
        except ClockError as error:
            return str(error)
        return ""

    found = asyncio.run(run())
    assert found.startswith(failure)
    assert bool(found) is bool(failure)


def test_a_process_that_cannot_present_its_certificate_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without /proc it tried for ever, and its log had a warning."""

    def refuse(path: str, flags: int) -> int:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    user = KubeconfigUser("admin", certificate_pem=b"certificate")
    selected = Selected(Cluster("kubernetes", "https://127.0.0.1:1", b""), user, "")
    given = StandaloneConfig(
        settings=StandaloneSettings.read({}),
        signing=SigningSettings(),
        approval=ApprovalSettings(),
        notices=NoticeSettings(),
        cluster=selected,
    )
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ConfigError, match="mount /proc"):
        serve(given)


def test_a_port_in_use_is_named(live_server: LiveServer) -> None:
    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(ConfigError, match=f"healthz-port: cannot listen on 127.0.0.1:{port}: "):
                async with running(config(live_server, healthz_port=port), SystemClock(), secrets.token_bytes):
                    pass

    asyncio.run(run())


@pytest.mark.parametrize(
    ("items", "command"),
    [
        (("*",), "mooring controllers manifests"),
        (("*", "csrsigner"), "mooring controllers manifests --controllers='*,csrsigner'"),
        (("csrapprover",), "mooring controllers manifests --controllers=csrapprover"),
    ],
)
def test_the_manifests_are_printed_for_the_controllers_of_the_process(items: tuple[str, ...], command: str) -> None:
    assert manifests_command(items) == command
