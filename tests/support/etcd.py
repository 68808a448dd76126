"""Real etcd members for tests: one or three, with or without TLS, that can be killed, stopped and started again.

Rules kept here: `etcd` is found on PATH, or named by MOORING_TEST_ETCD; without one, tests are skipped with the reason. Members
listen on 127.0.0.1 only, keep their data in a directory of the test, and end with the block or with the test process. They do not
fsync unless a test asks for it. `shared` is one member for all tests of a process: each test has keys of its own (`prefix`).
"""

from __future__ import annotations

import atexit
import base64
import http.client
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from mooring.storage.etcd.keyspace import Keyspace
from tests.support.commandline import process
from tests.support.ports import free_port

ETCD = os.environ.get("MOORING_TEST_ETCD") or shutil.which("etcd")
ETCDCTL = shutil.which("etcdctl")
MISSING = "" if ETCD and ETCDCTL else "needs etcd and etcdctl on PATH"
START_SECONDS = 60.0
LOOPBACK = "127.0.0.1"

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Certificates:
    """Files of a CA, of a serving certificate for 127.0.0.1, and of a client certificate (`root` is its common name)."""

    directory: Path

    @property
    def ca(self) -> Path:
        return self.directory / "ca.crt"

    @property
    def server(self) -> tuple[Path, Path]:
        return self.directory / "server.crt", self.directory / "server.key"

    @property
    def client(self) -> tuple[Path, Path]:
        return self.directory / "root.crt", self.directory / "root.key"

    @classmethod
    def make(cls, directory: Path) -> Certificates:
        """Make them with `mooring certs`."""
        issued_by = (
            "--ca-cert", str(directory / "ca.crt"), "--ca-key", str(directory / "ca.key"), "--out-dir", str(directory)
        )  # fmt: skip
        for arguments in (
            ("ca", "--out-dir", str(directory)),
            ("server", *issued_by, "--ip", "127.0.0.1", "--dns", "localhost"),
            ("client", *issued_by, "--common-name", "root", "--name", "root"),
        ):
            outcome = process("certs", *arguments)
            assert outcome.code == 0, outcome.err
        return cls(directory)


@dataclass(frozen=True)
class Place:
    """Address on which a member listens, and the words that run a command there (`tests.support.network`)."""

    address: str = LOOPBACK
    command: tuple[str, ...] = ()


@dataclass
class Member:
    """One member: its command, which is the same at every start, and its process while it runs."""

    name: str
    url: str
    health_port: int
    directory: Path
    command: Sequence[str]
    process: subprocess.Popen[bytes] | None = None
    address: str = LOOPBACK

    @property
    def data(self) -> Path:
        """Data directory."""
        return self.directory / self.name

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def _log(self) -> Path:
        return self.directory / f"{self.name}.log"

    def start(self) -> None:
        """Start the process without waiting until it is healthy."""
        assert self.process is None
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)

    def kill(self) -> None:
        """End the process at once, as a power failure would."""
        running, self.process = self.process, None
        if running is not None:
            running.kill()
            running.wait()

    def stop(self) -> None:
        """Stop the process, which keeps its connections and answers nothing."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a stopped process go on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    @property
    def healthy(self) -> bool:
        """True while the member answers and has a leader."""
        connection = http.client.HTTPConnection(self.address, self.health_port, timeout=2)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    @property
    def leads(self) -> bool:
        """True while the member is the leader."""
        connection = http.client.HTTPConnection(self.address, self.health_port, timeout=2)
        try:
            connection.request("GET", "/metrics")
            return b"\netcd_server_is_leader 1\n" in connection.getresponse().read()
        except OSError:
            return False
        finally:
            connection.close()

    def await_healthy(self) -> None:
        """Wait until the member is healthy."""
        deadline = time.monotonic() + START_SECONDS
        while not self.healthy:
            assert self.process is not None
            assert self.process.poll() is None, self.log[-4000:]
            assert time.monotonic() < deadline, self.log[-4000:]
            time.sleep(0.02)


@dataclass
class Etcd:
    """One cluster."""

    directory: Path
    members: list[Member] = field(default_factory=list)
    certificates: Certificates | None = None

    @property
    def endpoints(self) -> str:
        """Client URLs, separated by commas."""
        return ",".join(member.url for member in self.members)

    @property
    def leader(self) -> Member:
        """The member that leads, once one does."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            for member in self.members:
                if member.process is not None and member.leads:
                    return member
            assert time.monotonic() < deadline, "no member leads"
            time.sleep(0.02)

    def control(self, *arguments: str, user: str = "", given: str = "") -> str:
        """Run etcdctl with the input `given`, and return its output."""
        assert ETCDCTL is not None
        command = [ETCDCTL, "--endpoints", self.endpoints, "--command-timeout=20s"]
        if self.certificates is not None:
            certificate, key = self.certificates.client
            command += ["--cacert", str(self.certificates.ca), "--cert", str(certificate), "--key", str(key)]
        if user:
            command += ["--user", user]
        outcome = subprocess.run(
            [*command, *arguments],
            input=given,
            capture_output=True,
            text=True,
            env={**os.environ, "ETCDCTL_API": "3"},
            timeout=60,
        )
        assert outcome.returncode == 0, outcome.stderr
        return outcome.stdout

    def restore(self, member: Member, snapshot: Path) -> None:
        """Make the data directory of the only member from a snapshot."""
        peer = member.command[member.command.index("--initial-advertise-peer-urls") + 1]
        self.control(
            "snapshot", "restore", str(snapshot), "--name", member.name, "--data-dir", str(member.data),
            "--initial-cluster", f"{member.name}={peer}", "--initial-advertise-peer-urls", peer,
        )  # fmt: skip

    def await_healthy(self) -> None:
        """Wait until all members are healthy."""
        for member in self.members:
            member.await_healthy()

    def kill(self) -> None:
        """End all members at once."""
        for member in self.members:
            if member.process is not None:
                member.process.kill()
        for member in self.members:
            member.kill()


def start(
    directory: Path,
    members: int = 1,
    *,
    certificates: Certificates | None = None,
    client_certificates: bool = False,
    durable: bool = False,
    arguments: Sequence[str] = (),
    places: Sequence[Place] = (),
) -> Etcd:
    """Start a cluster and wait until it is healthy.

    `certificates`: serve clients over TLS; `client_certificates`: and require a certificate of them. `durable`: fsync. `places`:
    that of each member, loopback unless given.
    """
    assert ETCD is not None, MISSING
    scheme = "https" if certificates is not None else "http"
    names = [f"m{number}" for number in range(members)]
    where = dict(zip(names, places or [Place()] * members, strict=True))
    peers = {name: f"http://{where[name].address}:{free_port()}" for name in names}
    cluster = Etcd(directory, certificates=certificates)
    for name in names:
        address = where[name].address
        url, health_port = f"{scheme}://{address}:{free_port()}", free_port()
        command = [
            *where[name].command, ETCD, "--name", name, "--data-dir", str(directory / name), "--listen-client-urls", url,
            "--advertise-client-urls", url, "--listen-peer-urls", peers[name], "--initial-advertise-peer-urls",
            peers[name], "--initial-cluster", ",".join(f"{one}={peer}" for one, peer in peers.items()),
            "--listen-metrics-urls", f"http://{address}:{health_port}", "--heartbeat-interval", "50",
            "--election-timeout", "500", *arguments,
        ]  # fmt: skip
        if not durable:
            command.append("--unsafe-no-fsync")
        if certificates is not None:
            command += ["--cert-file", str(certificates.server[0]), "--key-file", str(certificates.server[1])]
            command += ["--trusted-ca-file", str(certificates.ca)] if client_certificates else []
            command += ["--client-cert-auth"] if client_certificates else []
        cluster.members.append(Member(name, url, health_port, directory, command, address=address))
    try:
        for member in cluster.members:
            member.start()
        cluster.await_healthy()
    except BaseException:
        cluster.kill()
        raise
    return cluster


@contextmanager
def running(directory: Path, members: int = 1, **options: object) -> Iterator[Etcd]:
    """Run a cluster until the block ends; options as for `start`."""
    cluster = start(directory, members, **options)  # type: ignore[arg-type]  # the signature of `start`, said once
    try:
        yield cluster
    finally:
        cluster.kill()


@cache
def shared() -> Etcd:
    """Return the member that the tests of this process share. It is started by the first call."""
    directory = Path(tempfile.mkdtemp(prefix="mooring-etcd-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    cluster = start(directory, arguments=("--max-request-bytes", str(8 * 1024 * 1024)))
    atexit.register(cluster.kill)
    return cluster


def prefix() -> str:
    """Return an --etcd-prefix that no other test of this process has."""
    return f"/test-{next(_numbers):06}/registry"


def fresh_prefix() -> str:
    """Return such a prefix in the shared member, with an offset that makes revisions begin at 1 there."""
    chosen = prefix()
    newest = int(_gateway("/v3/kv/range", key=b"\0")["header"]["revision"])
    _gateway("/v3/kv/put", key=Keyspace(chosen).offset_key, value=b"%d" % -newest)
    return chosen


def _gateway(path: str, **fields: bytes) -> dict[str, Any]:
    """Carry out a request by etcd's JSON gateway."""
    connection = http.client.HTTPConnection("127.0.0.1", shared().members[0].port, timeout=10)
    try:
        body = json.dumps({name: base64.b64encode(value).decode() for name, value in fields.items()})
        connection.request("POST", path, body)
        answer: dict[str, Any] = json.load(connection.getresponse())
        return answer
    finally:
        connection.close()
