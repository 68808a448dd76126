"""The page about growing to three machines: every command as it is written, then the loss of a server and of a member of etcd."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import signal
from pathlib import Path

import pytest

from mooring.apimachinery.schema import Obj
from mooring.cli import datastore
from mooring.client.cluster import ClusterClient
from mooring.client.kubeconfigfiles import load
from mooring.clock import SystemClock
from mooring.errors import MooringError
from mooring.trust.kubeconfig import Cluster
from tests.support import etcd
from tests.support.commandline import CommandLine, mooring
from tests.support.pagecommands import Machines, blocks
from tests.support.ports import free_port

__all__ = ["mooring"]
PAGE = Path(__file__).parents[2] / "docs" / "grow-to-three-machines.md"
FIRST, SECOND, THIRD = ADDRESSES = ("10.0.0.11", "10.0.0.12", "10.0.0.13")
PROGRAMS = ("bash", "openssl", "curl", "etcdctl")
MISSING = etcd.MISSING or ", ".join(name for name in PROGRAMS if shutil.which(name) is None)


def config_map(name: str) -> Obj:
    return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name, "namespace": "default"}}


def client_of(machines: Machines, address: str) -> ClusterClient:
    """Return the administrator's client of one server, with the kubeconfig of the first."""
    selected = load(str(machines.directory(FIRST) / "var/lib/mooring/admin.conf"))
    server = machines.translated(f"https://{address}:6443", address)
    return ClusterClient(Cluster("", server, selected.cluster.ca_pem), selected.user, SystemClock())


async def create(machines: Machines, address: str, name: str) -> Obj:
    """Create a ConfigMap through one server, after a time in which etcd elects a leader."""
    async with client_of(machines, address) as client, asyncio.timeout(60):
        while True:
            try:
                return await client.create("configmaps", config_map(name))
            except MooringError:
                await asyncio.sleep(0.2)


async def uid(machines: Machines, address: str, name: str) -> str:
    async with client_of(machines, address) as client:
        return str((await client.get("configmaps", name, "default"))["metadata"]["uid"])


@pytest.mark.client
@pytest.mark.crash
@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {MISSING}")
def test_every_command_of_the_page(tmp_path: Path, mooring: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = {2379: free_port(), 2380: free_port(), 6443: free_port()}
    machines = Machines(tmp_path, ports, {"MOORING_SECURE_PORT": str(ports[6443])})
    page = iter(blocks(PAGE).items())
    try:
        _grow(machines, {title.partition(".")[0]: found for title, found in page}, mooring, monkeypatch)
    finally:
        machines.end_all()


def _grow(
    machines: Machines, page: dict[str, list[str]], mooring: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines.start(page[""][0], FIRST, "server")
    machines.wait_for("server", "To administrate:")
    before = asyncio.run(create(machines, FIRST, "before"))["metadata"]["uid"]

    machines.run(page["1"][0], FIRST)
    for block in page["2"]:
        machines.run(block, FIRST)

    start, check = page["3"]
    for number, address in enumerate(ADDRESSES, 1):
        machines.start(
            start.replace(f"NAME=m1 ADDRESS={FIRST}", f"NAME=m{number} ADDRESS={address}"), address, f"m{number}"
        )
    for number in range(1, 4):
        machines.wait_for(f"m{number}", "ready to serve client requests")
    machines.run(check, FIRST)

    machines.end("server")
    assert "are the same on both sides" in machines.run(page["4"][0], FIRST)
    machines.start(page["5"][0], FIRST, "server 1")
    machines.wait_for("server 1", "serving on")
    machines.run(page["6"][0], FIRST)
    for number, address in enumerate((SECOND, THIRD), 2):
        machines.start(page["6"][1].replace(f"ADDRESS={SECOND}", f"ADDRESS={address}"), address, f"server {number}")
    for number in (2, 3):
        machines.wait_for(f"server {number}", "serving on")
    said = machines.run(page["7"][0], FIRST)
    assert said.startswith("okokok")
    assert all(machines.translated(f"{address}:6443", address) in said for address in ADDRESSES), said
    for address in ADDRESSES:
        assert asyncio.run(uid(machines, address, "before")) == before

    machines.end("server 1", signal.SIGKILL)
    machines.end("m1", signal.SIGKILL)
    later = asyncio.run(create(machines, SECOND, "later"))["metadata"]["uid"]
    assert asyncio.run(uid(machines, THIRD, "later")) == later

    (command,) = page["Back to one machine"]
    words = shlex.split(machines.translated(command, FIRST).replace("\\\n", " "))
    assert "a server still uses it; stop every server" in mooring(*words[1:]).err
    for number in (2, 3):
        machines.end(f"server {number}")
    monkeypatch.setattr(datastore, "QUIET_SECONDS", 1.0)  # every server is known to be stopped
    mooring.done(*words[1:])
    machines.start(page[""][0], FIRST, "server again")
    machines.wait_for("server again", "To administrate:")
    assert asyncio.run(uid(machines, FIRST, "later")) == later
    assert asyncio.run(uid(machines, FIRST, "before")) == before
