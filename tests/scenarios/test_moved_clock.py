"""The clock of a machine that is set under a running server, by Debian's libfaketime: own certificates."""

from __future__ import annotations

import os
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
import mooring.clock
mooring.clock.JUMP_SECONDS = 0.5  # tests/test_clock.py has the minute; this test has the clock of the system
from mooring.cli.main import main
main()
"""

pytestmark = pytest.mark.skipif(not FAKETIME, reason="needs libfaketime")


class Machine:
    """A server, and the clock of its machine."""

    def __init__(self, place: Path) -> None:
        self.data_dir = place / "data"
        self.port = free_port()
        self._offset = place / "offset"
        self.set(timedelta())
        self._log = place / "log"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("FAKETIME")}
        environment = {  # its own libfaketime alone: one that the session preloads (tests/steady.py) moves to another date
            **inherited,
            "LD_PRELOAD": str(FAKETIME[0]),
            "FAKETIME_TIMESTAMP_FILE": str(self._offset),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        flags = ("--bind-address", "127.0.0.1", "--secure-port", str(self.port), "--workers", "1")
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, "server", "--data-dir", str(self.data_dir), *flags],
                stdout=log,
                stderr=log,
                env=environment,
            )

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
        self.process.kill()
        self.process.wait()


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
