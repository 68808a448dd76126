"""Servers that tests kill: `mooring server` as processes on one data directory, and who watches over what they promised.

Rules kept here: a moment is chosen by a seed that is printed, so that a failure can be tried again with MOORING_CRASH_SEED; only
processes started here are killed; readiness is asked, never slept for.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
import sys
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient, connect
from mooring.client.http.requests import fetch
from mooring.client.kubeconfigfiles import load
from mooring.clock import SystemClock
from mooring.plane.processidentity import process_identity
from mooring.reconcile.leaderelection import LEASE_SECONDS
from mooring.storage.contract import Change
from mooring.storage.sqlite.driver import SqliteStorage
from mooring.trust.httpexchange import UNVERIFIED, HttpRequest, HttpResponse
from mooring.trust.kubeconfig.model import Cluster, User
from tests.support import forkserver
from tests.support.ports import free_port

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
    """Random moments; the seed is printed."""
    seed = int(os.environ.get("MOORING_CRASH_SEED", secrets.randbelow(1 << 32)))
    sys.stdout.write(f"MOORING_CRASH_SEED={seed}\n")
    return random.Random(seed)


@dataclass
class KillableServer:
    """`mooring server`, again and again, on one port. `public_port`: the port that clients are told, when several share a store."""

    data_dir: Path
    port: int = field(default_factory=free_port)
    public_port: int = 0
    process: forkserver.Process | None = None

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def _log(self) -> Path:
        return self.data_dir.parent / f"server-{self.port}.log"

    @property
    def identity(self) -> str:
        """How the running process names itself in a Lease."""
        assert self.process is not None
        return process_identity(self.process.pid)

    def launch(self) -> None:
        """Start; ready later."""
        assert self.process is None
        arguments = (
            "server", "--data-dir", str(self.data_dir), "--bind-address", "127.0.0.1", "--secure-port", str(self.port),
            "--control-plane-endpoint", f"127.0.0.1:{self.public_port or self.port}",
        )  # fmt: skip
        with self._log.open("ab") as log:
            self.process = forkserver.Process(["-m", "mooring", *arguments], stdout=log, stderr=log)

    async def ready(self) -> None:
        """Wait until it is."""
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
        """As a power failure would."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()

    def ask_to_stop(self) -> forkserver.Process:
        """SIGTERM; the process, to wait for."""
        process, self.process = self.process, None
        assert process is not None
        process.send_signal(signal.SIGTERM)
        return process

    async def stop(self) -> int:
        """Drain; the exit status."""
        process = self.ask_to_stop()
        try:
            return await asyncio.to_thread(process.wait, 30)
        finally:
            process.kill()

    def client(self) -> ClusterClient:
        """As the administrator, through this server."""
        selected = load(str(self.data_dir / "admin.conf"))
        return ClusterClient(
            Cluster(selected.cluster.name, f"https://{self.endpoint}", selected.cluster.ca_pem),
            selected.user,
            SystemClock(),
        )


def client_of(server: KillableServer, ca_pem: bytes, user: User) -> ClusterClient:
    """Somebody's client through one server."""
    return ClusterClient(Cluster("", f"https://{server.endpoint}", ca_pem), user, SystemClock())


async def controllers_lease(client: ClusterClient) -> Obj:
    """Who runs the controllers, as the Lease's spec tells."""
    spec: Obj = (await client.get("leases", "mooring-controllers", "kube-system"))["spec"]
    return spec


async def lease_held_by(client: ClusterClient, identity: str) -> Obj:
    """The Lease once that process holds it."""
    deadline = time.monotonic() + READY_SECONDS
    while (spec := await controllers_lease(client))["holderIdentity"] != identity:
        assert time.monotonic() < deadline, spec
        await asyncio.sleep(0.02)
    return spec


def check_takeover(before: Obj, able: datetime, after: Obj) -> None:
    """Nobody waits for the Lease of a process that is gone: whoever was able to take it did so before it ran out.

    Says nothing where the machine needed so long that the Lease had nearly run out by then.
    """
    runs_out = datetime.fromisoformat(before["renewTime"]) + timedelta(seconds=LEASE_SECONDS)
    if able < runs_out - timedelta(seconds=LEASE_SECONDS / 3):
        assert datetime.fromisoformat(after["acquireTime"]) < runs_out


async def history(data_dir: Path, prefix: str = "") -> list[Change]:
    """Every write that the store of a stopped server remembers, in order."""
    store = SqliteStorage(data_dir / "mooring.db", SystemClock())
    await store.open()
    try:
        newest = await store.revision()
        changes: list[Change] = []
        # all keys, so that the last one is sure to come; the prefix is looked at here
        async for batch in store.watch("", after=await store.compacted()):
            changes += batch
            if changes[-1].revision >= newest:
                break
        return [change for change in changes if change.key.startswith(prefix)]
    finally:
        await store.close()


def admin_of(data_dir: Path) -> ClusterClient:
    """The administrator's client as admin.conf says."""
    return connect(load(str(data_dir / "admin.conf")))
