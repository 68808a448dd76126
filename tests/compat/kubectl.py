"""Releases of kubectl on this machine, and runs of their commands.

Rules kept here: programs are found on PATH (`kubectl`, `kubectl.1.NN`), beside the target of PATH's kubectl if it is a link, in
the folder of Google's SDK, in the packages of `tests.support.packagedprograms`, and at the paths in MOORING_TEST_KUBECTL (separated
by `:`). Each runs with a home and a discovery cache
of its own and reads only the kubeconfig that it is given.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support import packagedprograms

SDK = Path("/usr/lib/google-cloud-sdk/bin")
SECONDS = 60.0
"""Timeout of one command in seconds; on an idle machine none takes longer than two."""
_NAME = re.compile(r"kubectl(\.1\.\d+)?")


@dataclass(frozen=True, slots=True)
class Program:
    """One kubectl. `version` is the one that it prints, without the leading v."""

    path: Path
    version: str

    @property
    def release(self) -> tuple[int, int]:
        """(major, minor)."""
        major, minor, *_ = self.version.split(".")
        return int(major), int(minor)


@cache
def programs() -> tuple[Program, ...]:
    """Return the newest program of each installed release, oldest release first."""
    folders = [Path(folder) for folder in os.get_exec_path()]
    named = [Path(path) for path in os.environ.get("MOORING_TEST_KUBECTL", "").split(":") if path]
    if linked := shutil.which("kubectl"):
        folders.append(Path(linked).resolve().parent)
    for folder in (*folders, SDK):
        if folder.is_dir():
            named += [path for path in folder.glob("kubectl*") if _NAME.fullmatch(path.name)]
    named += packagedprograms.programs("kubectl")
    found = {path.resolve() for path in named if os.access(path, os.X_OK)}
    newest = {one.release: one for one in sorted((Program(path, _version(path)) for path in found), key=_patch)}
    return tuple(newest[release] for release in sorted(newest))


def _patch(program: Program) -> tuple[int, str]:
    """Return the sort key within one release; a version with a suffix, as of Google's dispatcher, precedes the release itself."""
    number, _, suffix = program.version.split(".", 2)[2].partition("-")
    return int(number), "" if suffix else "release"


def _version(path: Path) -> str:
    said = subprocess.run([path, "version", "--client", "-o", "json"], capture_output=True, check=True, timeout=SECONDS)
    version: str = json.loads(said.stdout)["clientVersion"]["gitVersion"]
    return version.removeprefix("v")


@dataclass(frozen=True, slots=True)
class Kubectl:
    """One kubectl with a kubeconfig. Its discovery cache is in `home` and lasts from command to command."""

    program: Program
    kubeconfig: Path
    home: Path

    def command(self, args: Sequence[str]) -> list[str]:
        return [
            str(self.program.path),
            f"--kubeconfig={self.kubeconfig}",
            f"--cache-dir={self.home / 'cache'}",
            *args,
        ]

    @property
    def environment(self) -> dict[str, str]:
        # Go's garbage collection takes a fifth of the time of so short a command
        return {"PATH": os.defpath, "HOME": str(self.home), "GOGC": "off"}

    def run(self, *args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(args), input=stdin, capture_output=True, text=True, timeout=SECONDS, env=self.environment
        )

    def ok(self, *args: str, stdin: str = "") -> str:
        """Run a command that must succeed. Return its standard output."""
        done = self.run(*args, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(args)}: {done.stderr or done.stdout}"
        return done.stdout

    def fails(self, *args: str, stdin: str = "") -> str:
        """Run a command that must fail. Return its standard error."""
        done = self.run(*args, stdin=stdin)
        assert done.returncode != 0, f"kubectl {' '.join(args)} succeeded: {done.stdout}"
        return done.stderr

    def json(self, *args: str) -> dict[str, object]:
        """Run a command with `-o json`. Return the object."""
        found: dict[str, object] = json.loads(self.ok(*args, "-o", "json"))
        return found

    @contextmanager
    def started(self, *args: str) -> Iterator[subprocess.Popen[str]]:
        """Run a command until the end of the block."""
        process = subprocess.Popen(
            self.command(args), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.environment
        )
        with process:
            try:
                yield process
            finally:
                process.kill()
