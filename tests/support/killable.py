"""Servers that tests kill: `mooring server` as processes on one data directory, and checks of the state that they leave.

Rules kept here: moments are drawn from a seed that is printed, so that a failure can be repeated with MOORING_CRASH_SEED; only
processes started here are killed; readiness is polled at /readyz.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient, connect
from mooring.client.http.requests import fetch
from mooring.client.kubeconfigfiles import load
from mooring.clock import Clock, SystemClock
from mooring.controlplane.lifecycle import process_identity
from mooring.errors import NotFoundError
from mooring.reconcile.leaderelection import LEASE_SECONDS
from mooring.storage.contract import StoredChange
from mooring.storage.sqlite.driver import SqliteStorage
from mooring.trust.httpexchange import UNVERIFIED, HttpRequest, HttpResponse
from mooring.trust.kubeconfig import Cluster, KubeconfigUser
from tests.support import forkserver
from tests.support.ports import free_port
from tests.support.sharedstore import shared_store

READY_SECONDS = 60.0

DYING = """
import os, signal, sys

left = int(sys.argv.pop(1))

def counted(name, function):
    def call(*args, **kwargs):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return call

for name in ("replace", "rename", "unlink", "symlink", "fsync", "mkdir"):
    setattr(os, name, counted(name, getattr(os, name)))

from mooring.cli.main import main
main()
"""
"""`mooring` that dies just before its n-th change of a directory or fsync."""


def seeded() -> random.Random:
    """Return a source of random moments and print its seed."""
    seed = int(os.environ.get("MOORING_CRASH_SEED", secrets.randbelow(1 << 32)))
    sys.stdout.write(f"MOORING_CRASH_SEED={seed}\n")
    return random.Random(seed)


@dataclass
class KillableServer:
    """`mooring server`, restarted on one port. `public_port`: the advertised port, where several servers share a store.

    `published`: the advertised addresses, where there are several. `program`: the words before `server` (`tests.support.network`).
    """

    data_dir: Path
    port: int = field(default_factory=free_port)
    public_port: int = 0
    process: forkserver.Process | None = None
    address: str = "127.0.0.1"
    published: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    program: tuple[str, ...] = ("-m", "mooring")
    environment: Mapping[str, str] = field(default_factory=dict)
    """Additional environment."""

    @property
    def endpoint(self) -> str:
        return f"{self.address}:{self.port}"

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def _log(self) -> Path:
        return self.data_dir.parent / f"{self.data_dir.name}-{self.port}.log"

    @property
    def identity(self) -> str:
        """Holder identity that the running process writes into a Lease."""
        assert self.process is not None
        return process_identity(self.process.pid)

    def launch(self) -> None:
        """Start the process without waiting until it is ready."""
        assert self.process is None
        published = self.published or (f"{self.address}:{self.public_port or self.port}",)
        arguments = [
            "server", "--data-dir", str(self.data_dir), "--bind-address", self.address, "--secure-port", str(self.port),
            *(word for endpoint in published for word in ("--control-plane-endpoint", endpoint)), *self.flags,
        ]  # fmt: skip
        with self._log.open("ab") as log:
            environment = {**os.environ, **self.environment}
            self.process = forkserver.Process([*self.program, *arguments], stdout=log, stderr=log, env=environment)

    async def ready(self) -> None:
        """Wait until /readyz answers 200, at most `READY_SECONDS`."""
        deadline = time.monotonic() + READY_SECONDS
        while True:
            answer = await fetch(HttpRequest(UNVERIFIED, url=f"https://{self.endpoint}/readyz"), SystemClock())
            if isinstance(answer, HttpResponse) and answer.status == 200:
                return
            assert self.process is not None
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, f"{answer}\n{self.log}"
            await asyncio.sleep(0.02)

    def kill(self) -> None:
        """Kill the process without warning, as a power failure would."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()

    def pause(self) -> None:
        """Stop the process with SIGSTOP: it keeps its connections and locks, and does nothing."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process go on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def send_sigterm(self) -> forkserver.Process:
        """Send SIGTERM. Return the process, to wait for."""
        process, self.process = self.process, None
        assert process is not None
        process.send_signal(signal.SIGTERM)
        return process

    async def stop(self) -> int:
        """Send SIGTERM and wait. Return the exit status."""
        process = self.send_sigterm()
        try:
            return await asyncio.to_thread(process.wait, 30)
        finally:
            process.kill()

    def client(self, clock: Clock | None = None) -> ClusterClient:
        """Return the administrator's client of this server."""
        selected = load(str(self.data_dir / "admin.conf"))
        return ClusterClient(
            Cluster(selected.cluster.name, f"https://{self.endpoint}", selected.cluster.ca_pem),
            selected.user,
            clock or SystemClock(),
        )


def servers_on_one_store(root: Path, count: int) -> list[KillableServer]:
    """Return servers with data directories of their own on one SQLite file, which publish the address of the first."""
    first = KillableServer(root / "data-0", flags=shared_store(root))
    return [
        first,
        *(KillableServer(root / f"data-{n}", public_port=first.port, flags=first.flags) for n in range(1, count)),
    ]


def client_of(server: KillableServer, ca_pem: bytes, user: KubeconfigUser) -> ClusterClient:
    """Return a client of one server for `user`."""
    return ClusterClient(Cluster("", f"https://{server.endpoint}", ca_pem), user, SystemClock())


async def controllers_lease(client: ClusterClient) -> Obj:
    """Return the spec of the Lease that elects the process whose controllers run."""
    spec: Obj = (await client.get("leases", "mooring-controllers", "kube-system"))["spec"]
    return spec


async def lease_held_by(client: ClusterClient, identity: str) -> Obj:
    """Wait until that process holds the Lease, which the first leader makes. Return the Lease."""
    deadline = time.monotonic() + READY_SECONDS
    while True:
        spec: Obj = {}
        with contextlib.suppress(NotFoundError):
            spec = await controllers_lease(client)
        if spec.get("holderIdentity") == identity:
            return spec
        assert time.monotonic() < deadline, spec
        await asyncio.sleep(0.02)


def check_takeover(before: Obj, able: datetime, after: Obj) -> None:
    """Assert that the Lease of an ended process was taken over before it expired.

    Passes where the machine was so slow that the Lease had nearly expired when the other process was `able` to take it.
    """
    runs_out = datetime.fromisoformat(before["renewTime"]) + timedelta(seconds=LEASE_SECONDS)
    if able < runs_out - timedelta(seconds=LEASE_SECONDS / 3):
        assert datetime.fromisoformat(after["acquireTime"]) < runs_out


async def history(database: Path, prefix: str = "") -> list[StoredChange]:
    """Return every write in the history of the SQLite file of stopped servers, in order."""
    store = SqliteStorage(database, SystemClock())
    await store.open()
    try:
        newest = await store.revision()
        changes: list[StoredChange] = []
        # all keys are watched, because the newest revision may be of a key without the prefix
        async for batch in store.watch("", after=await store.compacted()):
            changes += batch
            if changes[-1].revision >= newest:
                break
        return [change for change in changes if change.key.startswith(prefix)]
    finally:
        await store.close()


def admin_of(data_dir: Path) -> ClusterClient:
    """Return the administrator's client, from admin.conf."""
    return connect(load(str(data_dir / "admin.conf")))
