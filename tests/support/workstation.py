"""A user's machine with `mooring` and kubectl: a home directory, and a server to log in at.

Rules kept here: commands run as processes with the environment of this home, without the developer's. Credentials age by a change
of the stored times, not by waiting.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mooring.client.login.loginfiles import LoginFiles
from mooring.trust.loginrecord import Login
from tests.compat.kubectl import Program, programs
from tests.support import forkserver
from tests.support.commandline import Outcome
from tests.support.liveserver import LiveServer

PASSWORD = "correct horse battery staple"
TOKEN = "robots-token-of-the-file"
USED = tuple(one for one in programs() if one.release in ((1, 27), (1, 33)))
NEWEST = USED[-1] if USED else Program(Path("kubectl"), "")
NEEDS_KUBECTL = pytest.mark.skipif(not USED, reason="no kubectl 1.27 or 1.33 is installed on this machine")


@pytest.fixture
def program() -> Program:
    """The newest kubectl; the name of the fixture marks its tests as `client` (tests/conftest.py)."""
    return NEWEST


@dataclass(frozen=True)
class Workstation:
    """One user's machine, with its home directory."""

    server: LiveServer
    home: Path

    @property
    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("MOORING_", "KUBE", "XDG_"))}
        path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
        return {**kept, "HOME": str(self.home), "PATH": path}

    @property
    def kubeconfig(self) -> Path:
        return self.home / ".kube" / "config"

    @property
    def logins(self) -> LoginFiles:
        return LoginFiles(self.home / ".cache/mooring/logins")

    def run(self, *command: str, stdin: str = "", **environment: str) -> Outcome:
        finished = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=60, env=self.environment | environment
        )
        return Outcome(finished.returncode, finished.stdout, finished.stderr)

    def mooring(self, *arguments: str, stdin: str = "", **environment: str) -> Outcome:
        finished = forkserver.run(
            ["-m", "mooring", *arguments], given=stdin.encode(), env=self.environment | environment
        )
        return Outcome(finished.returncode, finished.stdout.decode(), finished.stderr.decode())

    def login(self, *flags: str, stdin: str = PASSWORD) -> Outcome:
        """Log in at the server with its CA, as jane unless the flags differ."""
        how = (
            flags
            if any(flag.startswith("--token-file") for flag in flags)
            else ("--username", "jane", "--password-stdin", *flags)
        )
        ca = str(self.server.data_dir / "pki/ca.crt")
        return self.mooring("login", "--server", self.server.url, "--certificate-authority", ca, *how, stdin=stdin)

    def token_file(self, text: str = TOKEN) -> Path:
        path = self.home / "token"
        path.write_text(text)
        return path

    def kubectl(self, program: Program, *arguments: str, **environment: str) -> Outcome:
        return self.run(str(program.path), *arguments, **environment)

    def whoami(self, program: Program, **environment: str) -> Any:
        """Return kubectl's user info by a SelfSubjectReview, because `kubectl auth whoami` needs 1.28."""
        review = json.dumps({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})
        command = (str(program.path), "create", "--raw", "/apis/authentication.k8s.io/v1/selfsubjectreviews", "-f", "-")
        finished = self.run(*command, stdin=review, **environment)
        assert finished.code == 0, finished.err
        return json.loads(finished.out)["status"]["userInfo"]

    def only_login(self) -> Login:
        """Return the record of the only login."""
        (login_id,) = self.logins.every()
        login = self.logins.read(login_id)
        assert login is not None
        return login

    def age(self, left: timedelta) -> None:
        """Rewrite the stored credential so that only `left` of its minute remains."""
        login = self.only_login()
        assert login.credential is not None
        expires = datetime.now(UTC) + left
        aged = replace(login.credential, issued=expires - timedelta(minutes=1), expires=expires)
        self.logins.write(login.with_credential(aged))
