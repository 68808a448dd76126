"""The pages about backups and about moving the datastore: every command as it is written, on one machine."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mooring.client.cluster import ClusterClient
from mooring.client.kubeconfigfiles import load
from mooring.clock import SystemClock
from mooring.trust.kubeconfig import Cluster
from tests.support import etcd
from tests.support.pagecommands import Machines, blocks
from tests.support.ports import free_port

DOCS = Path(__file__).parents[2] / "docs"
BACKUP, MOVE = blocks(DOCS / "back-up-and-restore.md"), blocks(DOCS / "move-the-datastore.md")
MACHINE = "10.0.0.1"
STATE = "/var/lib/mooring"
NEEDS_BASH = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
MIN_JUMP = 1_000_000_000
"""How far the page says that the revision jumps."""


class Page:
    """One machine with a server, and the object that has to outlive every step."""

    def __init__(self, machines: Machines) -> None:
        self.machines = machines
        self.state = machines.directory(MACHINE) / STATE.lstrip("/")
        self.uid, self.revision = "", 0

    def start(self, block: str, name: str) -> None:
        """Start a server, and wait until it serves."""
        self.machines.start(block, MACHINE, name)
        self.machines.wait_for(name, "serving on")

    def run(self, block: str) -> str:
        return self.machines.run(block, MACHINE)

    def client(self) -> ClusterClient:
        selected = load(str(self.state / "admin.conf"))
        server = self.machines.translated(f"https://{MACHINE}:6443", MACHINE)
        return ClusterClient(Cluster("", server, selected.cluster.ca_pem), selected.user, SystemClock())

    def create(self) -> None:
        async def create() -> None:
            async with self.client() as client:
                made = await client.create("configmaps", {"metadata": {"name": "kept", "namespace": "default"}})
                self.uid = made["metadata"]["uid"]
                self.revision = int((await client.list("configmaps", "default")).resource_version)

        asyncio.run(create())

    def check_kept(self, jump: int = 0) -> None:
        """Check that the object is there, and that revisions have gone on from before, by at least `jump`."""

        async def check() -> None:
            async with self.client() as client:
                assert (await client.get("configmaps", "kept", "default"))["metadata"]["uid"] == self.uid
                revision = int((await client.list("configmaps", "default")).resource_version)
                assert revision >= self.revision + jump
                self.revision = revision

        asyncio.run(check())


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    """A machine whose server, the one of the page, has the object."""
    ports = {6443: free_port()}
    settings = {
        "SECURE_PORT": str(ports[6443]),
        "BIND_ADDRESS": "127.0.0.1",
        "DATA_DIR": f"{tmp_path}/127.0.0.1{STATE}",
    }
    page = Page(Machines(tmp_path, ports, {f"MOORING_{name}": value for name, value in settings.items()}))
    try:
        page.start(BACKUP["Scheduled snapshots"][0], "server")
        page.create()
        yield page
    finally:
        page.machines.end_all()


@pytest.mark.crash
@NEEDS_BASH
def test_every_command_of_backup_and_restore_and_of_a_move_to_another_file(page: Page) -> None:
    """One after the other: each begins with the store that the one before has left."""
    _back_up(page)
    _restore(page)
    _move_to_another_file(page)


@pytest.mark.client
@pytest.mark.crash
@NEEDS_BASH
@pytest.mark.skipif(bool(etcd.MISSING), reason=etcd.MISSING or "etcd is here")
def test_every_command_of_a_move_to_etcd(page: Page) -> None:
    page.machines.end("server")
    with ExitStack() as stack:
        _move_to_etcd(page, stack)


def _back_up(page: Page) -> None:
    save, *others, restore = BACKUP[""][0].splitlines()
    saved = page.run(save)
    (file,) = (page.state / "snapshots").iterdir()
    assert file.name in saved
    for line in others:
        assert file.name in page.run(re.sub(r"on-demand-\w+\.snapshot", file.name, line))
    with pytest.raises(AssertionError, match="is used by the process"):
        page.run(re.sub(r"on-demand-\w+\.snapshot", file.name, restore))

    saved = page.run(BACKUP["Save"][0])
    backups = page.machines.directory(MACHINE) / "var/backups"
    assert {path.name for path in backups.iterdir()} == {"mooring.snapshot", "pki"}
    verify, verify_digest = BACKUP["Verify"]
    page.run(verify)
    (digest,) = set(re.findall(r"sha256:[0-9a-f]{64}", saved))
    page.run(re.sub(r"sha256:[0-9a-f]{64}", digest, verify_digest))
    with pytest.raises(AssertionError, match="digest"):
        page.run(verify_digest)
    assert page.run(BACKUP["Verify the database"][0]).count(" is whole: ") == 1 + len(
        list((page.state / "snapshots").iterdir())
    )
    page.machines.end("server")


def _restore(page: Page) -> None:
    move_away, restore_and_start = BACKUP["Restore"]
    page.run(move_away)
    assert not list(page.state.glob("mooring.db*"))
    page.start(restore_and_start, "restored server")
    page.check_kept(jump=MIN_JUMP)
    page.machines.end("restored server")


def _move_to_another_file(page: Page) -> None:
    command, _ = MOVE[""]
    assert "are the same on both sides" in page.run(command)
    page.start(f"mooring server --storage {command.split()[-1]}", "moved server")
    page.check_kept(jump=1)
    page.machines.end("moved server")


def _move_to_etcd(page: Page, stack: ExitStack) -> None:
    _, command = MOVE[""]
    home = page.machines.root
    (home / "etcd").mkdir()
    certificates = etcd.Certificates.make(home / "etcd-certificates")
    member = stack.enter_context(
        etcd.running(home / "etcd", certificates=certificates, client_certificates=True)
    ).members[0]
    page.machines.ports[2379] = int(member.url.rpartition(":")[2])
    for made, named in zip(
        (certificates.ca, *certificates.client), ("etcd-ca.crt", "client.crt", "client.key"), strict=True
    ):
        shutil.copy(made, page.state / named)
    assert "are the same on both sides" in page.run(f"cd {STATE}\n{command}")
    target = command.replace("\\\n", " ").split()[4:]
    page.start(f"cd {STATE}\nmooring server --storage {' '.join(target)}", "server on etcd")
    page.check_kept()
    page.machines.end("server on etcd")
