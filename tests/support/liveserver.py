"""A whole Mooring server as a process of its own, for tests over real sockets and files.

Rules kept here: `tests.support.ports` gives the port; readiness is polled at /readyz; the process is ended by its own id and waited
for. Tests in one session share the server of the fixture `live_server`; `start_server` starts another.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

import pytest

from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient, connect
from mooring.client.http.requests import fetch
from mooring.client.kubeconfigfiles import load
from mooring.clock import SystemClock
from mooring.trust.bootstraptoken import tokensecret
from mooring.trust.bootstraptoken.token import DEFAULT_GROUPS, USAGES, BootstrapToken, generate_token
from mooring.trust.discovery.pins import pins_of
from mooring.trust.httpexchange import UNVERIFIED, HttpRequest, HttpResponse
from tests.support import forkserver
from tests.support.ports import free_port

T = TypeVar("T")
START_SECONDS = 60.0
PROGRAM = """
import sys
from mooring.controlplane.configuration import server_config
from mooring.controlplane.serverprocess import serve
serve(server_config(data_dir=sys.argv[1], bind_address="127.0.0.1", secure_port=int(sys.argv[2])))
"""


@dataclass
class LiveServer:
    """One running server."""

    data_dir: Path
    port: int
    process: forkserver.Process | subprocess.Popen[bytes] = field(repr=False)
    flags: tuple[str, ...] = ()
    _made: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"https://{self.endpoint}"

    @property
    def kubeconfig(self) -> Path:
        """Path of the administrator's kubeconfig."""
        return self.data_dir / "admin.conf"

    @property
    def ca_pem(self) -> bytes:
        return (self.data_dir / "pki/ca.crt").read_bytes()

    @property
    def pin(self) -> str:
        return str(pins_of(self.ca_pem)[0])

    @property
    def log(self) -> str:
        return (self.data_dir.parent / f"{self.data_dir.name}.log").read_text()

    def client(self) -> ClusterClient:
        """Return the administrator's client; use it with `async with`."""
        return connect(load(str(self.kubeconfig)))

    def run(self, work: Callable[[ClusterClient], Coroutine[Any, Any, T]]) -> T:
        """Run `work` with the administrator's client, for tests without an event loop."""

        async def call() -> T:
            async with self.client() as client:
                return await work(client)

        return asyncio.run(call())

    def once(self, make: Callable[[LiveServer], T]) -> T:
        """Return what `make` returned for this server. It is called the first time: tests of a file share what it makes."""
        if make not in self._made:
            self._made[make] = make(self)
        return cast(T, self._made[make])

    async def create_token_in(
        self,
        client: ClusterClient,
        *,
        ttl: timedelta | None = timedelta(hours=1),
        expires: datetime | None = None,
        usages: tuple[str, ...] = USAGES,
        groups: tuple[str, ...] = DEFAULT_GROUPS,
        signed: bool = True,
    ) -> BootstrapToken:
        """Create a token through the API; with `signed`, wait until cluster-info carries its signature."""
        token = generate_token(secrets.token_bytes)
        record = tokensecret.new_record(
            token, SystemClock().now(), ttl=None if expires else ttl, expires=expires, usages=usages, groups=groups
        )
        await client.create("secrets", tokensecret.to_secret(record))
        if signed:
            await self.signature(client, token.id, present=True)
        return token

    def create_token(
        self,
        *,
        ttl: timedelta | None = timedelta(hours=1),
        expires: datetime | None = None,
        usages: tuple[str, ...] = USAGES,
        groups: tuple[str, ...] = DEFAULT_GROUPS,
        signed: bool = True,
    ) -> BootstrapToken:
        """Call `create_token_in` from a test without an event loop."""

        async def create(client: ClusterClient) -> BootstrapToken:
            return await self.create_token_in(
                client, ttl=ttl, expires=expires, usages=usages, groups=groups, signed=signed
            )

        return self.run(create)

    async def signature(self, client: ClusterClient, token_id: str, *, present: bool) -> Obj:
        """Watch cluster-info until it carries, or does not carry, the token's signature. Return the ConfigMap."""
        key = f"jws-kubeconfig-{token_id}"
        listed = await client.list("configmaps", "kube-public", field_selector="metadata.name=cluster-info")
        for obj in listed.items:
            if (key in obj["data"]) is present:
                return obj
        events = client.watch(
            "configmaps",
            "kube-public",
            resource_version=listed.resource_version,
            field_selector="metadata.name=cluster-info",
            seconds=30,
        )
        try:
            async for event in events:
                if (key in event.object.get("data", {})) is present and event.type == "MODIFIED":
                    return event.object
        finally:
            await events.aclose()
        raise AssertionError(f"cluster-info did not change its signature for {token_id} within 30 s")

    def kill(self) -> None:
        """Kill the process without warning, as a power failure would."""
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        """Start again on the same data and port."""
        if self.process.poll() is None:
            self.stop()
        self.process = _launched(self.data_dir, self.port, self.flags)
        await_ready(self)

    def stop(self) -> int:
        """Send SIGTERM and wait. Return the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def start_server(data_dir: Path, *flags: str, port: int = 0) -> LiveServer:
    """Start a server, on a free port unless one is given, and wait until it is ready. `flags`: flags of `mooring server`."""
    port = port or free_port()
    server = LiveServer(data_dir, port, _launched(data_dir, port, flags), flags)
    try:
        await_ready(server)
    except BaseException:
        server.stop()
        raise
    return server


@contextlib.contextmanager
def running_server(data_dir: Path, *flags: str) -> Iterator[LiveServer]:
    """Run a server until the end of the block, also of one that fails. It must end with status 0."""
    server = start_server(data_dir, *flags)
    try:
        yield server
    except BaseException:
        server.stop()
        raise
    assert server.stop() == 0


def _launched(data_dir: Path, port: int, flags: tuple[str, ...]) -> forkserver.Process:
    place = ("--data-dir", str(data_dir), "--bind-address", "127.0.0.1", "--secure-port", str(port))
    command = ("-m", "mooring", "server", *place, *flags) if flags else ("-c", PROGRAM, str(data_dir), str(port))
    with (data_dir.parent / f"{data_dir.name}.log").open("ab") as log:
        return forkserver.Process(command, stdout=log, stderr=log)


def await_ready(server: LiveServer) -> None:
    """Wait until the server is ready. Raises AssertionError for one that has ended."""

    async def ask() -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            answer = await fetch(HttpRequest(UNVERIFIED, url=f"{server.url}/readyz"), SystemClock())
            if isinstance(answer, HttpResponse) and answer.status == 200:
                return
            if server.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the server did not get ready: {answer}\n{server.log}")
            await asyncio.sleep(0.02)

    asyncio.run(ask())


class SharedServers:
    """The servers that a session's tests share: one, and another for a test that runs again.

    In another order, or as a second try, a test meets the names that it used before, and would fail by them. A file that
    imports the fixture has servers of its own. They are stopped when another such file has its turn: thirty idle servers take
    a fifth of two processors.
    """

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._used: dict[str, list[tuple[LiveServer, set[str]]]] = {}

    def of(self, test: str, group: str) -> LiveServer:
        """Return the first server of a group of tests that a test, given by its id, has not used. "" is everybody's group."""
        if group:
            for other in self._used.keys() - {"", group}:
                _stop(self._used.pop(other))
        servers = self._used.setdefault(group, [])
        unused = next((one for one in servers if test not in one[1]), None)
        if unused is None:
            unused = start_server(self._folders.mktemp("live") / "data"), set()
            servers.append(unused)
        server, tests = unused
        tests.add(test)
        return server

    def stop(self) -> None:
        for servers in self._used.values():
            _stop(servers)


def _stop(servers: list[tuple[LiveServer, set[str]]]) -> None:
    for server, _ in servers:
        server.stop()


@pytest.fixture(scope="session")
def shared_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedServers]:
    servers = SharedServers(tmp_path_factory)
    yield servers
    servers.stop()


@pytest.fixture
def live_server(shared_servers: SharedServers, request: pytest.FixtureRequest) -> LiveServer:
    """Return a server that the session's tests share; each test creates its own tokens and names."""
    module: ModuleType = request.module
    return shared_servers.of(request.node.nodeid, module.__name__ if hasattr(module, "live_server") else "")


@pytest.fixture
def manual_approval(live_server: LiveServer) -> LiveServer:
    """Let a group create certificate requests that no controller approves."""
    live_server.once(_allow_requests)
    return live_server


def _allow_requests(server: LiveServer) -> None:
    binding = {
        "kind": "ClusterRoleBinding",
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "metadata": {"name": "test:manual"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node-bootstrapper"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:bootstrappers:manual"}],
    }
    server.run(lambda client: client.create("clusterrolebindings", binding))
