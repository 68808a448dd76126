"""Every release of kubectl on this machine, and a way to run one.

Rules kept here: programs are found on PATH (`kubectl`, `kubectl.1.NN`), beside what PATH's kubectl links to, where Google's
SDK puts them, and where MOORING_TEST_KUBECTL (paths with `:` between) says. Each runs with a home and a discovery cache of its own
and sees no configuration but the one given.
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

SDK = Path("/usr/lib/google-cloud-sdk/bin")
SECONDS = 60.0
"""No command of the tests takes longer than two, on a machine that does nothing else."""
_NAME = re.compile(r"kubectl(\.1\.\d+)?")


@dataclass(frozen=True, slots=True)
class Program:
    """One kubectl. `version` is what it says of itself, without the leading v."""

    path: Path
    version: str

    @property
    def release(self) -> tuple[int, int]:
        """(major, minor)."""
        major, minor, *_ = self.version.split(".")
        return int(major), int(minor)


@cache
def programs() -> tuple[Program, ...]:
    """The newest program of each release that is installed, oldest release first."""
    folders = [Path(folder) for folder in os.get_exec_path()]
    named = [Path(path) for path in os.environ.get("MOORING_TEST_KUBECTL", "").split(":") if path]
    if linked := shutil.which("kubectl"):
        folders.append(Path(linked).resolve().parent)
    for folder in (*folders, SDK):
        if folder.is_dir():
            named += [path for path in folder.glob("kubectl*") if _NAME.fullmatch(path.name)]
    found = {path.resolve() for path in named if os.access(path, os.X_OK)}
    newest = {one.release: one for one in sorted((Program(path, _version(path)) for path in found), key=_patch)}
    return tuple(newest[release] for release in sorted(newest))


def _patch(program: Program) -> tuple[int, str]:
    """Orders programs of one release; a suffix, as Google's dispatcher has, comes before the release itself."""
    number, _, suffix = program.version.split(".", 2)[2].partition("-")
    return int(number), "" if suffix else "release"


def _version(path: Path) -> str:
    said = subprocess.run([path, "version", "--client", "-o", "json"], capture_output=True, check=True, timeout=SECONDS)
    version: str = json.loads(said.stdout)["clientVersion"]["gitVersion"]
    return version.removeprefix("v")


@dataclass(frozen=True, slots=True)
class Kubectl:
    """One kubectl with a kubeconfig. Its discovery cache is in `home`, kept from command to command as users' is."""

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
        # a fifth of the time of so short a command is Go collecting garbage
        return {"PATH": os.defpath, "HOME": str(self.home), "GOGC": "off"}

    def run(self, *args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(args), input=stdin, capture_output=True, text=True, timeout=SECONDS, env=self.environment
        )

    def ok(self, *args: str, stdin: str = "") -> str:
        """What a command prints that must succeed."""
        done = self.run(*args, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(args)}: {done.stderr or done.stdout}"
        return done.stdout

    def fails(self, *args: str, stdin: str = "") -> str:
        """What a command complains about that must fail."""
        done = self.run(*args, stdin=stdin)
        assert done.returncode != 0, f"kubectl {' '.join(args)} succeeded: {done.stdout}"
        return done.stderr

    def json(self, *args: str) -> dict[str, object]:
        """An object, as `-o json` prints it."""
        found: dict[str, object] = json.loads(self.ok(*args, "-o", "json"))
        return found

    @contextmanager
    def started(self, *args: str) -> Iterator[subprocess.Popen[str]]:
        """A command that runs until the end of the block."""
        process = subprocess.Popen(
            self.command(args), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.environment
        )
        with process:
            try:
                yield process
            finally:
                process.kill()
