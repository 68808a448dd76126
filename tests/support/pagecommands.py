"""Commands of a documentation page, run as they are written, on machines that are directories and loopback addresses.

Rules kept here: a block runs in bash, which ends at the first failure. Only places are translated: addresses 10.0.0.N become
127.0.0.N, the ports of `Machines` others, and /etc, /srv and /var directories of the machine. `scp` copies between
these directories. What keeps running is ended with its process group.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.citations import FENCE

SECONDS = 60.0
_INDENT = re.compile(r"^    ", re.MULTILINE)
"""That of a block below an item of a list."""
_SECTION = re.compile(r"^## ", re.MULTILINE)
_PLACE = re.compile(r"""(^|[\s"'=]|sqlite:)(/(?:etc|srv|var)/)""", re.MULTILINE)
_SCP = """#!/bin/sh -e
for last; do :; done
place=${last#*@}
path="$MACHINES/${place%%:*}${place#*:}"
case "$path" in */) mkdir -p "$path" ;; *) mkdir -p "$(dirname "$path")" ;; esac
while [ $# -gt 1 ]; do cp -p "$1" "$path"; shift; done
"""


def blocks(page: Path) -> dict[str, list[str]]:
    """Return the shell blocks of each section by its title; those before the first section have the title ""."""
    title, found = "", dict[str, list[str]]()
    for number, section in enumerate(_SECTION.split(page.read_text())):
        if number:
            title, _, section = section.partition("\n")
        found[title] = [block for language, block in FENCE.findall(_INDENT.sub("", section)) if language == "sh"]
    return found


@dataclass
class Machines:
    """Simulated machines. `ports` maps ports of the page to free ones."""

    root: Path
    ports: dict[int, int]
    environment: dict[str, str] = field(default_factory=dict)
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        scp = self.root / "bin" / "scp"
        scp.parent.mkdir(parents=True)
        scp.write_text(_SCP)
        scp.chmod(0o755)

    def directory(self, address: str) -> Path:
        """Return the directory of a machine, by its address on the page."""
        return self.root / address.replace("10.0.0.", "127.0.0.")

    def translated(self, text: str, address: str) -> str:
        """Return text of the page as it is for the machine with that address on the page."""
        text = _PLACE.sub(lambda match: f"{match[1]}{self.directory(address)}{match[2]}", text)
        for there, here in self.ports.items():
            text = re.sub(rf":{there}\b", f":{here}", text)
        return text.replace("10.0.0.", "127.0.0.")

    def run(self, block: str, address: str) -> str:
        """Run a block to its end, and return its output."""
        done = subprocess.run(
            self._shell(block, address), env=self._environment(), capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, block: str, address: str, name: str) -> None:
        """Start a block that keeps running."""
        self._log(name).parent.mkdir(exist_ok=True)
        with self._log(name).open("ab") as log:
            self.running[name] = subprocess.Popen(
                self._shell(block, address),
                env=self._environment(),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def wait_for(self, name: str, line: str) -> None:
        """Wait until what was started has logged that text."""
        deadline = time.monotonic() + SECONDS
        while line not in self.log(name):
            assert self.running[name].poll() is None, self.log(name)[-4000:]
            assert time.monotonic() < deadline, self.log(name)[-4000:]
            time.sleep(0.05)

    def log(self, name: str) -> str:
        return self._log(name).read_text()

    def end(self, name: str, number: int = signal.SIGTERM) -> None:
        """End what was started, and wait."""
        process = self.running.pop(name)
        with suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(process.pid, number)
        process.wait(SECONDS)

    def end_all(self) -> None:
        for name in list(self.running):
            self.end(name, signal.SIGKILL)

    def _log(self, name: str) -> Path:
        return self.root / "log" / name

    def _shell(self, block: str, address: str) -> list[str]:
        self.directory(address).mkdir(exist_ok=True)
        for place in ("etc", "srv", "var/lib", "var/backups"):
            (self.directory(address) / place).mkdir(parents=True, exist_ok=True)
        return ["bash", "-euc", self.translated(block, address)]

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MOORING_", "KUBE"))}
        path = f"{self.root / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {**kept, **self.environment, "PATH": path, "MACHINES": str(self.root), "HOME": str(self.root)}
