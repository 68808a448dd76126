"""The clock of a machine that is set under running programs, by Debian's libfaketime: certificates of servers and of members."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509

from mooring.client.kubeconfigfiles import load
from tests.support.polling import eventually
from tests.support.ports import free_port

FAKETIME = tuple(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
PROGRAM = """
import mooring.agent.heartbeat
import mooring.clock
mooring.agent.heartbeat.RENEW_SECONDS, mooring.agent.heartbeat.REFUSED_SECONDS = 1.0, 2.0
mooring.clock.JUMP_SECONDS = 0.5  # tests/test_clock.py has the minute; this test has the clock of the system
from mooring.cli.main import main
main()
"""

pytestmark = pytest.mark.skipif(not FAKETIME, reason="needs libfaketime")


class Machine:
    """A server, agents of both ways of joining, and the clock of their machine."""

    def __init__(self, place: Path) -> None:
        self.data_dir = place / "data"
        self.port = free_port()
        self._offset = place / "offset"
        self.set(timedelta())
        self._log = place / "log"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("FAKETIME")}
        self._environment = {  # its own libfaketime alone: one that the session preloads (tests/steady.py) moves to another date
            **inherited,
            "LD_PRELOAD": str(FAKETIME[0]),
            "FAKETIME_TIMESTAMP_FILE": str(self._offset),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        flags = ("--bind-address", "127.0.0.1", "--secure-port", str(self.port), "--workers", "1", "--k3s-supervisor")
        self.process = self.start("server", "--data-dir", str(self.data_dir), *flags)
        self.agents: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command, whose output is the log."""
        with self._log.open("ab") as log:
            words = [sys.executable, "-c", PROGRAM, *arguments]
            return subprocess.Popen(words, stdout=log, stderr=log, env=self._environment)

    def done(self, *arguments: str) -> str:
        """Return the output of a command of an administrator that must succeed."""
        words = [sys.executable, "-c", PROGRAM, *arguments, "--kubeconfig", str(self.data_dir / "admin.conf")]
        return subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True, env=self._environment).stdout

    def ends(self) -> dict[str, str]:
        """Return the end of the certificate of each machine that is Ready."""
        machines = json.loads(self.done("node", "list", "-o", "json"))["items"]
        return {
            one["name"]: max(each["expires"] for each in one["certificates"] if each["state"] == "valid")
            for one in machines
            if one["state"] == "Ready" and any(each["state"] == "valid" for each in one["certificates"])
        }

    def suspend(self, offset: timedelta) -> None:
        """Suspend all programs, set the clock, and wake them, the server last."""
        everything = [self.process, *self.agents]
        for process in everything:
            process.send_signal(signal.SIGSTOP)
        self.set(offset)
        for process in reversed(everything):
            process.send_signal(signal.SIGCONT)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def set(self, offset: timedelta) -> None:
        """Set the clock to `offset` beyond that of the system."""
        file = self._offset.with_suffix(".new")
        file.write_text(f"{int(offset.total_seconds()):+d}\n")
        file.replace(self._offset)

    def made(self) -> tuple[datetime, datetime]:
        """Return when the serving certificate and that of admin.conf were made. Raises OSError."""
        serving = ssl.get_server_certificate(("127.0.0.1", self.port), timeout=10).encode()
        user = load(str(self.data_dir / "admin.conf")).user.certificate_pem
        of_server, of_user = (x509.load_pem_x509_certificate(pem).not_valid_before_utc for pem in (serving, user))
        return of_server, of_user

    def is_renewed(self, moment: datetime) -> bool:
        """Return whether both certificates were made at `moment`."""
        try:
            return all(abs(begin - moment) < timedelta(hours=1) for begin in self.made())
        except OSError:
            return False  # it starts

    def close(self) -> None:
        for process in (self.process, *self.agents):
            process.kill()
            process.wait()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    found = Machine(tmp_path)
    yield found
    found.close()


def test_a_running_server_follows_a_clock_that_is_set_forward_and_back(machine: Machine) -> None:
    eventually(lambda: "serving on" in machine.log)
    first, _ = machine.made()
    for days in (300, 0):
        machine.set(timedelta(days=days))
        eventually(partial(machine.is_renewed, first + timedelta(days=days)))
    assert machine.process.poll() is None
    assert "Traceback" not in machine.log


def test_members_that_slept_with_their_server_past_the_end_of_their_certificates_come_back(
    machine: Machine, tmp_path: Path
) -> None:
    """Thirteen months: without a person, although the heartbeat is refused before a renewal looks at the clock."""
    eventually(lambda: "serving on" in machine.log)
    first, _ = machine.made()
    join = machine.done("token", "create", "--print-join-command").split()[2:]
    whole = machine.done("token", "create", "--format", "k3s").strip()
    for name in ("m1", "m2"):
        assert machine.start("join", "--root", str(tmp_path / name), "--node-name", name, *join).wait() == 0
        machine.agents.append(machine.start("agent", "--root", str(tmp_path / name)))
    supervised = ("--server", f"https://127.0.0.1:{machine.port}", "--token", whole, "--disable-apiserver-lb")
    machine.agents.append(machine.start("agent", "--root", str(tmp_path / "k1"), "--node-name", "k1", *supervised))
    before = eventually(lambda: ready if len(ready := machine.ends()) == 3 else {})
    machine.suspend(timedelta(days=391))
    eventually(partial(machine.is_renewed, first + timedelta(days=391)))
    eventually(lambda: all(end > before[name] for name, end in machine.ends().items()) and len(machine.ends()) == 3)
    assert [one.poll() for one in machine.agents] == [None] * 3
    assert "Traceback" not in machine.log
