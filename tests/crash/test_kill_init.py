"""`kill -9` of `mooring init` at random moments, and between any two changes of its disk: a second run completes it.

Invariants: there is one CA, the first that was on disk; it issued everything else; the administrator's kubeconfig works; no file is
incomplete and no temporary file is left.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from mooring.client.kubeconfigfiles import load
from mooring.clock import SystemClock
from mooring.pki.keys import load_private_key, public_key_der
from mooring.pki.x509 import bundles
from mooring.pki.x509.verify import ClientTrust
from mooring.trust.discovery.clusterinfo import NAME, NAMESPACE
from mooring.trust.kubeconfig import discovery_cluster
from mooring.trust.kubeconfigtext import parse_kubeconfig
from tests.support import forkserver
from tests.support.commandline import CommandLine, mooring
from tests.support.killable import DYING, KillableServer, history, seeded
from tests.support.testca import by_library

__all__ = ["mooring"]
SEEDS = 20
FILES = {
    "pki/ca.crt", "pki/ca.key", "pki/apiserver.crt", "pki/apiserver.key", "pki/sa.key", "pki/sa.pub",
    "pki/lineage.key", "pki/lineage.pub",
    "admin.conf", "super-admin.conf", "mooring.db", ".lock",
}  # fmt: skip
PATIENCE = 60.0


def arguments(data: Path) -> tuple[str, ...]:
    return ("init", "--data-dir", str(data), "--bind-address", "127.0.0.1")


def started(program: tuple[str, ...], data: Path) -> forkserver.Process:
    return forkserver.Process([*program, *arguments(data)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def check_a_second_run(data: Path, mooring: CommandLine) -> None:
    before = {name: content(data / name) for name in ("pki/ca.crt", "pki/ca.key", "pki/sa.key", "pki/apiserver.key")}
    said = mooring.done(*arguments(data))
    assert "To administrate:" in said
    for name, found in before.items():
        assert content(data / name) == (found or content(data / name)), f"{name} was there and is another now"
    assert {str(path.relative_to(data)) for path in data.rglob("*") if path.is_file()} - FILES <= {
        "audit.log",
        "control-plane-endpoint",
        "pki/crl.pem",
        "server/shared-keys.json",
        "server.lock",
        "store.mark",
        "store.mark.lock",
    }

    ca_pem = content(data / "pki/ca.crt")
    (authority,) = bundles.certificates(ca_pem)
    trust, now = ClientTrust([authority]), SystemClock().now()
    for kubeconfig in ("admin.conf", "super-admin.conf"):
        selected = load(str(data / kubeconfig))
        assert selected.cluster.ca_pem == ca_pem
        certificate, key = bundles.certificates(selected.user.certificate_pem)[0], selected.user.key
        assert key is not None
        assert public_key_der(load_private_key(key.reveal())) == public_key_der(certificate.public_key())  # type: ignore[arg-type] # ours are EC keys
        trust.verify([certificate.der], now)
    (serving,) = bundles.certificates(content(data / "pki/apiserver.crt"))
    by_library(serving).verify_directly_issued_by(by_library(authority))

    infos = [
        json.loads(change.entry.value)
        for change in asyncio.run(history(data / "mooring.db", f"/registry/configmaps/{NAMESPACE}/{NAME}"))
        if change.entry is not None
    ]
    assert {discovery_cluster(parse_kubeconfig(info["data"]["kubeconfig"])).ca_pem for info in infos} == {ca_pem}


@pytest.mark.crash
def test_killed_at_random_moments(tmp_path: Path, mooring: CommandLine) -> None:
    moments = seeded()
    began = time.monotonic()
    started(("-m", "mooring"), tmp_path / "whole").communicate(timeout=PATIENCE)
    seconds = time.monotonic() - began
    for n in range(SEEDS):
        process = started(("-m", "mooring"), tmp_path / str(n))
        try:
            process.communicate(timeout=seconds * moments.uniform(0.0, 1.0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        check_a_second_run(tmp_path / str(n), mooring)


@pytest.mark.crash
@pytest.mark.parametrize("first", [1, 2, 3])
def test_killed_between_any_two_changes_of_its_disk(tmp_path: Path, mooring: CommandLine, first: int) -> None:
    """Each test has every third change, so that none takes long on a slow disk."""
    for n in range(first, 100, 3):
        data = tmp_path / str(n)
        process = started(("-c", DYING, str(n)), data)
        output, _ = process.communicate(timeout=PATIENCE)
        if process.returncode != -signal.SIGKILL:
            assert process.returncode == 0, output
            assert n > 20, "there are more changes than that"
            break
        check_a_second_run(data, mooring)
    else:
        raise AssertionError("init does not change its disk a hundred times")


@pytest.mark.crash
def test_a_server_completed_after_a_kill_serves(tmp_path: Path, mooring: CommandLine) -> None:
    server = KillableServer(tmp_path / "data")
    process = started(("-c", DYING, "12"), server.data_dir)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGKILL

    async def scenario() -> None:
        server.launch()
        await server.ready()
        async with server.client() as admin:
            assert len((await admin.list("namespaces")).items) == 4
        assert (
            await server.stop() == 0
        )  # a kill could leave the temporary file of a watermark, which its next write removes

    try:
        asyncio.run(scenario())
    except BaseException:
        server.kill()
        raise
    check_a_second_run(server.data_dir, mooring)
