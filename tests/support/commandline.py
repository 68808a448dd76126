"""Runs of `mooring` commands: in this process for speed, or as processes where exit codes and streams are tested."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest

from mooring.cli.main import run
from tests.support import forkserver


@dataclass(frozen=True)
class Outcome:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def all(self) -> str:
        return self.out + self.err


class CommandLine:
    """Runs commands in this process."""

    def __init__(self, captured: pytest.CaptureFixture[str]) -> None:
        self._captured = captured

    def __call__(self, *arguments: str) -> Outcome:
        self._captured.readouterr()
        code = run(list(arguments))
        out, err = self._captured.readouterr()
        return Outcome(code, out, err)

    def done(self, *arguments: str) -> str:
        """Return the standard output of a command that must succeed."""
        outcome = self(*arguments)
        assert outcome.code == 0, outcome.err
        return outcome.out


@pytest.fixture
def mooring(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Return the command line, without the variables of the developer's environment."""
    for name in list(os.environ):
        if name.startswith("MOORING_") or name == "KUBECONFIG":
            monkeypatch.delenv(name)
    return CommandLine(capsys)


def process(*arguments: str, stdin: str = "", **environment: str) -> Outcome:
    """Run `python -m mooring` in a process that the fork server forks."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MOORING_")}
    done = forkserver.run(["-m", "mooring", *arguments], given=stdin.encode(), env=kept | environment)
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())
