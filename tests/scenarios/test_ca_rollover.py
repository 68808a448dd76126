"""A whole rollover of the CA, with `kill -9` of the server in each phase, and machines that are there, absent, or no agents.

Rules kept here: commands run with a copy of admin.conf from before the rollover, until the old CA is retired.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cryptography.exceptions import InvalidSignature

from mooring.agent.join import join
from mooring.agent.state import NodeState
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient, connect
from mooring.client.kubeconfigfiles import load
from mooring.errors import MooringError, UnauthorizedError
from mooring.pki.x509.bundles import certificates, certificates_pem
from mooring.pki.x509.certificate import Certificate
from mooring.secret import Secret
from mooring.trust.discovery.pins import pin_of
from mooring.trust.k3s.cahash import ca_hash
from tests.support import forkserver
from tests.support.joinplans import join_options, join_plan
from tests.support.liveserver import LiveServer, start_server
from tests.support.polling import eventually
from tests.support.testca import by_library

PLURAL = "certificateauthorityrollovers"


def joined(server: LiveServer, name: str, root: Path, pin: str, token: str) -> NodeState:
    """Join with one pin, or with the hash in the token, as long ago printed."""
    pins = (pin,) if pin else ()
    plan = join_plan(name, (server.endpoint,), Secret(token), pins=pins)
    return asyncio.run(join(plan, join_options(root=root, certificate_timeout=60.0, expiration_seconds=600))).files


@contextmanager
def agent(root: Path) -> Iterator[Path]:
    """Run `mooring agent`. Yield its log."""
    log = root / "agent.log"
    with log.open("ab") as output:
        command = ["-m", "mooring", "agent", "-v", "--root", str(root)]
        process = forkserver.Process(command, stdout=output, stderr=output, env=dict(os.environ))
    try:
        yield log
    finally:
        process.kill()
        process.wait()


def command(kubeconfig: Path, *words: str) -> tuple[int, str]:
    """Run `mooring ca rollover …`. Return the status and everything that it printed."""
    done = forkserver.run(["-m", "mooring", "ca", "rollover", *words, "--kubeconfig", str(kubeconfig)])
    return done.returncode, done.stdout.decode() + done.stderr.decode()


def advanced(server: LiveServer, kubeconfig: Path, *words: str) -> None:
    """Ask for the next phase, and kill the server as soon as it may have begun. The next start goes on."""
    status, printed = command(kubeconfig, *words, "--wait", "0s")
    assert status in (0, 1), printed
    assert "asked for" in printed or "reached" in printed, printed
    server.kill()
    server.restart()


def reached(server: LiveServer) -> Obj:
    async def read(client: ClusterClient) -> Obj:
        status: Obj = (await client.get(PLURAL, "cluster-ca")).get("status") or {}
        return status

    return server.run(read)


def await_phase(server: LiveServer, phase: str) -> None:
    eventually(lambda: reached(server).get("phase") == phase, server)


def issuer_pin(state: NodeState, cas: tuple[Certificate, ...]) -> str:
    pair = state.client.read_pair()
    assert pair is not None
    for ca in cas:
        with suppress(ValueError, InvalidSignature):
            by_library(pair.leaf).verify_directly_issued_by(by_library(ca))
            return str(pin_of(ca))
    raise AssertionError("another CA signed it")


def handshake(server: LiveServer, ca_pem: str) -> None:
    """Verify the server under these CAs alone, as kubeadm does with the bundle of cluster-info."""
    context = ssl.create_default_context(cadata=ca_pem)
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1"),
    ):
        pass


class OldWatch:
    """A watch of Nodes with the old administrator's certificate, which begins again after a kill."""

    def __init__(self, kubeconfig: Path) -> None:
        self.seen: set[str] = set()
        self.refused = threading.Event()
        self._kubeconfig = kubeconfig
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()

    async def _run(self) -> None:
        while not self.refused.is_set():
            try:
                async with connect(load(str(self._kubeconfig))) as client:
                    async for event in client.watch("nodes", resource_version="0"):
                        self.seen.add(event.object["metadata"].get("name", ""))
            except UnauthorizedError:
                self.refused.set()
            except MooringError:
                await asyncio.sleep(0.1)

    def join(self) -> None:
        self._thread.join(30)


def test_the_ca_is_replaced_and_every_machine_finds_its_way(tmp_path: Path) -> None:
    server = start_server(tmp_path / "data")
    try:
        old_pin, old_ca = server.pin, certificates(server.ca_pem)[0]
        old_conf = tmp_path / "old.conf"
        shutil.copy(server.kubeconfig, old_conf)
        token = server.create_token().reveal()
        whole = f"K10{ca_hash(server.ca_pem)}::{token}"
        here, off, wire = (joined(server, name, tmp_path / name, old_pin, token) for name in ("here", "off", "wire"))
        watch = OldWatch(old_conf)

        advanced(server, old_conf, "start")
        await_phase(server, "TrustBoth")
        bundle = certificates(server.ca_pem)
        new_pin = str(pin_of(bundle[1]))
        assert bundle[0] == old_ca
        for pin in (old_pin, new_pin):
            joined(server, f"in-both-{pin[7:11]}", tmp_path / pin, pin, token)

        advanced(server, old_conf, "advance")
        await_phase(server, "IssueNew")
        during = joined(server, "during", tmp_path / "during", old_pin, token)
        assert issuer_pin(during, bundle) == new_pin
        assert issuer_pin(joined(server, "by-hash", tmp_path / "by-hash", "", whole), bundle) == new_pin
        for ca in (old_ca, bundle[1]):
            handshake(server, certificates_pem([ca]).decode())

        advanced(server, old_conf, "advance")
        await_phase(server, "Drain")
        eventually(lambda: reached(server).get("machinesBehindTotal") == 7, server)
        status, printed = command(old_conf, "advance")
        assert status == 1
        assert "here" in printed
        assert "wire" in printed
        assert "give --force" in printed
        with agent(tmp_path / "here"):
            eventually(lambda: issuer_pin(here, bundle) == new_pin, server)
            eventually(lambda: "here" not in behind(server), server)
        assert {"off", "wire"} <= behind(server).keys()
        assert "its certificate is of the old CA" in behind(server)["off"]
        assert "in-both-" in " ".join(watch.seen), "the watch went on"
        assert not watch.refused.is_set()

        advanced(server, old_conf, "advance", "--force")
        await_phase(server, "Done")
        assert [str(pin_of(one)) for one in certificates(server.ca_pem)] == [new_pin]
        assert not (server.data_dir / "pki/rollover").exists()
        watch.join()
        assert watch.refused.is_set(), "the old CA is trusted no more"
        assert server.run(lambda client: client.get("nodes", "here"))["metadata"]["name"] == "here"

        with agent(tmp_path / "off"):
            eventually(lambda: issuer_pin(off, bundle) == new_pin, server)
        assert issuer_pin(wire, bundle) == old_pin
    finally:
        server.stop()


def test_a_machine_whose_certificates_are_revoked_does_not_hold_the_rollover_up(tmp_path: Path) -> None:
    server = start_server(tmp_path / "data")
    try:
        joined(server, "stolen", tmp_path / "stolen", server.pin, server.create_token().reveal())
        for phase, words in (("TrustBoth", ("start",)), ("IssueNew", ("advance",)), ("Drain", ("advance",))):
            status, printed = command(server.kubeconfig, *words)
            assert status == 0, printed
            await_phase(server, phase)
        eventually(lambda: "its certificate is of the old CA" in behind(server).get("stolen", ""), server)
        status, printed = command(server.kubeconfig, "advance")
        assert status == 1
        assert "stolen" in printed

        revoke = ["-m", "mooring", "certs", "revoke", "--node", "stolen", "--kubeconfig", str(server.kubeconfig)]
        assert forkserver.run(revoke).returncode == 0
        eventually(lambda: not reached(server).get("machinesBehindTotal"), server)
        status, printed = command(server.kubeconfig, "advance")
        assert status == 0, printed
        await_phase(server, "Done")
    finally:
        server.stop()


def behind(server: LiveServer) -> dict[str, str]:
    return {one["name"]: one["reason"] for one in reached(server).get("machinesBehind") or ()}
