"""Runs of `mooring` commands: in this process for speed, or as processes where exit codes and streams are tested."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

import pytest

from mooring.cli.main import run
from tests.support import forkserver

_ANNOUNCED = re.compile(r"^On https?://\S+ as [^\n]*:\n", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str
    announced: str = ""
    """The line of standard error that names the cluster which a command changes; `err` is without it."""

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
        return outcome(code, out, err)

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
    return outcome(done.returncode, done.stdout.decode(), done.stderr.decode())


def outcome(code: int, out: str, err: str) -> Outcome:
    """Return the outcome, with the name of the cluster apart from the rest of standard error."""
    found = _ANNOUNCED.search(err)
    return Outcome(code, out, _ANNOUNCED.sub("", err), found.group() if found else "")
