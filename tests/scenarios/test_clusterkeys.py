"""A cluster whose keys are lost beside its data, or are those of another: what the commands say, and the ways back.

Servers and commands are real. The tables of all states are in tests/controlplane/sharedkeys/test_keysmadeonce.py.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from mooring.trust.discovery.pins import pins_of
from tests.support import etcd
from tests.support.commandline import CommandLine, mooring
from tests.support.killable import KillableServer

__all__ = ["mooring"]


def flags(data: Path) -> tuple[str, ...]:
    return ("--data-dir", str(data), "--bind-address", "127.0.0.1")


def pin(data: Path) -> str:
    return str(pins_of((data / "pki/ca.crt").read_bytes())[0])


def refusal(mooring: CommandLine, *arguments: str) -> str:
    """Run a command that must fail with one line, and return it."""
    outcome = mooring(*arguments)
    assert outcome.code != 0
    lines = outcome.err.strip().splitlines()
    assert len(lines) == 1, outcome.err
    return lines[0]


def test_a_server_whose_keys_are_lost_does_not_start_and_comes_back_with_their_copy(
    tmp_path: Path, mooring: CommandLine
) -> None:
    server = KillableServer(tmp_path / "data")

    async def serve() -> None:
        server.launch()
        await server.ready()
        async with server.client() as admin:
            await admin.list("namespaces")
        await server.stop()

    async def refused() -> None:
        server.launch()
        assert server.process is not None
        assert await asyncio.to_thread(server.process.wait, 60) != 0
        server.kill()

    try:
        asyncio.run(serve())
        its_pin = pin(server.data_dir)
        shutil.move(server.data_dir / "pki", tmp_path / "pki")
        asyncio.run(refused())
        assert (
            f"ca.crt, ca.key, sa.key, lineage.key of the cluster of the CA {its_pin}, which the store holds, are missing"
            in server.log
        )
        assert "Traceback" not in server.log
        assert not (server.data_dir / "pki").exists()
        shutil.copytree(tmp_path / "pki", server.data_dir / "pki")
        asyncio.run(serve())
        assert pin(server.data_dir) == its_pin
    finally:
        server.kill()


def test_the_page_of_lost_keys(tmp_path: Path, mooring: CommandLine) -> None:
    data, snapshot, moved = tmp_path / "data", tmp_path / "a.snapshot", tmp_path / "moved.db"
    mooring.done("init", *flags(data))
    its_pin = pin(data)
    mooring.done("snapshot", "save", str(snapshot), "--data-dir", str(data))
    for path in data.glob("mooring.db*"):
        path.unlink()
    mooring.done("snapshot", "restore", str(snapshot), "--data-dir", str(data))  # the record is in the snapshot
    shutil.move(data / "pki", tmp_path / "pki")
    assert f"the CA {its_pin}" in refusal(mooring, "init", *flags(data))

    mooring.done("datastore", "migrate", f"sqlite:{data}/mooring.db", f"sqlite:{moved}")  # and goes with a move
    elsewhere = ("--storage", f"sqlite:{moved}", "--shared-keys", "files")
    assert f"the CA {its_pin}" in refusal(mooring, "init", *flags(data), *elsewhere)
    assert "belongs to the cluster of the CA " in refusal(mooring, "init", *flags(data), "--storage", f"sqlite:{moved}")

    other = tmp_path / "other"
    mooring.done("init", *flags(other))
    shutil.copytree(other / "pki", data / "pki")
    for more in ((), elsewhere, ("--storage", f"sqlite:{moved}")):
        said = refusal(mooring, "init", *flags(data), *more)
        assert f"is {pin(other)}, and the CA of the cluster in this store is {its_pin}" in said
    shutil.rmtree(data / "pki")

    said = mooring.done("init", *flags(data), "--new-cluster-keys")
    assert "pki/ca.crt" in said
    assert "Machines, pins and kubeconfigs of the old CA" in said
    assert pin(data) not in (its_pin, pin(other))
    assert "are kept as they are" in mooring.done("init", *flags(data))


def test_on_etcd_keys_come_back_from_the_store_and_those_of_another_cluster_are_refused(
    tmp_path: Path, mooring: CommandLine
) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    store = ("--etcd-servers", etcd.shared().endpoints, "--etcd-prefix", etcd.fresh_prefix())
    mooring.done("init", *flags(data), *store)
    its_pin = pin(data)
    shutil.rmtree(data / "pki")
    mooring.done("init", *flags(data), *store)
    assert pin(data) == its_pin
    mooring.done("init", *flags(other))
    shutil.rmtree(data / "pki")
    shutil.copytree(other / "pki", data / "pki")
    assert f"the CA of the cluster in this store is {its_pin}" in refusal(mooring, "init", *flags(data), *store)


@pytest.mark.parametrize("arguments", [("server",), ("up",)], ids=" ".join)
def test_only_init_makes_new_keys(tmp_path: Path, mooring: CommandLine, arguments: tuple[str, ...]) -> None:
    assert "No such option" in mooring(*arguments, *flags(tmp_path), "--new-cluster-keys").err
